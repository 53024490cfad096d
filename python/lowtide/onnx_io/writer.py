"""Graph → onnx.ModelProto: sizes become nodes over the inputs' shapes, ops become ONNX's or their definitions."""

import ast
import json
from dataclasses import dataclass

import numpy
from onnx import helper, numpy_helper

from lowtide.errors import UnsupportedError

from .element_types import CONTEXT, NUMPY_TYPES, ONNX_TYPES, survives

OPSET = 20
IR_VERSION = 10  # what runtimes of opset 20's time read, with metadata on nodes
DOMAIN = "lowtide"
METADATA = "lowtide.graph"  # key of the model's metadata: what ONNX cannot say of inputs, outputs and symbols


@dataclass
class NodeView:
    """One node of the graph; names of values, "" for absent ones."""

    op: str
    target: str
    inputs: list
    outputs: list
    input_types: list  # (dtype, shape); None where absent
    output_types: list
    typed_attrs: dict  # name → (type, value)
    origin: str

    def __getitem__(self, name):
        return self.typed_attrs[name][1]

    def get(self, name, default=None):
        return self[name] if name in self.typed_attrs else default

    def wants(self, index):
        return index < len(self.outputs) and self.outputs[index] != ""

    @property
    def dtype(self):
        """Of the first input."""
        return self.input_types[0][0]

    @property
    def shape(self):
        """Of the first input."""
        return self.input_types[0][1]


class Term:
    """A value of the ONNX graph with operators, so that definitions read as formulas."""

    def __init__(self, writer, name, dtype):
        self.writer, self.name, self.dtype = writer, name, dtype

    def _with(self, op, other, swapped=False, dtype=None):
        if not isinstance(other, Term):
            other = self.writer.scalar(other, self.dtype)
        first, second = (other, self) if swapped else (self, other)
        return self.writer.term(op, first, second, dtype=dtype or self.dtype)

    def __add__(self, other):
        return self._with("Add", other)

    def __radd__(self, other):
        return self._with("Add", other, swapped=True)

    def __sub__(self, other):
        return self._with("Sub", other)

    def __rsub__(self, other):
        return self._with("Sub", other, swapped=True)

    def __mul__(self, other):
        return self._with("Mul", other)

    __rmul__ = __mul__

    def __truediv__(self, other):
        return self._with("Div", other)

    def __rtruediv__(self, other):
        return self._with("Div", other, swapped=True)

    def __neg__(self):
        return self.writer.term("Neg", self)

    def less(self, other):
        return self._with("Less", other, dtype="bool")

    def greater(self, other):
        return self._with("Greater", other, dtype="bool")

    def at_most(self, other):
        return self._with("LessOrEqual", other, dtype="bool")

    def equals(self, other):
        return self._with("Equal", other, dtype="bool")

    def cast(self, dtype):
        if dtype == self.dtype:
            return self
        return self.writer.term("Cast", self, dtype=dtype, to=ONNX_TYPES[dtype])


