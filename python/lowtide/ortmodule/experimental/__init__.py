"""What ORTModule's users know as experimental."""
