"""A submodule that is one graph between pieces: one that reads tables of sizes (guards/tables.py), where Dynamo would
break at each of their numbers. Its graphs have the tables as constants."""

import contextlib
import time

import torch

from lowtide.capture import trees
from lowtide.guards.observe import HOOKS
from lowtide.guards.tables import TableOfSizes, is_table

from .pieces_step import Ran


def has_tables(args, kwargs):
    return any(map(is_table, trees.flatten((args, kwargs))[0]))


def tables_as_constants(args, kwargs):
    leaves, structure = trees.flatten((args, kwargs))
    leaves = [TableOfSizes(leaf) if is_table(leaf) else leaf for leaf in leaves]
    return trees.unflatten(leaves, structure)


class WholeSubmodule:
    """Of a module in pieces: the innermost that the engine takes."""

    def __init__(self, make_managers):
        """`make_managers`: of a submodule, ExecutionManagers: (without gradients, with)."""
        self._make_managers = make_managers
        self._candidates = []
        self._child = self._managers = self._ran = None

    def offer(self, readers):
        """`readers`: submodules that were running where forward could not be one graph, outermost first."""
        self._candidates = [child for child in readers if not _is_hooked(child)]
        self._next()

    def _next(self):
        self._child = self._candidates.pop() if self._candidates else None
        self._managers = self._child and self._make_managers(self._child)

    @contextlib.contextmanager
    def in_place(self, ran):
        """While the module is called; `ran` gets a Ran of each call of the submodule."""
        if (child := self._child) is None:
            yield
            return
        self._ran = ran
        vars(child)["forward"] = self._forward
        try:
            yield
        finally:
            del vars(child)["forward"]
        if self._managers is None:
            self._next()

    @torch.compiler.disable(reason="one graph of its own, whose sizes a table tells")
    def _forward(self, *args, **kwargs):
        child, begin = self._child, time.perf_counter()
        del vars(child)["forward"]  # capture sees the module as it is
        try:
            if self._managers is None or not has_tables(args, kwargs):
                self._managers = None
                return child.forward(*args, **kwargs)
            manager = self._managers[torch.is_grad_enabled()]
            result = manager.forward(args, kwargs)
        finally:
            vars(child)["forward"] = self._forward
        seconds = time.perf_counter() - begin
        if (refusal := manager.fallback_reason) is None:
            self._ran.append(Ran(manager.last_agent, manager.last_agent.last_sizes, seconds, None))
        else:
            self._ran.append(Ran(None, None, seconds, refusal))
            self._managers = None  # the next one further out is tried
        return result


def _is_hooked(module):
    """A hook would run around the call and in the graph. And one forward of an object's own is enough."""
    return "forward" in vars(module) or any(getattr(module, hooks) for hooks in HOOKS)
