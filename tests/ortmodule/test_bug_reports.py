"""A bug of lowtide's is an ERROR with a folder that shows it again, and training goes on in PyTorch. The bugs are
injected by these tests."""

import contextlib
import copy
import json
import re
import tempfile
from pathlib import Path

import pytest
import torch
from modules import Of, assert_same, step, x

import lowtide.capture
import lowtide.cli.reproduce
import lowtide.store.plans
from lowtide._lowtide import Session
from lowtide.cli import main
from lowtide.errors import FallbackWarning, InternalError
from lowtide.ortmodule import ORTModule


@pytest.fixture(autouse=True)
def as_users_run(monkeypatch, tmp_path):
    monkeypatch.setenv("LOWTIDE_RAISE_BUGS", "0")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


class Unplanned(Session):
    def __init__(self, *arguments, **options):
        raise InternalError("7 steps have no place")


class FailingForward(Session):
    def forward(self, inputs, *_):
        raise InternalError(f"no kernel for {[list(tensor.shape) for tensor in inputs]}")


class FailingBackward(Session):
    def backward(self, pending, gradients, saved):
        raise InternalError(f"{len(gradients)} gradients")


BUGS = {"plan": Unplanned, "forward": FailingForward, "backward": FailingBackward}


@pytest.fixture
def inject(monkeypatch):
    def inject(session):
        monkeypatch.setattr(lowtide.store.plans, "Session", session)
        monkeypatch.setattr(lowtide.cli.reproduce, "Session", session)

    return inject


def folder_of(caplog):
    (record,) = [record for record in caplog.records if record.levelname == "ERROR"]
    assert "Please report it" in record.getMessage()
    return Path(re.search(r"with the folder (\S+) ", record.getMessage())[1])


def trained(wrapped, stage):
    """A step as users see it; PyTorch's where forward was stopped."""
    if stage == "backward":
        with pytest.raises(InternalError):
            wrapped(x(5, 4)).sum().backward()
        return
    told = wrapped.fallback_reason is not None
    with contextlib.nullcontext() if told else pytest.warns(FallbackWarning, match="a bug in lowtide: "):
        wrapped(x(5, 4)).sum().backward()
    assert wrapped.l.weight.grad is not None and wrapped.fallback_reason.startswith("a bug in lowtide: ")


@pytest.mark.parametrize("stage", BUGS)
def test_a_bug_has_a_folder_that_shows_it_again(stage, inject, caplog, capsys):
    module = Of(lambda m, a: torch.tanh(m.l(a)))
    wrapped = ORTModule(module)
    inject(BUGS[stage])
    for _ in range(3):
        trained(wrapped, stage)
    folder = folder_of(caplog)  # one, though there were three steps
    assert sorted(path.name for path in folder.iterdir()) == ["graph.txt", "report.json", "traceback.txt"]
    assert "aten::tanh" in (folder / "graph.txt").read_text()
    report = json.loads((folder / "report.json").read_text())
    assert report["stage"] == stage and report["versions"]["PyTorch"] == torch.__version__
    assert "InternalError" in (folder / "traceback.txt").read_text()

    assert main(["reproduce", str(folder)]) == 1
    assert capsys.readouterr().out == f"InternalError: {report['error']}\nas reported\n"
    inject(Session)
    assert main(["reproduce", str(folder)]) == 0
    assert "no error" in capsys.readouterr().out


def test_a_bug_in_a_lowering_keeps_that_call_on_pytorchs_kernel(monkeypatch, caplog, capsys):
    """The rest of the module stays in the engine, with PyTorch's gradients."""
    monkeypatch.setenv("LOWTIDE_TEST_FAULT", "aten::tanh.default")
    module = Of(lambda m, a: torch.tanh(m.l(torch.tanh(a))))
    wrapped = ORTModule(copy.deepcopy(module))
    for _ in range(2):
        assert_same(step(wrapped, [x(5, 4, grad=True)]), step(module, [x(5, 4, grad=True)]))
    assert (
        wrapped.fallback_reason is None and len(wrapped._training_manager.last_agent.session.report["fallbacks"]) == 2
    )
    folder = folder_of(caplog)
    report = json.loads((folder / "report.json").read_text())
    assert report["stage"] == "plan" and "aten::tanh.default" in report["error"]
    assert main(["reproduce", str(folder)]) == 1
    assert capsys.readouterr().out.endswith("as reported\n")

    monkeypatch.setenv("LOWTIDE_RAISE_BUGS", "1")
    with pytest.raises(InternalError, match=r"aten::tanh\.default .*a test has broken its lowering"):
        ORTModule(module)(x(5, 4))


def test_a_bug_in_a_lowering_that_finds_a_size_is_told_as_a_bug(monkeypatch, caplog):
    """Once a call of an op was lowered wrongly, none of its calls is lowered; one that would have found a size from
    data leaves the graph without it."""
    monkeypatch.setenv("LOWTIDE_TEST_FAULT", "aten::index.Tensor")
    module = Of(lambda m, a: m.l(a[a.argmax(0)])[a[:4].sum(1) > 0])
    wrapped = ORTModule(copy.deepcopy(module))
    assert_same(step(wrapped, [x(5, 4, grad=True)]), step(module, [x(5, 4, grad=True)]))
    assert "a test has broken its lowering" in wrapped.fallback_reason
    assert "a test has broken its lowering" in json.loads((folder_of(caplog) / "report.json").read_text())["error"]


def test_a_bug_on_another_rank_is_told_by_that_rank(monkeypatch, inject, caplog):
    monkeypatch.setenv("RANK", "1")
    inject(Unplanned)
    ORTModule(Of(lambda m, a: m.l(a)))(x())
    folder_of(caplog)


def example():
    return Of(lambda m, a: m.l(a)), (x(),)


def test_one_before_there_is_a_graph_asks_for_the_model(monkeypatch, caplog, capsys):
    monkeypatch.setattr(lowtide.capture, "import_program", {}.pop)  # a TypeError, not foreseen
    module, arguments = example()
    with pytest.warns(FallbackWarning, match="a bug in lowtide: TypeError: pop expected"):
        ORTModule(module)(*arguments)
    folder = folder_of(caplog)
    assert f"{folder} MODULE:FUNCTION" in caplog.text
    assert main(["reproduce", str(folder)]) == 2
    assert "give MODULE:FUNCTION" in capsys.readouterr().err
    monkeypatch.setenv("ORTMODULE_FALLBACK_POLICY", "")  # which the command sets
    assert main(["reproduce", str(folder), f"{__name__}:example"]) == 1
    assert capsys.readouterr().out.endswith("as reported\n")


def test_a_bug_is_raised_in_tests_and_where_nothing_is_taken_over(monkeypatch, inject):
    inject(Unplanned)
    for name, value in (("ORTMODULE_FALLBACK_POLICY", "FALLBACK_DISABLE"), ("LOWTIDE_RAISE_BUGS", "1")):
        with monkeypatch.context() as set_for_now:
            set_for_now.setenv(name, value)
            for _ in range(2):
                with pytest.raises(InternalError, match="7 steps have no place"):
                    ORTModule(Of(lambda m, a: m.l(a)))(x())


def test_folders_that_are_no_reports(tmp_path, capsys):
    assert main(["reproduce", str(tmp_path / "none")]) == 2
    assert "holds no report of a bug" in capsys.readouterr().err
    (tmp_path / "graph.txt").write_text("")
    (tmp_path / "report.json").write_text("[]")
    assert main(["reproduce", str(tmp_path)]) == 2
    assert "another version" in capsys.readouterr().err
