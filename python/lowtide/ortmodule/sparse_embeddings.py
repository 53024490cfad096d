"""Embeddings whose gradients are sparse, between pieces: PyTorch looks rows up, and makes the gradient of those rows
alone; the engine has dense ones."""

import contextlib

import torch


class SparseEmbeddings:
    """Those of `module`."""

    def __init__(self, module):
        self._module, self._calls = module, {}  # embedding → its forward, of which Dynamo makes no graph

    @contextlib.contextmanager
    def apart(self):
        """While the module is called."""
        found = [child for child in self._module.modules() if _is_sparse(child) and "forward" not in vars(child)]
        for child in found:
            if child not in self._calls:  # Dynamo would compile again for another one
                self._calls[child] = _outside_graphs(child)
            child.forward = self._calls[child]
        try:
            yield
        finally:
            for child in found:
                del child.forward


def _outside_graphs(embedding):
    return torch.compiler.disable(embedding.forward, reason="an embedding with sparse gradients")


def _is_sparse(module):
    return isinstance(module, torch.nn.Embedding | torch.nn.EmbeddingBag) and module.sparse
