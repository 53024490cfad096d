"""Whether Python code would take one thing for another, and what of a trace no code would ever ask for."""

import collections
import contextlib
import types
import weakref

import torch

from .values import PLAIN, same_plain


def same(one, other, depth=3):
    """Whether Python code would take one for the other: nothing that it could count or remember is different."""
    if one is other:
        return True
    if isinstance(one, PLAIN):
        return same_plain(one, other)
    if isinstance(one, torch.nn.Parameter):  # the exporter puts fake ones in their places, in nn.LSTM's own list too
        return isinstance(other, torch.nn.Parameter)
    if type(one) is not type(other) or not depth:
        return False
    if isinstance(one, weakref.ref):
        return same(one(), other(), depth - 1)
    if isinstance(one, dict):
        keys = [key for key in other if key in one or not is_of_trace(key)]
        return list(one) == keys and all(same(one[key], other[key], depth - 1) for key in one)
    if isinstance(one, list | tuple | collections.deque):
        return len(one) == len(other) and all(same(a, b, depth - 1) for a, b in zip(one, other, strict=True))
    if isinstance(one, set | frozenset):
        return one == other
    return _is_renewed(one) and same(vars(one), vars(other), depth - 1)


def is_of_trace(key):
    """Whether a table's key is a class of tensors that only a trace has, or a tuple with one: a library that looks up
    what to do by the class of a tensor, as einops does, notes it as it notes any, and never asks for it in a call."""
    if isinstance(key, tuple):
        return any(map(is_of_trace, key))
    return isinstance(key, type) and issubclass(key, torch.Tensor) and key.__module__.startswith("torch._subclasses.")


def _is_renewed(thing):
    """Whether an object is what its attributes are, as a record that is copied rather than changed is: in its place
    another one with equal attributes does the same."""
    return is_plain_object(thing) and not slots_of(type(thing)) and type(thing).__eq__ is object.__eq__


def has_dict(thing):
    """Whether an object has a __dict__ of its own. An annotation such as tuple[int, int] shows that of its class."""
    return type(thing).__dictoffset__ != 0


def is_plain_object(thing):
    """Whether it is of a class of Python code, which gives objects nothing but attributes, and is none of many things
    that PyTorch or Python itself know by identity: members of enums, singletons, modules."""
    cls = type(thing)
    is_made = cls.__new__ is object.__new__ or cls is types.SimpleNamespace
    return is_made and not isinstance(thing, torch.nn.Module) and bool(has_dict(thing) or slots_of(cls))


def slots_of(cls):
    """Names of the attributes that objects of a class have without a __dict__. Members of classes in C, which only
    describe objects that are what they are (the days of a timedelta), are none."""
    bases = [base for base in cls.__mro__ if "__slots__" in vars(base)]
    found = [(name, value) for base in bases for name, value in vars(base).items()]
    return [name for name, value in found if type(value) is types.MemberDescriptorType and name[:2] != "__"]


def attributes_of(thing):
    """{name: value} of those that a plain object has in its __dict__ and in slots."""
    found = dict(vars(thing)) if has_dict(thing) else {}
    for name in slots_of(type(thing)):
        with contextlib.suppress(AttributeError):  # one without a value
            found[name] = object.__getattribute__(thing, name)
    return found


def put_attribute(thing, name, value):
    """Without a call of the class's own __setattr__."""
    if name in slots_of(type(thing)):
        object.__setattr__(thing, name, value)
    else:
        vars(thing)[name] = value
