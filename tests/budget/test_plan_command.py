"""`lowtide plan`: the table of sizes, the frontier, why a value is kept or not, the page; mistakes name the culprit."""

import itertools
import json
import re

import pytest

from lowtide._lowtide import Graph, Session
from lowtide.cli import main

MODELS = """
import torch


class Blocks(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(
            torch.nn.Sequential(torch.nn.Linear(16, 64, bias=False), torch.nn.GELU(), torch.nn.Linear(64, 16))
            for _ in range(4)
        )

    def forward(self, x):
        for layer in self.layers:
            x = x + layer(x)
        return x.square().mean()


def blocks():
    return Blocks(), torch.randn(8, 32, 16)


class Masked(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(64, 64) for _ in range(3))

    def forward(self, x):
        for layer in self.layers:
            wide = layer(x)
            x = torch.where(wide > x, torch.sin(wide), x)
        return x.square().mean()


def masked():
    return Masked(), torch.randn(2048, 64)


class Wide(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(16, 512)

    def forward(self, x):
        return {"loss": x.square().mean(), "wide": self.fc(x)}


def wide():
    return Wide(), torch.randn(64, 16, requires_grad=True)


class Fixed(torch.nn.Module):
    def forward(self, x):
        return (x * torch.ones(3, 4)).sum()


def fixed():
    return Fixed(), torch.randn(3, 4, requires_grad=True)
"""
GRAPH = """graph @g(%x: f32[n, 64] input grad) where n in [1, 4096] {
  %a: f32[n, 64] = Exp %x
  %b: f32[n, 64] = Exp %a
  %c: f32[n, 64] = Exp %b
  return %c output
}
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    (tmp_path / "planned_models.py").write_text(MODELS)
    (tmp_path / "step.ir").write_text(GRAPH)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def plan(capsys, *arguments):
    assert main(["plan", *map(str, arguments)]) == 0
    return capsys.readouterr()


def told(capsys, *arguments):
    return json.loads(plan(capsys, *arguments, "--json", "-").out)


def test_default_floor_and_knee(here, capsys):
    out, err = plan(capsys, "planned_models:blocks")
    assert "planned_models:blocks at x_dim0=8, x_dim1=32" in out and "capturing ..." in err
    rows = [line.split() for line in out.splitlines() if "predicted" in line]
    words = " ".join(row[0] for row in rows)
    assert "default" in words and "floor" in words and "knee" in out


def test_the_frontier_is_monotone(here, capsys):
    frontier = told(capsys, "planned_models:blocks", "--pareto")["frontier"]
    rungs = frontier["rungs"]
    assert len(rungs) >= 3
    assert frontier["default_peak_bytes"] == rungs[0]["peak_bytes"]
    assert frontier["floor_bytes"] == rungs[-1]["peak_bytes"]
    for larger, smaller in itertools.pairwise(rungs):
        assert smaller["peak_bytes"] < larger["peak_bytes"] and smaller["predicted_ms"] >= larger["predicted_ms"]
        assert smaller["extra_ms"] >= smaller["bound_extra_ms"] - 1e-9
    out = plan(capsys, "planned_models:blocks", "--pareto").out
    table = out[out.index("1 MiB more saves") :].splitlines()[1:]
    assert len(table) == len(rungs) and all(re.search(r"[KM]iB +\d", line) for line in table)


def test_a_budget_gets_the_fastest_plan_that_fits(here, capsys):
    rungs = told(capsys, "planned_models:blocks")["frontier"]["rungs"]
    middle = len(rungs) // 2
    found = told(capsys, "planned_models:blocks", "--budget", rungs[middle]["peak_bytes"])
    assert found["rung"] == middle and found["budget_bytes"] == rungs[middle]["peak_bytes"]
    assert told(capsys, "planned_models:blocks", "--budget", rungs[middle]["peak_bytes"] - 1)["rung"] > middle
    assert told(capsys, "planned_models:blocks", "--budget", "100%")["rung"] == 0
    out = plan(capsys, "planned_models:blocks", "--budget", "1000").out
    assert "no plan keeps within 1000 B: the least is" in out


def test_peaks_are_those_of_plans_made_for_each_size(here, capsys):
    found = told(capsys, "step.ir", "--budget", "100KB", "--dims", "n=16..1024")
    assert [row["size"] for row in found["peaks"]] == [16, 32, 64, 128, 256, 512, 1024]
    session = Session(Graph.parse(GRAPH), training=True)
    for row in found["peaks"]:
        assert row["peak_bytes"]["0"] == session.memory([row["size"]])["planned_peak_bytes"]
    fits = [n for n in range(16, 1025) if session.memory([n])["planned_peak_bytes"] <= 100_000]
    assert found["largest_by_rung"]["0"] == max(fits)
    assert found["longest"] >= max(fits)
    kept = Session(Graph.parse(GRAPH), training=True, memory_budget=100_000)
    assert kept.memory([found["longest"]])["planned_peak_bytes"] <= 100_000
    out = plan(capsys, "step.ir", "--budget", "100KB", "--dims", "n=16..1024").out
    assert f"longest n: {found['longest']}, peak " in out and "  largest " in out


def test_what_becomes_of_a_value(here, capsys):
    rungs = told(capsys, "planned_models:blocks")["frontier"]["rungs"]
    given_up = {value["value"]: value for value in rungs[-1]["values"]}
    name = next(name for name, value in given_up.items() if value["what"] == "recomputed")
    found = told(capsys, "planned_models:blocks", "--budget", rungs[-1]["peak_bytes"], "--explain", name)["explained"]
    assert found["what"] == "recomputed" and found["from"] and found["needed_by"] and found["ms"] > 0
    out = plan(capsys, "planned_models:blocks", "--budget", rungs[-1]["peak_bytes"], "--explain", name).out
    assert f"%{name}: recomputed" in out and "planned_models.py:" in out and "needed by" in out
    kept = told(capsys, "planned_models:blocks", "--budget", "100%", "--explain", name)["explained"]
    assert kept["what"] == "kept"
    out = plan(capsys, "planned_models:blocks", "--budget", "100%", "--explain", name).out
    assert "  recomputed from the plan of " in out


def test_what_waits_in_fewer_bits(here, capsys):
    rungs = told(capsys, "planned_models:masked")["frontier"]["rungs"]
    found = [(rung, row) for rung in rungs for row in rung["values"] if row["what"] == "compressed"]
    rung, row = found[-1]
    asked = ("planned_models:masked", "--budget", rung["peak_bytes"], "--explain", row["value"])
    story = told(capsys, *asked)["explained"]
    assert story["what"] == "compressed" and story["bytes"] == 8 * story["packed_bytes"] == 2048 * 64
    assert story["packing_ms"] == pytest.approx(row["ms"])
    out = plan(capsys, *asked).out
    assert f"%{row['value']}: compressed in the plan of" in out
    assert "waits for backward in 16.0 KiB; packing and unpacking take" in out


def test_outputs_that_nobody_reads(here, capsys):
    both, loss = (told(capsys, "planned_models:wide", *keep)["frontier"] for keep in ((), ("--keep", "loss")))
    assert loss["default_peak_bytes"] < both["default_peak_bytes"] - 64 * 512 * 4


def test_the_page(here, capsys):
    plan(capsys, "planned_models:blocks", "--budget", "80%", "--html", "plan.html")
    html = (here / "plan.html").read_text()
    (data,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', html, re.DOTALL)
    data = json.loads(data)
    before, after = (each["picture"] for each in data["pictures"])
    rungs = data["frontier"]["rungs"]
    assert before["peak_bytes"] == rungs[0]["peak_bytes"]
    assert after["peak_bytes"] == rungs[data["chosen"]]["peak_bytes"] <= 0.8 * before["peak_bytes"]
    assert sum(step["made"] == "recomputed" for step in after["steps"]) > sum(
        step["made"] == "recomputed" for step in before["steps"]
    )


def test_measured(here, capsys):
    found = told(capsys, "planned_models:blocks", "--measure")
    measured = [rung["measured_ms"] for rung in found["frontier"]["rungs"]]
    assert measured[0] > 0 and measured[-1] > 0


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--budget", "12 apples"], "--budget is '12 apples', of an unknown unit 'apples': expected bytes"),
        (["--dims", "batch=2..x"], "'batch=2..x' is not NAME=LOW..HIGH"),
        (["--dims", "batch=8..2"], "'batch=8..2' is not NAME=LOW..HIGH"),
        (["--dims", "batch=2..8,seq=2..8"], "batch and seq are ranges, expected one"),
        (["--dims", "rows=2..8"], "no size of the model is called 'rows'; sizes: x_dim0, x_dim1"),
        (["--explain", "nothing_such"], "no value of the step is called %nothing_such; the nearest are %"),
        (["--keep", "loss"], "keep_outputs"),
        (["--measure", "--dims", "batch=4"], "steps run at the sizes of the example, x_dim0=8, x_dim1=32"),
    ],
)
def test_mistakes(here, capsys, arguments, expected):
    assert main(["plan", "planned_models:blocks", *arguments]) == 2
    last = capsys.readouterr().err.strip().splitlines()[-1]
    assert last.startswith("lowtide plan: ") and expected in last, last


def test_a_model_of_constant_sizes(here, capsys):
    assert "at constant sizes" in plan(capsys, "planned_models:fixed").out
    assert main(["plan", "planned_models:fixed", "--dims", "batch=1..4"]) == 2
    assert "every size is a constant" in capsys.readouterr().err
