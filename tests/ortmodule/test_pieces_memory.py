"""What pieces of a step need together: one peak, one budget, one arena."""

import gc

import pytest
import torch
from modules import Wide, pair

import lowtide
from lowtide.errors import OutOfMemory
from lowtide.ortmodule import ORTModule

pytestmark = pytest.mark.usefixtures("with_pieces")


@pytest.mark.filterwarnings("ignore::lowtide.errors.FallbackWarning")
def test_a_budget_bounds_the_whole_step(monkeypatch):
    def step(**options):
        torch.compiler.reset()
        torch.manual_seed(0)
        module, x = ORTModule(Wide(), **options), torch.randn(512, 64)
        for _ in range(2):
            module.zero_grad()
            out = module(x)["out"]
            out.sum().backward()
        return module.memory_report()["planned_peak_bytes"], [out, *(p.grad for p in module.parameters())]

    without, results = step()
    budget = int(0.85 * without)
    peak, under = step(memory_budget=budget)
    assert 0.5 * budget < peak <= budget
    assert all(map(torch.equal, results, under)), "a plan changes no bit"
    monkeypatch.setenv("ORTMODULE_MEMORY_OPT_LEVEL", "1")
    recomputed, under = step()
    assert recomputed < 0.9 * without and all(map(torch.equal, results, under)), "levels hold for pieces"
    monkeypatch.delenv("ORTMODULE_MEMORY_OPT_LEVEL")
    assert step(memory_budget="85%")[0] <= 0.85 * without
    assert step(memory_budget=without)[0] == without, "what is enough changes no plan from the second call on"
    with pytest.raises(OutOfMemory, match=r"the least that \d pieces of this step need together is [\d.]+ [KM]iB"):
        step(memory_budget=int(0.3 * without))
    with pytest.raises(OutOfMemory, match=r"memory_budget_total is .* that are there before a step"):
        step(memory_budget_total=1000)


@pytest.mark.filterwarnings("ignore::lowtide.errors.FallbackWarning")
def test_one_peak_of_all_pieces():
    ours = ORTModule(Wide())
    ours(torch.randn(512, 64))["out"].sum().backward()
    step = ours._training_manager.last_step
    each = [one.memory() for one in step.ran]
    whole = ours.memory_report()
    assert len(each) == 2
    assert whole["planned_peak_bytes"] == sum(one["planned_peak_bytes"] for one in each)
    rows = ours.memory_opportunities()
    assert {row["piece"] for row in rows} == {1, 2}
    assert all(row["peak_after"] <= whole["planned_peak_bytes"] for row in rows)
    assert "piece 2 of 2:" in ours.memory_summary() and "piece 2 of 2:" in ours.text() + ours.explain()
    with torch.no_grad():
        ours(torch.randn(512, 64))
    assert ours.memory_report()["planned_peak_bytes"] < whole["planned_peak_bytes"]


@pytest.mark.filterwarnings("ignore::lowtide.errors.FallbackWarning")
def test_pieces_keep_what_their_backward_needs_and_no_more():
    torch.compiler.reset()
    ours = ORTModule(Wide())
    peaks = []
    for _ in range(3):
        ours(torch.randn(512, 64))["out"].backward(torch.ones(512, 64))
        peaks.append(ours.memory_report()["planned_peak_bytes"])
        ours.zero_grad()
    assert peaks[2] == peaks[1] < 0.95 * peaks[0], "from the second call on the pieces are known"
    each = [one.memory() for one in ours._training_manager.last_step.ran]
    assert max(one["passing_bytes"] for one in each) > 0
    gc.collect()
    lowtide.release_memory()
    before = sum(lowtide.pool_bytes().values())
    for _ in range(3):
        out = ours(torch.randn(512, 64))["out"]
        out.backward(torch.ones(512, 64))
        del out
        ours.zero_grad()
        taken = sum(lowtide.pool_bytes().values()) - before
        assert 0 <= taken - ours.memory_report()["planned_peak_bytes"] <= 8 * 4096, "pages of the blocks"


@pytest.mark.filterwarnings("ignore::lowtide.errors.FallbackWarning")
def test_gradients_that_are_kept_leave_the_arena_of_the_pieces():
    torch.compiler.reset()
    ours, theirs = pair(Wide)
    inputs = [torch.randn(512, 64, dtype=torch.float64) for _ in range(5)]
    for x in inputs:  # onto those that are there
        for module in (ours, theirs):
            module(x)["out"].square().mean().backward()
    for (name, a), b in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, msg=name)
    peak = ours.memory_report()["planned_peak_bytes"]
    gc.collect()
    lowtide.release_memory()
    before = lowtide.pool_bytes()["live_bytes"]
    for _ in range(2):
        ours(inputs[0])["out"].square().mean().backward()
        assert sum(lowtide.pool_bytes().values()) - before <= peak + 8 * 4096


