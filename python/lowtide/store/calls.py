"""Calls of custom functions in a stored graph: which class, with which arguments, and what its outputs are."""

import torch

from lowtide.capture.functions import FunctionCall, FunctionTable, Given, _Tree
from lowtide.guards.values import DTYPES

from .trees import DTYPE_OF, NotStorable, plain_from_json, spec_from_json, spec_to_json


def calls_to_json(functions, classes):
    return {"checkpoints": functions.checkpoints, "calls": [_call_to_json(call, classes) for call in functions]}


def calls_from_json(told, classes):
    functions = FunctionTable(_call_from_json(call, classes) for call in told["calls"])
    functions.checkpoints = told["checkpoints"]
    return functions


def _call_to_json(call, classes):
    def value(item):
        return _value_to_json(item, call.name, classes)

    enabled, dtype = call.autocast
    return {
        "function": classes.name(call.function, "forward calls the custom autograd.Function"),
        "arguments": [value(argument) for argument in call.arguments],
        "needs_input_grad": call.needs_input_grad,
        "autocast": [enabled, DTYPES[dtype]],
        "dirty": call.dirty,
        "outputs": [[kind, value(rest[0])] if kind == "value" else [kind, *rest] for kind, *rest in call.outputs],
        "single": call.single,
        "operands": call.operands,
    }


def _call_from_json(told, classes):
    def value(item):
        return _value_from_json(item, classes)

    function = classes.find(told["function"])
    if not (isinstance(function, type) and issubclass(function, torch.autograd.Function)):
        raise ValueError(f"{told['function']} is no autograd.Function")
    enabled, dtype = told["autocast"]
    return FunctionCall(
        function,
        [value(argument) for argument in told["arguments"]],
        tuple(told["needs_input_grad"]),
        (enabled, DTYPE_OF[dtype]),
        tuple(told["dirty"]),
        [(kind, value(rest[0])) if kind == "value" else (kind, *rest) for kind, *rest in told["outputs"]],
        told["single"],
        told["operands"],
    )


def _value_to_json(value, name, classes):
    """An argument, or an output that is no tensor."""
    if isinstance(value, Given):
        return ["given", [value.kind, value.index]]
    if isinstance(value, _Tree):
        return [
            "tree",
            [[_value_to_json(leaf, name, classes) for leaf in value.leaves], spec_to_json(value.spec, classes.name)],
        ]
    if value is None or type(value) in (bool, int, str):
        return ["plain", value]
    if type(value) is float:
        return ["float", repr(value)]
    if isinstance(value, torch.dtype) and value in DTYPES:
        return ["dtype", DTYPES[value]]
    if type(value) in (list, tuple):
        return [type(value).__name__, [_value_to_json(item, name, classes) for item in value]]
    raise NotStorable(f"{name} takes or returns a {type(value).__qualname__}")


def _value_from_json(told, classes):
    kind, value = told
    if kind == "given":
        return Given(*value)
    if kind == "tree":
        leaves, spec = value
        return _Tree([_value_from_json(leaf, classes) for leaf in leaves], spec_from_json(spec, classes))
    if kind in ("list", "tuple"):
        items = [_value_from_json(item, classes) for item in value]
        return items if kind == "list" else tuple(items)
    return {"plain": plain_from_json, "float": float, "dtype": DTYPE_OF.__getitem__}[kind](value)
