"""Where the engine runs PyTorch's own samples of an op, and whether forward and gradient are PyTorch's."""

import collections
import functools
import re
import sys
import warnings
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException
from torch.testing._internal.common_methods_invocations import op_db

from lowtide import _lowtide
from lowtide.errors import UnsupportedError

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "ops"))
from op_skips import TOLERANCES  # noqa: E402
from sample_graph import Invocation, SampleGraph, TracingFailed  # noqa: E402

BATCH = 8  # samples in one graph
RTOL, ATOL = 1e-4, 1e-4
NATIVE, PYTORCH, REFUSED, WRONG = "native", "PyTorch", "refused", "wrong"
DATA = "a size or a number depends on data"


@dataclass
class Coverage:
    """Of one op: how many samples ran where, why the others were refused, and what was wrong."""

    name: str
    counts: collections.Counter = field(default_factory=collections.Counter)
    reasons: collections.Counter = field(default_factory=collections.Counter)
    wrong: list = field(default_factory=list)

    @property
    def total(self):
        return self.counts.total()


@dataclass(frozen=True)
class Variant:
    """An OpInfo that has samples of float32, or the form of it that writes into its first argument."""

    op: object
    in_place: bool

    @property
    def name(self):
        name = self.op.name + "_" if self.in_place else self.op.name
        return ".".join(filter(None, (name, self.op.variant_test_name)))

    def __call__(self, first, *args, **kwargs):
        if not self.in_place:
            return self.op.op(first, *args, **kwargs)
        written = first.clone()
        self.op.inplace_variant(written, *args, **kwargs)
        return written

    def samples(self, limit):
        """As invocations, those that eager takes."""
        takes_gradient = self.op.supports_inplace_autograd if self.in_place else self.op.supports_autograd
        torch.manual_seed(0)
        # To its end: a generator that is left open switches gradients back when it is collected, in the midst of a
        # trace perhaps, which would note that.
        samples = list(self.op.sample_inputs("cpu", torch.float32, requires_grad=takes_gradient))
        calls = [
            Invocation(self, (sample.input, *sample.args), sample.kwargs)
            for sample in samples[:limit]
            if isinstance(sample.input, torch.Tensor) or not self.in_place
        ]
        return [call for call in calls if _runs_in_pytorch(call)]


@functools.cache
def variants():
    """By their names, in order."""
    infos = [op for op in op_db if torch.float32 in op.supported_dtypes("cpu")]
    found = [Variant(op, in_place) for op in infos for in_place in (False, True) if op.inplace_variant or not in_place]
    return {variant.name: variant for variant in sorted(found, key=lambda variant: variant.name)}


def start():
    """In a process that judges."""
    torch.set_num_threads(1)
    _lowtide.install_torch(1)


def covered(task):
    name, limit = task
    return cover(variants()[name], limit)


def cover(variant, limit=None):
    """`limit`: the most samples; None for all."""
    coverage = Coverage(variant.name)
    invocations = variant.samples(limit)
    for first in range(0, len(invocations), BATCH):
        _judge(coverage, invocations[first : first + BATCH])
    return coverage


def _runs_in_pytorch(call):
    """Whether eager takes the call and gives tensors, with their gradients."""
    try:
        outputs = call([tensor.detach().clone().requires_grad_(tensor.requires_grad) for tensor in call.tensors])
        flowing = [output for output in outputs if output.requires_grad]
        torch.autograd.backward(flowing, [torch.ones_like(output) for output in flowing])
    except Exception:
        return False
    return bool(call.tensors) and bool(outputs)


def _judge(coverage, invocations):
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            graph = SampleGraph(invocations)
            values = not graph.is_random and "empty" not in coverage.name  # draws, and memory as it was
            _, rtol, _ = TOLERANCES.get(coverage.name, (None, 0, ""))
            found = graph.mismatches(max(rtol, RTOL), max(rtol, ATOL), values=values)
    except Exception as error:
        if len(invocations) > 1:
            for invocation in invocations:
                _judge(coverage, [invocation])
            return
        reason = reason_of(error)
        coverage.counts[REFUSED if reason else WRONG] += 1
        if reason:
            coverage.reasons[reason] += 1
        else:
            coverage.wrong.append(f"{invocations[0]}: {type(error).__name__}: {_one_line(error)}")
        return
    if graph.fallbacks and len(invocations) > 1:  # which of them
        for invocation in invocations:
            _judge(coverage, [invocation])
        return
    bad = {id(mismatch.invocation) for mismatch in found}
    right = PYTORCH if graph.fallbacks else NATIVE
    coverage.counts.update(WRONG if id(call) in bad else right for call in invocations)
    coverage.wrong += [f"{mismatch.invocation}: {mismatch.text}" for mismatch in found]


def reason_of(error):
    """Why the engine does not take a call, in words without numbers; empty for what is no refusal."""
    if isinstance(error, TracingFailed):
        depends_on_data = isinstance(error.__cause__, DataDependentOutputException | DynamicOutputShapeException)
        return DATA if depends_on_data or "nbacked" in str(error) else "PyTorch's tracer fails"
    if isinstance(error, UnsupportedError):
        text = re.sub(r" ?\([^()]*\)$", "", _one_line(error))
        text = re.sub(r"the size data_u\d+ depends on data", DATA, text)
        return re.sub(r"^\w+::[\w.]+( \([^()]*\))?: ", "", text)
    return ""


def _one_line(error):
    return " ".join(str(error).split())[:400]