class Drawing(torch.autograd.Function):
    """Multiplied by the same noise in forward and backward."""

    @staticmethod
    def forward(ctx, h, layer):
        ctx.seed = int(torch.initial_seed() % 1000)
        torch.manual_seed(ctx.seed)
        return h * torch.rand(h.shape, dtype=h.dtype)

    @staticmethod
    def backward(ctx, gradient):
        torch.manual_seed(ctx.seed)
        return gradient * torch.rand(gradient.shape, dtype=gradient.dtype), None


class Beside(Wide):
    """Of its pieces PyTorch runs one, of whose function it alone knows what its backward does."""

    in_pytorch = True

    def forward(self, x):
        h = self.first(x)
        if h.mean() > 100:
            h = h * 2
        if self.in_pytorch:
            h = Drawing.apply(h, self.first)
        return {"out": self.second(h)}


@pytest.mark.filterwarnings("ignore::lowtide.errors.FallbackWarning")
def test_where_pytorch_runs_a_piece_it_has_all_that_the_engine_does_not_use():
    torch.compiler.reset()
    ours, theirs = pair(Beside)
    x = torch.randn(512, 64, dtype=torch.float64)
    for in_pytorch in (True, True, False, False):
        ours.in_pytorch = theirs.in_pytorch = in_pytorch
        for module in (ours, theirs):
            module.zero_grad()
            module(x)["out"].square().mean().backward()
        assert ("; in PyTorch: " in ours.fallback_reason) == in_pytorch, ours.fallback_reason
        for (name, one), other in zip(ours.named_parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(one.grad, other.grad, msg=name)
        assert (lowtide.pool_bytes()["free_bytes"] == 0) == in_pytorch
    ours.in_pytorch = True
    ours(x)
    del ours
    gc.collect()
    torch.compiler.reset()
    kept, theirs = pair(Wide)
    for _ in range(2):
        kept(x)["out"].mean().backward()
    assert lowtide.pool_bytes()["free_bytes"] > 0, "it has gone with the module"


class Raising(Wide):
    fails = False

    def forward(self, x):
        h = self.first(x)
        if h.mean() > 100:
            h = h * 2
        if self.fails:
            raise ValueError("between the pieces")
        return {"out": self.second(h)}


@pytest.mark.filterwarnings("ignore::lowtide.errors.FallbackWarning")
def test_a_call_that_fails_between_pieces_leaves_no_arena_behind():
    torch.compiler.reset()
    ours, theirs = pair(Raising)
    for fails in (False, False, False, True, False, False):
        ours.fails = theirs.fails = fails
        x = torch.randn(512, 64, dtype=torch.float64)
        for module in (ours, theirs):
            module.zero_grad()
            if fails:
                with pytest.raises(ValueError, match="between the pieces"):
                    module(x)
            else:
                module(x)["out"].square().mean().backward()
        for (name, one), other in zip(ours.named_parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(one.grad, other.grad, msg=name)
    ours.zero_grad()
    gc.collect()
    peak, pool = ours.memory_report()["planned_peak_bytes"], lowtide.pool_bytes()
    lowtide.release_memory()
    before = lowtide.pool_bytes()["live_bytes"]
    ours(x)["out"].square().mean().backward()
    assert sum(lowtide.pool_bytes().values()) - before <= peak + 8 * 4096, pool


class Halves(Wide):
    """The second need not wait for the first, neither forward nor backward."""

    def forward(self, x):
        a = self.first(x)
        if a.mean() > 100:
            a = a * 2
        return a, self.second(x)


@pytest.mark.filterwarnings("ignore::lowtide.errors.FallbackWarning")
def test_backward_may_come_in_any_order():
    torch.compiler.reset()
    ours, theirs = pair(Halves)
    for step in range(4):
        x = torch.randn(512, 64, dtype=torch.float64)
        for module in (ours, theirs):
            module.zero_grad()
            a, b = module(x)
            for result in (a, b) if step % 2 else (b, a):
                result.square().mean().backward()
        for (name, one), other in zip(ours.named_parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(one.grad, other.grad, msg=name)
