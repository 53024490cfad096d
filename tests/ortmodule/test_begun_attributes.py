"""Attributes that forward begins anew in each call and adds to: lists of activations, sums of losses."""

import copy

import pytest
import torch

from lowtide.ortmodule import ORTModule


class Layers(torch.nn.Module):
    def __init__(self, forward):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(4, 4, dtype=torch.float64) for _ in range(3))
        self.seen, self.by_name, self.penalty, self.shared = [], {}, 0.5, []
        self._function = forward

    def forward(self, x):
        return self._function(self, x)


def in_a_list(m, x):
    m.seen = []
    for layer in m.layers:
        x = torch.tanh(layer(x))
        m.seen.append(x)
    return x


def in_a_dict(m, x):
    m.by_name = {}
    for place, layer in enumerate(m.layers):
        x = torch.tanh(layer(x))
        m.by_name[f"layer {place}"] = x
    return x


def in_a_sum(m, x):
    m.penalty = 0.0
    for layer in m.layers:
        x = torch.tanh(layer(x))
        m.penalty = m.penalty + x.abs().mean()
    return x


def in_a_sum_in_place(m, x):
    m.penalty = 0
    for layer in m.layers:
        x = torch.tanh(layer(x))
        m.penalty += x.abs().mean()
    return x


def step(model, x):
    model.zero_grad()
    loss = model(x).square().sum() + sum(each.sin().sum() for each in (*model.seen, *model.by_name.values()))
    (loss + 0.1 * model.penalty).backward()
    return [loss.detach(), *(p.grad.clone() for p in model.parameters())]


@pytest.mark.parametrize(
    ("forward", "exports"),
    [(in_a_list, 1), (in_a_dict, 1), (in_a_sum, 2), (in_a_sum_in_place, 2)],
)
def test_what_forward_begins_is_of_each_call(forward, exports):
    module = Layers(forward)
    wrapped = ORTModule(copy.deepcopy(module))
    for index in range(4):
        x = torch.randn(2 + index, 4, dtype=torch.float64)
        torch.testing.assert_close(step(wrapped, x), step(module, x))
        assert wrapped.fallback_reason is None
        assert len(wrapped.seen) == len(module.seen) and wrapped.by_name.keys() == module.by_name.keys()
    assert sum(wrapped.transition_counts()["in training mode"].values()) <= exports


def test_a_list_that_is_somebody_elses_is_not_begun():
    def forward(m, x):
        m.seen = m.shared
        m.seen.append(len(m.seen))
        return m.layers[0](x)

    module = Layers(forward)
    wrapped = ORTModule(copy.deepcopy(module))
    with pytest.warns(match="forward changes"):
        for _ in range(3):
            wrapped(torch.ones(2, 4, dtype=torch.float64)).sum().backward()
    assert wrapped.shared == [0, 1, 2]
