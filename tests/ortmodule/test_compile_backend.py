"""torch.compile(…, backend="lowtide"): Dynamo's graphs in the engine, with eager's losses, gradients and buffers."""

import copy
import os
import subprocess
import sys
from pathlib import Path

import pytest
import tomllib
import torch
from modules import Doubled, assert_same_state
from torch.utils.checkpoint import checkpoint

from lowtide import compile_backend
from lowtide.errors import FallbackWarning, OutOfMemory

ROOT = Path(__file__).resolve().parents[2]


def compiled(module, **options):
    return torch.compile(module, backend=compile_backend.lowtide, **options)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.norm = torch.nn.Linear(8, 16), torch.nn.LayerNorm(16)
        self.seen, self.down = torch.nn.BatchNorm1d(16), torch.nn.Linear(16, 4)

    def forward(self, x):
        return self.down(self.seen(torch.nn.functional.gelu(self.norm(self.up(x)))))


def net(cls=Net):
    torch.manual_seed(0)
    return cls().double()


def batch(rows=6):
    return torch.randn(rows, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(rows))


def check(module, call, batches, pieces):
    """Losses, gradients and buffers of `call`, made of `module`, are a copy's in eager; all pieces are native."""
    eager = copy.deepcopy(module)
    for x in batches:
        ours, theirs = call(x), eager(x)
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)
        ours.square().mean().backward()
        theirs.square().mean().backward()
    assert_same_state(module, eager)
    assert pieces and [piece.fallback_reason for piece in pieces] == [None] * len(pieces)


def test_a_module_trains_as_in_eager(pieces):
    module = net()
    check(module, compiled(module, fullgraph=True), [batch(), batch()], pieces)
    assert len(pieces) == 1


def test_other_sizes_need_one_more_graph(pieces):
    module = net()
    check(module, compiled(module), [batch(rows) for rows in (6, 8, 11, 3, 40)], pieces)
    assert len(pieces) == 2
    counts = pieces[1].last_manager.transition_counts()
    assert [sum(of_mode.values()) for of_mode in counts.values()] == [1], "one export for all free sizes"


def test_free_sizes_that_are_asked_for_need_one(pieces):
    module = net()
    check(module, compiled(module, dynamic=True), [batch(rows) for rows in (6, 8, 11)], pieces)
    assert len(pieces) == 1


class Counting(Net):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return super().forward(x) * self.calls


def test_a_module_that_counts_its_calls_needs_two(pieces):
    """With Dynamo's option: without it each call is compiled, with any backend."""
    module = net(Counting)
    with torch._dynamo.config.patch(allow_unspec_int_on_nn_module=True):
        check(module, compiled(module), [batch()] * 5, pieces)
    assert len(pieces) == 2
    assert module.calls == 5


class Broken(Net):
    def forward(self, x):
        h = self.norm(self.up(x))
        if h.mean() > 0:  # Dynamo breaks its graph here
            h = h * 2
        return self.down(self.seen(h))


def test_a_break_makes_two_graphs(pieces):
    module = net(Broken)
    check(module, compiled(module), [batch(), batch()], pieces)
    assert len(pieces) == 2


class Sized(torch.nn.Module):
    """Needs the number of rows as a number."""

    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(8, 8)

    def forward(self, x):
        rows = x.shape[0]
        return self.fc(x).view(rows * 2, 4).sum(1) * torch.arange(rows * 2, dtype=x.dtype) / (rows + 1)


def test_sizes_as_numbers(pieces):
    module = net(Sized)
    check(module, compiled(module, dynamic=True), [batch(rows) for rows in (6, 9, 14)], pieces)


class Checkpointed(Net):
    def forward(self, x):
        h = checkpoint(lambda value: torch.nn.functional.gelu(self.norm(self.up(value))), x, use_reentrant=False)
        return self.down(self.seen(h))


def test_checkpoints_are_inlined(pieces):
    module = net(Checkpointed)
    check(module, compiled(module, fullgraph=True), [batch(), batch()], pieces)


class WithFunction(Net):
    def forward(self, x):
        return self.down(Doubled.apply(self.up(x)))


def test_custom_functions_keep_their_backward(pieces):
    module = net(WithFunction)
    module.norm = module.seen = None
    check(module, compiled(module), [batch(), batch()], pieces)


class Cached(Net):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(16))

    def forward(self, x):
        h = self.up(x)
        with torch.no_grad():
            self.mean.mul_(0.9).add_(h.mean(0), alpha=0.1)
        return self.down(h - self.mean.detach())


