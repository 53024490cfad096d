"""How users write a budget for the bytes of a training step: 600_000_000, "600MiB", "75%", 0.75."""

import numbers
import os
import re
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path

from lowtide import environment
from lowtide.errors import InvalidArgument

UNITS = {"B": 1}
UNITS.update({f"{letter}B": 1000**power for power, letter in enumerate("KMGT", 1)})
UNITS.update({f"{letter}IB": 1024**power for power, letter in enumerate("KMGT", 1)})
# What a container may have, by version of its control groups.
_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
_NUMBER = re.compile(r"(?P<number>[0-9]+(?:_[0-9]+)*(?P<point>\.[0-9]+)?)\s*(?P<unit>%|[A-Za-z]*)")
_MOST_LETTERS = 40  # no size that a machine has takes more
EXPECTED = (
    'bytes (600_000_000 or "600_000_000"), a size with a unit of B to TB or KiB to TiB ("600MiB", "0.6GB"), or a part '
    'of the plan without a budget ("75%", 0.75)'
)


@dataclass(frozen=True)
class Budget:
    """Bytes of a step, or a part of what the plan without a budget needs; the other one is 0."""

    bytes: int = 0
    fraction: float = 0.0
    is_total: bool = False  # of all that is in memory for the module: see Resident

    def __str__(self):
        if self.is_total:
            return f"{format_bytes(self.bytes)} with what is there before a step"
        return format_bytes(self.bytes) if self.bytes else f"{self.fraction:.4g} of the plan without a budget"


def parse_budget(written, name="memory_budget", has=None):
    """The Budget that a user has written. InvalidArgument, which names the forms and what was found, for anything else,
    and for more bytes than `has`, those of this machine. `name`: what it was written for."""

    def refuse(why):
        raise InvalidArgument(f"{name} is {_shown(written)}, {why}: expected {EXPECTED}")

    if isinstance(written, bool) or not isinstance(written, (str, numbers.Real)):
        refuse(f"a {type(written).__name__}")
    if isinstance(written, numbers.Integral):
        return _of_bytes(int(written), has, refuse)
    if isinstance(written, numbers.Real):
        return _of_part(float(written), refuse)
    found = _NUMBER.fullmatch(written.strip())
    if found is None or len(written) > _MOST_LETTERS:
        refuse("not a budget" if written.strip() else "empty")
    number, unit = Fraction(found["number"].replace("_", "")), found["unit"].upper()
    if unit == "%":
        return _of_part(float(number / 100), refuse)
    if not unit:
        return _of_part(float(number), refuse) if found["point"] else _of_bytes(int(number), has, refuse)
    if unit not in UNITS:
        refuse(f"of an unknown unit '{found['unit']}'")
    return _of_bytes(int(number * UNITS[unit]), has, refuse)


def _shown(written):
    if isinstance(written, int) and written.bit_length() > 4 * _MOST_LETTERS:
        return f"an int of {written.bit_length()} bits"
    text = repr(written)
    return text if len(text) <= 2 * _MOST_LETTERS else f"{text[:_MOST_LETTERS]}…"


def _of_bytes(count, has, refuse):
    if count <= 0:
        refuse("which is no size")
    has = machine_bytes() if has is None else has
    if count > has:
        refuse(f"more than this machine's {format_bytes(has)}")
    return Budget(bytes=count)


def _of_part(fraction, refuse):
    if not 0 < fraction <= 1:  # NaN too
        refuse("not a part between 0 and 1")
    return Budget(fraction=fraction)


def machine_bytes():
    """Memory of this machine, or of the container that this process runs in."""
    least = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for path in map(Path, _LIMITS):
        try:
            least = min(least, int(path.read_text()))
        except (OSError, ValueError):  # not there, or "max"
            continue
    return least


def format_bytes(count):
    """ "572.2 MiB", or bytes below one KiB."""
    for power, letter in reversed(list(enumerate("KMGT", 1))):
        if count >= 1024**power:
            return f"{count / 1024**power:,.{1 if power < 3 else 2}f} {letter}iB"
    return f"{count} B"


def asked_budget(memory_budget=None, memory_budget_total=None):
    """The Budget of a wrapper: of its arguments, of LOWTIDE_MEMORY_BUDGET, or None."""
    if memory_budget is not None and memory_budget_total is not None:
        raise InvalidArgument(
            f"memory_budget is {memory_budget!r}, memory_budget_total is {memory_budget_total!r}: expected one of them"
        )
    if memory_budget is not None:
        return parse_budget(memory_budget)
    if memory_budget_total is not None:
        budget = parse_budget(memory_budget_total, "memory_budget_total")
        if budget.fraction:
            raise InvalidArgument(
                f"memory_budget_total is {memory_budget_total!r}, expected bytes: what else is in memory has no plan "
                "that this could be a part of"
            )
        return replace(budget, is_total=True)
    written = environment.read("LOWTIDE_MEMORY_BUDGET")
    return parse_budget(written, "LOWTIDE_MEMORY_BUDGET") if written else None
