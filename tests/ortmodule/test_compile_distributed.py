"""torch.compile(…, backend="lowtide") with DistributedDataParallel, inside and around: one process, gloo."""

import copy
import gc

import pytest
import torch
from modules import assert_same_state
from torch.nn.parallel import DistributedDataParallel

from lowtide import compile_backend


@pytest.fixture
def group(tmp_path):
    rendezvous = f"file://{tmp_path / 'rendezvous'}"
    torch.distributed.init_process_group("gloo", init_method=rendezvous, rank=0, world_size=1)
    yield
    gc.collect()  # no DistributedDataParallel may outlive its group: PyTorch hangs where one is freed later
    torch.distributed.destroy_process_group()


WIDTH = 512  # 2 MiB a layer


class Net(torch.nn.Module):  # Dynamo begins no graph in a frame of PyTorch's own, as a Sequential's
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.norm = torch.nn.BatchNorm1d(WIDTH)

    def forward(self, x):
        for layer in self.layers:
            x = torch.nn.functional.gelu(layer(x))
        return self.norm(x)


def net():
    torch.manual_seed(0)
    return Net().double()


def check(module, call, pieces):
    eager = copy.deepcopy(module)
    for rows in (6, 6, 9, 5):
        x = torch.randn(rows, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(rows))
        ours, theirs = call(x), eager(x)
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)
        ours.square().mean().backward()
        theirs.square().mean().backward()
    assert_same_state(module, eager)
    assert pieces and [piece.fallback_reason for piece in pieces] == [None] * len(pieces)


def test_a_compiled_module_inside(group, pieces):
    module = net()
    check(module, DistributedDataParallel(torch.compile(module, backend=compile_backend.lowtide)), pieces)


def test_around_the_graph_is_split_at_the_buckets(group, pieces):
    """So that gradients of the last layers travel while those of the first are computed."""
    module = net()
    outer = DistributedDataParallel(module, bucket_cap_mb=2)
    check(module, torch.compile(outer, backend=compile_backend.lowtide), pieces)
    assert len(pieces) > 2, "two of Dynamo's graphs, each for several buckets"
