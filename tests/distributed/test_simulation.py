"""`lowtide plan --ranks`: what collectives take, and what of it steps hide, in cases that were computed by hand."""

import json

import pytest
import torch

from lowtide._lowtide import Graph, Session, install_torch
from lowtide.cli import main
from lowtide.cli.network import Link, Network, read_network
from lowtide.cli.simulate import Region, Simulation, Step, regions_of
from lowtide.distributed import as_if_divided

INSIDE = Link(bytes_per_ms=1e6, latency_ms=0.01)
FLAT = Network(INSIDE)
NODES = Network(INSIDE, Link(bytes_per_ms=5e5, latency_ms=0.1), ranks_per_node=4)


def test_a_ring_sends_all_parts_but_one():
    assert FLAT.gather_ms(4, 4e6) == pytest.approx(3 * (1 + 0.01))
    assert FLAT.reduce_ms(4, 4e6) == pytest.approx(2 * 3 * (1 + 0.01))


def test_nodes_share_a_message_between_their_processes():
    assert NODES.gather_ms(4, 4e6) == FLAT.gather_ms(4, 4e6)  # one node
    assert NODES.gather_ms(8, 4e6) == pytest.approx(3 * (1 + 0.01) + 1 * (1 + 0.1))


def test_gathers_travel_beside_kernels_until_one_waits():
    forward = Region(
        [
            Step("begin", size_bytes=4_000_000, name="first"),  # 0 to 3.03
            Step("begin", size_bytes=2_000_000, name="second"),  # behind it, to 4.56
            Step("run", 2),
            Step("wait", index=0),  # 1.03
            Step("run", 5),  # to 8.03
            Step("wait", index=1),  # for nothing
        ]
    )
    backward = Region([Step("call", size_bytes=4_000_000, name="reduced")])
    found = Simulation(FLAT, 4).run([forward, backward])
    assert [message.waited_ms for message in found.messages] == pytest.approx([1.03, 0, 3.03])
    assert found.messages[1].begins_ms == pytest.approx(3.03)
    assert (found.step_ms, found.kernels_ms) == pytest.approx((3.03 + 5 + 3.03, 7))
    assert found.hidden == pytest.approx(1 - 4.06 / (3.03 + 1.53 + 3.03))


def test_buckets_travel_beside_the_rest_of_backward():
    regions = [Region([Step("run", 1)]), Region([Step("run", 2)], [1]), Region([Step("run", 2)], [0])]
    found = Simulation(FLAT, 2).run(regions, [4_000_000, 1 << 20], FLAT.reduce_ms)
    first, last = 2 * (524_288 / 1e6 + 0.01), 2 * (2 + 0.01)
    assert [message.begins_ms for message in found.messages] == pytest.approx([3, 5])
    assert [message.travels_ms for message in found.messages] == pytest.approx([first, last])
    assert found.step_ms == pytest.approx(5 + last)
    assert found.hidden == pytest.approx(1 - last / (first + last))


def test_faster_kernels_hide_less():
    region = Region([Step("begin", size_bytes=4_000_000), Step("run", 4), Step("wait", index=0)])
    assert Simulation(FLAT, 4).run([region]).hidden == 1
    found = Simulation(Network(INSIDE, kernels_faster=2.0), 4).run([region])
    assert found.step_ms == pytest.approx(3.03) and found.kernels_ms == 2


GATHERED = """graph @g(%x: f32[8, 4] input, %a: f32[2, 4] param, %b: f32[2, 4] param) {
  %p: f32[4, 4] = AllGather(group=0, ranks=2) %a
  %h: f32[8, 4] = Gemm(alpha=1.0, beta=1.0, transA=false, transB=true) %x, %p
  %k: f32[8, 4] = Tanh %h
  %q: f32[4, 4] = AllGather(group=0, ranks=2) %b
  %y: f32[8, 4] = Gemm(alpha=1.0, beta=1.0, transA=false, transB=true) %k, %q
  return %y output
}
"""


def test_steps_are_those_of_the_plan():
    install_torch(torch.get_num_threads())
    session = Session(Graph.parse(GATHERED), training=True)
    forward, backward = regions_of(session, [])
    assert [step.kind for step in forward.steps] == ["begin", "begin", "wait", "run", "run", "wait", "run"]
    assert [(step.name, step.size_bytes) for step in forward.steps[:2]] == [("AllGather a", 64), ("AllGather b", 64)]
    assert [step.name for step in backward.steps if step.kind == "call"] == [
        "ReduceScatter q_grad",
        "ReduceScatter p_grad",
    ]
    assert sorted(backward.gradients) == [0, 1]
    kernels = sum(price[7] for price in session.step_prices([]) if price[1] not in ("AllGather", "ReduceScatter"))
    assert Simulation(FLAT, 2).run([forward, backward]).kernels_ms == pytest.approx(kernels)


def test_layers_are_groups():
    model = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.ModuleList([torch.nn.Linear(5, 5) for _ in range(2)]))
    shard_of, owners = as_if_divided(model, 4)
    shard = shard_of(model[0].weight, owners)
    assert (shard.ranks, shard.part_shape) == (4, [2, 3])
    assert owners[id(model[0].weight)] is model and owners[id(model[1][1].bias)] is model[1][1]


