"""gpt2 of which products of low rank are trained alone."""

import torch

RANK = 4


class Lora(torch.nn.Module):
    """A frozen layer (transformers' Conv1D) with a trained product of low rank beside it."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer
        inputs, outputs = layer.weight.shape
        self.down = torch.nn.Parameter(torch.randn(RANK, inputs, dtype=layer.weight.dtype) / inputs)
        self.up = torch.nn.Parameter(torch.randn(outputs, RANK, dtype=layer.weight.dtype) / RANK)

    def forward(self, x):
        return self.layer(x) + x @ self.down.T @ self.up.T


def add_lora(model):
    torch.manual_seed(0)
    model.requires_grad_(False)
    for block in model.transformer.h:
        block.attn.c_attn = Lora(block.attn.c_attn)
    return model
