"""What the command line analyses: a model from a Python function, a graph in text form or an ONNX file, planned and
with sizes."""

import importlib
import os
import sys
import traceback
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from lowtide._lowtide import Graph, Session, install_torch
from lowtide.capture import Call, Facts, capture, user_line
from lowtide.convergence.engine_step import Example
from lowtide.ortmodule.longest import symbols_of
from lowtide.store import measured_prices


class BadInput(Exception):
    """What a user gave that cannot be right."""


@dataclass
class Model:
    name: str
    graph: Graph
    example: dict  # symbol → size in the example call; empty for a text graph
    ranges: dict  # symbol → (low, high or None)
    outputs: list = ()  # names, where a user can name one
    loss: str = ""  # the output that alone takes a gradient; empty: every one does
    call: Example | None = None  # of a Python function

    def plan(self, memory_options):
        """`memory_options`: keywords of Session."""
        install_torch()
        needs_grad = [name == self.loss for name in self.outputs] if self.loss else []
        options = {"prices": measured_prices(), **memory_options}
        return Session(self.graph, training=True, output_needs_grad=needs_grad, **options)

    def with_graph(self, graph):
        """Another graph of the same call."""
        return replace(self, graph=graph)

    def with_loss(self, name):
        if name and not self.outputs:
            raise BadInput("--loss names an output of an ONNX file or a graph in text form")
        if name and name not in self.outputs:
            raise BadInput(f"--loss: no output is called '{name}'; outputs: {', '.join(self.outputs)}")
        return replace(self, loss=name)


def load(target, loss="", keep=None):
    """`target`: "module:function" where the function returns (model, args) or (model, args, kwargs), or a path. `keep`:
    of a function's model, paths of the outputs that its training steps return (capture/kept_outputs.py)."""
    path = Path(target)
    if path.is_file():
        if keep:
            raise BadInput("--keep takes a model, module:function: a graph has the outputs that it has")
        return (_from_onnx if path.suffix == ".onnx" else _from_text)(path, loss)
    return _captured(target, *load_call(target), keep).with_loss(loss)


def load_call(target):
    """(model, args, kwargs) of "module:function"."""
    module, colon, function = target.partition(":")
    if not colon or not module or not function:
        raise BadInput(f"'{target}' is neither a file nor 'module:function'")
    return _example(target, _function(module, function))


def _from_text(path, loss):
    try:
        text = path.read_text()
    except UnicodeDecodeError:
        raise BadInput(f"{path} is not a graph in text form") from None
    graph = Graph.parse(text)
    return Model(str(path), graph, {}, {}, _output_names(graph)).with_loss(loss)


def _from_onnx(path, loss):
    try:
        from lowtide import onnx_io
    except ImportError:
        raise BadInput(f"{path}: reading it takes the onnx package: pip install lowtide[onnx]") from None
    imported = onnx_io.load(path)
    found = zip(imported.outputs, imported.graph.outputs(), strict=True)
    outputs = [name for name, entry in found if entry["kind"] == "output"]
    if not loss and len(outputs) > 1:
        raise BadInput(f"{path}: --loss NAME says which output is the loss; outputs: {', '.join(outputs)}")
    return Model(str(path), imported.graph, {}, imported.graph.ranges(), outputs).with_loss(loss)


def _output_names(graph):
    return [graph.value_name(entry["value"]) for entry in graph.outputs() if entry["kind"] == "output"]


def _function(module_name, function_name):
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        owner = importlib.import_module(module_name)
    except ImportError as error:
        raise BadInput(f"cannot import '{module_name}': {error}") from error
    for name in function_name.split("."):
        if not hasattr(owner, name):
            raise BadInput(f"'{module_name}' has no '{function_name}'")
        owner = getattr(owner, name)
    if not callable(owner):
        raise BadInput(f"'{module_name}:{function_name}' is a {type(owner).__name__}, not a function")
    return owner


def _example(target, function):
    """(model, args, kwargs) from the user's function."""
    try:
        result = function()
    except Exception as error:
        where = user_line(traceback.extract_tb(error.__traceback__))
        text = f"{target} raised {type(error).__name__}: {error}"
        raise BadInput(f"{text} ({where})" if where else text) from error
    expected = "(model, args) or (model, args, kwargs)"
    if not isinstance(result, tuple) or not 2 <= len(result) <= 3:
        raise BadInput(f"{target} returned a {type(result).__name__}, expected a tuple {expected}")
    model, args, *rest = result
    if not isinstance(model, torch.nn.Module):
        raise BadInput(f"{target} returned a {type(model).__name__} first, expected a torch.nn.Module")
    if isinstance(args, torch.Tensor):
        args = (args,)
    if isinstance(args, dict) and not rest:
        args, rest = (), [args]
    kwargs = rest[0] if rest else {}
    if not isinstance(args, (tuple, list)) or not isinstance(kwargs, dict):
        raise BadInput(f"{target} returned no {expected} with a tuple of arguments and a dict of keywords")
    return model, tuple(args), kwargs


def _captured(target, model, args, kwargs, keep):
    captured, call = capture(model, args, kwargs, Facts(keep=keep)), Call(args, kwargs)
    sizes, table = call.sizes(), captured.imported.sizes
    example = {name: sizes[index][position] for name, (index, position) in table.dims.items()}
    ranges = table.ranges()
    example = {name: example[name] for name in ranges}
    return Model(target, captured.graph, example, ranges, call=Example(model, call, captured))


# ---------------------------------------------------------------- sizes


def parse_dims(text):
    """ "batch=8,seq=512" → {"batch": 8, "seq": 512}."""
    dims = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, equals, value = (word.strip() for word in part.partition("="))
        if not equals or not name or not value.isdigit():
            raise BadInput(f"--dims: '{part}' is not NAME=SIZE, as in batch=8,seq=512")
        dims[name] = int(value)
    return dims


def symbol_values(model, symbols, dims):
    """The size of each of the session's symbols: `dims` by its name or a short form, else the example's."""
    values = {name: model.example[name] for name in symbols if name in model.example}
    for short_first in (True, False):  # a symbol's own name has the last word
        for name, value in dims.items():
            if (name not in symbols) == short_first:
                values.update(dict.fromkeys(symbols_of(name, symbols), value))
    if missing := [name for name in symbols if name not in values]:
        raise BadInput(f"sizes are missing: give --dims {','.join(f'{name}=SIZE' for name in missing)}")
    for name, value in values.items():
        low, high = model.ranges.get(name, (0, None))
        if value < low or (high is not None and value > high):
            raise BadInput(f"--dims: {name} is {value}, the model takes {low} to {'any' if high is None else high}")
    return [values[name] for name in symbols]
