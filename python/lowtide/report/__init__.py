"""Pictures of plans for people: one HTML page that needs nothing from elsewhere, and an SVG."""

from .page import page, write_page
from .svg import arena_svg

__all__ = ["arena_svg", "page", "write_page"]
