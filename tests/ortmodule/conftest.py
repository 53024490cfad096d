import pytest
import torch


@pytest.fixture(autouse=True)
def same_weights_each_time():
    torch.manual_seed(0)
