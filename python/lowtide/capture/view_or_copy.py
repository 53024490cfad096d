"""Calls that return a view where strides allow it, and a copy elsewhere: reshape, flatten, contiguous.

    y = x.t().reshape(-1)     to PyTorch a copy, unless x has one row alone
    x += 1                    which y does not show

Where one of the two is written and the other is read after that, the graph is right where tensors lie as in the trace.
"""

import operator

import sympy
import torch

from lowtide.errors import UnsupportedError
from lowtide.guards.data import memory_of
from lowtide.guards.questions import QUESTIONS, Question

from .memory_order import memory_order
from .op_schemas import arguments_of, is_call, written_by
from .sizes import NeedsConstants

_SHARES = "lowtide_shares"  # in the meta of such a node, where it tells: whether what it returns is a view
_NAMES = ("reshape", "reshape_as", "flatten", "ravel", "contiguous")


def decide(graph_module, call, names, handed_on):
    """Notes what the trace did where that tells. Questions that calls of the graph must answer as `call` does, whose
    tensors have these names. UnsupportedError where they do not lie as the example's can. `handed_on`: tensors of the
    trace that contiguous() returned and that have been written since."""
    found = _Memory(graph_module).find() if any(map(_may_be_view, _calls(graph_module))) else {}
    for node, (shares, _) in found.items():
        node.meta[_SHARES] = shares
    if not found and not handed_on:
        return ()
    given = {lies_in(node) for node in graph_module.graph.nodes if node.op == "placeholder"}
    of_arguments = any(is_given for _, is_given in found.values()) or any(
        map(given.__contains__, map(memory_of, handed_on))
    )
    question = "has its dims in the order" if of_arguments else "has strides as one without gaps in the order"
    asked = []
    for place, (tensor, name) in enumerate(zip(call.tensors, names, strict=True)):
        answer = QUESTIONS[question](tensor)
        if answer is None:
            raise UnsupportedError(f"forward writes into what a reshape may share, and {name} has gaps in its memory")
        if tensor.dim():
            asked.append(Question("argument", place, name, question, answer))
    return tuple(asked)


def shares(node, sizes):
    """Whether such a call returned a view, None where that does not tell; with the guards that it does at other sizes.
    NeedsConstants where these may decide it otherwise."""
    found = node.meta.get(_SHARES)
    if found is None:
        return None
    fake = node.args[0].meta["val"]
    free = [size for size in (*fake.shape, *fake.stride()) if isinstance(sizes.resolve(size), sympy.Basic)]
    order = memory_order(fake, sizes)
    if not free or order == list(range(fake.dim())):
        return found
    if any(map(sizes.is_data, free)):
        raise UnsupportedError("whether a reshape is a view depends on sizes that data tell")
    is_of_rows = len(free) == 1 and free[0] is fake.shape[0]  # which strides are not compared with
    if order is None and not is_of_rows or any(size.node.hint == 1 for size in free):
        raise NeedsConstants({dim for size in free for dim in sizes.dims_of(sizes.resolve(size))})
    for size in fake.shape:
        if isinstance(size, torch.SymInt):
            sizes.add_guard(size != 1)  # whose stride would not matter
    return found


def copies(node):
    """Whether what a call of to() returns has memory of its own, however tensors lie."""
    if node.target.namespace != "aten" or node.target._opname != "to":
        return False
    asks_for_order = node.kwargs.get("memory_format") is not None
    has_own = not asks_for_order and lies_in(node) != lies_in(node.args[0])
    return has_own or node.meta["val"].dtype != node.args[0].meta["val"].dtype


def _calls(graph_module):
    graphs = [module.graph for module in graph_module.modules() if isinstance(module, torch.fx.GraphModule)]
    return [node for graph in graphs for node in graph.nodes if node.op == "call_function"]


