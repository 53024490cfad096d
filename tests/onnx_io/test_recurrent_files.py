"""Recurrent layers in files that others made: forms of ONNX's LSTM, GRU and RNN, and what PyTorch exports."""

import io
import json

import numpy
import onnx
import pytest
import torch
from files_of_others import FLOAT, check, model_of, random
from onnx import TensorProto, helper

from lowtide._lowtide import Session
from lowtide.cli import main
from lowtide.errors import UnsupportedError
from lowtide.onnx_io import from_model
from lowtide.ortmodule.custom_functions import CallHandler

RATE = 0.02
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
UNITS, FEATURES = 3, 5
OUTPUTS = ("y", "state", "memory")


def layer(op, bias=True, given=(), wanted=OUTPUTS, **attrs):
    """A model of one node; `given`: what it takes beside x and its weights, as inputs of the model."""
    ways, width = 2 if attrs.get("direction") == "bidirectional" else 1, GATES[op] * UNITS
    weights = {"w": random(ways, width, FEATURES), "r": random(ways, width, UNITS), "b": random(ways, 2 * width)}
    if not bias:
        del weights["b"]
    state = (FLOAT, [ways, "n", UNITS])
    kinds = {"lengths": (TensorProto.INT32, ["n"]), "first_state": state, "first_memory": state}
    inputs = {"x": (FLOAT, ["t", "n", FEATURES]), **{name: kinds[name] for name in given}}
    taken = ["x", "w", "r", "b" if bias else "", *(name if name in given else "" for name in kinds)]
    outputs = {name: state for name in wanted if name != "memory" or op == "LSTM"}
    if "y" in outputs:
        outputs["y"] = (FLOAT, ["t", ways, "n", UNITS])
    if op == "GRU":
        attrs = {"linear_before_reset": 1, **attrs}
    if op != "LSTM":
        taken.pop()
    made = [name if name in outputs else "" for name in (OUTPUTS if op == "LSTM" else OUTPUTS[:2])]
    node = helper.make_node(op, taken, made, name="layer", hidden_size=UNITS, **attrs)
    return model_of([node], inputs, outputs, weights)


def values(model, steps=6, rows=4):
    sizes, given = {"t": steps, "n": rows}, {}
    for entry in model.graph.input:
        shape = [sizes.get(size.dim_param, size.dim_value) for size in entry.type.tensor_type.shape.dim]
        given[entry.name] = torch.from_numpy(random(*shape))
    if "lengths" in given:
        given["lengths"] = torch.tensor([6, 1, 3, 4], dtype=torch.int32)
    return given


FORMS = [
    ("LSTM", {}),
    ("LSTM", {"direction": "reverse", "given": ("lengths", "first_state", "first_memory")}),
    ("LSTM", {"direction": "bidirectional", "given": ("lengths",)}),
    ("LSTM", {"direction": "bidirectional", "given": ("first_state",), "wanted": ("state", "memory")}),
    ("LSTM", {"bias": False, "wanted": ("memory",), "activations": ["Sigmoid", "Tanh", "Tanh"]}),
    ("GRU", {}),
    ("GRU", {"bias": False, "direction": "reverse", "given": ("lengths", "first_state")}),
    ("GRU", {"direction": "bidirectional", "wanted": ("state",)}),
    ("RNN", {"bias": False}),
    ("RNN", {"direction": "reverse", "activations": ["Relu"], "given": ("lengths", "first_state")}),
    ("RNN", {"direction": "bidirectional", "activations": ["Relu", "Tanh"]}),
]


@pytest.mark.parametrize(("op", "form"), FORMS, ids=[f"{op} {i}" for i, (op, _) in enumerate(FORMS)])
def test_a_form(op, form):
    model = layer(op, **form)
    imported = check(model, values(model))
    assert {node["op"] for node in imported.graph.nodes()} >= {"Gemm", "Recurrence"}


@pytest.mark.parametrize(
    ("op", "attrs", "text"),
    [
        ("LSTM", {"clip": 3.0}, "node 'layer' (LSTM): it clips what its activations take (clip)"),
        ("LSTM", {"input_forget": 1}, "its input and forget gates are one (input_forget=1)"),
        ("RNN", {"direction": "up"}, "its direction is 'up'; lowtide has forward, reverse, bidirectional"),
        ("LSTM", {"layout": 1}, "its batch comes first (layout=1)"),
        (
            "LSTM",
            {"activations": ["Sigmoid", "Relu", "Tanh"]},
            "its activations are sigmoid, relu, tanh; lowtide",
        ),
        ("RNN", {"activations": ["Affine"]}, "its activations are affine; lowtide has tanh or relu in each direction"),
        ("GRU", {"linear_before_reset": 0}, "its reset gate scales the state before the product with it"),
    ],
)
def test_a_form_that_is_refused(op, attrs, text):
    with pytest.raises(UnsupportedError) as error:
        from_model(layer(op, **attrs))
    assert text in str(error.value)


