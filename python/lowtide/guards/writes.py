"""What forward sets in each call anew: tensors and sizes in attributes of modules, buffers, and counters."""

import contextlib
from dataclasses import dataclass

import torch
import torch.utils._pytree as pytree

from lowtide.errors import UnsupportedError

from .collected import Collected, Put
from .held import container_of, value_at
from .replaced import put_element
from .values import PLAIN, PLAIN_TENSORS

_SYMBOLIC = (torch.SymInt, torch.SymBool, torch.SymFloat)


@dataclass(frozen=True)
class Write:
    """`module.name = value` after a call, or `module.name += step`."""

    path: str  # of the module
    name: str
    step: int | None = None

    def text(self):
        """Of its place, as held.py has it."""
        return f"{self.path}.{self.name}".lstrip(".")


def writes_of(entries, modules):
    """[(dict, key)] as Writes, if all of the dicts are those of modules, {path: module}; else none."""
    paths = {id(vars(module)): path for path, module in modules.items()}
    if any(id(table) not in paths for table, _ in entries):
        return []
    return [Write(paths[id(table)], name) for table, name in entries]


class Counter:
    """Stands for an int while forward is traced: nobody may see its value, but it may be added to."""

    def __init__(self, where, step=0):
        self._where, self.step = where, step

    def __add__(self, other):
        if type(other) is not int:
            raise self.refusal()
        return Counter(self._where, self.step + other)

    def __sub__(self, other):
        return self + -other

    __radd__ = __add__

    def refusal(self):
        return UnsupportedError(f"forward changes {self._where}, which a graph would freeze")


def _refuse(self, *_):
    raise self.refusal()


for _name in (
    *"lt le gt ge eq ne hash bool int float index str repr format neg pos abs round".split(),
    *"mul rmul truediv rtruediv floordiv rfloordiv mod rmod pow rpow rsub and rand or ror xor rxor".split(),
    *"lshift rlshift rshift rrshift divmod rdivmod invert trunc floor ceil".split(),
):
    setattr(Counter, f"__{_name}__", _refuse)


def take_writes(kept, modules, seen, always):
    """At the end of forward, out of everything that it has changed: [(Write, value)], and Puts. `always`: Writes that
    are among them whatever was set."""
    found, tables = [], {id(vars(module)) for module in modules.values()}
    for path, module in modules.items():
        names = {write.name for write in always if write.path == path}
        for name, value in kept.take(vars(module), is_computed, seen.held, names).items():
            found.append((Write(path, name), value))
        for name, value in kept.take(vars(module), lambda value: type(value) is Counter).items():
            found.append((Write(path, name, value.step), None))
            seen.counters.add((id(module), name))
    return found, [Put(*taken) for taken in kept.take_from_containers(is_computed, is_collected, tables)]


def is_collected(value):
    return is_computed(value) or _is_plain(value)


def _is_plain(value):
    return isinstance(value, PLAIN) or type(value) is tuple and all(map(_is_plain, value))


def is_computed(value):
    """Whether it is made of tensors and sizes of a trace, perhaps beside plain values."""
    leaves = pytree.tree_leaves(value)
    return any(map(is_traced, leaves)) and all(is_traced(leaf) or _is_constant(leaf) for leaf in leaves)


def is_begun(value):
    """Whether it is a number or a container without items, which forward adds to."""
    return type(value) in (int, float) or type(value) in (list, dict) and not value


def is_traced(leaf):
    return isinstance(leaf, _SYMBOLIC) or (isinstance(leaf, torch.Tensor) and type(leaf) not in PLAIN_TENSORS)


def _is_constant(leaf):
    if isinstance(leaf, torch.Size):
        return not any(isinstance(size, _SYMBOLIC) for size in leaf)
    return isinstance(leaf, PLAIN)


def _table(module, name):
    return module._buffers if name in module._buffers else vars(module)


def _is_of_module(write):
    return isinstance(write, Write | Collected)


@contextlib.contextmanager
def undone(module, writes):
    """What forward sets inside is put back: another run of it in the same call."""
    lists, others = [], []
    for write in filter(_is_of_module, writes):
        if not isinstance(write, Collected):
            table = _table(module.get_submodule(write.path), write.name)
            others.append((table, write.name, table.get(write.name, _table)))
        elif write.is_list:
            lists.append((found := value_at(module, write.text), list(found)))
        else:
            others.append((*container_of(module, write.text), value_at(module, write.text)))
    try:
        yield
    finally:
        for found, items in lists:
            found[:] = items
        for container, key, value in others:
            if value is _table:  # there was none
                container.pop(key, None)
            else:
                put_element(container, key, value)


def setters(module, writes, settings):
    """A function (values of those that have no step) that makes them and Settings in a module."""
    collected = [write for write in writes if isinstance(write, Collected)]
    own = [write for write in writes if type(write) is Write]
    owners = [(_table(module.get_submodule(write.path), write.name), write) for write in own]

    def make(values):
        for setting in settings:
            setting.make(module)
        rest = iter(values)
        for attributes, write in owners:
            attributes[write.name] = next(rest) if write.step is None else attributes[write.name] + write.step
        for write in collected:
            write.make(module, next(rest))

    return make
