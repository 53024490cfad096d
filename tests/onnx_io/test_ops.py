"""Each op as ONNX: onnxruntime computes what lowtide does, and what is read back computes the same."""

import pytest
import torch
from both_ways import graph_of, round_trip, run, run_onnx, tensors_for

from lowtide._lowtide import Graph
from lowtide.onnx_io import from_model, is_standard, to_model

SIZES = {"n": 4, "m": 6}
X = "%x: f32[n, 6] input"
XY = X + ", %y: f32[n, 6] input"
POINTWISE = """Identity Detach Copy Abs Neg Exp Sin Cos Tan Atan Tanh Sigmoid Erf Relu Mish Floor Ceil Round Trunc Sign
    Swish HardSigmoid HardSwish Expm1""".split()
POSITIVE = "Log Log1p Sqrt Rsqrt Reciprocal".split()
WITH_ATTRIBUTES = [
    "Huber(alpha=0.5)",
    "LeakyRelu(alpha=0.1)",
    "Elu(alpha=1.5, scale=1.0, input_scale=1.0)",
    "Elu(alpha=1.5, scale=1.1, input_scale=0.5)",
    "Softplus(beta=1.0, threshold=20.0)",
    "Softplus(beta=2.0, threshold=1.0)",
    "Gelu",
    "QuickGelu(alpha=1.702)",
    "FastGelu",
    "Clip(min=-0.5, max=1.0)",
    "Clip(max=0.25)",
    "Clip(min=-0.5, max=1.0, open=true)",
    "CumSum(axis=1)",
    "CumSum(axis=0, reverse=true)",
    "Softmax(axis=1)",
    "LogSoftmax(axis=0)",
    "Flip(axes=[0, 1])",
    "Roll(axes=[0, 1], shifts=[3, -2])",
    "Trilu(upper=true, k=1)",
    "Trilu(upper=false, k=-1)",
    "Dropout(ratio=0.0, stream=0)",
]
BINARY = "Add Sub Mul Div Max Min Atan2 Mod FloorDiv Pow".split()
COMPARISONS = "Equal NotEqual Less LessOrEqual Greater GreaterOrEqual".split()
REDUCTIONS = "ReduceSum ReduceMean ReduceMax ReduceMin ReduceProd ReduceL2 ReduceLogSumExp".split()
CONV = "strides=[2, 1], pads=[1, 0, 0, 1], dilations=[1, 2], group=2"
POOL = "kernel_shape=[3, 2], strides=[2, 1], pads=[1, 0, 1, 1]"
IMAGE = "%x: f32[n, 4, 8, 7] input"
QKV = "%q: f32[n, 4, m, 8] input, %k: f32[n, 2, 5, 8] input, %v: f32[n, 2, 5, 3] input"
ATTENTION = "dropout=0.0, scale=0.3, stream=0"
LOGITS = "%x: f32[n, 3] input, %labels: i64[n] input"
LSTM = "%x: f32[m, n, 12] input, %w: f32[12, 3] input, %s: f32[n, 3] input, %c: f32[n, 3] input"
GRU = "%x: f32[m, n, 9] input, %w: f32[9, 3] input, %s: f32[n, 3] input"
RNN = "%x: f32[m, n, 3] input, %w: f32[3, 3] input, %s: f32[n, 3] input"
# Of one to three steps: of none the other runtime gives zeros for the states that rows begin with.
LENGTHS = "%one: i64[] = Constant(dtype=i64, int_value=1)\n  %k: i64[n] = Add %i, %one\n  "
STATES = "%r: f32[m, n, 3], %h: f32[n, 3]"
ONE = "%x: f32[3] input, %labels: i64[] input"
LOSS = "SoftmaxCrossEntropyLoss(ignore_index=2"

