"""ExportedProgram → Graph: one node per ATen call, nothing decided."""

import functools
import operator
import re
from dataclasses import replace

import torch
from torch.export.graph_signature import InputKind

from lowtide._lowtide import Graph
from lowtide.distributed import owners_of, shard_of
from lowtide.errors import UnsupportedError
from lowtide.guards.values import dtype_name

from .aliases import Aliases
from .attributes import Attributes
from .data_sizes import DataSizes
from .gathers import Gathers
from .imported import ImportedGraph, Source
from .known_sizes import SizeText
from .memory_order import memory_order
from .numbers import Numbers, is_item, is_number
from .op_schemas import (
    arguments_of,
    is_silent,
    takes_dtype,
    target_name,
    without_out,
    writes_of_call,
    written_tensor,
)
from .operators import is_point_to_point, waits_for_collective
from .origins import origin
from .output_views import OutputView, SharedOutputs
from .positions import positions_from_start
from .refusals import refuse_constant, refuse_sparse
from .sizes import NeedsConstants, Sizes
from .squeezed import require_no_ones
from .view_or_copy import copies, shares


def import_program(exported, facts, module, inputs_require_grad=None, division=None) -> ImportedGraph:
    """`inputs_require_grad`: a flag for each input tensor; without, those of the export. `division`: what parameters
    are divided and how, (shard_of, owners) as as_if_divided gives them; without, what is true of them."""
    return _Importer(exported, facts, module, inputs_require_grad, division or (shard_of, owners_of(module))).run()


