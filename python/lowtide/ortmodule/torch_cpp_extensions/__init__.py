"""ORTModule's extensions, which its users build once: here there are none to build."""
