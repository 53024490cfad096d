"""A module whose step is activations for the most part, with dropout."""

import torch


class Blocks(torch.nn.Module):
    """Activations are most of a step."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(
            torch.nn.Sequential(
                torch.nn.Linear(16, 64), torch.nn.GELU(), torch.nn.Dropout(0.1), torch.nn.Linear(64, 16)
            )
            for _ in range(4)
        )

    def forward(self, x):
        for layer in self.layers:
            x = x + torch.tanh(layer(x))
        return x.square().mean()


def build():
    torch.manual_seed(1)
    return Blocks(), torch.randn(512, 16)
