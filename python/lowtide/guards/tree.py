"""The tree: places of Python objects, what was there when a graph was captured, and words for what is there now.

Below the module are its submodules, hooks, parameters and buffers; then what forward read (reads.py). `Guards` of C++
holds and checks it.
"""

import collections
import sys
import types
from dataclasses import dataclass

import torch
from torch.nn.parameter import is_lazy

from lowtide import _lowtide
from lowtide.errors import UnsupportedError

from .code import is_users_name
from .digest import Digest, NotCacheable
from .held import is_number, text_of, value_at
from .observe import HOOKS
from .reads import add_reads
from .sameness import has_dict, is_plain_object
from .seen import Seen
from .states import flags, is_state
from .values import CONTAINERS, PLAIN, PLAIN_TENSORS, array_key, base_of, describe, is_array, same_plain
from .words import (
    MISSING,
    Change,
    children_change,
    class_change,
    hook_change,
    join,
    module_words,
    names_change,
    tensor_change,
    value_change,
)

Way, Expected = _lowtide.Guards.Way, _lowtide.Guards.Expected
_STATE = {"_parameters": "parameter", "_buffers": "buffer"}


@dataclass
class _Place:
    parent: int
    way: Way
    key: object
    expected: Expected
    token: object  # what the digest is made of
    subject: tuple | None  # (trigger, words) of a value
    before: str | None  # the value in words, None where there was none
    tell: object = None  # from what is there now to a Change. Without subject and this: the parent's Change
    told_key: object = None  # in the place of `key` in the digest


