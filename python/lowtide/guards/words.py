"""Changes in words: each function takes what was there and gives one from what is there now to a Change."""

import re
from dataclasses import dataclass

import torch
from torch.nn.parameter import is_lazy

from .values import describe

MISSING = object()
_HOOKS = {
    "_forward_pre_hooks": "a forward pre-hook",
    "_forward_hooks": "a forward hook",
    "_backward_pre_hooks": "a backward pre-hook",
    "_backward_hooks": "a backward hook",
}
_NUMBER_CHANGED = re.compile(r"(.*) was -?\d[^,]*, is now -?\d\S*$")


@dataclass(frozen=True)
class Change:
    trigger: str  # a row of ortmodule's transitions.TRANSITIONS
    text: str

    def hint(self):
        """What can be done about a number that changes again and again, or empty."""
        found = _NUMBER_CHANGED.match(self.text) if self.trigger in ("attribute", "global") else None
        where = "a number that changes is an input of the graph as an argument of forward, or in a buffer of 0 dims"
        return f"{found[1]} changes; {where}" if found else ""


def module_words(path):
    return f"module '{path}'" if path else "the module"


def join(path, name):
    return f"{path}.{name}" if path else name


def value_change(trigger, subject, before, now):
    """`before`: in words, None where there was nothing."""
    if now is MISSING:
        return Change(trigger, f"{subject} went")
    text = describe(now)
    if before is None:
        return Change(trigger, f"{subject} came, it is {text}")
    return Change(trigger, f"{subject} was {before}, is now {text}" if before != text else f"{subject} was replaced")


def class_change(words, cls):
    def tell(now):
        return Change("submodule", f"{words} was a {cls.__qualname__}, is now a {now.__qualname__}")

    return tell


def hook_change(which, count, whose):
    def tell(now):
        came = now is not MISSING and len(now) >= count
        return Change("hook", f"{_HOOKS[which.removeprefix('_global')]} of {whose} {'came' if came else 'went'}")

    return tell


def children_change(table, path):
    before = dict(table)

    def tell(now):
        names = [name for name in (*before, *now) if now.get(name, MISSING) is not before.get(name, MISSING)]
        if not names:
            return Change("submodule", f"submodules of {module_words(path)} are in another order")
        name = names[0]
        verb = "was replaced" if name in now and name in before else "came" if name in now else "went"
        return Change("submodule", f"submodule '{join(path, name)}' {verb}")

    return tell


def names_change(word, table, path):
    before = list(table)

    def tell(now):
        odd = [name for name in (*before, *now) if (name in before) != (name in now)]
        if not odd:
            return Change(word, f"{word}s of {module_words(path)} are in another order")
        return Change(word, f"{word} '{join(path, odd[0])}' {'came' if odd[0] in now else 'went'}")

    return tell


def tensor_change(word, name, tensor):
    before = _metadata(tensor)

    def tell(now):
        after = _metadata(now)
        what = f"was {before}, is now {after}" if before != after else "has other strides"
        return Change(word, f"{word} '{name}' {what}")

    return tell


def _metadata(tensor):
    if not isinstance(tensor, torch.Tensor):
        return describe(tensor)
    if is_lazy(tensor):
        return "uninitialized"
    text = describe(tensor.detach())
    return text if type(tensor) in (torch.Tensor, torch.nn.Parameter) else f"{type(tensor).__name__} {text}"


def attribute_words(path, name):
    return f"the Python attribute '{path}.{name}'" if path else f"the Python attribute '{name}'"
