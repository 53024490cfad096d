"""Runs of modules whose graphs are cached."""

import torch

from lowtide.ortmodule import DebugOptions, LogLevel, ORTModule


def run(net, *arguments):
    wrapped = ORTModule(net, DebugOptions(LogLevel.INFO))
    result = wrapped(*arguments)
    torch.testing.assert_close(result, net(*arguments))
    return wrapped


def graphs(folder):
    return sorted(folder.glob("*.graph"))
