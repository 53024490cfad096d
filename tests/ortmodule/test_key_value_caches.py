"""transformers models return a key-value cache by default: ours is eager's, and nobody's configuration is changed."""

import copy

import pytest
import torch
import transformers
import zoo

from lowtide.ortmodule import ORTModule


def attributes(part):
    """What a cache or a layer holds, caches inside of it too."""
    found = {}
    for name, value in vars(part).items():
        for index, each in enumerate(value if isinstance(value, list) else [value]):
            key = f"{name}[{index}]"
            found[f"type of {key}"] = type(each)
            if type(each).__module__ == "transformers.cache_utils":
                found.update({f"{key}.{inner}": value for inner, value in attributes(each).items()})
            else:
                found[key] = each
    return found


def cut(batch, length):
    return {name: tensor[:, :length] if tensor.dim() == 2 else tensor for name, tensor in batch.items()}


@pytest.mark.parametrize("name", ["gpt2", "mistral"])  # mistral's window slides
def test_the_cache_is_eagers(name):
    model, make_batch = zoo.build(name)
    model.config.use_cache = True
    model.eval()  # without dropout
    eager, batch = copy.deepcopy(model), make_batch()
    before, wrapped = model.config.to_dict(), ORTModule(model)
    for length in (16, 12):
        outputs = []
        for each in (wrapped, eager):
            output = each(**cut(batch, length))
            outputs.append(output)
            each.zero_grad()
            layer = output.past_key_values.layers[0]
            (output.loss + layer.keys.square().sum() + layer.values.sum()).backward()
        found, expected = (attributes(output.past_key_values) for output in outputs)
        assert type(outputs[0].past_key_values) is type(outputs[1].past_key_values)
        compare(found, expected)
        for (path, ours), theirs in zip(wrapped.named_parameters(), eager.parameters(), strict=True):
            torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-3, atol=1e-4, msg=path)
        assert wrapped.fallback_reason is None and model.config.to_dict() == before


def compare(found, expected):
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        if isinstance(value, torch.Tensor):
            torch.testing.assert_close(found[key], value, rtol=1e-4, atol=1e-5)
            assert found[key].requires_grad == value.requires_grad
        else:
            assert found[key] == value, key


def test_a_cache_that_goes_on_from_the_last_call():
    """Forward writes into the caller's own. (PyTorch ran such calls.)"""
    model, make_batch = zoo.build("gpt2")
    model.config.use_cache = True
    model.eval()
    eager, wrapped = copy.deepcopy(model), ORTModule(model)
    ids = make_batch()["input_ids"]
    results = []
    for each in (wrapped, eager):
        first = each(input_ids=ids[:, :4])
        second = each(input_ids=ids[:, 4:5], past_key_values=first.past_key_values)
        assert second.past_key_values is first.past_key_values
        results.append((second.logits, first))
    assert wrapped.fallback_reason is None
    torch.testing.assert_close(results[0][0], results[1][0], rtol=1e-4, atol=1e-5)
    compare(*(attributes(first.past_key_values) for _, first in results))


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_gradients_through_a_cache_that_starts_empty(name):
    model, make_batch = zoo.build(name)
    model.config.use_cache = True
    model.eval()
    eager, wrapped, batch = copy.deepcopy(model), ORTModule(model), make_batch()["input_ids"]
    for length in (6, 9):
        found = []
        for each in (wrapped, eager):
            each.zero_grad()
            cache = transformers.DynamicCache(config=eager.config)
            first = each(input_ids=batch[:, :4], past_key_values=cache)
            second = each(input_ids=batch[:, 4:length], labels=batch[:, 4:length], past_key_values=cache)
            (second.loss + first.logits.square().mean()).backward()
            found.append([[parameter.grad for parameter in each.parameters()], attributes(cache)])
        torch.testing.assert_close(found[0][0], found[1][0], rtol=1e-3, atol=1e-4)
        compare(found[0][1], found[1][1])
        assert wrapped.fallback_reason is None
