"""Who takes part in a collective."""

import weakref

import torch


class Processes:
    """Those that divide parameters among them, and those that have the same rows.

    Its groups end with `destroy_process_group`, whoever still has plans for them: threads of gloo's that outlive that
    may abort a process that ends.
    """

    def __init__(self, dividing, alike=None):
        """ProcessGroups. dividing: None is nobody's; alike: None where no other process has the same rows."""
        self._groups = tuple(None if group is None else weakref.ref(group) for group in (dividing, alike))

    @property
    def dividing(self):
        return self._group(0)

    @property
    def alike(self):
        return self._group(1)

    def _group(self, number):
        reference = self._groups[number]
        group = None if reference is None else reference()
        if reference is not None and group is None:
            raise RuntimeError("the module's processes have destroyed their process group")
        return group

    def count(self):
        return self.dividing.size() * (1 if self.alike is None else self.alike.size())

    def __eq__(self, other):
        return isinstance(other, Processes) and self._groups == other._groups

    def __hash__(self):
        return hash(self._groups)


def is_distributed():
    return torch.distributed.is_available() and torch.distributed.is_initialized()
