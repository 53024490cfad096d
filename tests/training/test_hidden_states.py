"""transformers' models asked for hidden states or attentions: the first call installs hooks in the model, once."""

import copy

import pytest
import torch
import zoo

from lowtide.ortmodule import ORTModule


def total(outputs):
    """A loss that reads every output."""
    asked = [tensor for name in ("hidden_states", "attentions") for tensor in outputs.get(name) or ()]
    return outputs.loss + sum(tensor.square().mean() for tensor in asked)


@pytest.mark.parametrize(
    ("name", "asked"),
    [
        ("gpt2", "attentions"),
        ("bert", "hidden_states"),
        pytest.param("gpt2", "hidden_states", marks=pytest.mark.long),
        pytest.param("bert", "attentions", marks=pytest.mark.long),
    ],
)
def test_outputs_that_transformers_collects_by_hooks(name, asked, monkeypatch):
    monkeypatch.setenv("ORTMODULE_FALLBACK_POLICY", "FALLBACK_DISABLE")
    module, make_batch = zoo.build(name)
    module.config.use_cache = False
    if asked == "attentions":
        module.set_attn_implementation("eager")
    eager, wrapped = copy.deepcopy(module), ORTModule(module)
    for seed in range(2):
        batch = make_batch(seed=seed) | {f"output_{asked}": True}
        found, expected = wrapped(**batch), eager(**batch)
        assert list(found) == list(expected) and len(found[asked]) == len(expected[asked])
        for model, outputs in ((module, found), (eager, expected)):
            model.zero_grad()
            total(outputs).backward()
        torch.testing.assert_close(total(found), total(expected))
        scale = max(parameter.grad.abs().max() for parameter in eager.parameters() if parameter.grad is not None)
        for ours, theirs in zip(module.parameters(), eager.parameters(), strict=True):
            if theirs.grad is not None:
                torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-5 * scale.item())
    assert wrapped.transition_counts() == {"in training mode": {"first call": 1}}
