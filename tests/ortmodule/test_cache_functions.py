"""ORTMODULE_CACHE_DIR for modules that call functions, ops of others, numbers that change: found again, captured
anew or refused with the reason."""

import logging

import pytest
import torch
from cached import graphs, run

from lowtide.ortmodule import DebugOptions, LogLevel, ORTModule


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, dy):
        return dy * 3 * ctx.saved_tensors[0] ** 2


class Cubes(torch.nn.Module):
    def __init__(self, function=Cube, more=()):
        super().__init__()
        self.fc = torch.nn.Linear(4, 4)
        self.function, self.more = function, more

    def forward(self, x):
        return self.function.apply(self.fc(x), *self.more)


class Scaled(torch.autograd.Function):
    """Several outputs, numbers, a list with a tensor in it, None."""

    @staticmethod
    def forward(ctx, x, scale, parts, mode, nothing):
        ctx.scale = scale * parts[1]
        return x * ctx.scale + parts[0], mode, x.sum()

    @staticmethod
    def backward(ctx, dy, _, dsum):
        return dy * ctx.scale + dsum, None, None, None, None


class Scales(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(4, 4)

    def forward(self, x):
        y, mode, total = Scaled.apply(self.fc(x), 0.5, [x.detach(), 3], "twice", None)
        return y * (2 if mode == "twice" else 1) + total


@torch.library.custom_op("lowtide_cache_test::gate", mutates_args=())
def gate_op(x: torch.Tensor, slope: float) -> torch.Tensor:
    return x * (x * slope).sigmoid()


@gate_op.register_fake
def _gate_type(x, slope):
    return torch.empty_like(x)


def _gate_backward(ctx, dy):
    (x,) = ctx.saved_tensors
    gated = (x * ctx.slope).sigmoid()
    return dy * gated * (1 + x * ctx.slope * (1 - gated)), None


def _gate_context(ctx, inputs, output):
    ctx.save_for_backward(inputs[0])
    ctx.slope = inputs[1]


gate_op.register_autograd(_gate_backward, setup_context=_gate_context)


class Gated(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(4, 4)

    def forward(self, x):
        return torch.ops.lowtide_cache_test.gate(self.fc(x), 1.5)


_library = torch.library.Library("lowtide_cache_test", "FRAGMENT")
_library.define("opaque(Tensor x) -> Tensor")
_library.impl("opaque", lambda x: x * 2, "CompositeExplicitAutograd")


class Opaque(torch.nn.Module):
    def forward(self, x):
        return torch.ops.lowtide_cache_test.opaque(x.detach()) + x


def trained(net, x):
    wrapped = run(net, x)
    net.zero_grad()
    wrapped(x).sum().backward()
    found = [parameter.grad.clone() for parameter in net.parameters()]
    net.zero_grad()
    net(x).sum().backward()
    torch.testing.assert_close(found, [parameter.grad for parameter in net.parameters()])
    return found


@pytest.mark.parametrize("build", [Cubes, Scales, Gated])
def test_custom_functions_and_ops_are_found_again_by_name(folder, exports, planned, build):
    x = torch.randn(3, 4)
    torch.manual_seed(0)
    first = trained(build(), x)
    torch.manual_seed(0)
    assert all(torch.equal(a, b) for a, b in zip(trained(build(), x), first, strict=True))
    assert len(exports) == len(planned) == 1


class Numbered(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(4, 4)

    def forward(self, x, scale, step):
        return Scaled.apply(self.fc(x), scale, [x.detach(), 3], None, None)[0] * (step + 1)


def test_graphs_with_numbers_that_change_are_found_again(folder, exports, monkeypatch):
    def train():
        net = seeded_numbered()
        wrapped = ORTModule(net, DebugOptions(LogLevel.ERROR))
        for step in range(4):
            x = torch.randn(3, 4, generator=torch.Generator().manual_seed(step))
            torch.testing.assert_close(wrapped(x, 0.5 + step, step), net(x, 0.5 + step, step))
        assert wrapped.fallback_reason is None

    train()
    first = len(exports)
    train()
    assert len(exports) == first


def seeded_numbered():
    torch.manual_seed(0)
    return Numbered()


def test_another_function_or_op_of_the_same_name_is_captured_anew(folder, exports, monkeypatch, caplog):
    x = torch.randn(3, 4)
    run(Cubes(), x)
    run(Gated(), x)
    monkeypatch.setattr(Cube, "forward", staticmethod(lambda ctx, x: ctx.save_for_backward(x) or x * x * x))
    run(Cubes(), x)
    assert len(exports) == 3
    # The code of an op that is called by its name is not seen from the model: the file holds its hash.
    monkeypatch.setattr(gate_op, "_abstract_fn", lambda x, slope: torch.zeros_like(x))
    with caplog.at_level(logging.INFO, logger="lowtide"):
        run(Gated(), x)
        run(Gated(), x)
    assert len(exports) == 4 and "out of date: lowtide_cache_test::gate.default has changed" in caplog.text


class Hiding(torch.nn.Module):
    def __init__(self, what):
        super().__init__()
        self.what = what

    def forward(self, x):
        return x * 2 if self.what else x


def local_function():
    class Local(Cube):
        pass

    return Local


@pytest.mark.parametrize(
    ("net", "reason"),
    [
        (Cubes(local_function()), "forward calls the custom autograd.Function local_function.<locals>.Local, which no"),
        (Opaque(), "forward calls lowtide_cache_test::opaque, which is no torch.library.custom_op"),
        (Hiding([torch.nn.Linear(2, 2)]), "forward reads a Linear that is no submodule"),
        (Hiding({torch.float32: 1}), "forward reads a dict with the key torch.float32"),
        (Hiding(memoryview(b"")), "attribute `what` of the module is a builtins.memoryview"),
    ],
    ids=["function", "op", "module", "key", "object"],
)
def test_what_cannot_be_cached_is_said(folder, caplog, net, reason):
    with caplog.at_level(logging.INFO, logger="lowtide"):
        ORTModule(net, DebugOptions(LogLevel.DEVINFO))(torch.randn(3, 4, requires_grad=True)).sum().backward()
    assert f"{type(net).__name__} is not cached: {reason}" in caplog.text
    assert not graphs(folder)