CASES = [
    *((X, f"%r: f32[n, 6] = {op} %x") for op in POINTWISE + WITH_ATTRIBUTES),
    *((X, f"%a: f32[n, 6] = Exp %x\n  %r: f32[n, 6] = {op} %a") for op in POSITIVE),
    *((XY, f"%a: f32[n, 6] = Abs %x\n  %r: f32[n, 6] = {op} %a, %y") for op in BINARY),
    ("%x: f32[n, 6] input, %y: f32[6] input", "%r: f32[n, 6] = BiasGelu %x, %y"),
    ("%x: f32[n, 6] input, %y: f32[6] input", "%r: f32[n, 6] = FastGelu %x, %y"),
    (XY, "%r: f32[n, 6] = Mod(fmod=true) %x, %y"),
    (XY, "%r: f32[n, 6] = BiasSoftmax(axis=1) %x, %y"),
    *((XY, f"%r: bool[n, 6] = {op} %x, %y") for op in COMPARISONS),
    (XY, "%c: bool[n, 6] = Less %x, %y\n  %r: f32[n, 6] = Where %c, %x, %y"),
    (XY, "%a: bool[n, 6] = Less %x, %y\n  %b: bool[n, 6] = Not %a\n  %r: bool[n, 6] = Xor %a, %b"),
    ("%x: i64[n] input", "%a: i64[] = Constant(dtype=i64, int_value=-3)\n  %r: i64[n] = FloorDiv %x, %a"),
    ("%x: i64[n] input", "%a: i64[] = Constant(dtype=i64, int_value=-3)\n  %r: i64[n] = Mod %x, %a"),
    ("%x: i64[n] input, %y: i64[n] input", "%r: i64[n] = BitwiseXor %x, %y"),
    *((X, f"%r: f32[n] = {op}(axes=[1], keepdims=false) %x") for op in REDUCTIONS),
    (X, "%r: f32[] = ReduceMax(axes=[0, 1], keepdims=false, nan_shares=true) %x"),
    (X, "%r: f32[1, 1] = ReduceSum(axes=[0, 1], keepdims=true) %x"),
    (X, "%r: i64[n, 1] = ArgMax(axis=1, keepdims=true) %x"),
    (X, "%r: f32[n, 2], %i: i64[n, 2] = TopK(axis=1, k=2, largest=true) %x"),
    (X, "%r: f32[n, 6], %i: i64[n, 6] = Sort(axis=1, descending=true) %x"),
    (X, "%r: f32[6*n] = Reshape(shape=[6*n]) %x"),
    ("%x: f32[n, 6*m] input, %z: f32[m] input", "%r: f32[m, n, 6] = Reshape(shape=[m, n, 6]) %x"),
    (X, "%r: f32[6, n] = Transpose(perm=[1, 0]) %x"),
    (X, "%r: f32[n, 2] = Slice(axis=1, start=1, end=5, step=2) %x"),
    (X, "%r: f32[n - 1, 6] = Slice(axis=0, start=0, end=n - 1, step=1) %x"),
    (X, "%r: f32[3, n, 6] = Expand(shape=[3, n, 6]) %x"),
    (X, "%r: f32[n, 1, 6, 1] = Unsqueeze(axes=[1, 3]) %x"),
    ("%x: f32[n, 1, 6] input", "%r: f32[n, 6] = Squeeze(axes=[1]) %x"),
    (X, "%r: f32[n, 6] = Squeeze(axes=[]) %x"),
    (X, "%r: f64[n, 6] = Cast(to=f64) %x"),
    (X, "%r: i64[] = Constant(dtype=i64, int_value=n//2 + n % 3)"),
    ("%x: f32[m, n] input", "%r: i64[] = Constant(dtype=i64, int_value=max(n**2 - 3*m, 0 - 7) + min(n, m))"),
    ("%x: f32[m, n] input", "%r: i64[] = Constant(dtype=i64, int_value=(n - m)//4)"),
    (X, "%r: f32[n, 2] = ConstantOfShape(dtype=f32, shape=[n, 2], value=0.5)"),
    (X, "%r: i64[n, 2] = ConstantOfShape(dtype=i64, shape=[n, 2], int_value=n)"),
    (X, "%r: i64[n] = Range(dtype=i64, numel=n, int_start=3, int_step=2)"),
    (X, "%r: f32[n] = Range(dtype=f32, numel=n, start=0.5, step=0.25)"),
    ("%x: f32[n, 6] input, %w: f32[6] input, %b: f32[6] input",
     "%r: f32[n, 6], _, _ = LayerNormalization(axis=1, epsilon=1e-12) %x, %w, %b"),
    (X, "%r: f32[n, 6], %u: f32[n], %s: f32[n] = LayerNormalization(axis=1, epsilon=0.001) %x"),
    ("%x: f32[n, 6] input, %w: f32[6] input",
     "%r: f32[n, 6], %s: f32[n] = SimplifiedLayerNormalization(axis=1, epsilon=0.001) %x, %w"),
    ("%x: f32[n, 4, 5] input, %w: f32[4] input, %b: f32[4] input",
     "%r: f32[n, 4, 5], _, _ = GroupNormalization(num_groups=2, epsilon=0.001) %x, %w, %b"),
    ("%x: f32[n, 3, 5] input, %w: f32[3] input, %b: f32[3] input, %u: f32[3] input, %v: f32[3] input",
     "%r: f32[n, 3, 5], _, _, %nu: f32[3], %nv: f32[3] = "
     "BatchNormalization(epsilon=0.001, momentum=0.25) %x, %w, %b, %u, %v"),
    (LOGITS, f'%r: f32[], _ = {LOSS}, label_smoothing=0.0, reduction="mean") %x, %labels'),
    (LOGITS, f'%r: f32[], %s: f32[n] = {LOSS}, label_smoothing=0.1, reduction="mean") %x, %labels'),
    (LOGITS + ", %w: f32[3] input", f'%r: f32[], _ = {LOSS}, label_smoothing=0.2, reduction="sum") %x, %labels, %w'),
    (LOGITS + ", %w: f32[3] input", f'%r: f32[n], _ = {LOSS}, label_smoothing=0.0, reduction="none") %x, %labels, %w'),
    (ONE, f'%r: f32[], _ = {LOSS}, label_smoothing=0.0, reduction="mean") %x, %labels'),
    ("%x: f32[n, 2, 6] input, %y: f32[6, 3] input", "%r: f32[n, 2, 3] = MatMul %x, %y"),
    ("%x: f32[n, 6, 2] input, %y: f32[3, 6] input",
     "%r: f32[n, 2, 3] = FusedMatMul(alpha=0.5, transA=true, transB=true) %x, %y"),
    ("%x: f32[n, 6] input, %y: f32[3, 6] input, %c: f32[3] input",
     "%r: f32[n, 3] = Gemm(alpha=0.5, beta=2.0, transA=false, transB=true) %x, %y, %c"),
    (QKV, f"%r: f32[n, 4, m, 3], _ = Attention(is_causal=false, {ATTENTION}) %q, %k, %v"),
    (QKV, f"%r: f32[n, 4, m, 3], %l: f32[n, 4, m] = Attention(is_causal=true, {ATTENTION}) %q, %k, %v"),
    (QKV + ", %s: bool[n, 1, 1, 5] input",
     f"%r: f32[n, 4, m, 3], _ = Attention(is_causal=true, {ATTENTION}) %q, %k, %v, %s"),
    (QKV + ", %s: f32[m, 5] input", f"%r: f32[n, 4, m, 3], _ = Attention(is_causal=false, {ATTENTION}) %q, %k, %v, %s"),
    (LSTM, STATES + ', _, _, %l: f32[n, 3] = Recurrence(cell="lstm", reverse=false) %x, %w, %s, %c'),
    (LSTM + ", %i: i64[n] input",
     LENGTHS + STATES + ', _, _, %l: f32[n, 3] = Recurrence(cell="lstm", reverse=true) %x, %w, %s, %c, _, %k'),
    (GRU, STATES + ', _, _, _ = Recurrence(cell="gru", reverse=false) %x, %w, %s'),
    (GRU + ", %b: f32[9] input, %i: i64[n] input",
     LENGTHS + STATES + ', _, _, _ = Recurrence(cell="gru", reverse=true) %x, %w, %s, _, %b, %k'),
    (RNN, STATES + ', _, _, _ = Recurrence(cell="tanh", reverse=true) %x, %w, %s'),
    (RNN + ", %i: i64[n] input",
     LENGTHS + STATES + ', _, _, _ = Recurrence(cell="relu", reverse=false) %x, %w, %s, _, _, %k'),
    ("%x: f32[n, m, 6] input, %c: f32[m, 6] input, %s: f32[m, 6] input",
     "%r: f32[n, m, 6] = RotaryEmbedding %x, %c, %s"),
    ("%x: f32[n, m, 6] input, %c: f32[m, 6] input, %s: f32[m, 6] input",
     "%r: f32[n, m, 6] = RotaryEmbedding(interleaved=true) %x, %c, %s"),
    (XY, "%r: f32[n, 12] = Concat(axis=1) %x, %y"),
    (XY, "%r: f32[n, 6] = Overwrite(passes=false) %x, %y"),
    (X, '%r: f32[n + 1, 5] = Pad(pads=[1, -1, 0, 0], mode="constant", value=0.5) %x'),
    (X, '%r: f32[n, 9] = Pad(pads=[0, 1, 0, 2], mode="reflect", value=0.0) %x'),
    (X, "%r: f32[2*n, 18] = Tile(repeats=[2, 3]) %x"),
    (X, "%r: f32[3*n, 6] = RepeatInterleave(axis=0, repeats=3) %x"),
    ("%x: f32[3, 6] input, %i: i64[n, 2] input", "%r: f32[n, 2, 6] = Gather(axis=0) %x, %i"),
    ("%x: f32[3, 6] input, %i: i64[n, 2] input", "%r: f32[n, 2, 6] = Gather(axis=0, padding_idx=1) %x, %i"),
    ("%x: f32[n, 3] input, %i: i64[n, 2] input", "%r: f32[n, 2] = GatherElements(axis=1) %x, %i"),
    ("%x: f32[n, 3] input, %i: i64[n, 2] input, %u: f32[n, 2] input",
     '%r: f32[n, 3] = ScatterElements(axis=1, reduction="add") %x, %i, %u'),
    ("%x: f32[3, 3] input, %i: i64[n, 2] input", "%r: f32[n] = GatherND %x, %i"),
    ("%x: f32[3, 3] input, %i: i64[n, 1] input, %u: f32[n, 3] input",
     '%r: f32[3, 3] = ScatterND(reduction="add") %x, %i, %u'),
    ("%x: f32[n, 6] input, %y: f32[n, 2] input", "%r: f32[n, 6] = SliceScatter(axis=1, start=1, end=3, step=1) %x, %y"),
    ("%x: f32[n, 6] input, %y: f32[n, 2] input", "%r: f32[n, 6] = SliceScatter(axis=1, start=1, end=5, step=2) %x, %y"),
    (IMAGE + ", %w: f32[6, 2, 3, 2] input, %b: f32[6] input", f"%r: f32[n, 6, 4, 6] = Conv({CONV}) %x, %w, %b"),
    (IMAGE, f"%r: f32[n, 4, 4, 7], _ = MaxPool({POOL}, dilations=[1, 1], ceil_mode=false) %x"),
    (IMAGE, f"%r: f32[n, 4, 4, 7] = AveragePool({POOL}, ceil_mode=false, count_include_pad=false) %x"),
    (IMAGE, f"%r: f32[n, 4, 4, 7] = AveragePool({POOL}, ceil_mode=false, count_include_pad=true) %x"),
    (IMAGE, '%r: f32[n, 4, 5, 14] = Resize(sizes=[5, 14], mode="bilinear", align_corners=false) %x'),
    (IMAGE, '%r: f32[n, 4, 5, 14] = Resize(sizes=[5, 14], mode="bilinear", align_corners=true) %x'),
    (IMAGE, '%r: f32[n, 4, 16, 3] = Resize(sizes=[16, 3], mode="nearest", align_corners=false) %x'),
    (IMAGE, "%r: f32[n, 4, 3, 9] = AdaptiveAveragePool(sizes=[3, 9]) %x"),
    ("%x: f32[n, 4, 7, 6] input",
     "%r: f32[n, 4, 3, 2, 3, 7] = Im2Col(kernel_shape=[3, 2], strides=[2, 1], pads=[0, 1, 0, 1], dilations=[1, 1]) %x"),
    ("%x: f32[n, 4, 3, 2, 3, 7] input",
     "%r: f32[n, 4, 7, 6] = Col2Im(kernel_shape=[3, 2], strides=[2, 1], pads=[0, 1, 0, 1], dilations=[1, 1],"
     " shape=[n, 4, 7, 6]) %x"),
    ("%x: f32[3, 3] input, %i: i64[n, 3] input, %u: f32[n, 3] input",
     '%r: f32[3, 3] = ScatterElements(axis=0, reduction="max", anew=true) %x, %i, %u'),
]  # fmt: skip


