"""What ported programs import from here."""

from .hooks import inspect_activation

__all__ = ["inspect_activation"]
