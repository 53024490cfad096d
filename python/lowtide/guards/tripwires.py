"""What stands for an iterator and for PyTorch's generator while forward is traced: who advances or seeds them hears
that a graph cannot."""

import sys

import torch

from lowtide.errors import UnsupportedError, UnsupportedModel

from .code import is_ours


class Tripwire:
    """Stands for an iterator: who advances it hears that a graph cannot."""

    def __init__(self, iterator, where, observation):
        self._lowtide_iterator, self._lowtide_where, self._lowtide_observation = iterator, where, observation

    def __next__(self):
        if self._lowtide_observation.is_running():
            raise UnsupportedError(f"forward advances an iterator, {self._lowtide_where}, which a graph would do once")
        return next(self._lowtide_iterator)

    def __iter__(self):
        return self

    def __getattr__(self, name):
        return getattr(self._lowtide_iterator, name)


# Between who asks for a generator's state and torch.random.
_BETWEEN = ("torch.random", "torch._compile", "torch._dynamo", "contextlib")
# The numbers behind these are the same in each call, in other processes, too: a fixed projection, perhaps, that a
# checkpoint was trained with. A piece would draw others.
_THAT_REPEAT = ("get_rng_state", "set_rng_state", "manual_seed")


class Seeds:
    """Stands for PyTorch's generator: who asks or sets its state in forward hears that a graph cannot."""

    def __init__(self, observation):
        self._observation, self._generator = observation, torch.default_generator

    def __getattr__(self, name):
        if self._observation.is_running():
            frame, called = sys._getframe(1), name
            while (origin := frame.f_globals.get("__name__") or "").startswith(_BETWEEN):
                called = frame.f_code.co_name if origin == "torch.random" else called
                frame = frame.f_back
            if not is_ours(frame.f_globals.get("__name__")):
                # Who takes the state draws the same numbers again, perhaps where no piece is: in a hook, in backward.
                kind = UnsupportedModel if called in _THAT_REPEAT else UnsupportedError
                raise kind(f"forward calls torch.{called}, which a graph would do once")
        return getattr(self._generator, name)
