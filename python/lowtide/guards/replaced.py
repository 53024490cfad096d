"""Attributes that are others for a time, and elements of containers and of cells."""

import contextlib
import types

from .code import content


@contextlib.contextmanager
def replaced_attribute(owner, name, value):
    """Another value for a time. A name that the owner only inherits is deleted again, not copied down."""
    missing = object()
    before = vars(owner).get(name, missing)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if before is missing:
            delattr(owner, name)
        else:
            setattr(owner, name, before)


def element_at(container, key):
    return content(container) if isinstance(container, types.CellType) else container[key]


def put_element(container, key, value):
    if isinstance(container, types.CellType):
        container.cell_contents = value
    elif isinstance(container, dict):
        dict.__setitem__(container, key, value)
    else:
        container[key] = value
