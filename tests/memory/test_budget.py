"""A budget in bytes: kept exactly, monotone, and no bit of the results changes, dropout on."""

import json

import pytest
import torch
from torch import nn

from lowtide import _lowtide, pool_bytes, release_memory
from lowtide.capture import capture
from lowtide.errors import OutOfMemory

BUDGETS = 40


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x):
        return x + self.dropout(self.down(nn.functional.gelu(self.up(self.norm(x)))))


class Model(nn.Module):
    def __init__(self, width=32, layers=6):
        super().__init__()
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))
        self.head = nn.Linear(width, 3)

    def forward(self, x, y):
        for block in self.blocks:
            x = block(x)
        return nn.functional.cross_entropy(self.head(x).flatten(0, 1), y.flatten())


@pytest.fixture(scope="module")
def step():
    _lowtide.install_torch(torch.get_num_threads())
    torch.manual_seed(0)
    model, batch = Model(), make_batch(4, 48)
    return capture(model, batch, {}), model


def make_batch(size, length):
    return torch.randn(size, length, 32), torch.randint(0, 3, (size, length))


def sizes_of(session, captured, batch):
    places = [captured.imported.sizes.dims[name] for name in session.symbols]
    return [batch[index].shape[position] for index, position in places]


def run(session, captured, model, batch):
    """(loss and gradients, the plan that served)"""
    named = dict(model.named_parameters())
    named |= {name: buffer.clone() for name, buffer in model.named_buffers()}  # forward may write over them
    tensors = [
        batch[source.index] if source.kind == "input" else named[source.paths[0]].detach()
        for source in captured.sources
    ]
    (loss,), pending = session.forward(tensors, 12345, True)
    plan = pending.plan
    saved = [tensors[index] for index in session.saved_by(plan)[0]]
    gradients = session.backward(pending, [torch.ones_like(loss)], saved)
    return [loss.clone(), *(gradient.clone() for gradient in gradients)], plan


def frontier_of(captured, batch):
    session = _lowtide.Session(captured.graph)
    values = sizes_of(session, captured, batch)
    return session, values, json.loads(session.frontier(values))


def test_every_budget_is_kept_and_changes_no_bit(step):
    captured, model = step
    batch = make_batch(4, 48)
    session, values, frontier = frontier_of(captured, batch)
    expected, _ = run(session, captured, model, batch)
    high, low = frontier["default_peak_bytes"], frontier["floor_bytes"]
    assert low < 0.7 * high
    needed, plans = [], set()
    for index in range(BUDGETS):
        budget = high - (high - low) * index // (BUDGETS - 1)
        limited = _lowtide.Session(captured.graph, memory_budget=budget)
        found, plan = run(limited, captured, model, batch)
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
        needed.append(limited.memory(values)["planned_peak_bytes"])
        assert needed[-1] <= budget
        plans.add(plan)
    assert needed == sorted(needed, reverse=True)
    assert needed[0] == high and needed[-1] == low
    assert len(plans) > 5


def test_rungs_need_less_and_cost_more_and_stay_above_their_bound(step):
    _, _, frontier = frontier_of(step[0], make_batch(4, 48))
    rungs = frontier["rungs"]
    assert (
        frontier["floor_bytes"] == rungs[-1]["peak_bytes"] and frontier["default_peak_bytes"] == rungs[0]["peak_bytes"]
    )
    for before, after in zip(rungs, rungs[1:], strict=False):
        assert after["peak_bytes"] < before["peak_bytes"]
        assert after["predicted_ms"] >= before["predicted_ms"] or before is rungs[0]  # which rebuilds what is cheap
        assert after["bound_extra_ms"] >= before["bound_extra_ms"]
    assert all(rung["bound_extra_ms"] <= rung["extra_ms"] + 1e-6 for rung in rungs[1:])


def test_a_smaller_budget_is_never_predicted_faster(step):
    captured, model = step
    batch = make_batch(4, 48)
    limited, values, frontier = frontier_of(captured, batch)
    rungs, times = frontier["rungs"], []
    for rung in rungs:
        limited.set_memory_budget(rung["peak_bytes"])
        times.append(rungs[run(limited, captured, model, batch)[1]]["predicted_ms"])
    assert times == sorted(times)
    assert min(rung["predicted_ms"] for rung in rungs) < rungs[0]["predicted_ms"]  # or this shows nothing


