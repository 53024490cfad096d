"""What one process computes that has the batches and the random numbers of all of them."""

import copy

import torch

from lowtide.ortmodule import ORTModule


def train_alone(model, make_batch, steps):
    """(losses of this rank, parameters) of a training with dropout. The process runs the ranks in turn, each with a
    generator of its own whose seed is its number, and averages their gradients by hand."""
    models = [model, *(copy.deepcopy(model) for _ in range(torch.distributed.get_world_size() - 1))]
    wrapped = [ORTModule(each) for each in models]
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.01, momentum=0.9) for each in models]
    states = [torch.Generator().manual_seed(rank).get_state() for rank in range(len(models))]
    losses = [[] for _ in models]
    for step in range(steps):
        for rank, module in enumerate(wrapped):
            torch.set_rng_state(states[rank])
            optimizers[rank].zero_grad()
            loss = module(**make_batch(seed=step * len(models) + rank)).loss
            loss.backward()
            losses[rank].append(loss.detach())
            states[rank] = torch.get_rng_state()
        for parameters in zip(*(each.parameters() for each in models), strict=True):
            mean = sum(parameter.grad for parameter in parameters) / len(models)
            for parameter in parameters:
                parameter.grad = mean.clone()
        for optimizer in optimizers:
            optimizer.step()
    assert not torch.equal(losses[0][0], losses[1][0])
    return torch.stack(losses[torch.distributed.get_rank()]), list(model.parameters())
