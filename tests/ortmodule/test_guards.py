"""lowtide.guards alone: what a tree finds, in words, what its digest tells apart, and what costs nothing."""

import copy
import functools
import gc
import weakref

import pytest
import torch

from lowtide import _lowtide
from lowtide.capture import Call, schema_of
from lowtide.guards import Guards, NotCacheable, leftovers
from lowtide.guards.seen import Seen
from lowtide.guards.tree import key_of
from lowtide.ortmodule import ORTModule

Way, Expected = _lowtide.Guards.Way, _lowtide.Guards.Expected


class Inner(torch.nn.Module):
    limit = 3

    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(4, 4)
        self.register_buffer("mean", torch.zeros(4))
        self.flag, self.items, self.one = True, [1, [2]], object()

    def forward(self, a):
        return self.fc(a)


def model():
    return torch.nn.Sequential(torch.nn.Linear(4, 4), Inner(), torch.nn.ReLU())


def guards_of(module, **reads):
    """`reads`: names that forward asked the Inner for."""
    inner = module[1]
    return Guards(module, Seen({(id(inner), name): inner for name in reads.get("names", ())}))


# (change, the other change, the reason)
CHANGES = {
    "a submodule": (
        lambda m: setattr(m[1], "fc", torch.nn.Linear(4, 4)),
        ("submodule", "submodule '1.fc' was replaced"),
    ),
    "a new submodule": (lambda m: m.append(torch.nn.Tanh()), ("submodule", "submodule '3' came")),
    "no submodule": (lambda m: m.pop(2), ("submodule", "submodule '2' went")),
    "another order": (
        lambda m: setattr(m, "_modules", dict(reversed(m._modules.items()))),
        ("submodule", "submodules of the module are in another order"),
    ),
    "another class": (
        lambda m: setattr(m[2], "__class__", torch.nn.Tanh),
        ("submodule", "module '2' was a ReLU, is now a Tanh"),
    ),
    "a hook": (lambda m: m[0].register_forward_hook(lambda *_: None), ("hook", "a forward hook of module '0' came")),
    "a hook without a handle": (
        lambda m: m[2]._forward_pre_hooks.update({0: print}),
        ("hook", "a forward pre-hook of module '2' came"),
    ),
    "a table of hooks": (
        lambda m: setattr(m[0], "_backward_hooks", {1: print}),
        ("hook", "a backward hook of module '0' came"),
    ),
    "a parameter's class": (
        lambda m: m[0]._parameters.update(weight=torch.randn(4, 4)),
        ("parameter", "parameter '0.weight' has other strides"),
    ),
    "a parameter's dtype": (
        lambda m: m[0].double(),
        ("parameter", "parameter '0.weight' was f32[4, 4], is now f64[4, 4]"),
    ),
    "a parameter's strides": (
        lambda m: setattr(m[0].weight, "data", torch.randn(4, 8)[:, ::2]),
        ("parameter", "parameter '0.weight' has other strides"),
    ),
    "a parameter within its object": (
        lambda m: torch.utils.swap_tensors(m[0].bias, torch.nn.Parameter(torch.randn(5))),
        ("parameter", "parameter '0.bias' was f32[4], is now f32[5]"),
    ),
    "no parameter": (
        lambda m: setattr(m[0], "bias", None),
        ("parameter", "parameter '0.bias' was f32[4], is now None"),
    ),
    "a new parameter": (
        lambda m: m[1].register_parameter("more", None),
        ("parameter", "parameter '1.more' came"),
    ),
    "another table of parameters": (
        lambda m: setattr(m[1], "_parameters", {"more": None}),
        ("parameter", "parameter '1.more' came"),
    ),
    "no buffer": (lambda m: delattr(m[1], "mean"), ("buffer", "buffer '1.mean' went")),
    "shared parameters": (
        lambda m: setattr(m[1].fc, "weight", m[0].weight),
        ("parameter", "other names than before share one parameter or buffer"),
    ),
    "an attribute": (
        lambda m: setattr(m[1], "flag", 1),
        ("attribute", "attribute `flag` of module '1' was True, is now 1"),
    ),
    "an element": (
        lambda m: m[1].items[1].append(3),
        ("attribute", "attribute `items` of module '1' was [1, [2]], is now [1, [2, 3]]"),
    ),
    "an object": (
        lambda m: setattr(m[1], "one", object()),
        ("attribute", "attribute `one` of module '1' was replaced"),
    ),
    "an attribute that was not there": (
        lambda m: setattr(m[1], "absent", None),
        ("attribute", "attribute `absent` of module '1' came, it is None"),
    ),
    "an attribute of the class that the module has now": (
        lambda m: setattr(m[1], "limit", 4),
        ("attribute", "attribute `limit` of module '1' was 3, is now 4"),
    ),
}
NAMES = ("flag", "items", "one", "absent", "limit")


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_found_at_once_and_told(name):
    module = model()
    guards = guards_of(module, names=NAMES)
    assert guards.hold() and guards.why() is None
    change, expected = CHANGES[name]
    change(module)
    for _ in range(2):
        assert not guards.hold()
        found = guards.why()
        assert (found.trigger, found.text) == expected


def test_what_changes_back_holds_again():
    module = model()
    guards = guards_of(module, names=NAMES)
    weight = module[0].weight
    for change, back in [
        (lambda: setattr(module[1], "flag", None), lambda: setattr(module[1], "flag", True)),
        (lambda: module[1].items.append(1), module[1].items.pop),
        (lambda: setattr(module[0], "weight", None), lambda: setattr(module[0], "weight", weight)),
        (lambda: setattr(Inner, "limit", 4), lambda: setattr(Inner, "limit", 3)),
    ]:
        change()
        assert not guards.hold()
        back()
        assert guards.hold()


