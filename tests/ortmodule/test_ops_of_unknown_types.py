"""Ops that PyTorch's tracer knows no types of, or that ask for data on their way: covariances with weights, fake
quantization, least squares, parts by places in a tensor. One graph has them."""

import copy

import pytest
import torch
from torch.ao import quantization

from lowtide.ortmodule import ORTModule

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.ao.quantization is deprecated:DeprecationWarning")


class Of(torch.nn.Module):
    def __init__(self, function, dtype):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.linspace(0.5, 1.5, 4, dtype=dtype))
        self.scale = torch.nn.Parameter(torch.full((1,), 0.1, dtype=torch.float32))
        self.function = function

    def forward(self, x, *others):
        return self.function(self, x * self.weight, *others)


F64 = {
    "cov, whole weights": lambda m, x: torch.cov(x, fweights=torch.tensor([1, 2, 0, 3])),
    "cov, real weights": lambda m, x: torch.cov(x, aweights=m.weight.detach()),
    "cov, both": lambda m, x: torch.cov(
        x, correction=0, fweights=torch.tensor([1, 2, 1, 3]), aweights=m.weight.detach()
    ),
    "pairs": lambda m, x: torch.combinations(x[:, 0]),
    "threes, with replacement": lambda m, x: torch.combinations(x[0], 3, with_replacement=True),
    "least squares": lambda m, x: torch.linalg.lstsq(x, x[:, :2].sin()).solution,
    "least squares with residuals": lambda m, x: sum(
        each.sum() for each in torch.linalg.lstsq(x, x[:, :2].sin(), driver="gelsd")[:2]
    ),
    "least squares of a vector": lambda m, x: torch.linalg.lstsq(x.t(), x[:4, 0]).solution,
    "rank and singular values": lambda m, x: (
        x * torch.linalg.lstsq(x, x).rank * torch.linalg.lstsq(x.detach(), x.detach(), driver="gelss").singular_values
    ),
}  # fmt: skip
F32 = {
    "by numbers": lambda m, x: torch.fake_quantize_per_tensor_affine(x, 0.1, 3, -8, 7),
    "by tensors": lambda m, x: torch.fake_quantize_per_tensor_affine(
        x, x.detach().abs().max() / 5, torch.zeros(1, dtype=torch.int32), -8, 7
    ),
    "by channels": lambda m, x: torch.fake_quantize_per_channel_affine(
        x, m.weight.detach() / 9, torch.zeros(4, dtype=torch.int32), 1, -8, 7
    ),
    "with a step that is learnt": lambda m, x: torch._fake_quantize_learnable_per_tensor_affine(
        x, m.scale, torch.zeros(1), -8, 7, 0.5
    ),
}
CASES = {**{name: (function, torch.float64) for name, function in F64.items()},
         **{name: (function, torch.float32) for name, function in F32.items()}}  # fmt: skip


def compare(function, dtype, calls, **tolerance):
    eager = Of(function, dtype)
    wrapped = ORTModule(copy.deepcopy(eager))
    for others in calls:
        x = torch.randn(6, 4, dtype=dtype, generator=torch.Generator().manual_seed(3))
        outputs = []
        for model in (eager, wrapped):
            model.zero_grad()
            outputs.append(model(x, *others))
            outputs[-1].pow(2).sum().backward()
        torch.testing.assert_close(outputs[1], outputs[0], **tolerance)
        for one, other in zip(wrapped.parameters(), eager.parameters(), strict=True):
            torch.testing.assert_close(one.grad, other.grad)
        assert wrapped.fallback_reason is None


@pytest.mark.parametrize("name", CASES)
def test_one_graph_has_it(name):
    compare(*CASES[name], [()] * 2)


def test_parts_by_places_in_a_tensor():
    def split(m, x, places):
        first, second, last = torch.tensor_split(x, places)
        return first.sum(0) * 2 + second.cos().sum(0) + x.t().tensor_split(places, 1)[2].t().sin().sum(0)

    compare(split, torch.float64, [(torch.tensor(places),) for places in ([1, 4], [2, 3], [0, 6], [4, 2], [-3, 9])])


def test_a_covariance_whose_weights_are_below_zero_is_pytorchs_error():
    wrapped = ORTModule(Of(lambda m, x, weights: torch.cov(x, fweights=weights), torch.float64))
    x = torch.randn(6, 4, dtype=torch.float64)
    wrapped(x, torch.tensor([1, 1, 2, 1]))
    assert wrapped.fallback_reason is None
    with pytest.raises(RuntimeError, match="fweights cannot be negative"):
        wrapped(x, torch.tensor([1, -1, 2, 1]))


class Quantized(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.quant, self.dequant = quantization.QuantStub(), quantization.DeQuantStub()
        self.conv, self.norm = torch.nn.Conv2d(3, 8, 3, bias=False), torch.nn.BatchNorm2d(8)
        self.fc = torch.nn.Linear(8, 4)

    def forward(self, x):
        x = torch.relu(self.norm(self.conv(self.quant(x))))
        return self.dequant(self.fc(x.mean((2, 3))))


# In the first call an observer of channels gets its size, which is PyTorch's to do.
@pytest.mark.filterwarnings(
    "ignore:.*where its trace had a torch.float32 of", "ignore:Please use quant_min:UserWarning"
)
@pytest.mark.parametrize("backend", ["fbgemm", "qnnpack"])
def test_a_model_in_training_for_quantization_is_one_graph(backend):
    """Its observers are written into by the op that quantizes."""

    def make():
        torch.manual_seed(0)
        module = Quantized().train()
        module.qconfig = quantization.get_default_qat_qconfig(backend)
        return quantization.prepare_qat(module)

    eager, inner = make(), make()
    wrapped = ORTModule(inner)
    for step in range(3):
        x = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(step))
        losses = [model(x).square().sum() for model in (eager, wrapped)]
        for model, loss in zip((eager, wrapped), losses, strict=True):
            model.zero_grad()
            loss.backward()
        torch.testing.assert_close(losses[1], losses[0])
        torch.testing.assert_close([p.grad for p in inner.parameters()], [p.grad for p in eager.parameters()])
        torch.testing.assert_close(dict(inner.named_buffers()), dict(eager.named_buffers()))
    assert wrapped.fallback_reason is None
    assert not torch.isinf(inner.quant.activation_post_process.activation_post_process.min_val).any()