class Writer:
    """Collects the nodes and constants of one ONNX graph."""

    def __init__(self, graph, own_ops, tensors=None):
        """`own_ops`: see to_model. `tensors`: name of an input → array, which becomes an initializer instead of one."""
        self.graph, self.own_ops, self._tensors = graph, own_ops, tensors or {}
        self.nodes, self.initializers, self.domains = [], [], {""}
        self._names = [graph.value_name(value) for value in range(graph.value_count)]
        self._given = frozenset(self._names)
        self._taken, self._counts = set(self._names), {}
        self._known = {}  # constants and sizes that are there already
        self._origin = ""
        self._carriers = {}  # symbol → (input, axis)
        for entry in graph.inputs():
            for axis, size in enumerate(graph.value_type(entry["value"])[1]):
                if isinstance(size, str) and size.isidentifier():
                    self._carriers.setdefault(size, (self._names[entry["value"]], axis))

    # ---- nodes

    def views(self):
        """In standard ops, nodes and results that nobody reads are not there: many of ONNX's ops lack such results."""
        nodes = self.graph.nodes()
        read = {entry["value"] for entry in self.graph.outputs()}
        alive = []
        for node in reversed(nodes):
            if self.own_ops or read.intersection(node["outputs"]):
                alive.append(node)
                read.update(value for value in node["inputs"] if value is not None)
        for node in reversed(alive):
            if node["has_body"]:
                raise UnsupportedError(f"{node['op']}: a node with a body cannot be written as ONNX")
            self._origin = node["origin"]
            yield NodeView(
                node["op"],
                node["target"],
                [self._name(value) for value in node["inputs"]],
                [self._name(value) if self.own_ops or value in read else "" for value in node["outputs"]],
                [self._type(value) for value in node["inputs"]],
                [self._type(value) for value in node["outputs"]],
                node["attrs"],
                node["origin"],
            )

    def node(self, op, inputs, outputs, domain="", **attrs):
        inputs = list(inputs)
        while inputs and inputs[-1] == "":
            inputs.pop()
        outputs = list(outputs)
        while outputs and outputs[-1] == "":
            outputs.pop()
        attrs = {name: value for name, value in attrs.items() if value is not None}
        made = helper.make_node(op, inputs, outputs, domain=domain, name=f"{op}_{len(self.nodes)}", **attrs)
        made.doc_string = self._origin
        self.domains.add(domain)
        self.nodes.append(made)

    def op(self, op, *inputs, **attrs):
        """The name of the output of one node of ONNX's."""
        name = self.fresh(op.lower())
        self.node(op, inputs, [name], **attrs)
        return name

    def term(self, op, *terms, dtype=None, **attrs):
        """One node over terms (names where ONNX wants integers); of the first one's type unless told otherwise."""
        names = [term.name if isinstance(term, Term) else term for term in terms]
        return Term(self, self.op(op, *names, **attrs), dtype or terms[0].dtype)

    def input(self, view, index=0):
        return Term(self, view.inputs[index], view.input_types[index][0])

    def give(self, view, term, index=0):
        """The term becomes an output of the node that is being written."""
        last = self.nodes[-1] if self.nodes else None
        if last is not None and len(last.output) == 1 and last.output[0] == term.name and term.name not in self._given:
            last.output[0] = view.outputs[index]
        else:
            self.node("Identity", [term.name], [view.outputs[index]])

    def fresh(self, base):
        name = base
        while name in self._taken:
            self._counts[base] = self._counts.get(base, 0) + 1
            name = f"{base}_{self._counts[base]}"
        self._taken.add(name)
        return name

    def _name(self, value):
        return "" if value is None else self._names[value]

    def _type(self, value):
        return None if value is None else self.graph.value_type(value)

    # ---- constants and sizes

    def scalar(self, value, dtype):
        """A 0-d constant."""
        key = ("scalar", dtype, repr(value))
        if key not in self._known:
            self._known[key] = self._constant(numpy.array(value).astype(NUMPY_TYPES[dtype]))
        return Term(self, self._known[key], dtype)

    def _constant(self, array):
        name = self.fresh("constant")
        self.initializers.append(numpy_helper.from_array(array, name))
        return name

    def sizes(self, sizes):
        """A vector of i64; a size is an int, or text over symbols."""
        if not sizes or all(isinstance(size, int) for size in sizes):
            key = ("sizes", tuple(sizes))
            if key not in self._known:
                self._known[key] = self._constant(numpy.array(sizes, dtype=numpy.int64))
            return self._known[key]
        if len(sizes) == 1:
            return self._size(ast.parse(sizes[0], mode="eval").body)
        return self.op("Concat", *(self.sizes([size]) for size in sizes), axis=0)

    def size(self, size, dtype="i64"):
        """A size as a 0-d term."""
        if isinstance(size, int):
            return self.scalar(size, dtype)
        flat = self.op("Squeeze", self.sizes([size]), self.sizes([0]))
        return Term(self, flat, "i64").cast(dtype)

    def _size(self, expression):
        key = ("size", ast.unparse(expression))
        if key not in self._known:
            self._known[key] = self._new_size(expression)
        return self._known[key]

    def _new_size(self, expression):
        if isinstance(expression, ast.Constant):
            return self.sizes([expression.value])
        if isinstance(expression, ast.Name):
            if expression.id not in self._carriers:
                raise UnsupportedError(f"no input has the size {expression.id} alone")
            name, axis = self._carriers[expression.id]
            return self.op("Shape", name, start=axis, end=axis + 1)
        if isinstance(expression, ast.UnaryOp):
            return self.op("Neg", self._size(expression.operand))
        if isinstance(expression, ast.Call):
            return self.op(expression.func.id.capitalize(), *map(self._size, expression.args))
        if isinstance(expression.op, ast.Pow):
            base = self._size(expression.left)
            result = base
            for _ in range(expression.right.value - 1):
                result = self.op("Mul", result, base)
            return result
        left, right = self._size(expression.left), self._size(expression.right)
        if isinstance(expression.op, ast.FloorDiv):  # ONNX divides towards zero, sizes towards minus infinity
            return self.op("Div", self.op("Sub", left, self.op("Mod", left, right)), right)
        names = {ast.Add: "Add", ast.Sub: "Sub", ast.Mult: "Mul", ast.Mod: "Mod"}
        return self.op(names[type(expression.op)], left, right)

    # ---- ops that are lowtide's own

    def own_node(self, view):
        """One to one, in lowtide's domain. An attribute that ONNX cannot hold (a size over symbols, a 64-bit float)
        stands there as text; ops.def knows its type, and for calls `attribute_types` does."""
        attrs = {name: _attribute(kind, value) for name, (kind, value) in view.typed_attrs.items()}
        if view.target:
            attrs["target"] = view.target
            attrs["attribute_types"] = [f"{name}={kind}" for name, (kind, _) in sorted(view.typed_attrs.items())]
        attrs["results"] = ["" if found is None else type_text(found) for found in view.output_types]
        # ONNX has no empty lists; the reader knows where one belongs.
        self.node(view.op, view.inputs, view.outputs, domain=DOMAIN, **{k: v for k, v in attrs.items() if v != []})

    # ---- the model

    def model(self):
        inputs, outputs, told_inputs, told_outputs = [], [], [], []
        for entry in self.graph.inputs():
            name, (dtype, shape) = self._names[entry["value"]], self._type(entry["value"])
            told_inputs.append(
                {
                    "name": name,
                    "kind": entry["kind"],
                    "requires_grad": entry["requires_grad"],
                    "strides": entry["strides"],
                }
            )
            if name in self._tensors:
                self.initializers.append(numpy_helper.from_array(self._tensors[name], name))
            else:
                inputs.append(_value_info(name, dtype, shape))
        given = {name for node in self.nodes for name in node.output}
        for entry in self.graph.outputs():
            name, (dtype, shape) = self._names[entry["value"]], self._type(entry["value"])
            target = entry["target"]
            told_outputs.append({"kind": entry["kind"], "target": None if target is None else self._names[target]})
            if name not in given or any(output.name == name for output in outputs):
                self._origin = ""
                self.node("Identity", [name], [name := self.fresh(f"{name}_output")])
            outputs.append(_value_info(name, dtype, shape))
        made = helper.make_graph(
            self.nodes, self.graph.name, inputs, outputs, self.initializers, value_info=list(self._inner_types(outputs))
        )
        opsets = [helper.make_opsetid(domain, OPSET if domain == "" else 1) for domain in sorted(self.domains)]
        model = helper.make_model(made, opset_imports=opsets, ir_version=IR_VERSION, producer_name="lowtide")
        told = {"inputs": told_inputs, "outputs": told_outputs, "ranges": self.graph.ranges()}
        helper.set_model_props(model, {METADATA: json.dumps(told)})
        return model

    def _inner_types(self, outputs):
        known = {output.name for output in outputs}
        given = {name for node in self.nodes for name in node.output}
        for value, name in enumerate(self._names):
            dtype, shape = self._type(value)
            if name in given and name not in known and dtype != CONTEXT:
                yield _value_info(name, dtype, shape)


def type_text(found):
    """(dtype, shape) as "f32[batch, 768]"."""
    dtype, shape = found
    return f"{dtype}[{', '.join(map(str, shape))}]"


def _value_info(name, dtype, shape):
    return helper.make_tensor_value_info(name, ONNX_TYPES[dtype], shape)


def _attribute(kind, value):
    if kind in ("int", "bool"):
        return value if isinstance(value, str) else int(value)
    if kind == "float":
        return float(value) if survives(value) else repr(value)
    if kind == "ints":
        return list(value) if all(isinstance(item, int) for item in value) else [str(item) for item in value]
    if kind == "floats":
        return [float(item) for item in value] if all(map(survives, value)) else [repr(item) for item in value]
    return value
