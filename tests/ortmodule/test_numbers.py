"""Ints and floats among the arguments: constants at first, inputs of the graph once they change."""

import copy
import logging
import math
import numbers

import pytest
import torch
from modules import Of, assert_same, step, x

import lowtide.ortmodule.graph_transition_manager as transition
from lowtide.errors import UnsupportedDevice
from lowtide.ortmodule import DebugOptions, LogLevel, ORTModule


def run(module, calls, tolerance=None, with_gradients=True):
    """The transitions of calls, (args, kwargs) each, that give what PyTorch gives, to the dtype."""
    wrapped = ORTModule(copy.deepcopy(module))
    for args, kwargs in calls:
        with torch.set_grad_enabled(with_gradients):
            expected, found = step(module, args, **kwargs), step(wrapped, args, **kwargs)
        assert wrapped.fallback_reason is None
        assert_same(found, expected, **(tolerance or {}))
    ((_, counts),) = wrapped.transition_counts().items()
    return counts


def values(number):
    """Calls with thirty values of one number, and two batches."""
    return [((x(2 + i % 2, 4), number(i)), {}) for i in range(30)]


def of_floats(m, a, k):
    y = m.l(a)
    y = y * k + (1 - k) * y.sin() - k / (2 + y.abs()) + torch.add(y, a, alpha=k) + torch.rsub(y, k, alpha=k)
    y = torch.lerp(y, a, k).clamp(-3 - k, 3 * k + 1) + torch.where(a > k, y, k).masked_fill(a < -k, k)
    y = (y + a.new_full((4,), k)).mul_(k).add_(torch.full((4,), 2 * k)) + y * (k / a.shape[1])
    ints = (a > 0).long()
    return y, y.abs() ** k, ints * k, (a > k), ints < k, abs(-k) * (a > 0)


