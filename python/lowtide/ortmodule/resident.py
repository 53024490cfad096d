"""What is in memory for a module before a step begins: with memory_budget_total it counts as well."""

import weakref

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from lowtide.distributed import part_of


class Resident:
    """Parameters, buffers, gradients that are kept, and the state of optimizers that have these parameters: that is
    there, and counted, once they have stepped."""

    def __init__(self, module):
        self._module = module
        self._of_optimizers = weakref.WeakKeyDictionary()  # → (parameters with state, bytes)
        # PyTorch calls it for every optimizer of the process, as long as we are.
        watch = weakref.WeakMethod(self._stepped)
        handle = register_optimizer_step_post_hook(
            lambda optimizer, args, kwargs: (stepped := watch()) and stepped(optimizer)
        )
        weakref.finalize(self, handle.remove)

    def bytes(self):
        tensors = [*self._module.parameters(), *self._module.buffers()]
        tensors += [parameter.grad for parameter in self._module.parameters() if parameter.grad is not None]
        return _bytes_of(tensors) + sum(count for _, count in self._of_optimizers.values())

    def _stepped(self, optimizer):
        known, _ = self._of_optimizers.get(optimizer, (-1, 0))
        if known == len(optimizer.state):
            return
        ours = set(map(id, self._module.parameters()))
        tensors = [
            tensor
            for parameter, state in optimizer.state.items()
            if id(parameter) in ours
            for tensor in state.values()
            if isinstance(tensor, torch.Tensor)
        ]
        self._of_optimizers[optimizer] = len(optimizer.state), _bytes_of(tensors)


def _bytes_of(tensors):
    """Tied parameters and views share a storage, which counts once; of a sharded parameter this process has a part."""
    tensors = [part_of(tensor) for tensor in tensors]
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors}
    return sum(storages.values())
