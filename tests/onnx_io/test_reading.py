"""ONNX files that others made: shapes computed by nodes, weights, old and new forms of ops; and what is refused."""

import json

import numpy
import onnx
import pytest
import torch
from both_ways import run
from files_of_others import FLOAT, INT64, check, ints, model_of, random
from onnx import helper, numpy_helper

from lowtide.cli import main
from lowtide.errors import InvalidArgument, UnsupportedError
from lowtide.onnx_io import from_model, load


def classifier(opset=17):
    """Convolutions, then rows whose length PyTorch's exporter computes with Shape, Gather and Concat."""
    node = helper.make_node
    nodes = [
        node("Conv", ["x", "conv.weight", "conv.bias"], ["c"], name="/conv/Conv", kernel_shape=[3, 3], pads=[1] * 4),
        node("BatchNormalization", ["c", "scale", "shift", "mean", "variance"], ["b"], epsilon=1e-5),
        node("Relu", ["b"], ["r"]),
        node("MaxPool", ["r"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
        node("Shape", ["p"], ["s"]),
        node("Gather", ["s", "zero"], ["n"], axis=0),
        node("Unsqueeze", ["n", "axis0"], ["n1"]),
        node("Concat", ["n1", "minus1"], ["target"], axis=0),
        node("Reshape", ["p", "target"], ["rows"]),
        node("Split", ["rows"], ["left", "right"], axis=1),
        node("Mul", ["left", "right"], ["gated"]),
        node("Identity", ["fc.bias"], ["shared.bias"]),  # as PyTorch's exporter writes tied weights
        node("Gemm", ["gated", "fc.weight", "shared.bias"], ["logits"], name="/head/fc/Gemm", transB=1),
        node("LogSoftmax", ["logits"], ["logp"], axis=-1),
        node("NegativeLogLikelihoodLoss", ["logp", "labels"], ["loss"], reduction="mean"),
    ]
    weights = {
        "conv.weight": random(4, 3, 3, 3),
        "conv.bias": random(4),
        "scale": random(4),
        "shift": random(4),
        "mean": random(4),
        "variance": numpy.abs(random(4)) + 0.5,
        "fc.weight": random(5, 32),
        "fc.bias": random(5),
        "zero": numpy.array(0, dtype=numpy.int64),
        "axis0": ints(0),
        "minus1": ints(-1),
    }
    inputs = {"x": (FLOAT, ["batch", 3, 8, 8]), "labels": (INT64, ["batch"])}
    return model_of(nodes, inputs, {"loss": (FLOAT, []), "logits": (FLOAT, ["batch", 5])}, weights, opset)


def test_a_classifier():
    imported = check(classifier(), {"x": torch.randn(6, 3, 8, 8), "labels": torch.randint(0, 5, (6,))})
    graph = imported.graph
    kinds = {graph.value_name(entry["value"]): entry["kind"] for entry in graph.inputs()}
    assert kinds["conv.weight"] == kinds["fc.bias"] == "param" and kinds["mean"] == kinds["variance"] == "buffer"
    assert graph.value_type(graph.outputs()[1]["value"]) == ("f32", ["batch", 5])
    assert {"head.fc", "conv"} <= {node["origin"] for node in graph.nodes()}
    assert imported.outputs == ["loss", "logits"]


def test_sizes_that_nodes_compute():
    node = helper.make_node
    nodes = [
        node("Shape", ["x"], ["s"]),
        node("Slice", ["s", "one", "two"], ["length"]),
        node("Squeeze", ["length", "axis0"], ["length0"]),
        node("Range", ["zero", "length0", "step"], ["positions"]),
        node("Gather", ["table", "positions"], ["embedded"]),
        node("Concat", ["minus1", "length", "four", "two"], ["heads"], axis=0),
        node("ConstantOfShape", ["rank"], ["ones"], value=numpy_helper.from_array(ints(1))),
        node("Equal", ["heads", "minus"], ["free"]),
        node("Where", ["free", "ones", "heads"], ["wide"]),
        node("Expand", ["tile", "wide"], ["spread"]),
        node("Add", ["x", "embedded"], ["sum"]),
        node("Reshape", ["sum", "heads"], ["cut"]),
        node("Add", ["cut", "spread"], ["both"]),
        node("Slice", ["both", "minus2", "most", "one"], ["last"]),
    ]
    weights = {
        "one": ints(1), "two": ints(2), "four": ints(4), "axis0": ints(0), "minus1": ints(-1), "minus": ints(-1),
        "minus2": ints(-2), "most": ints(2**63 - 1), "rank": ints(4), "zero": numpy.array(0), "step": numpy.array(1),
        "table": random(9, 8), "tile": random(1, 1, 2),
    }  # fmt: skip
    model = model_of(nodes, {"x": (FLOAT, ["b", "s", 8])}, {"last": (FLOAT, ["b", 2, 4, 2])}, weights)
    imported = check(model, {"x": torch.randn(3, 5, 8)})
    assert imported.graph.value_type(imported.graph.outputs()[0]["value"]) == ("f32", ["b", 2, 4, 2])


@pytest.mark.parametrize(
    ("op", "inputs", "attrs", "weights"),
    [
        ("PRelu", ["x", "slope"], {}, {"slope": random(6)}),
        ("Selu", ["x"], {}, {}),
        ("HardSigmoid", ["x"], {}, {}),
        ("Pow", ["x", "two"], {}, {"two": numpy.array(2, dtype=numpy.int64)}),
        ("Clip", ["x", "low"], {}, {"low": numpy.array(-0.5, dtype=numpy.float32)}),
        ("Sum", ["x", "x", "x"], {}, {}),
        ("Mean", ["x", "x", "one"], {}, {"one": numpy.array(1, dtype=numpy.float32)}),
        ("Flatten", ["x"], {"axis": 2}, {}),
        ("ReduceL1", ["x"], {"axes": [-1]}, {}),
        ("ReduceSumSquare", ["x"], {"axes": [0, 2], "keepdims": 0}, {}),
        ("ReduceMean", ["x"], {}, {}),
        ("InstanceNormalization", ["x", "w", "w"], {}, {"w": random(4)}),
        ("GlobalAveragePool", ["x"], {}, {}),
        ("MatMul", ["x", "v"], {}, {"v": random(6)}),
        ("Pad", ["x", "pads"], {}, {"pads": ints(0, 1, 0, 0, 2, 1)}),
        ("TopK", ["x", "k"], {}, {"k": ints(2)}),
        ("Cast", ["x"], {"to": INT64}, {}),
        ("Celu", ["x"], {"alpha": 0.7}, {}),
        ("ThresholdedRelu", ["x"], {"alpha": 0.3}, {}),
        ("Softsign", ["x"], {}, {}),
        ("Shrink", ["x"], {"lambd": 0.4, "bias": 0.1}, {}),
        ("Sinh", ["x"], {}, {}),
        ("Cosh", ["x"], {}, {}),
        ("LpNormalization", ["x"], {"p": 1, "axis": 1}, {}),
        ("LpNormalization", ["x"], {}, {}),
        ("Einsum", ["x", "b"], {"equation": "nij,jk->nik"}, {"b": random(6, 5)}),
        ("Einsum", ["b", "x"], {"equation": "...k,nk...->n..."}, {"b": random(6, 4)}),
        ("Einsum", ["x", "b", "v"], {"equation": "bid,jd,j"}, {"b": random(5, 6), "v": random(5)}),
        ("Einsum", ["x"], {"equation": "bid->dbi"}, {}),
        ("ConvTranspose", ["x", "w", "v"], {"strides": [3]}, {"w": random(4, 2, 3), "v": random(2)}),
        (
            "ConvTranspose",
            ["x", "w"],
            {"strides": [2], "pads": [1, 2], "output_padding": [1], "dilations": [2], "group": 2},
            {"w": random(4, 3, 3)},
        ),
        ("ConvTranspose", ["x", "w"], {"strides": [2], "auto_pad": "SAME_UPPER"}, {"w": random(4, 2, 3)}),
        ("ConvTranspose", ["x", "w"], {"pads": [3, 3]}, {"w": random(4, 2, 2)}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_op_of_theirs(op, inputs, attrs, weights):
    outputs = ["y", "i"] if op == "TopK" else ["y"]
    nodes = [helper.make_node(op, inputs, outputs, **attrs)]
    x = torch.randn(3, 4, 6)
    model = model_of(nodes, {"x": (FLOAT, ["n", 4, 6])}, {}, weights)
    inferred = onnx.shape_inference.infer_shapes(model).graph.value_info
    shapes = {info.name: info for info in inferred}
    model.graph.output.extend([shapes[name] for name in outputs])
    check(model, {"x": x})


@pytest.mark.parametrize(
    ("op", "attrs", "shape"),
    [
        ("DepthToSpace", {"blocksize": 2}, ["n", 8, 3, 2]),
        ("DepthToSpace", {"blocksize": 2, "mode": "CRD"}, ["n", 8, 3, 2]),
        ("SpaceToDepth", {"blocksize": 2}, ["n", 2, 4, 6]),
        ("MeanVarianceNormalization", {"axes": [0, 2, 3]}, ["n", 3, 4, 5]),
        ("Asin", {}, ["n", 3]),
        ("Acos", {}, ["n", 3]),
        ("EyeLike", {"k": 1}, [3, 5]),
    ],
)
def test_an_op_of_images_or_bounds(op, attrs, shape):
    model = model_of([helper.make_node(op, ["x"], ["y"], **attrs)], {"x": (FLOAT, shape)}, {"y": (FLOAT, None)})
    inferred = {info.name: info for info in onnx.shape_inference.infer_shapes(model).graph.output}
    if inferred["y"].type.tensor_type.HasField("shape"):
        model.graph.output[0].CopyFrom(inferred["y"])
    else:
        model.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", FLOAT, shape))
    x = torch.rand([2 if size == "n" else size for size in shape], generator=torch.Generator().manual_seed(0))
    check(model, {"x": x * 2 - 1})


def test_one_hot():
    node = helper.make_node("OneHot", ["i", "depth", "values"], ["y"], axis=1)
    weights = {"depth": numpy.array(4), "values": numpy.array([0.5, 2.0], dtype=numpy.float32)}
    model = model_of([node], {"i": (INT64, ["n", 3])}, {"y": (FLOAT, ["n", 4, 3])}, weights)
    check(model, {"i": torch.tensor([[0, 3, -1], [9, 1, 2]])})


@pytest.mark.parametrize("flat", [False, True], ids=["four dims", "three dims"])
def test_attention_of_opset_23(flat):
    shapes = (
        [["b", "s", 16], ["b", "s", 8], ["b", "s", 8]]
        if flat
        else [["b", 4, "s", 4], ["b", 2, "s", 4], ["b", 2, "s", 4]]
    )
    heads = {"q_num_heads": 4, "kv_num_heads": 2} if flat else {}
    node = helper.make_node("Attention", ["q", "k", "v"], ["y"], is_causal=1, **heads)
    inputs = {name: (FLOAT, shape) for name, shape in zip("qkv", shapes, strict=True)}
    imported = from_model(model_of([node], inputs, {"y": (FLOAT, shapes[0])}, opset=23))
    given = [torch.randn([{"b": 2, "s": 5}.get(size, size) for size in shape]) for shape in shapes]
    (found,) = run(imported.graph, given)
    q, k, v = given
    if flat:
        q, k, v = (each.unflatten(2, (-1, 4)).transpose(1, 2) for each in given)
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    expected = expected.transpose(1, 2).flatten(2) if flat else expected
    torch.testing.assert_close(found, expected)


def branch(name, *nodes):
    return helper.make_graph(list(nodes), name, [], [helper.make_tensor_value_info("r", FLOAT, None)])


def test_branches_that_sizes_decide():
    """As PyTorch's exporter writes `if q.shape[-2] != k.shape[-2]`; both branches have the same names."""
    node = helper.make_node
    choices = [
        branch("then", node("Neg", ["x"], ["m"]), node("Mul", ["m", "w"], ["r"])),
        branch("else", node("Exp", ["x"], ["m"]), node("Mul", ["m", "w"], ["r"])),
    ]
    nodes = [
        node("Shape", ["x"], ["s"]),
        node("Gather", ["s", "minus1"], ["last"], axis=0),
        node("Equal", ["last", "four"], ["same"]),
        node("Not", ["same"], ["other"]),
        node("If", ["same"], ["a"], then_branch=choices[0], else_branch=choices[1]),
        node("If", ["other"], ["b"], then_branch=choices[0], else_branch=choices[1]),
        node("Sub", ["a", "b"], ["y"]),
    ]
    weights = {"minus1": numpy.array(-1), "four": numpy.array(4), "w": random(4)}
    model = model_of(nodes, {"x": (FLOAT, ["n", 4])}, {"y": (FLOAT, ["n", 4])}, weights)
    imported = check(model, {"x": torch.randn(3, 4)})
    assert imported.tensors.keys() == {"w"}
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_param = "columns"
    refused(model, UnsupportedError, "If node: its condition depends on data, or on sizes that a call chooses")


def test_pads_that_are_turned_round():
    """As PyTorch's exporter writes F.pad: pairs from the last dim on, made a matrix, turned round and transposed."""
    node = helper.make_node
    nodes = [
        node("Concat", ["some", "zeros"], ["all"], axis=0),
        node("Reshape", ["all", "pairs"], ["matrix"]),
        node("Slice", ["matrix", "last", "before", "axis0", "back"], ["turned"]),
        node("Transpose", ["turned"], ["columns"], perm=[1, 0]),
        node("Reshape", ["columns", "minus1"], ["flat"]),
        node("Cast", ["flat"], ["pads"], to=INT64),
        node("Pad", ["x", "pads"], ["y"]),
    ]
    weights = {"some": ints(1, 2), "zeros": ints(0, 3), "pairs": ints(-1, 2), "last": ints(-1), "axis0": ints(0)}
    weights |= {"before": ints(-(2**63) + 1), "back": ints(-1), "minus1": ints(-1)}
    model = model_of(nodes, {"x": (FLOAT, ["n", 4])}, {"y": (FLOAT, ["m", 7])}, weights)
    check(model, {"x": torch.randn(2, 4)})


def test_weights_of_our_own_file_keep_their_kind(tmp_path):
    imported = from_model(classifier())
    from lowtide.onnx_io import save

    save(imported.graph, tmp_path / "again.onnx", tensors=imported.tensors)
    again = load(tmp_path / "again.onnx")
    kinds = [[(e["kind"], e["requires_grad"]) for e in graph.inputs()] for graph in (imported.graph, again.graph)]
    assert sorted(kinds[0]) == sorted(kinds[1]) and again.tensors.keys() == imported.tensors.keys()


def refused(model, kind, text):
    with pytest.raises(kind) as error:
        from_model(model)
    assert text in str(error.value)


def test_what_is_refused(tmp_path):
    x, y = {"x": (FLOAT, ["n", 4])}, {"y": (FLOAT, None)}
    loop = helper.make_node("NonZero", ["x"], ["y"], name="which")
    refused(
        model_of([loop], x, y),
        UnsupportedError,
        "node 'which' (NonZero): lowtide does not read NonZero: how many elements",
    )
    diagonal = helper.make_node("Einsum", ["x"], ["y"], equation="ii->i")
    refused(model_of([diagonal], {"x": (FLOAT, [4, 4])}, y), UnsupportedError, "'ii->i' takes a diagonal")
    old = model_of([helper.make_node("Relu", ["x"], ["y"])], x, y, opset=11)
    refused(old, UnsupportedError, "opset 11, expected 13 or newer")
    dangling = model_of([helper.make_node("Relu", ["z"], ["y"])], x, y)
    refused(dangling, InvalidArgument, "no node or input before gives 'z'")
    shape = [helper.make_node("Cast", ["x"], ["s"], to=INT64), helper.make_node("Reshape", ["x", "s"], ["y"])]
    refused(model_of(shape, x, y), UnsupportedError, "operand 1 ('s') depends on data")
    mixed = model_of([helper.make_node("Add", ["x", "z"], ["y"])], {**x, "z": (FLOAT, ["m", 4])}, y)
    with pytest.raises(Exception, match="Add"):
        from_model(mixed)
    (tmp_path / "no.onnx").write_bytes(b"no model at all")
    with pytest.raises(InvalidArgument, match="no.onnx is not an ONNX model"):
        load(tmp_path / "no.onnx")


# ---- lowtide analyze


def test_analyze_builds_the_gradient(tmp_path, capsys):
    onnx.save(classifier(), tmp_path / "model.onnx")
    assert main(["analyze", str(tmp_path / "model.onnx"), "--loss", "loss", "--dims", "batch=16", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["dims"] == {"batch": 16} and told["peak_with"] > 0 and told["candidates"]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([], "--loss NAME says which output is the loss; outputs: loss, logits"),
        (["--loss", "cost"], "--loss: no output is called 'cost'; outputs: loss, logits"),
        (["--loss", "loss"], "sizes are missing: give --dims batch=SIZE"),
    ],
)
def test_mistakes_on_the_command_line(tmp_path, capsys, arguments, text):
    onnx.save(classifier(), tmp_path / "model.onnx")
    assert main(["analyze", str(tmp_path / "model.onnx"), *arguments]) == 2
    assert text in capsys.readouterr().err
