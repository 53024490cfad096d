"""What torch.compile's graphs of one step need: one arena, whatever the order in which they come."""

import copy
import gc
import threading

import pytest
import torch
from modules import Wide

import lowtide
from lowtide import compile_backend

PAGES = 8 * 4096  # of the blocks


@pytest.fixture(autouse=True)
def fresh():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = torch.nn.Linear(64, 256), torch.nn.Linear(256, 64)

    def forward(self, x):
        return x + self.down(torch.nn.functional.gelu(self.up(x)))


class Blocks(torch.nn.Sequential):
    """Each compiled by itself, as blocks of a transformer are."""

    def __init__(self, count=6):
        super().__init__(*(Block() for _ in range(count)))


def compile_blocks(module):
    for block in module:
        block.compile(backend=compile_backend.lowtide)
    return module


def compiled(module):
    return torch.compile(module, backend=compile_backend.lowtide)


def grown(step):
    """Bytes of the pool that a step takes when such steps have run before."""
    for _ in range(3):
        step()
    gc.collect()
    lowtide.release_memory()
    before = sum(lowtide.pool_bytes().values())
    step()
    step()
    taken = sum(lowtide.pool_bytes().values()) - before
    gc.collect()
    lowtide.release_memory()
    assert sum(lowtide.pool_bytes().values()) - before <= PAGES, "nothing is held between steps"
    return taken


def trained(module, run, *inputs):
    def step():
        run(*inputs).square().mean().backward()
        module.zero_grad()

    return step


def test_pieces_of_a_module_share_what_they_work_in():
    torch.manual_seed(0)
    module, x = Wide(), torch.randn(512, 64)
    call = compiled(module)
    together = grown(trained(module, lambda x: call(x)["out"], x))
    halves = [compiled(half) for half in (module.first, module.second)]
    alone = [grown(trained(half, run, x)) for half, run in zip((module.first, module.second), halves, strict=True)]
    assert 0 < together < 0.95 * sum(alone)


def test_compiled_blocks_share_what_they_work_in():
    def need(count):
        torch.compiler.reset()
        torch.manual_seed(0)
        module = compile_blocks(Blocks(count))
        return grown(trained(module, module, torch.randn(128, 64)))

    two, six = need(2), need(6)
    gradients = 2 * 64 * 256 * 4  # of a block, there when a step ends
    kept = (128 * 256 + 128 * 64) * 4  # GELU's input, the block's result
    assert six - two <= 4 * 1.02 * (gradients + kept)


def gradients(module):
    return {name: parameter.grad for name, parameter in module.named_parameters()}


def assert_as_eager(module, steps, compiling):
    """`steps(module, call)` leave the same gradients in the engine and in eager."""
    theirs = copy.deepcopy(module)
    for number, step in enumerate(steps(module, compiling(module))):
        for _ in steps(theirs, theirs, only=number):
            pass
        for (name, ours), other in zip(gradients(module).items(), gradients(theirs).values(), strict=True):
            if other is None:
                assert ours is None, f"{step}: {name}"
            else:
                torch.testing.assert_close(ours, other, msg=lambda text, name=name, step=step: f"{step} {name}: {text}")


def inputs(count):
    return [torch.randn(32, 64, dtype=torch.float64, generator=torch.Generator().manual_seed(i)) for i in range(count)]


def various(module, call, only=None):
    """Steps of all kinds, one after another: each begins as the others do."""

    def run(x):
        out = call(x)
        return out["out"] if isinstance(out, dict) else out

    def plain():
        run(inputs(1)[0]).square().mean().backward()

    def two_calls():
        a, b = (run(x) for x in inputs(2))
        (a * b).mean().backward()

    def dropped():
        run(inputs(1)[0])
        plain()

    def without_gradients():
        with torch.no_grad():
            run(inputs(1)[0])
        plain()

    def other_order():
        a, b = (run(x) for x in inputs(2))
        a.square().mean().backward()
        b.square().mean().backward()

    kinds = [plain, plain, plain, two_calls, two_calls, dropped, plain, without_gradients, other_order, other_order]
    for number, kind in enumerate([*kinds, plain, plain]):
        if only in (None, number):
            if number % 4 < 2:  # in the others they are added onto those that are there
                module.zero_grad()
            kind()
            yield f"step {number}: {kind.__name__}"


@pytest.mark.parametrize("cls, compiling", [(Wide, compiled), (Blocks, compile_blocks)])
def test_steps_of_all_kinds(cls, compiling):
    torch.manual_seed(0)
    assert_as_eager(cls().double(), various, compiling)


class Raises(Wide):
    fails = False

    def forward(self, x):
        h = self.first(x)
        torch._dynamo.graph_break()
        if self.fails:
            raise ValueError("between the graphs")
        return {"out": self.second(h)}


def test_a_step_that_fails_between_graphs_leaves_nothing_behind():
    module, x = Raises(), torch.randn(512, 64)
    call = compiled(module)

    def step():
        call(x)["out"].square().mean().backward()
        module.zero_grad()

    before = grown(step)
    module.fails = True
    with pytest.raises(ValueError, match="between the graphs"):
        call(x)
    module.fails = False
    assert grown(step) <= before + PAGES


def test_threads_have_a_room_each():
    torch.manual_seed(0)
    module = Blocks().double()
    theirs = copy.deepcopy(module)
    compile_blocks(module)
    results = {}

    def train(number):
        x = inputs(number + 1)[-1]
        for _ in range(4):
            gradient = torch.autograd.grad(module(x).square().mean(), list(module.parameters()))
        results[number] = gradient

    for x in (inputs(1)[0], *(inputs(number + 1)[-1] for number in range(3))):
        module(x)  # Dynamo compiles in one thread, and the engine captures: docs/torch-compile.md
    threads = [threading.Thread(target=train, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, ours in results.items():
        expected = torch.autograd.grad(theirs(inputs(number + 1)[-1]).square().mean(), list(theirs.parameters()))
        for a, b in zip(ours, expected, strict=True):
            torch.testing.assert_close(a, b)
    assert len(results) == 3
