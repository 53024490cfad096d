"""Every lowered ATen op on PyTorch's own sample inputs: outputs and gradients against PyTorch's.

Up to 8 samples per op in float32, 4 in other dtypes, with --all every one. op_skips.py says what is left out and why.
"""

import warnings

import pytest
import torch
import torch.utils._pytree as pytree
from op_skips import NO_VALUES, NOT_CALLED, STAYS, TOLERANCES, skip_reason
from own_samples import own_samples
from sample_graph import Invocation, SampleGraph
from torch.testing._internal.common_methods_invocations import op_db

from lowtide import _lowtide

DTYPES = (torch.float32, torch.float64, torch.int64, torch.bool)
BATCH = 8  # samples in one graph
FIRST = 4  # that are compared without --all, but in float32
LOWERED = frozenset(_lowtide.lowered_targets())
_PACKETS = {target.split("::")[1].split(".")[0] for target in LOWERED}
_MORE = {"nn.functional.cross_entropy", "nn.functional.dropout2d", "T", "contiguous"}  # by other names
_FAMILIES = ("", "nn.functional.", "linalg.", "special.")


def _is_lowered(op):
    family, _, name = op.name.rpartition(".")
    known = (family + "." if family else "") in _FAMILIES and bool({name, op.aten_name} & _PACKETS)
    return known or op.name in _MORE


EXERCISED = set()  # targets that some test has compared
OPS = [op for op in op_db if _is_lowered(op)]


@pytest.fixture(scope="module", autouse=True)
def torch_installed():
    _lowtide.install_torch(torch.get_num_threads())


def _samples(op, dtype, limit):
    """PyTorch's samples that are not skipped, as invocations."""
    takes_gradient = dtype.is_floating_point and op.supports_autograd
    torch.manual_seed(0)
    # To its end, see benchmarks/coverage/kinds.py.
    samples = list(op.sample_inputs("cpu", dtype, requires_grad=takes_gradient))
    samples = [sample for sample in samples if not skip_reason(op, dtype, sample)][:limit]
    return [Invocation(op.op, (sample.input, *sample.args), sample.kwargs) for sample in samples]


def _tolerance(op, dtype):
    other, rtol, _ = TOLERANCES.get(op.name, (None, 0, ""))
    if other is dtype:
        return rtol, rtol
    return (1e-9, 1e-10) if dtype is torch.float64 else (1e-5, 2e-5)


def _wrong(op, dtype, invocations):
    """What is wrong with these calls, one line each."""
    try:
        graph = SampleGraph(invocations)
        EXERCISED.update(graph.targets)
        found = graph.mismatches(*_tolerance(op, dtype), values=op.name not in NO_VALUES)
    except Exception as error:
        if len(invocations) > 1:
            return [line for invocation in invocations for line in _wrong(op, dtype, [invocation])]
        text = " ".join(str(error).split())[:400]
        return [f"{dtype} {op.name}({invocations[0]}): {type(error).__name__}: {text}"]
    lines = [f"{dtype} {op.name}({mismatch.invocation}): {mismatch.text}" for mismatch in found]
    stays = graph.fallbacks & LOWERED - STAYS.keys()
    return lines + [f"{dtype} {op.name}: {target} stays on PyTorch's kernel" for target in sorted(stays)]


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.formatted_name)
def test_op(op, request):
    everything = request.config.getoption("--all")
    wrong, count = [], 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for dtype in DTYPES:
            if dtype not in op.dtypes:
                continue
            limit = BATCH if dtype is torch.float32 else FIRST
            invocations = _samples(op, dtype, None if everything else limit)
            count += len(invocations)
            for first in range(0, len(invocations), BATCH):
                wrong += _wrong(op, dtype, invocations[first : first + BATCH])
    assert not wrong, "\n".join(wrong)
    if count == 0:
        pytest.skip("every sample is left out, see op_skips.py")


OWN = own_samples()


@pytest.mark.parametrize("target", sorted(OWN))
def test_own_sample(target):
    namespace, name = target.split("::")
    packet, overload = name.split(".")
    arguments, keywords = OWN[target]
    arguments = pytree.tree_map_only(torch.Tensor, _with_gradient, arguments)
    call = Invocation(getattr(getattr(getattr(torch.ops, namespace), packet), overload), arguments, keywords)
    graph = SampleGraph([call])
    EXERCISED.update(graph.targets)
    assert target in graph.targets
    assert not graph.fallbacks
    assert not graph.mismatches(1e-9, 1e-10)


def _with_gradient(tensor):
    return tensor.detach().requires_grad_(tensor.is_floating_point())


def test_every_lowered_target_is_exercised(request):
    ran = [item for item in request.session.items if item.function in (test_op, test_own_sample)]
    if len(ran) < len(OPS) + len(OWN):
        pytest.skip("only some of this file's tests were chosen")
    assert not sorted(LOWERED - EXERCISED - NOT_CALLED.keys())