def test_buffers_that_forward_writes(pieces):
    module = net(Cached)
    module.norm = module.seen = None
    check(module, compiled(module), [batch(), batch(9)], pieces)


def test_autocast_around_and_inside(pieces):
    class Inside(Net):
        def forward(self, x):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return self.down(self.up(x)).float()

    torch.manual_seed(0)
    for cls in (Net, Inside):
        module = cls()
        eager = copy.deepcopy(module)
        call, x = compiled(module), torch.randn(6, 8)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            ours, theirs = call(x), eager(x)
        assert ours.dtype == theirs.dtype
        torch.testing.assert_close(ours, theirs, rtol=0.05, atol=0.05)
    assert [piece.fallback_reason for piece in pieces] == [None, None]


def test_without_gradients_nothing_is_kept(pieces):
    module = net().eval()
    with torch.no_grad():
        torch.testing.assert_close(compiled(module)(batch()), module(batch()))
    (piece,) = pieces
    assert piece.fallback_reason is None and not piece.last_manager.training


def test_functions_and_submodules(pieces):
    @torch.compile(backend=compile_backend.lowtide)
    def loss(x, y):
        return (x.softmax(-1) * y).sum()

    x, y = batch().requires_grad_(), batch(5)[:1]
    loss(x, y).backward()
    mine, x.grad = x.grad, None
    (x.softmax(-1) * y).sum().backward()
    torch.testing.assert_close(mine, x.grad)

    module = torch.nn.Sequential(net(), torch.nn.ReLU())
    eager = copy.deepcopy(module)
    module[0].compile(backend=compile_backend.lowtide)
    torch.testing.assert_close(module(batch()), eager(batch()))
    assert len(pieces) == 2


def test_vmap(pieces):
    """associative_scan is made of it: mamba under torch.compile."""
    row = torch.linspace(0.5, 1.5, 8, dtype=torch.float64)
    functions = (
        lambda a, b: a * b + a.exp() / 2,
        lambda a, b: -a * row + b,
        lambda a, b: a.max() * b,
        lambda a, b: a.softmax(0) @ b,
    )
    for function in functions:
        x, y = batch().requires_grad_(), batch().flip(0)
        mapped = torch.vmap(function)
        compiled(mapped, fullgraph=True)(x, y).square().sum().backward()
        mine, x.grad = x.grad, None
        mapped(x, y).square().sum().backward()
        torch.testing.assert_close(mine, x.grad)
    assert [piece.fallback_reason for piece in pieces] == [None] * len(functions)


def test_arguments_named_as_pythons_keywords(pieces):
    def scaled(self, lambda_):
        return lambda_.sin() * self

    x, y = batch(), batch().flip(0)
    torch.testing.assert_close(compiled(scaled, fullgraph=True)(x, y), scaled(x, y))
    assert [piece.fallback_reason for piece in pieces] == [None]


def test_dropout_repeats_under_a_seed(pieces):
    module = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.Dropout(0.5)).double()
    call, x, results = compiled(module), batch(), []
    for _ in range(2):
        torch.manual_seed(3)
        results.append(call(x))
    assert torch.equal(*results) and not torch.equal(call(x), results[0])
    assert [piece.fallback_reason for piece in pieces] == [None]


def test_stances_and_reset_are_torch_compiles_own(pieces):
    module = net()
    call = compiled(module)
    with torch.compiler.set_stance("force_eager"):
        call(batch())
    assert not pieces
    call(batch())
    torch.compiler.reset()
    call(batch())
    assert len(pieces) == 2


def test_a_budget_is_kept_by_each_graph(pieces):
    layers = [torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU()) for _ in range(6)]
    module, x = torch.nn.Sequential(*layers), torch.randn(512, 64)
    compiled(module)(x).sum().backward()
    without = peak(pieces[-1])
    torch.compiler.reset()
    compiled(module, options={"memory_budget": int(0.8 * without)})(x).sum().backward()
    assert peak(pieces[-1]) <= 0.8 * without
    torch.compiler.reset()
    with pytest.raises(OutOfMemory):
        compiled(module, options={"memory_budget": 1000})(x)


