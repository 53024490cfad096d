"""The largest size whose plan keeps within a budget, from the graph alone: peaks are planned, no step runs."""

import json
from dataclasses import dataclass
from typing import NamedTuple

from lowtide.errors import InvalidArgument

from .budget import format_bytes

_SHORT = {"batch": "_dim0", "seq": "_dim1"}
_MOST = 1 << 24  # where a size has no end of its own
_NEARBY = 0.02  # how near, where plans have to be sought for each size that is looked at
_LOOK_AHEAD = 1.25  # plans are sought again so far beyond the size that the plans known so far reach


class Range(NamedTuple):
    low: int
    high: int


@dataclass(frozen=True)
class Longest:
    """`size` of the dim, the planned peak there, `next_bytes`: what one more would need; None at the range's end."""

    size: int
    peak_bytes: int
    next_bytes: int | None


def symbols_of(name, symbols):
    """Those that a user means by "batch", "seq" (all first, all second dims), or a symbol's own name."""
    if name in symbols:
        return [name]
    found = [symbol for symbol in symbols if name in _SHORT and symbol.endswith(_SHORT[name])]
    if not found:
        known = ", ".join(symbols) or "none: every size is a constant"
        raise InvalidArgument(f"no size of the model is called '{name}'; sizes: {known}; short forms: batch, seq")
    return found


def largest_within(peak, budget_bytes, bounds):
    """The Longest of `bounds` whose `peak(size)` is at most the budget. More must not need less: what the ends and each
    size that is looked at tell against that is an InvalidArgument, as is a budget below the smallest size's peak."""
    low, high = bounds
    at_low, at_high = peak(low), peak(high)
    if at_low > budget_bytes:
        raise InvalidArgument(
            f"the budget is {format_bytes(budget_bytes)}, expected at least the {format_bytes(at_low)} that a step "
            f"needs at {low}, the smallest size"
        )
    if at_high < at_low:
        raise InvalidArgument(
            f"a step needs {format_bytes(at_low)} at {low} and {format_bytes(at_high)} at {high}: expected a size with "
            "which the peak grows"
        )
    if at_high <= budget_bytes:
        return Longest(high, at_high, None)
    return _between((low, at_low), (high, at_high), peak, budget_bytes)


def _between(fitting, larger, peak, budget_bytes, share=0):
    """The Longest between two (size, peak) of which the second does not fit, within a share of its size."""
    (low, at_low), (high, at_high) = fitting, larger
    while high - low > max(1, int(low * share)):
        middle = (low + high) // 2
        at_middle = peak(middle)
        if at_middle <= budget_bytes:
            low, at_low = middle, at_middle
        else:
            high, at_high = middle, at_middle
    return Longest(low, at_low, at_high)


def longest(session, budget_bytes, symbols, values, bounds):
    """The Longest for a session: `symbols`, places among its sizes `values`, are the dim that grows within `bounds`.
    Plans are those that the session finds on the way."""

    def sizes(size):
        return [size if place in symbols else value for place, value in enumerate(values)]

    def peak(size):
        return min(session.plan_peaks(sizes(size)))

    found = None
    while True:
        best = largest_within(peak, budget_bytes, _reachable(peak, budget_bytes, bounds))
        if found is not None and best.size <= found.size:
            break
        found = best
        if found.size >= bounds.high:
            break
        # At the larger size other plans may be worth more.
        session.frontier(sizes(min(bounds.high, max(found.size + 1, int(found.size * _LOOK_AHEAD)))))

    def floor(size):
        """Of the plans that a module finds whose first call has this size."""
        return json.loads(session.frontier(sizes(size)))["rungs"][-1]["peak_bytes"]

    return _confirmed(found, floor, budget_bytes, bounds.low)


def _confirmed(found, floor, budget_bytes, low):
    """The Longest if a module that begins with its size finds a plan there, else one nearby that does: plans that were
    sought for other sizes may be better ones."""
    at_found = floor(found.size)
    if at_found <= budget_bytes:
        return found
    return _between((low, floor(low)), (found.size, at_found), floor, budget_bytes, _NEARBY)


def _reachable(peak, budget_bytes, bounds):
    """A high end that is over the budget, where it is far away: sizes beyond it need more memory than there is."""
    size = bounds.low
    while size < bounds.high and peak(size) <= budget_bytes:
        size = min(bounds.high, 2 * size)
    return Range(bounds.low, size)


def bounds_of(symbols, ranges):
    """The sizes that all of these symbols may have; `ranges`: {symbol: (low, high or None)}."""
    found = [ranges.get(symbol, (1, None)) for symbol in symbols]
    return Range(
        max(1, *(low for low, _ in found)), min(_MOST if high is None else min(high, _MOST) for _, high in found)
    )