def test_what_does_not_matter():
    module = model()
    guards = guards_of(module, names=NAMES)
    for change in (
        lambda: setattr(module[1], "flag", 1 == 1.0),
        lambda: setattr(module[1], "items", [1, [2]]),
        lambda: setattr(module[1], "unread", 5),
        lambda: setattr(module[0].weight, "data", torch.randn(4, 4)),
        lambda: setattr(module[0], "weight", torch.nn.Parameter(torch.randn(4, 4), requires_grad=False)),
        lambda: setattr(module[1], "mean", torch.ones(4)),
    ):
        change()
        assert guards.hold()
    number = guards.tensor(module[0], "weight")
    inputs = _lowtide.GraphInputs(guards.native, [("guard", number)], [None], [], [])
    _, bound = inputs.bind(schema_of(Call((), {}), lambda: None).match((), {}))
    assert bound[0] is module[0].weight and bound.requires_grad() == (False,)


@pytest.mark.parametrize(
    ("before", "after"), [(0.0, -0.0), (1, True), (1, 1.0), ("a", b"a"), (torch.float32, torch.float64)]
)
def test_values_that_are_equal_and_not_the_same(before, after):
    guards = _lowtide.Guards(key_of)
    holder = {"value": before, "nan": float("nan")}
    root = guards.add(0, Way.ROOT, None, Expected.ANYTHING, holder)
    guards.add(root, Way.ITEM, "value", Expected.EQUAL, before)
    guards.add(root, Way.ITEM, "nan", Expected.EQUAL, holder["nan"])
    assert guards.find_broken() is None
    holder["nan"] = float("nan")
    assert guards.find_broken() is None
    holder["value"] = after
    assert guards.find_broken() == (1, False)


def test_objects_that_cannot_be_compared_are_others():
    class Odd(int):
        def __eq__(self, other):
            raise ValueError

        __hash__ = None

    guards = _lowtide.Guards(key_of)
    holder = [Odd(1)]
    root = guards.add(0, Way.ROOT, None, Expected.SIZE, holder)
    guards.add(root, Way.ITEM, 0, Expected.EQUAL, holder[0])
    assert guards.find_broken() is None
    holder[0] = Odd(1)
    assert guards.find_broken() == (1, False)
    holder.clear()
    assert guards.find_broken() == (0, False)


def test_tensors_are_let_go():
    module = model()
    guards = guards_of(module)
    weight = weakref.ref(module[0].weight)
    assert guards.hold()
    module[0].weight = torch.nn.Parameter(torch.randn(4, 4))
    guards.native.release()
    assert weight() is None


# ---------------------------------------------------------------- digests


def test_digests_of_twins_are_equal_and_of_others_are_not():
    def digest(change=lambda m: None, names=NAMES[:-2]):
        module = model()
        module[1].one = 1
        change(module)
        return guards_of(module, names=names).digest()

    digests = [digest()] + [
        digest(change)
        for change in (
            lambda m: setattr(m[1], "flag", False),
            lambda m: m[1].items[1].append(3),
            lambda m: m[0].double(),
            lambda m: m[0].requires_grad_(False),
            lambda m: m.append(torch.nn.Tanh()),
            lambda m: m[0].register_forward_hook(print),
            lambda m: setattr(m[1].fc, "weight", m[0].weight),
        )
    ]
    assert digest() == digests[0] and len(set(digests)) == len(digests)
    assert digest(lambda m: setattr(m[1], "unread", 5)) == digests[0]


def test_a_tree_as_data_gives_the_same_digest_for_a_twin():
    module = model()
    module[1].one = None
    guards = guards_of(module, names=NAMES)
    twin = copy.deepcopy(module)
    again = Guards.with_reads(twin, guards.reads_to_json(), False)
    assert again.digest() == guards.digest() and again.hold()
    twin[1].flag = 3
    assert again.why().text == "attribute `flag` of module '1' was True, is now 3"
    other = Guards.with_reads(twin, guards.reads_to_json(), False)
    assert other.digest() != guards.digest()


def test_what_no_file_can_hold():
    module = model()
    with pytest.raises(NotCacheable, match="attribute `one` of module '1' is a builtins.object"):
        guards_of(module, names=NAMES).digest()


def test_what_holds_the_tensors_of_a_trace_is_sought_once(monkeypatch):
    searches, search = [], gc.get_referrers
    monkeypatch.setattr(leftovers.gc, "get_referrers", lambda *things: searches.append(things) or search(*things))
    held, by_name = [torch.ones(1) for _ in range(20)], {}
    by_name |= {"a": held[3], "b": torch.ones(2)}
    references = [weakref.ref(tensor) for tensor in (*held, by_name["b"])]
    assert leftovers.let_go(lambda: leftovers.alive(references)) is not None
    assert held == [] and by_name == {} and len(searches) <= 2


def remembered(function):
    """A cache that is walked through, and with it the annotations of what it remembers."""
    cached = functools.lru_cache(function)

    @functools.wraps(function)
    def wrapper(*args):
        return cached(*args)

    return wrapper


class Annotated(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(4, 4)

    @staticmethod
    @remembered
    def scale(sizes: tuple[int, int], of: int | None = None) -> list[float]:
        return [float(sum(sizes))]

    def forward(self, a):
        return self.fc(a) * self.scale((2, 3))[0]


def test_annotations_are_no_objects_with_attributes():
    module = Annotated()
    wrapped = ORTModule(module)
    for batch in (2, 3):
        a = torch.randn(batch, 4)
        torch.testing.assert_close(wrapped(a), module(a))
    assert wrapped.fallback_reason is None and wrapped.transition_counts() == {"in training mode": {"first call": 1}}
