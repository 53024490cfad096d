"""The file that `lowtide calibrate` writes: read by sessions on the machine that it was measured on, nowhere else."""

import logging
import os
import time

import pytest
import torch

from lowtide import _lowtide
from lowtide.cli import calibrate as command
from lowtide.cli import main
from lowtide.ortmodule import ORTModule
from lowtide.store import files, prices

GRAPH = "graph @g(%x: f32[8, 8] input) {\n  %y: f32[8, 8] = MatMul %x, %x\n  return %y output\n}"


def of_this_machine():
    """A text of prices of this machine and its threads, in which a product takes a second."""
    words = _lowtide.shipped_prices().splitlines()
    reason = _lowtide.tell_other_machine(_lowtide.shipped_prices())  # "they are of no processor, this is …"
    words[1:1] = [f"processor {reason.partition(', this is ')[2]}", f"threads {torch.get_num_threads()}"]
    return (
        "\n".join("matmul f32 1e6 inf inf inf inf" if line.startswith("matmul f32") else line for line in words) + "\n"
    )


@pytest.fixture
def folder(tmp_path, monkeypatch):
    _lowtide.install_torch(torch.get_num_threads())
    monkeypatch.setenv("ORTMODULE_CACHE_DIR", str(tmp_path / "cache"))
    prices.measured_prices.cache_clear()
    yield tmp_path / "cache"
    prices.measured_prices.cache_clear()


def read(caplog):
    prices.measured_prices.cache_clear()
    caplog.clear()
    with caplog.at_level(logging.WARNING, logger="lowtide"):
        return prices.measured_prices(), caplog.text


def test_without_a_file_steps_are_priced_as_shipped(folder, caplog):
    assert read(caplog) == ("", "")


def test_a_module_takes_the_prices_that_were_measured(folder, monkeypatch, capsys):
    def slowest_step(module):
        wrapped = ORTModule(module)
        wrapped(torch.randn(2, 4)).sum().backward()
        agent = wrapped._last_agent()
        return max(row[-1] for row in agent.session.step_prices(agent.symbol_values()))

    assert slowest_step(torch.nn.Linear(4, 4)) < 1
    monkeypatch.setattr(command, "calibrate", lambda progress: progress(0, 1) or of_this_machine())
    assert main(["calibrate"]) == 0
    assert str(folder / "prices.txt") in capsys.readouterr().out
    assert slowest_step(torch.nn.Linear(4, 4)) == 1000


def test_a_file_is_found_in_the_users_cache_folder_too(monkeypatch, tmp_path, caplog):
    monkeypatch.delenv("ORTMODULE_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    _lowtide.install_torch(torch.get_num_threads())
    prices.write_prices(of_this_machine())
    assert (tmp_path / "lowtide" / "prices.txt").exists()
    assert read(caplog) == (of_this_machine(), "")
    prices.measured_prices.cache_clear()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda text: text.replace("processor ", "processor not "), "they are of not "),
        (
            lambda text: text.replace("\nthreads ", "\nthreads 1"),
            f"threads, this process has {torch.get_num_threads()}",
        ),
        (lambda text: text.replace("caches", "cashes"), 'prices, line 4: expected "caches"'),
        (lambda text: text.replace("\nend\n", "\n"), "the text ends before its"),
    ],
)
def test_what_is_not_of_this_machine_is_ignored_with_a_notice(folder, caplog, change, reason):
    prices.write_prices(change(of_this_machine()))
    text, told = read(caplog)
    assert text == ""
    assert f"{folder / 'prices.txt'} is ignored" in told and reason in told and "`lowtide calibrate`" in told
    _lowtide.Session(_lowtide.Graph.parse(GRAPH), training=False, prices=text)


@pytest.mark.parametrize(
    "harm", [lambda body: body[: len(body) // 2], lambda body: body.replace(b"1e6", b"1e5"), lambda _: b""]
)
def test_a_damaged_file_is_ignored_with_a_notice(folder, caplog, harm):
    prices.write_prices(of_this_machine())
    path = folder / "prices.txt"
    path.write_bytes(harm(path.read_bytes()))
    text, told = read(caplog)
    assert text == "" and f"{path} is ignored" in told and "damaged" in told


def test_a_file_that_others_can_write_is_ignored(folder, caplog):
    prices.write_prices(of_this_machine())
    files._told.clear()
    os.chmod(folder / "prices.txt", 0o666)
    text, told = read(caplog)
    assert text == "" and "can be written by others" in told


def test_a_folder_that_cannot_be_written_is_told(folder, monkeypatch, capsys):
    folder.write_text("a file")
    monkeypatch.setattr(command, "calibrate", lambda progress: of_this_machine())
    assert main(["calibrate"]) == 2
    assert f"cannot be written to {folder / 'prices.txt'}" in capsys.readouterr().err


@pytest.mark.long
def test_a_calibration_measures_every_class_in_a_minute(folder):
    begin = time.perf_counter()
    assert main(["calibrate"]) == 0
    assert time.perf_counter() - begin < 60
    measured, shipped = (
        {tuple(line.split()[:2]): line for line in text.splitlines() if len(line.split()) == 7}
        for text in (prices.measured_prices(), _lowtide.shipped_prices())
    )
    same = {key for key in shipped if measured[key] == shipped[key]}
    assert same <= {("call", "f32"), ("fill", "f32"), ("pointwise", "i32")}, "rates that were not measured"
