"""Arguments and outputs of every kind and shape of tree, and every way to call a module."""

import collections
import dataclasses
import enum

import numpy
import pytest
import torch
from modules import Of, check, x
from transformers import BatchEncoding
from transformers.modeling_outputs import SequenceClassifierOutput

from lowtide.errors import FallbackWarning
from lowtide.ortmodule import ORTModule

Pair = collections.namedtuple("Pair", "first second")


@dataclasses.dataclass
class Sample:
    first: torch.Tensor
    second: object = None
    _seen: int = dataclasses.field(default=0, init=False)


@dataclasses.dataclass(frozen=True)
class Frozen:
    first: torch.Tensor
    second: object = None


class Lookup(collections.abc.Mapping):
    def __init__(self, items):
        self._items = dict(items)

    def __getitem__(self, key):
        return self._items[key]

    def __iter__(self):
        return iter(self._items)

    def __len__(self):
        return len(self._items)


class Kind(enum.Enum):
    SMALL = 1


class Bytes(bytearray):
    """Beside its attributes it has what only C code sees."""

    def __init__(self, first):
        self.first = first


class Plain:
    def __init__(self, first):
        self.first = first


class Answer(dict):
    """As transformers' outputs, of which not all are known to PyTorch: items are attributes too."""

    def __init__(self, **items):
        super().__init__()
        for name, item in items.items():
            self[name] = item

    def __setitem__(self, name, item):
        super().__setitem__(name, item)
        super().__setattr__(name, item)


TREES = {
    "tensor": lambda a, b: a,
    "list": lambda a, b: [a, b],
    "tuple": lambda a, b: (a, b),
    "namedtuple": lambda a, b: Pair(a, b),
    "dict": lambda a, b: {"u": a, "v": b},
    "dict with numbers as keys": lambda a, b: {1: a, 2: b},
    "OrderedDict": lambda a, b: collections.OrderedDict(u=a, v=b),
    "defaultdict": lambda a, b: collections.defaultdict(list, u=a, v=b),
    "UserDict": lambda a, b: collections.UserDict(u=a, v=b),
    "Mapping": lambda a, b: Lookup({"u": a, "v": b}),
    "BatchEncoding": lambda a, b: BatchEncoding({"u": a, "v": b}),
    "dataclass": lambda a, b: Sample(a, b),
    "frozen dataclass": lambda a, b: Frozen(a, [b]),
    "ModelOutput": lambda a, b: SequenceClassifierOutput(loss=a, logits=b),
    "ModelOutput with a tuple": lambda a, b: SequenceClassifierOutput(logits=a, hidden_states=(a, b)),
    "items that are attributes": lambda a, b: Answer(u=a, v=[b]),
    "nested": lambda a, b: [{"u": (a, None)}, Sample(b, {"v": [a, Pair(b, 2)]}), "text", (), {}],
    "None values": lambda a, b: [None, a, {"u": None, "v": b}, (None,)],
    "plain values": lambda a, b: (a, None, "text", True, 3, 2.5, 1j, b"raw", Kind.SMALL, torch.float32),
    "the same tensor twice": lambda a, b: [a, a],
}


def leaves(tree):
    """Of any of TREES, by the means of their own classes."""
    if isinstance(tree, collections.abc.Mapping):
        return [leaf for key in tree for leaf in leaves(tree[key])]
    if dataclasses.is_dataclass(tree):
        return [leaf for field in dataclasses.fields(tree) for leaf in leaves(getattr(tree, field.name))]
    if isinstance(tree, list | tuple):
        return [leaf for item in tree for leaf in leaves(item)]
    return [tree]


def assert_same_tree(found, expected):
    assert type(found) is type(expected)
    if isinstance(expected, torch.Tensor):
        torch.testing.assert_close(found, expected)
    elif isinstance(expected, numpy.ndarray):
        numpy.testing.assert_array_equal(found, expected)
    elif isinstance(expected, collections.abc.Mapping):
        assert list(found) == list(expected)
        for key in expected:
            assert_same_tree(found[key], expected[key])
    elif dataclasses.is_dataclass(expected):
        for field in dataclasses.fields(expected):
            assert_same_tree(getattr(found, field.name), getattr(expected, field.name))
    elif isinstance(expected, list | tuple):
        assert len(found) == len(expected)
        for ours, theirs in zip(found, expected, strict=True):
            assert_same_tree(ours, theirs)
    else:
        assert found == expected


@pytest.mark.parametrize("name", TREES)
def test_trees_as_arguments_and_outputs(name):
    make = TREES[name]

    def forward(m, tree):
        tensors = [leaf for leaf in leaves(tree) if isinstance(leaf, torch.Tensor)]
        y = m.l(sum(tensor * (place + 1) for place, tensor in enumerate(tensors)))
        return make(y, y * 2)

    module = Of(forward)
    wrapped = ORTModule(module)
    for batch in (3, 5, 3):
        a, b = x(batch, 4, grad=True), x(batch, 4) + 1
        output, expected = wrapped(make(a, b)), module(make(a, b))
        assert wrapped.fallback_reason is None
        assert_same_tree(output, expected)
        tensors = [leaf for leaf in leaves(output) if isinstance(leaf, torch.Tensor)]
        (gradient,) = torch.autograd.grad(sum(tensor.sum() for tensor in tensors), a)
        reference = [leaf for leaf in leaves(expected) if isinstance(leaf, torch.Tensor)]
        torch.testing.assert_close(gradient, torch.autograd.grad(sum(t.sum() for t in reference), a)[0])
    assert wrapped.transition_counts() == {"in training mode": {"first call": 1}}


