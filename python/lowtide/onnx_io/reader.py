"""onnx.ModelProto → Graph: nodes over sizes are worked out, weights become parameters, ops become lowtide's."""

import ast
import json
import re
from dataclasses import dataclass, replace

import onnx
from onnx import helper, numpy_helper

from lowtide._lowtide import Graph, canonical_size, op_attributes
from lowtide.errors import Error, InvalidArgument, UnsupportedError

from . import read_ops
from .contents import FOLDED, Known, of_array, uniform
from .element_types import FLOATS, NAMES, NAMES_OF_NUMPY, shortest
from .read_node import ReadNode, constant_array, fill_array
from .writer import DOMAIN, METADATA

OLDEST_OPSET = 13  # before it, axes stood in attributes and Softmax flattened its input
_NOT_INFERRED = ("Aten", "PythonOp", "CallGrad", "YieldOp")


@dataclass
class Imported:
    graph: Graph
    tensors: dict  # name of a graph input → array, for those whose values the model holds
    outputs: list  # names in the model, in the graph's order


def read_file(path):
    try:
        return onnx.load(path)
    except OSError as error:
        raise InvalidArgument(f"{path} cannot be read: {error}") from None
    except Exception as error:  # the parser of protobuf raises several kinds
        raise InvalidArgument(f"{path} is not an ONNX model: {error}") from None


def from_model(model):
    """Opset 13 or newer. UnsupportedError names the first node that lowtide cannot take."""
    versions = {opset.domain: opset.version for opset in model.opset_import}
    version = versions.get("", versions.get("ai.onnx", 0))
    if 0 < version < OLDEST_OPSET:
        raise UnsupportedError(
            f"the model is of opset {version}, expected {OLDEST_OPSET} or newer (onnx.version_converter converts)"
        )
    if model.functions:
        model = onnx.inliner.inline_local_functions(model)
    return Reader(model, version).run()


