"""Ways to call a module and what it may take and return: each call's results and gradients are PyTorch's."""

import collections
import contextlib
import copy
import dataclasses
import typing
import warnings

import numpy
import pytest
import torch
from modules import Of, assert_same, check, step, x
from transformers.modeling_outputs import SequenceClassifierOutput

from lowtide.ortmodule import ORTModule

long = pytest.mark.long  # an export each, and test_structures.py has others like them


def n(seed, *shape):
    return torch.randn(*(shape or (3, 4)), generator=torch.Generator().manual_seed(seed))


A, B, C, D = (n(seed) for seed in range(4))


def mixed(m, a, b, *args, c=None, d=None, **kwargs):
    total = m.l(a) * 2 + b
    for index, value in enumerate(args):
        total = total + value * (index + 2)
    if c is not None:
        total = total + torch.tanh(m.l(c))
    if d is not None:
        total = total - d * 3
    for name in sorted(kwargs):
        total = total * kwargs[name] if name.startswith("scale") else total + kwargs[name]
    return total


MIXED = [
    ((A, B), {}),
    ((B, A), {}),
    ((A, A), {}),
    ((A,), {"b": B}),
    ((), {"a": A, "b": B}),
    ((), {"b": B, "a": A}),
    ((A, B, C), {}),
    ((A, B, C, D), {}),
    ((A, B, C, D, A), {}),
    ((A, B), {"c": C}),
    ((A, B), {"d": D}),
    ((A, B), {"d": D, "c": C}),
    ((A, B), {"c": C, "d": None}),
    ((A, B, C), {"c": D, "d": A}),
    ((A, B), {"scale_1": C, "more": D}),
    ((A, B), {"more": D, "scale_1": C}),
    ((A, B, C), {"d": D, "scale_2": A, "other": B, "c": C}),
    ((), {"scale": D, "b": B, "c": C, "a": A}),
]


@pytest.mark.parametrize("first", [0, pytest.param(6, marks=long), pytest.param(12, marks=long)])
def test_calls_by_position_and_by_name(first):
    module = Of(mixed)
    wrapped, eager = ORTModule(module), copy.deepcopy(module)
    for _ in range(2):
        for args, kwargs in MIXED[first : first + 6]:
            assert_same(step(wrapped, args, **kwargs), step(eager, args, **kwargs))
            assert wrapped.fallback_reason is None


def test_many_arguments_most_of_them_none():
    names = [f"y{index}" for index in range(12)]

    def forward(m, a, y0=None, y1=None, y2=None, y3=None, y4=None, y5=None, **rest):
        given = [value for value in (y0, y1, y2, y3, y4, y5, *rest.values()) if value is not None]
        return sum(given, m.l(a))

    wrapped = ORTModule(Of(forward))
    for chosen in ((), (0,), (3, 7), (11,), (0, 5, 6, 11)):
        kwargs = {name: n(index) if index in chosen else None for index, name in enumerate(names)}
        torch.testing.assert_close(wrapped(A, **kwargs), wrapped.module(A, **kwargs))
        assert wrapped.fallback_reason is None


def test_code_that_asks_for_contiguity():
    check(Of(lambda m, a: m.l(a) if a.is_contiguous() else m.l(a.contiguous()) * 1), x(grad=True))
    check(Of(lambda m, a: m.l(a.contiguous().view(-1, 4))), n(0, 4, 6).t()[:, ::1])


# ---------------------------------------------------------------- structures


class Point(typing.NamedTuple):
    left: torch.Tensor
    right: object