def test_peepholes_are_refused():
    model = layer("LSTM")
    model.graph.node[0].input.append("p")
    model.graph.initializer.append(onnx.numpy_helper.from_array(random(1, 3 * UNITS), "p"))
    with pytest.raises(UnsupportedError, match=r"it has peepholes \(P\)"):
        from_model(model)


@pytest.mark.parametrize(("first", "kinds"), [(0.0, []), (0.5, ["param"])], ids=["zeros", "a parameter"])
def test_first_states_that_a_file_holds(first, kinds):
    """PyTorch's exporters write the zeros of a call without states as a constant; training would move a parameter."""
    model = layer("RNN", given=("first_state",))
    del model.graph.input[1]
    array = numpy.full([1, 4, UNITS], first, dtype=numpy.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(array, "first_state"))
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 4
    imported = check(model, values(model))
    graph = imported.graph
    assert [e["kind"] for e in graph.inputs() if graph.value_name(e["value"]) == "first_state"] == kinds


# ---- what PyTorch exports


class Tagger(torch.nn.Module):
    """A recurrent layer, and what each step gives as three numbers."""

    def __init__(self, recurrent):
        super().__init__()
        self.recurrent = recurrent
        self.head = torch.nn.Linear(UNITS * (2 if recurrent.bidirectional else 1), 3)

    def forward(self, x):
        return self.head(self.recurrent(x)[0])


LAYERS = {
    "LSTM": lambda: torch.nn.LSTM(FEATURES, UNITS, num_layers=2, bidirectional=True),
    "GRU": lambda: torch.nn.GRU(FEATURES, UNITS, num_layers=2, batch_first=True),
    "RNN": lambda: torch.nn.RNN(FEATURES, UNITS, bidirectional=True, bias=False),
    "RNN of Relu": lambda: torch.nn.RNN(FEATURES, UNITS, nonlinearity="relu"),
}


def exported(model, x, axes):
    file = io.BytesIO()
    names = {"input_names": ["x"], "output_names": ["y"], "dynamic_axes": axes}
    torch.onnx.export(model, (x,), file, dynamo=False, opset_version=17, **names)
    return onnx.load_model_from_string(file.getvalue())


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("axes", [None, {"x": {0: "a", 1: "b"}}], ids=["fixed", "any sizes"])
@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_that_pytorch_exported(name, axes):
    torch.manual_seed(0)
    model = Tagger(LAYERS[name]()).eval()
    file = exported(model, torch.randn(4, 2, FEATURES), axes)
    x = torch.randn(*((7, 3) if axes else (4, 2)), FEATURES)
    imported = check(file, {"x": x})
    assert imported.graph.inputs()[0]["kind"] == "input"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", LAYERS)
def test_what_pytorch_exported_trains(name):
    """Steps of plain descent do not care how gates are ordered: the losses are those of eager PyTorch."""
    torch.manual_seed(0)
    model = Tagger(LAYERS[name]()).double().train()
    x = torch.randn(4, 2, FEATURES, dtype=torch.float64)
    imported = from_model(exported(model, x, None))
    graph = imported.graph
    names = [graph.value_name(entry["value"]) for entry in graph.inputs()]
    tensors = [x if name == "x" else torch.from_numpy(imported.tensors[name].copy()) for name in names]
    session = Session(graph, training=True)
    session.set_call_handler(CallHandler([]))
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=RATE), []
    for _ in range(5):
        outputs, pending = session.forward(tensors, 0, True)
        target = torch.linspace(-1, 1, outputs[0].numel(), dtype=x.dtype).view(outputs[0].shape)
        gradients = session.backward(pending, [2 * (outputs[0] - target)], [tensors[i] for i in session.saved_inputs])
        loss = (model(x) - target).square().sum()
        optimizer.zero_grad()
        loss.backward()
        losses.append((float((outputs[0] - target).square().sum()), loss.item()))
        for index, gradient in zip(session.gradient_targets, gradients, strict=True):
            tensors[index] = tensors[index] - RATE * gradient
        optimizer.step()
    for found, expected in losses:
        assert found == pytest.approx(expected, rel=1e-8)
    assert losses[-1][1] < 0.9 * losses[0][1]


@pytest.mark.filterwarnings("ignore")
def test_analyze_plans_an_lstm(tmp_path, capsys):
    class Loss(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.tagger = Tagger(LAYERS["LSTM"]())

        def forward(self, x):
            return self.tagger(x).square().mean()

    model = exported(Loss().eval(), torch.randn(4, 2, FEATURES), {"x": {0: "a", 1: "b"}})
    onnx.save(model, tmp_path / "lstm.onnx")
    assert main(["analyze", str(tmp_path / "lstm.onnx"), "--dims", "a=7,b=3", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["dims"] == {"a": 7, "b": 3} and told["peak_with"] > 0
