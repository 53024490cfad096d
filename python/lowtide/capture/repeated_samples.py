"""What an export asks about sizes that its example has in the place of the call's.

A batch of one is exported as one of several (export.py), so that one graph serves both. Where the model's code asks
whether it is one, the graph is none for this call: the trace need not go on to its end.
"""

import torch

from lowtide.errors import UnsupportedError


class RepeatedSamples:
    def __init__(self, tensors, example_sizes, sizes):
        """`tensors`: the exporter's, of `example_sizes`; `sizes`: the call's."""
        self._guards = next((tensor.fake_mode.shape_env.guards for tensor in tensors), ())
        self._asked = 0  # of the guards
        self._own = {}  # symbol → the call's size
        for tensor, example, own in zip(tensors, example_sizes, sizes, strict=True):
            for dim, (taken, size) in enumerate(zip(example, own, strict=True)):
                if taken != size and isinstance(tensor.shape[dim], torch.SymInt):
                    self._own[tensor.shape[dim].node.expr] = size

    def check(self):
        """UnsupportedError where a guard of the trace so far does not hold for the call."""
        while self._asked < len(self._guards):
            guard = self._guards[self._asked].expr
            self._asked += 1
            if guard.free_symbols and guard.free_symbols <= self._own.keys() and not guard.xreplace(self._own):
                raise UnsupportedError("forward asks for the size of a batch that is another one in the example")
