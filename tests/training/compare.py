"""Tiny transformers models in eager, in eager with fp64 weights, and through ORTModule: losses, gradients, buffers."""

import copy
import re
from dataclasses import dataclass

import torch
import zoo
from rounding import RandomRounding

from lowtide.ortmodule import ORTModule

LEARNING_RATE = 0.05

# A parameter's gradients are compared relative to their largest entry, or, where that is nothing but rounding (the bias
# of an attention's keys has a true gradient of zero), to this part of the model's largest.
SMALLEST_SCALE = 1e-6


IN_PIECES = re.compile(r"[1-9]\d* of \d+ pieces in the engine")


@dataclass
class Run:
    gradients: list  # per batch, all with the first weights: name → value or None
    losses: list  # of SGD steps, one per batch
    buffers: list  # after each of these steps: name → value


def train(module, batches):
    gradients = [_gradients(module, batch) for batch in batches]
    losses, buffers = [], []
    optimizer = torch.optim.SGD(module.parameters(), lr=LEARNING_RATE)
    for batch in batches:
        losses.append(_backward(module, batch).item())
        optimizer.step()
        buffers.append({name: buffer.clone() for name, buffer in module.named_buffers()})
    return Run(gradients, losses, buffers)


def _backward(module, batch):
    module.zero_grad()
    loss = module(**batch).loss
    loss.backward()
    reason = getattr(module, "fallback_reason", None)
    assert reason is None or IN_PIECES.match(reason), reason
    return loss.detach()


def _gradients(module, batch):
    _backward(module, batch)
    return {name: None if p.grad is None else p.grad.clone() for name, p in module.named_parameters()}


@dataclass
class Comparison:
    engine: Run
    eager: Run
    exact: list  # eager's gradients in fp64, of an fp32 model
    rounding: dict  # parameter → how far fp32's roundings alone take its gradients from these
    report: dict  # the session's


def batches_of(make_batch, count):
    return [make_batch(batch=2, length=16, seed=seed) for seed in range(count)]


def compare(name, steps, dtype=torch.float32):
    """The same weights on the same batches, everywhere."""
    model, make_batch = zoo.build(name, dtype=dtype)
    batches = batches_of(make_batch, steps)
    eager, wrapped = copy.deepcopy(model), ORTModule(copy.deepcopy(model))
    exact, rounding = [], {}
    if dtype != torch.float64:
        exact_model, make_exact_batch = zoo.build(name, dtype=torch.float64)
        exact_model.load_state_dict(model.state_dict())
        exact_batches = batches_of(make_exact_batch, steps)
        exact = [_gradients(exact_model, batch) for batch in exact_batches]
        rounding = distances(rounded_gradients(exact_model, exact_batches), exact)
    return Comparison(train(wrapped, batches), train(eager, batches), exact, rounding, report(wrapped))


def rounded_gradients(exact_model, batches, dtype=torch.float32):
    """Gradients as computations in `dtype` may give them, per batch, from a model in fp64."""
    found = []
    for seed, batch in enumerate(batches, start=1):
        with RandomRounding(dtype, seed):
            found.append(_gradients(exact_model, batch))
    return found


def report(wrapped):
    """The session's, or that of all pieces of the last step."""
    manager = wrapped._training_manager
    return manager.last_step.report() if manager.last_step else manager.last_agent.session.report


def distances(found, expected):
    """Parameter → largest difference of its gradients on any batch, relative to the scale of `expected`."""
    worst = {}
    for ours, theirs in zip(found, expected, strict=True):
        known = {name: gradient for name, gradient in theirs.items() if gradient is not None}
        assert known.keys() == {name for name, gradient in ours.items() if gradient is not None}
        floor = SMALLEST_SCALE * max(gradient.abs().max().item() for gradient in known.values())
        for name, gradient in known.items():
            difference = (ours[name].double() - gradient.double()).abs().max().item()
            distance = difference / max(gradient.abs().max().item(), floor)
            assert distance == distance, name  # not NaN
            worst[name] = max(worst.get(name, 0.0), distance)
    return worst


def farthest(found, expected):
    """The largest difference of two tensors, relative to the largest entry of `expected`."""
    scale = max(expected.double().abs().max().item(), 1e-30)
    return (found.double() - expected.double()).abs().max().item() / scale
