"""ORTMODULE_CACHE_DIR holds data: whatever a file says, reading it runs nothing that the file names."""

import json
import logging
import os
import stat
import sys
from dataclasses import dataclass

import pytest
import torch
from cached import graphs, run

from lowtide.ortmodule import ORTModule
from lowtide.store import files


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(4, 4)

    def forward(self, x):
        return self.fc(x), x.shape[0] * 2


def rewritten(path, change):
    """The file with other contents, signed again as only its owner should."""
    told = json.loads(files.read(path, "captured graph 1"))
    change(told)
    files.write(path, "captured graph 1", json.dumps(told).encode())


SHELL = (
    "[c for c in ().__class__.__base__.__subclasses__() if c.__name__=='_wrap_close'][0].__init__.__globals__['system']"
)


def hostile_guard(told, command):
    told["sizes"]["guards"].insert(0, [f"{SHELL}({command!r}) == 0", [], []])


def hostile_size(told, command):
    (leaf,) = (leaf for leaf in told["leaves"] if leaf[0] == "size")
    leaf[1] = f"{SHELL}({command!r})"


@pytest.mark.parametrize("attack", [hostile_guard, hostile_size])
def test_a_signed_file_runs_no_command(tmp_path, folder, exports, caplog, attack):
    x = torch.randn(3, 4)
    run(Net(), x)
    (path,) = graphs(folder)
    good = path.read_bytes()
    mark = tmp_path / "pwned"
    rewritten(path, lambda told: attack(told, f"touch {mark}"))
    with caplog.at_level(logging.WARNING, logger="lowtide"):
        run(Net(), x)
    assert not mark.exists()
    assert f"{path} is ignored" in caplog.text and len(exports) == 2 and path.read_bytes() == good


# ---- whose files they are


def notices(caplog):
    return [record.getMessage() for record in caplog.records if "is ignored, for it" in record.getMessage()]


def test_the_folder_and_its_files_are_the_users_alone(folder):
    run(Net(), torch.randn(3, 4))
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}


@pytest.mark.parametrize("mode", [0o770, 0o702, 0o777])
def test_nothing_is_read_from_or_written_to_a_folder_that_others_can_write(folder, exports, caplog, mode):
    x = torch.randn(3, 4)
    run(Net(), x)
    before = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    folder.chmod(mode)
    with caplog.at_level(logging.WARNING, logger="lowtide"):
        run(Net(), x)
        run(Net().double(), x.double())
    assert len(exports) == 3 and {path: path.stat().st_mtime_ns for path in folder.iterdir()} == before
    (notice,) = notices(caplog)
    assert f"{folder} is ignored, for it can be written by others (its mode is {mode:o})" in notice


def test_a_file_that_others_can_write_is_not_read(folder, exports, planned, caplog):
    x = torch.randn(3, 4)
    run(Net(), x)
    for path in folder.iterdir():
        path.chmod(0o622)
    with caplog.at_level(logging.WARNING, logger="lowtide"):
        run(Net(), x)
    assert len(exports) == len(planned) == 2
    (notice,) = notices(caplog)
    assert str(graphs(folder)[0]) in notice and "its mode is 622" in notice
    run(Net(), x)  # they were replaced
    assert len(exports) == len(planned) == 2


@pytest.mark.parametrize("whose", ["folder", "file"])
def test_what_belongs_to_another_user_is_not_read(folder, exports, caplog, monkeypatch, whose):
    x = torch.randn(3, 4)
    run(Net(), x)
    (path,) = graphs(folder)
    theirs, original = (str(folder) if whose == "folder" else str(path)), os.stat

    def as_another_users(path, **keywords):
        found = original(path, **keywords)
        return os.stat_result([*found[:4], found.st_uid + 1, *found[5:10]]) if path == theirs else found

    monkeypatch.setattr(os, "stat", as_another_users)
    with caplog.at_level(logging.WARNING, logger="lowtide"):
        run(Net(), x)
    assert len(exports) == 2
    (notice,) = notices(caplog)
    assert f"{theirs} is ignored, for it belongs to the user {os.geteuid() + 1}" in notice


# ---- what they name


@dataclass
class Parts:
    hidden: torch.Tensor


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**2

    @staticmethod
    def backward(ctx, dy):
        return 2 * dy * ctx.saved_tensors[0]


class Opens(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(4, 4)

    @property
    def opened(self):
        opened.append(1)

    def forward(self, x):
        return Parts(Square.apply(self.fc(x)).round(decimals=2))


opened = []


def _class_of_output(told, name, kind):
    ((_, node, _),) = told["structure"][1]
    node[0], node[1] = name, kind


ATTACKS = {
    "a module to import": lambda told: _class_of_output(told, ["their_hostile_module", "Parts"], "dataclass"),
    "a class to call": lambda told: _class_of_output(told, ["subprocess", "Popen"], "empty"),
    "a class to fill": lambda told: _class_of_output(told, [__name__, "Opens"], "dataclass"),
    "a function to import": lambda told: told["functions"]["calls"][0].update(function=["their_hostile_module", "F"]),
    "a class that is no function": lambda told: told["functions"]["calls"][0].update(function=[__name__, "Parts"]),
    "a property to read": lambda told: told["guards"]["reads"].append([0, "ATTRIBUTE", "opened", "EQUAL", None]),
    "an operator that is none": lambda told: told.update(
        graph=told["graph"].replace("aten::round.decimals", "load_library::__globals__.keys")
    ),
    "an operator on files": lambda told: told.update(
        graph=told["graph"].replace("aten::round.decimals", "aten::from_file.out")
    ),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_signed_file_names_only_what_forward_reads(tmp_path, folder, exports, caplog, monkeypatch, attack):
    (tmp_path / "their_hostile_module.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    x = torch.randn(3, 4)
    ORTModule(Opens())(x)
    (path,) = graphs(folder)
    good = path.read_bytes()
    rewritten(path, ATTACKS[attack])
    assert path.read_bytes() != good
    with caplog.at_level(logging.INFO, logger="lowtide"):
        ORTModule(Opens())(x)
    assert "their_hostile_module" not in sys.modules and not opened
    assert f"{path} is" in caplog.text and len(exports) == 2 and path.read_bytes() == good
