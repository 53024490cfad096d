"""ORTMODULE_CACHE_DIR: a second start reads the captured graph from disk and computes the same bits; what may not be
read is not; what cannot be written is said."""

import json
import logging
import subprocess
import sys

import pytest
import torch

from lowtide import capture
from lowtide.ortmodule import DebugOptions, LogLevel, ORTModule

MODEL = """
from collections import namedtuple
from dataclasses import dataclass

import torch

SCALE = 1.5
Result = namedtuple("Result", "loss logits rows")


@dataclass
class Parts:
    hidden: torch.Tensor
    word: str


def activation(x):
    return torch.nn.functional.gelu(x) * SCALE


class Config:
    def __init__(self, negate):
        self.negate = negate


class Model(torch.nn.Module):
    def __init__(self, negate=False, width=8):
        super().__init__()
        self.config = Config(negate)
        self.fc = torch.nn.Linear(6, width)
        self.norm = torch.nn.BatchNorm1d(width)
        self.drop = torch.nn.Dropout(0.5)

    def forward(self, x, labels, weights=None):
        if x.shape[0] == 7:
            x = x * 2
        h = self.drop(activation(self.norm(self.fc(x)))) + torch.tensor([0.5, 0.25])[0]
        h = -h if self.config.negate else h
        loss = torch.nn.functional.cross_entropy(h, labels)
        return Result(loss, [h, Parts(h, "hidden")], x.shape[0] * 2), {"more": None}
"""
START = """
import hashlib, json, sys, torch
sys.path.insert(0, sys.argv[1])
exports, original = [], torch.export.export
torch.export.export = lambda *args, **kwargs: exports.append(1) or original(*args, **kwargs)
from their_model import Model, Parts, Result
from lowtide.ortmodule import DebugOptions, LogLevel, ORTModule

torch.manual_seed(0)
model = Model()
wrapped = ORTModule(model, DebugOptions(LogLevel.WARNING))
digest = hashlib.sha256()
told = []
for rows in (5, 7, 9):
    x = torch.randn(rows, 6)
    (result, more) = wrapped(x, torch.randint(0, 8, (rows,)))
    assert type(result) is Result and type(result.logits[1]) is Parts and result.logits[1].word == "hidden", result
    assert result.rows == 2 * rows and more == {"more": None} and wrapped.fallback_reason is None
    result.loss.backward()
    for tensor in [result.loss, *result.logits[:1], *(p.grad for p in model.parameters()), *model.buffers()]:
        digest.update(tensor.detach().numpy().tobytes())
print(json.dumps({"exports": len(exports), "bits": digest.hexdigest()}))
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("ORTMODULE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("ORTMODULE_FALLBACK_POLICY", "FALLBACK_DISABLE")
    return tmp_path / "cache"


def start(tmp_path):
    """A new process that trains the model for three steps: (exports, a hash of all that it computed)."""
    (tmp_path / "their_model.py").write_text(MODEL)
    run = subprocess.run([sys.executable, "-c", START, tmp_path], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    told = json.loads(run.stdout.splitlines()[-1])
    return told["exports"], told["bits"]


def test_a_second_process_exports_nothing_and_computes_the_same_bits(tmp_path, folder):
    exports, bits = start(tmp_path)
    files = sorted(folder.iterdir())
    assert exports == len(files) == 2  # the code asks whether there are 7 rows
    assert start(tmp_path) == (0, bits)


# ---- within one process: each wrapper has graphs of its own, the files are shared


SHIFT = 0.5


def shifted(x):
    return x + SHIFT


class Net(torch.nn.Module):
    def __init__(self, width=4):
        super().__init__()
        self.fc = torch.nn.Linear(4, width)
        self.factor = 2.0

    def forward(self, x, y=None):
        h = shifted(self.fc(x)) * self.factor
        return h if y is None else h + y


@pytest.fixture
def exports(monkeypatch):
    done, original = [], torch.export.export

    def counted(*args, **kwargs):
        done.append(1)
        return original(*args, **kwargs)

    monkeypatch.setattr(torch.export, "export", counted)
    return done


def run(net, *arguments):
    wrapped = ORTModule(net, DebugOptions(LogLevel.INFO))
    result = wrapped(*arguments)
    torch.testing.assert_close(result, net(*arguments))
    return wrapped


def seeded(seed=0, **settings):
    torch.manual_seed(seed)
    return Net(**settings)


def test_what_else_a_graph_depends_on(folder, exports, monkeypatch):
    x = torch.randn(3, 4)
    run(seeded(), x)
    run(seeded(seed=1), x)  # other weights, other sizes: the same graph
    run(seeded(), torch.randn(5, 4))
    assert len(exports) == 1

    def needs_another(net, *arguments):
        before = len(exports)
        run(net, *arguments)
        assert len(exports) == before + 1, "an old graph was taken"
        run(net, *arguments)
        assert len(exports) == before + 1, "the new graph was not kept"

    slower = seeded()
    slower.factor = 3.0
    needs_another(slower, x)
    needs_another(seeded(width=5), x)
    needs_another(seeded().double(), x.double())
    needs_another(seeded().eval(), x)
    needs_another(seeded(), x, torch.randn(3, 4))
    needs_another(seeded(), x, 2.0)
    needs_another(seeded(), x, 3.0)
    frozen = seeded()
    frozen.fc.weight.requires_grad_(False)
    needs_another(frozen, x)
    needs_another(seeded(), x.clone().requires_grad_())
    hooked = seeded()
    hooked.fc.register_forward_hook(lambda module, inputs, output: output + 1)
    needs_another(hooked, x)
    monkeypatch.setitem(globals(), "SHIFT", 0.75)  # what the code around the model's classes reads
    needs_another(seeded(), x)
    monkeypatch.setitem(globals(), "shifted", lambda x: x - 1)
    needs_another(seeded(), x)


def test_a_graph_from_disk_is_watched_like_any_other(folder, exports):
    x = torch.randn(3, 4)
    run(seeded(), x)
    net = seeded()
    wrapped = run(net, x)
    assert len(exports) == 1
    net.factor = 5.0
    torch.testing.assert_close(wrapped(x), net(x))
    assert len(exports) == 2
    net.factor = 2.0
    net.fc.weight.requires_grad_(False)  # the export that this needs anew is not on disk
    wrapped(x).sum().backward()
    assert net.fc.weight.grad is None and net.fc.bias.grad is not None


@pytest.mark.parametrize(
    "content",
    [b"", b"no graph of ours\n{}", b"lowtide captured graph 1 0000\n{}", "a signed text without what it must have"],
    ids=["empty", "foreign", "damaged", "another meaning"],
)
def test_a_bad_file_is_ignored_with_a_notice(folder, exports, caplog, content):
    import hashlib

    x = torch.randn(3, 4)
    run(seeded(), x)
    (path,) = folder.iterdir()
    good = path.read_bytes()
    if isinstance(content, str):
        body = b'{"checkpoints": 0, "names": ["x"]}'
        content = b"lowtide captured graph 1 " + hashlib.sha256(body).hexdigest().encode() + b"\n" + body
    path.write_bytes(content)
    with caplog.at_level(logging.WARNING, logger="lowtide"):
        run(seeded(), x)
    assert f"{path} is ignored" in caplog.text and len(exports) == 2
    run(seeded(), x)
    # What cannot be told from a graph of ours by its bytes stays where it is.
    assert len(exports) == 2 and (path.read_bytes() == good or len(list(folder.iterdir())) == 2)
    assert not [other for other in folder.iterdir() if other.name.startswith(".writing-")]


def test_a_folder_that_cannot_be_written(tmp_path, monkeypatch, caplog):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ORTMODULE_CACHE_DIR", str(tmp_path / "file" / "cache"))
    with caplog.at_level(logging.WARNING, logger="lowtide"):
        run(seeded(), torch.randn(3, 4))
    assert "cannot be cached" in caplog.text


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, dy):
        return dy * 3 * ctx.saved_tensors[0] ** 2


class Cubes(torch.nn.Module):
    def forward(self, x):
        return Cube.apply(x)


class Hiding(torch.nn.Module):
    def __init__(self, what):
        super().__init__()
        self.what = what

    def forward(self, x):
        return x * 2


@pytest.mark.parametrize(
    ("net", "reason"),
    [
        (Cubes(), "forward calls the custom autograd.Function"),
        (Hiding([torch.nn.Linear(2, 2)]), "attribute 'what' holds a module that is no submodule"),
        (Hiding(memoryview(b"")), "attribute 'what' is a builtins.memoryview"),
    ],
    ids=["function", "module", "object"],
)
def test_what_cannot_be_cached_is_said(folder, caplog, net, reason):
    with caplog.at_level(logging.INFO, logger="lowtide"):
        ORTModule(net, DebugOptions(LogLevel.DEVINFO))(torch.randn(3, 4, requires_grad=True)).sum().backward()
    assert f"{type(net).__name__} is not cached: {reason}" in caplog.text
    assert not folder.exists()


def test_without_the_variable_nothing_is_written(monkeypatch, exports):
    monkeypatch.delenv("ORTMODULE_CACHE_DIR", raising=False)
    written = []
    monkeypatch.setattr(capture.stored, "to_text", lambda *arguments: written.append(1))
    run(seeded(), torch.randn(3, 4))
    run(seeded(), torch.randn(3, 4))
    assert len(exports) == 2 and not written
