"""Who takes part in a collective."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Processes:
    """Those that divide parameters among them, and those that have the same rows."""

    dividing: object  # a ProcessGroup
    alike: object = None  # a ProcessGroup; none: no other process has them

    def count(self):
        return self.dividing.size() * (1 if self.alike is None else self.alike.size())


def is_distributed():
    return torch.distributed.is_available() and torch.distributed.is_initialized()