class Reader:
    def __init__(self, model, opset):
        self.opset = opset
        self._model = model.graph
        properties = {entry.key: entry.value for entry in model.metadata_props}
        self._told = json.loads(properties[METADATA]) if METADATA in properties else {}
        self.ours = METADATA in properties  # sizes and bounds are normalised, and nothing is left to guess
        self._told_inputs = {entry["name"]: entry for entry in self._told.get("inputs", ())}
        self.graph = Graph(re.sub(r"\W", "_", self._model.name) or "model")
        self._schemas = op_attributes()
        self._values, self._contents = {}, {}
        self._arrays, self._initializers = {}, set()
        self._tensors, self._weights = {}, set()
        self._origin = ""
        self.streams = 0  # of random nodes so far
        self.log_probabilities = set()  # values that a LogSoftmax gives

    def run(self):
        for symbol, (low, high) in self._told.get("ranges", {}).items():
            self.graph.add_symbol_range(symbol, low, high)
        for tensor in self._model.initializer:
            self._arrays[tensor.name] = numpy_helper.to_array(tensor)
            self._initializers.add(tensor.name)
        inputs = {entry.name: entry for entry in self._model.input if entry.name not in self._arrays}
        for name in self._told_inputs or inputs:
            if name in inputs:
                self._add_input(inputs[name])
            else:
                self.value(name)
        for node in self._model.node:
            self._read(node)
        told = self._told.get("outputs") or [{"kind": "output", "target": None}] * len(self._model.output)
        for entry, kind in zip(self._model.output, told, strict=True):
            target = kind["target"]
            self.graph.add_target_output(
                self.value(entry.name), kind["kind"], None if target is None else self.value(target)
            )
        return Imported(self.graph, self._tensors, [entry.name for entry in self._model.output])

    # ---- inputs and constants

    def _add_input(self, entry):
        if not entry.type.HasField("tensor_type") or entry.type.tensor_type.elem_type not in NAMES:
            raise UnsupportedError(f"input '{entry.name}' is no tensor of a type that lowtide has")
        tensor = entry.type.tensor_type
        if not tensor.HasField("shape"):
            raise UnsupportedError(f"input '{entry.name}' has no rank")
        shape = [self._input_size(entry.name, axis, size) for axis, size in enumerate(tensor.shape.dim)]
        told = self._told_inputs.get(entry.name, {})
        self._values[entry.name] = self.graph.add_input(
            entry.name,
            NAMES[tensor.elem_type],
            shape,
            told.get("kind", "input"),
            told.get("requires_grad", False),
            told.get("strides", []),
        )

    def _input_size(self, name, axis, size):
        if size.HasField("dim_value"):
            return size.dim_value
        if not size.dim_param:
            return _identifier(f"{name}_dim{axis}")
        try:
            return canonical_size(size.dim_param)
        except Error:
            return _identifier(size.dim_param)

    def value(self, name, kind=None):
        """The value of that name; `kind` of input for weights that are no parameters."""
        if name not in self._values:
            if name in self._arrays:
                self._values[name] = self._from_array(name, kind)
            elif name in self._contents:
                self._values[name] = self._from_contents(self._contents[name])
            else:
                raise InvalidArgument(f"no node or input before gives '{name}'")
        return self._values[name]

    def _from_contents(self, found):
        if len(set(found.items)) == 1 and not found.scalar:
            one = self._from_contents(replace(found, items=found.items[:1], scalar=True))
            return self.op("Expand", [one], shape=[len(found.items)])
        scalars = [self.op("Constant", [], dtype=found.dtype, int_value=item) for item in found.items]
        if found.scalar:
            return scalars[0]
        return self.op("Concat", [self.op("Unsqueeze", [scalar], axes=[0]) for scalar in scalars], axis=0)

    def _from_array(self, name, kind):
        array = self._arrays[name]
        if array.dtype not in NAMES_OF_NUMPY:
            raise UnsupportedError(f"'{name}' is a constant of {array.dtype}")
        dtype, told = NAMES_OF_NUMPY[array.dtype], self._told_inputs.get(name)
        is_weight = name in self._initializers and array.ndim > 0 and dtype in FLOATS
        if told is None and (not is_weight or kind == "constant") and (array.ndim == 0 or uniform(array)):
            return self.fill(array.reshape(-1)[0], list(array.shape), dtype)
        kind = told["kind"] if told else kind or ("param" if is_weight else "constant")
        requires_grad = told["requires_grad"] if told else kind == "param"
        value = self.graph.add_input(name, dtype, list(array.shape), kind, requires_grad)
        self._tensors[self.graph.value_name(value)] = array
        self._weights.add(value)
        return value

    def fill(self, number, shape, dtype):
        """`number`: of Python's or NumPy's."""
        attr = {"value": float(str(number))} if dtype in FLOATS else {"int_value": int(number)}
        if not shape:
            return self.op("Constant", [], dtype=dtype, **attr)
        return self.op("ConstantOfShape", [], dtype=dtype, shape=shape, **attr)

    def scalar(self, number, like):
        return self.fill(number, [], self.dtype(like))

    def array(self, name):
        """The array of a constant, or None."""
        return self._arrays.get(name)

    def contents(self, name):
        if name not in self._contents and name in self._arrays:
            array = self._arrays[name]
            self._contents[name] = of_array(array, NAMES_OF_NUMPY.get(array.dtype))
        return self._contents.get(name)

    def sizes(self, n, index, default=None):
        """The integers of an operand, or of the attribute in its place before opset 18."""
        if not n.has(index):
            return default
        found = self.contents(n.inputs[index])
        if found is None:
            raise UnsupportedError(f"operand {index} ('{n.inputs[index]}') depends on data")
        return found.items

    # ---- nodes

    def operands(self, n):
        return [self.value(name) if name else None for name in n.inputs]

    def op(self, op, operands, wanted=(), **attrs):
        """The first output of one op of lowtide's."""
        return self.ops(op, operands, wanted, **attrs)[0]

    def ops(self, op, operands, wanted=(), **attrs):
        schema = self._schemas[op]
        typed = {name: (schema[name], value) for name, value in attrs.items() if value is not None}
        return self.graph.add_op(op, operands, typed, list(wanted), self._origin)

    def dtype(self, value):
        return self.graph.value_type(value)[0]

    def shape(self, value):
        return self.graph.value_type(value)[1]

    def _read(self, node):
        attrs = {attribute.name: _attribute(attribute) for attribute in node.attribute}
        n = ReadNode(node.op_type, list(node.input), list(node.output), attrs)
        self._origin = node.doc_string if self.ours else _module_path(node)
        try:
            self._read_node(node, n)
        except Error as error:
            where = f"node '{node.name}' ({node.op_type})" if node.name else f"a {node.op_type} node"
            raise type(error)(f"{where}: {error}") from None

    def _read_node(self, node, n):
        if node.domain == DOMAIN:
            results = self._own(n)
        elif node.op_type == "Constant" and node.domain in ("", "ai.onnx"):
            self._arrays[n.outputs[0]] = constant_array(n)
            if self.ours:
                self._rename(n, [self.value(n.outputs[0])], 0)
            return
        elif node.domain in ("", "ai.onnx") and (found := self._folded(n)) is not None:
            self._contents[n.outputs[0]] = found
            return
        else:
            if n.op == "If" and node.domain in ("", "ai.onnx"):
                self._read_if(n)
                return
            read = read_ops.table(node.domain).get(n.op)
            if read is None:
                domain = f"{node.domain}." if node.domain else ""
                reason = read_ops.REFUSED.get(n.op) if not domain else None
                raise UnsupportedError(f"lowtide does not read {domain}{n.op}" + (f": {reason}" if reason else ""))
            before = self.graph.value_count
            results = read(self, n)
            results = results if isinstance(results, list) else [results]
            self._rename(n, results, before)
        for name, value in zip(n.outputs, results, strict=False):
            if name and value is not None:
                self._values[name] = value

    def _read_if(self, n):
        """The branch that is taken, in place of the node."""
        taken = self._condition(n.inputs[0])
        if taken is None:
            raise UnsupportedError("its condition depends on data, or on sizes that a call chooses")
        branch = n.get("then_branch" if taken else "else_branch")
        tables = self._values, self._contents, self._arrays
        for tensor in branch.initializer:
            self._arrays[tensor.name] = numpy_helper.to_array(tensor)
        for node in branch.node:
            self._read(node)
        found = [[table.get(output.name) for table in tables] for output in branch.output]
        # Another branch may have the same names.
        inside = [
            *(tensor.name for tensor in branch.initializer),
            *(name for node in branch.node for name in node.output),
        ]
        for table in tables:
            for name in inside:
                table.pop(name, None)
        for name, entries in zip(n.outputs, found, strict=True):
            for table, entry in zip(tables, entries, strict=True):
                if entry is not None:
                    table[name] = entry

    def _condition(self, name):
        array, found = self.array(name), self.contents(name)
        if array is not None and array.size == 1:
            return bool(array.item())
        return bool(found.items[0]) if found is not None and len(found.items) == 1 and found.constant else None

    def _rename(self, n, results, before):
        for name, value in zip(n.outputs, results, strict=False):
            made = value is not None and value >= before and value not in self._weights
            if name and made and self.graph.value_name(value) != name:
                self.graph.rename_value(value, name)

    def _folded(self, n):
        """The contents of a node's output, if it computes with sizes."""
        fold = FOLDED.get(n.op)
        if fold is None:
            return None
        if n.op in ("Shape", "Size"):
            found = self.contents(n.inputs[0]) if n.inputs[0] not in self._values else None
            shape = ([] if found.scalar else [len(found.items)]) if found else self.shape(self.value(n.inputs[0]))
            return fold(Known([], n.attrs, [shape]))
        known = [self.contents(name) if name else None for name in n.inputs]
        if known[0] is None and n.op != "Where":
            return None
        if n.op == "Cast":
            return _cast_contents(known[0], NAMES.get(n.get("to")))
        attrs = n.attrs
        if n.op == "ConstantOfShape":
            array = fill_array(n)
            if NAMES_OF_NUMPY.get(array.dtype) != "i64":
                return None
            attrs = {"fill": array.item()}
        return fold(Known(known, attrs))

    def _own(self, n):
        """A node of lowtide's own domain: one to one."""
        types = dict(entry.split("=") for entry in n.get("attribute_types", ())) or self._schemas.get(n.op, {})
        typed = {}
        for name, kind in types.items():
            if name in n.attrs:
                typed[name] = kind, own_attribute(kind, n.attrs[name])
            elif kind in ("ints", "floats", "strings"):  # the writer leaves empty lists out
                typed[name] = kind, []
        results = n.get("results", [])
        wanted = [text != "" for text in results]
        given = [parse_type(text) if text else ("f32", []) for text in results] if n.op in _NOT_INFERRED else None
        inputs = [self.value(name) if name else None for name in n.inputs]
        outputs = self.graph.add_op(n.op, inputs, typed, wanted, self._origin, n.get("target", ""), given)
        for name, value in zip(n.outputs, outputs, strict=False):
            if name and value is not None and self.graph.value_name(value) != name:
                self.graph.rename_value(value, name)
        return outputs


