"""Models that save_onnx wrote: onnx accepts them and onnxruntime computes what the model does, at other sizes too."""

import onnx
import pytest
import torch
from both_ways import run_onnx
from zoo import build

from lowtide.onnx_io import is_standard
from lowtide.ortmodule import DebugOptions, ORTModule

STAGES = ("torch_exported", "optimized", "execution_model")


def values(model, batch):
    """What a saved forward takes: parameters and buffers by their names, the caller's tensors by theirs."""
    state = {name: tensor for name, tensor in [*model.named_parameters(), *model.named_buffers()]}
    return {**state, **{name: value for name, value in batch.items() if isinstance(value, torch.Tensor)}}


def tensors_of(output):
    return [value for value in output.to_tuple() if isinstance(value, torch.Tensor)]


@pytest.mark.parametrize("name", ["gpt2", "bert", "resnet"])
def test_onnxruntime_computes_the_same_in_eval_mode(name, tmp_path):
    model, make_batch = build(name)
    model.eval()
    wrapped = ORTModule(model, DebugOptions(save_onnx=True, onnx_prefix=name, save_path=str(tmp_path)))
    batch = make_batch(batch=2, length=16, seed=0)
    with torch.no_grad():
        wrapped(**batch)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(f"{name}_{s}_inference.onnx" for s in STAGES)
    exported = onnx.load(tmp_path / f"{name}_torch_exported_inference.onnx")
    onnx.checker.check_model(exported, full_check=True)
    assert is_standard(exported)
    other = make_batch(batch=3, length=12, seed=1)  # the sizes are the model's to choose
    for sample in (batch, other):
        with torch.no_grad():
            expected = tensors_of(model(**sample))
        found = run_onnx(exported, values(model, sample))
        assert len(found) == len(expected)
        for first, second in zip(found, expected, strict=True):
            torch.testing.assert_close(first, second, rtol=1e-4, atol=1e-4)
