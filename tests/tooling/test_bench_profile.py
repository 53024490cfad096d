"""./dev bench profile: what it counts of a step, and the page that it writes."""

import sys
from collections import namedtuple
from pathlib import Path

import pytest
import torch

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
sys.path[:0] = [str(BENCHMARKS / "training"), str(BENCHMARKS / "profile")]
from profile_page import page  # noqa: E402
from profile_tables import handed_on, layer_of, module_of, tables, text_of  # noqa: E402
from traced_steps import hands_on, measure_model  # noqa: E402

Output = namedtuple("Output", "loss")


class Layers(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(32, 32, bias=False) for _ in range(2))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x).relu()
        return Output(x.float().cumsum(1).square().mean())


@pytest.fixture(scope="module")
def shown():
    return tables(measure_model(Layers(), {"x": torch.randn(64, 32)}, "autocast:lowtide", steps=2))


def sums_of(shown, title):
    return next(dict(found) for each, _, found in shown["tables"] if each == title)


def test_products_have_the_flops_of_their_shapes(shown):
    # Forward twice, the gradient of both weights, and that of the second layer's input.
    assert sums_of(shown, "Parts")["products"]["flops"] == 5 * 2 * 64 * 32 * 32
    assert 0 < shown["products"] < 1


def test_each_table_holds_the_whole_step(shown):
    for title, _, found in shown["tables"]:
        assert sum(sums["ms"] for _, sums in found) == pytest.approx(shown["kernels_ms"]), title


def test_casts_are_counted_with_what_they_read_and_write(shown):
    casts = shown["casts"]
    assert casts["steps"] > 0
    # Sums along rows read and write f32 alone, in gradients too; other kernels convert as they read and write.
    assert casts["bytes"] >= 2 * 64 * 32 * (4 + 2)


def test_what_one_step_alone_reads_is_handed_on():
    kept = {"kind": "temporary", "bytes": 100, "writes": [1], "reads": [2, 9]}
    in_place = {"kind": "temporary", "bytes": 60, "writes": [3, 4, 5], "reads": [4, 5, 6]}
    assert hands_on([kept, in_place]) == {3: [(4, 60)], 4: [(5, 60)], 5: [(6, 60)]}
    rows = [
        {"step": step, "class": name, "ms": 2.0, "bytes": 120, "hands_on": hands_on([in_place]).get(step, [])}
        for step, name in ((3, "pointwise"), (4, "norm"), (5, "transcendental"), (6, "matmul"))
    ]
    assert handed_on(rows) == {"steps": 2, "bytes": 240, "ms": 4.0}


def test_layers_are_told_apart_and_their_modules_are_not(shown):
    assert (layer_of("h.3.mlp.c_fc"), module_of("h.3.mlp.c_fc")) == ("h.3", "h.*.mlp.c_fc")
    assert {"layers.0", "layers.1"} <= sums_of(shown, "Layers").keys()
    assert "layers.*" in sums_of(shown, "Modules")


def test_page_and_text_say_the_same_and_the_page_needs_nothing_else(shown):
    written = page("<a step>", shown)
    assert "http" not in written and "&lt;a step&gt;" in written
    assert "layers.*" in written and "layers.*" in text_of(shown, 40)
