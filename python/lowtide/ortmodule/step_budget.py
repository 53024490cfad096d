"""What a budget of a whole step leaves to the graphs that it runs, one after another: several where a module runs in
pieces.

A step's pieces are known once it has run. From then on each has the part of the budget that its plan without one has of
the sum, at least what its smallest plan needs. In a call whose pieces are not known yet (the first one, other sizes,
another branch) each takes its smallest plan, since nobody can say what is to come.
"""

import itertools
import weakref

from lowtide.errors import OutOfMemory

from .budget import format_bytes

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


class StepBudget:
    """Of a module in pieces; `call_begins` comes before each call."""

    def __init__(self, total):
        """`total`: TotalBudget."""
        self._total = total
        self._numbers, self._next = weakref.WeakKeyDictionary(), itertools.count()  # TrainingAgent → number
        self._needs = {}  # (number, sizes) → (bytes of the plan without budget, of the smallest)
        self._known = {}  # the first piece of a call → all of them
        self._ran, self._expected, self._used, self._bytes = [], None, 0, 0

    def call_begins(self):
        self._bytes = self._total.bytes()
        self._ran, self._expected, self._used = [], None, 0

    def call_ended(self):
        if self._ran:
            self._known.pop(self._ran[0], None)
            self._known[self._ran[0]] = self._ran
            if len(self._known) > _MOST_CALLS:
                del self._known[next(iter(self._known))]

    def apply(self, agent):
        """To the agent's next forward, which is the call's next piece."""
        key = self._numbers.setdefault(agent, next(self._next)), *agent.symbol_values(agent.last_sizes)
        place, rest = len(self._ran), self._bytes - self._used
        self._ran.append(key)
        if place == 0:
            self._expected = self._known.get(key)
        elif self._expected is not None and self._expected[place : place + 1] != [key]:
            self._expected = None
        least = later = 0
        if self._expected is None:
            share = least = self._least(agent, key)
        else:
            needed = [self._needs[one][0] for one in self._expected]
            share = needed[place]
            if sum(needed) > self._bytes:
                least = self._least(agent, key)
                share = max(least, self._bytes * share // sum(needed))
                later = sum(self._needs[one][1] for one in self._expected[place + 1 :])
        if least + later > rest:
            self._refuse(self._used + least + later)
        share = min(share, rest - later)
        self._used += share
        agent.session.set_memory_budget(share, rest)

    def _least(self, agent, key):
        if key not in self._needs:
            values = list(key[1:])
            if agent.training and len(agent.session.plan_peaks(values)) == 1:
                agent.session.frontier(values)  # seeks other plans
            peaks = agent.session.plan_peaks(values)
            self._needs[key] = peaks[0], min(peaks)
        return self._needs[key][1]

    def _refuse(self, least):
        known = self._expected is not None
        count, more = len(self._expected if known else self._ran), "" if known else ", and more may follow"
        raise OutOfMemory(
            f"memory_budget is {format_bytes(self._bytes)}, the least that {count} pieces of this step need together "
            f"is {format_bytes(least)}{more}: plain Python between graphs ends a plan, and each keeps its activations "
            "until its backward"
        )
