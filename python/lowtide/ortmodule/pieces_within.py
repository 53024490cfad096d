"""Pieces that begin in a module's submodules, where Dynamo finds no graph in its forward: a loop that goes on with
data, a list that is longer in each call."""

import contextlib
import inspect

import torch

_ALONE = "isolate_recompiles"  # from PyTorch 2.13


def compiled_alone(function, backend):
    """torch.compile, with a cache of its own. Dynamo caches by code, and where too much is compiled of one it runs
    what is there, whoever's backend made it: other wrappers' pieces, which may be gone."""
    known = inspect.signature(torch.compile).parameters
    return torch.compile(function, backend=backend, **({_ALONE: True} if _ALONE in known else {}))


class Submodules:
    """Those of one depth below `module`, compiled while a call of it runs."""

    def __init__(self, module, backend):
        self._module, self._backend = module, backend
        self.depth = 0  # of those that are compiled; 0: the module itself
        self._is_deepest = False
        self._compiled = {}  # submodule → its compiled call

    def go_deeper(self):
        """Whether there are any."""
        found = () if self._is_deepest else _below(self._module, self.depth + 1)
        self._is_deepest = not found
        if found:
            self.depth += 1
            self._compiled = {
                child: compiled_alone(_call_of(child, number), self._backend) for number, child in enumerate(found)
            }
        return bool(found)

    @contextlib.contextmanager
    def compiled(self):
        before = {child: child._compiled_call_impl for child in self._compiled}
        for child, call in self._compiled.items():
            vars(child)["_compiled_call_impl"] = call
        try:
            yield
        finally:
            for child, call in before.items():
                vars(child)["_compiled_call_impl"] = call


def _call_of(module, number):
    """The call of a module in code of its own: Dynamo counts compilations by code, and leaves out what it has once met
    as part of a larger one."""

    def call(*args, **kwargs):
        return module._call_impl(*args, **kwargs)

    call.__code__ = call.__code__.replace(co_name=f"call_{number}")
    return call


def _below(module, depth):
    """Modules that are called: lists and dicts of them count as their items. What TorchScript runs Dynamo does not."""
    found = {module}
    for _ in range(depth):
        found = {child for each in found for child in _called(each)}
    return found


def _called(module):
    for child in module.children():
        if isinstance(child, torch.nn.ModuleList | torch.nn.ModuleDict):
            yield from _called(child)
        elif not isinstance(child, torch.jit.ScriptModule):
            yield child
