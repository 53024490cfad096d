"""Row blocks as a lever of the budget: what makes the peak goes by blocks of rows or batches, with the same bits."""

import copy
import json

import torch
from torch import nn
from trainee import Trainee, differences
from transformers.modeling_outputs import MaskedLMOutput

from lowtide.capture import capture

WIDTH, ROWS = 32, 2048


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 8 * WIDTH)
        self.down = nn.Linear(8 * WIDTH, WIDTH)

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


class Layers(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(Mlp(), Mlp())

    def forward(self, x):
        return MaskedLMOutput(loss=self.layers(x).square().mean())


class LongRows(Trainee):
    def __init__(self):
        torch.manual_seed(0)
        self.model = Layers()
        self.captured = capture(self.model, (), self.make_batch())
        self._weights = copy.deepcopy(self.model.state_dict())

    def make_batch(self, seed=0):
        generator = torch.Generator().manual_seed(seed)
        return {"x": torch.randn(2, ROWS // 2, WIDTH, generator=generator)}


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x, mask):
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, 2, WIDTH // 2)).transpose(1, 3).unbind(2)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None, None], dropout_p=0.2)
        mixed = self.out(mixed.transpose(1, 2).flatten(2))
        return MaskedLMOutput(loss=(x + nn.functional.dropout(mixed, 0.2)).square().mean())


class LongBatches(LongRows):
    def __init__(self):
        torch.manual_seed(0)
        self.model = Attention()
        self.captured = capture(self.model, (), self.make_batch())
        self._weights = copy.deepcopy(self.model.state_dict())

    def make_batch(self, seed=0, batch=8, length=256):
        generator = torch.Generator().manual_seed(seed)
        mask = torch.arange(length) < torch.randint(1, length, (batch, 1), generator=generator)
        return {"x": torch.randn(batch, length, WIDTH, generator=generator), "mask": mask}


def test_attention_goes_by_blocks_of_batches_with_the_same_bits():
    trainee = LongBatches()
    plain = trainee.agent()
    expected = trainee.train(plain)
    values = plain.symbol_values()
    rung = json.loads(plain.session.frontier(values))["rungs"][-1]
    agent = trainee.agent(budget=rung["peak_bytes"])
    assert agent.session.memory(values)["planned_peak_bytes"] == rung["peak_bytes"]
    assert "\nloop_of_batches " in agent.session.program_text()
    assert differences(trainee.train(agent), expected) == []


def test_a_budget_puts_wide_values_in_blocks_with_the_same_bits():
    trainee = LongRows()
    plain = trainee.agent()
    expected = trainee.train(plain)
    values = plain.symbol_values()
    rungs = json.loads(plain.session.frontier(values))["rungs"]
    assert rungs[0]["row_blocks"] == []
    in_blocks = [rung for rung in rungs if rung["row_blocks"]]
    assert in_blocks, "no plan is in blocks"
    for run in in_blocks[-1]["row_blocks"]:
        assert run["rows"] == ROWS
        assert run["block_rows"] % 256 == 0
    for rung in (in_blocks[0], in_blocks[-1]):
        agent = trainee.agent(budget=rung["peak_bytes"])
        assert agent.session.memory(values)["planned_peak_bytes"] <= rung["peak_bytes"]
        assert ": loop over steps " in agent.session.plan_text(values)
        assert differences(trainee.train(agent), expected) == []
