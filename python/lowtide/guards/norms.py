"""Batch norm by a momentum that changes from call to call, while forward is traced: an op of its own holds it as a
constant."""

import torch

NORMS = frozenset((torch.nn.functional.batch_norm, torch.batch_norm))


def normed(func, observation, args, kwargs):
    """The call of one of NORMS as one whose running statistics are the batch's, and their averages written out; None of
    any other call."""
    return (_layer if func is torch.nn.functional.batch_norm else _op)(observation, *args, **kwargs)


def _layer(
    observation,
    input,
    running_mean,
    running_var,
    weight=None,
    bias=None,
    training=False,
    momentum=0.1,
    eps=1e-5,
):
    if not training or running_mean is None or momentum not in observation.held:
        return None
    mean, var = torch.zeros_like(running_mean), torch.zeros_like(running_var)
    result = torch.nn.functional.batch_norm(input, mean, var, weight, bias, True, 1.0, eps)
    with torch.no_grad():
        for running, now in ((running_mean, mean), (running_var, var)):
            running.copy_(momentum * now + (1 - momentum) * running)
    return result


def _op(observation, input, weight, bias, running_mean, running_var, training, momentum, eps, cudnn_enabled):
    return _layer(observation, input, running_mean, running_var, weight, bias, training, momentum, eps)
