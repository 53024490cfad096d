"""What a captured graph assumes about its module's Python side. C++ compares it on each call; changes are put into
words here."""

from dataclasses import dataclass

import torch
from torch.nn.parameter import is_lazy
from torch.utils.hooks import RemovableHandle

from lowtide import _lowtide
from lowtide.capture import PLAIN, Reads, describe

_lowtide.shortcuts()  # while one thread alone imports

_MISSING = object()
_HOOKS = {
    "_forward_pre_hooks": "a forward pre-hook",
    "_forward_hooks": "a forward hook",
    "_backward_pre_hooks": "a backward pre-hook",
    "_backward_hooks": "a backward hook",
}
_STATE = {"_parameters": "parameter", "_buffers": "buffer"}


@dataclass(frozen=True)
class Change:
    trigger: str  # a row of transitions.TRANSITIONS
    text: str


class ModuleWatch:
    """The module tree, hooks, what parameters and buffers are (not their values), and the attributes that forward read.
    An attribute that forward never read may change at will; so may a parameter or a buffer for another tensor of the
    same kind."""

    def __init__(self, module, reads):
        """`reads`: capture.Reads of the export."""
        self.native = native = _lowtide.ModuleWatch(PLAIN, torch.Tensor)
        self._paths = {id(child): path for path, child in module.named_modules()}
        self._tables = []  # by number: (path or None, which, table, its entries)
        of_classes = {key: owner for key, owner in reads.computed.items() if _is_of_class(owner, key[1])}
        # By number: (owner, name, value or _MISSING). What the class has, an object may come to have of its own.
        self._attributes = list(_sorted({**reads.attributes, **of_classes}))
        self._computed = list(_sorted({key: owner for key, owner in reads.computed.items() if key not in of_classes}))
        # Of each class once, whichever its objects are.
        self._computed += {(type(owner), name): (owner, name, None) for (_, name), owner in of_classes.items()}.values()
        self._state_tables = []  # by number: (path, word, table, names)
        self._tensors = []  # by number: (path, word, name, kind)
        self._numbers = {}  # (id of a table, name) → number of the tensor
        for path, child in module.named_modules():
            if child._modules or not _is_layer(child):
                self._add_table(path, "_modules", child._modules)
            for which in _HOOKS:
                self._add_table(path, which, getattr(child, which), by_handle=True)
        for which in _HOOKS:
            self._add_table(None, which, getattr(torch.nn.modules.module, f"_global{which}"))
        for number, (owner, name, _) in enumerate(self._attributes):
            native.add_attribute(vars(owner), name)
            of_class = getattr(owner, name) if (id(owner), name) in of_classes else _MISSING
            self._attributes[number] = owner, name, _copy(vars(owner).get(name, of_class))
        for number, (owner, name, _) in enumerate(self._computed):
            native.add_computed(type(owner) if (id(owner), name) in of_classes else owner, name)
            self._computed[number] = owner, name, _copy(getattr(owner, name, _MISSING))
        for path, child in module.named_modules():
            for which, word in _STATE.items():
                if (table := getattr(child, which)) or not _is_layer(child):
                    self._add_tensors(path, word, table)
        self._ties = self._tied()

    def _add_table(self, path, which, table, by_handle=False):
        self.native.add_table(table, by_handle)
        self._tables.append((path, which, table, dict(table)))

    def _add_tensors(self, path, word, table):
        if not table:
            self._add_table(path, word, table)
            return
        self.native.add_tensors(table)
        self._state_tables.append((path, word, table, list(table)))
        for name, tensor in table.items():
            self._numbers[id(table), name] = len(self._tensors)
            self._tensors.append((path, word, name, _kind(tensor)))

    def number_of(self, table, name):
        """Of a parameter or buffer among the tensors of `native`."""
        return self._numbers[id(table), name]

    def unchanged(self):
        return self.change() is None

    def change(self):
        """The first Change, or None."""
        found = self.native.check(RemovableHandle.next_id)
        if found is None:
            return None
        what, number = found
        if what == "moved":
            if self._tied() == self._ties:
                self.native.settle()
                return None
            return Change("parameter", "other names than before share one parameter or buffer")
        return getattr(self, f"_changed_{what}")(number)

    # ---- in words

    def _changed_table(self, number):
        path, which, table, before = self._tables[number]
        names = [name for name in (*before, *table) if table.get(name, _MISSING) is not before.get(name, _MISSING)]
        name = names[0] if names else ""
        came = len(table) >= len(before)
        if which in _HOOKS:
            whose = "every module" if path is None else _module(path)
            return Change("hook", f"{_HOOKS[which]} of {whose} {'came' if came else 'went'}")
        if which != "_modules":
            return Change(which, f"{which} '{_join(path, name)}' came")
        if not names:
            return Change("submodule", f"submodules of {_module(path)} are in another order")
        verb = "was replaced" if name in table and name in before else "came" if name in table else "went"
        return Change("submodule", f"submodule '{_join(path, name)}' {verb}")

    def _changed_attribute(self, number):
        owner, name, before = self._attributes[number]
        return self._attribute(owner, name, before, vars(owner).get(name, _MISSING))

    def _changed_computed(self, number):
        owner, name, before = self._computed[number]
        return self._attribute(owner, name, before, getattr(owner, name, _MISSING))

    def _attribute(self, owner, name, before, now):
        path = self._paths.get(id(owner))
        what = f"attribute `{name}` of {f'a {type(owner).__name__}' if path is None else _module(path)}"
        if now is _MISSING:
            return Change("attribute", f"{what} went")
        if before is _MISSING:
            return Change("attribute", f"{what} came, it is {describe(now)}")
        before, now = describe(before), describe(now)
        return Change("attribute", f"{what} was {before}, is now {now}" if before != now else f"{what} was replaced")

    def _changed_names(self, number):
        path, word, table, names = self._state_tables[number]
        odd = [name for name in (*names, *table) if (name in names) != (name in table)]
        if not odd:
            return Change(word, f"{word}s of {_module(path)} are in another order")
        return Change(word, f"{word} '{_join(path, odd[0])}' {'came' if odd[0] in table else 'went'}")

    def _changed_kind(self, number):
        path, word, name, before = self._tensors[number]
        table = next(table for at, which, table, _ in self._state_tables if (at, which) == (path, word))
        now = _kind(table[name])
        what = f"was {before}, is now {now}" if before != now else "has other strides"
        return Change(word, f"{word} '{_join(path, name)}' {what}")

    def _tied(self):
        names = {}
        for path, word, table, _ in self._state_tables:
            for name, tensor in table.items():
                if tensor is not None:
                    names.setdefault(id(tensor), []).append((path, word, name))
        return sorted(tied for tied in names.values() if len(tied) > 1)


