"""The largest size whose plan fits: against trying them all, and what is no answer is an error."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowtide.errors import InvalidArgument, OutOfMemory
from lowtide.ortmodule import DebugOptions, LogLevel, ORTModule
from lowtide.ortmodule.longest import Range, bounds_of, largest_within, longest, symbols_of


@given(st.lists(st.integers(0, 50), min_size=2, max_size=60), st.integers(0, 1500))
def test_the_search_finds_what_trying_finds(steps, budget):
    peaks = [sum(steps[: i + 1]) for i in range(len(steps))]
    fitting = [size for size, peak in enumerate(peaks, 1) if peak <= budget]
    if not fitting:
        with pytest.raises(InvalidArgument, match="at 1, the smallest size"):
            largest_within(lambda size: peaks[size - 1], budget, Range(1, len(peaks)))
        return
    found = largest_within(lambda size: peaks[size - 1], budget, Range(1, len(peaks)))
    assert found.size == fitting[-1] and found.peak_bytes == peaks[found.size - 1]
    assert found.next_bytes == (None if found.size == len(peaks) else peaks[found.size])


def test_few_peaks_are_planned():
    asked = []
    assert largest_within(lambda size: asked.append(size) or size, 700_000, Range(1, 1 << 20)).size == 700_000
    assert len(asked) <= 22


def test_a_size_with_which_the_peak_falls_is_no_dim_to_grow():
    with pytest.raises(InvalidArgument, match="expected a size with which the peak grows"):
        largest_within(lambda size: 100 - size, 99, Range(1, 50))


class Plans:
    """Two plans of a step at sizes (batch, length); the second is found when plans are sought at a length of 40 or
    more."""

    def __init__(self):
        self.sought = []

    def plan_peaks(self, values):
        batch, length = values
        peaks = [batch * (10 * length + 100)]
        if any(length >= 40 for _, length in self.sought):
            peaks.append(batch * (8 * length + 120))
        return peaks

    def frontier(self, values):
        self.sought.append(tuple(values))
        batch, length = values
        peak = batch * (8 * length + 120) if self.finds_second(length) else batch * (10 * length + 100)
        return json.dumps({"rungs": [{"peak_bytes": peak}]})

    def finds_second(self, length):
        return length >= 40


def test_plans_are_sought_again_at_larger_sizes():
    session = Plans()
    found = longest(session, 1000, [1], [2, 5], Range(1, 1024))
    assert found.size == 47 and found.peak_bytes == 2 * (8 * 47 + 120) and found.next_bytes == 2 * (8 * 48 + 120)
    assert all(batch == 2 for batch, _ in session.sought)


class UnevenPlans(Plans):
    def finds_second(self, length):
        return 40 <= length <= 43


def test_a_module_that_begins_with_the_answer_finds_a_plan():
    found = longest(UnevenPlans(), 1000, [1], [2, 5], Range(1, 1024))
    assert found.size == 43 and found.peak_bytes == 2 * (8 * 43 + 120)


def test_an_end_that_fits_is_the_answer():
    found = longest(Plans(), 10**9, [1], [2, 5], Range(1, 512))
    assert (found.size, found.next_bytes) == (512, None)


def test_names_of_dims():
    symbols = ["ids_dim0", "ids_dim1", "mask_dim1", "batch"]
    assert symbols_of("seq", symbols) == ["ids_dim1", "mask_dim1"]
    assert symbols_of("batch", symbols) == ["batch"] and symbols_of("mask_dim1", symbols) == ["mask_dim1"]
    with pytest.raises(InvalidArgument, match="no size of the model is called 'length'; sizes: ids_dim0, ids_dim1"):
        symbols_of("length", symbols)
    with pytest.raises(InvalidArgument, match="every size is a constant"):
        symbols_of("seq", [])
    assert bounds_of(["a", "b"], {"a": (2, None), "b": (1, 77)}) == (2, 77)


def test_a_wrapper_knows_its_longest_batch_before_the_first_step(blocks):
    model, x = blocks
    wrapped = ORTModule(model, DebugOptions(LogLevel.ERROR))
    with pytest.raises(InvalidArgument, match="no call has run in the engine"):
        wrapped.longest("1MiB", dim="batch")
    with pytest.raises(InvalidArgument, match="no size of the model is called 'seq'; sizes: x_dim0"):
        wrapped.longest("1MiB", example=(x,))
    with pytest.raises(InvalidArgument, match="budget is '50%', expected bytes"):
        wrapped.longest("50%", dim="batch", example=(x,))
    most = wrapped.longest("1MiB", dim="batch", example=(x,))
    assert all(parameter.grad is None for parameter in model.parameters()), "no step has run"
    budget = ORTModule(model, DebugOptions(LogLevel.ERROR), memory_budget="1MiB")
    budget(x.new_ones(most, x.shape[1])).backward()
    assert budget.memory_report()["planned_peak_bytes"] <= 1 << 20
    with pytest.raises(OutOfMemory, match="no plan of this step keeps within the memory budget of 1,048,576 bytes"):
        budget(x.new_ones(most + 16, x.shape[1]))
    assert most > 300
