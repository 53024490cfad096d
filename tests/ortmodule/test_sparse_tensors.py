"""Sparse tensors that forward finds or makes: dense parts are pieces, the others PyTorch's, and the reason says so."""

import pytest
import torch

from lowtide.ortmodule import ORTModule

pytestmark = pytest.mark.filterwarnings(
    "ignore::lowtide.errors.FallbackWarning", "ignore:Sparse:UserWarning", "ignore:Dynamo does not know:UserWarning"
)


def adjacency(layout=torch.sparse_coo):
    indices = torch.randint(0, 6, (2, 12), generator=torch.Generator().manual_seed(1))
    made = torch.sparse_coo_tensor(indices, torch.linspace(0.1, 1, 12, dtype=torch.float64), (6, 6)).coalesce()
    return made if layout is torch.sparse_coo else made.to_sparse(layout=layout)


class Graph(torch.nn.Module):
    def __init__(self, product, **attributes):
        super().__init__()
        self.first, self.second = (torch.nn.Linear(4, 4, dtype=torch.float64) for _ in range(2))
        self.product = product
        for name, value in attributes.items():
            setattr(self, name, value)

    def forward(self, x):
        return self.product(self, self.second(self.product(self, self.first(x)).relu()))


def of_buffer(layout):
    module = Graph(lambda m, x: m.adjacency @ x)
    module.register_buffer("adjacency", adjacency(layout))
    return module


def of_unused_buffer():
    module = Graph(lambda m, x: x.sin())
    module.register_buffer("adjacency", adjacency())
    return module


def made_in_forward(m, x):
    indices = torch.tensor([[0, 1, 2], [2, 0, 5]])
    return torch.sparse.mm(torch.sparse_coo_tensor(indices, m.values, (6, 6)), x)


CASES = {
    "buffer": (lambda: of_buffer(torch.sparse_coo), "buffer 'adjacency' is a tensor of layout torch.sparse_coo"),
    "rows": (lambda: of_buffer(torch.sparse_csr), "buffer 'adjacency' is a tensor of layout torch.sparse_csr"),
    "unused": (of_unused_buffer, "buffer 'adjacency' is a tensor of layout torch.sparse_coo"),
    "attribute": (
        lambda: Graph(lambda m, x: torch.sparse.mm(m.kept, x), kept=adjacency()),
        "sparse",
    ),
    "made": (
        lambda: Graph(made_in_forward, values=torch.nn.Parameter(torch.ones(3, dtype=torch.float64))),
        "sparse",
    ),
    "of a parameter": (
        lambda: Graph(
            lambda m, x: x + torch.sparse.mm(m.kept, m.table),
            kept=adjacency(),
            table=torch.nn.Parameter(torch.ones(6, 4, dtype=torch.float64)),
        ),
        "forward computes with a tensor of layout torch.sparse_coo",
    ),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("pieces", ["0", "1"])
def test_a_sparse_tensor_is_pytorchs(name, pieces, monkeypatch):
    monkeypatch.setenv("LOWTIDE_PIECES", pieces)
    torch.compiler.reset()
    make, reason = CASES[name]
    module, inner = make(), make()
    inner.load_state_dict(dict(module.named_parameters()), strict=False)
    wrapped = ORTModule(inner)
    for index in range(3):
        x = torch.randn(6, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(index))
        for model in (module, wrapped):
            model.zero_grad()
            model(x).square().sum().backward()
        torch.testing.assert_close([p.grad for p in wrapped.parameters()], [p.grad for p in module.parameters()])
        assert reason in wrapped.fallback_reason
    torch.compiler.reset()
