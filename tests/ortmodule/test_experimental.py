"""ortmodule.experimental: the hierarchical wrapper and options from a JSON file; the switch of custom functions."""

import copy
import json
import os

import pytest
import torch
from modules import Of, assert_same, step, x

from lowtide.errors import FallbackWarning, InvalidArgument
from lowtide.ortmodule import DebugOptions, LogLevel, ORTModule
from lowtide.ortmodule._custom_autograd_function import enable_custom_autograd_support
from lowtide.ortmodule.experimental.hierarchical_ortmodule import HierarchicalORTModule
from lowtide.ortmodule.experimental.json_config import load_from_json
from lowtide.ortmodule.fallback import FallbackPolicy


def is_wrapper(child):
    return issubclass(type(child), ORTModule)


class Branching(torch.nn.Module):
    """What no graph can be made of, around a layer that one can."""

    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh())

    def forward(self, a):
        return self.inner(a) if a.sum() > -1e9 else a


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
        self.blocks = torch.nn.ModuleList([Branching(), torch.nn.Linear(4, 4)])
        self.shared = self.blocks[1]
        self.never = torch.nn.Linear(4, 4)

    def forward(self, a):
        a = self.first(a)
        for block in self.blocks:
            a = block(a)
        return self.shared(a)


def test_the_largest_parts_that_can_be_captured_are_wrapped():
    eager = Model()
    module = copy.deepcopy(eager)
    names = {f"_original_module.{name}" for name in module.state_dict()}
    wrapped = HierarchicalORTModule(module)
    for _ in range(3):
        found = step(wrapped, (x(),))
        expected = step(eager, (x(),))
        assert_same((found[0], rename(found[1]), rename(found[2])), expected)
    parts = module.first, module.blocks[0].inner, module.blocks[1]
    assert all(is_wrapper(part) and part.fallback_reason is None for part in parts)
    assert not is_wrapper(module.blocks[0]) and not is_wrapper(module.never) and module.shared is module.blocks[1]
    assert set(wrapped.state_dict()) == names


def rename(entries):
    return {
        str(name).removeprefix("_original_module.") if isinstance(name, str) else name: entry
        for name, entry in entries.items()
    }


def test_a_model_that_can_be_captured_is_wrapped_as_a_whole():
    module = Of(lambda m, a: torch.tanh(m.l(a)))
    wrapped = HierarchicalORTModule(module, DebugOptions(LogLevel.ERROR))
    torch.testing.assert_close(wrapped(x()), module(x()))
    assert is_wrapper(wrapped._original_module) and wrapped._original_module.fallback_reason is None


# ---- JSON


@pytest.fixture
def load(tmp_path, monkeypatch):
    for name in (
        "LOWTIDE_PROPAGATE_CAST_OPS_LEVEL",
        "LOWTIDE_PROPAGATE_CAST_OPS_ALLOW",
        "ORTMODULE_ENABLE_CUSTOM_AUTOGRAD",
    ):
        monkeypatch.setenv(name, "")  # put back afterwards

    def load(told, wrapped=None):
        path = tmp_path / "options.json"
        path.write_text(json.dumps(told))
        wrapped = wrapped or ORTModule(Of(lambda m, a: m.l(a)))
        load_from_json(wrapped, str(path))
        return wrapped

    return load


def test_every_key_of_ortmodules_schema_is_taken(load, tmp_path, caplog):
    wrapped = load(
        {
            "PropagateCastOps": {"Strategy": "FLOOD_FILL", "Level": 2, "Allow": ["Transpose", "Reshape"]},
            "UseExternalGPUAllocator": False,
            "EnableCustomAutogradFunction": False,
            "AllowLayerNormModPrecision": True,
            "EnableGradAccOptimization": True,
            "UseStaticShape": True,
            "RunSymbolicShapeInference": False,
            "UseMemoryEfficientGradient": True,
            "SkipCheck": ["SKIP_CHECK_DEVICE", "SKIP_CHECK_BUILD_GRADIENT"],
            "DebugOptions": {"LogLevel": "ERROR", "SaveONNX": True, "ONNXPrefix": "my", "SaveONNXPath": str(tmp_path)},
            "FallbackPolicy": ["FALLBACK_DISABLE", "FALLBACK_UNSUPPORTED_DATA"],
        }
    )
    for name in ("UseExternalGPUAllocator", "UseStaticShape", "Strategy"):
        assert f"{name} has no effect in lowtide" in caplog.text
    assert os.environ["LOWTIDE_PROPAGATE_CAST_OPS_LEVEL"] == "2"
    assert os.environ["LOWTIDE_PROPAGATE_CAST_OPS_ALLOW"] == "Transpose,Reshape"
    assert os.environ["ORTMODULE_ENABLE_CUSTOM_AUTOGRAD"] == "0"
    for manager in (wrapped._training_manager, wrapped._inference_manager):
        assert manager._fallback.policy == FallbackPolicy.FALLBACK_DISABLE | FallbackPolicy.FALLBACK_UNSUPPORTED_DATA
        assert manager._options.log_level is LogLevel.ERROR
    wrapped(x())
    assert (tmp_path / "my_torch_exported_training.onnx").exists()


def test_the_environment_names_the_file(tmp_path, monkeypatch):
    path = tmp_path / "other.json"
    path.write_text('{"FallbackPolicy": ["FALLBACK_DISABLE"]}')
    monkeypatch.setenv("ORTMODULE_JSON_CONFIG_PATH", str(path))
    wrapped = ORTModule(Of(lambda m, a: m.l(a)))
    load_from_json(wrapped, "/nowhere")
    assert wrapped._training_manager._fallback.disabled


@pytest.mark.parametrize(
    ("told", "text"),
    [
        ({"Level": 1}, "has 'Level', expected one of DebugOptions"),
        ([1], "holds a list, expected an object"),
        ({"DebugOptions": {"Level": 1}}, "DebugOptions has 'Level', expected some of LogLevel"),
        ({"DebugOptions": {"LogLevel": "LOUD"}}, "LogLevel is 'LOUD', expected one of VERBOSE"),
        ({"FallbackPolicy": ["FALLBACK"]}, "has 'FALLBACK'"),
        ({"PropagateCastOps": {"Level": 9}}, "is '9', expected 0, 1 or 2"),
        ({"SkipCheck": ["NONE"]}, "has 'NONE'"),
    ],
)
def test_mistakes_in_the_file_say_what_is_expected(told, text, load):
    with pytest.raises(InvalidArgument, match=text):
        load(told)
    with pytest.raises(InvalidArgument, match="takes a path"):
        load_from_json(ORTModule(torch.nn.Linear(1, 1)))


# ---- custom functions


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a):
        return a * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2


def test_custom_functions_are_switched_by_a_call(monkeypatch):
    monkeypatch.setenv("ORTMODULE_ENABLE_CUSTOM_AUTOGRAD", "")  # put back afterwards
    enable_custom_autograd_support(False)
    wrapped = ORTModule(Of(lambda m, a: Doubled.apply(m.l(a))))
    with pytest.warns(FallbackWarning, match="ORTMODULE_ENABLE_CUSTOM_AUTOGRAD is off"):
        wrapped(x())
    enable_custom_autograd_support()
    wrapped = ORTModule(wrapped.module)
    wrapped(x())
    assert wrapped.fallback_reason is None
