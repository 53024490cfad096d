"""Padding that a mask hides from attention is not computed: PyTorch's numbers on fewer rows, through all layers."""

import copy

import pytest
import torch
import zoo
from torch.nn import functional

from lowtide.ortmodule import DebugOptions, LogLevel, ORTModule

CLASSES, WIDTH, HEADS = 50, 16, 2


class Layer(torch.nn.Module):
    def __init__(self, dropout, prepare):
        super().__init__()
        self.qkv, self.out = torch.nn.Linear(WIDTH, 3 * WIDTH), torch.nn.Linear(WIDTH, WIDTH)
        self.up, self.down = torch.nn.Linear(WIDTH, 40), torch.nn.Linear(40, WIDTH)
        self.norm, self.dropout = torch.nn.LayerNorm(WIDTH), torch.nn.Dropout(dropout)
        self.prepare = prepare or torch.nn.Identity()

    def forward(self, x, mask):
        q, k, v = (
            part.unflatten(-1, (HEADS, -1)).transpose(1, 2)
            for part in self.prepare(self.qkv(self.norm(x))).chunk(3, -1)
        )
        mixed = functional.scaled_dot_product_attention(q, k, v, mask, self.dropout.p if self.training else 0.0)
        x = x + self.dropout(self.out(mixed.transpose(1, 2).flatten(2)))
        return x + self.down(functional.gelu(self.up(x))), k


class Encoder(torch.nn.Module):
    """`causal`: the mask differs from query to query; `penalty`: of all keys, those of padding too; `prepare`: of
    queries, keys and values."""

    def __init__(self, causal=False, dropout=0.0, penalty=False, prepare=None):
        super().__init__()
        self.table = torch.nn.Embedding(CLASSES, WIDTH)
        self.layers = torch.nn.ModuleList(Layer(dropout, prepare) for _ in range(2))
        self.head = torch.nn.Linear(WIDTH, CLASSES)
        self.causal, self.penalty = causal, penalty

    def forward(self, ids, shown, labels):
        mask = shown.bool()[:, None, None, :]
        if self.causal:
            places = torch.arange(ids.shape[1])
            mask = mask & (places <= places[:, None])
        x, penalty = self.table(ids), 0.0
        for layer in self.layers:
            x, keys = layer(x, mask)
            if self.penalty:
                penalty = penalty + keys.square().mean()
        return functional.cross_entropy(self.head(x).flatten(0, 1), labels.flatten()) + penalty


def batch(ends=(24, 12, 5, 18), length=24, front=False, share=1.0):
    """Sequences that end at `ends`, or begin so far from the end (`front`); `share` of their tokens has a label."""
    generator = torch.Generator().manual_seed(sum(ends) + length)
    ids = torch.randint(1, CLASSES, (len(ends), length), generator=generator)
    shown = (torch.arange(length) < torch.tensor(ends)[:, None]).long()
    shown = shown.flip(1) if front else shown
    is_labelled = shown.bool() & (torch.rand(ids.shape, generator=generator) < share)
    return ids, shown, ids.masked_fill(~is_labelled, -100)


def wrap(net):
    return ORTModule(copy.deepcopy(net), DebugOptions(LogLevel.WARNING))


def step(net, arguments):
    net.zero_grad()
    loss = net(*arguments)
    loss.backward()
    return loss.detach(), [parameter.grad for parameter in net.parameters()]


def products(wrapped):
    """Sizes of what products of forward make."""
    lines = wrapped.text("training").split("YieldOp")[0].splitlines()
    return [line.split(" = ")[0] for line in lines if "Gemm(" in line or "MatMul(" in line]


def leaves_padding_out(wrapped):
    return sum("[attended," in line for line in products(wrapped)) >= 2


