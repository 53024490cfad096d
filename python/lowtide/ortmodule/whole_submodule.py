"""Submodules that are one graph between pieces: those that read tables of sizes (guards/tables.py), where Dynamo would
break at each of their numbers, and those that Dynamo breaks in and torch.export may not: where the trace of the whole
module ended, others were running. Graphs of the former have the tables as constants."""

import contextlib
import time

import torch

from lowtide.capture import trees
from lowtide.errors import UnplannedSize
from lowtide.guards.observe import HOOKS
from lowtide.guards.tables import TableOfSizes, is_table

from .pieces_step import Ran


def has_tables(args, kwargs):
    return any(map(is_table, trees.flatten((args, kwargs))[0]))


def tables_as_constants(args, kwargs):
    leaves, structure = trees.flatten((args, kwargs))
    leaves = [TableOfSizes(leaf) if is_table(leaf) else leaf for leaf in leaves]
    return trees.unflatten(leaves, structure)


class WholeSubmodules:
    """Of a module in pieces: those that the engine takes."""

    def __init__(self, module, make_managers):
        """`make_managers`: of a submodule and whether it reads tables, ExecutionManagers: (without gradients, with)."""
        self._module, self._make_managers = module, make_managers
        self._readers = []  # that are still to be tried, the innermost last
        self._broken = {}  # submodules that Dynamo broke in, outermost first → None
        self._without_graph = set()  # classes of submodules
        self._reader, self._others = None, []  # Whole

    def offer(self, readers):
        """`readers`: submodules that were running where forward could not be one graph, outermost first. The innermost
        that the engine takes is one."""
        self._readers = [child for child in readers if not _is_hooked(child)]
        self._next_reader()

    def have_no_graph(self, running):
        """`running`: submodules where the trace of the whole ended."""
        self._without_graph.update(map(type, running))

    def dynamo_broke(self, running):
        """`running`: modules, outermost first. One that forward makes is no submodule."""
        own = set(self._module.modules())
        self._broken[tuple(child for child in running if child in own)] = None

    def choose(self):
        """Of submodules that Dynamo broke in, the outermost that the engine may take."""
        taken = self._taken()
        for running in self._broken:
            if taken.isdisjoint(running):
                found = next((child for child in running if self._may_have_graph(child)), None)
                if found is not None and not any(child in taken for child in found.modules()):
                    taken.add(found)
                    self._others.append(Whole(found, self._make_managers(found, False)))

    def cover(self, running):
        """Whether one of these submodules is a graph of its own."""
        return not self._taken().isdisjoint(running)

    def _taken(self):
        return {whole.child for whole in (self._reader, *self._others) if whole is not None}

    def _may_have_graph(self, child):
        return type(child) not in self._without_graph and not _is_hooked(child)

    def _next_reader(self):
        child = self._readers.pop() if self._readers else None
        self._reader = child and Whole(child, self._make_managers(child, True), reads_tables=True)
        if child is not None:
            self._others = [whole for whole in self._others if not _overlap(whole.child, child)]

    @contextlib.contextmanager
    def in_place(self, ran):
        """While the module is called; `ran` gets a Ran of each call of the submodules."""
        if self._reader is None and not self._others:
            yield
            return
        with contextlib.ExitStack() as stack:
            for whole in (self._reader, *self._others):
                if whole is not None:
                    stack.enter_context(whole.in_place(ran))
            yield
        if self._reader is not None and self._reader.is_refused:
            self._next_reader()
        for whole in [whole for whole in self._others if whole.is_refused]:
            self._others.remove(whole)
            self._without_graph.add(type(whole.child))
            self.choose()


@contextlib.contextmanager
def as_it_is(module):
    """The module without the forward of Whole, if it is one's, for a forward that PyTorch runs again within the call:
    that would be the engine's again, with second derivatives of its own, without an end."""
    forward = vars(module).get("forward")
    if not isinstance(getattr(forward, "__self__", None), Whole):
        yield
        return
    del vars(module)["forward"]
    try:
        yield
    finally:
        vars(module)["forward"] = forward


class Whole:
    """One submodule."""

    def __init__(self, child, managers, reads_tables=False):
        self.child, self.is_refused = child, False
        self._managers, self._reads_tables = managers, reads_tables
        self._ran = None

    @contextlib.contextmanager
    def in_place(self, ran):
        if _is_hooked(self.child):  # since it was taken
            self.is_refused = True
            yield
            return
        self._ran = ran
        vars(self.child)["forward"] = self._forward
        try:
            yield
        finally:
            del vars(self.child)["forward"]

    @torch.compiler.disable(reason="a submodule that is one graph of its own")
    def _forward(self, *args, **kwargs):
        child, begin = self.child, time.perf_counter()
        del vars(child)["forward"]  # capture sees the module as it is
        try:
            self.is_refused |= self._reads_tables and not has_tables(args, kwargs)
            if self.is_refused:
                return child.forward(*args, **kwargs)
            manager = self._managers[torch.is_grad_enabled()]
            result = manager.forward(args, kwargs)
        finally:
            vars(child)["forward"] = self._forward
        seconds = time.perf_counter() - begin
        if (refusal := manager.fallback_reason) is None:
            agent = manager.last_agent
            self._ran.append(Ran(agent, agent.last_sizes, seconds, None, agent.in_two))
        else:
            self._ran.append(Ran(None, None, seconds, refusal))
            # Dynamo has it back, and another one is tried. But the next call's data may be as usual.
            self.is_refused = manager.last_failure is not UnplannedSize
        return result


def _overlap(one, other):
    return one in set(other.modules()) or other in set(one.modules())


def _is_hooked(module):
    """A hook would run around the call and in the graph, and so would a class's own __call__, which may take other
    arguments than forward. And one forward of an object's own is enough."""
    own_call = type(module).__call__ is not torch.nn.Module.__call__
    return own_call or "forward" in vars(module) or any(getattr(module, hooks) for hooks in HOOKS)
