"""Every layer of torch.nn with PyTorch's own sample inputs, through ORTModule beside eager in float64.

The first sample of each layer in training mode; with --all every one, in evaluation too.
"""

import copy
import warnings

import pytest
import torch
import torch.utils._pytree as pytree
from torch.testing._internal.common_modules import module_db

from lowtide.ortmodule import ORTModule

# Layer → (part of the reason, why the engine does not take it).
_AVERAGE = ("branches on data", "momentum=None divides by the number of batches, a number of Python's in forward")
REFUSED = {
    "GaussianNLLLoss": ("branches on data", "forward raises where a variance is negative"),
    "MultiLabelMarginLoss": ("its trace had", "PyTorch traces (1,) for one row without a reduction, and returns ()"),
    **dict.fromkeys(("BatchNorm1d", "BatchNorm2d", "BatchNorm3d"), _AVERAGE),
}

LAYERS = {info.name.removeprefix("nn."): info for info in module_db}


def samples(info, training):
    torch.manual_seed(0)
    return info.module_inputs_func(info, "cpu", torch.float64, requires_grad=True, training=training)


def build(info, sample, training):
    torch.manual_seed(1)
    arguments, keywords = sample.constructor_input.args, sample.constructor_input.kwargs
    module = info.module_cls(*arguments, **keywords).to(torch.float64).train(training)
    if info.is_lazy:
        with torch.no_grad():
            module(*copied(sample.forward_input.args), **copied(sample.forward_input.kwargs))
    return module


def copied(arguments):
    """Leaves of their own, that take a gradient where the sample's do."""
    return pytree.tree_map_only(
        torch.Tensor, lambda tensor: tensor.detach().clone().requires_grad_(tensor.requires_grad), arguments
    )


def step(module, sample):
    """Outputs, gradients of the inputs and parameters, and buffers after a forward and a backward."""
    args, kwargs = copied((sample.forward_input.args, sample.forward_input.kwargs))
    torch.manual_seed(2)
    outputs = [leaf for leaf in pytree.tree_leaves(module(*args, **kwargs)) if isinstance(leaf, torch.Tensor)]
    torch.manual_seed(3)
    flowing = [output for output in outputs if output.requires_grad]
    # randn_like would draw in the order of the memory, in which an output may lie in another way than eager's.
    torch.autograd.backward(flowing, [torch.randn(output.shape, dtype=output.dtype) for output in flowing])
    leaves = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
    gradients = {f"gradient of input {place}": leaf.grad for place, leaf in enumerate(leaves)}
    gradients |= {f"gradient of {name}": parameter.grad for name, parameter in module.named_parameters()}
    buffers = {f"buffer {name}": buffer.clone() for name, buffer in module.named_buffers()}
    return {f"output {place}": output.detach() for place, output in enumerate(outputs)} | gradients | buffers


def differences(ours, theirs):
    assert ours.keys() == theirs.keys()
    for name, expected in theirs.items():
        found = ours[name]
        if found is None or expected is None:
            if found is not expected:
                yield f"{name} is {found}, in eager {expected}"
            continue
        try:
            torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-10, equal_nan=True)
        except AssertionError as error:
            yield f"{name}: {' '.join(str(error).split())}"


@pytest.mark.parametrize("training", [True, pytest.param(False, marks=pytest.mark.long)], ids=["train", "eval"])
@pytest.mark.parametrize("name", LAYERS)
def test_layer(name, training, request):
    info = LAYERS[name]
    found = samples(info, training)
    wrong = []
    for place, sample in enumerate(found if request.config.getoption("--all") else found[:1]):
        if sample.forward_input is None:
            continue
        module = build(info, sample, training)
        wrapped = ORTModule(copy.deepcopy(module))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            theirs = step(module, sample)
            ours = step(wrapped, sample)
        wrong += [f"sample {place} ({sample.desc}): {line}" for line in judged(name, wrapped, ours, theirs)]
    assert not wrong, "\n".join(wrong)


def judged(name, wrapped, ours, theirs):
    yield from differences(ours, theirs)
    reason, refused = wrapped.fallback_reason, REFUSED.get(name)
    if reason is not None and (refused is None or refused[0] not in reason):
        yield f"in PyTorch: {reason}"