def watch_modes(module):
    """Of a module that could not be exported: its tree, tensors and hooks, and whether each part is in training."""
    return ModuleWatch(module, Reads({(id(child), "training"): child for child in module.modules()}))


def _is_layer(module):
    """A layer of PyTorch's own, whose forward asks for no child, parameter or buffer whose name it has not registered
    itself. Containers ask for all children."""
    origin = type(module).__module__
    return origin.startswith("torch.nn.modules.") and origin != "torch.nn.modules.container"


def _is_of_class(owner, name):
    """Whether reading the attribute is no more than a look at the object's own and at those of its class."""
    cls = type(owner)
    return cls.__getattribute__ is object.__getattribute__ and any(name in vars(base) for base in cls.__mro__)


def _sorted(reads):
    return ((owner, name, None) for (_, name), owner in reads.items())


def _copy(value):
    return type(value)(value) if type(value) in (list, set, dict) else value


def _module(path):
    return f"module '{path}'" if path else "the module"


def _join(path, name):
    return f"{path}.{name}" if path else name


def _kind(tensor):
    if tensor is None:
        return "None"
    if is_lazy(tensor):
        return "uninitialized"
    kind = describe(tensor.detach())
    return kind if type(tensor) in (torch.Tensor, torch.nn.Parameter) else f"{type(tensor).__name__} {kind}"
