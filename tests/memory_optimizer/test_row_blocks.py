"""Row blocks as a lever of the budget: wide values of long rows make the peak, and go by blocks with the same bits."""

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
