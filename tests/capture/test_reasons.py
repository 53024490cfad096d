"""A refusal's reason is that of the try that decided: an export is tried with sizes and numbers of several kinds."""

import pytest
import torch

from lowtide.capture import capture
from lowtide.errors import UnsupportedError

BRANCH = r"forward branches on data or takes a size from data, which a graph does not know \(test_reasons.py:{}\)"


class Branches(torch.nn.Module):
    """A batch of one is first exported as a batch of two, where other lines fail than for the batch itself."""

    def __init__(self, forward):
        super().__init__()
        self.fc = torch.nn.Linear(4, 4)
        self.attention = torch.nn.MultiheadAttention(4, 1)
        self._forward = forward

    def forward(self, x):
        return self._forward(self, x)


def on_the_only_row(module, x):
    return module.fc(x) if x[:, 0] > 0 else x


def after_a_view_of_one_row(module, x):
    row = x.reshape(1, 4)
    return module.fc(row) if row.sum() > 0 else row


def after_attention_with_a_mask_of_one(module, x):
    x, _ = module.attention(x, x, x, attn_mask=torch.zeros(1, 1))
    return module.fc(x) if x.sum() > 0 else x


def once_its_first_call_is_over(module, x):
    if not hasattr(module, "called"):
        module.called = True
        return module.fc(x)
    return module.fc(x) if x.sum() > 0 else x


@pytest.mark.parametrize(
    "forward",
    [on_the_only_row, after_a_view_of_one_row, after_attention_with_a_mask_of_one, once_its_first_call_is_over],
)
def test_the_reason_is_that_of_the_last_try(forward):
    module = Branches(forward)
    last_line = max(line for _, _, line in forward.__code__.co_lines() if line)
    with pytest.raises(UnsupportedError, match=BRANCH.format(last_line)):
        capture(module, (torch.ones(1, 4),))
    assert not hasattr(module, "called")


def test_an_error_that_the_caller_handles_is_no_reason():
    module = Branches(on_the_only_row)
    try:
        raise UnsupportedError("another module's")
    except UnsupportedError:
        with pytest.raises(UnsupportedError, match="branches on data"):
            capture(module, (torch.ones(1, 4),))
