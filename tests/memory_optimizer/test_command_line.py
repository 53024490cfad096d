"""`lowtide analyze`: what it shows of models and text graphs; a mistake is exit code 2 and a line that names it."""

import json
import subprocess
from pathlib import Path

import pytest

from lowtide.cli import main

OPT = Path(__file__).resolve().parents[2] / "build" / "release" / "tools" / "lowtide-opt"
MODELS = """
import torch


class Scaled(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(4, 4)

    def forward(self, x, scale=1.0):
        return torch.tanh(self.fc(x)).sum() * scale


def good():
    return Scaled(), (torch.randn(3, 4),), {"scale": 2.0}


class Blocks(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(
            torch.nn.Sequential(torch.nn.Linear(8, 32, bias=False), torch.nn.GELU(), torch.nn.Linear(32, 8))
            for _ in range(3)
        )

    def forward(self, x):
        for layer in self.layers:
            x = x + layer(x)
        return x.sum()


def blocks():
    print("building")
    return Blocks(), torch.randn(2, 4, 8)


def raises():
    return torch.zeros(3)[5]


def no_tuple():
    return Scaled()


def no_module():
    return "model", ()


def no_arguments():
    return Scaled(), 5
"""
GRAPH = """graph @g(%x: f32[n] input grad) {
  %a: f32[n] = Exp %x
  %b: f32[n] = Exp %a
  return %b output
}
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    (tmp_path / "their_models.py").write_text(MODELS)
    (tmp_path / "step.ir").write_text(GRAPH)
    (tmp_path / "broken.ir").write_text("graph @g(%x: f32[n] input) {\n  %a: f32[n] = Nonsense %x\n}\n")
    (tmp_path / "binary.ir").write_bytes(b"\xff\xfe\x00")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["nothing"], "'nothing' is neither a file nor 'module:function'"),
        (["nowhere_at_all:f"], "cannot import 'nowhere_at_all'"),
        (["their_models:missing"], "'their_models' has no 'missing'"),
        (["their_models:torch"], "is a module, not a function"),
        (["their_models:raises"], "raised IndexError: index 5 is out of bounds"),
        (["their_models:no_tuple"], "returned a Scaled, expected a tuple (model, args)"),
        (["their_models:no_module"], "returned a str first, expected a torch.nn.Module"),
        (["their_models:no_arguments"], "with a tuple of arguments"),
        (["their_models:good", "--dims", "batch"], "'batch' is not NAME=SIZE"),
        (["their_models:good", "--dims", "rows=4"], "no size of the model is called 'rows'; sizes: x_dim0"),
        (["broken.ir"], "Nonsense"),
        (["binary.ir"], "is not a graph in text form"),
        (["step.ir"], "sizes are missing: give --dims n=SIZE"),
    ],
)
def test_mistakes(here, capsys, arguments, expected):
    assert main(["analyze", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    last = err.strip().splitlines()[-1]
    assert last.startswith("lowtide analyze: ") and expected in err, err


def lowtide_opt(*arguments):
    return subprocess.run([OPT, *arguments], capture_output=True, text=True, check=True).stdout


def analyze(capsys, *arguments):
    assert main(["analyze", *arguments]) == 0
    return capsys.readouterr()


def test_a_model(here, capsys):
    out, err = analyze(capsys, "their_models:blocks")
    assert "at x_dim0=2, x_dim1=4" in out and "layers: 3\n  layers.0\n  layers.1\n  layers.2\n" in out
    assert "  Memory Optimizer      :   OFF" in out and "- Plan 1" in out and "Gelu+:1:-1" in out
    assert "MemoryInsight Summary" in out and "########Recompute########" in out
    assert "estimated time of what runs once more in backward" in out
    assert "building" not in out and "capturing ..." in err and "planning once for each row ..." in err


def row(told, combination):
    return next(row for row in told["rows"] if row["combination"] == combination)


def test_json_dims_and_configuration(here, capsys):
    small = json.loads(analyze(capsys, "their_models:blocks", "--json").out)
    assert small["layers"] == ["layers.0", "layers.1", "layers.2"]
    assert small["dims"] == {"x_dim0": 2, "x_dim1": 4} and small["peak_with"] == small["peak_without"]
    large = json.loads(analyze(capsys, "their_models:blocks", "--json", "--dims", "batch=8, x_dim1=12").out)
    assert large["dims"] == {"x_dim0": 8, "x_dim1": 12}
    assert row(large, "Gelu+:1:-1")["saving"] == 12 * row(small, "Gelu+:1:-1")["saving"] > 0
    on = json.loads(analyze(capsys, "their_models:blocks", "--json", "--config", "Gelu+:1:2").out)
    assert on["requests"] == [{"config": "Gelu+:1:2", "found": 3, "applied": 2}] and row(on, "Gelu+:1:-1")["on"]
    level = analyze(capsys, "their_models:blocks", "--json", "--level", "1", "--config", "Gelu+:1:2")
    assert json.loads(level.out)["level"] == 1 and "gnored" in level.err


def test_a_text_graph_before_and_after_its_gradient(here, capsys):
    forward = json.loads(analyze(capsys, "step.ir", "--dims", "n=64", "--json").out)
    assert forward["dims"] == {"n": 64} and forward["candidates"]
    training = lowtide_opt("--passes=gradient,training", here / "step.ir")
    (here / "training.ir").write_text(training)
    assert "YieldOp" in training
    again = json.loads(analyze(capsys, "training.ir", "--dims", "n=64", "--json").out)
    assert again["rows"] == forward["rows"]


@pytest.mark.parametrize("arguments", [[], ["analyze"], ["analyze", "m:f", "--level", "3"]])
def test_usage(arguments, capsys):
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2 and "usage: lowtide" in capsys.readouterr().err
