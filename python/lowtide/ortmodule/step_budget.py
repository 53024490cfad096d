"""What a step leaves to the graphs that it runs, one after another: several where a module runs in pieces.

A step's pieces are known once it has run. From then on those of them keep nothing but what their backward needs for
which that is less. Under a budget for which that is too much, each has the part of it that its plan without one has of
the sum, at least what its smallest plan needs. In a call whose pieces are not known yet (the first one, other sizes,
another branch) each takes what needs least, since nobody can say what is to come.
"""

import itertools
import weakref

from lowtide.errors import OutOfMemory

from .budget import format_bytes
from .pieces_memory import Need, choose, peak_of

_MOST_CALLS = 256  # whose pieces are remembered


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


def _need(agent, values, in_two, of):
    return Need.told(agent.session.memory(values, in_two), of, agent.training and bool(agent.gradient_targets))


class SharedRoom:
    """Of a module in pieces without a budget; `call_begins` comes before each call."""

    def __init__(self):
        self._numbers, self._next = weakref.WeakKeyDictionary(), itertools.count()  # TrainingAgent → number
        self._calls, self._ran = _Calls(), []
        self._in_two = {}  # the first piece of a call → of each of its pieces, whether it is

    def call_begins(self):
        self._calls.begins()
        self._ran = []

    def call_ended(self):
        if not self._calls.ended():
            return
        whole, in_two = ([_need(agent, values, flag, agent) for agent, values in self._ran] for flag in (False, True))
        self._in_two[self._calls.ran[0]] = choose(whole, in_two)
        self._ran = []

    def apply(self, agent):
        """To the agent's next forward, which is the call's next piece."""
        place = self._calls.next(self._numbers.setdefault(agent, next(self._next)))
        self._ran.append((agent, agent.symbol_values(agent.last_sizes)))
        known = self._calls.expected is not None
        agent.session.set_in_two(known and self._in_two[self._calls.ran[0]][place])


class StepBudget:
    """Of a module in pieces; `call_begins` comes before each call."""

    def __init__(self, total):
        """`total`: TotalBudget."""
        self._total = total
        self._numbers, self._next = weakref.WeakKeyDictionary(), itertools.count()  # TrainingAgent → number
        self._needs = {}  # (number, sizes) → (bytes of the plan without budget, of the smallest)
        self._without = {}  # (number, sizes) → Needs of the plan without budget: whole, and in two
        self._in_two = {}  # all pieces of a call → of each, whether it is; bytes
        self._calls = _Calls()
        self._taken = []  # Need of each piece that ran in this call
        self._bytes = 0

    def call_begins(self):
        self._bytes = self._total.bytes()
        self._calls.begins()
        self._taken = []

    def call_ended(self):
        self._calls.ended()

    def apply(self, agent):
        """To the agent's next forward, which is the call's next piece."""
        key = self._numbers.setdefault(agent, next(self._next)), *agent.symbol_values(agent.last_sizes)
        place, expected = self._calls.next(key), self._calls.expected
        self._look(agent, key)
        if expected is None:
            self._take_smallest(agent, key)
            return
        flags, peak = self._plan_without_budget(expected)
        if peak <= self._bytes:
            self._take(agent, self._without[key][flags[place]], flags[place])
        else:
            self._take_part(agent, key, expected, place)

    def _look(self, agent, key):
        if key in self._needs:
            return
        values = list(key[1:])
        if agent.training and len(agent.session.plan_peaks(values)) == 1:
            agent.session.frontier(values)  # seeks other plans
        peaks = agent.session.plan_peaks(values)
        self._needs[key] = peaks[0], min(peaks)
        agent.session.set_memory_budget(0)
        self._without[key] = [_need(agent, values, flag, key[0]) for flag in (False, True)]

    def _plan_without_budget(self, pieces):
        """(of each, whether it keeps what its backward needs alone; bytes of all)."""
        pieces = tuple(pieces)
        if pieces not in self._in_two:
            if len(self._in_two) >= _MOST_CALLS:
                self._in_two.clear()
            flags = choose(*([self._without[key][flag] for key in pieces] for flag in (False, True)))
            needs = [self._without[key][flag] for key, flag in zip(pieces, flags, strict=True)]
            self._in_two[pieces] = flags, peak_of(needs)
        return self._in_two[pieces]

    def _take_smallest(self, agent, key):
        two, least = self._without[key][True], self._needs[key][1]
        peak = peak_of([*self._taken, two])
        whole = peak_of([*self._taken, Need(least)])
        if min(peak, whole) > self._bytes:
            self._refuse(min(peak, whole))
        if peak < whole:
            self._take(agent, two, True)
        else:
            self._take(agent, Need(least), False, least)

    def _take_part(self, agent, key, pieces, place):
        """Of known pieces, this one's part of a budget for which their plans without one are too much."""
        before, least = peak_of(self._taken), self._needs[key][1]
        needed = sum(self._needs[one][0] for one in pieces)
        share = max(least, self._bytes * self._needs[key][0] // needed)
        later = sum(self._needs[one][1] for one in pieces[place + 1 :])
        if before + least + later > self._bytes:
            self._refuse(before + least + later)
        share = min(share, self._bytes - before - later)
        self._take(agent, Need(share), False, share)

    def _take(self, agent, need, in_two, share=0):
        rest = self._bytes - sum(one.kept + one.outputs for one in self._taken)
        self._taken.append(need)
        agent.session.set_in_two(in_two)
        agent.session.set_memory_budget(share, rest)

    def _refuse(self, least):
        known = self._calls.expected is not None
        count, more = len(self._calls.expected if known else self._calls.ran), "" if known else ", and more may follow"
        raise OutOfMemory(
            f"memory_budget is {format_bytes(self._bytes)}, the least that {count} pieces of this step need together "
            f"is {format_bytes(least)}{more}: plain Python between graphs ends a plan, and each keeps its activations "
            "until its backward"
        )