def close(actual, expected, **tolerances):
    assert len(actual) == len(expected)
    for first, second in zip(actual, expected, strict=True):
        torch.testing.assert_close(first, second, equal_nan=True, **tolerances)


@pytest.mark.parametrize(("inputs", "nodes"), CASES, ids=[nodes.rpartition("= ")[2][:48] for _, nodes in CASES])
def test_an_op(inputs, nodes):
    graph = graph_of(inputs, "  " + nodes)
    tensors = tensors_for(graph, SIZES)
    expected = run(graph, tensors)
    model, again = round_trip(graph, own_ops=False)
    close(run_onnx(model, tensors), expected, rtol=2e-5, atol=2e-5)
    close(run(again, tensors), expected, rtol=2e-5, atol=2e-5)
    # In lowtide's own domain nothing is lost: the same bits.
    _, exact = round_trip(graph, own_ops=True)
    close(run(exact, tensors), expected, rtol=0, atol=0)


def test_random_ops_keep_their_distribution():
    graph = graph_of("%x: f32[n, 100] input", "  %r: f32[n, 100] = Dropout(ratio=0.25, stream=3) %x")
    model, again = round_trip(graph, own_ops=False)
    ones = torch.ones(50, 100)
    for outputs in (run_onnx(model, [ones]), run(again, [ones])):
        assert outputs[0].unique().tolist() == pytest.approx([0.0, 4 / 3])
        assert abs(float((outputs[0] == 0).float().mean()) - 0.25) < 0.03


