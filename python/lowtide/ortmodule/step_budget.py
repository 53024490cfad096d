"""What a step leaves to the graphs that it runs, one after another: several where a module runs in pieces.

A step's pieces are known once it has run. From then on those of them keep nothing but what their backward needs for
which that is less. Under a budget for which that is too much they have other plans, those that take least time for what
they save. In a call whose pieces are not known yet (the first one, other sizes, another branch) each takes what needs
least, since nobody can say what is to come.
"""

import collections
import itertools
import weakref

from lowtide._lowtide import StepFrontier, StepNeed, kept_in_two, step_arena, step_peak
from lowtide.errors import OutOfMemory

from .budget import format_bytes

_MOST_CALLS = 256  # whose pieces are remembered
_MOST_OTHERS = 3  # times that a call went on otherwise than the one before
_NO_LIMIT = 2**63 - 1


class TotalBudget:
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


class SharedRoom:
    """Of a module in pieces without a budget; `call_begins` comes before each call, `call_ended` behind those that had
    no error. Where PyTorch runs some, or another call begins with the same piece, an arena for all would be there while
    PyTorch needs most, or while others have theirs."""

    def __init__(self):
        self._numbers, self._next = weakref.WeakKeyDictionary(), itertools.count()  # TrainingAgent → number
        self._ran = []  # (TrainingAgent, its sizes, its number)
        # The first piece of a call and its sizes → (all of them, of each whether in two, StepArena or None).
        self._known = {}
        self._others = collections.Counter()  # by first piece, calls that were others than the one before
        self._in_use = self._arena = None
        self._beside = 0
        self._keeps_gradients = False  # a step's are still there when the next one begins

    @property
    def arena_bytes(self):
        """Of the last call's arena, and of the gradients that are not in it; None: it had none."""
        return self._arena and self._arena.size_bytes + self._beside

    def call_begins(self):
        if self._arena is not None:
            self._arena.forwards_end()  # of a call with an error
        self._ran, self._in_use, self._arena = [], None, None

    def call_ended(self, all_in_engine):
        if self._arena is not None:
            self._arena.forwards_end()
        if self._ran and (self._in_use is None or self._in_use[0] != [one[1:] for one in self._ran]):
            self._plan(all_in_engine)
        self._ran = []

    def _plan(self, all_in_engine):
        whole, in_two = (
            [agent.step_need(values, flag, number) for agent, values, number in self._ran] for flag in (False, True)
        )
        flags = kept_in_two(whole, in_two)
        needs = [pair[flag] for flag, *pair in zip(flags, whole, in_two, strict=True)]
        if self._keeps_gradients:
            flags, needs = [True] * len(in_two), [need.without_gradients() for need in in_two]
            self._beside = sum(need.standing_bytes for need in in_two) - sum(need.standing_bytes for need in needs)
        first = self._first()
        if self._known.pop(first, None) is not None:
            self._others[first] += 1
        arena = step_arena(needs) if all_in_engine and self._others[first] < _MOST_OTHERS else None
        self._known[first] = [one[1:] for one in self._ran], flags, arena
        if len(self._known) > _MOST_CALLS:
            del self._known[next(iter(self._known))]

    def _first(self):
        _, values, number = self._ran[0]
        return self._keeps_gradients, number, *values

    def apply(self, agent):
        """To the agent's next forward, which is the call's next piece."""
        number = self._numbers.setdefault(agent, next(self._next))
        place = len(self._ran)
        self._keeps_gradients = self._keeps_gradients or agent.session.separates_gradients
        self._ran.append((agent, agent.symbol_values(agent.last_sizes), number))
        if place == 0:
            self._in_use = self._known.get(self._first())
            self._begin()
        known = self._in_use is not None and self._in_use[0][place : place + 1] == [self._ran[-1][1:]]
        if not known:
            self._in_use = None
        agent.session.set_in_two(known and self._in_use[1][place])
        agent.session.set_step_arena(self._arena if known else None, place)

    def _begin(self):
        if self._in_use is None or (arena := self._in_use[2]) is None:
            return
        if arena.begin(_NO_LIMIT):
            self._arena = arena
        else:
            self._keeps_gradients, self._in_use = True, None


class StepBudget:
    """Of a module in pieces; `call_begins` comes before each call."""

    def __init__(self, total):
        """`total`: TotalBudget."""
        self._total = total
        self._numbers, self._next = weakref.WeakKeyDictionary(), itertools.count()  # TrainingAgent → number
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
        number, values = self._numbers.setdefault(agent, next(self._next)), agent.symbol_values(agent.last_sizes)
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
        rest = self._bytes - sum(need.kept_bytes for need in self._taken)
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
