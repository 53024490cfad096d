"""torch.vmap inside of forward: PyTorch's batching rules write it out, and the graph trains as eager does."""

import copy

import pytest
import torch
from transformers import T5Gemma2Config, T5Gemma2ForConditionalGeneration
from transformers.masking_utils import create_causal_mask
from transformers.models.llama import LlamaConfig

from lowtide.capture import capture
from lowtide.errors import UnsupportedError
from lowtide.ortmodule import ORTModule


class Of(torch.nn.Module):
    """forward is function(module, inputs…), with one linear layer to train."""

    def __init__(self, function):
        super().__init__()
        self.l = torch.nn.Linear(4, 4)
        self._function = function

    def forward(self, *args):
        return self._function(self, *args)


def rows(batch=3, length=6):
    generator = torch.Generator().manual_seed(batch)
    return torch.randn(batch, length, 4, generator=generator, dtype=torch.float64).requires_grad_()


def check(module, *calls):
    """Outputs and gradients of `calls`, each a tuple of inputs, are eager's, in one graph."""
    module = module.double()
    wrapped, eager = ORTModule(module), copy.deepcopy(module)
    for inputs in calls:
        results = []
        for target in (wrapped, eager):
            target.zero_grad()
            given = [value.detach().requires_grad_(value.requires_grad) for value in inputs]
            output = target(*given)
            output.sin().sum().backward()
            results.append([output, *(value.grad for value in given), *(p.grad for p in target.parameters())])
        torch.testing.assert_close(*results)
        assert wrapped.fallback_reason is None


FUNCTIONS = {
    "reductions": lambda m, a: torch.vmap(lambda row: (row.softmax(0) * row.max()).sum(1))(m.l(a)),
    "products": lambda m, a: torch.vmap(torch.matmul, in_dims=(0, None))(a, m.l.weight),
    "columns": lambda m, a: torch.vmap(lambda column: m.l(column).cumsum(0), in_dims=1)(a),
    "norms": lambda m, a: torch.vmap(lambda row: torch.nn.functional.layer_norm(m.l(row), (6, 4)))(a),
    "pairs": lambda m, a: sum(torch.vmap(lambda row, s: (row * s, row + s), in_dims=(1, None))(m.l(a), a[0, 0])),
    "nested": lambda m, a: torch.vmap(torch.vmap(lambda u, v: u @ v, (None, 0)), (0, None))(m.l(a)[0], a[1]),
    "writes": lambda m, a: torch.vmap(lambda row: row.clone().mul_(2).add_(row[0]))(m.l(a)),
    "no_grad around": lambda m, a: m.l(a) * torch.no_grad()(torch.vmap(lambda row: row.sum(0)))(m.l(a))[:, None],
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_trains_as_in_eager(name):
    check(Of(FUNCTIONS[name]), (rows(),), (rows(),))


def test_masks_of_transformers():
    """Nested over batch, heads, queries and keys, and looked up in tensors of the whole."""
    config = LlamaConfig(hidden_size=4, num_attention_heads=1, attn_implementation="sdpa")

    def attended(m, a, words):
        hidden = m.l(a)

        def same_word(batch, head, query, key):
            return words[batch, query] == words[batch, key]

        mask = create_causal_mask(config, hidden, None, None, and_mask_function=same_word)
        return torch.nn.functional.scaled_dot_product_attention(*[hidden[:, None]] * 3, attn_mask=mask)

    def calls(batch, length):
        return rows(batch, length), torch.arange(batch * length).view(batch, length) // 4

    check(Of(attended), calls(3, 6), calls(2, 9))


def test_one_graph_serves_other_sizes():
    graph = capture(Of(FUNCTIONS["reductions"]).double(), (rows(),)).graph.text()
    assert "args_0_dim0" in graph and "args_0_dim1" in graph and "vmap_" not in graph


def test_random_numbers_and_rows_that_are_kept_are_refused():
    def kept(m, a):
        rows = []
        torch.vmap(lambda row: rows.append(m.l.weight * 2) or row.sum(0))(a)
        return m.l(a) @ rows[0]

    def random(m, a):
        return m.l(a) + torch.vmap(lambda row: row + torch.rand(4), randomness="different")(a)

    for function, word in (kept, "keeps a row"), (random, "random"):
        with pytest.raises(UnsupportedError, match=word):
            capture(Of(function).double(), (rows(),))


def test_t5gemma2():
    part = {
        **dict(vocab_size=99, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4),
        **dict(num_key_value_heads=2, head_dim=8, sliding_window=8, max_position_embeddings=64),
        **dict(pad_token_id=0, bos_token_id=1, eos_token_id=2),
    }
    seen = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=4, image_size=32)
    config = T5Gemma2Config(
        encoder={"text_config": part, "vision_config": {**seen, "patch_size": 8}, "eoi_token_index": 3},
        decoder={**part, "use_cache": False},
        image_token_index=4,
    )
    torch.manual_seed(0)
    model = T5Gemma2ForConditionalGeneration(config).double()
    wrapped, eager = ORTModule(model, keep_outputs=("loss",)), copy.deepcopy(model)
    ids = torch.randint(5, 99, (2, 12), generator=torch.Generator().manual_seed(0))
    losses = []
    for target in (wrapped, eager):
        losses.append(target(input_ids=ids, labels=ids[:, :7].contiguous()).loss)
        losses[-1].backward()
    torch.testing.assert_close(*losses)
    gradients = [{name: p.grad for name, p in target.named_parameters()} for target in (model, eager)]
    torch.testing.assert_close(*gradients, rtol=1e-5, atol=1e-7)  # its norms and angles are in fp32
    assert wrapped.fallback_reason is None