class _Importer:
    def __init__(self, exported, facts, module, inputs_require_grad, division):
        self._exported, self._facts, self._module = exported, facts, module
        self._inputs_require_grad = inputs_require_grad
        self._graph = Graph(re.sub(r"\W", "_", type(module).__name__).lower())
        self._values = {}  # FX node → value number, list of these (several outputs), or size
        self._regions = {}  # as SharedOutputs takes them
        self._sources, self._source_of_tensor = [], {}
        self._source_values = {}  # value number → index of its source
        self._aliases = Aliases(self._graph)
        self._autocast = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None
        self._random = False
        self._row_major_inputs = True
        self._shard_of, self._owners = division
        self._gathers = Gathers(self._graph, self._aliases, self._owners)

    def run(self):
        program = self._exported.program
        placeholders = [node for node in program.graph.nodes if node.op == "placeholder"]
        specs = program.graph_signature.input_specs
        inputs = [node for node, spec in zip(placeholders, specs, strict=True) if spec.kind is InputKind.USER_INPUT]
        self._sizes = Sizes(self._exported, self._facts, [node.meta["val"] for node in inputs])
        self._attributes = Attributes(self._sizes, functools.partial(_value_of, self._values))
        self._numbers = Numbers(self._graph, self._sizes, origin)
        self._data_sizes = DataSizes(self._graph, self._sizes, program, self._facts.usual)
        for name, (low, high) in self._sizes.ranges().items():
            self._graph.add_symbol_range(name, low, high)
        for index, node in enumerate(inputs):
            self._add_input(node, index)
        for node, spec in zip(placeholders, specs, strict=True):
            if spec.kind is not InputKind.USER_INPUT:
                self._add_state(node, spec)
        self._block(program.graph_module)
        outputs, views = self._outputs(program)
        return ImportedGraph(
            self._graph, self._sizes, self._sources, outputs, self._random, self._gathers.groups, views
        )

    # ---- inputs

    def _add_input(self, node, index):
        fake = node.meta["val"]
        name = self._exported.names[index]
        flags = self._inputs_require_grad
        requires_grad = fake.requires_grad if flags is None else flags[index]
        value = self._graph.add_input(
            name,
            dtype_name(fake.dtype),
            self._sizes.shape(fake.shape),
            "input",
            requires_grad,
            self._strides(fake),
        )
        self._remember(
            node,
            value,
            Source(
                "input",
                index=index,
                name=name,
                requires_grad=requires_grad,
                used=bool(node.users),
                silent=index in self._exported.silent,
            ),
        )
        if not requires_grad:
            self._aliases.without_gradient.add(value)

    def _strides(self, fake):
        if fake.is_contiguous():
            return []
        self._row_major_inputs = False
        return self._sizes.shape(fake.stride())

    def _add_state(self, node, spec):
        path = (spec.target or "").removeprefix("module.")
        if spec.kind is InputKind.PARAMETER:
            tensor, kind = self._module.get_parameter(path), "param"
        elif spec.kind is InputKind.BUFFER:
            tensor, kind = self._module.get_buffer(path), "buffer"
            if tensor.layout is not torch.strided:
                return  # the exporter has seen another in its place, and nobody reads it
        elif spec.kind is InputKind.CONSTANT_TENSOR:
            constant = self._exported.program.constants[spec.target]
            refuse_constant(constant)
            tensor, kind = self._exported.guards.parameter_of(constant), "constant"
        else:
            raise UnsupportedError(f"the exported program takes a {spec.kind.name.lower()}")
        # As it was at the export: an attribute may be another tensor when the export is imported again.
        was_attribute = self._exported.attributes.setdefault
        own = kind != "constant" or was_attribute(path, _attribute(self._module, path) is tensor)
        paths = (path,) if own else ()
        if id(tensor) in self._source_of_tensor:  # tied: one input for all names
            index, value = self._source_of_tensor[id(tensor)]
            source = self._sources[index]
            silent = source.silent or path in self._exported.silent
            used = source.used or bool(node.users)
            self._sources[index] = replace(source, paths=(*source.paths, *paths), used=used, silent=silent)
            self._values[node] = value
            return
        silent = kind != "constant" and path in self._exported.silent
        source = Source(kind, paths=paths, silent=silent, tensor=tensor if kind == "constant" else None)
        strides = [] if tensor.is_contiguous() else list(tensor.stride())
        requires_grad = tensor.requires_grad and torch.is_grad_enabled()
        name, dtype, shape = path or node.name, dtype_name(tensor.dtype), list(tensor.shape)
        shard = self._shard_of(tensor, self._owners)
        source = replace(source, name=name, requires_grad=requires_grad, used=bool(node.users), shard=shard)
        takes_gradient = None
        if shard is not None:
            if requires_grad and shard.gives_whole_gradient:
                takes_gradient = self._graph.add_input(name, dtype, shape, kind, True, strides)
                self._remember(node, takes_gradient, replace(source, shard=None))
                self._aliases.params.add(takes_gradient)
                name, requires_grad = f"{name}.part", False
                source = replace(source, name=name, requires_grad=False)
            shape, strides = shard.part_shape, []
        value = self._graph.add_input(name, dtype, shape, kind, requires_grad, strides)
        if shard is not None:
            self._aliases.divided.update({value, value if takes_gradient is None else takes_gradient})
        if shard is not None and shard.is_gathered:
            self._gathers.add(value, shard, tensor, takes_gradient)
        self._source_of_tensor[id(tensor)] = len(self._sources), value
        self._remember(node, value, source)
        if kind == "param":
            self._aliases.params.add(value)
        if not requires_grad:
            self._aliases.without_gradient.add(value)

    def _remember(self, node, value, source):
        self._values[node] = value
        self._source_values[value] = len(self._sources)
        self._aliases.inputs.add(value)
        self._sources.append(source)

    def _gather(self, node):
        """A parameter that is divided is whole from the first node on that reads it."""
        part = self._values.get(node)
        if isinstance(part, int) and part in self._gathers:
            self._values[node] = self._gathers.whole(part)

    # ---- nodes

    def _block(self, graph_module):
        """Imports the calls of a graph; returns the output node's arguments."""
        for node in graph_module.graph.nodes:
            if node.op in ("call_function", "output"):
                for argument in node.all_input_nodes:
                    self._gather(argument)
            if node.op == "call_function":
                try:
                    self._call(graph_module, node)
                except (UnsupportedError, NeedsConstants) as error:
                    if isinstance(error, NeedsConstants) or "(" in str(error):
                        raise
                    module, line = origin(node)
                    where = ", ".join(part for part in (target_name(node.target), module, line) if part)
                    raise UnsupportedError(f"{error} ({where})") from None
            elif node.op == "output":
                return node.args[0]

    def _call(self, graph_module, node):
        value = node.meta.get("val")
        refuse_sparse(value)
        if isinstance(value, int | float | bool | torch.SymInt | torch.SymFloat | torch.SymBool):
            self._values[node] = value
            if is_item(node) and not self._sizes.is_read_back(value):
                self._item(node)
            elif node.target is operator.getitem and node.args[0] in self._regions:
                self._numbers.alias(node, self._regions[node.args[0]][node.args[1]])
        elif node.target is operator.getitem:
            self._values[node] = self._values[node.args[0]][node.args[1]]
        elif isinstance(node.target, torch._ops.HigherOrderOperator):
            self._region(graph_module, node)
        elif node.target is torch.ops.aten._assert_scalar.default:
            self._assertion(node.args[0])
        elif node.target is torch.ops.lowtide.python_op.default:
            self._python_op(node)
        elif node.target is torch.ops.lowtide.inspect.default:
            self._inspect(node)
        elif node.target is torch.ops.lowtide.redistribute.default:
            self._redistribute(node)
        elif waits_for_collective(node):
            self._values[node] = self._values[node.args[0]]
        elif isinstance(node.target, torch._ops.OpOverload):
            self._aten(node)
        else:
            raise UnsupportedError(f"the graph calls {node.target}")

    def _item(self, node):
        """What item() reads of a tensor: a number among the operands, or a size."""
        if (number := self._number_input(node.args[0])) is not None:
            self._numbers.add(node, number)
            return
        if isinstance(node.meta["val"], torch.SymBool):
            raise UnsupportedError("forward reads a condition from data")
        number = self._numbers.read(node, self._tensor(node.args[0]))
        self._numbers.add(node, number)
        if self._data_sizes.is_size(node):
            self._data_sizes.add_number(node, number, origin)

    def _region(self, graph_module, node):
        """Inlines `with torch.no_grad():` and `with torch.autocast():`."""
        autocast = self._autocast
        if node.target is torch.ops.higher_order.wrap_with_set_grad_enabled:
            cut, body, arguments = not node.args[0], node.args[1], node.args[2:]
            if not cut and self._aliases.inside is not None:
                raise UnsupportedError("forward enables gradients inside of torch.no_grad()")
        elif node.target is torch.ops.higher_order.wrap_with_autocast:
            cut, body, arguments = False, node.args[4], node.args[5:]
            device, dtype, enabled, _ = node.args[:4]
            if device == "cpu":
                autocast = (dtype or torch.get_autocast_dtype("cpu")) if enabled else None
        else:
            raise UnsupportedError(f"the graph has a region of kind {node.target}")
        inner = graph_module.get_submodule(body.target)
        around, self._autocast = self._autocast, autocast
        formal = [child for child in inner.graph.nodes if child.op == "placeholder"]
        for child, argument in zip(formal, arguments, strict=True):
            value = self._value(argument)
            if cut and self._aliases.inside is None and isinstance(argument, torch.fx.Node):
                outer, value = value, self._detached(value, argument, node)
                if isinstance(outer, int) and self._aliases.is_open(outer):
                    self._aliases.note_outside(value, outer)
            self._values[child] = value
            self._regions[child] = argument, cut or self._aliases.inside is not None
            self._numbers.alias(child, argument)
        outside = self._aliases.inside
        if cut and outside is None:
            self._aliases.inside = set()
        results = self._block(inner)
        self._aliases.inside, self._autocast = outside, around
        given = dict(zip(formal, arguments, strict=True))
        whole = [given.get(written_tensor(result), result) for result in results]  # what is written keeps its gradient
        self._values[node] = self._aliases.outside(whole, map(self._value, whole))
        self._regions[node] = results

    def _detached(self, value, argument, node):
        """What enters a no_grad region without the gradient that it may have: then nothing inside has one."""
        fake = argument.meta.get("val")
        if not isinstance(fake, torch.Tensor) or not (fake.dtype.is_floating_point or fake.dtype.is_complex):
            return value
        if self._aliases.root(value) in self._aliases.without_gradient:
            return value
        output = (argument.name + "_detached", dtype_name(fake.dtype), self._sizes.shape(fake.shape))
        number = self._graph.add_aten("aten::detach.default", [value], ["self"], [output], {}, *origin(node))[0]
        self._aliases.note_detached(number, value)
        return number

    def _assertion(self, condition):
        value = self._value(condition)
        if isinstance(value, torch.SymBool) and self._data_sizes.concerns(value):
            self._data_sizes.add_check(value, condition, origin)
        elif isinstance(value, torch.SymBool):
            self._sizes.add_guard(value)

    def _aten(self, node):
        overload = node.target
        operands, names, attrs = [], [], {}
        positions = self._positions(node)
        for argument, value in arguments_of(node):
            value = positions.get(argument.name, value)
            kind = str(argument.real_type)
            if "Tensor" in kind and isinstance(value, list | tuple):
                for item in value:
                    operands.append(None if item is None else self._tensor(item))
                    names.append(argument.name)
            elif "Tensor" in kind and isinstance(value, torch.fx.Node) and not is_number(value):
                operands.append(self._tensor(value))
                names.append(argument.name)
            elif self._numbers.is_operand(node, argument.name, value):
                operands.append(self._numbers.operand(value, node, argument.name))
                names.append(argument.name)
            elif (attr := self._attributes.of(argument.name, kind, value)) is not None:
                attrs[argument.name] = attr
        if is_point_to_point(overload):
            raise UnsupportedError("forward sends to another process or receives from it")
        if overload is torch.ops.aten.as_strided.default:
            # Another call's inputs may have other strides than those that are no row-major ones.
            order = memory_order(node.args[0].meta["val"], self._sizes) if self._row_major_inputs else None
            attrs |= {} if order is None else {"memory": ("ints", order)}
        if (is_view := shares(node, self._sizes)) is not None:
            attrs["shares"] = ("bool", is_view)
        if attrs.get("sparse") == ("bool", True):
            raise UnsupportedError("forward asks for sparse gradients")
        if self._autocast is not None:
            attrs["autocast"] = ("dtype", dtype_name(self._autocast))  # for what stays a call of PyTorch
        if "out" in names and self._out(node, overload, operands, names, attrs):
            return
        self._aliases.check_writes(overload, operands, names)
        if torch.Tag.nondeterministic_seeded in overload.tags and not is_silent(attrs):
            self._random = True
        if written := writes_of_call(overload, names):
            attrs["writes"] = ("ints", written)
        self._append(node, target_name(overload), operands, names, attrs, written)
        is_view = False if copies(node) else is_view
        self._aliases.note_call(self._values_of(node), overload, operands, names, is_view)

    def _out(self, node, overload, operands, names, attrs):
        """A call with out= as the call without, and a copy; whether it is known to have the same dtype."""
        functional = without_out(overload)
        dtypes = {self._graph.type_of(operand)[0] for operand in operands if operand is not None}
        if functional is None or len(dtypes) > 1:
            return False
        place = names.index("out")
        out = operands.pop(place)
        del names[place]
        self._aliases.check_write(out)
        if takes_dtype(functional) and not takes_dtype(overload):
            attrs["dtype"] = ("dtype", *dtypes)
        if torch.Tag.nondeterministic_seeded in functional.tags:
            self._random = True
        self._append(node, target_name(functional), operands, names, attrs)
        dtype, shape = self._graph.type_of(out)
        if self._graph.type_of(self._values[node])[1] != shape:  # it gets another size
            self._aliases.require_alone(out)
            self._values[node.kwargs["out"]] = self._values[node]
            return True
        copied = (f"{node.name}_out", dtype, shape)
        back = [out, self._values[node]]
        value = self._graph.add_aten("aten::copy_.default", back, ["self", "src"], [copied], {}, *origin(node))[0]
        self._values[node] = value
        self._aliases.note_view(value, out)
        self._aliases.note_made([value])
        return True

    def _is_from_data(self, value):
        number = value.meta.get("val") if isinstance(value, torch.fx.Node) else value
        return isinstance(number, torch.SymInt) and self._sizes.is_data(number)

    def _positions(self, node):
        arguments = {
            argument.name: value.meta.get("val") if isinstance(value, torch.fx.Node) else value
            for argument, value in arguments_of(node)
            if not self._numbers.is_operand(node, argument.name, value) and not self._is_from_data(value)
        }
        arguments = {name: self._sizes.put_in(value) for name, value in arguments.items()}
        require_no_ones(node.target, arguments, self._sizes)
        return positions_from_start(node.target, arguments, self._sizes)

    def _append(self, node, target, operands, names, attrs, written=()):
        """One call. What it writes into comes as further outputs of the node, and is copied back."""
        result = node.meta.get("val")
        several = isinstance(result, list | tuple)
        results = list(result) if several else [result]
        if any(isinstance(part, list | tuple) for part in results):
            raise UnsupportedError("an op returns a list of tensors among others")
        fakes = [(place, fake) for place, fake in enumerate(results) if isinstance(fake, torch.Tensor)]
        for _, fake in fakes:
            self._data_sizes.name_symbols_of(fake)
        outputs = [
            (
                node.name if not several else f"{node.name}_{place}",
                dtype_name(fake.dtype),
                self._sizes.shape(fake.shape),
            )
            for place, fake in fakes
        ]
        outputs += [(f"{node.name}_written_{index}", *self._graph.type_of(operands[index])) for index in written]
        if names is None:
            numbers = self._graph.add_python_op(target, operands, outputs, *attrs, *origin(node))
        else:
            numbers = self._graph.add_aten(target, operands, names, outputs, attrs, *origin(node))
        values = [None] * len(results)
        for (place, _), number in zip(fakes, numbers, strict=False):
            values[place] = number
        for index, number in zip(written, numbers[len(fakes) :], strict=True):
            copied = (f"{node.name}_copied_{index}", *self._graph.type_of(operands[index]))
            back = [operands[index], number]
            self._graph.add_aten("aten::copy_.default", back, ["self", "src"], [copied], {}, *origin(node))
        self._values[node] = values if several else values[0]

    def _python_op(self, node):
        tensors, sizes, call = node.args
        record = self._exported.functions[call]
        dims = [self._sizes.dim(self._value(size)) for size in sizes]
        self._append(
            node, record.name, [self._tensor(tensor) for tensor in tensors], None, (call, dims, record.computes)
        )
        self._aliases.note_made(self._values_of(node))

    def _inspect(self, node):
        tensor, record = node.args
        inspection = self._exported.inspections[record]
        attrs = {"name": ("string", inspection.name), "record": ("int", record)}
        self._graph.add_aten("lowtide::inspect.default", [self._tensor(tensor)], ["x"], [], attrs, *origin(node))

    def _redistribute(self, node):
        x, kind, gradient, axis, group, ranks = node.args
        number = self._gathers.number_of(self._exported.groups[group])
        attrs = {"kind": ("string", kind), "gradient": ("string", gradient)}
        attrs |= {"axis": ("int", axis), "group": ("int", number), "ranks": ("int", ranks)}
        module, line = origin(node)
        (self._values[node],) = self._graph.add_op("Redistribute", [self._tensor(x)], attrs, origin=f"{module}  {line}")
        self._aliases.note_made(self._values_of(node))

    # ---- arguments

    def _number_input(self, argument):
        """The value number of an input that holds a number, else None."""
        value = self._values[argument]
        place = self._source_values.get(value)
        return value if place is not None and self._sources[place].index in self._exported.numbers else None

    def _values_of(self, node):
        """The value numbers of what a call returned."""
        values = self._values[node]
        return [value for value in (values if isinstance(values, list) else [values]) if value is not None]

    def _value(self, argument):
        return _value_of(self._values, argument)

    def _tensor(self, argument):
        value = self._value(argument)
        if not isinstance(argument, torch.fx.Node) or not isinstance(value, int):
            raise UnsupportedError("an operand is no tensor of the graph")
        return value

    # ---- outputs

    def _outputs(self, program):
        (results,) = next(node for node in program.graph.nodes if node.op == "output").args
        outputs, places, views = [], {}, []
        for leaf in self._exported.output_leaves:
            SizeText.of(leaf, self._sizes)
        shared = SharedOutputs(program, self._sizes, self._regions).find(results)
        for result in results:
            base, steps = shared.get(result, (result, ()))
            if (value := self._value(base)) in self._source_values and self._aliases.has_history(value):
                base, steps, value = result, (), self._value(result)  # the caller's own tensor has none
            if value in self._source_values:
                source = self._source_values[value]
                outputs.append(("view", len(views)) if steps else ("source", source))
                if steps:
                    views.append(OutputView(source, steps, of_input=True))
                continue
            if value not in places:
                places[value] = len(places)
                self._graph.add_output(value)
            outputs.append(("view", len(views)) if steps else ("graph", places[value]))
            if steps:
                views.append(OutputView(places[value], steps))
        return outputs, views


def _value_of(values, argument):
    return values[argument] if isinstance(argument, torch.fx.Node) else argument


def _attribute(module, path):
    for name in path.split("."):
        module = getattr(module, name, None)
    return module