def test_the_command_tells_of_each_count(tmp_path, capsys, monkeypatch):
    network, told = tmp_path / "network.json", tmp_path / "told.json"
    link = {"gigabytes_per_second": 10, "latency_us": 5}
    network.write_text(json.dumps({"inside": link, "between": link, "ranks_per_node": 4}))
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "some_layers.py").write_text(
        "import torch\ndef make():\n    layers = (torch.nn.Linear(512, 512) for _ in range(3))\n"
        "    return torch.nn.Sequential(*layers), (torch.ones(4, 512),)\n"
    )
    call = ["plan", "some_layers:make", "--ranks", "4,8", "--network", str(network), "--json"]
    assert main([*call, str(told)]) == 0
    rows = json.loads(told.read_text())["ranks"]
    assert [(row["ranks"], row["way"]) for row in rows] == [
        (n, way) for n in (4, 8) for way in ("ddp", "fsdp2", "zero3")
    ]
    size = 3 * (512 * 512 + 512) * 4
    assert [row["parameter_bytes"] for row in rows] == [size, size // 4, size // 4, size, size // 8, size // 8]
    assert all(
        row["step_ms"] == pytest.approx(row["kernels_ms"] + sum(m["waited_ms"] for m in row["messages"]))
        for row in rows
    )
    of_8 = {row["way"]: row for row in rows[3:]}
    assert max(of_8[way]["peak_bytes"] for way in ("fsdp2", "zero3")) < of_8["ddp"]["peak_bytes"]
    assert of_8["ddp"]["sent_bytes"] == pytest.approx(2 * 7 / 8 * size, rel=1e-3)
    # Two of the three weights are gathered again: what forward reads last stays, and no gradient leads to the input.
    assert of_8["zero3"]["sent_bytes"] == pytest.approx(7 / 8 * (2 * size + size / 3), rel=1e-2)
    assert sum(m["name"].startswith("bucket") for m in of_8["zero3"]["messages"]) >= 1
    assert "what kernels wait for longest" in capsys.readouterr().out


def test_a_budget_is_each_processs(tmp_path, capsys, monkeypatch):
    """Reductions travel meanwhile as they do without one; a budget that no plan keeps within is said to be so."""
    network, told = tmp_path / "network.json", tmp_path / "told.json"
    network.write_text(json.dumps({"inside": {"gigabytes_per_second": 10, "latency_us": 5}}))
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "layers_of_its_own.py").write_text(
        "import torch\nclass Layers(torch.nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.layers = torch.nn.ModuleList(torch.nn.Linear(256, 256) for _ in range(6))\n"
        "    def forward(self, x):\n        for layer in self.layers:\n            x = layer(x).tanh().exp()\n"
        "        return x\ndef make():\n    return Layers(), (torch.ones(2048, 256),)\n"
    )
    call = ["plan", "layers_of_its_own:make", "--ranks", "4", "--network", str(network), "--json", str(told)]
    found = {}
    for budget in ([], ["--budget", "70%"], ["--budget", "2%"]):
        assert main([*call, *budget]) == 0
        found["".join(budget[1:])] = {row["way"]: row for row in json.loads(told.read_text())["ranks"]}
    for way, row in found["70%"].items():
        beside = row["parameter_bytes"] if way == "ddp" else 0  # buckets
        assert row["peak_bytes"] - beside <= 0.7 * (found[""][way]["peak_bytes"] - beside)
        assert row["kernels_ms"] >= found[""][way]["kernels_ms"]
    reductions = [m for m in found["70%"]["fsdp2"]["messages"] if m["name"].startswith("ReduceScatter")]
    assert any(message["waited_ms"] == 0 for message in reductions), reductions
    assert all(row["refused"].startswith("no plan") for row in found["2%"].values())
    assert "no plan of this step keeps within" in capsys.readouterr().out


LINK = {"gigabytes_per_second": 1, "latency_us": 1}


@pytest.mark.parametrize(
    "told, words",
    [
        ("{", "is no JSON"),
        ([], "is no object"),
        ({}, 'lacks "inside"'),
        ({"inside": LINK, "speed": 1}, 'has "speed", expected ranks_per_node'),
        ({"inside": {"latency_us": 1}}, '"inside" lacks "gigabytes_per_second"'),
        ({"inside": {**LINK, "gigabytes_per_second": 0}}, '"inside.gigabytes_per_second" is 0'),
        ({"inside": {**LINK, "latency_us": "1"}}, '"inside.latency_us" is "1"'),
        ({"inside": LINK, "between": LINK}, "come together"),
        ({"inside": LINK, "between": LINK, "ranks_per_node": 0.5}, '"ranks_per_node" is 0.5'),
        ({"inside": LINK, "kernels_faster": -1}, '"kernels_faster" is -1'),
    ],
)
def test_a_network_that_cannot_be_is_refused(told, words, tmp_path, capsys):
    path = tmp_path / "network.json"
    path.write_text(told if isinstance(told, str) else json.dumps(told))
    assert main(["plan", "some:model", "--ranks", "8", "--network", str(path)]) == 2
    assert words in capsys.readouterr().err


def test_counts_that_cannot_be_are_refused(tmp_path, capsys):
    path = tmp_path / "network.json"
    path.write_text(json.dumps({"inside": LINK, "between": LINK, "ranks_per_node": 8}))
    read_network(path).check(64)
    for ranks, words in (("1", "from 2 on"), ("8,x", "from 2 on")):
        assert main(["plan", "some:model", "--ranks", ranks, "--network", str(path)]) == 2
        assert words in capsys.readouterr().err
    with pytest.raises(Exception, match="12 processes do not fill nodes of 8"):
        read_network(path).check(12)
    assert main(["plan", "some:model", "--ranks", "8"]) == 2
    assert "come together" in capsys.readouterr().err
