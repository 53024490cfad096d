"""29 architectures of transformers train through ORTModule as in eager: losses, gradients, buffers, no fallback."""

import re

import pytest
import torch
import zoo
from compare import batches_of, compare, distances, farthest, train
from list_architectures import documented, fallbacks

from lowtide.ortmodule import ORTModule

NATIVE = ("gpt2", "bloom", "bert", "llama", "vit", "resnet", "t5")
# The others differ by about 1e-7, as they compute a part in fp32 themselves: causal losses cast logits, RMS norms rows.
IN_FP64 = (
    *("bert", "roberta", "distilbert", "albert", "electra", "vit", "swin", "convnext", "resnet", "segformer", "clip"),
)
# Near kin of bart, bert, llama, gpt2, vit and resnet, or long in export: with ./dev test --all.
WITH_ALL = (
    *("marian", "opt", "whisper", "wav2vec2", "roberta", "distilbert", "electra", "mistral", "qwen2", "phi3"),
    *("falcon", "mpt", "gpt_neox", "gemma2", "mixtral", "modernbert", "clip", "swin", "segformer"),
)
GUARDED = ("gpt2", "t5", "resnet")  # the others with ./dev test --all

IN_FP64_IN_CI = ("bert", "albert", "vit", "resnet")  # the others with ./dev test --all

LOSS_TOLERANCE = 1e-5
GRADIENT_TOLERANCE = 1e-4
ROUNDING_FLOOR = 1e-6  # what fp32's roundings do counts as at least this
FP64_TOLERANCE = 1e-10


def with_all(name):
    return pytest.param(name, marks=pytest.mark.long) if name in WITH_ALL else name


@pytest.fixture(
    scope="module",
    params=[with_all(name) for name in zoo.NAMES],
)
def run(request):
    """Five steps of one architecture, for all tests of it."""
    result = compare(request.param, steps=5)
    result.name = request.param
    return result


def check_losses(engine, eager, tolerance=LOSS_TOLERANCE):
    ours, theirs = (torch.tensor(run.losses, dtype=torch.float64) for run in (engine, eager))
    torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=0)


def check_buffers(engine, eager, tolerance=GRADIENT_TOLERANCE):
    for ours, theirs in zip(engine.buffers, eager.buffers, strict=True):
        assert ours.keys() == theirs.keys()
        for name, buffer in theirs.items():
            if buffer.is_floating_point():
                assert farthest(ours[name], buffer) <= tolerance, name
            else:
                assert torch.equal(ours[name], buffer), name


def test_five_steps_of_sgd_have_eagers_losses(run):
    assert len(run.eager.losses) == 5 and run.eager.losses[0] != run.eager.losses[1]
    check_losses(run.engine, run.eager)


def farther_than_rounding(run):
    """Parameter → its gradients' distance from fp64 and the limit that roundings set, where it is beyond that."""
    limits = {parameter: 3 * max(rounding, ROUNDING_FLOOR) for parameter, rounding in run.rounding.items()}
    found = distances(run.engine.gradients, run.exact)
    assert found
    return {name: (distance, limits[name]) for name, distance in found.items() if distance > limits[name]}


def test_gradients_are_eagers(run):
    assert farther_than_rounding(run) == {}
    for parameter, distance in distances(run.engine.gradients, run.eager.gradients).items():
        # Where the true gradient is zero both may be farther than 1e-4 from it and from each other: rounding.
        limit = max(GRADIENT_TOLERANCE, 6 * run.rounding[parameter])
        assert distance <= limit, f"{parameter}: {distance:.1e} from eager"


@pytest.mark.parametrize(
    "name, ops",
    [
        ("gpt2", ("Gemm", "LayerNormalization", "LayerNormalizationGrad")),
        pytest.param("resnet", ("Conv", "BatchNormalization", "LinearCrossEntropyLossGrad"), marks=pytest.mark.long),
    ],
)
def test_an_error_of_one_in_a_hundred_thousand_is_no_rounding(name, ops, monkeypatch, tmp_path):
    """The last kernel of an op in the step gives 1.00001 times what it should."""
    monkeypatch.setenv("ORTMODULE_CACHE_DIR", str(tmp_path))  # one export for all
    model, make_batch = zoo.build(name)
    healthy = ORTModule(model)
    train(healthy, batches_of(make_batch, 1))
    for op in ops:
        value = re.findall(rf"^ *%([^\s:]+): .* = {op}\b", healthy.text("training"), re.MULTILINE)[-1]
        monkeypatch.setenv("LOWTIDE_TEST_FAULT", f"{value}:1.00001")
        assert farther_than_rounding(compare(name, steps=1)), op


def test_buffers_are_eagers_after_each_step(run):
    check_buffers(run.engine, run.eager)
    if run.name == "resnet":
        means = [name for name in run.eager.buffers[0] if name.endswith("running_mean")]
        assert means and not torch.equal(run.engine.buffers[0][means[0]], run.engine.buffers[1][means[0]])


def test_fallbacks_are_those_of_the_list(run):
    """docs/architectures.md; list_architectures.py writes it anew."""
    assert documented()[run.name] == fallbacks(run.report)
    if run.name in NATIVE:
        assert run.report["python_nodes"] == 0 and run.report["fallbacks"] == []


@pytest.mark.parametrize(
    "name", [name if name in IN_FP64_IN_CI else pytest.param(name, marks=pytest.mark.long) for name in IN_FP64]
)
def test_fp64_agrees_to_the_last_digits(name):
    run = compare(name, steps=2, dtype=torch.float64)
    check_losses(run.engine, run.eager, FP64_TOLERANCE)
    check_buffers(run.engine, run.eager, FP64_TOLERANCE)
    for parameter, distance in distances(run.engine.gradients, run.eager.gradients).items():
        assert distance <= FP64_TOLERANCE, f"{parameter}: {distance:.1e}"


@pytest.mark.parametrize(
    "name", [name if name in GUARDED else pytest.param(name, marks=pytest.mark.long) for name in zoo.NAMES]
)
def test_guards_around_every_buffer_stay_whole(name, monkeypatch):
    """A byte written outside of its planned buffer is an error, and one read is no longer a neighbour's value."""
    monkeypatch.setenv("LOWTIDE_GUARD", "1")
    model, make_batch = zoo.build(name)
    eager, _ = zoo.build(name)
    batches = batches_of(make_batch, 2)
    engine = train(ORTModule(model), batches)
    check_losses(engine, train(eager, batches))
