"""The files that statistics of tensors are kept in: writing and reading, the only place that knows the format.

    out/step_0/order.txt                               one file name a line, in the order of writing
    out/step_0/Linear_3_0th_output_forward             class, number of the module, which output, direction
    out/step_0/Linear_3_0th_output_backward            the gradient of that output

A file:

    >>>Linear_3_0th_output forward run shape: [2, 16, 64] dtype: float32 size: 2048
    min: -1.25 max: 0.5, mean: 0.0625, std: 0.125
    nan: 0, inf: 0
    samples(top 128): [0.25, -1.25, ...
      ...]
    neg: 1000, pos: 1048, zero: 0
    ================

One '>' for each level of the module's depth (1: the outermost); none for inspect_activation. min, max, mean and std are
written so that reading gives the same float64; `std` is that of a sample (divided by n - 1), as torch.std; min, max and
mean of an empty tensor, and std of fewer than two elements, are nan. A NaN among the elements makes them nan, as in
PyTorch. Samples are the first elements in row-major order, with six digits.

    run = Run("out")
    for step in run.steps():
        for name in run.order(step):
            summary = run.summary(step, name)
"""

import math
import re
from dataclasses import dataclass
from pathlib import Path

from lowtide.errors import InvalidArgument

SAMPLES = 128
ORDER_FILE = "order.txt"
FORWARD, BACKWARD = "forward", "backward"
_PER_LINE = 8  # samples
_END = "=" * 16
_NUMBER = r"([^\s,]+)"
_PATTERN = re.compile(
    r"(?P<depth>>*)(?P<name>.*) (?P<direction>forward|backward) run "
    r"shape: \[(?P<shape>[^\]]*)\] dtype: (?P<dtype>\w+) size: (?P<size>\d+)\s*\n"
    rf"min: {_NUMBER} max: {_NUMBER}, mean: {_NUMBER}, std: {_NUMBER}\s*\n"
    r"nan: (\d+), inf: (\d+)\s*\n"
    r"samples\(top \d+\): \[(?P<samples>[^\]]*)\]\s*\n"
    r"neg: (\d+), pos: (\d+), zero: (\d+)\s*\n"
    rf"{_END}\s*"
)


@dataclass
class Summary:
    """The statistics of one tensor."""

    shape: tuple
    dtype: str  # "float32"
    size: int  # elements
    min: float  # of integers and bools: int
    max: float
    mean: float
    std: float
    nan: int  # elements that are
    inf: int  # of either sign
    negative: int
    positive: int
    zero: int
    samples: list
    name: str = ""
    direction: str = FORWARD
    depth: int = -1  # of the module; -1: named by inspect_activation

    @property
    def file_name(self):
        return file_name(self.name, self.direction)


def file_name(name, direction):
    """Of the tensor's file in its step's folder; what no file name may hold becomes '_'."""
    return re.sub(r"[/\\\x00\n\r]", "_", f"{name}_{direction}")


def step_folder(run, step):
    return Path(run) / f"step_{step}"


# ---- writing


def format_summary(summary):
    shape = ", ".join(str(size) for size in summary.shape)
    lines = [
        f"{'>' * max(0, summary.depth)}{summary.name} {summary.direction} run "
        f"shape: [{shape}] dtype: {summary.dtype} size: {summary.size}",
        f"min: {summary.min!r} max: {summary.max!r}, mean: {summary.mean!r}, std: {summary.std!r}",
        f"nan: {summary.nan}, inf: {summary.inf}",
        *_sample_lines(summary.samples),
        f"neg: {summary.negative}, pos: {summary.positive}, zero: {summary.zero}",
        _END,
    ]
    return "\n".join(lines) + "\n"


def _sample_lines(samples):
    texts = [str(sample) if isinstance(sample, int) else f"{sample:.6g}" for sample in samples]
    rows = [", ".join(texts[first : first + _PER_LINE]) for first in range(0, len(texts), _PER_LINE)]
    return [f"samples(top {SAMPLES}): [" + ",\n  ".join(rows) + "]"]


def write_summary(run, step, summary):
    """Writes a tensor's file. OSError where that cannot be."""
    path = step_folder(run, step) / summary.file_name
    text = format_summary(summary)
    try:
        path.write_text(text)
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def append_order(run, step, names):
    """Lists files of a step in its order.txt. OSError where that cannot be."""
    with open(step_folder(run, step) / ORDER_FILE, "a") as order:
        order.write("".join(f"{name}\n" for name in names))


# ---- reading


def parse_summary(text, where="a summary"):
    """InvalidArgument for a text that is not a whole file of this format."""
    match = _PATTERN.fullmatch(text)
    if match is None:
        raise InvalidArgument(f"{where} is not a summary of a tensor, or was cut off")
    fields = match.groupdict()
    low, high, mean, std, nan, inf = match.groups()[6:12]
    negative, positive, zero = match.groups()[13:16]
    return Summary(
        shape=tuple(int(size) for size in re.findall(r"\d+", fields["shape"])),
        dtype=fields["dtype"],
        size=int(fields["size"]),
        min=_number(low),
        max=_number(high),
        mean=float(mean),
        std=float(std),
        nan=int(nan),
        inf=int(inf),
        negative=int(negative),
        positive=int(positive),
        zero=int(zero),
        samples=[_number(item) for item in re.findall(r"[^\s,]+", fields["samples"])],
        name=fields["name"],
        direction=fields["direction"],
        depth=len(fields["depth"]) or -1,
    )


def _number(text):
    return int(text) if re.fullmatch(r"-?\d+", text) else float(text)


def read_summary(path):
    """The Summary in a file. FileNotFoundError; InvalidArgument for a file of another format."""
    return parse_summary(Path(path).read_text(), str(path))


class Run:
    """What one run wrote: the folder given to StatisticsSubscriber."""

    def __init__(self, folder):
        self.folder = Path(folder)
        if not self.folder.is_dir():
            raise InvalidArgument(f"expected a folder that StatisticsSubscriber wrote, found no folder {folder}")

    def steps(self):
        """Numbers of the steps, ascending."""
        found = (re.fullmatch(r"step_(\d+)", path.name) for path in self.folder.iterdir() if path.is_dir())
        return sorted(int(match.group(1)) for match in found if match)

    def order(self, step):
        """File names of a step in the order of writing, each once. FileNotFoundError for a step without a list."""
        lines = (step_folder(self.folder, step) / ORDER_FILE).read_text().splitlines()
        return list(dict.fromkeys(line for line in lines if line))

    def path(self, step, name):
        return step_folder(self.folder, step) / name

    def summary(self, step, name):
        """The Summary in a file of a step. FileNotFoundError; InvalidArgument for a file of another format."""
        return read_summary(self.path(step, name))


def same(first, second):
    """Whether two statistics are equal; nan equals nan."""
    return first == second or (math.isnan(first) and math.isnan(second))
