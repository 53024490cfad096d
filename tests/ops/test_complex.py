"""Complex numbers inside of a step, on PyTorch's kernels: outputs and gradients as in eager."""

import copy

import pytest
import torch

from lowtide.ortmodule import ORTModule


class Module(torch.nn.Module):
    def __init__(self, width=6, dtype=torch.float64):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(width, width, dtype=dtype))


class FourierMixing(Module):
    def forward(self, x):
        return torch.fft.fft2(x @ self.weight).real


class RotaryOfComplexNumbers(Module):
    def forward(self, x):
        angles = torch.arange(x.shape[1], dtype=x.dtype)[:, None] * torch.tensor([1.0, 0.5, 0.1], dtype=x.dtype)
        turns = torch.polar(torch.ones_like(angles), angles)
        pairs = torch.view_as_complex((x @ self.weight).reshape(*x.shape[:-1], -1, 2))
        return torch.view_as_real(pairs * turns).flatten(-2)


class ConjugateReadTwice(Module):
    def forward(self, x):
        spectrum = torch.fft.rfft(x @ self.weight)
        power = spectrum * spectrum.conj() + (1.5 - 2j) * spectrum
        return torch.fft.irfft(power, n=x.shape[-1]) + power.abs().sum()


class ComplexParameter(Module):
    def __init__(self):
        super().__init__(dtype=torch.complex128)

    def forward(self, x):
        y = torch.complex(x, x.sin()) @ self.weight
        return y.transpose(0, 1).unsqueeze(0) * y.detach().transpose(0, 1), y.angle()


class WithoutGradientInside(Module):
    def forward(self, x):
        y = torch.fft.fft(x @ self.weight)
        with torch.no_grad():
            scale = y.abs().mean() + y.imag.abs().max()
        return (y / scale).imag


class PairsAndNumbers(Module):
    """Arithmetic of pairs, their views, and a call that knows only whole complex numbers in between."""

    def forward(self, x):
        z = torch.view_as_complex((x @ self.weight).reshape(*x.shape[:-1], 3, 2))
        z = (z * (1 - 2j) + 0.5 - x[..., :3] / 3).conj()
        z = torch.cat([z, z[:, 1:] * 2], 1).transpose(0, 1)
        z = torch.stack([z, z.abs() * z], -1)
        return torch.view_as_real(z.sum(-1).resolve_conj()), z.mean().real


class WritesThroughAView(Module):
    def forward(self, x):
        y = (x @ self.weight).reshape(*x.shape[:-1], 3, 2).clone()
        torch.view_as_complex(y).mul_(1j)
        return y


def step(module, x):
    x = x.clone().requires_grad_()
    outputs = module(x)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    torch.manual_seed(1)
    torch.autograd.backward(outputs, [torch.randn(output.shape, dtype=output.dtype) for output in outputs])
    return [*(output.detach() for output in outputs), x.grad, *(each.grad for each in module.parameters())]


@pytest.mark.parametrize(
    "kind",
    [
        FourierMixing,
        RotaryOfComplexNumbers,
        ConjugateReadTwice,
        ComplexParameter,
        WithoutGradientInside,
        PairsAndNumbers,
        WritesThroughAView,
    ],
)
def test_step(kind):
    torch.manual_seed(0)
    module = kind()
    wrapped = ORTModule(copy.deepcopy(module))
    for length in (5, 5, 4):
        x = torch.randn(3, length, 6, dtype=torch.float64)
        for each in (module, wrapped):
            each.zero_grad()
        torch.testing.assert_close(step(wrapped, x), step(module, x), rtol=1e-10, atol=1e-10)
        assert wrapped.fallback_reason is None


def test_complex_arguments_and_outputs():
    module = ORTModule(torch.nn.Linear(4, 3, dtype=torch.complex64))
    x = torch.randn(4, 5, dtype=torch.complex64).t()  # strided
    eager = copy.deepcopy(module.module)
    module(x).abs().sum().backward()
    eager(x).abs().sum().backward()
    assert module.fallback_reason is None
    for ours, theirs in zip(module.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)


def test_a_rotary_embedding_of_complex_numbers_is_one_op():
    module = ORTModule(RotaryOfComplexNumbers())
    module(torch.randn(3, 5, 6, dtype=torch.float64, requires_grad=True)).sum().backward()
    text = module.text("training")
    assert text.count("RotaryEmbedding(interleaved=true)") == 1
    assert "c128" not in text


def test_a_gradient_with_other_strides():
    module = FourierMixing()
    module.forward = lambda x: torch.fft.fft(x @ module.weight, dim=1)
    wrapped = ORTModule(module)
    x = torch.randn(3, 5, 6, dtype=torch.float64)
    spectrum = module.forward(x)
    incoming = torch.randn_like(spectrum)
    assert not incoming.is_contiguous()
    (expected,) = torch.autograd.grad(spectrum, module.weight, incoming)
    (found,) = torch.autograd.grad(wrapped(x), module.weight, incoming)
    torch.testing.assert_close(found, expected)
    assert wrapped.fallback_reason is None


def test_a_conjugated_argument_is_left_to_pytorch():
    x = torch.randn(4, 3, dtype=torch.complex128)
    layer = torch.nn.Linear(3, 2, dtype=torch.complex128)
    module = ORTModule(layer)
    for given in (x, x.conj()):  # the second as a call of the graph of the first
        torch.testing.assert_close(module(given), layer(given))
    assert "resolve_conj" in module.fallback_reason
    module = ORTModule(torch.nn.Linear(3, 2, dtype=torch.float64))
    torch.testing.assert_close(module(x.conj().imag), module.module(x.conj().imag))
    assert "resolve_neg" in module.fallback_reason


def test_a_complex_loss_is_refused_as_by_pytorch():
    module = ORTModule(torch.nn.Linear(4, 1, dtype=torch.complex64))
    with pytest.raises(RuntimeError, match="[Cc]omplex"):
        module(torch.randn(2, 4, dtype=torch.complex64)).sum().backward()
