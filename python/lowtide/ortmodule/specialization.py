"""Specializations: the arguments and the state of PyTorch that one graph can serve, and how two of them differ."""

import inspect
import itertools

import torch

from lowtide.capture import Call, schema_of, trees
from lowtide.guards import Change
from lowtide.guards.held import HELD
from lowtide.guards.unread import is_unread
from lowtide.guards.values import describe, may_vary, same_plain
from lowtide.utils.hooks import GlobalSubscriberManager

_NUMBER = "a number"
_STRING = "a string"


class Specialization:
    """Calls that one graph could serve: the same arguments but for sizes and numbers, in the same surroundings."""

    def __init__(self, call, module, surroundings):
        forward = module.forward
        self.surroundings = surroundings
        self.arguments = schema_of(call, forward)
        self.places = call.numbers  # of leaves of any value: numbers, inputs of a graph, and strings
        self.graphs = []  # latest first
        self.refusals = {}  # which arguments require a gradient → Refusal
        self.refused_alike = []  # specializations for single numbers, whose refusals are for any number
        self.known = None  # with numbers: the specialization in which `values`, {name: value}, were constants
        self.constant = None  # or the Captured
        self.values = {}
        self.held = call.held(forward)  # {name: text of its place} of numbers in Python objects
        self.all_numbers = call.number_values(forward)
        self.reason = None  # with numbers: the Change that made them inputs
        self.guessed = {}  # path → names of strings in a container that forward is guessed not to read
        self.words = call.words(forward)
        self._texts = {
            name: _STRING if is_unread(leaf) else describe(leaf) for name, leaf in call.named_leaves(forward)
        }
        numbers = [name for name, value in self.all_numbers.items() if type(value) is not str]
        self._texts.update(dict.fromkeys(numbers, _NUMBER))
        self._dtypes = {name: text.partition("[")[0] for name, text in self._texts.items()}
        self._ranks = {name: text.count(",") for name, text in self._texts.items()}
        whole = _bound(call, module)
        self._meaning = whole and (whole.structure, whole.schema(), whole.numbers, whole.firsts)
        self._structure, self._leaves = _leaves(whole or call, forward)
        names = call.names(forward)
        self._same = {name: names[first] for name, first in zip(names, call.firsts, strict=True)}

    def call(self, args, kwargs, module):
        return Call(args, kwargs, module.forward, self.places)

    def means_the_same(self, other):
        """Whether forward gets the same arguments: by position or by name, defaults given or not."""
        return self._meaning is not None and self._meaning == other._meaning

    def refused_as(self, other):
        """Whether exports for both were refused for the same reasons."""
        ours, theirs = ({key: each.failure for key, each in one.refusals.items()} for one in (self, other))
        return ours == theirs

    def with_numbers(self, other, constants, args, kwargs, module):
        """This one with any value in the places of ints, floats and strings that `other`, alike but for these, has with
        other values, or any; None where there are none. `constants`: names of those that stay as they are."""
        if self.surroundings != other.surroundings or self._structure != other._structure:
            return None
        numbers, changes, values = set(), [], {}
        for name, (was, now) in _pairs(other._leaves, self._leaves):
            if was == now:
                continue
            if type(was) is not _Value or type(now) is not _Value or was.type is not now.type:
                return None
            if name not in constants and name in self._texts:
                numbers.add(name)
                if not was.varies:
                    changes.append(f"{self.words[name]} was {describe(was.value)}, is now {describe(now.value)}")
                    values[name] = was.value
            else:
                other = None  # its graph has another constant
        if not numbers:
            return None
        found = self.with_inputs(numbers, args, kwargs, module)
        found.known, found.values = other, values
        if changes:
            is_string = all(type(value) is str for value in values.values())
            word = _STRING if is_string else "numbers" if len(changes) > 1 else _NUMBER
            found.reason = Change("string" if is_string else "number", f"{'; '.join(changes)}: {word} from now on")
        return found

    def with_guessed_strings(self, read, args, kwargs, module):
        """This one with any string in the places of those in containers, but for the paths `read`."""
        call = self.call(args, kwargs, module)
        groups = {path: names for path, names in call.strings_of_data(module.forward).items() if path not in read}
        if not groups:
            return self
        found = self.with_inputs({*self.all_numbers, *itertools.chain(*groups.values())}, args, kwargs, module)
        found.guessed = groups
        return found

    def guessed_names(self):
        return set(itertools.chain(*self.guessed.values()))

    def with_inputs(self, names, args, kwargs, module):
        """This one with any value in the places of ints, floats and strings of these names."""
        places = [
            place for place, name in enumerate(self._texts) if name in names and type(self._leaves.get(name)) is _Value
        ]
        if not places:
            return self
        return Specialization(Call(args, kwargs, module.forward, places), module, self.surroundings)

    def with_held(self, newly_held, others, args, kwargs, module):
        """This one with any value in the places of the numbers that Python objects hold, and of `others`. `newly_held`:
        NewlyHeld, or None."""
        found = self.with_inputs({*others, *self.held}, args, kwargs, module)
        if newly_held is not None:
            before = newly_held.before
            found.constant, found.reason = newly_held.constant, newly_held.reason()
            found.values = {name: before[text] for name, text in self.held.items() if text in before}
        return found

    def difference(self, other):
        """The Change from this one to another."""
        for was, now, what in zip(self.surroundings, other.surroundings, _SURROUNDINGS, strict=True):
            if was != now:
                return Change("surroundings", f"{what} was {_word(was)}, is now {_word(now)}")
        for name in (*self._texts, *(name for name in other._texts if name not in self._texts)):
            was, now = self._texts.get(name), other._texts.get(name)
            if was is None or now is None:
                verb = f"came, it is {now}" if was is None else "is not given"
                return Change("argument", f"{(self if now is None else other).words[name]} {verb}")
            if self._dtypes[name] != other._dtypes[name] or self._ranks[name] != other._ranks[name]:
                return Change("argument", f"{self.words[name]} was {was}, is now {now}")
            if self._same.get(name) != other._same.get(name):
                return Change("argument", self._words_of_same(name, other))
        return Change("argument", "the arguments come in another structure")

    def _words_of_same(self, name, other):
        """Of a tensor that is now, or no longer, given in two places at once."""
        is_now = other._same[name] != name
        first = self.words[(other if is_now else self)._same[name]]
        return f"{self.words[name]} is {'now' if is_now else 'no longer'} the tensor that {first} is"


