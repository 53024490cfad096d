"""What a budget leaves to the graphs that a step runs, one after another: several where a module runs in pieces.

A step's pieces are known once it has run. From then on they have those plans that take least time for what they save
(shared_room.py: without a budget). In a call whose pieces are not known yet (the first one, other sizes, another
branch) each takes what needs least, since nobody can say what is to come.
"""

import collections

from lowtide._lowtide import StepFrontier, StepNeed, step_peak
from lowtide.errors import OutOfMemory

from .allowance import Allowance
from .budget import format_bytes

_MOST_CALLS = 256  # whose pieces are remembered
_MOST_OTHERS = 3  # times that a call went on otherwise than the one before


class TotalBudget(Allowance):
    """Of a module that is one graph: what is left of memory_budget_total. What is there beside a step changes: an
    optimizer has stepped, gradients are kept or not."""

    def __init__(self, budget, resident):
        """`budget`: of bytes; `resident`: what counts before a step, where the budget is a total, else None."""
        self._budget, self._resident = budget, resident

    def bytes(self):
        total = self._budget.bytes
        there = self._resident.bytes() if self._resident is not None else 0
        if there >= total:
            raise OutOfMemory(
                f"memory_budget_total is {format_bytes(total)}, expected more than the {format_bytes(there)} that are "
                "there before a step: parameters, buffers, gradients that are kept, optimizer state"
            )
        return total - there

    def apply(self, agent):
        """To the agent's next forward."""
        agent.session.set_memory_budget(self.bytes())


class _Calls:
    """Which pieces come after the first one of a call, as calls before tell."""

    def __init__(self):
        self._known = {}  # the first piece of a call → all of them
        self.ran, self.expected = [], None

    def begins(self):
        self.ran, self.expected = [], None

    def next(self, key):
        """The place of this piece in its call. Then `expected` are all of them, or None."""
        place = len(self.ran)
        self.ran.append(key)
        if place == 0:
            self.expected = self._known.get(key)
        elif self.expected is not None and self.expected[place : place + 1] != [key]:
            self.expected = None
        return place

    def ended(self):
        """Whether it was another call than the ones before."""
        if not self.ran:
            return False
        before = self._known.pop(self.ran[0], None)
        self._known[self.ran[0]] = self.ran
        if len(self._known) > _MOST_CALLS:
            del self._known[next(iter(self._known))]
        return before != self.ran


class StepBudget(Allowance):
    """Of a module in pieces; `call_begins` comes before each call."""

    def __init__(self, total):
        """`total`: TotalBudget."""
        self._total = total
        self._keys = {}  # (number, sizes) → number of its own
        self._options = {}  # by that, [StepOption], without a budget first: whole, in two
        self._frontiers = {}  # all pieces of a call → StepFrontier
        self._calls = _Calls()
        self._taken = []  # StepNeeds of what ran in this call
        self._planned = self._arena = None  # StepOption of each piece of this call, StepArena
        self._others = collections.Counter()  # by first piece, calls that were others than the one before
        self._bytes = 0

    @property
    def arena_bytes(self):
        """Of the last call's arena, or None."""
        return self._arena and self._arena.size_bytes

    def call_begins(self):
        if self._arena is not None:
            self._arena.forwards_end()  # of a call with an error
        self._bytes = self._total.bytes()
        self._calls.begins()
        self._taken, self._planned, self._arena = [], None, None

    def call_ended(self, _):
        first = self._calls.ran[:1]
        if self._calls.ended() and self._planned is not None:
            self._others.update(first)
        if self._arena is not None:
            self._arena.forwards_end()

    def apply(self, agent):
        """To the agent's next forward, which is the call's next piece."""
        number, values = agent.number, agent.symbol_values(agent.last_sizes)
        key = self._keys.setdefault((number, *values), len(self._keys))
        place, expected = self._calls.next(key), self._calls.expected
        if key not in self._options:
            if agent.training and len(agent.session.plan_peaks(values)) == 1:
                agent.session.frontier(values)  # seeks other plans
            self._options[key] = agent.session.step_options(values, agent.is_pending, number)
        if place == 0 and expected is not None:
            self._plan(tuple(expected))
        if expected is None:
            option = self._smallest(key)
        else:
            option = self._planned[place]
        rest = self._bytes - sum(need.kept_bytes + need.output_bytes for need in self._taken)
        has_place = expected is not None and self._arena is not None
        self._taken.append(StepNeed(0, option.need.output_bytes) if has_place else option.need)
        agent.session.set_plan(option.plan)
        agent.session.set_in_two(option.in_two)
        agent.session.set_step_arena(self._arena if has_place else None, place)
        agent.session.set_memory_budget(0, max(rest, 1))

    def _plan(self, pieces):
        frontier = self._frontiers.get(pieces)
        if frontier is None:
            if len(self._frontiers) >= _MOST_CALLS:
                self._frontiers.clear()
            frontier = self._frontiers[pieces] = StepFrontier(pieces, {key: self._options[key] for key in pieces})
        found = frontier.within(self._bytes)
        if found is None:
            self._refuse(len(pieces), frontier.floor_bytes, "")
        self._planned, arena = found
        external = max(option.need.external_bytes for option in self._planned)
        # Free blocks serve the outputs.
        if self._others[pieces[0]] < _MOST_OTHERS and arena.begin(self._bytes - external):
            self._arena = arena
            self._taken = [StepNeed(arena.size_bytes)]

    def _smallest(self, key):
        """Of a piece of which nobody knows what comes behind it."""
        options = sorted(self._options[key], key=lambda option: option.need.standing_bytes)
        peaks = [step_peak([*self._taken, option.need]) for option in options]
        fitting = next((option for option, peak in zip(options, peaks, strict=True) if peak <= self._bytes), None)
        if fitting is None:
            self._refuse(len(self._calls.ran), min(peaks), ", and more may follow")
        return fitting

    def _refuse(self, count, least, more):
        raise OutOfMemory(
            f"memory_budget is {format_bytes(self._bytes)}, the least that {count} pieces of this step need together "
            f"is {format_bytes(least)}{more}: plain Python between graphs ends a plan, and each keeps its activations "
            "until its backward"
        )