INPUTS = {
    "list": (lambda m, v: m.l(v[0]) + v[1], [A, B]),
    "list with unused values": (lambda m, v: m.l(v[1]), [A, B, C]),
    "list with None": (lambda m, v: m.l(v[1]) + v[2], [None, A, B, None]),
    "nested lists": (lambda m, v: m.l(v[0]) + v[1][0] + v[1][1][0], [A, [B, [C, D]]]),
    "dict": (lambda m, v: m.l(v["a"]) * v["b"], {"a": A, "b": B}),
    "dict with unused values": (lambda m, v: m.l(v["b"]), {"a": A, "b": B}),
    "dict with None": (lambda m, v: m.l(v["b"]) if v["a"] is None else v["a"], {"a": None, "b": B}),
    "nested dicts": (lambda m, v: m.l(v["a"]["x"]) + v["b"], {"a": {"x": A, "y": {"z": B}}, "b": C}),
    "lists of dicts": (lambda m, v: m.l(v[0]["a"]) + v[1]["b"][0], [{"a": A}, {"b": [B, None]}]),
    "tuple and namedtuple": (lambda m, v: m.l(v[0].left) + v[1], (Point(A, 3), B)),
    "OrderedDict": (lambda m, v: m.l(v["z"]) - v["a"], collections.OrderedDict(z=A, a=B)),
    "strings": (lambda m, v: m.l(v[1]) if v[0] == "linear" else v[1], ["linear", A]),
    "numbers": (lambda m, v: m.l(v[0]) * v[1] + v[2], [A, 2, 0.5]),
    "booleans": (lambda m, v: m.l(v[0]) if v[1] else v[0], [A, True]),
    "bytes as integers": (lambda m, v: (m.l(A) * v, v + 1), torch.arange(12, dtype=torch.uint8).view(3, 4)),
    "masks": (lambda m, v: (m.l(A).masked_fill(v, 0.0), ~v), A > 0),
    "a number in a tensor": (lambda m, v: m.l(A) * v, torch.tensor(2.5)),
}


LONG = {"list", "list with unused values", "dict", "dict with unused values", "nested lists", "OrderedDict", "strings"}


@pytest.mark.parametrize("name", [pytest.param(name, marks=long) if name in LONG else name for name in INPUTS])
def test_inputs(name):
    function, value = INPUTS[name]
    check(Of(function), value)


def test_values_that_are_no_tensors_may_change():
    module = Of(lambda m, a, v: m.l(a) * v if v else m.l(a) - 1)
    wrapped = ORTModule(module)
    for value in (True, False, 3, 0, 2.5, True):
        torch.testing.assert_close(wrapped(A, value), module(A, value))
        assert wrapped.fallback_reason is None


OUTPUTS = {
    "dict": lambda y: {"loss": y.sum(), "logits": y},
    "OrderedDict": lambda y: collections.OrderedDict(logits=y, loss=y.sum()),
    "ModelOutput": lambda y: SequenceClassifierOutput(loss=y.sum(), logits=y, hidden_states=(y * 2, y * 3)),
    "namedtuple": lambda y: Point(y, y.sum()),
    "dict of tuples": lambda y: {"a": (y, y * 2), "b": (y.sum(),)},
    "tuple of tuples": lambda y: ((y, (y * 2, y.sum())), y.exp()),
    "nested": lambda y: [{"a": [y, {"b": (y.sum(), Point(y * 2, None))}]}, None, "text", 3, 2.5, True],
    "None": lambda y: (None, y, None),
}


@pytest.mark.parametrize("name", OUTPUTS)
def test_outputs(name):
    make = OUTPUTS[name]
    wrapped = check(Of(lambda m, a: make(m.l(a))), x(grad=True))
    found, expected = wrapped(x()), wrapped.module(x())
    assert type(found) is type(expected)
    assert torch.utils._pytree.tree_structure(found) == torch.utils._pytree.tree_structure(expected)
    if isinstance(found, dict):
        assert list(found) == list(expected)


def test_outputs_that_differ_between_modes():
    module = Of(lambda m, a: {"loss": m.l(a).sum()} if m.training else (m.l(a), a.argmax(1)))
    wrapped = check(module, x())
    wrapped.eval()
    with torch.no_grad():
        assert isinstance(wrapped(x()), tuple)
    wrapped.train()
    assert list(wrapped(x())) == ["loss"] and wrapped.fallback_reason is None


# ---------------------------------------------------------------- gradients of inputs


def test_inputs_may_begin_and_cease_to_need_a_gradient():
    module = Of(lambda m, a, b: torch.tanh(m.l(a)) * b)
    wrapped, eager = ORTModule(module), copy.deepcopy(module)
    for first, second in ((False, False), (True, False), (True, True), (False, True), (False, False)):
        args = (x(grad=first), x(2, 1, 4, grad=second).expand(2, 3, 4).detach().requires_grad_(second))
        assert_same(step(wrapped, args), step(eager, args))
        assert args[0].requires_grad is first and wrapped.fallback_reason is None


# ---------------------------------------------------------------- devices