def _cast_contents(found, to):
    if (found.dtype == "bool") != (to == "bool") and not found.constant:
        return None
    if to == "bool":
        return replace(found, items=[bool(item) for item in found.items], dtype=to)
    items = [int(item) if isinstance(item, bool) else item for item in found.items]
    return replace(found, items=items, dtype=to) if to in ("i64", "i32") else None


def parse_type(text):
    """ "f32[batch, min(a, b)]" → (dtype, shape)."""
    dtype, _, rest = text.partition("[")
    sizes, depth, word = [], 0, ""
    for character in rest[:-1]:
        depth += (character == "(") - (character == ")")
        if character == "," and depth == 0:
            sizes.append(word)
            word = ""
        else:
            word += character
    return dtype, [canonical_size(size) for size in [*sizes, word] if size.strip()]


def own_attribute(kind, value):
    """The inverse of what the writer makes of lowtide's attributes."""
    if kind == "bool":
        return bool(value)
    if kind == "float":
        return float(value) if isinstance(value, str) else shortest(value)
    if kind == "floats":
        return [float(item) if isinstance(item, str) else shortest(item) for item in value]
    return value


def _attribute(attribute):
    value = helper.get_attribute_value(attribute)
    if attribute.type == onnx.AttributeProto.STRING:
        return value.decode()
    if attribute.type == onnx.AttributeProto.STRINGS:
        return [item.decode() for item in value]
    if attribute.type == onnx.AttributeProto.FLOAT:
        return shortest(value)
    if attribute.type == onnx.AttributeProto.FLOATS:
        return [shortest(item) for item in value]
    if attribute.type == onnx.AttributeProto.TENSOR:
        return numpy_helper.to_array(value)
    return list(value) if attribute.type == onnx.AttributeProto.INTS else value


def _identifier(text):
    word = re.sub(r"\W", "_", text)
    word = f"size_{word}" if not word or word[0].isdigit() else word
    try:
        canonical_size(word)
    except Error:  # a word of the grammar
        word += "_"
    return word


_SCOPES = "pkg.torch.onnx.name_scopes"


def _module_path(node):
    """The path of the module that made a node, as PyTorch's two exporters tell it."""
    for entry in node.metadata_props:
        if entry.key == _SCOPES:
            try:
                scopes = ast.literal_eval(entry.value)
                return str(scopes[-2]) if len(scopes) > 1 else ""
            except (ValueError, SyntaxError, TypeError):
                return ""
    if node.name.startswith("/"):
        return ".".join(node.name.strip("/").split("/")[:-1])
    return ""
