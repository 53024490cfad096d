"""torch.view_as_complex of a permuted tensor that forward has made contiguous. The copy is none to the engine, and
PyTorch's view said "Tensor must have a last dimension with stride 1"."""

import pytest
import torch
from modules import check


class Spectrum(torch.nn.Module):
    def __init__(self, read):
        super().__init__()
        self.body, self.read = torch.nn.Linear(4, 4), read

    def forward(self, x):
        pairs = self.body(x).view(-1, 2, 2).transpose(1, 2).contiguous()
        return self.read(torch.view_as_complex(pairs))


def _fft(z):
    return torch.fft.fft(z).abs().sum()


def _irfft(z):
    return torch.fft.irfft(torch.nn.functional.pad(z, (0, 1))).square().sum()


@pytest.mark.parametrize("read", [torch.abs, _fft, _irfft])
def test_losses_and_gradients_are_eagers(read):
    check(Spectrum(read).double(), torch.randn(3, 4, dtype=torch.float64))