def test_levels_of_the_memory_optimizer(pieces):
    """A layer is what the names of modules say, which Dynamo's graph has kept."""

    class Layers(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = torch.nn.ModuleList(
                torch.nn.Sequential(torch.nn.LayerNorm(64), torch.nn.Linear(64, 256), torch.nn.GELU(),
                                    torch.nn.Linear(256, 64)) for _ in range(4)
            )  # fmt: skip

        def forward(self, x):
            for layer in self.layers:
                x = x + layer(x)
            return x

    module, x = Layers(), torch.randn(512, 64)
    peaks, gradients = [], []
    for options in ({}, {"memory_level": 1}, {"memory_config": "Gelu+:1:-1"}):
        torch.compiler.reset()
        module.zero_grad()
        compiled(module, options=options)(x).sum().backward()
        peaks.append(peak(pieces[-1]))
        gradients.append([p.grad for p in module.parameters()])
    assert pieces[1].last_manager.last_agent.memory.level == 1
    assert peaks[1] < peaks[0] and peaks[2] < peaks[0]
    assert all(torch.equal(a, b) for other in gradients[1:] for a, b in zip(gradients[0], other, strict=True))


def peak(piece):
    agent = piece.last_manager.last_agent
    return agent.session.memory(agent.symbol_values())["planned_peak_bytes"]


@pytest.mark.parametrize(
    "keywords, said",
    [
        ({"options": {"memory_budgte": "1GiB"}}, "unknown option 'memory_budgte'"),
        ({"options": {"memory_budget": "12 apples"}}, "12 apples"),
        ({"options": {"memory_budget_total": "1GiB"}}, "unknown option 'memory_budget_total'"),
        ({"options": {"memory_level": 3}}, "memory_level is '3'"),
        ({"options": {"log_level": "LOUD"}}, "log_level is 'LOUD'"),
        ({"mode": "fastest"}, "mode is 'fastest'"),
    ],
)
def test_mistakes_in_options(pieces, keywords, said):
    with pytest.raises(Exception, match=f"InvalidArgument: .*{said}"):
        compiled(net(), **keywords)(batch())


def test_what_the_engine_cannot_run_pytorch_does(pieces):
    def rounded(x):
        return x.to(torch.float8_e4m3fn).to(x.dtype).sum()

    with pytest.warns(FallbackWarning, match="PyTorch"):
        torch.testing.assert_close(compiled(rounded)(batch()), rounded(batch()))
    assert pieces and pieces[0].fallback_reason is not None


def test_the_entry_point_makes_the_name_known(tmp_path):
    """As pip install does: from pyproject's own lines."""
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    installed = tmp_path / "lowtide-0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: lowtide\nVersion: 0\n")
    lines = [f"[{group}]\n" + "\n".join(f"{name} = {target}" for name, target in entries.items())
             for group, entries in groups.items()]  # fmt: skip
    (installed / "entry_points.txt").write_text("\n".join(lines))
    script = """
import torch
assert "lowtide" in torch.compiler.list_backends()
x = torch.randn(3, 4, requires_grad=True)
torch.compile(lambda x: x.exp().sum(), backend="lowtide", fullgraph=True)(x).backward()
torch.testing.assert_close(x.grad, x.detach().exp())
print("trained")
"""
    path = os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH"))))
    done = subprocess.run(
        [sys.executable, "-c", script], env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True
    )
    assert done.stdout.strip() == "trained", done.stderr


class Masking(Net):
    """As wav2vec2 masks features: what an earlier graph computed is changed in place."""

    def forward(self, x):
        h = self.up(x)
        torch._dynamo.graph_break()
        h[x[:, 0] > 0] = self.norm.weight
        doubled = h.mul_(2)
        y = self.norm(h.clone())
        torch._dynamo.graph_break()
        doubled.add_(1)  # which is h
        return self.down(self.seen(y + h))


def test_what_another_graph_computed_is_changed_in_place(pieces):
    module = net(Masking)
    check(module, compiled(module), [batch(), batch()], pieces)


class Views(Net):
    def forward(self, x):
        h = self.up(x)
        first = self.first(h)
        h.mul_(2)
        return self.down(self.seen(h)).sum(0) + self.down(first)

    @torch.compiler.disable
    def first(self, h):
        return h[:2]


@pytest.mark.filterwarnings("ignore::lowtide.errors.FallbackWarning")
def test_a_view_of_what_is_changed_in_place_sees_it(pieces):
    module = net(Views)
    eager, call = copy.deepcopy(module), compiled(module)
    torch.testing.assert_close(call(batch()), eager(batch()))
    assert [piece.fallback_reason for piece in pieces][1:] == [
        "an argument that is changed in place shares its memory with another one"
    ]
