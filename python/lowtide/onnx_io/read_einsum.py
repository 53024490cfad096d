"""Einsum as transposes, reshapes and batched products: operands are joined from left to right."""

from dataclasses import dataclass

from lowtide.errors import UnsupportedError

from .contents import product


@dataclass
class _Labelled:
    value: int
    labels: str  # of its dims


def einsum(r, n):
    inputs, output = _parsed(n.get("equation"), [len(r.shape(value)) for value in r.operands(n)])
    operands = [_Labelled(value, labels) for value, labels in zip(r.operands(n), inputs, strict=True)]
    joined = operands[0]
    for index, operand in enumerate(operands[1:], 2):
        wanted = set(output).union(*inputs[index:])
        joined = _join(r, _summed(r, joined, wanted | set(operand.labels)), operand, wanted)
    return _arranged(r, _summed(r, joined, set(output)), output)


def _parsed(equation, ranks):
    """(labels of each operand, labels of the result); "..." spelt out in capitals that the equation lacks."""
    left, arrow, output = equation.replace(" ", "").partition("->")
    inputs = left.split(",")
    free = [letter for letter in "ZYXWVUTSRQPONMLKJIHGFEDCBA" if letter not in equation]
    pairs = zip(inputs, ranks, strict=True)
    covered = [rank - len(labels.replace("...", "")) if "..." in labels else 0 for labels, rank in pairs]
    if max(covered) > len(free):
        raise UnsupportedError(f"its equation '{equation}' has too many letters")
    letters = "".join(reversed(free[: max(covered)]))
    inputs = [
        labels.replace("...", letters[len(letters) - count :]) for labels, count in zip(inputs, covered, strict=True)
    ]
    if any(len(set(labels)) < len(labels) for labels in inputs):
        raise UnsupportedError(f"its equation '{equation}' takes a diagonal")
    if not arrow:
        once = sorted(letter for letter in set("".join(inputs)) - set(letters) if "".join(inputs).count(letter) == 1)
        return inputs, letters + "".join(once)
    return inputs, output.replace("...", letters)


def _summed(r, x, kept):
    axes = [axis for axis, label in enumerate(x.labels) if label not in kept]
    if not axes:
        return x
    value = r.op("ReduceSum", [x.value], axes=axes, keepdims=False)
    return _Labelled(value, "".join(label for label in x.labels if label in kept))


def _arranged(r, x, order):
    perm = [x.labels.index(label) for label in order]
    return x.value if perm == sorted(perm) else r.op("Transpose", [x.value], perm=perm)


def _join(r, a, b, wanted):
    b = _summed(r, b, wanted | set(a.labels))
    a, b = _without_ones(r, a, b), _without_ones(r, b, a)
    batch = "".join(label for label in a.labels if label in b.labels and label in wanted)
    inner = "".join(label for label in a.labels if label in b.labels and label not in wanted)
    rows = "".join(label for label in a.labels if label not in b.labels)
    columns = "".join(label for label in b.labels if label not in a.labels)
    size = dict(zip(b.labels, r.shape(b.value), strict=True)) | dict(zip(a.labels, r.shape(a.value), strict=True))

    def matrix(x, first, second):
        value = _arranged(r, x, batch + first + second)
        shape = [size[label] for label in batch]
        merged = [product(size[label] for label in part) for part in (first, second)]
        return r.op("Reshape", [value], shape=[*shape, *merged])

    result = r.op("MatMul", [matrix(a, rows, inner), matrix(b, inner, columns)])
    labels = batch + rows + columns
    return _Labelled(r.op("Reshape", [result], shape=[size[label] for label in labels]), labels)


def _without_ones(r, x, other):
    """Drops dims of size 1 where the other has the same letter: they broadcast."""
    shape, others = r.shape(x.value), dict(zip(other.labels, r.shape(other.value), strict=True))
    axes = [i for i, label in enumerate(x.labels) if shape[i] == 1 and others.get(label, 1) != 1]
    if not axes:
        return x
    labels = "".join(label for i, label in enumerate(x.labels) if i not in axes)
    return _Labelled(r.op("Squeeze", [x.value], axes=axes), labels)
