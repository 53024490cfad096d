"""Whole numbers that modules keep in buffers, as Encodec's convolutions their strides: constants where forward branches
on them."""

import copy

import torch
from cached import graphs, run
from counted import assert_one_graph
from modules import assert_same, step

from lowtide.ortmodule import ORTModule


class Convolution(torch.nn.Module):
    """Padded such that no frame is cut off; a short signal is longer before it is reflected."""

    def __init__(self, size, stride):
        super().__init__()
        self.conv = torch.nn.Conv1d(2, 2, size, stride)
        self.norm = torch.nn.BatchNorm1d(2)
        self.stride = torch.nn.Buffer(torch.tensor(stride), persistent=False)
        self.total = torch.nn.Buffer(torch.tensor(size) - self.stride, persistent=False)

    def forward(self, x):
        frames = torch.ceil((x.shape[-1] + self.total) / self.stride).to(torch.int64)
        extra = frames * self.stride - x.shape[-1]
        added = 0
        if x.shape[-1] <= max(self.total, extra):
            added = max(self.total, extra) - x.shape[-1] + 1
            x = torch.nn.functional.pad(x, (0, added))
        padded = torch.nn.functional.pad(x, (self.total, extra), "reflect")
        return self.norm(self.conv(padded[..., : padded.shape[-1] - added]))


def signal(batch, length):
    generator = torch.Generator().manual_seed(batch)
    return (torch.randn(batch, 2, length, generator=generator, dtype=torch.float64, requires_grad=True),)


def stack():
    return torch.nn.Sequential(Convolution(3, 2), Convolution(6, 3)).double()


def test_one_graph_for_all_lengths_that_are_padded_alike():
    assert_one_graph(stack(), [signal(*sizes) for sizes in ((3, 17), (2, 18), (5, 31))])


def test_short_signals_and_other_numbers_are_other_graphs():
    module = stack()
    wrapped = ORTModule(copy.deepcopy(module))
    for length in (17, 20, 3, 17):
        assert_same(step(wrapped, signal(3, length)), step(module, signal(3, length)), rtol=1e-9, atol=1e-11)
        assert wrapped.fallback_reason is None
    for one in (module, wrapped):
        one[0].total.fill_(2)
    assert_same(step(wrapped, signal(3, 17)), step(module, signal(3, 17)), rtol=1e-9, atol=1e-11)
    assert wrapped.fallback_reason is None
    torch.testing.assert_close(dict(wrapped.named_buffers()), dict(module.named_buffers()))


def test_a_number_that_forward_changes_is_none():
    class Counting(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.l = torch.nn.Linear(4, 4)
            self.register_buffer("calls", torch.tensor(0))

        def forward(self, x):
            self.calls += 1
            return self.l(x) if self.calls > 2 else self.l(x).sin()

    module = Counting().double()
    wrapped = ORTModule(copy.deepcopy(module))
    for seed in range(4):
        x = torch.randn(3, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64, requires_grad=True)
        assert_same(step(wrapped, (x,)), step(module, (x,)))
        assert wrapped.calls == module.calls


def test_a_stored_graph_is_of_its_numbers(tmp_path, monkeypatch, exports):
    monkeypatch.setenv("ORTMODULE_CACHE_DIR", str(tmp_path))
    module = stack().eval()
    for stored, exported in ((1, 1), (1, 0), (2, 1)):
        exports.clear()
        assert run(copy.deepcopy(module), *signal(3, 17)).fallback_reason is None
        assert len(graphs(tmp_path)) == stored and bool(exports) == bool(exported)
        if not exported:
            module[0].total.fill_(2)
