"""Attributes that are others for a time, and elements of containers, of cells, of classes and of slots."""

import contextlib
import types

from lowtide.errors import UnsupportedError

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


def refusing(function, is_refused, reason):
    """What stands in the place of a function that forward may not call."""

    def refused(*args, **kwargs):
        if is_refused():
            raise UnsupportedError(reason)
        return function(*args, **kwargs)

    return refused


def element_at(container, key):
    if isinstance(container, types.CellType):
        return content(container)
    if isinstance(container, type):
        return vars(_owner(container, key))[key]
    return container[key] if isinstance(container, list | tuple | dict) else _slot(container, key).__get__(container)


def put_element(container, key, value):
    if isinstance(container, types.CellType):
        container.cell_contents = value
    elif isinstance(container, type):
        setattr(_owner(container, key), key, value)
    elif not isinstance(container, list | dict):
        _slot(container, key).__set__(container, value)
    elif isinstance(container, dict):
        dict.__setitem__(container, key, value)
    else:
        container[key] = value


def _owner(cls, name):
    """The one of its bases that an attribute of a class is of."""
    return next((base for base in cls.__mro__ if name in vars(base)), cls)


def _slot(thing, name):
    found = vars(_owner(type(thing), name))[name]
    if not isinstance(found, types.MemberDescriptorType):
        raise AttributeError(name)
    return found
