"""DebugOptions(save_onnx=True): which files, where, and its mistakes. That the exported models are right:
tests/onnx_io/test_models.py."""

import os
import stat

import onnx
import pytest
import torch

from lowtide.onnx_io import from_model, is_standard
from lowtide.ortmodule import DebugOptions, ORTModule

STAGES = ("torch_exported", "optimized", "execution_model")


@pytest.fixture(autouse=True)
def no_fallback(monkeypatch):
    monkeypatch.setenv("ORTMODULE_FALLBACK_POLICY", "FALLBACK_DISABLE")
    monkeypatch.delenv("ORTMODULE_SAVE_ONNX_PATH", raising=False)


class Layers(torch.nn.Module):
    """With what a file must carry: a buffer that is written, a constant, a custom size, dropout."""

    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(6, 8)
        self.norm = torch.nn.BatchNorm1d(8)
        self.drop = torch.nn.Dropout(0.5)

    def forward(self, x, labels):
        h = self.drop(torch.nn.functional.gelu(self.norm(self.fc(x))))
        logits = h + torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]) * x.shape[0]
        return torch.nn.functional.cross_entropy(logits, labels), logits


def saved_layers(tmp_path, **options):
    wrapped = ORTModule(Layers(), DebugOptions(save_onnx=True, onnx_prefix="layers", **options))
    loss, _ = wrapped(torch.randn(5, 6), torch.randint(0, 8, (5,)))
    loss.backward()
    return wrapped


def test_training_stages(tmp_path):
    wrapped = saved_layers(tmp_path, save_path=str(tmp_path))
    files = {path.name: onnx.load(path) for path in tmp_path.iterdir()}
    stages = (*STAGES, "optimized_pre_grad")
    assert set(files) == {f"layers_{stage}_training.onnx" for stage in stages}
    for model in files.values():
        onnx.checker.check_model(model)
    forward = {node.op_type for node in files["layers_torch_exported_training.onnx"].graph.node}
    assert is_standard(files["layers_torch_exported_training.onnx"]) and {"Gemm", "Gelu", "Dropout"} <= forward
    training = files["layers_optimized_training.onnx"]
    assert {"YieldOp", "GeluGrad"} <= {node.op_type for node in training.graph.node if node.domain == "lowtide"}
    # Nothing is lost on the way: the training graph reads back as it was.
    again = from_model(files["layers_execution_model_training.onnx"]).graph
    assert again.text() == wrapped.text("training")


def test_names_tell_the_modules_mode_as_ortmodules_do(tmp_path):
    options = DebugOptions(save_onnx=True, onnx_prefix="layers", save_path=str(tmp_path))
    wrapped = ORTModule(torch.nn.Linear(6, 8), options)
    for training in (True, False):
        wrapped.train(training)
        for gradients in (True, False):
            with torch.set_grad_enabled(gradients):
                assert wrapped(torch.randn(5, 6)).requires_grad == gradients
            mode = "training" if training else "inference"
            assert {path.stem.rpartition("_")[2] for path in tmp_path.iterdir()} == {mode}
            for path in tmp_path.iterdir():
                path.unlink()


def test_destination_from_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("ORTMODULE_SAVE_ONNX_PATH", str(tmp_path))
    saved_layers(tmp_path, save_path="/nowhere")
    assert (tmp_path / "layers_torch_exported_training.onnx").exists()


def test_destination_is_the_current_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    saved_layers(tmp_path)
    assert (tmp_path / "layers_optimized_training.onnx").exists()


@pytest.mark.parametrize(
    ("prefix", "kind", "text"),
    [
        (True, TypeError, "Expected name prefix of type str, got <class 'bool'>."),
        ("", ValueError, "onnx_prefix must be provided when save_onnx is set."),
    ],
)
def test_mistakes_in_the_prefix(prefix, kind, text, tmp_path):
    with pytest.raises(kind) as error:
        DebugOptions(save_onnx=True, onnx_prefix=prefix, save_path=str(tmp_path))
    assert str(error.value) == text
    DebugOptions(save_onnx=False, onnx_prefix=prefix)  # nothing is asked for


def test_a_directory_that_cannot_be_written(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: not (mode & os.W_OK))  # root may write everywhere
    tmp_path.chmod(stat.S_IRUSR | stat.S_IXUSR)
    with pytest.raises(OSError, match="Directory .* is not writable. Please set the ORTMODULE_SAVE_ONNX_PATH"):
        DebugOptions(save_onnx=True, onnx_prefix="model", save_path=str(tmp_path))


def test_a_stage_that_cannot_be_saved_does_not_stop_training(tmp_path, caplog):
    (tmp_path / "layers_optimized_training.onnx").mkdir()
    with caplog.at_level("WARNING", logger="lowtide"):
        saved_layers(tmp_path, save_path=str(tmp_path))
    assert "layers_optimized_training.onnx is not saved" in caplog.text
