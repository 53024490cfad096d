"""A feature of its own column, which forward squeezes (Informer's static features): the exporter leaves a free 1."""

import torch
from counted import assert_one_graph
from modules import Of


def test_a_column_that_is_squeezed_and_joined():
    def forward(m, x, classes):
        return torch.cat((m.e(classes.squeeze(-1)), m.l(x)), dim=1)

    def given(batch):
        generator = torch.Generator().manual_seed(batch)
        x = torch.randn(batch, 4, generator=generator, dtype=torch.float64, requires_grad=True)
        return x, torch.randint(0, 9, (batch, 1), generator=generator)

    assert_one_graph(Of(forward, e=torch.nn.Embedding(9, 4)).double(), [given(batch) for batch in (5, 3, 7)])
