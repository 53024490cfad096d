"""Collectives in forward, as users write them: losses and parameters are eager's on two processes."""

import pytest
from ranks import run_ranks

from lowtide.distributed import collectives

OF_NN = ("all_reduce_of_nn", "all_gather_of_nn")
PIECES = {
    "LOWTIDE_PIECES": "1",
    "ORTMODULE_FALLBACK_POLICY": "FALLBACK_UNSUPPORTED_TORCH_MODEL|FALLBACK_UNSUPPORTED_ONNX_MODEL",
}


@pytest.mark.parametrize(
    "cases, variables",
    [
        (("reduced", "used_before_the_wait", "gathered", "scattered", "several", "exchanged", "messages", *OF_NN), {}),
        pytest.param(("maximum_of_nn",), PIECES, marks=pytest.mark.long),
    ],
)
def test_losses_and_parameters_are_eagers(cases, variables):
    output = run_ranks("collective_cases.py", *cases, **variables)
    assert output.count(": right on rank") == 2 * len(cases)


class Work:
    """What goes on until it was waited for; `raised`: by the first wait."""

    def __init__(self, raised=None, ends=True):
        self.raised, self.ends, self.has_ended = raised, ends, False

    def wait(self):
        raised, self.raised = self.raised, None
        self.has_ended = raised is None or self.ends
        if raised is not None:
            raise raised


@pytest.mark.parametrize("raised", [RuntimeError("a process is gone"), KeyboardInterrupt()])
def test_nothing_is_at_work_when_a_wait_raises(raised):
    works = [Work(), Work(raised, ends=not isinstance(raised, KeyboardInterrupt)), Work()]
    with pytest.raises(type(raised)):
        collectives._waits_for(list(works))()
    assert all(work.has_ended for work in works)


@pytest.mark.long
def test_messages_of_four_processes():
    assert run_ranks("collective_cases.py", "messages", ranks=4).count(": right on rank") == 4
