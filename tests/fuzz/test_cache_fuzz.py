"""Files of ORTMODULE_CACHE_DIR that somebody changed and signed again: ignored with a notice, or used; never more than
an Error, and where nothing but a hash is wrong, always ignored. LOWTIDE_FUZZ_SEED and LOWTIDE_FUZZ_RUNS choose another
or longer search."""

import copy
import json
import logging
import os
import random
import time
from collections import namedtuple

import pytest
import torch

from lowtide.errors import Error, InternalError
from lowtide.ortmodule import DebugOptions, LogLevel, ORTModule
from lowtide.store import files as stored_files

SEED = int(os.environ.get("LOWTIDE_FUZZ_SEED", "1"))
RUNS = int(os.environ.get("LOWTIDE_FUZZ_RUNS", "40"))
MAGIC = {".graph": "captured graph 1", ".plan": "plan 1"}
EXTREMES = (-1, 0, 1, 2, 2**31, 2**40, 2**62, 2**63 - 1, 2**63, 10**30, -(2**63), 0.5, 1e308, None, True, "", [], {})
Result = namedtuple("Result", "loss hidden rows")


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, factor):
        ctx.factor = factor
        return x * factor

    @staticmethod
    def backward(ctx, dy):
        return dy * ctx.factor, None


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(4, 6)
        self.register_buffer("shift", torch.arange(6.0))

    def forward(self, x):
        hidden = Double.apply(self.fc(x) + self.shift, 2.0) + torch.tensor([0.5, 1, 2, 3, 4, 5])
        return Result(torch.nn.functional.gelu(hidden).mean(), {"h": hidden}, x.shape[0] * 2)


def step(x):
    """(loss, gradients, rows) through the engine."""
    torch.manual_seed(0)
    net = Model()
    result = ORTModule(net, DebugOptions(LogLevel.WARNING))(x)
    result.loss.backward()
    return result.loss.item(), [parameter.grad for parameter in net.parameters()], result.rows


@pytest.fixture
def cached(tmp_path, monkeypatch):
    """(the example, what is right, {a file of the cache: its bytes})."""
    monkeypatch.setenv("ORTMODULE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("ORTMODULE_FALLBACK_POLICY", "FALLBACK_DISABLE")
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    right = step(x)
    files = {path: path.read_bytes() for path in (tmp_path / "cache").iterdir()}
    assert {path.suffix for path in files} == set(MAGIC)
    return x, right, files


def places(told, path=()):
    """Paths of all that is in a JSON value."""
    yield path
    if isinstance(told, dict | list):
        for key in list(told) if isinstance(told, dict) else range(len(told)):
            yield from places(told[key], (*path, key))


def at(told, path):
    for key in path:
        told = told[key]
    return told


def changed_json(told, chance):
    """One place with an extreme, what is at another place, twice what it is, nothing, or far too deep."""
    told = copy.deepcopy(told)
    paths = [path for path in places(told) if path]
    path = chance.choice(paths)
    holder, key = at(told, path[:-1]), path[-1]
    if (kind := chance.randrange(6)) == 0:
        holder[key] = chance.choice(EXTREMES)
    elif kind == 1:
        holder[key] = copy.deepcopy(at(told, chance.choice(paths)))
    elif kind == 2:
        del holder[key]
    elif kind == 3 and isinstance(holder, list):
        holder.insert(key, copy.deepcopy(holder[key]))
    elif isinstance(holder[key], str):
        holder[key] = changed_text(holder[key], chance)
    else:
        holder[key] = json.loads("[" * 200 + "]" * 200)
    return told


def changed_text(text, chance):
    if not text:
        return "x"
    place, kind = chance.randrange(len(text)), chance.randrange(4)
    if kind == 0:
        return text[:place] + chance.choice("0123456789[](){}%:,- \n") + text[place + 1 :]
    if kind == 1:
        return text[:place] + str(chance.choice([2**31, 2**40, 2**63 - 1, 2**64])) + text[place:]
    if kind == 2:
        return text[:place] + text[place + chance.randrange(30) :]
    return text[:place] + text[place] * 3000 + text[place:]


@pytest.mark.parametrize("suffix", MAGIC)
def test_changed_and_signed_files_are_used_or_ignored(cached, caplog, suffix):
    x, right, files = cached
    chance = random.Random(SEED)
    (path,) = (path for path in files if path.suffix == suffix)
    body = stored_files.read(path, MAGIC[suffix]).decode()
    ignored = used = 0
    for number in range(RUNS):
        for each, content in files.items():
            each.write_bytes(content)
        if suffix == ".graph":
            changed = json.dumps(changed_json(json.loads(body), chance))
        else:
            changed = changed_text(body, chance)
        stored_files.write(path, MAGIC[suffix], changed.encode())
        caplog.clear()
        begin = time.monotonic()
        try:
            with caplog.at_level(logging.INFO, logger="lowtide"):
                found = step(x)
        except InternalError as error:
            raise AssertionError(f"run {number}: {changed}") from error
        except Error:  # in words, of what only the file says
            used += 1
            continue
        assert time.monotonic() - begin < 60, f"run {number}"
        if f"{path} is" in caplog.text:
            ignored += 1
            torch.testing.assert_close(found, right, msg=f"run {number}: {changed}")
        else:
            used += 1
    assert ignored > RUNS // 2, "the changes reach nothing"
    assert used > 0 or suffix == ".plan"


def test_changed_files_are_ignored(cached, caplog):
    x, right, files = cached
    chance = random.Random(SEED)
    for number in range(8):
        for path, content in files.items():
            data = bytearray(content)
            if chance.randrange(2):
                data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
            else:
                del data[chance.randrange(len(data)) :]
            path.write_bytes(bytes(data))
        caplog.clear()
        with caplog.at_level(logging.WARNING, logger="lowtide"):
            torch.testing.assert_close(step(x), right, msg=f"run {number}")
        assert all(f"{path} is ignored" in caplog.text for path in files)