def test_modules_without_parameters():
    stateless = Of(lambda m, a: torch.tanh(a) * 2)
    del stateless.l
    wrapped = ORTModule(stateless)
    leaf = x(grad=True)
    wrapped(leaf).sum().backward()
    assert leaf.grad is not None and wrapped.fallback_reason is None


def test_calls_without_a_tensor_run_in_the_engine():
    @dataclasses.dataclass
    class Settings:
        scale: float = 2.0

    check(Of(lambda m, settings: m.l.weight * settings.scale), Settings())
    stateless = Of(lambda m, settings: (torch.ones(3) * settings.scale, settings.scale))
    del stateless.l
    wrapped = ORTModule(stateless)
    for scale in (2.0, 3.0):
        tensor, number = wrapped(Settings(scale))
        assert torch.equal(tensor, torch.full((3,), scale)) and number == scale and wrapped.fallback_reason is None


def test_moves_between_devices():
    wrapped = ORTModule(Of(lambda m, a: m.l(a)))
    for move in (lambda m: m.to("cpu"), lambda m: m.cpu(), lambda m: m.to(x()), lambda m: m.to(torch.device("cpu"))):
        assert move(wrapped) is wrapped and wrapped(x()).device.type == "cpu"
    assert wrapped.fallback_reason is None
    wrapped.to("meta")
    with pytest.warns(UserWarning, match="meta"):
        assert wrapped(x().to("meta")).device.type == "meta"
    with contextlib.suppress(Exception):  # PyTorch's own answer to mixed devices
        wrapped(x())
    wrapped.to_empty(device="cpu")
    wrapped.load_state_dict(Of(lambda m, a: m.l(a)).state_dict())
    torch.testing.assert_close(wrapped(x()), wrapped.module(x()))
    assert wrapped.fallback_reason is None


# ---------------------------------------------------------------- modes


def test_wrapped_and_trained_under_no_grad():
    with torch.no_grad():
        wrapped = ORTModule(Of(lambda m, a: m.d(m.l(a)), d=torch.nn.Dropout(0.5)))
        output = wrapped(x(50, 4))
    assert not output.requires_grad and 0.2 < (output == 0).float().mean() < 0.8, "still in training mode"
    wrapped.eval()
    torch.testing.assert_close(wrapped(x()), wrapped.module.l(x()))
    wrapped(x()).sum().backward()
    assert wrapped.l.weight.grad is not None and wrapped.fallback_reason is None


def test_forwards_alone_hold_no_memory_without_gradients():
    import lowtide

    wrapped = ORTModule(Of(lambda m, a: torch.tanh(m.l(torch.tanh(m.l(a))))))
    with torch.no_grad():
        wrapped(x(2000, 4))
        before = lowtide.pool_bytes()["live_bytes"]
        output = wrapped(x(2000, 4))
        assert lowtide.pool_bytes()["live_bytes"] - before <= 2 * output.nbytes
    assert wrapped.fallback_reason is None


def test_numpy_values_of_outputs():
    wrapped = ORTModule(Of(lambda m, a: m.l(a)))
    found = wrapped(x()).detach().numpy()
    numpy.testing.assert_allclose(found, wrapped.module(x()).detach().numpy(), rtol=1e-5, atol=1e-6)


def test_deterministic_algorithms():
    """The flag is part of what a graph was captured under: switching it changes no result."""
    module = Of(lambda m, a, i: torch.index_add(m.l(a), 0, i, a))
    wrapped = ORTModule(module)
    index = torch.tensor([0, 2, 0])
    expected = wrapped(x(), index)
    torch.use_deterministic_algorithms(True)
    try:
        found = [wrapped(x(), index) for _ in range(2)]
    finally:
        torch.use_deterministic_algorithms(False)
    assert torch.equal(*found) and torch.equal(found[0], expected) and wrapped.fallback_reason is None


def test_a_transformer_encoder_in_eval_mode():
    """Its fast path makes a nested tensor of what is not padding; results must not depend on it."""
    layer = torch.nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)
    module = torch.nn.TransformerEncoder(layer, 2).eval()
    padding = torch.tensor([[False, False, False], [False, False, True]])
    wrapped = ORTModule(module)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = wrapped(n(5, 2, 3, 4), src_key_padding_mask=padding)
        expected = module(n(5, 2, 3, 4), src_key_padding_mask=padding)
    torch.testing.assert_close(found[~padding], expected[~padding], rtol=1e-4, atol=1e-5)