def of_ints(m, a, k):
    y = m.l(a) * k / (1 + k) + 0.9**k + (k // 3 - k % 3) * a + (1 / (k + 1)) * a
    ints = (a > 0).int()
    return y, ints * k, ints / (k + 1), ints - k, ints.long() // (k + 1), (a > 0) + k, a.bfloat16() * k


@pytest.mark.parametrize("with_gradients", [True, False])
def test_thirty_floats_take_two_exports(with_gradients):
    module, tolerance = Of(of_floats).train(with_gradients), {"rtol": 1e-5, "atol": 1e-4}
    counts = run(module, values(lambda i: 0.07 + i / 20), tolerance, with_gradients)
    assert counts == {"first call": 1, "number": 1}


def test_thirty_ints_take_two_exports():
    assert run(Of(of_ints), values(lambda i: 3 * i % 31)) == {"first call": 1, "number": 1}


def in_tensors(m, a, k):
    """As in diffusion models: torch.tensor([timestep])."""
    times = torch.tensor([k]).expand(a.shape[0])[:, None].float()
    y = m.l(a) * torch.sin(times) + torch.tensor(k) * torch.tensor([0.1])
    table = torch.tensor([[k, 1], [2, k]], dtype=torch.float64)
    return y, table, torch.tensor([0.1, k]), torch.tensor([a.shape[0], k])


@pytest.mark.parametrize("number", [lambda i: 10 * i + 3, lambda i: 0.1 + i / 7], ids=["int", "float"])
def test_numbers_in_tensors_take_two_exports(number):
    assert run(Of(in_tensors), values(number)) == {"first call": 1, "number": 1}


@pytest.mark.parametrize("dtype, tolerance", [(torch.float64, 1e-14), (torch.bfloat16, 2e-2)])
def test_numbers_keep_the_precision_of_the_model(dtype, tolerance):
    module = Of(lambda m, a, k: (m.l(a) * (k / 3) + k, a + k)).to(dtype)
    calls = [((x().to(dtype), 0.1 + i / 7), {}) for i in range(4)]
    counts = run(module, calls, {"rtol": tolerance, "atol": tolerance})
    assert counts == {"first call": 1, "number": 1}


def test_special_floats():
    special = [1.0, math.nan, math.inf, -0.0, 0.0, math.nan, 1e300, 5e-324]
    module = Of(lambda m, a, k: (m.l(a), a * k, a / k))
    counts = run(module, [((x(), k), {}) for k in special], {"equal_nan": True})
    assert counts == {"first call": 1, "number": 1}


def test_an_int_that_no_tensor_holds():
    module = Of(lambda m, a, k: m.l(a) * float(k))
    assert run(module, [((x(), k), {}) for k in (1, 2**70, 1)]) == {"first call": 1, "argument": 1}


class WithOptions(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.l = torch.nn.Linear(4, 4)

    def forward(self, a, options, scale=1.0):
        return self.l(a) * options["weights"][0] + options["weights"][1] * scale


def test_numbers_in_containers_by_position_and_by_name():
    calls = []
    for i in range(6):
        options = {"weights": [0.5 + i, i], "name": "mean"}
        calls.append(((x(), options), {"scale": 1.0 + i} if i % 3 else {}))
        calls.append(((x(), options, 2.0 + i), {}))
    assert run(WithOptions(), calls) == {"first call": 1, "number": 2, "argument": 1}


@pytest.mark.parametrize(
    "function, numbers",
    [
        (lambda m, a, k: sum(m.l(a) for _ in range(k)), [1, 2, 3]),
        (lambda m, a, k: m.l(a).view(-1, k), [1, 2, 4]),
        (lambda m, a, k: m.l(a) * k if type(k) is float else m.l(a), [0.1, 0.2, 0.3]),
        (lambda m, a, k: m.l(a) * k if type(k) is int else m.l(a) * 2, [5, 6, 7]),
        (lambda m, a, k: torch.nn.functional.leaky_relu(m.l(a), k), [0.1, 0.2, 0.3]),
        (lambda m, a, k: m.l(a) * [2, 3, 4][k], [0, 1, 2]),
    ],
)
def test_a_value_that_forward_needs_stays_a_constant(function, numbers):
    counts = run(Of(function), [((x(), k), {}) for k in [*numbers, *numbers]])
    assert counts == {"first call": 1, "number": 1, "constant": 1, "argument": 2}


@pytest.mark.parametrize("kind", [float, (int, float), numbers.Real])
def test_a_number_is_one_of_pythons(kind):
    function = Of(lambda m, a, k: m.l(a) * k if isinstance(k, kind) else m.l(a))
    counts = run(function, [((x(), k), {}) for k in (0.1, 0.2, 0.3)])
    assert counts == {"first call": 1, "number": 1}


class Reversed(torch.autograd.Function):
    """A layer whose gradient is turned round, by more and more."""

    @staticmethod
    def forward(ctx, a, alpha, options):
        ctx.alpha, ctx.power = alpha, options[1]
        return a * 1.0

    @staticmethod
    def backward(ctx, gradient):
        return -gradient * ctx.alpha * ctx.power, None, None


def test_custom_functions_get_numbers():
    module = Of(lambda m, a, k, n: torch.tanh(Reversed.apply(m.l(a), k, ("by", n))))
    counts = run(module, [((x(), 0.5 + i, 2 + i), {}) for i in range(12)])
    assert counts == {"first call": 1, "number": 1}


def test_numbers_under_no_grad_and_in_checkpoints():
    def forward(m, a, k):
        with torch.no_grad():
            b = m.l(a) * k + a
        y = torch.utils.checkpoint.checkpoint(lambda a, k: torch.tanh(m.l(a)) * k, a, k, use_reentrant=False)
        return y * b * (1 - k)

    counts = run(Of(forward), [((x(), 0.5 + i), {}) for i in range(6)], {"rtol": 1e-4, "atol": 1e-4})
    assert counts == {"first call": 1, "number": 1}


def test_one_number_is_needed_and_the_other_is_not(caplog):
    caplog.set_level(logging.INFO, "lowtide")
    module = Of(lambda m, a, n=1, alpha=0.0: sum(m.l(a) for _ in range(n)) * alpha)
    module.forward = lambda a, n=1, alpha=0.0: module._function(module, a, n, alpha)
    wrapped = ORTModule(module, DebugOptions(log_level=LogLevel.INFO))
    for i in range(12):
        torch.testing.assert_close(wrapped(x(), 1 + i % 2, alpha=i / 5), module(x(), 1 + i % 2, alpha=i / 5))
        assert wrapped.fallback_reason is None
    (counts,) = wrapped.transition_counts().values()
    assert counts["constant"] == 1 and sum(counts.values()) <= 5
    texts = [record.getMessage() for record in caplog.records]
    assert any("argument `n` was 1, is now 2; argument `alpha` was 0.0, is now 0.2: numbers" in text for text in texts)
    assert any("the value of argument `n` stays part of each graph: " in text for text in texts)


def test_attributes_and_sizes_lead_to_other_graphs_with_numbers():
    module = Of(lambda m, a, k: m.l(a) * k * m.scale * (2 if a.shape[0] == 1 else 1))
    module.scale = 1.0
    wrapped = ORTModule(module)
    for i, (scale, batch) in enumerate([(1.0, 3), (1.0, 2), (2.0, 3), (2.0, 1), (1.0, 1), (2.0, 3)]):
        module.scale = scale
        torch.testing.assert_close(wrapped(x(batch, 4), 0.5 + i), module(x(batch, 4), 0.5 + i))
        assert wrapped.fallback_reason is None
    (counts,) = wrapped.transition_counts().values()
    assert counts["number"] == 2 and "constant" not in counts and "argument" not in counts


def test_steps_that_are_pending_keep_their_numbers():
    module = Of(lambda m, a, k: m.l(a) * k)
    wrapped = ORTModule(module)
    wrapped(x(), 0.5), wrapped(x(), 0.75)
    pending = [wrapped(x(), k).sum() for k in (2.0, 3.0, 4.0)]
    for loss, k in zip(reversed(pending), (4.0, 3.0, 2.0), strict=True):
        wrapped.zero_grad()
        loss.backward()
        torch.testing.assert_close(wrapped.l.bias.grad, torch.full((4,), 3 * k))


def test_a_later_process_reads_the_graph_with_numbers(monkeypatch, tmp_path):
    monkeypatch.setenv("ORTMODULE_CACHE_DIR", str(tmp_path))
    module = Of(lambda m, a, k: m.l(a) * k)
    calls = [((x(), k), {}) for k in (0.5, 0.75, 1.5)]
    run(module, calls)
    monkeypatch.setattr(transition, "capture_with_numbers", None)
    assert run(module, calls) == {"first call": 1, "number": 1}


def test_the_processed_model_takes_numbers():
    module = Of(lambda m, a, k, n: m.l(a) * k + n)
    wrapper = ORTModule(module)
    manager = wrapper._training_manager._graph_transition_manager
    for k, n in ((0.5, 1), (0.75, 2)):
        _, info = manager.use_cache_or_reconstruct_post_processed_model((x(), k, n), {})
    names = info.onnx_graph_input_names
    tensors = dict(zip(names, info.construct_inputs((x(), 3.0, 7), {}, True, torch.device("cpu")), strict=True))
    assert tensors["args_1"].dtype == torch.float64 and tensors["args_1"].item() == 3.0
    assert tensors["args_2"].dtype == torch.int64 and tensors["args_2"].shape == ()
    plain = dict(zip(names, info.construct_inputs((x(), 3.0, 7), {}, constant_as_tensor=False), strict=True))
    assert plain["args_1"] == 3.0 and type(plain["args_2"]) is int and torch.is_tensor(plain["args_0"])
    assert info.data_accessor[names.index("args_2")]((x(), 3.0, 7), {}) == 7
    with pytest.raises(UnsupportedDevice, match="cuda"):
        info.construct_inputs((x(), 3.0, 7), {}, True, "cuda")
