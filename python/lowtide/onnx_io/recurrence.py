"""Recurrence as ONNX's LSTM, GRU and RNN, which hold the product with the input as well.

What they take for the input are our gates, so that the weight of that product has the rows of a unit matrix, in ONNX's
order of gates.
"""

# Cell → (ONNX's op, ours of its gates in its order). Ours: input, forget, new, output; reset, update, new.
CELLS = {
    "lstm": ("LSTM", (0, 3, 1, 2)),
    "gru": ("GRU", (1, 0, 2)),
    "tanh": ("RNN", (0,)),
    "relu": ("RNN", (0,)),
}
_RESULTS = (("y", 0), ("state", 1), ("memory", 4))  # ONNX's, and ours that they are
_KEPT = (2, 3)  # ours for backward


def recurrence(w, n):
    units = n.input_types[1][1][1]
    if any(n.wants(index) for index in _KEPT) or not isinstance(units, int):  # hidden_size is a number
        w.own_node(n)
        return
    op, order = CELLS[n["cell"]]
    gates, weight, state, memory, bias, lengths = (_operand(w, n, index) for index in range(6))
    zero, width = w.scalar(0, gates.dtype), len(order) * units
    unit = w.term("EyeLike", w.term("Expand", zero, w.sizes([width, width])))
    inputs = [gates, *(_directed(w, _reordered(w, rows, order, units)) for rows in (unit, weight))]
    if bias is not None:  # behind that of the input
        bias = w.term("Concat", w.term("Expand", zero, w.sizes([width])), _reordered(w, bias, order, units), axis=0)
    inputs += [bias and _directed(w, bias), lengths and lengths.cast("i32")]
    inputs += [first and _directed(w, first) for first in (state, memory)]
    outputs = [w.fresh(f"{op.lower()}_{name}") if n.wants(index) else "" for name, index in _RESULTS]
    w.node(
        op,
        ["" if term is None else term.name for term in inputs],
        outputs,
        hidden_size=units,
        direction="reverse" if n["reverse"] else "forward",
        activations=["Relu"] if n["cell"] == "relu" else None,
        linear_before_reset=1 if op == "GRU" else None,
    )
    for name, (_, index) in zip(outputs, _RESULTS, strict=True):
        if name:
            w.node("Squeeze", [name, w.sizes([1 if index == 0 else 0])], [n.outputs[index]])


def _operand(w, n, index):
    return w.input(n, index) if index < len(n.inputs) and n.inputs[index] else None


def _directed(w, x):
    return w.term("Unsqueeze", x, w.sizes([0]))


def _reordered(w, rows, order, units):
    if len(order) == 1:
        return rows
    spans = [(gate * units, (gate + 1) * units) for gate in order]
    parts = [w.term("Slice", rows, w.sizes([first]), w.sizes([end]), w.sizes([0])) for first, end in spans]
    return w.term("Concat", *parts, axis=0)
