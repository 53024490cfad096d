"""Two runs' statistics, tensor by tensor in the order of writing: the first difference that nothing before explains.

A difference is relative to the tensor's largest element: of min, max, mean, std and the first elements the one that is
farthest off. Rounding makes each a little larger than those before it; a fault makes one jump. So a tensor diverges
when its difference is over a limit for its dtype and over GROWTH times all differences that the same step showed before
it, and that it showed itself one step earlier.
"""

import math
from dataclasses import dataclass, field
from pathlib import Path

from lowtide.errors import InvalidArgument
from lowtide.utils.hooks.summary_file import FORWARD, Run, Summary, same

# Differences up to here are rounding: of the coarser one of two dtypes.
LIMITS = {"float64": 1e-10, "float32": 1e-4, "float16": 1e-2, "bfloat16": 5e-2}
GROWTH = 10.0
_SAMPLE_DIGITS = 1.1e-6  # files hold six digits of the first elements


@dataclass
class TensorDifference:
    """One tensor of one step, in both runs. `first` or `second` is None where a run lacks it."""

    step: int
    position: int  # in the first run's order
    file: str
    first: Summary | None
    second: Summary | None
    difference: float = 0.0  # relative; inf: of another kind (see `reason`)
    reason: str = ""  # "max", "nan": what is off most
    limit: float = 0.0
    explained: float = 0.0  # the largest difference that was there before

    @property
    def name(self):
        summary = self.first or self.second
        return summary.name if summary else self.file

    @property
    def direction(self):
        summary = self.first or self.second
        return summary.direction if summary else self.file.rpartition("_")[2]

    @property
    def diverges(self):
        return self.difference > max(self.limit, GROWTH * self.explained)


@dataclass
class Comparison:
    """Of two runs; `tensors` holds every step's in order."""

    label: str  # of the pair: a rank's folder, or ""
    tensors: list = field(default_factory=list)
    steps: list = field(default_factory=list)
    only_in_one: dict = field(default_factory=dict)  # step → which run has it

    @property
    def first_divergence(self):
        return next((tensor for tensor in self.tensors if tensor.diverges), None)

    def largest(self, count):
        return sorted(self.tensors, key=lambda tensor: -tensor.difference)[:count]


def compare(first, second, rtol=None):
    """A Comparison for each pair of runs: of the folders themselves, or of the folders of ranks inside them.

    InvalidArgument for folders that hold no runs, or not the same ranks."""
    first, second = Path(first), Path(second)
    ranks = [_ranks(folder) for folder in (first, second)]
    if not any(ranks):
        return [compare_runs(first, second, rtol)]
    if ranks[0] != ranks[1]:
        raise InvalidArgument(f"expected the same ranks in both folders, found {ranks[0]} and {ranks[1]}")
    return [compare_runs(first / rank, second / rank, rtol, rank) for rank in ranks[0]]


def _ranks(folder):
    """Names of the runs inside a folder that is none itself."""
    if not folder.is_dir() or Run(folder).steps():
        return []
    return sorted(path.name for path in folder.iterdir() if path.is_dir() and Run(path).steps())


def compare_runs(first, second, rtol=None, label=""):
    runs = Run(first), Run(second)
    steps = [run.steps() for run in runs]
    for run, found in zip(runs, steps, strict=True):
        if not found:
            raise InvalidArgument(f"no folder step_<n> in {run.folder}")
    result = Comparison(label, steps=sorted(set(steps[0]) & set(steps[1])))
    if not result.steps:
        raise InvalidArgument(f"the runs have no step in common: {steps[0]} and {steps[1]}")
    for step in sorted(set(steps[0]) ^ set(steps[1])):
        result.only_in_one[step] = runs[0 if step in steps[0] else 1].folder
    before = {}  # file → its difference one step earlier
    for step in result.steps:
        explained, now = 0.0, {}
        for tensor in _step(runs, step):
            if tensor.first and tensor.second:
                tensor.difference, tensor.reason = difference(tensor.first, tensor.second)
                tensor.limit = limit_of(tensor.first, tensor.second) if rtol is None else rtol
            tensor.explained = max(explained, before.get(tensor.file, 0.0))
            explained = max(explained, tensor.difference)
            now[tensor.file] = tensor.difference
            result.tensors.append(tensor)
        before = now
    return result


def _step(runs, step):
    orders = [run.order(step) for run in runs]
    missing = [name for name in orders[1] if name not in set(orders[0])]
    for position, file in enumerate(orders[0] + missing):
        summaries = [
            run.summary(step, file) if file in order else None
            for run, order in zip(runs, map(set, orders), strict=True)
        ]
        tensor = TensorDifference(step, position, file, *summaries)
        if None in summaries:
            # Backward of what nobody needs may be left out; nothing else may.
            tensor.difference, tensor.reason = (0.0, "") if tensor.direction != FORWARD else (math.inf, "missing")
        yield tensor


def limit_of(first, second):
    return max(LIMITS.get(summary.dtype, 0.0) for summary in (first, second))


def difference(first, second):
    """(relative difference, what is off most)."""
    if first.shape != second.shape:
        return math.inf, "shape"
    for count in ("nan", "inf"):
        if getattr(first, count) != getattr(second, count):
            return math.inf, count
    extremes = [abs(value) for summary in (first, second) for value in (summary.min, summary.max)]
    scale = max((value for value in extremes if math.isfinite(value)), default=0.0)
    worst, reason = 0.0, ""
    for name in ("min", "max", "mean", "std"):
        found = _relative(getattr(first, name), getattr(second, name), scale)
        if found > worst:
            worst, reason = found, name
    for a, b in zip(first.samples, second.samples, strict=False):
        found = _relative(a, b, scale)
        if found > max(worst, _SAMPLE_DIGITS):
            worst, reason = found, "elements"
    return worst, reason


def _relative(a, b, scale):
    if same(a, b):
        return 0.0
    if not (math.isfinite(a) and math.isfinite(b)):
        return math.inf
    return abs(a - b) / scale if scale > 0 else math.inf
