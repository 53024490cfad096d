"""Queries, keys and values that are parts of one tensor: their gradients are written where they belong in its own."""

import re

import pytest
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

from lowtide.ortmodule import ORTModule

BATCH, ROWS, HEADS, DIM = 2, 20, 3, 8
WIDTH = HEADS * DIM


class Attention(nn.Module):
    """Self attention on the output of one linear layer, which `parts` takes apart."""

    def __init__(self, parts):
        super().__init__()
        self.parts = parts
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        y = scaled_dot_product_attention(*self.parts(self.qkv(x)), is_causal=True)
        return self.out(y.transpose(1, 2).flatten(2)).square().mean()


def one_after_another(qkv):  # GPT-2
    return [part.view(*part.shape[:2], HEADS, DIM).transpose(1, 2) for part in qkv.split(WIDTH, dim=2)]


def by_head(qkv):  # Bloom
    fused = qkv.view(*qkv.shape[:2], HEADS, 3, DIM)
    return [fused[..., i, :].transpose(1, 2) for i in range(3)]


def unbound(qkv):  # timm's vision transformers
    return qkv.reshape(*qkv.shape[:2], 3, HEADS, DIM).permute(2, 0, 3, 1, 4).unbind(0)


def chunked(qkv):
    return [part.unflatten(2, (HEADS, DIM)).transpose(1, 2) for part in qkv.chunk(3, dim=-1)]


def swapped(qkv):
    query, key, value = one_after_another(qkv)
    return key, query, value


def run(module, x):
    loss = module(x)
    loss.backward()
    return [loss.detach(), *(parameter.grad for parameter in module.parameters())]


def beside_eager(parts, dtype):
    torch.manual_seed(0)
    eager = Attention(parts).to(dtype)
    ours = ORTModule(Attention(parts).to(dtype))
    ours.load_state_dict(eager.state_dict(), strict=False)
    for mine, theirs in zip(ours.parameters(), eager.parameters(), strict=True):
        mine.data.copy_(theirs.data)
    x = torch.randn(BATCH, ROWS, WIDTH, dtype=dtype)
    tolerance = {torch.float64: 1e-10, torch.float32: 1e-5, torch.bfloat16: 3e-2}[dtype]
    for found, expected in zip(run(ours, x), run(eager, x), strict=True):
        torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance * expected.abs().max().item())
    assert ours.fallback_reason is None
    return ours._last_agent().session


def buffers_of(session, kernel):
    """Of the first step of the kernel: the buffers of its inputs, and of its outputs."""
    text = session.program_text()
    buffers = [int(line.split()[1]) for line in text.splitlines() if line.startswith("operand ")]
    found = re.search(rf'^step kernel "[^"]*{kernel}[^"]*" \[([-\d ]*)\] \[([-\d ]*)\]', text, re.MULTILINE)
    return [[buffers[int(id)] if int(id) >= 0 else None for id in ids.split()] for ids in found.groups()]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("parts", [one_after_another, by_head, unbound, chunked])
def test_gradients_are_written_where_they_belong(parts, dtype):
    session = beside_eager(parts, dtype)
    assert "packed=" in session.training_text()
    assert 'kernel "cpu.Concat' not in session.program_text()
    assert "Copy for" not in session.program_text()
    inputs, outputs = buffers_of(session, "AttentionGrad")
    assert inputs[1] == inputs[2] == inputs[3]
    assert outputs[1:3] == [None, None]
    # In float64 the products are those of BLAS, which does not read before it writes.
    assert (outputs[0] == inputs[1]) == (dtype != torch.float64)


def test_parts_in_another_order_have_tensors_of_their_own():
    session = beside_eager(swapped, torch.float32)
    assert "packed=" not in session.training_text()


class Separate(nn.Module):
    def __init__(self, keeps):
        super().__init__()
        self.keeps = keeps
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x):
        query, key, value = (
            layer(x).view(*x.shape[:2], HEADS, DIM).transpose(1, 2) for layer in (self.query, self.key, self.value)
        )
        loss = scaled_dot_product_attention(query, key, value).square().mean()
        return (loss, value) if self.keeps else loss


@pytest.mark.parametrize("keeps", [False, True])
def test_gradients_lie_over_queries_keys_and_values(keeps):
    torch.manual_seed(0)
    module = ORTModule(Separate(keeps))
    x = torch.randn(BATCH, ROWS, WIDTH)
    result = module(x)
    loss = result[0] if keeps else result
    value = result[1].detach().clone() if keeps else None
    loss.backward()
    inputs, outputs = buffers_of(module._last_agent().session, "AttentionGrad")
    assert [outputs[i] == inputs[1 + i] for i in range(3)] == [True, True, not keeps]
    if keeps:
        torch.testing.assert_close(result[1].detach(), value, rtol=0, atol=0)
