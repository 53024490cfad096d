"""What forward puts into containers that outlive it, in each call anew: `acts.append(h)`, `features["x"] = h` in a
hook, `recorder.loss = loss`, a variable around a hook."""

from dataclasses import dataclass

import torch

from lowtide.errors import UnsupportedError

from .held import container_of, text_of, value_at
from .replaced import put_element


@dataclass
class Put:
    """Of one trace: what a list or a cell has, or a dict under a key."""

    container: object
    key: object
    value: object
    before: list  # [(key, what was there)] of what it replaces

    def take_value(self):
        value, self.value = self.value, None
        return value


_LOOKS = (
    "call bool len iter eq ne lt le gt ge hash add radd mul rmul sub rsub getitem setitem delitem contains float int "
    "repr str format"
)


class Stale:
    """Stands for what the last call left while forward is traced, which puts another one in its place: whoever looks
    at it hears that a graph cannot tell."""

    def _refuse(self, *_):
        raise UnsupportedError("forward looks at what it has put into a container in the last call")

    def __getattribute__(self, name):
        Stale._refuse(self)


for _name in _LOOKS.split():
    setattr(Stale, f"__{_name}__", Stale._refuse)


class Growing:
    """Stands for a list that forward appends to in each call, while it is traced: whoever looks at it hears that a
    graph cannot tell what is in it."""

    def __init__(self):
        self._items = []

    def append(self, item):
        self._items.append(item)

    def extend(self, items):
        self._items.extend(items)

    def __iadd__(self, items):
        self._items.extend(items)
        return self

    def __getattr__(self, name):
        Growing._refuse(self)

    def _refuse(self, *_):
        raise UnsupportedError("forward looks at a list that it appends to in each call")

    @staticmethod
    def take(growing):
        """What forward has appended."""
        items, growing._items = growing._items, []
        return items


for _name in _LOOKS.split():
    setattr(Growing, f"__{_name}__", Growing._refuse)


def stale_places(puts):
    """[(container, key)] of the tensors that they replace, and of what holds some."""
    known = torch.Tensor | list | tuple | dict
    return [(put.container, key) for put in puts for key, value in put.before if isinstance(value, known)]


@dataclass(frozen=True)
class Collected:
    """A Write into a container. `text`: the place (held.py) of a list, or that of what is set."""

    text: str
    is_list: bool = False
    grows: bool = False  # a list, to whose items others are appended
    step = None

    def make(self, module, value):
        if self.grows:
            value_at(module, self.text).extend(value)
        elif self.is_list:
            value_at(module, self.text)[:] = value
        else:
            put_element(*container_of(module, self.text), value)


def places_of_grown(lists, guards):
    """Texts of the places of lists that forward has appended to; empty where nothing leads to one of them."""
    steps = guards.ways_to_objects() if lists and guards is not None else {}
    texts = [text_of(found) if (found := steps.get(id(each))) else None for each in lists]
    return [] if None in texts else texts


def places_of(puts, guards):
    """Collected, whose places are where the tree of guards has the containers."""
    steps = guards.ways_to_objects() if puts else {}
    return tuple(_collected(put, steps.get(id(put.container))) for put in puts)


def _collected(put, steps):
    is_list = isinstance(put.container, list)
    if steps is not None and not is_list:
        is_dict = isinstance(put.container, dict)
        steps = [*steps, ("ITEM", put.key) if is_dict else ("ATTRIBUTE", "cell_contents")]
    text = None if steps is None else text_of(steps)
    if text is None:
        raise UnsupportedError("forward puts a tensor into a container that nothing leads to from the module")
    return Collected(text, is_list)