def test_items_that_are_attributes_are_those_of_the_call():
    wrapped = ORTModule(Of(lambda m, a: Answer(y=m.l(a), twice=[m.l(a) * 2])))
    for batch in (3, 5):
        output = wrapped(x(batch, 4))
        assert output.y is output["y"] and output.twice is output["twice"] and output.y.shape == (batch, 4)
    assert wrapped.transition_counts() == {"in training mode": {"first call": 1}}


def test_encodings_keep_what_else_they_hold():
    def forward(m, batch):
        batch["u"] = m.l(batch["u"])
        return batch

    class Noted(collections.UserDict):
        note = None

    given = Noted(u=x())
    given.note = "kept"
    wrapped = ORTModule(Of(forward))
    output = wrapped(given)
    assert wrapped.fallback_reason is None and output.note == "kept" and type(output) is Noted


def test_arrays_are_constants_by_their_bytes():
    module = Of(lambda m, a, n: (m.l(a) * torch.from_numpy(n), n * 2))
    wrapped = ORTModule(module)
    array = numpy.arange(4, dtype=numpy.float32)
    for value in (0, 7, 0):
        array[0] = value  # the same object with other numbers
        ours, theirs = wrapped(x(), array), module(x(), array)
        torch.testing.assert_close(ours[0], theirs[0])
        numpy.testing.assert_array_equal(ours[1], theirs[1])
        assert wrapped.fallback_reason is None
    ours[1][:] = 99
    numpy.testing.assert_array_equal(wrapped(x(), array)[1], theirs[1])
    assert wrapped.transition_counts() == {"in training mode": {"first call": 1, "argument": 1}}
    check(Of(lambda m, a, n: m.l(a) * float(n)), x(), numpy.float32(2))


def test_sizes_and_conditions_on_them_among_outputs_are_those_of_the_call():
    module = Of(lambda m, a: {"y": m.l(a), "rows": a.shape[0], "twice": [2 * a.shape[0]], "many": a.shape[0] > 4})
    wrapped = ORTModule(module)
    for batch in (3, 5):
        output = wrapped(x(batch, 4))
        assert (output["rows"], output["twice"]) == (batch, [2 * batch]) and wrapped.fallback_reason is None
        assert output["many"] is (batch > 4)
    assert wrapped.transition_counts() == {"in training mode": {"first call": 1}}


@pytest.mark.parametrize("place", ["an argument", "an output"])
def test_an_unknown_class_runs_in_pytorch_and_the_warning_says_how_to_register_it(place):
    if place == "an argument":
        module, argument = Of(lambda m, p: m.l(p.first)), Bytes(x())
    else:
        module, argument = Of(lambda m, a: Plain(m.l(a))), x()
    wrapped = ORTModule(module)
    with pytest.warns(FallbackWarning, match="register_pytree_node.(Plain|Bytes), flatten, unflatten") as caught:
        wrapped(argument)
    assert place.removeprefix("an ") in str(caught[0].message)


def test_registered_classes_are_nodes():
    class Box:
        def __init__(self, first):
            self.first = first

    torch.utils._pytree.register_pytree_node(Box, lambda b: ([b.first], None), lambda items, _: Box(*items))
    wrapped = ORTModule(Of(lambda m, box: Box(m.l(box.first))))
    torch.testing.assert_close(wrapped(Box(x())).first, wrapped.module.l(x()))
    assert wrapped.fallback_reason is None


# ---- ways to call


class Forms(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.l = torch.nn.Linear(4, 4)

    def forward(self, a, b=None, *rest, c=None, scale=1.0, **others):
        y = self.l(a)
        for place, tensor in enumerate((b, *rest, c)):
            if tensor is not None:
                y = y + tensor * (place + 2)
        for place, value in enumerate(others.values()):
            y = y + value * 10**place
        return y * scale


def forms():
    a, b, c, d = (x() + n for n in range(4))
    return {
        "positional": ((a, b), {}),
        "a keyword": ((a,), {"b": b}),
        "all keywords": ((), {"a": a, "b": b}),
        "more positional": ((a, b, c, d), {}),
        "keyword only": ((a,), {"c": c, "scale": 2.0}),
        "**kwargs": ((a, b), {"u": c, "v": d}),
        "many None": ((a, None, None, None), {"c": None}),
        "default values": ((a,), {}),
    }


def test_every_way_to_call_gives_pytorchs_result():
    module = Forms()
    wrapped = ORTModule(module)
    for _ in range(2):
        for name, (args, kwargs) in forms().items():
            torch.testing.assert_close(wrapped(*args, **kwargs), module(*args, **kwargs), msg=name)
            assert wrapped.fallback_reason is None, name
    # By position or by name is the same call.
    assert wrapped.transition_counts() == {"in training mode": {"first call": 1, "argument": 5}}


def test_the_order_of_named_arguments_means_nothing_and_that_of_others_does():
    module = Forms()
    wrapped = ORTModule(module)
    a, u, v = x(), x() + 1, x() + 2
    for kwargs in ({"a": a, "c": u, "scale": 2.0}, {"scale": 2.0, "c": u, "a": a}):
        torch.testing.assert_close(wrapped(**kwargs), module(**kwargs))
    assert wrapped.transition_counts() == {"in training mode": {"first call": 1}}
    for kwargs in ({"u": u, "v": v}, {"v": v, "u": u}):
        torch.testing.assert_close(wrapped(a, **kwargs), module(a, **kwargs))
    assert wrapped.fallback_reason is None


def test_an_argument_that_does_not_fit_is_pytorchs_error():
    wrapped = ORTModule(Forms())
    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        wrapped()
    wrapped(x())
    with pytest.raises(TypeError, match="multiple values"):
        wrapped(x(), a=x())
