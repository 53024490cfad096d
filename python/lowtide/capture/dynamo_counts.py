"""Outputs of a graph of Dynamo's that are computed of nothing but ints which its caller gives, such as a module's count
of its calls, and what is added to it: no step of a plan computes these."""

from dataclasses import dataclass

import sympy
import torch


@dataclass(frozen=True)
class Counts:
    outputs: dict  # place of an output → its expression
    symbols: dict  # symbol of an int → place of the input

    @classmethod
    def of(cls, graph_module, examples):
        """`examples`: of the inputs."""
        (output,) = graph_module.graph.find_nodes(op="output")
        results = [getattr(result, "meta", {}).get("example_value") for result in output.args[0]]
        symbols = {
            expression: place
            for place, example in enumerate(examples)
            if (expression := _expression(example)) is not None and expression.is_Symbol
        }
        outputs = {
            place: expression
            for place, result in enumerate(results)
            if (expression := _expression(result)) is not None and expression.free_symbols <= symbols.keys()
        }
        if len(outputs) == len(results):
            return cls({}, {})  # of a graph without results there would be nothing to run
        return cls(outputs, symbols)

    def put(self, inputs, results):
        """The graph's outputs, of a call whose others are `results`."""
        values = {symbol: sympy.Integer(inputs[place]) for symbol, place in self.symbols.items()}
        return tuple(
            int(self.outputs[place].xreplace(values)) if place in self.outputs else result
            for place, result in enumerate(results)
        )


def _expression(value):
    return value.node.expr if isinstance(value, torch.SymInt) else None
