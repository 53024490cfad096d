"""`lowtide bisect`: the first op that the engine computes otherwise than PyTorch does, and two plans bit for bit."""

import functools
import json

import layered
import pytest
import torch

from lowtide._lowtide import Graph, Session
from lowtide.capture import Call, capture
from lowtide.cli import main
from lowtide.cli.bisect import tell
from lowtide.convergence.bisect import bisect
from lowtide.convergence.captured_graph import CapturedGraph
from lowtide.convergence.engine_step import Example, make_session
from lowtide.convergence.plans import compare_plans

MODELS = ["gpt2", *(pytest.param(name, marks=pytest.mark.long) for name in ("bert", "resnet"))]


@functools.cache
def example(name):
    """Captured once for all tests."""
    module, make_batch = layered.build(name)
    return example_of(module, (), make_batch(torch.Generator().manual_seed(0)))


def example_of(module, args, kwargs):
    return Example(module, Call(args, kwargs, module.forward), capture(module, args, kwargs))


@pytest.fixture(scope="module", autouse=True)
def small_ops():
    """One thread: more would wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    example.cache_clear()


@pytest.mark.parametrize("name", MODELS)
def test_what_is_rounding_is_no_fault(name):
    """fp32 against each op in float64."""
    result = bisect(example(name), make_session(example(name)))
    assert result.found == [] and result.capture_differs == ""
    parameters = sum(parameter.requires_grad for parameter in example(name).module.parameters())
    assert result.compared["forward"] > 10 * layered.LAYERS
    assert result.compared["backward"] > parameters
    assert 0 < max(result.largest.values()) < 1e-5


@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("name", MODELS)
def test_a_fault_is_named(name, direction):
    """In layer 7 of 12: the op, its place and the value; its inputs are right; the graph reproduces it."""
    path, op = layered.FAULTS[name][direction]
    value = layered.faulty_value(make_session(example(name)).training_text(), name, direction)
    result = bisect(example(name), make_session(example(name), fault=(value, layered.FACTOR)))
    (found,) = result.found
    first = tell(result)["first"]
    assert (first["direction"], first["op"]["op"]) == (direction, op)
    assert first["op"]["origin"].removeprefix("gradient of: ").removeprefix("fused from: ").startswith(path + "  ")
    assert value in first["op"]["outputs"]
    assert first["alone"] == pytest.approx(1e-3, rel=1e-2)
    assert 5e-4 < first["error"] < 2e-3 and 5e-4 < first["from_eager"] < 2e-3
    assert all(entry["from_eager"] is None or entry["from_eager"] < 1e-4 for entry in first["inputs"])
    healthy, faulty = (
        run_graph(first["graph"], result.step, value),
        run_graph(first["graph"], result.step, value, fault=(value, layered.FACTOR)),
    )
    torch.testing.assert_close(healthy * layered.FACTOR, faulty, rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(faulty, result.step.values[value], rtol=1e-5, atol=1e-6 * faulty.abs().max().item())


def run_graph(text, step, value, **options):
    graph = Graph.parse(text)
    session = Session(graph, training=False, **options)
    inputs = [step.values.get(name, step.given.get(name)).contiguous() for name in session.input_names]
    names = [graph.value_name(entry["value"]) for entry in graph.outputs()]
    outputs, _ = session.forward(inputs, 0, False)
    return outputs[names.index(value)]


def test_a_wrong_gradient_rule_is_told_from_a_wrong_kernel(monkeypatch):
    """Each step is right by itself, and yet the gradient is wrong: here it is PyTorch's that is made so."""
    pull = CapturedGraph.pull

    def wrong(self, call, operands, gradients, floats=None):
        found = pull(self, call, operands, gradients, floats)
        if f"h.{layered.FAULTY}.mlp.act" in call.origin and "tanh" in call.target:
            found = [layered.FACTOR * each for each in found]
        return found

    monkeypatch.setattr(CapturedGraph, "pull", wrong)
    first = tell(bisect(example("gpt2"), make_session(example("gpt2"))))["first"]
    assert first["direction"] == "backward" and first["op"] is None and first["all_right_alone"]
    assert [step["op"] for step in first["steps"]] == ["Gemm", "FastGeluGrad", "Gemm"]
    assert f"h.{layered.FAULTY}.mlp.act" in first["steps"][1]["origin"]


