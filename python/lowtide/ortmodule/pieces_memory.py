"""What the graphs of one step need together, and which of them keep nothing but what their backward needs."""

from dataclasses import dataclass

from lowtide._lowtide import StepArena


@dataclass(frozen=True)
class Need:
    """Bytes of one forward with its backward, as Session.memory tells them."""

    kept: int  # from its forward to its backward
    outputs: int = 0
    passing: int = 0  # while a half of it runs, which the others' halves use as well
    late: tuple = ()  # blocks of its gradients, from its backward on
    external: int = 0  # of libraries, within a step of it
    is_pending: bool = True  # else all is given back at its end
    pins: bool = True  # its gradients lie in what it keeps
    of: object = None  # whose gradients: those of the same one are added onto each other

    @classmethod
    def told(cls, report, of, is_pending):
        """`report`: Session.memory's of one forward."""
        kept, outputs, passing, external = (
            report[f"{name}_bytes"] for name in ("kept", "output", "passing", "external")
        )
        late = tuple(report["late_blocks"])
        return cls(kept, outputs, passing, late, external, is_pending, is_pending and passing == 0 and not late, of)


def peak_of(needs):
    """Bytes at once, of Needs in the order of forwards, however they are packed. Backward goes from the last to the
    first."""
    pinned = sum(need.kept for need in needs if need.pins)
    waiting = sum(need.kept for need in needs if need.is_pending and not need.pins)
    gradients, most, seen = 0, pinned + waiting, set()
    for need in reversed(needs):
        if not need.is_pending or need.pins:
            continue
        if need.of is None or need.of not in seen:
            seen.add(need.of)
            gradients += sum(need.late)
        most = max(most, pinned + waiting + gradients)
        waiting -= need.kept
    passing = max((need.passing + (0 if need.is_pending else need.kept) for need in needs), default=0)
    return most + passing + beside(needs)


def beside(needs):
    """Of it, what lies in no arena: outputs, and what libraries take."""
    return sum(need.outputs for need in needs) + max((need.external for need in needs), default=0)


def arena_of(needs):
    """StepArena of Needs in the order of forwards."""
    return StepArena([(need.kept, need.is_pending, need.pins, need.passing, need.late) for need in needs])


@dataclass(frozen=True)
class Option:
    """A plan of one graph: `extra` ms are predicted beyond those of all nodes once."""

    need: Need
    in_two: bool  # whether it keeps what its backward needs alone
    plan: int = 0
    extra: float = 0.0

    @property
    def bytes(self):
        """What is there as long as others run."""
        return self.need.kept + sum(self.need.late) + self.need.outputs


def choose(whole, in_two):
    """Of each graph, whether it keeps what its backward needs alone, so that all need least. `whole`, `in_two`: Needs
    of all, so or so."""
    none = [False] * len(whole)
    smaller = [two.kept + sum(two.late) < one.kept for one, two in zip(whole, in_two, strict=True)]
    every = [two.kept < one.kept for one, two in zip(whole, in_two, strict=True)]

    def peak(flags):
        return peak_of([pair[flag] for flag, *pair in zip(flags, whole, in_two, strict=True)])

    return min((none, smaller, every), key=peak)


class Frontier:
    """Options for all graphs of one step: from those without a budget on, ever fewer bytes for more time."""

    def __init__(self, keys, options):
        """`keys`: of the graphs, in the order of forwards; the same one has the same plan. `options`: by key, the whole
        and the one in two without a budget first."""
        self._keys, self._options = keys, options
        flags = choose(*([options[key][place].need for key in keys] for place in (0, 1)))
        self._found = []  # (bytes, Option of each graph, StepArena), ever fewer
        self._add([options[key][flag] for key, flag in zip(keys, flags, strict=True)])
        self._further = self._descend(self._found[0][1])

    def within(self, most_bytes):
        """(Option of each graph, StepArena), or None."""
        while self.floor > most_bytes and next(self._further, None) is not None:
            pass
        return next((found for size, *found in self._found if size <= most_bytes), None)

    @property
    def floor(self):
        """The fewest bytes, once there is nothing within some."""
        return self._found[-1][0]

    def _add(self, chosen):
        needs = [option.need for option in chosen]
        arena = arena_of(needs)
        size = arena.size_bytes + beside(needs)
        if not self._found or size < self.floor:
            self._found.append((size, chosen, arena))

    def _descend(self, chosen):
        """One change of a graph after another, each the one that takes least time for its bytes; where none lowers the
        peak, which several may share, for what is there all the time and works."""
        places = {key: [at for at, one in enumerate(self._keys) if one == key] for key in dict.fromkeys(self._keys)}
        while True:
            now, found = _measures(chosen), None
            for key, where in places.items():
                for option in self._options[key]:
                    other = [option if at in where else one for at, one in enumerate(chosen)]
                    there = _measures(other)
                    if there[0] > now[0] or there >= now:
                        continue
                    saved = (now[0] - there[0], now[1] - there[1])
                    time = len(where) * (option.extra - chosen[where[0]].extra)
                    rank = (saved[0] == 0, time / (saved[0] or saved[1]))
                    if found is None or rank < found[0]:
                        found = rank, other
            if found is None:
                break
            chosen = found[1]
            self._add(chosen)
            yield True
        self._add([min(self._options[key], key=lambda option: option.bytes) for key in self._keys])
        yield True


def _measures(chosen):
    return peak_of([one.need for one in chosen]), sum(one.bytes + one.need.passing for one in chosen)