class Guards:
    """What one graph depends on."""

    def __init__(self, module, seen=None, given=()):
        """Of the module's structure, and of what was seen while it was traced; `given`: the tensors of the call."""
        self.native = _lowtide.Guards(key_of)
        self.asks_for_gradients = seen is not None and seen.asks_for_gradients
        self._module = module
        self.replaced = () if seen is None else seen.replaced
        self._replaced = []  # (table, name) of buffers that become others in each call
        self._foreign = None  # why no file can hold the places
        self._places = []
        self._shared = {}  # id of a tensor → number of its first place, while all of them are there
        self._constants = {}  # id of a constant of the graph → number of its place, or None
        self._parameters = None  # memory → parameter, once a constant asks
        self._known = {}  # (number of an object, way) → number of its __dict__ or class
        self._tensors = {}  # (id of the owner, name) → number of a parameter, a buffer, an attribute
        self.hooks = []  # (hook, number)
        self.modules = {}  # id → (module, number, path)
        self._structure(module, self.add(0, Way.ROOT, None, module, Expected.SAME), "")
        every = torch.nn.modules.module
        root = self.add(0, Way.ROOT, every.__name__, vars(every), Expected.ANYTHING)
        for which in HOOKS:
            self._hook_table(root, f"_global{which}", getattr(every, f"_global{which}"), "every module")
        self._size = len(self._places)  # of the structure
        if seen is not None:
            add_reads(self, seen)
        places = enumerate(self.native.expect_arguments(list(given)))
        self.own_arguments = {index: number for index, number in places if number is not None}  # at these places
        self.native.release()

    @classmethod
    def of_modes(cls, module, replaced=()):
        """Of the module's structure, and of which of its parts are in training; not of what its hooks read.
        `replaced`: as Seen has it."""
        reads = {(id(child), "training"): child for child in module.modules()}
        return cls(module, Seen(reads, replaced=replaced, of_hooks=False))

    # ---- what they are for

    def hold(self):
        """Whether everything is as it was; then the tensors that are there now can be bound."""
        return self.native.find_broken() is None

    def take(self, tensors):
        """Whether those of a call that are the module's own, or ones that forward reads elsewhere, are the same ones as
        when the graph was captured: forward may ask `x is self.weight`. After `hold`."""
        if any(table.get(name) is tensor for table, name in self._replaced for tensor in tensors):
            return False
        return self.native.find_other_argument(tensors) is None

    def why(self):
        """The first Change, or None."""
        broken = self.native.find_broken()
        if broken is None:
            return None
        number, shares = broken
        if shares:
            return Change("parameter", "other names than before share one parameter or buffer")
        while self._places[number].subject is None and self._places[number].tell is None:
            number = self._places[number].parent
        place, now = self._places[number], self.now(number)
        return place.tell(now) if place.tell else value_change(*place.subject, place.before, now)

    def changed_numbers(self):
        """{text of a place (held.py): (what was there, what is there)} of the ints and floats that are others now."""
        found = {}
        for number, place in enumerate(self._places):
            if place.expected is Expected.EQUAL and is_number(place.token):
                now = self.now(number)
                is_other = type(now) is type(place.token) and not same_plain(now, place.token)
                text = text_of(self._steps(number)) if is_other else None
                if text is not None and value_at(self._module, text) is now:  # no property's, or none at all
                    found[text] = place.token, now
        return found

    def ways_to_objects(self):
        """{id of what is at a place, or of its __dict__: steps to it (held.text_of)}."""
        found = {}
        for number in range(len(self._places)):
            thing = self.now(number)
            if isinstance(thing, dict | list | types.CellType) or has_dict(thing):
                steps = self._steps(number)
                found.setdefault(id(thing), steps)
                if not isinstance(thing, type) and has_dict(thing):
                    found.setdefault(id(vars(thing)), [*steps, ("DICT", None)])
        return found

    def _steps(self, number):
        place = self._places[number]
        if place.way is Way.ROOT:
            return [("ROOT" if number == 0 or place.key else "ELSEWHERE", place.key)]
        return [*self._steps(place.parent), (place.way.name, place.key)]

    def leave_out(self, changed):
        """What forward itself changes may be anything from now on. `changed`: Changes.recurring."""
        keys = {id(container): keys for container, keys in changed}
        left = set()
        for number, place in enumerate(self._places):
            if place.parent in left or self._is_one_of(place, keys):
                left.add(number)
            if number in left or keys.get(id(self.now(number)), ()) is None:
                self.native.leave_out(number)

    def _is_one_of(self, place, keys):
        """Whether it is an entry of a container in `keys`, and among those."""
        if place.way is Way.ROOT:
            return False
        above = id(self.now(place.parent))
        return above in keys and (keys[above] is None or place.key in keys[above])

    def digest(self):
        """A hash that is the same in another process where all of this is. NotCacheable says what has none."""
        digest = Digest()
        for place in self._places:
            key = place.key if place.told_key is None else place.told_key
            digest.add(place.parent, place.way.name, key, place.expected.name)
            if isinstance(place.token, CONTAINERS) and place.expected is Expected.SAME and self._is_installed(place):
                digest.registry(place.token)
                continue
            digest.value(place.token, place.subject[1] if place.subject else "what forward reads")
        return digest.hex()

    def _is_installed(self, place):
        """Whether it is among the globals of a module that came from a package index."""
        while place.way is not Way.ROOT and not isinstance(place.token, types.ModuleType):
            place = self._places[place.parent]
        name = place.token.__name__ if isinstance(place.token, types.ModuleType) else place.key
        return name is not None and not is_users_name(name)

    def classes(self):
        """Those at its places, and those of the objects there."""
        found = [type(child) for child, _, _ in self.modules.values()]
        for place in self._places:
            thing = place.token if place.expected is Expected.SAME else None
            if isinstance(thing, types.BuiltinMethodType | types.MethodType):  # f = F.apply
                thing = thing.__self__
            found.append(thing if isinstance(thing, type) else type(thing))
        return found

    def tensor(self, owner, name):
        """The number of the place of a parameter, a buffer or an attribute; None where it is not guarded."""
        return self._tensors.get((id(owner), name))

    def place_of(self, tensor):
        """The number of the first place that has a constant of the graph when this is first asked; None where none has
        it. The graph keeps its constants."""
        if id(tensor) not in self._constants:
            number = self._shared.get(id(tensor))
            self._constants[id(tensor)] = number if number is not None and self.now(number) is tensor else None
        return self._constants[id(tensor)]

    def parameter_of(self, constant):
        """The parameter that a constant of the graph is, as of a module in a plain list; else the constant itself. The
        exporter keeps such a parameter's data alone, which would get no gradient."""
        if self._parameters is None:
            found = map(self.now, self._shared.values())
            self._parameters = {_memory(thing): thing for thing in found if isinstance(thing, torch.nn.Parameter)}
        return self._parameters.get(_memory(constant), constant)

    # ---- as data

    def reads_to_json(self):
        """The places that were read, for `with_reads`. NotCacheable for what no later process finds."""
        if self._foreign:
            raise NotCacheable(self._foreign)
        return [_to_json(place) for place in self._places[self._size :]]

    def refuse_storing(self, reason):
        self._foreign = self._foreign or reason

    @classmethod
    def with_reads(cls, module, told, asks_for_gradients):
        """The same places, with what is there now."""
        guards = cls(module)
        guards.asks_for_gradients = asks_for_gradients is True
        for parent, way, key, expected, subject in told:
            way, expected = Way[way], Expected[expected]
            if subject is not None and (subject[0] not in ("attribute", "global") or len(subject) != 2):
                raise ValueError(f"a place of {subject}")
            value = vars(sys.modules[key]) if way is Way.ROOT else _reach_kept(way, key, guards.now(parent))
            if (value is MISSING) != (expected is Expected.NOTHING):  # then the digest is another one
                expected = Expected.NOTHING if value is MISSING else Expected.ANYTHING
            guards.add(parent, way, key, value, expected, subject and tuple(subject))
        guards.native.release()
        return guards

    # ---- places

    def add(self, parent, way, key, value, expected, subject=None, tell=None):
        """A place and what is there; `key` of a root: the name of an imported module whose globals it is, or None.
        Returns its number."""
        given = key_of(value) if expected is Expected.KEY else None if value is MISSING else value
        try:
            number = self.native.add(parent, way, key, expected, given)
        except UnsupportedError:  # a tensor that the engine cannot look at
            return self.add(parent, way, key, value, Expected.SAME, subject, tell)
        before = describe(value) if subject is not None and value is not MISSING else None
        token = _token(expected, value)
        if expected is Expected.TENSOR:
            token = (*token, self._shared.setdefault(id(value), number))
        self._places.append(_Place(parent, way, key, expected, token, subject, before, tell))
        if expected is Expected.TENSOR and way in (Way.ITEM, Way.ATTRIBUTE):
            above = self._places[parent]
            owner = self.now(above.parent if above.way is Way.DICT else parent)
            self._tensors.setdefault((id(owner), key), number)
        return number

    def let_objects_be_replaced(self, owners):
        """By others of their class, as containers may be: those that one place alone leads to, of the objects
        with the ids `owners`: of which forward has read attributes, which have places of their own."""
        leads = {}
        for number, place in enumerate(self._places):
            if place.expected is Expected.SAME:
                leads.setdefault(id(place.token), []).append(number)
        for number, *others in leads.values():
            place = self._places[number]
            if not others and place.way is not Way.ROOT and id(place.token) in owners and is_plain_object(place.token):
                self.type_of(number, type(place.token))
                self.native.leave_out(number)
                place.expected, place.token = Expected.ANYTHING, _token(Expected.ANYTHING, place.token)

    def add_absent(self, parent, name, subject, of_class):
        """An entry that an object's __dict__ lacks; `of_class`: what its class gives instead, if that is plain."""
        number = self.add(parent, Way.ITEM, name, MISSING, Expected.NOTHING, subject)
        if of_class is not MISSING:
            self._places[number].before = describe(of_class)

    def dict_of(self, number):
        """The number of an object's __dict__."""
        return self._once(number, Way.DICT, Expected.ANYTHING, None, None)

    def type_of(self, number, cls, tell=None):
        """The number of an object's class."""
        return self._once(number, Way.TYPE, Expected.SAME, cls, tell)

    def _once(self, number, way, expected, value, tell):
        if (number, way) not in self._known:
            self._known[number, way] = self.add(number, way, None, value, expected, None, tell)
        return self._known[number, way]

    def now(self, number):
        """What is at a place, or MISSING."""
        place = self._places[number]
        if place.way is Way.ROOT:
            return place.token if place.key is None else vars(sys.modules[place.key])
        parent = self.now(place.parent)
        return MISSING if parent is MISSING else _reach(place.way, place.key, parent)

    # ---- the structure

    def _structure(self, module, number, path):
        self.modules[id(module)] = module, number, path
        self.type_of(number, type(module), class_change(module_words(path), type(module)))
        if isinstance(module, torch.jit.ScriptModule):
            return  # its tables are no dicts, and no graph holds what it computes
        attributes = self.dict_of(number)
        for which in HOOKS:
            self._hook_table(attributes, which, getattr(module, which), module_words(path))
        layer = _is_layer(module)
        for which, word in _STATE.items():
            if (table := getattr(module, which)) or not layer:
                self._tensor_table(module, attributes, which, word, table, path)
        if module._modules or not layer:
            tell = children_change(module._modules, path)
            children = self.add(attributes, Way.ITEM, "_modules", module._modules, Expected.KEYS, None, tell)
            for name, child in module._modules.items():
                place = self.add(children, Way.ITEM, name, child, Expected.SAME)
                if child is not None and id(child) not in self.modules:
                    self._structure(child, place, join(path, name))

    def module(self, module, number):
        """The structure of a module that is no submodule."""
        if id(module) not in self.modules:
            self._foreign = f"forward reads a {type(module).__qualname__} that is no submodule"
            self._structure(module, number, "")

    def _hook_table(self, parent, which, table, whose):
        place = self.add(parent, Way.ITEM, which, table, Expected.KEYS, None, hook_change(which, len(table), whose))
        self._places[place].token = len(table)  # keys are numbers that each process counts for itself
        for at, (key, hook) in enumerate(table.items()):
            number = self.add(place, Way.ITEM, key, hook, Expected.SAME)
            self._places[number].told_key = at
            self.hooks.append((hook, number))

    def _tensor_table(self, module, attributes, which, word, table, path):
        place = self.add(attributes, Way.ITEM, which, table, Expected.KEYS, None, names_change(word, table, path))
        for name, tensor in table.items():
            is_plain = type(tensor) in PLAIN_TENSORS and not is_lazy(tensor) and tensor.layout is torch.strided
            expected = Expected.TENSOR if is_plain else Expected.SAME
            if (id(module), name) in self.replaced:
                expected = Expected.ANYTHING
                self._replaced.append((table, name))
            number = self.add(
                place, Way.ITEM, name, tensor, expected, None, tensor_change(word, join(path, name), tensor)
            )
            self._tensors[id(module), name] = number
            if expected is Expected.TENSOR:
                self._places[number].token = (*self._places[number].token, tensor.requires_grad)
            elif tensor is not None and expected is Expected.SAME:
                self.type_of(number, type(tensor))  # which changes when a lazy one gets its shape