def _may_be_view(node):
    overload = node.target
    if not isinstance(overload, torch._ops.OpOverload) or node.meta.get("val") is None:
        return False
    return overload.namespace in ("aten", "lowtide") and overload._opname in _NAMES


class _Memory:
    """Who lies where, and who reads and writes when."""

    def __init__(self, graph_module):
        self._steps = []  # in the order in which they run
        self._source = {}  # node → the node that it may be a view of
        self._given = set()  # inputs
        self._results = {}  # region → what it returns
        self._walk(graph_module, None)
        self._writes = []  # (place, the node that is written)
        self._reads = {}  # node → place of its last read
        for place, node in enumerate(self._steps):
            self._reads.update(dict.fromkeys(node.all_input_nodes, place))
            self._writes += [(place, value) for value in written_by(node) if isinstance(value, torch.fx.Node)]

    def _walk(self, graph_module, arguments):
        formal = [node for node in graph_module.graph.nodes if node.op == "placeholder"]
        if arguments is None:
            self._given.update(formal)
        else:
            self._source.update(zip(formal, arguments, strict=True))
        for node in graph_module.graph.nodes:
            if node.op == "output" and arguments is not None:
                return node.args[0]
            if node.op == "call_function" and isinstance(node.target, torch._ops.HigherOrderOperator):
                self._enter(graph_module, node)
            elif node.op in ("call_function", "output"):
                self._steps.append(node)
                self._source[node] = self._source_of(node)

    def _enter(self, graph_module, node):
        """A region of those that the importer knows."""
        bodies = [arg for arg in node.args if isinstance(arg, torch.fx.Node) and arg.op == "get_attr"]
        if len(bodies) == 1:
            inner = graph_module.get_submodule(bodies[0].target)
            self._results[node] = self._walk(inner, node.args[node.args.index(bodies[0]) + 1 :])

    def _source_of(self, node):
        if node.target is operator.getitem:
            results = self._results.get(node.args[0])
            return node.args[0] if results is None else results[node.args[1]]
        if is_call(node):
            for argument, value in arguments_of(node):
                if argument.alias_info is not None and isinstance(value, torch.fx.Node):
                    return value
        return None

    def find(self):
        """{node that may be a view, where it tells: (whether it is one, whether inputs lie in that memory)}."""
        found = {}
        for place, node in enumerate(self._steps):
            if _may_be_view(node) and (tells := self._tells(node, place)) is not None:
                found[node] = tells
        return found

    def _tells(self, node, place):
        later = [(at, written) for at, written in self._writes if at > place]
        if not later:
            return None
        shares = lies_in(node) == lies_in(node.args[0])
        memories = {lies_in(node), lies_in(node.args[0])}
        if None in memories or not any(lies_in(written) in memories for _, written in later):
            return None
        around = [each for each in (*self._given, *self._source) if lies_in(each) in memories]
        of_result = {each for each in around if self._comes_from(each, node)}
        of_operand = {each for each in around if each not in of_result and lies_in(each) == lies_in(node.args[0])}
        is_given = any(each in self._given for each in of_operand)
        for at, written in later:
            if written in of_result and (is_given or self._last_read(of_operand) > at):
                return shares, is_given
            if written in of_operand and self._last_read(of_result) > at:
                return shares, is_given
        return None

    def _last_read(self, nodes):
        return max((self._reads.get(each, -1) for each in nodes), default=-1)

    def _comes_from(self, node, origin):
        while node is not None and node is not origin:
            node = self._source.get(node)
        return node is origin


def lies_in(node):
    """A number for the memory of a node's result, None of several."""
    found = memories(node)
    return found.pop() if len(found) == 1 else None


def memories(node):
    """Numbers for the memory of all results of a node."""
    value = node.meta.get("val") if isinstance(node, torch.fx.Node) else None
    parts = [part for part in (value if isinstance(value, list | tuple) else [value]) if isinstance(part, torch.Tensor)]
    return {memory_of(part) for part in parts if part.layout is torch.strided}
