"""The architectures of tests/wide_zoo.py train as in eager, in fp64 and at two sizes, vilt in pieces and the others
as one graph each."""

import contextlib
import copy
from unittest import mock

import pytest
import torch.nn.functional as F
import wide_zoo
from compare import distances, report, train
from list_architectures import documented, fallbacks

from lowtide.ortmodule import ORTModule

IN_CI = ("bert_qa",)


@contextlib.contextmanager
def exact_sums(ctc_loss=F.ctc_loss):
    """PyTorch adds the paths of a transcript up in fp32, of which 1e-4 of the gradient is left; lowtide in fp64."""

    def exact(log_probs, *args, **kwargs):
        return ctc_loss(log_probs.double(), *args, **kwargs).to(log_probs.dtype)

    with mock.patch.object(F, "ctc_loss", exact):
        yield


@pytest.mark.usefixtures("with_pieces")
@pytest.mark.parametrize(
    "name", [name if name in IN_CI else pytest.param(name, marks=pytest.mark.long) for name in wide_zoo.NAMES]
)
def test_losses_and_gradients_are_eagers(name):
    model, make_batch = wide_zoo.build(name)
    batches = [make_batch(batch, length, seed) for seed, (batch, length) in enumerate([(2, 16), (2, 16), (3, 24)])]
    with wide_zoo.surroundings(name):
        with exact_sums():
            eager = train(copy.deepcopy(model), batches)
        wrapped = ORTModule(model)
        engine = train(wrapped, batches)  # which asserts that nothing falls back
    loss_tolerance, tolerance = (1e-6, 1e-5) if name in wide_zoo.IN_FP32 else (1e-8, 1e-6)
    assert (wrapped.fallback_reason is None) == (name not in wide_zoo.IN_PIECES)
    assert engine.losses == pytest.approx(eager.losses, rel=loss_tolerance, abs=0)
    for parameter, distance in distances(engine.gradients, eager.gradients).items():
        assert distance <= tolerance, f"{parameter}: {distance:.1e}"
    assert documented()[name] == fallbacks(report(wrapped))
