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


class Changing(torch.nn.Module):
    """A number of its own, and the number of its rows."""

    def __init__(self, function, dtype):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.linspace(-3, 3, 64).to(dtype))
        self.function = function
        self.number = 0.9

    def forward(self, x):
        return self.function(x * self.weight, self.number, x.shape[0])


CHANGING = {
    "factor": lambda y, number, rows: y * number,
    "of a number first": lambda y, number, rows: number * y,
    "divisor": lambda y, number, rows: y / number,
    "in place": lambda y, number, rows: y.mul_(number).div_(1 + number),
    "alpha": lambda y, number, rows: torch.add(y, y.flip(0), alpha=number),
    "value": lambda y, number, rows: torch.addcmul(y, y, y.flip(0), value=number),
    "value of a quotient": lambda y, number, rows: torch.addcdiv(y, y, 1 + y.flip(0).abs(), value=number),
    "weight": lambda y, number, rows: torch.lerp(y, y.flip(0), number / 2),
    "sum": lambda y, number, rows: y + number,
    "power": lambda y, number, rows: (1 + y.abs()) ** number,
    "rows": lambda y, number, rows: y * rows / 1024,
    "of rows": lambda y, number, rows: y / rows,
    "of three times the rows": lambda y, number, rows: y.sum(0) / (3 * rows),
    "in a tensor of f32": lambda y, number, rows: y * torch.full((), 27.7) / torch.full((), 0.7),
    "in a tensor of whole numbers": lambda y, number, rows: y / torch.tensor(2049),
    "mean": lambda y, number, rows: y.mean(0),
    "mean of all": lambda y, number, rows: y.mean(),  # of up to 65984 numbers: more than f16 can count
}


@pytest.mark.parametrize("name", CHANGING)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_those_that_change_from_call_to_call(name, dtype):
    module = Changing(CHANGING[name], dtype)
    engine = ORTModule(module)
    for rows, number in ((257, 0.9), (1031, 0.3337), (205, 0.7771)):
        module.number = number
        x = torch.randn(rows, 64, generator=torch.Generator().manual_seed(rows)).to(dtype)
        results, gradients = [], []
        for each in (module, engine):
            module.zero_grad()
            result = each(x)
            result.backward(torch.ones_like(result))
            results.append(result.detach())
            gradients.append(module.weight.grad)
        assert engine.fallback_reason is None
        if name in ("value", "weight"):  # PyTorch's kernels add a product that is not rounded to f32 either
            assert (results[1] != results[0]).float().mean() < 0.01
        else:
            torch.testing.assert_close(results[1], results[0], rtol=0, atol=0)
        # Sums of products that PyTorch rounds one by one.
        atol = 4 * torch.finfo(dtype).eps * gradients[0].abs().max().item()
        torch.testing.assert_close(gradients[1], gradients[0], rtol=0, atol=atol)