class _Value:
    """An int, a float or a string among the leaves; equal as constants are, or where both may be anything."""

    def __init__(self, value, varies):
        self.value, self.type, self.varies = value, type(value), varies

    def __eq__(self, other):
        if type(other) is not _Value or self.type is not other.type or self.varies != other.varies:
            return False
        return self.varies or same_plain(self.value, other.value)

    __hash__ = None


def _leaves(call, forward):
    """(structure, {name: what is compared})."""
    raw, _ = trees.flatten((call.args, call.kwargs))
    named = {}
    for place, ((name, _), part, leaf) in enumerate(zip(call.named_leaves(forward), call.schema(), raw, strict=True)):
        named[name] = _Value(leaf, place in call.numbers) if may_vary(leaf) else part
    names = call.names(forward)
    same = frozenset(
        (name, names[first]) for name, first in zip(names, call.firsts, strict=True) if names[first] != name
    )
    return (call.structure, same), named


def _pairs(before, after):
    """[(name, (before, after))]; a missing one is None, which no leaf is."""
    return [(name, (before.get(name), after.get(name))) for name in {**before, **after}]


def _bound(call, module):
    """What forward gets, equal for calls written in different ways. None where hooks or decorators see the call first:
    they can tell one way from the other."""
    forward = module.forward
    if hasattr(forward, "__wrapped__") or module._forward_pre_hooks or module._forward_hooks:
        return None
    kwargs = dict(call.kwargs)
    held = {HELD: kwargs.pop(HELD)} if HELD in kwargs else {}
    try:
        bound = inspect.signature(forward).bind(*call.args, **kwargs)
    except TypeError:
        return None
    bound.apply_defaults()
    bound = {**bound.arguments, **held}
    whole = Call((), bound)
    if not call.numbers:
        return whole
    numbers = call.number_values(forward)
    places = [place for place, (name, _) in enumerate(whole.named_leaves(forward)) if name in numbers]
    return Call((), bound, numbers=places)


_SURROUNDINGS = (
    "autocast around the call",
    "the default dtype",
    "torch.use_deterministic_algorithms",
    "the subscription of activations",
)


def surroundings_now():
    """What of PyTorch's state around the call changes a captured graph."""
    autocast = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None
    deterministic = torch.are_deterministic_algorithms_enabled()
    return autocast, torch.get_default_dtype(), deterministic, GlobalSubscriberManager.capture_key()


def _word(setting):
    return {None: "off", True: "on", False: "off"}.get(setting) or str(setting).removeprefix("torch.")