def _memory(tensor):
    return tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride()


def _is_layer(module):
    """A layer of PyTorch's own, whose forward asks for no child, parameter or buffer whose name it has not registered
    itself. Containers ask for all children."""
    origin = type(module).__module__
    return origin.startswith("torch.nn.modules.") and origin != "torch.nn.modules.container"


def _reach(way, key, parent):
    try:
        if way is Way.ITEM:
            return dict.get(parent, key, MISSING) if isinstance(parent, dict) else parent[key]
        if way is Way.DICT:
            return vars(parent)
        if way is Way.RESULT:
            return parent()
        return type(parent) if way is Way.TYPE else getattr(parent, key)
    except Exception:  # of a user's property, too
        return MISSING


def _reach_kept(way, key, parent):
    """The same by a key from a file: no property of a class runs because of it, no function that may do something, and
    no module imports another."""
    if way is Way.RESULT and not is_state(parent):
        raise ValueError(f"a place that is the result of {parent}")
    if way is Way.ATTRIBUTE and parent is not MISSING:
        classes = parent.__mro__ if isinstance(parent, type) else type(parent).__mro__
        found = next((vars(cls)[key] for cls in classes if key in vars(cls)), None)
        is_foreign = isinstance(parent, types.ModuleType) and not flags(parent, [key])
        if is_foreign or (isinstance(found, property) and not isinstance(parent, type)):
            raise ValueError(f"a place by the attribute {key} of a {type(parent).__qualname__}")
    return _reach(way, key, parent)


def key_of(value):
    """What is compared of an array, a number of NumPy's or a deque."""
    if is_array(value):
        return array_key(value)
    if isinstance(value, collections.deque):
        return [item if isinstance(item, PLAIN) else id(item) for item in value]
    return value.dtype.str, value.tobytes()


def _token(expected, value):
    """Of a value that may change within, what it is now."""
    if expected is Expected.TENSOR:
        return type(value), value.dtype, tuple(value.shape), value.stride()
    if expected is Expected.KEY:
        return repr(key_of(value))
    if expected is Expected.KEYS:
        return type(value), [key if isinstance(key, PLAIN) else None for key in value]
    if expected is Expected.SIZE:
        return type(value), base_of(value).__len__(value)
    if expected is Expected.SET:
        return type(value), sorted(map(repr, value))
    return None if expected in (Expected.NOTHING, Expected.ANYTHING) else value


def _to_json(place):
    if place.way is Way.ROOT and place.key is None:
        raise NotCacheable("forward reads globals of code that belongs to no module")
    if type(place.key) not in (str, int, type(None)):
        raise NotCacheable(f"forward reads a dict with the key {place.key!r}")
    return [place.parent, place.way.name, place.key, place.expected.name, place.subject]
