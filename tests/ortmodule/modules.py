"""A small module made from a function, an input of it, the comparison of a step with PyTorch's; calls in threads."""

import copy
import queue
import threading

import torch

from lowtide.compile_backend import lowtide
from lowtide.ortmodule import ORTModule


class Of(torch.nn.Module):
    """forward is function(module, inputs…); one linear layer to train."""

    def __init__(self, function, **children):
        super().__init__()
        self.l = torch.nn.Linear(4, 4)
        self._function = function
        for name, child in children.items():
            setattr(self, name, child)

    def forward(self, *args, **kwargs):
        return self._function(self, *args, **kwargs)


def of(function, **attributes):
    """Of(function) in f64, with these attributes."""
    torch.manual_seed(0)
    module = Of(function).double()
    for name, value in attributes.items():
        setattr(module, name, value)
    return module


class Wide(torch.nn.Module):
    """Two halves of three layers each, between which Python looks at data."""

    def __init__(self):
        super().__init__()
        layers = [torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU()) for _ in range(6)]
        self.first, self.second = torch.nn.Sequential(*layers[:3]), torch.nn.Sequential(*layers[3:])

    def forward(self, x):
        h = self.first(x)
        if h.mean() > 100:
            h = h * 2
        return {"out": self.second(h)}


def pair(cls):
    torch.manual_seed(0)
    module = cls().double()
    return ORTModule(module), copy.deepcopy(module)


def x(*shape, grad=False):
    """The same numbers for a shape in every call."""
    return torch.randn(*(shape or (3, 4)), generator=torch.Generator().manual_seed(1)).requires_grad_(grad)


def tensors_of(output):
    return [leaf for leaf in torch.utils._pytree.tree_leaves(output) if isinstance(leaf, torch.Tensor)]


def step(module, args, **kwargs):
    """Outputs and gradients of the parameters and inputs, after the backward of a fixed function of all outputs."""
    module.zero_grad()
    args = [arg.detach().clone().requires_grad_(arg.requires_grad) if torch.is_tensor(arg) else arg for arg in args]
    outputs = tensors_of(module(*args, **kwargs))
    loss = sum(
        (out.float() * torch.arange(1.0, out.numel() + 1).view(out.shape)).sum()
        for out in outputs
        if out.is_floating_point()
    )
    if loss.requires_grad:
        loss.backward()
    gradients = {name: p.grad for name, p in module.named_parameters()}
    gradients.update({index: arg.grad for index, arg in enumerate(args) if torch.is_tensor(arg)})
    return [out.detach() for out in outputs], gradients, dict(module.named_buffers())


def assert_same(found, expected, **tolerance):
    for ours, theirs in zip(found[0], expected[0], strict=True):
        torch.testing.assert_close(ours, theirs, **tolerance)
    assert found[1].keys() == expected[1].keys()
    for name, gradient in expected[1].items():
        assert (gradient is None) == (found[1][name] is None), (
            f"gradient of {name}: {found[1][name]}, PyTorch: {gradient}"
        )
        if gradient is not None:
            torch.testing.assert_close(
                found[1][name], gradient, msg=lambda text, name=name: f"{name}: {text}", **tolerance
            )
    for name, buffer in expected[2].items():
        torch.testing.assert_close(found[2][name], buffer, **tolerance)


def assert_same_state(ours, theirs):
    """Gradients of the parameters and buffers, in float64."""
    for (name, mine), other in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, other.grad, rtol=1e-8, atol=1e-12, msg=name)
    for (name, mine), other in zip(ours.named_buffers(), theirs.buffers(), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-10, atol=1e-12, msg=name)


def check(module, *args, steps=2, in_engine=True, tolerance=None, **kwargs):
    """Steps of ORTModule against PyTorch's; returns the ORTModule."""
    eager, wrapped = copy.deepcopy(module), ORTModule(module)
    for _ in range(steps):
        expected = step(eager, args, **kwargs)
        found = step(wrapped, args, **kwargs)
        assert (wrapped.fallback_reason is None) == in_engine, wrapped.fallback_reason
        assert_same(found, expected, **(tolerance or {}))
    return wrapped


def same_through_both_doors(cls, sizes):
    """A wrapped module of this class, whose losses and state are eager's on batches of so many rows of four; so are
    those of torch.compile."""
    ours, theirs = pair(cls)
    compiled = torch.compile(copy.deepcopy(theirs), backend=lowtide)
    for rows in sizes:
        x = torch.randn(rows, 4, dtype=torch.float64)
        losses = [module(x) for module in (theirs, ours, compiled)]
        for loss in losses:
            torch.testing.assert_close(loss, losses[0], rtol=1e-10, atol=1e-12)
            loss.backward()
    assert_same_state(ours, theirs)
    assert_same_state(compiled, theirs)
    return ours


def run_all(*functions):
    """Each in a thread of its own; the first error is raised here."""
    errors = queue.SimpleQueue()

    def guarded(function):
        try:
            function()
        except BaseException as error:
            errors.put(error)

    threads = [threading.Thread(target=guarded, args=(function,)) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if not errors.empty():
        raise errors.get()


class Doubled(torch.autograd.Function):
    """Its gradient is twice that of a sine."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, gradient):
        return 2 * gradient * ctx.saved_tensors[0].cos()
