import pytest
import torch

from lowtide.utils.hooks import GlobalSubscriberManager


@pytest.fixture(autouse=True)
def no_subscription_stays():
    torch.manual_seed(0)
    yield
    GlobalSubscriberManager.unsubscribe()