@pytest.mark.parametrize("causal", [False, True], ids=["to all", "causal"])
def test_numbers_are_pytorchs(causal):
    net = Encoder(causal).double()
    wrapped = wrap(net)
    a_label_on_padding = batch()
    a_label_on_padding[2][2, 20] = 7
    cases = [
        batch(share=0.5),
        batch(front=True),
        a_label_on_padding,
        batch(ends=(24, 24, 24, 24)),
        batch(ends=(1, 31), length=31),
        batch(share=0.0),
    ]
    for arguments in cases:
        found, expected = step(wrapped, arguments), step(net, arguments)
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12, equal_nan=True)
    assert wrapped.fallback_reason is None and leaves_padding_out(wrapped)
    whole = [line for line in products(wrapped) if "ids_dim0" in line]
    assert not whole, "from the embedding on"


def test_dropout_draws_what_it_draws_on_all_rows(monkeypatch):
    net, found = Encoder(dropout=0.3).double(), []
    for value in ("1", "0"):
        monkeypatch.setenv("ORTMODULE_ENABLE_EMBEDDING_SPARSE_OPTIMIZER", value)
        wrapped = wrap(net)
        torch.manual_seed(3)
        found.append(step(wrapped, batch()))
        assert leaves_padding_out(wrapped) == (value == "1")
    torch.testing.assert_close(*found, rtol=1e-9, atol=1e-12)


def test_keys_that_others_read_are_computed_for_padding_too():
    net = Encoder(penalty=True).double()
    wrapped, arguments = wrap(net), batch()
    torch.testing.assert_close(step(wrapped, arguments), step(net, arguments), rtol=1e-9, atol=1e-12)
    assert wrapped.fallback_reason is None and not leaves_padding_out(wrapped)


def inverted(x):
    return x / (x * x).sum(-1, keepdim=True)


def unit_root_mean_square(x):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)


@pytest.mark.parametrize(("prepare", "leaves_out"), [(inverted, False), (unit_root_mean_square, True)])
def test_rows_that_are_not_there_are_finite(prepare, leaves_out):
    """Zeros have no inverse; their nan would reach others through an attention weight of zero."""
    net = Encoder(prepare=prepare).double()
    wrapped, arguments = wrap(net), batch()
    torch.testing.assert_close(step(wrapped, arguments), step(net, arguments), rtol=1e-9, atol=1e-12)
    assert wrapped.fallback_reason is None and leaves_padding_out(wrapped) == leaves_out


def test_masks_that_hide_little_change_nothing(caplog):
    wrapped = wrap(Encoder())
    step(wrapped, batch(ends=(24, 23, 24, 24), share=0.2))
    assert "Label Sparsity Opt" in caplog.text and "Embed Sparsity Opt" not in caplog.text
    assert not leaves_padding_out(wrapped)


def test_the_row_of_the_feature_table(caplog):
    step(wrap(Encoder()), batch())
    assert "- Embed Sparsity Opt :   ON    :   [AUTO ENABLED] Input density: shown: 61.5 %" in caplog.text


@pytest.mark.parametrize("name", ["bert", *(pytest.param(name, marks=pytest.mark.long) for name in ("gpt2", "llama"))])
def test_models_of_transformers(name):
    model, make_batch = zoo.build(name, dtype=torch.float64)
    wrapped = ORTModule(copy.deepcopy(model), keep_outputs=("loss",))
    inputs = make_batch()
    inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    inputs["attention_mask"][::2, inputs["input_ids"].shape[1] // 3 :] = 0
    inputs["labels"] = inputs["input_ids"].masked_fill(inputs["attention_mask"] == 0, -100)
    losses = []
    for net in (wrapped, model):
        torch.manual_seed(0)
        losses.append(net(**inputs).loss)
        losses[-1].backward()
    torch.testing.assert_close(losses[0], losses[1].to(losses[0].dtype))
    for ours, theirs in zip(wrapped.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-5, atol=1e-7)
    assert not [line for line in products(wrapped) if "input_ids_dim0" in line]
