"""Sparse tensors that forward finds, is given or makes: one graph, in which PyTorch multiplies by them."""

import pytest
import torch

from lowtide.ortmodule import ORTModule

pytestmark = pytest.mark.filterwarnings(
    "ignore::lowtide.errors.FallbackWarning", "ignore:Sparse:UserWarning", "ignore:Dynamo does not know:UserWarning"
)
COO, CSR = torch.sparse_coo, torch.sparse_csr


def adjacency(layout=COO, size=6):
    indices = torch.randint(0, size, (2, 12), generator=torch.Generator().manual_seed(1))
    made = torch.sparse_coo_tensor(indices, torch.linspace(0.1, 1, 12, dtype=torch.float64), (size, size)).coalesce()
    return made if layout is COO else made.to_sparse(layout=layout)


class Graph(torch.nn.Module):
    def __init__(self, product, **attributes):
        super().__init__()
        self.first, self.second = (torch.nn.Linear(4, 4, dtype=torch.float64) for _ in range(2))
        self.product = product
        for name, value in attributes.items():
            setattr(self, name, value)

    def forward(self, x, *given, **named):
        return self.product(
            self, self.second(self.product(self, self.first(x), *given, **named).relu()), *given, **named
        )


def of_buffer(product, layout=COO):
    module = Graph(product)
    module.register_buffer("adjacency", adjacency(layout))
    return module


def edges(m):
    return torch.tensor([[0, 1, 2, 2], [2, 0, 5, 5]]), m.values, (6, 6)


def of_values(product):
    return Graph(product, values=torch.nn.Parameter(torch.linspace(0.5, 1, 4, dtype=torch.float64)))


# What a module keeps is multiplied by, and what forward makes of values that take a gradient.
IN_THE_GRAPH = {
    **{
        f"{name} of {layout}": lambda product=product, layout=layout: of_buffer(product, layout)
        for layout in (COO, CSR)
        for name, product in {
            "sparse.mm": lambda m, x: torch.sparse.mm(m.adjacency, x),
            "mm": lambda m, x: torch.mm(m.adjacency, x),
            "@": lambda m, x: m.adjacency @ x,
            "spmm": lambda m, x: torch.spmm(m.adjacency, x),
            "sparse.addmm": lambda m, x: torch.sparse.addmm(x, m.adjacency, x, beta=0.5),
            "t": lambda m, x: m.adjacency.t() @ x,
            "to_dense": lambda m, x: m.adjacency.to_dense() @ x,
            "asked": lambda m, x: m.adjacency.to(x.dtype) @ x if m.adjacency.layout is not torch.strided else x,
        }.items()
    },
    "rows of one sum": lambda: of_buffer(lambda m, x: torch.sparse.mm(m.adjacency, x, "mean"), CSR),
    "two of them": lambda: of_buffer(lambda m, x: torch.sparse.mm(torch.sparse.mm(m.adjacency, m.adjacency), x)),
    "softmax": lambda: of_buffer(lambda m, x: torch.sparse.softmax(m.adjacency, 1) @ x),
    "attribute": lambda: Graph(lambda m, x: torch.sparse.mm(m.kept, x), kept=adjacency()),
    "of a parameter": lambda: Graph(
        lambda m, x: x + torch.sparse.mm(m.kept, m.table),
        kept=adjacency(),
        table=torch.nn.Parameter(torch.ones(6, 4, dtype=torch.float64)),
    ),
    "in a checkpoint": lambda: of_buffer(
        lambda m, x: torch.utils.checkpoint.checkpoint(lambda x: m.adjacency @ x.sin(), x, use_reentrant=False)
    ),
    "made": lambda: of_values(lambda m, x: torch.sparse.mm(torch.sparse_coo_tensor(*edges(m)), x)),
    "made, turned": lambda: of_values(lambda m, x: torch.sparse_coo_tensor(*edges(m)).coalesce().t() @ x),
    "made, in rows": lambda: of_values(
        lambda m, x: torch.sparse_coo_tensor(*edges(m)).coalesce().to_sparse_csr() @ x
    ),
    "made of the size of x": lambda: of_values(
        lambda m, x: torch.sparse_coo_tensor(*edges(m)[:2], (x.shape[0], x.shape[0])) * 0.5 @ x
    ),
    "made of a dense one": lambda: of_values(lambda m, x: (m.values[:, None] * x.t()).relu().to_sparse().t() @ x[:4]),
    "unused": lambda: of_buffer(lambda m, x: x.sin()),
}  # fmt: skip


def steps(module, inner, calls):
    inner.load_state_dict(dict(module.named_parameters()), strict=False)
    wrapped = ORTModule(inner)
    for index, (args, kwargs) in enumerate(calls):
        x = torch.randn(args[0] if args else 6, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(index))
        outputs = []
        for model in (module, wrapped):
            model.zero_grad()
            outputs.append(model(x, *args[1:], **kwargs))
            outputs[-1].square().sum().backward()
        torch.testing.assert_close(outputs[1], outputs[0], rtol=1e-12, atol=1e-12)
        torch.testing.assert_close([p.grad for p in wrapped.parameters()], [p.grad for p in module.parameters()])
        yield wrapped


