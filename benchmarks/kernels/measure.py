"""One process of ./dev bench kernels: prints a line of JSON for each kernel, all with the same number of threads.

Ours, PyTorch's and the loop that bounds them take turns, round by round. A kernel is a graph of one op run by a
Session, its backward what the gradient builder makes of that op; PyTorch's backward is autograd's.
"""

import argparse
import json
import statistics
import sys

import torch
from cases import FAMILIES, cases
from loops import CLOCKS, Loops, Stopwatch

from lowtide._lowtide import Graph, Session, install_torch

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16, "i64": torch.int64}
AWAKE = torch.zeros(1 << 20)
SLOW_S = 1.0  # what takes longer gets one round


class Ours:
    def __init__(self, case, dtype, inputs):
        self._session = Session(Graph.parse(case.graph(dtype)), training=case.has_backward)
        self._inputs, self._keep = inputs, case.has_backward
        self._saved = [inputs[index] for index in self._session.saved_inputs]

    def forward(self):
        (self.y, *_), self._pending = self._session.forward(self._inputs, 1, self._keep)

    def backward(self, dy):
        self.gradients = self._session.backward(self._pending, [dy], self._saved)


class Theirs:
    def __init__(self, case, inputs):
        params = [kind == "param" for *_, kind in case.inputs]
        self._inputs = [each.clone().requires_grad_(param) for each, param in zip(inputs, params, strict=True)]
        self._params = [each for each in self._inputs if each.requires_grad]
        self._run = case.run

    def forward(self):
        self.y = self._run(*self._inputs)

    def backward(self, dy):
        self.gradients = torch.autograd.grad(self.y, self._params, dy)


def made(case, dtype):
    torch.manual_seed(0)
    for name, of, shape, _ in case.inputs:
        kind = DTYPES[dtype if of == "$t" else of]
        if kind.is_floating_point:
            yield torch.randn(shape).to(kind)
        else:
            yield torch.randint(0, case.limits[name], shape)


def timed(options, body, *arguments):
    """Seconds of one call. The pool's threads have gone to sleep during the loop that is timed before: whoever is first
    would pay for waking them."""
    AWAKE.add_(1)
    watch = Stopwatch(options.clock, options.threads)
    body(*arguments)
    return watch.passed()


def size_bytes(tensors):
    return sum(each.numel() * each.element_size() for each in tensors)


def measure(case, dtype, loops, options):
    """Rows of forward and, where there is one, backward."""
    inputs = list(made(case, dtype))
    sides = {"ours": Ours(case, dtype, inputs), "pytorch": Theirs(case, inputs)}
    halves = ("forward", "backward") if case.has_backward else ("forward",)
    times = {(side, half): [] for side in sides for half in halves}
    loop = loops.copy if case.flops == 0 else loops.bf16 if dtype == "bf16" else loops.f32
    peaks, dy = [], None
    rounds = options.rounds + 1
    for number in range(rounds):
        peaks.append(loop())
        for name, side in list(sides.items())[:: 1 if number % 2 else -1]:
            if number > 1 and times[name, "forward"][0] > SLOW_S:
                continue
            times[name, "forward"].append(timed(options, side.forward))
            if case.has_backward:
                if dy is None:
                    dy = torch.randn(side.y.shape)
                times[name, "backward"].append(timed(options, side.backward, dy.to(side.y.dtype)))
    y, read = sides["pytorch"].y, size_bytes(inputs[:1]) * case.reads + size_bytes(inputs[1:])
    flops = {"forward": case.flops, "backward": case.backward_flops}
    moved = {"forward": read + size_bytes([y])}
    if case.has_backward:
        moved["backward"] = read + size_bytes([y, *sides["pytorch"].gradients])
    for half in halves:
        work = (flops if case.flops else moved)[half]
        yield {
            "family": case.family,
            "name": case.name,
            "half": half,
            "dtype": dtype,
            "threads": options.threads,
            "unit": "GFLOP/s" if case.flops else "GB/s",
            # The processor's clock reads too little now and then, which the fastest loop would be made of.
            "peak": max(peaks) if options.clock == "wall" else statistics.median(peaks),
            **{side: rates(times[side, half], work) for side in sides},
            "ratios": ratios(times["ours", half], times["pytorch", half]),
        }


def rates(seconds, work):
    """Of the fastest round, of the median one and of the quartiles, the first round apart."""
    seconds = sorted(seconds[1:] or seconds)
    quartiles = statistics.quantiles(seconds, n=4, method="inclusive") if len(seconds) > 1 else seconds * 3
    return {
        key: work / value / 1e9
        for key, value in zip(("best", "q3", "median", "q1"), (seconds[0], *quartiles), strict=True)
    }


def ratios(ours, theirs):
    """How many times as fast ours is, round by round: the quartiles; and by the fastest rounds."""
    pairs = sorted(b / a for a, b in zip(ours[1:] or ours, theirs[1:] or theirs, strict=False))
    quartiles = statistics.quantiles(pairs, n=4, method="inclusive") if len(pairs) > 1 else pairs * 3
    return {
        "best": min(theirs[1:] or theirs) / min(ours[1:] or ours),
        **dict(zip(("q1", "median", "q3"), quartiles, strict=True)),
    }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--families", default=",".join(FAMILIES))
    parser.add_argument("--names", default="")
    parser.add_argument("--dtypes", default="f32,bf16,f16")
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    install_torch(options.threads)
    loops = Loops(options.threads, options.clock)
    for case in cases(options.families.split(",")):
        if not any(part in case.name for part in options.names.split(",")):
            continue
        for dtype in options.dtypes.split(","):
            if dtype in case.dtypes:
                for row in measure(case, dtype, loops, options):
                    print(json.dumps(row), flush=True)


if __name__ == "__main__":
    sys.exit(main())
