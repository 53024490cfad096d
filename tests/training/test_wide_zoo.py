"""The architectures of tests/wide_zoo.py train as in eager, in fp64 and at two sizes, as one graph each."""

import copy

import pytest
import wide_zoo
from compare import distances, report, train
from list_architectures import documented, fallbacks

from lowtide.ortmodule import ORTModule

IN_CI = ("bert_qa",)


@pytest.mark.parametrize(
    "name", [name if name in IN_CI else pytest.param(name, marks=pytest.mark.long) for name in wide_zoo.NAMES]
)
def test_losses_and_gradients_are_eagers(name):
    model, make_batch = wide_zoo.build(name)
    batches = [make_batch(batch, length, seed) for seed, (batch, length) in enumerate([(2, 16), (2, 16), (3, 24)])]
    eager = train(copy.deepcopy(model), batches)
    wrapped = ORTModule(model)
    engine = train(wrapped, batches)  # which asserts that nothing falls back
    loss_tolerance, tolerance = (1e-6, 1e-5) if name in wide_zoo.IN_FP32 else (1e-8, 1e-6)
    assert engine.losses == pytest.approx(eager.losses, rel=loss_tolerance, abs=0)
    for parameter, distance in distances(engine.gradients, eager.gradients).items():
        assert distance <= tolerance, f"{parameter}: {distance:.1e}"
    assert documented()[name] == fallbacks(report(wrapped))
