"""ORTMODULE_CACHE_DIR holds data: whatever a file says, reading it runs nothing that the file names."""

import json
import logging

import pytest
import torch
from cached import graphs, run

from lowtide.ortmodule import stored_files


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(4, 4)

    def forward(self, x):
        return self.fc(x), x.shape[0] * 2


def rewritten(path, change):
    """The file with other contents, signed again as only its owner should."""
    told = json.loads(stored_files.read(path, "captured graph 1"))
    change(told)
    stored_files.write(path, "captured graph 1", json.dumps(told).encode())


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