def test_other_sizes_keep_the_budget_without_another_capture(step):
    captured, model = step
    session, values, frontier = frontier_of(captured, make_batch(4, 48))
    budget = frontier["default_peak_bytes"]
    limited = _lowtide.Session(captured.graph, memory_budget=budget)
    plans = set()
    for size, length in ((1, 8), (4, 48), (4, 56), (5, 48), (2, 96), (4, 60)):
        batch = make_batch(size, length)
        found, plan = run(limited, captured, model, batch)
        expected, _ = run(session, captured, model, batch)
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
        sizes = sizes_of(session, captured, batch)
        assert limited.memory(sizes)["planned_peak_bytes"] <= budget
        if session.memory(sizes)["planned_peak_bytes"] <= budget:  # short batches pay nothing
            assert frontier["rungs"][plan]["predicted_ms"] <= frontier["rungs"][0]["predicted_ms"]
        else:
            assert plan != 0
        plans.add(plan)
    assert len(plans) > 1


def test_what_other_sizes_have_left_counts(step):
    captured, model = step
    _, values, frontier = frontier_of(captured, make_batch(4, 96))
    budget = frontier["floor_bytes"] + 1000
    limited = _lowtide.Session(captured.graph, memory_budget=budget)
    release_memory()
    held_before = pool_bytes()["live_bytes"]
    for length in (96, 8, 72, 40, 96, 24, 56, 90, 64, 48, 96):
        run(limited, captured, model, make_batch(4, length))
        held = pool_bytes()
        assert held["live_bytes"] == held_before
        assert held["free_bytes"] <= budget + 2 * 4096  # whole pages, arena and output


def test_a_smaller_budget_takes_no_block_of_a_larger_one(step):
    captured, model = step
    batch = make_batch(4, 96)
    session, values, frontier = frontier_of(captured, batch)
    release_memory()
    for rung in frontier["rungs"]:
        session.set_memory_budget(rung["peak_bytes"])
        run(session, captured, model, batch)
        assert pool_bytes()["free_bytes"] <= rung["peak_bytes"] + 2 * 4096


def test_a_share_is_of_the_plan_without_budget_at_each_size(step):
    captured, model = step
    session, values, _ = frontier_of(captured, make_batch(4, 48))
    limited = _lowtide.Session(captured.graph, memory_budget_fraction=0.75)
    for size, length in ((4, 48), (2, 24), (8, 96)):
        sizes = sizes_of(session, captured, make_batch(size, length))
        whole = session.memory(sizes)["planned_peak_bytes"]
        assert limited.memory(sizes)["planned_peak_bytes"] <= 0.75 * whole


def test_a_budget_below_the_floor_names_the_least_and_what_makes_it(step):
    captured, model = step
    batch = make_batch(4, 48)
    _, _, frontier = frontier_of(captured, batch)
    limited = _lowtide.Session(captured.graph, memory_budget=frontier["floor_bytes"] - 1)
    with pytest.raises(OutOfMemory) as error:
        run(limited, captured, model, batch)
    text = str(error.value)
    assert f"the least that one needs at these sizes is {frontier['floor_bytes']:,}" in text
    assert f"memory budget of {frontier['floor_bytes'] - 1:,} bytes" in text
    assert text.count("\n  %") >= 5


def test_the_same_graph_gives_the_same_plans(step):
    first, second = (frontier_of(step[0], make_batch(4, 48))[2] for _ in range(2))
    assert first == second


def test_what_was_sought_is_stored(step):
    captured, model = step
    batch = make_batch(4, 48)
    session, values, frontier = frontier_of(captured, batch)
    budget = frontier["rungs"][len(frontier["rungs"]) // 2]["peak_bytes"]
    limited = _lowtide.Session(captured.graph, memory_budget=budget)
    needed = limited.memory(values)["planned_peak_bytes"]
    text = limited.stored_plan(values)
    again = _lowtide.Session(captured.graph, memory_budget=budget, stored_plan=text)
    assert again.stored_plan(values) == text
    assert again.memory(values)["planned_peak_bytes"] == needed
    assert again.stored_plan(values) == text  # read, not sought
    assert json.loads(again.frontier(values)) == json.loads(limited.frontier(values))
    expected, plan = run(limited, captured, model, batch)
    found, same_plan = run(again, captured, model, batch)
    assert plan == same_plan > 0
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    # Another budget has the same archive.
    smaller = _lowtide.Session(captured.graph, memory_budget=frontier["floor_bytes"], stored_plan=text)
    assert smaller.memory(values)["planned_peak_bytes"] == frontier["floor_bytes"]


class Masked(nn.Module):
    """Indices of a max pool and masks wait for backward, of values that cost much to make again."""

    def __init__(self, width=16, layers=3):
        super().__init__()
        self.first = nn.Conv2d(3, width, 3, padding=1)
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(layers))
        self.head = nn.Linear(width, 3)

    def forward(self, x, y):
        x = nn.functional.max_pool2d(torch.tanh(self.first(x)), 2)
        for layer in self.layers:
            wide = layer(x.flatten(2)).unflatten(2, (8, 8))
            x = torch.where(wide > x, torch.sin(wide), x)
        x = nn.functional.dropout(x, 0.1)
        return nn.functional.cross_entropy(self.head(x.mean((2, 3))), y)


