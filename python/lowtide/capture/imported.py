"""A captured graph and where its inputs come from."""

from dataclasses import dataclass, field

import torch

from lowtide._lowtide import Graph

from .sizes import Sizes


@dataclass(frozen=True)
class Source:
    """Where a graph input's tensor comes from at a call."""

    kind: str  # "input", "param", "buffer" or "constant"
    index: int = -1  # input: among the call's tensors
    paths: tuple = ()  # param, buffer: "block.0.weight", more than one if tied; constant: of the attribute, if any
    tensor: torch.Tensor | None = None  # constant
    name: str = ""  # of the graph's input
    requires_grad: bool = False
    used: bool = True  # by some node or output
    silent: bool = False  # it is written through `.data` alone, if at all: autograd takes it for unchanged
    shard: object = None  # of a part of a parameter that the graph gathers: how it is divided


@dataclass
class ImportedGraph:
    graph: Graph
    sizes: Sizes
    sources: list
    # Per tensor output: ("graph", index among the graph's outputs), ("source", index) or ("view", index among views).
    outputs: list
    random: bool  # some node draws random numbers
    groups: list = field(default_factory=list)  # Processes, by the numbers that collectives give them
    views: list = field(default_factory=list)  # OutputView
