"""`lowtide analyze` with input that cannot be right: exit code 2, and a line that names the mistake."""

import pytest

from lowtide.cli import main

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


@pytest.mark.parametrize("arguments", [[], ["analyze"], ["analyze", "m:f", "--level", "3"]])
def test_usage(arguments, capsys):
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2 and "usage: lowtide" in capsys.readouterr().err