@pytest.fixture(scope="module")
def masked_step():
    _lowtide.install_torch(torch.get_num_threads())
    torch.manual_seed(0)
    model, batch = Masked(), (torch.randn(32, 3, 16, 16), torch.randint(0, 3, (32,)))
    return capture(model, batch, {}), model, batch


def compressed(rung):
    return [value["value"] for value in rung["values"] if value["what"] == "compressed"]


def test_masks_and_indices_wait_in_fewer_bits_and_change_no_bit(masked_step):
    captured, model, batch = masked_step
    session, values, frontier = frontier_of(captured, batch)
    expected, _ = run(session, captured, model, batch)
    rungs = [rung for rung in frontier["rungs"] if compressed(rung)]
    assert rungs
    for rung in rungs:
        limited = _lowtide.Session(captured.graph, memory_budget=rung["peak_bytes"])
        found, plan = run(limited, captured, model, batch)
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
        assert limited.memory(values)["planned_peak_bytes"] == rung["peak_bytes"]
        assert frontier["rungs"][plan] == rung


def test_what_is_packed_is_stored(masked_step):
    captured, model, batch = masked_step
    session, values, frontier = frontier_of(captured, batch)
    rung = next(rung for rung in reversed(frontier["rungs"]) if compressed(rung))
    limited = _lowtide.Session(captured.graph, memory_budget=rung["peak_bytes"])
    limited.memory(values)
    text = limited.stored_plan(values)
    again = _lowtide.Session(captured.graph, memory_budget=rung["peak_bytes"], stored_plan=text)
    found, plan = run(again, captured, model, batch)
    assert frontier["rungs"][plan] == rung
    assert again.stored_plan(values) == text  # read, not sought
    assert json.loads(again.frontier(values)) == frontier
    expected, _ = run(session, captured, model, batch)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


class Decaying(nn.Module):
    """Layers scaled by a buffer that each forward writes over after it was read."""

    def __init__(self, width=32, layers=4):
        super().__init__()
        self.ups = nn.ModuleList(nn.Linear(width, 4 * width) for _ in range(layers))
        self.downs = nn.ModuleList(nn.Linear(4 * width, width) for _ in range(layers))
        self.register_buffer("scale", torch.full((4 * width,), 1.5))

    def forward(self, x, y):
        for up, down in zip(self.ups, self.downs, strict=True):
            x = x + down(torch.tanh(up(x) * self.scale))
        self.scale.mul_(0.5)
        return nn.functional.cross_entropy(x.flatten(0, 1), y.flatten())


def test_what_reads_a_buffer_that_forward_writes_does_not_run_again():
    torch.manual_seed(0)
    model, batch = Decaying(), make_batch(4, 48)
    captured = capture(model, batch, {})
    session, values, frontier = frontier_of(captured, batch)
    step = json.loads(session.step_model(values))
    readers = [node for node in step["nodes"][: step["yield"]] if node["node"].startswith("Mul") and node["reads"]]
    scaled = [step["values"][value] for node in readers for value in node["makes"]]
    assert len(scaled) >= 4 and not any(value["may_run_again"] for value in scaled)
    assert any(value["may_run_again"] for value in step["values"])
    # Their products are kept, so the floor's gradients are those of the buffer as forward read it.
    expected, _ = run(session, captured, model, batch)
    limited = _lowtide.Session(captured.graph, memory_budget=frontier["floor_bytes"])
    found, plan = run(limited, captured, model, batch)
    assert plan > 0 and all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