@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_random_numbers_are_of_their_range_and_dtype(dtype):
    """A writing function once gave a dtype twice."""
    attrs = f"dtype={dtype}, shape=[n, 100], stream=3"
    graph = graph_of(
        "%x: f32[n, 6] input",
        f"  %u: {dtype}[n, 100] = RandomUniform({attrs}, low=2.0, high=4.0)\n"
        f"  %g: {dtype}[n, 100] = RandomNormal({attrs}, mean=5.0, scale=0.5)\n"
        f"  %r: {dtype}[2*n, 100] = Concat(axis=0) %u, %g",
    )
    model = to_model(graph)
    assert is_standard(model)
    (found,) = run_onnx(model, [torch.ones(50, 6)])
    expected = run(graph, [torch.ones(50, 6)])[0]
    assert found.dtype == expected.dtype and found.shape == expected.shape
    for numbers in (found, expected):
        uniform, normal = numbers.chunk(2)
        assert 2 <= uniform.min() < 2.01 and 3.99 < uniform.max() <= 4
        assert abs(normal.mean() - 5) < 0.05 and abs(normal.std() - 0.5) < 0.05


LAST_MEMORY = """graph @g({inputs}) {{
  %r: f32[m, n, 3], _, _, {memories}, %l: f32[n, 3] = Recurrence(cell="lstm", reverse=false) %x, %w, %s, %c
  return {returned}
}}
"""


