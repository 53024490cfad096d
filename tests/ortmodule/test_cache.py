"""ORTMODULE_CACHE_DIR: a second start reads the captured graph and its plan from disk and computes the same bits; what
may not be read is not; what cannot be written is said."""

import json
import logging
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from cached import graphs, run

import lowtide
from lowtide.errors import OutOfMemory
from lowtide.ortmodule import DebugOptions, LogLevel, ORTModule
from lowtide.store import captures, files

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
from lowtide.store import plans
planned, session = [], plans.Session
def counted(graph, **options):
    planned.extend([1] if not options.get("stored_plan") else [])
    return session(graph, **options)
plans.Session = counted

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
print(json.dumps({"exports": len(exports), "planned": len(planned), "bits": digest.hexdigest()}))
"""


def start(tmp_path, **variables):
    """A new process that trains the model for three steps: (exports, plans, a hash of all that it computed)."""
    (tmp_path / "their_model.py").write_text(MODEL)
    command, environment = [sys.executable, "-c", START, tmp_path], {**os.environ, **variables}
    run = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert run.returncode == 0, run.stderr
    told = json.loads(run.stdout.splitlines()[-1])
    return told["exports"], told["planned"], told["bits"]


def test_a_second_process_exports_and_plans_nothing_and_computes_the_same_bits(tmp_path, folder):
    exports, planned, bits = start(tmp_path)
    assert (
        exports == planned == len(graphs(folder)) == len(plans(folder)) == 2
    )  # the code asks whether there are 7 rows
    assert start(tmp_path) == (0, 0, bits)


@pytest.mark.parametrize("changed", ["store/text.py", "distributed/__init__.py"])
def test_another_lowtide_reads_no_file_of_this_one(tmp_path, folder, changed):
    _, _, bits = start(tmp_path)
    package = shutil.copytree(Path(lowtide.__file__).parent, tmp_path / "another" / "lowtide")
    with open(package / changed, "a") as file:
        file.write("# of another version\n")
    assert start(tmp_path, PYTHONPATH=str(package.parent)) == (2, 2, bits)
    assert len(graphs(folder)) == len(plans(folder)) == 4


def plans(folder):
    return sorted(folder.glob("*.plan"))


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
    needs_another(seeded(), x, x)
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
    assert len(exports) == 3  # with the factor as a number, and one to compare it with
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
    x = torch.randn(3, 4)
    run(seeded(), x)
    (path,) = graphs(folder)
    good = path.read_bytes()
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        files.write(path, "captured graph 1", b'{"functions": {}, "names": ["x"]}')
    with caplog.at_level(logging.WARNING, logger="lowtide"):
        run(seeded(), x)
    assert f"{path} is ignored" in caplog.text and len(exports) == 2
    run(seeded(), x)
    assert len(exports) == 2 and graphs(folder) == [path] and path.read_bytes() == good
    assert not [other for other in folder.iterdir() if other.name.startswith(".writing-")]


def test_what_else_a_plan_depends_on(tmp_path, folder, exports, planned, monkeypatch):
    x = torch.randn(3, 4)
    run(seeded(), x)
    run(seeded(seed=1), torch.randn(5, 4))
    assert len(planned) == 1
    config = tmp_path / "plans.json"
    for count, (name, value) in enumerate(
        [
            ("ORTMODULE_MEMORY_OPT_LEVEL", "1"),
            ("ORTMODULE_MEMORY_OPT_CONFIG", str(config)),
            ("LOWTIDE_DISABLE_KERNELS", "blas"),
            ("LOWTIDE_DISABLE_PASSES", "cse"),
            ("LOWTIDE_GUARD", "1"),
            ("LOWTIDE_MEMORY_BUDGET", "100%"),
        ]
    ):
        config.write_text('["Gelu+:1:-1"]')
        with monkeypatch.context() as changed:
            changed.setenv(name, value)
            run(seeded(), x)
            assert len(planned) == count + 2, f"the plan without {name} was taken"
            run(seeded(), x)
            assert len(planned) == count + 2, f"the plan with {name} was not kept"
    config.write_text('["Gelu+:1:1"]')
    monkeypatch.setenv("ORTMODULE_MEMORY_OPT_CONFIG", str(config))
    run(seeded(), x)
    assert len(planned) == 8 and len(exports) == 1


@pytest.mark.parametrize("damage", ["empty", "foreign", "truncated", "flipped", "of another model", "unsigned"])
def test_a_bad_plan_is_ignored_with_a_notice(folder, exports, planned, caplog, damage):
    x = torch.randn(3, 4)
    run(seeded(width=5), x)
    (another,) = plans(folder)
    run(seeded(), x)
    (path,) = (path for path in plans(folder) if path != another)
    good = path.read_bytes()
    middle = len(good) // 2
    body = files.read(path, "plan 1")
    path.write_bytes(
        {
            "empty": b"",
            "foreign": b"\x7fELF\x00 no plan of ours",
            "truncated": good[:middle],
            "flipped": good[:middle] + bytes([good[middle] ^ 4]) + good[middle + 1 :],
            "of another model": another.read_bytes(),
            "unsigned": good,
        }[damage]
    )
    if damage == "unsigned":  # whole as a file, but not what the engine wrote
        files.write(path, "plan 1", body.replace(b"step kernel", b"step kernal", 1))
    with caplog.at_level(logging.WARNING, logger="lowtide"):
        run(seeded(), x)
    assert f"{path} is ignored" in caplog.text and len(planned) == 3 and len(exports) == 2
    run(seeded(), x)
    assert len(planned) == 3 and path.read_bytes() == good


def test_a_session_with_a_stored_plan_tells_what_the_first_told(folder, caplog):
    def tables():
        caplog.clear()
        with caplog.at_level(logging.INFO, logger="lowtide"):
            wrapped = run(seeded(), torch.randn(3, 4))
        session = wrapped._training_manager.last_agent.session
        return session.training_text(), session.before_memory_text(), session.explain(), wrapped.explain()

    assert tables() == tables() and "the plan of Net is read from" in caplog.text


def test_a_share_that_is_too_little_for_the_example_of_a_stored_graph_serves_a_larger_call(folder, exports, caplog):
    def deep():
        return torch.nn.Sequential(*(part for _ in range(4) for part in (torch.nn.Linear(64, 64), torch.nn.Tanh())))

    few, many = torch.randn(3, 64), torch.randn(4000, 64)
    run(deep(), few)
    caplog.clear()
    with caplog.at_level(logging.WARNING, logger="lowtide"):
        module = ORTModule(deep(), DebugOptions(LogLevel.INFO), memory_budget="75%")
        module(many).sum().backward()
        with pytest.raises(OutOfMemory):  # gradients alone are more
            module(few)
    assert len(exports) == 1 and "is ignored" not in caplog.text


def test_a_folder_that_cannot_be_written(tmp_path, monkeypatch, caplog):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ORTMODULE_CACHE_DIR", str(tmp_path / "file" / "cache"))
    with caplog.at_level(logging.WARNING, logger="lowtide"):
        run(seeded(), torch.randn(3, 4))
    assert "cannot be cached" in caplog.text


def test_without_the_variable_nothing_is_written(monkeypatch, exports):
    monkeypatch.delenv("ORTMODULE_CACHE_DIR", raising=False)
    written = []
    monkeypatch.setattr(captures, "to_text", lambda *arguments: written.append(1))
    run(seeded(), torch.randn(3, 4))
    run(seeded(), torch.randn(3, 4))
    assert len(exports) == 2 and not written


LIBRARYS_MODEL = """
import torch
from transformers import GPT2Config, GPT2LMHeadModel
from transformers.loss import loss_utils
from lowtide.ortmodule import DebugOptions, LogLevel, ORTModule
exports, original = [], torch.export.export
torch.export.export = lambda *args, **kwargs: exports.append(1) or original(*args, **kwargs)

