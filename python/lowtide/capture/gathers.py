"""Parameters that are divided among processes: whole from right before the first node that reads them on.

Small ones of a group, which is what one call of `fully_shard` holds, travel together: a message costs time whatever is
in it. Larger ones travel alone, each where it is read, without a copy into a message and out of it.
"""

import itertools
import math

from lowtide.guards.values import dtype_name

_ALONE_BYTES = 1 << 20  # of a whole parameter; what is larger travels alone
_TOGETHER_BYTES = 4 << 20


class Gathers:
    def __init__(self, graph, aliases, owners):
        """`owners`: {id of a parameter: whose group it is in}."""
        self._graph, self._aliases, self._owners = graph, aliases, owners
        self.groups = []  # Processes, by the numbers that collectives give them
        self._shards = {}  # value number of a part → how the parameter is divided
        self._gradients = {}  # → the input that takes the gradient of the whole parameter, if that leaves the graph
        self._bundles = {}  # → the value numbers of the parts that travel together
        self._open = {}  # what parts of a bundle have in common → (the last bundle, its bytes)
        self._whole = {}  # → the value number of the whole parameter, once some node reads it

    def __contains__(self, part):
        return part in self._shards

    def add(self, part, shard, parameter, takes_gradient=None):
        """`part`: the input of the graph that is this process's part of the parameter; `takes_gradient`: the one whose
        gradient is that of the whole parameter, where the part has none."""
        self._shards[part], self._gradients[part] = shard, takes_gradient
        size_bytes = parameter.numel() * parameter.element_size()
        if size_bytes > _ALONE_BYTES or takes_gradient is not None:
            self._bundles[part] = [part]
            return
        key = self._owners.get(id(parameter)), shard.group, parameter.dtype, shard.dtypes, parameter.requires_grad
        bundle, so_far = self._open.get(key, ([], 0))
        if so_far + size_bytes > _TOGETHER_BYTES:
            bundle, so_far = [], 0
        bundle.append(part)
        self._open[key] = bundle, so_far + size_bytes
        self._bundles[part] = bundle

    def number_of(self, group):
        """Of Processes, for nodes."""
        if group not in self.groups:
            self.groups.append(group)
        return self.groups.index(group)

    def whole(self, part):
        """The value number of the parameter."""
        if part not in self._whole:
            bundle = self._bundles[part]
            for each, whole in zip(bundle, self._gather(bundle), strict=True):
                whole = self._without_filling(each, whole)
                self._graph.rename_value(whole, f"{self._graph.value_name(each)}_whole")
                takes_gradient = self._gradients[each]
                self._aliases.note_view(whole, each if takes_gradient is None else takes_gradient)
                self._whole[each] = whole
        return self._whole[part]

    def _gather(self, parts):
        shard = self._shards[parts[0]]
        group = {"group": ("int", self.number_of(shard.group)), "ranks": ("int", shard.ranks)}
        if len(parts) == 1:
            if (takes_gradient := self._gradients[parts[0]]) is not None:
                return self._graph.add_op("AllGather", [*parts, takes_gradient], group)
            return self._gather_message(parts[0], parts, group)
        sizes = [math.prod(self._shape(part)) for part in parts]
        ends = list(itertools.accumulate(sizes))
        flat = [self._view(part, [size]) for part, size in zip(parts, sizes, strict=True)]
        message = self._call("cat.default", "tensors", flat, [ends[-1]], {"dim": ("int", 0)})
        (received,) = self._gather_message(message, parts, group)
        received = self._view(received, [shard.ranks, ends[-1]])
        wholes = []
        for part, size, end in zip(parts, sizes, ends, strict=True):
            rows, *columns = self._shape(part)
            own = self._slice(received, 1, end - size, end, [shard.ranks, size])
            wholes.append(self._view(own, [rows * shard.ranks, *columns]))
        return wholes

    def _gather_message(self, message, parts, group):
        """In the dtypes of a MixedPrecisionPolicy: gradients are not rounded to the dtype that is sent, and back."""
        dtypes, dtype = self._shards[parts[0]].dtypes, self._graph.type_of(parts[0])[0]
        sent = dtype if dtypes.gathered is None else dtype_name(dtypes.gathered)
        reduced = sent if dtypes.reduced is None else dtype_name(dtypes.reduced)
        if dtype == sent == reduced:
            return self._graph.add_op("AllGather", [message], group)
        if sent != dtype:
            outputs = [("sent", sent, self._shape(message))]
            attrs = {"dtype": ("dtype", sent)}
            (message,) = self._graph.add_aten("aten::to.dtype", [message], ["self"], outputs, attrs, "", "")
        return self._graph.add_op("AllGather", [message, *parts], group | {"reduce": ("dtype", reduced)})

    def _without_filling(self, part, whole):
        """Without what fills up the parts of processes that have less; in the parameter's shape."""
        shard = self._shards[part]
        length, *columns = self._shape(whole)
        if length != shard.length:
            whole = self._slice(whole, 0, 0, shard.length, [shard.length, *columns])
        return whole if len(shard.shape) == 1 + len(columns) else self._view(whole, list(shard.shape))

    # ---- nodes, as a captured graph has them

    def _shape(self, value):
        return [int(size) for size in self._graph.type_of(value)[1]]

    def _view(self, value, shape):
        return self._call("reshape.default", "self", [value], shape, {"shape": ("ints", shape)})

    def _slice(self, value, dim, start, end, shape):
        attrs = {"dim": ("int", dim), "start": ("int", start), "end": ("int", end), "step": ("int", 1)}
        return self._call("slice.Tensor", "self", [value], shape, attrs)

    def _call(self, overload, name, operands, shape, attrs):
        dtype = self._graph.type_of(operands[0])[0]
        outputs = [("gathered", dtype, shape)]
        return self._graph.add_aten(f"aten::{overload}", operands, [name] * len(operands), outputs, attrs, "", "")[0]