def test_a_layer_whose_last_memory_alone_is_read():
    graph = Graph.parse(LAST_MEMORY.format(inputs=LSTM, memories="_", returned="%l output"))
    tensors = tensors_for(graph, SIZES)
    model, again = round_trip(graph, own_ops=False)
    (layer,) = [node for node in model.graph.node if node.op_type == "LSTM"]
    assert list(layer.output[:2]) == ["", ""]
    for outputs in (run_onnx(model, tensors), run(again, tensors)):
        close(outputs, run(graph, tensors), rtol=2e-5, atol=2e-5)


def test_what_a_layer_keeps_for_backward_is_lowtides_own():
    text = LAST_MEMORY.format(inputs=LSTM, memories="%t: f32[m, n, 3]", returned="%t output, %l output")
    graph = Graph.parse(text)
    tensors = tensors_for(graph, SIZES)
    model = to_model(graph)
    assert not is_standard(model) and [node.op_type for node in model.graph.node] == ["Recurrence"]
    close(run(from_model(model).graph, tensors), run(graph, tensors), rtol=0, atol=0)


def test_a_layer_of_any_width_is_lowtides_own():
    """Its width is a number in ONNX's nodes."""
    inputs = "%x: f32[m, n, h] input, %w: f32[h, h] input, %s: f32[n, h] input"
    graph = graph_of(inputs, '  %r: f32[m, n, h], _, _, _, _ = Recurrence(cell="tanh", reverse=false) %x, %w, %s')
    assert [node.op_type for node in to_model(graph).graph.node] == ["Recurrence"]