def run():
    torch.manual_seed(0)
    still = {"attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0}
    model = GPT2LMHeadModel(GPT2Config(vocab_size=16, n_layer=1, n_embd=8, n_head=2, use_cache=False, **still))
    ids = torch.arange(16).reshape(2, 8)
    found = ORTModule(model, DebugOptions(LogLevel.ERROR))(input_ids=ids, labels=ids)
    torch.testing.assert_close(found.loss, model(input_ids=ids, labels=ids).loss)
    print(len(exports), type(found).__name__)

run()
loss_utils.LOSS_MAPPING["ForCausalLM"] = lambda logits, *args, **kwargs: logits.square().mean()
run()
"""


@pytest.mark.long
def test_a_librarys_model_is_found_by_another_process(folder):
    def start():
        run = subprocess.run([sys.executable, "-c", LIBRARYS_MODEL], capture_output=True, text=True)
        assert run.returncode == 0, run.stderr
        return run.stdout.split()

    name = "CausalLMOutputWithCrossAttentions"
    assert start() == ["1", name, "2", name]  # the other loss lies in a table of the library's
    assert start() == ["0", name, "0", name]


FACTORS = [torch.ones(4)]


def test_a_tensor_that_is_no_attribute_is_not_stored(folder, exports):
    class Scaled(torch.nn.Linear):
        def forward(self, x):
            return super().forward(x) * FACTORS[0]

    for value in (1.0, 2.0):
        FACTORS[0] = torch.full((4,), value)
        run(Scaled(4, 4), torch.randn(3, 4))
    assert len(exports) == 2 and not graphs(folder)