class Net(torch.nn.Module):
    """Buffers, an op that writes in place, outputs without a loss, a sum that cancels."""

    def __init__(self, dropout=0.0):
        super().__init__()
        self.first, self.norm = torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16)
        self.drop, self.second = torch.nn.Dropout(dropout), torch.nn.Linear(16, 4)

    def forward(self, x):
        h = torch.nn.functional.gelu(self.norm(self.first(x)))
        h.mul_(2)
        return self.second(self.drop(h)), torch.softmax(h, 1).sum(1)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_other_dtypes_and_outputs(dtype):
    torch.manual_seed(1)
    module = Net().to(dtype)
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    result = bisect(example_of(module, (torch.randn(6, 8, dtype=dtype),), {}), make_session_of(module, dtype))
    assert result.found == [] and result.capture_differs == ""
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())


def make_session_of(module, dtype):
    return make_session(example_of(module, (torch.randn(6, 8, dtype=dtype),), {}))


# ---------------------------------------------------------------- the command


@pytest.fixture
def my_models(tmp_path, monkeypatch):
    (tmp_path / "bisected_models.py").write_text(
        "import torch\nfrom test_bisect import Net\n"
        "def net():\n    torch.manual_seed(1)\n    return Net(), (torch.randn(6, 8),)\n"
        "def dropping():\n    torch.manual_seed(1)\n    return Net(0.5), (torch.randn(6, 8),)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return "bisected_models"


def test_the_command(my_models, tmp_path, monkeypatch, capsys):
    assert main(["bisect", f"{my_models}:net"]) == 0
    assert "no op errs" in capsys.readouterr().out
    monkeypatch.setenv("LOWTIDE_TEST_FAULT", "gelu:1.001")
    assert main(["bisect", f"{my_models}:net", "--output", "fault"]) == 1
    told = capsys.readouterr().out
    assert "first op that errs: forward, Gelu, test_bisect.py:" in told
    assert "makes gelu, which is 1.0e-03 of its largest element off" in told
    assert "written: fault/op.ir, fault/values.pt" in told
    values = torch.load("fault/values.pt")
    assert [
        name for name in Session(Graph.parse((tmp_path / "fault/op.ir").read_text())).input_names if name not in values
    ] == []
    assert main(["bisect", f"{my_models}:net", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["first"]["op"]["op"] == "Gelu"


def test_what_cannot_be_bisected(my_models, capsys, monkeypatch):
    assert main(["bisect", f"{my_models}:dropping"]) == 2
    assert "draws random numbers" in (told := capsys.readouterr().err) and "dropout in drop" in told
    assert main(["bisect", "graph.ir"]) == 2
    assert "neither a file nor 'module:function'" in capsys.readouterr().err
    assert main(["bisect", f"{my_models}:net", "--plan", "Gelu"]) == 2
    assert "memory configuration" in capsys.readouterr().err
    monkeypatch.setenv("LOWTIDE_TEST_FAULT", "gelu:1.001")
    assert main(["bisect", f"{my_models}:net", "--output", "bisected_models.py"]) == 2
    assert "--output: cannot write to bisected_models.py" in capsys.readouterr().err


# ---------------------------------------------------------------- two plans


def test_plans_are_equal_in_every_bit(my_models, capsys):
    result = compare_plans(example("gpt2"), {"memory_level": 1})
    assert result.parted is None and result.compared > 500 and result.again > 50 and result.gradients > 100
    assert main(["bisect", f"{my_models}:dropping", "--plan", "Gelu+:1:-1"]) == 0
    assert "equal in every bit" in capsys.readouterr().out


def test_a_plan_that_is_wrong_is_named(monkeypatch):
    """One bit more or less, in what is made again in layer 7."""
    session = make_session(example("gpt2"), {"memory_config": "FastGelu+:1:-1"})
    value = layered.faulty_value(session.training_text(), "gpt2", "forward") + "_recompute"
    monkeypatch.setenv("LOWTIDE_TEST_FAULT", f"{value}:{1 + 2e-7}")
    parted = compare_plans(example("gpt2"), {"memory_config": "FastGelu+:1:-1"}).parted
    assert (parted.name, parted.direction, parted.op.op) == (value, "backward", "FastGelu")
    assert parted.op.origin.startswith("recompute of: " + layered.FAULTS["gpt2"]["forward"][0])
