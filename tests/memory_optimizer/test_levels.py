"""Layers are found, and at level 1 only their inputs stay."""

import json

import pytest
from trainee import Trainee
from training_text import StashText

LAYERS = {
    "bloom": [f"transformer.h.{i}" for i in range(3)],
    "gpt2": [f"transformer.h.{i}" for i in range(3)],
    "bert": [f"bert.encoder.layer.{i}" for i in range(3)],
    "llama": [f"model.layers.{i}" for i in range(3)],
    "t5": [f"{stack}.block.{i}" for stack in ("encoder", "decoder") for i in range(3)],
}

# One layer, called three times.
LAYERS["albert"] = [f"albert.encoder.albert_layer_groups.0{call}" for call in ("", "@1", "@2")]


LONG = ("bloom", "llama")  # their layers lie as gpt2's do


@pytest.fixture(
    scope="module", params=[pytest.param(name, marks=pytest.mark.long) if name in LONG else name for name in LAYERS]
)
def trainee(request):
    found = Trainee(request.param, layers=3)
    found.name = request.param
    return found


def layer_of(module, layers):
    """The layer in which a module path lies, or None."""
    return next((layer for layer in layers if module == layer or module.startswith(layer + ".")), None)


def test_layers_are_found(trainee):
    assert trainee.agent().session.layers() == LAYERS[trainee.name]
    told = json.loads(trainee.agent().memory_stat_json())
    assert {candidate["layer"] for candidate in told["candidates"]} >= set(LAYERS[trainee.name])


def test_level_1_keeps_the_layers_inputs(trainee):
    """A value that a layer makes and backward reads is one that another part of forward takes."""
    layers = LAYERS[trainee.name]
    plain, level1 = trainee.agent(), trainee.agent(level=1)
    before, after = (StashText(agent.session.training_text()) for agent in (plain, level1))
    # At a size where activations, not gradients, make the peak.
    assert trainee.planned_peak(level1, 16, 64) < 0.8 * trainee.planned_peak(plain, 16, 64)
    inside = {name for name in before.stashed if layer_of(before.maker[name].module, layers)}
    assert len(inside) > 4 * len(layers)
    for name in after.stashed:
        layer = layer_of(after.maker[name].module, layers)
        if layer is not None:
            assert leaves(name, layer, layers, after), f"{name} ({after.maker[name].op}) stays inside {layer}"


def leaves(name, layer, layers, text):
    """Whether another part of forward takes the value, or what backward makes again from it (a layer that ends with a
    norm keeps the norm's input instead of its output)."""
    for reader in text.forward_readers(name):
        if layer_of(reader.module, layers) != layer:
            return True
        again = [node for node in text.recomputed(reader.op) if name in map(text.base, node.inputs)]
        if again and any(leaves(output, layer, layers, text) for output in reader.outputs):
            return True
    return False


def test_level_2_keeps_no_more(trainee):
    level1, level2 = trainee.agent(level=1), trainee.agent(level=2)
    assert trainee.planned_peak(level2, 16, 64) <= trainee.planned_peak(level1, 16, 64)


def test_a_configuration_is_ignored_with_a_notice(trainee):
    agent = trainee.agent(config="Gemm+:1:-1", level=1)
    (notice,) = [text for text in agent.session.memory_notices() if "gnored" in text]
    assert "ORTMODULE_MEMORY_OPT_CONFIG" in notice or "configuration" in notice
    assert agent.session.training_text() == trainee.agent(level=1).session.training_text()
