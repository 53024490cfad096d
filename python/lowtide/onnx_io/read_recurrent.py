"""ONNX's recurrent layers: in each direction the product with the input for all steps, then the steps (Recurrence)."""

from lowtide.errors import UnsupportedError

from .contents import times
from .recurrence import CELLS

_ACTIVATIONS = {  # op → those of one direction, and the cell that they make
    "LSTM": {("sigmoid", "tanh", "tanh"): "lstm"},
    "GRU": {("sigmoid", "tanh"): "gru"},
    "RNN": {("tanh",): "tanh", ("relu",): "relu"},
}
_REVERSED = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}
_PEEPHOLES = 7  # their operand


def _layer(r, n):
    _refuse(n)
    reversed_ways = _REVERSED[n.get("direction", "forward")]
    cells = _cells(n, len(reversed_ways))
    # PyTorch's exporters write the zeros that no state begins with as a tensor: those are no parameters.
    operands = [
        r.value(name, "constant" if index in (5, 6) and _is_zero(r, name) else None) if name else None
        for index, name in enumerate(n.inputs)
    ]
    x, input_weights, weights, biases, lengths, *firsts = operands + [None] * (7 - len(operands))
    if lengths is not None and r.dtype(lengths) != "i64":
        lengths = r.op("Cast", [lengths], to="i64")
    steps, rows, features = r.shape(x)
    flat = r.op("Reshape", [x], shape=[times(steps, rows), features])
    ways = []
    for way, (cell, reverse) in enumerate(zip(cells, reversed_ways, strict=True)):
        _, order = CELLS[cell]
        units = r.shape(weights)[2]
        input_weight, weight = (_reordered(r, _part(r, found, way), order, units) for found in (input_weights, weights))
        bias, of_state = _biases(r, biases, way, cell, units)
        gates = [flat, input_weight] if bias is None else [flat, input_weight, bias]
        gates = r.op("Gemm", gates, transA=False, transB=True, alpha=1.0, beta=1.0)
        gates = r.op("Reshape", [gates], shape=[steps, rows, times(len(order), units)])
        begin = [_part(r, found, way) if found is not None else _zeros(r, rows, units, x) for found in firsts[:2]]
        memory = begin[1] if cell == "lstm" else None
        operands = [gates, weight, begin[0], memory, of_state, lengths]
        while operands[-1] is None:
            operands.pop()
        made = r.ops("Recurrence", operands, cell=cell, reverse=reverse)
        ways.append((made[0], made[1], made[4]))
    joined = zip(range(len(n.outputs)), (1, 0, 0), strict=False)
    return [_joined(r, [made[index] for made in ways], axis) if n.wants(index) else None for index, axis in joined]


def _refuse(n):
    if n.get("direction", "forward") not in _REVERSED:
        raise UnsupportedError(f"its direction is '{n.get('direction')}'; lowtide has {', '.join(_REVERSED)}")
    if n.get("layout", 0):
        raise UnsupportedError("its batch comes first (layout=1): lowtide reads steps first, layout=0")
    if n.has(_PEEPHOLES):
        raise UnsupportedError("it has peepholes (P)")
    if "clip" in n.attrs:
        raise UnsupportedError("it clips what its activations take (clip)")
    if n.get("input_forget", 0):
        raise UnsupportedError("its input and forget gates are one (input_forget=1)")
    if n.op == "GRU" and not n.get("linear_before_reset", 0):
        raise UnsupportedError(
            "its reset gate scales the state before the product with it (linear_before_reset=0), PyTorch's what that"
            " product gives (linear_before_reset=1)"
        )


def _cells(n, ways):
    """One a direction."""
    known = _ACTIVATIONS[n.op]
    each = next(iter(known))
    given = tuple(name.lower() for name in n.get("activations", each * ways))
    cells = [known.get(given[way * len(each) : (way + 1) * len(each)]) for way in range(ways)]
    if None in cells or len(given) != ways * len(each):
        choices = " or ".join(", ".join(names) for names in known)
        raise UnsupportedError(f"its activations are {', '.join(given)}; lowtide has {choices} in each direction")
    return cells


def _is_zero(r, name):
    array = r.array(name)
    return array is not None and not array.any()


def _part(r, values, way):
    """Of one direction."""
    if r.shape(values)[0] != 1:
        values = r.op("Slice", [values], axis=0, start=way, end=way + 1, step=1)
    return r.op("Squeeze", [values], axes=[0])


def _rows(r, values, first, end, units):
    return r.op("Slice", [values], axis=0, start=times(first, units), end=times(end, units), step=1)


def _reordered(r, values, order, units):
    """Gates of a matrix or a vector, from ONNX's order."""
    if len(order) == 1:
        return values
    parts = [_rows(r, values, order.index(gate), order.index(gate) + 1, units) for gate in range(len(order))]
    return r.op("Concat", parts, axis=0)


def _biases(r, biases, way, cell, units):
    """What the input's product is added to, and what the state's alone is: a GRU's reset gate scales the latter."""
    if biases is None:
        return None, None
    _, order = CELLS[cell]
    both, gates = _part(r, biases, way), len(order)
    halves = [_rows(r, both, first, first + gates, units) for first in (0, gates)]
    of_input, of_state = (_reordered(r, half, order, units) for half in halves)
    return (of_input, of_state) if cell == "gru" else (r.op("Add", [of_input, of_state]), None)


def _zeros(r, rows, units, like):
    return r.fill(0.0, [rows, units], r.dtype(like))


def _joined(r, values, axis):
    values = [r.op("Unsqueeze", [value], axes=[axis]) for value in values]
    return values[0] if len(values) == 1 else r.op("Concat", values, axis=axis)


RECURRENT = {op: _layer for op in _ACTIVATIONS}
