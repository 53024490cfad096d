"""What the graphs of one step need together, and which of them keep nothing but what their backward needs."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Need:
    """Bytes of one forward with its backward, as Session.memory tells them."""

    kept: int  # from its forward to its backward
    outputs: int = 0
    passing: int = 0  # while a half of it runs, which the others' halves use as well
    late: int = 0  # its gradients, from its backward on
    external: int = 0  # of libraries, within a step of it
    pins: bool = True  # its gradients lie in what it keeps
    of: object = None  # whose gradients: those of the same one are added onto each other

    @classmethod
    def told(cls, report, of, is_pending):
        """`report`: Session.memory's of one forward. What is not `is_pending` gives all back at its end."""
        kept, outputs = report["kept_bytes"], report["output_bytes"]
        passing, late, external = (report[f"{name}_bytes"] for name in ("passing", "late", "external"))
        if not is_pending:
            return cls(0, outputs, kept + passing + late, 0, external)
        return cls(kept, outputs, passing, late, external, passing + late == 0, of)


def peak_of(needs):
    """Bytes at once, of Needs in the order of forwards. Backward goes from the last to the first."""
    pinned = sum(need.kept for need in needs if need.pins)
    waiting = sum(need.kept for need in needs if not need.pins)
    gradients, most, seen = 0, pinned + waiting, set()
    for need in reversed(needs):
        if not need.pins and need.of not in seen:
            seen.add(need.of)
            gradients += need.late
        most = max(most, pinned + waiting + gradients)
        waiting -= 0 if need.pins else need.kept
    return (
        most
        + sum(need.outputs for need in needs)
        + max((need.passing for need in needs), default=0)
        + max((need.external for need in needs), default=0)
    )


def choose(whole, in_two):
    """Of each graph, whether it keeps what its backward needs alone, so that all need least. `whole`, `in_two`: Needs of
    all, so or so."""
    none = [False] * len(whole)
    smaller = [two.kept + two.late < one.kept for one, two in zip(whole, in_two, strict=True)]
    every = [two.kept < one.kept for one, two in zip(whole, in_two, strict=True)]

    def peak(flags):
        return peak_of([pair[flag] for flag, *pair in zip(flags, whole, in_two, strict=True)])

    return min((none, smaller, every), key=peak)
