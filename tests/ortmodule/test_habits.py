"""Habits of ordinary code: each trains as in PyTorch, as one graph or in pieces."""

import functools

import numpy as np
import pytest
import torch
from modules import assert_same, assert_same_state, step
from torch import nn
from torch.nn.utils import prune

from lowtide.ortmodule import ORTModule

pytestmark = pytest.mark.usefixtures("with_pieces")


def numbers(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def causal_mask(length):
    return nn.Transformer.generate_square_subsequent_mask(length, dtype=torch.float64)


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 8, 0.0, batch_first=True), 2)

    def forward(self, x, mask):
        return self.encoder(x, mask)


class MaskingEncoder(Encoder):
    def forward(self, x, _):
        return self.encoder(x, mask=causal_mask(x.shape[1]))


class Both(nn.Module):
    def __init__(self):
        super().__init__()
        self.both = nn.Transformer(4, 2, 1, 1, 8, 0.0, batch_first=True)

    def forward(self, x, mask):
        return self.both(x, x, tgt_mask=mask)


class Likelihood(nn.Module):
    """torch.distributions check their arguments."""

    def __init__(self):
        super().__init__()
        self.l = nn.Linear(4, 8)

    def forward(self, x):
        mean, spread = self.l(x).chunk(2, -1)
        likely = torch.distributions.Normal(mean, nn.functional.softplus(spread))
        return -likely.log_prob(x).mean() + torch.distributions.Categorical(logits=mean).entropy().mean()


class Speech(nn.Module):
    """The loss of a recogniser, with lengths in tensors and in lists, of flat targets and of padded ones."""

    def __init__(self):
        super().__init__()
        self.l = nn.Linear(4, 6)

    def forward(self, x, targets, lengths):
        likely = self.l(x).log_softmax(-1).transpose(0, 1)
        padded = nn.functional.ctc_loss(likely, targets, lengths, lengths // 3, reduction="sum", zero_infinity=True)
        flat = targets[:, :1].flatten()
        return padded + nn.CTCLoss(blank=1)(likely[:, :1], flat[:1] * 0, (7,), (1,))


def spoken(index):
    lengths = torch.tensor([7, 9, 8 + index % 2])
    return numbers(3, 9 + index % 2, 4), torch.randint(1, 6, (3, 4)), lengths


class Codebook(nn.Module):
    """Of a VQ-VAE: means that move with what is assigned to them, written through `.data`."""

    def __init__(self):
        super().__init__()
        self.l = nn.Linear(4, 3)
        self.register_buffer("codes", torch.randn(5, 3))
        self.register_buffer("counts", torch.ones(5))
        self.register_buffer("sums", self.codes.clone())

    def forward(self, x):
        found = self.l(x)
        codes = self.codes.data
        places = (found.unsqueeze(1) - codes).square().sum(-1).argmin(-1)
        taken = nn.functional.embedding(places, codes)
        hot = nn.functional.one_hot(places, 5).to(x.dtype)
        self.counts.data.mul_(0.9).add_(hot.sum(0), alpha=0.1)
        self.sums.data.mul_(0.9).add_(hot.t() @ found.detach(), alpha=0.1)
        self.codes.data.copy_(self.sums / (self.counts + 1e-5).unsqueeze(1))
        return found + (taken - found).detach(), (taken.detach() - found).square().mean()


class Normed(nn.Module):
    """Hooks compute weights at each call."""

    def __init__(self):
        super().__init__()
        self.first = nn.utils.weight_norm(nn.Linear(4, 4))
        self.second = nn.utils.spectral_norm(nn.Linear(4, 4))
        self.third = prune.l1_unstructured(nn.Linear(4, 4), "weight", 0.5)

    def forward(self, x):
        return self.third(self.second(self.first(x)).relu())


class Packed(nn.Module):
    """Lengths in tensors, in any order; a second layer whose states are given."""

    def __init__(self):
        super().__init__()
        self.first = nn.LSTM(4, 4, batch_first=True, bidirectional=True)
        self.second = nn.GRU(8, 4, 2, batch_first=True)

    def forward(self, x, lengths, longest=None):
        packed = nn.utils.rnn.pack_padded_sequence(x.tanh(), lengths.cpu(), batch_first=True, enforce_sorted=False)
        out, (hidden, cell) = self.first(packed)
        out, last = self.second(out, hidden.tanh())
        out, found = nn.utils.rnn.pad_packed_sequence(out, batch_first=True, total_length=longest)
        return out, last, cell.sin(), found


def packed(index):
    lengths = torch.tensor([4, 6 + index % 2, 2])
    return numbers(3, 7, 4).requires_grad_(), lengths


ONE_GRAPH = {
    "packed sequences": (Packed, packed),
    "packed sequences, of a length": (Packed, lambda i: (*packed(i), 7)),
    "codebook": (Codebook, lambda i: (numbers(5 + i % 2, 4),)),
    "normed and pruned weights": (Normed, lambda i: (numbers(5, 4),)),
    "ctc_loss": (Speech, spoken),
    "mask of an encoder": (Encoder, lambda i: (numbers(2, 5 + i % 2, 4), causal_mask(5 + i % 2))),
    "mask that is not causal": (Encoder, lambda i: (numbers(2, 5, 4), numbers(5, 5))),
    "mask of bools": (Encoder, lambda i: (numbers(2, 5, 4), causal_mask(5) < 0)),
    "mask made in forward": (MaskingEncoder, lambda i: (numbers(2, 5 + i % 2, 4), None)),
    "mask of a decoder": (Both, lambda i: (numbers(2, 5, 4), causal_mask(5))),
}


@functools.lru_cache
def places(count):
    return torch.arange(count, dtype=torch.float64)[:, None]


class Cached(nn.Module):
    def __init__(self):
        super().__init__()
        self.l = nn.Linear(4, 4)

    def forward(self, x):
        return self.l(x) + places(x.shape[0])


class Averaged(nn.Module):
    """Running statistics that are means of all batches."""

    def __init__(self):
        super().__init__()
        self.l, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4, momentum=None)

    def forward(self, x):
        return self.norm(self.l(x))


