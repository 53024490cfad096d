"""Python numbers beside tensors of 16 bits: PyTorch multiplies and divides by the number itself, and rounds once; a
tensor of 16 bits that holds it has it rounded."""

import pytest
import torch

from lowtide.ortmodule import ORTModule


class Of(torch.nn.Module):
    def __init__(self, function, dtype):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.linspace(-3, 3, 64 * 64).reshape(64, 64).to(dtype))
        self.function = function

    def forward(self, x):
        return self.function(self.weight, x)


FUNCTIONS = {
    "product": lambda w, x: w * 0.9,
    "of a number first": lambda w, x: 0.3 * w,
    "quotient": lambda w, x: w / 0.7,
    "of a number": lambda w, x: 1.3 / (w.abs() + 1),
    "in place": lambda w, x: (w + x).mul_(0.9).div_(1.7),
    "of both": lambda w, x: w * x * 0.0123,
    "that 16 bits hold": lambda w, x: w * 0.125 / 4,
    "a whole number that they do not": lambda w, x: w * 2049,
    "in a tensor": lambda w, x: w * torch.full((), 27.7, dtype=w.dtype),
    "in a tensor of f32": lambda w, x: w.float() * torch.full((), 27.7, dtype=w.dtype).float(),
    "sum": lambda w, x: w + 0.1234,
    "selected": lambda w, x: torch.where(w > 0, w, w * 0.3),
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_they_are_as_exact_as_in_pytorch(name, dtype):
    torch.manual_seed(0)
    module, x = Of(FUNCTIONS[name], dtype), torch.randn(64, 64).to(dtype)
    found = []
    for each in (module, ORTModule(module)):
        module.zero_grad()
        result = each(x)
        result.backward(x.to(result.dtype))
        found.append((result.detach(), module.weight.grad))
    # A quotient's slope by its divisor is another formula than PyTorch's.
    torch.testing.assert_close(found[1][0], found[0][0], rtol=0, atol=0)
    torch.testing.assert_close(found[1][1], found[0][1], **({} if name == "of a number" else {"rtol": 0, "atol": 0}))
