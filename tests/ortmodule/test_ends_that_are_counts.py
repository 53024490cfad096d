"""`joined[:-count]` and `joined[-count:]` of what has as many rows from data, behind others or before them: a bug, and
pieces."""

import pytest
import torch
from doors import compare
from modules import Of


def _last(m, x):
    chosen = m.l(x[x[:, 0] > 0])
    joined = torch.cat([m.l(x).sin(), chosen])
    return joined[-chosen.shape[0] :].square()


def _both(m, x):
    h = m.l(x)
    chosen = h[x[:, 0] > 0]
    joined = torch.cat([chosen, h.sin()])
    return joined[: -chosen.shape[0]].sum(0) * joined[-chosen.shape[0] :].square().sum(0)


@pytest.mark.parametrize("forward", [_last, _both])
def test_one_graph_with_eagers_outputs_and_gradients(forward):
    def inputs(index):
        x = torch.randn(5 + index, 4, dtype=torch.float64)
        x[0, 0], x[1, 0], x[2, 0] = 1, 2, -1
        return [x]

    ours = compare("ORTModule", Of(forward).double(), inputs, steps=4)
    assert ours.fallback_reason is None