class Counted(Cached):
    """A size from data, and a piece that takes nothing but sizes and parameters."""

    def forward(self, x):
        rows = int((x[:, 0] > 0).sum())
        return self.l(torch.ones(rows, 4, dtype=x.dtype)).sin() * rows


class Replaced(nn.Module):
    """A new Parameter for the old one."""

    def __init__(self):
        super().__init__()
        self.l, self.mean = nn.Linear(4, 4), nn.Parameter(torch.zeros(4), requires_grad=False)

    def forward(self, x):
        y = self.l(x)
        self.mean = nn.Parameter(self.mean * 0.9 + y.detach().mean(0) * 0.1, requires_grad=False)
        return y - self.mean


class Warmed(Cached):
    """A factor that follows from how often forward has run."""

    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return self.l(x) * min(1.0, self.calls / 10)


class Shuffled(nn.Module):
    """NumPy's random numbers are NumPy's, not PyTorch's."""

    def __init__(self):
        super().__init__()
        self.l = nn.Linear(4, 4)

    def forward(self, x):
        y = self.l(x)
        np.random.seed(3)
        return y[:, torch.from_numpy(np.random.permutation(4))] * torch.arange(4.0, dtype=x.dtype)


class Scripted(nn.Module):
    def __init__(self):
        super().__init__()
        self.l, self.child = nn.Linear(4, 4), torch.jit.script(nn.Sequential(nn.Linear(4, 4), nn.Tanh()))

    def forward(self, x):
        return self.child(self.l(x))


PIECES = {
    "a scripted child": (Scripted, lambda i: (numbers(6, 4),)),
    "a parameter replaced": (Replaced, lambda i: (numbers(6, 4),)),
    "calls counted, more than Dynamo compiles": (Warmed, lambda i: (numbers(6, 4),)),
    "NumPy's random numbers": (Shuffled, lambda i: (numbers(6, 4),)),
    "distributions": (Likelihood, lambda i: (numbers(6 + i, 4),)),
    "lru_cache of a size": (Cached, lambda i: (numbers(5 + i % 3, 4),)),
    "BatchNorm without momentum": (Averaged, lambda i: (numbers(6, 4),)),
    "sizes from data": (Counted, lambda i: (torch.arange(-2.0, 14, dtype=torch.float64).sub(i).view(-1, 1).neg(),)),
}


def train(make, arguments_of, steps):
    made = []
    for _ in range(2):  # not a copy, which modules that hold computed tensors refuse
        torch.manual_seed(0)
        made.append(make().double())
    eager, wrapped = made[0], ORTModule(made[1])
    for index in range(steps):
        arguments = arguments_of(index)
        expected = step(eager, arguments)
        assert_same(step(wrapped, arguments), expected, rtol=1e-9, atol=1e-9)
    assert_same_state(wrapped, eager)
    return wrapped


@pytest.mark.parametrize(
    "make, arguments_of",
    [
        pytest.param(
            *case,
            id=name,
            marks=[]
            if name in ("codebook", "ctc_loss", "mask made in forward", "packed sequences")
            else pytest.mark.long,
        )
        for name, case in ONE_GRAPH.items()
    ],
)
def test_one_graph(make, arguments_of):
    assert train(make, arguments_of, 3).fallback_reason is None


@pytest.mark.filterwarnings("ignore::lowtide.errors.FallbackWarning")
@pytest.mark.parametrize("make, arguments_of", PIECES.values(), ids=PIECES)
def test_pieces(make, arguments_of):
    wrapped = train(make, arguments_of, 12)
    assert wrapped.fallback_reason is None or "pieces in the engine" in wrapped.fallback_reason
    assert "; in PyTorch" not in (wrapped.fallback_reason or "")


@pytest.mark.filterwarnings("ignore::lowtide.errors.FallbackWarning")
def test_rows_of_packed_sequences_are_pytorchs():
    """A loss over packed rows knows no padding."""

    class Rows(nn.Module):
        def __init__(self):
            super().__init__()
            self.rows = nn.LSTM(4, 4)

        def forward(self, x, lengths):
            out, _ = self.rows(nn.utils.rnn.pack_padded_sequence(x, lengths))
            return out.data.mean()

    wrapped = train(Rows, lambda i: (numbers(6, 3, 4), torch.tensor([6, 4 - i, 2])), 2)
    assert "forward computes with the rows of a packed sequence" in wrapped.fallback_reason
