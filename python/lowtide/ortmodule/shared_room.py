"""One arena for the graphs that a step runs one after another, without a budget (step_budget.py: under one).

A step's graphs are known once it has run. From then on those of them keep nothing but what their backward needs for
which that is less, and all have one arena. Where PyTorch runs some, or steps that begin alike go on otherwise, an arena
for all would be there while PyTorch needs most, or while others have theirs.
"""

import collections
import threading
import weakref

from lowtide._lowtide import kept_in_two, step_arena

from .allowance import Allowance

_MOST_STEPS = 256  # whose graphs are remembered
_MOST_GRAPHS = 4096  # of one step: more wait for a backward that does not come
_MOST_OTHERS = 3  # times that a step went on otherwise than the one before
_NO_LIMIT = 2**63 - 1


class SharedRoom(Allowance):
    """`call_begins` comes before the forwards of each step, `call_ended` behind those that had no error."""

    # Whether graphs of which nobody knows what comes behind them keep what their backward needs alone; None: where that
    # is less for those of one graph that were pending at once.
    unknown_in_two = False

    def __init__(self):
        self._ran, self._agents = [], []  # (sizes, number) of each forward of this step, its TrainingAgent, weakly
        # The first of a step → (_ran, of each whether in two, StepArena or None).
        self._known = {}
        self._others = collections.Counter()  # by first, steps that were others than the one before
        self._in_use = self._arena = None
        self._beside = 0
        self._keep_gradients = set()  # numbers: those of steps that begin so are still there when the next one begins

    @property
    def arena_bytes(self):
        """Of the last step's arena, and of the gradients that are not in it; None: it had none."""
        return self._arena and self._arena.size_bytes + self._beside

    def call_begins(self):
        self._forwards_end()  # of a step with an error
        self._ran, self._agents, self._in_use, self._arena = [], [], None, None

    def call_ended(self, all_in_engine):
        self._forwards_end()
        if self._ran and (self._in_use is None or len(self._in_use[0]) != len(self._ran)):
            self._plan(all_in_engine)

    def apply(self, agent):
        """To the agent's next forward, which is the step's next one."""
        number = agent.number
        values = agent.symbol_values(agent.last_sizes)
        place, key = len(self._ran), (values, number)
        self._ran.append(key)
        self._agents.append(weakref.ref(agent))
        if agent.session.separates_gradients:
            self._keep_gradients.add(self._ran[0][1])
        if place == 0:
            self._in_use = self._known.get(self._first())
            self._begin()
        known = self._in_use is not None and self._in_use[0][place : place + 1] == [key]
        if not known:
            self._in_use = None
        agent.session.set_in_two(self._in_use[1][place] if known else self.unknown_in_two)
        agent.session.set_step_arena(self._arena if known else None, place)

    def _forwards_end(self):
        if self._arena is not None:
            self._arena.forwards_end()

    def _first(self):
        values, number = self._ran[0]
        return number in self._keep_gradients, number, *values

    def _begin(self):
        if self._in_use is None or (arena := self._in_use[2]) is None:
            return
        if arena.begin(_NO_LIMIT):
            self._arena = arena
        else:
            self._keep_gradients.add(self._ran[0][1])
            self._in_use = None

    def _plan(self, all_in_engine):
        first = self._first()
        if self._known.pop(first, None) is not None:
            self._others[first] += 1
        flags, arena = [self.unknown_in_two], None
        if len(self._ran) > 1:
            agents = [weak() for weak in self._agents]
            if None in agents:
                return
            flags, needs = self._choose(agents)
            if all_in_engine and self._others[first] < _MOST_OTHERS:
                arena = step_arena(needs)
        self._known[first] = self._ran, flags, arena
        if len(self._known) > _MOST_STEPS:
            del self._known[next(iter(self._known))]

    def _choose(self, agents):
        whole, in_two = (
            [agent.step_need(values, flag) for agent, (values, _) in zip(agents, self._ran, strict=True)]
            for flag in (False, True)
        )
        if self._ran[0][1] in self._keep_gradients:
            needs = [need.without_gradients() for need in in_two]
            self._beside = sum(need.standing_bytes for need in in_two) - sum(need.standing_bytes for need in needs)
            return [True] * len(needs), needs
        flags = kept_in_two(whole, in_two)
        return flags, [pair[flag] for flag, *pair in zip(flags, whole, in_two, strict=True)]


class _RoomWithoutCalls(SharedRoom):
    unknown_in_two = None

    def __init__(self):
        super().__init__()
        self._all_in_engine = True

    def ran_in_pytorch(self):
        self._all_in_engine = False

    def backward_begins(self):
        self._forwards_end()

    def apply(self, agent):
        others = (weak() for weak in self._agents)
        is_pending = any(other is not None and other.session.pending_forwards for other in others)
        if not is_pending or len(self._ran) >= _MOST_GRAPHS:
            self.call_ended(self._all_in_engine and len(self._ran) < _MOST_GRAPHS)
            self.call_begins()
            self._all_in_engine = True
        super().apply(agent)


class RoomOfGraphs(threading.local):
    """A SharedRoom of graphs that no module calls together (torch.compile's): a step begins with a forward while none
    of the last one is pending. Each thread has its own."""

    def __init__(self):
        room = _RoomWithoutCalls()
        self.apply, self.backward_begins, self.ran_in_pytorch = room.apply, room.backward_begins, room.ran_in_pytorch
