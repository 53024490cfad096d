"""PyTorch's own tools and transformers' methods on a wrapper: they find a module like any other."""

import copy

import pytest
import torch
import torch.nn.utils.prune as prune
import zoo
from modules import Of, x
from torch.optim.swa_utils import AveragedModel, update_bn

from lowtide.ortmodule import ORTModule


def plain():
    return Of(lambda m, a: torch.tanh(m.l(a)))


def same_as_its_module(wrapped, *args):
    found, expected = wrapped(*args), wrapped.module(*args)
    torch.testing.assert_close(found, expected)
    found.sum().backward()
    return wrapped.fallback_reason is None


@pytest.mark.parametrize("tool", ["export", "trace", pytest.param("compile", marks=pytest.mark.long)])
def test_tools_that_trace_the_module_see_what_it_computes(tool):
    wrapped = ORTModule(plain())
    if tool == "export":
        traced = torch.export.export(wrapped, (x(),)).module()
    elif tool == "trace":
        traced = torch.jit.trace(wrapped, (x(),))
    else:
        traced = torch.compile(wrapped, backend="eager")
    torch.testing.assert_close(traced(x()), wrapped.module(x()))
    assert same_as_its_module(wrapped, x())


def test_pruning_and_parametrizations_of_children():
    wrapped = ORTModule(plain())
    assert same_as_its_module(wrapped, x())
    prune.l1_unstructured(wrapped.l, "weight", 0.5)
    assert same_as_its_module(wrapped, x())  # the mask is applied by a hook that sets the attribute
    assert (wrapped.l.weight == 0).sum() == 8
    prune.remove(wrapped.l, "weight")
    assert same_as_its_module(wrapped, x()) and (wrapped.l.weight == 0).sum() == 8
    torch.nn.utils.parametrize.register_parametrization(wrapped.l, "weight", torch.nn.Tanh())
    assert same_as_its_module(wrapped, x())


def test_averages_and_statistics_of_the_wrapper_itself():
    wrapped = ORTModule(Of(lambda m, a: m.n(m.l(a)), n=torch.nn.BatchNorm1d(4)))
    average = AveragedModel(wrapped)
    wrapped(x(6, 4)).sum().backward()
    average.update_parameters(wrapped)
    update_bn([x(6, 4), x(9, 4)], average)
    assert isinstance(average.module, ORTModule) and int(average.module.n.num_batches_tracked) == 2
    torch.testing.assert_close(average.eval()(x()), average.module.module(x()))
    assert average.module.fallback_reason is None


def test_conversions_of_what_is_inside():
    wrapped = ORTModule(Of(lambda m, a: m.n(m.l(a)), n=torch.nn.BatchNorm1d(4)))
    converted = torch.nn.SyncBatchNorm.convert_sync_batchnorm(wrapped)
    assert converted is wrapped and type(wrapped.module.n) is torch.nn.SyncBatchNorm


def test_distributed_data_parallel_around_the_wrapper(tmp_path):
    def check():
        wrapped = ORTModule(plain())
        outer = torch.nn.parallel.DistributedDataParallel(wrapped)
        outer(x()).sum().backward()
        found = wrapped.l.weight.grad.clone()
        wrapped.zero_grad()
        wrapped.module(x()).sum().backward()
        torch.testing.assert_close(found, wrapped.l.weight.grad)
        assert list(outer.state_dict()) == ["module.l.weight", "module.l.bias"] and wrapped.fallback_reason is None

    rendezvous = f"file://{tmp_path / 'rendezvous'}"
    torch.distributed.init_process_group("gloo", init_method=rendezvous, rank=0, world_size=1)
    try:
        check()  # no DistributedDataParallel may outlive its group: PyTorch hangs where one is freed later
    finally:
        torch.distributed.destroy_process_group()


def test_methods_of_transformers():
    model, make_batch = zoo.build("gpt2")
    plain, wrapped, batch = copy.deepcopy(model), ORTModule(model), make_batch()
    wrapped.gradient_checkpointing_enable()
    wrapped.resize_token_embeddings(250)
    plain.resize_token_embeddings(250)
    plain.load_state_dict(wrapped.state_dict())
    found, expected = wrapped(**batch), plain(**batch)
    torch.testing.assert_close(found.loss, expected.loss, rtol=1e-5, atol=1e-6)
    assert found.logits.shape[-1] == 250 and wrapped.fallback_reason is None
    found.loss.backward()
    expected.loss.backward()
    for ours, theirs in zip(wrapped.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-3, atol=1e-5)
    assert wrapped.is_gradient_checkpointing and wrapped.num_parameters() == plain.num_parameters()