@pytest.mark.parametrize("name", IN_THE_GRAPH)
def test_pytorch_multiplies_in_the_graph(name):
    make = IN_THE_GRAPH[name]
    torch.manual_seed(0)
    for wrapped in steps(make(), make(), [((), {})] * 3):
        assert wrapped.fallback_reason is None


@pytest.mark.parametrize("layout", [COO, CSR, torch.sparse_csc])
def test_an_argument_may_have_any_size(layout):
    def make():
        return Graph(lambda m, x, adjacency, other=None: torch.spmm(adjacency, x) + (0 if other is None else other @ x))

    sizes = [6, 9, 12, 7]
    calls = [((size, adjacency(layout, size)), {"other": adjacency(COO, size)}) for size in sizes]
    for wrapped in steps(make(), make(), calls):
        assert wrapped.fallback_reason is None
    exports = wrapped.transition_counts()["in training mode"]
    assert "argument" not in exports
    uncoalesced = torch.sparse_coo_tensor(torch.tensor([[1, 1], [2, 2]]), torch.ones(2, dtype=torch.float64), (6, 6))
    for wrapped in steps(make(), make(), [((6, adjacency(layout)), {}), ((6, uncoalesced), {})]):
        assert wrapped.fallback_reason is None


def test_what_a_buffer_holds_is_read_in_each_call():
    module = of_buffer(lambda m, x: m.adjacency @ x)
    wrapped, x = ORTModule(module), torch.randn(6, 4, dtype=torch.float64)

    def check():
        torch.testing.assert_close(wrapped(x), module(x), rtol=0, atol=0)
        assert wrapped.fallback_reason is None

    check()
    with torch.no_grad():
        module.adjacency._values().mul_(2)
    check()
    module.load_state_dict({**module.state_dict(), "adjacency": adjacency() + 5 * torch.eye(6).double().to_sparse()})
    check()
    module.adjacency = adjacency() * 3
    check()
    assert wrapped.state_dict()["adjacency"] is not None and module.adjacency.is_sparse


REFUSED = {
    "a function that nobody knows": (
        lambda: of_buffer(lambda m, x: m.adjacency.pow(2) @ x),
        "forward calls pow of a tensor of layout torch.sparse_coo",
    ),
    "a size from data": (
        lambda: of_values(lambda m, x: torch.sparse_coo_tensor(torch.tensor([[0, 5], [5, 2]]), m.values[:2]) @ x),
        "forward makes a sparse tensor whose size depends on data",
    ),
    "a buffer that forward replaces": (
        lambda: of_buffer(lambda m, x: (setattr(m, "adjacency", m.adjacency * 1.5), m.adjacency @ x)[1]),
        "forward replaces the buffer 'adjacency'",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("pieces", ["0", "1"])
def test_others_are_pytorchs(name, pieces, monkeypatch):
    monkeypatch.setenv("LOWTIDE_PIECES", pieces)
    torch.compiler.reset()
    make, reason = REFUSED[name]
    for wrapped in steps(make(), make(), [((), {})] * 3):
        assert reason in wrapped.fallback_reason
    torch.compiler.reset()


class Returning(Graph):
    def forward(self, x, adjacencies):
        hidden = self.first(x)
        return sum(each @ hidden for each in adjacencies), adjacencies[0] if self.product else hidden


@pytest.mark.parametrize("returns_one", [False, True])
def test_lists_of_them_are_arguments_and_no_outputs(returns_one):
    module = Returning(returns_one)
    wrapped, gradients = ORTModule(module), []
    for model in (module, wrapped):
        model.zero_grad()
        result, other = model(torch.ones(6, 4, dtype=torch.float64), [adjacency(), adjacency(CSR)])
        result.sum().backward()
        gradients.append(module.first.weight.grad)
        assert other.is_sparse is returns_one
    torch.testing.assert_close(*gradients)
    reason = wrapped.fallback_reason
    assert ("an output is a tensor of layout torch.sparse_coo" in reason) if returns_one else reason is None


def test_an_argument_with_a_gradient_is_pytorchs():
    module = Graph(lambda m, x, adjacency: adjacency @ x)
    wrapped, gradients = ORTModule(module), []
    for model in (module, wrapped):
        given = adjacency().requires_grad_()
        model(torch.ones(6, 4, dtype=torch.float64), given).sum().backward()
        gradients.append(given.grad.to_dense())
    assert "argument `given_0` is a tensor of layout torch.sparse_coo" in wrapped.fallback_reason
    torch.testing.assert_close(*gradients)
