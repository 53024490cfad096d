"""What the engine does not do, each refused in one clear way: PyTorch runs the call, or an error says what to do."""

import copy

import pytest
import torch
from modules import Of, x
from torch.autograd import forward_ad
from torch.utils.flop_counter import FlopCounterMode

from lowtide.errors import FallbackWarning, UnsupportedError
from lowtide.ortmodule import ORTModule


def plain():
    return Of(lambda m, a: torch.tanh(m.l(a)))


def refused(word):
    """A context in which one call falls back to PyTorch, for this reason."""
    return pytest.warns(FallbackWarning, match=word)


@pytest.mark.parametrize("transform", ["grad", "vmap", "jvp", "functional_call"])
def test_torch_func(transform):
    module = plain()
    wrapped, eager = ORTModule(module), copy.deepcopy(module)
    wrapped(x())  # captured before: a transform must not meet the captured graph

    def run(target):
        if transform == "grad":
            return torch.func.grad(lambda a: target(a).sum())(x())
        if transform == "vmap":
            return torch.func.vmap(target)(x(2, 3, 4))
        if transform == "jvp":
            return torch.func.jvp(target, (x(),), (torch.ones(3, 4),))[1]
        a, parameters = x(), {name: p.detach() for name, p in target.named_parameters()}
        return torch.func.grad(lambda p: torch.func.functional_call(target, p, (a,)).sum())(parameters)["l.weight"]

    with refused("torch.func"):
        torch.testing.assert_close(run(wrapped), run(eager))
    wrapped(x()).sum().backward()
    assert wrapped.fallback_reason is None


def test_functional_call_without_a_transform_sees_the_other_parameters():
    module = plain()
    wrapped = ORTModule(module)
    wrapped(x())
    other = {name: torch.zeros_like(p) for name, p in module.named_parameters()}
    assert torch.func.functional_call(wrapped, other, (x(),)).abs().sum() == 0
    torch.testing.assert_close(wrapped(x()), module(x()))
    assert wrapped.fallback_reason is None


def test_forward_mode_ad():
    module = plain()
    wrapped = ORTModule(module)
    wrapped(x())
    tangents = []
    with forward_ad.dual_level(), refused("forward-mode AD"):
        for target in (wrapped, module):
            tangents.append(forward_ad.unpack_dual(target(forward_ad.make_dual(x(), torch.ones(3, 4)))).tangent)
        wrapped(x())  # no dual tensor: the engine's
        assert wrapped.fallback_reason is None
    torch.testing.assert_close(*tangents)


class Logged(torch.Tensor):
    """A subclass that counts what is done to it."""

    calls = 0

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        Logged.calls += 1
        return super().__torch_function__(function, types, args, kwargs or {})


def test_tensor_subclasses():
    wrapped = ORTModule(plain())
    wrapped(x())
    with refused("tensor subclass, Logged"):
        output = wrapped(x().as_subclass(Logged))
    assert type(output) is Logged and Logged.calls > 0
    assert type(wrapped(x())) is torch.Tensor and wrapped.fallback_reason is None


def test_parameters_that_are_tensor_subclasses():
    module = plain()
    module.l.weight = torch.nn.Parameter(module.l.weight.detach().as_subclass(Logged))
    with refused("subclass"):
        ORTModule(module)(x())


def test_sparse_gradients_and_inputs():
    embedding = Of(lambda m, i: m.e(i), e=torch.nn.Embedding(5, 4, sparse=True))
    with refused("sparse"):
        ORTModule(embedding)(torch.tensor([1, 3])).sum().backward()
    assert embedding.e.weight.grad.is_sparse
    module = Of(lambda m, a: torch.sparse.mm(a, m.l.weight))
    wrapped = ORTModule(module)
    with refused("layout torch.sparse_coo"):
        torch.testing.assert_close(*(run(x().to_sparse().requires_grad_()) for run in (wrapped, module)))


def test_a_dispatch_mode_sees_each_operation():
    wrapped = ORTModule(plain())
    wrapped(x())
    with refused("FlopCounterMode"), FlopCounterMode(display=False) as counter:
        wrapped(x())
    assert counter.get_total_flops() == 2 * 3 * 4 * 4


# ---------------------------------------------------------------- hooks on saved tensors


def test_save_on_cpu_gets_one_notice():
    module = plain()
    wrapped, eager = ORTModule(module), copy.deepcopy(module)
    leaves = x(grad=True), x(grad=True)
    with torch.autograd.graph.save_on_cpu():
        with pytest.warns(UserWarning, match="save_on_cpu") as caught:
            outputs = [wrapped(leaves[0]), wrapped(leaves[0])]
        expected = [eager(leaves[1]), eager(leaves[1])]
    assert sum("save_on_cpu" in str(warning.message) for warning in caught) == 1
    for output in outputs + expected:
        output.sum().backward()
    torch.testing.assert_close(leaves[0].grad, leaves[1].grad)
    assert wrapped.fallback_reason is None


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.filterwarnings("ignore:torch.autograd.graph.saved_tensors_hooks")
def test_a_checkpoint_around_the_module(reentrant):
    from torch.utils.checkpoint import checkpoint

    module = plain()
    wrapped, eager = ORTModule(module), copy.deepcopy(module)
    leaves = x(grad=True), x(grad=True)
    for target, leaf in zip((wrapped, eager), leaves, strict=True):
        checkpoint(lambda a, target=target: torch.sin(target(a * 2)), leaf, use_reentrant=reentrant).sum().backward()
    torch.testing.assert_close(*(leaf.grad for leaf in leaves))
    torch.testing.assert_close(wrapped.l.weight.grad, eager.l.weight.grad)
    assert wrapped.fallback_reason is None


# ---------------------------------------------------------------- modules


def test_backward_hooks_inside_are_refused_with_the_modules_name_and_still_run():
    module = Of(lambda m, a: m.deep(m.l(a)), deep=torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh()))
    wrapped = ORTModule(module)
    wrapped(x())
    seen = []
    handle = module.deep[0].register_full_backward_hook(lambda *_: seen.append("hook"))
    with refused(r"'deep.0' \(Linear\) has a backward hook"):
        wrapped(x()).sum().backward()
    assert seen == ["hook"]
    handle.remove()
    wrapped(x()).sum().backward()
    assert seen == ["hook"] and wrapped.fallback_reason is None


def test_data_parallel():
    parallel = torch.nn.DataParallel(plain())
    with refused("DataParallel"):
        torch.testing.assert_close(ORTModule(parallel)(x()), parallel(x()))
    wrapped = ORTModule(plain())
    with pytest.raises(UnsupportedError, match="DataParallel"):
        wrapped._replicate_for_data_parallel()


def test_a_gradient_of_a_wrong_shape_is_pytorchs_error():
    wrapped = ORTModule(plain())
    with pytest.raises(RuntimeError, match="shape"):
        wrapped(x()).backward(torch.ones(2, 2))
