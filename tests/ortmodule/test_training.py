"""Losses, gradients and buffers of small modules against PyTorch's, and autograd's own rules kept."""

import json

import pytest
import torch
import zoo
from modules import Of, assert_same, check, step

from lowtide.ortmodule import ORTModule


def x(*shape, grad=False):
    return torch.randn(*(shape or (3, 4)), generator=torch.Generator().manual_seed(1)).requires_grad_(grad)


def test_parameters_and_inputs_get_pytorchs_gradients():
    check(Of(lambda m, a: torch.relu(m.l(a)).sum()), x(grad=True))


def test_frozen_parameters_get_none():
    module = Of(lambda m, a: m.other(m.l(a)), other=torch.nn.Linear(4, 4))
    module.l.weight.requires_grad_(False)
    module.other.bias.requires_grad_(False)
    check(module, x())


def test_tied_parameters_get_the_sum():
    module = Of(lambda m, a: m.other(torch.tanh(m.l(a))), other=torch.nn.Linear(4, 4))
    module.other.weight = module.l.weight
    check(module, x())


def test_unused_parameters_get_none():
    check(Of(lambda m, a: m.l(a), other=torch.nn.Linear(4, 4)), x())


def test_structures_of_outputs_are_pytorchs():
    def forward(m, a, *rest, flag=False, **names):
        y = m.l(a) + rest[0]
        return {
            "y": y,
            "list": [y.sum(), (a, None)],
            "n": a.shape[0],
            "w": m.l.weight,
            "flag": flag,
            "z": names["z"] * 2,
        }

    wrapped = ORTModule(Of(forward))
    a, b, z = x(), x(), x()
    out = wrapped(a, b, flag="on", z=z)
    assert wrapped.fallback_reason is None
    assert list(out) == ["y", "list", "n", "w", "flag", "z"] and out["n"] == 3 and out["flag"] == "on"
    assert out["list"][1][0] is a and out["list"][1][1] is None and out["w"] is wrapped.l.weight


def test_outputs_that_need_no_gradient_say_so():
    wrapped = ORTModule(Of(lambda m, a: (m.l(a), m.l(a).argmax(1), m.l(a).detach())))
    first, second, third = wrapped(x())
    assert wrapped.fallback_reason is None
    assert first.requires_grad and not second.requires_grad and not third.requires_grad


def test_a_view_of_an_input_among_the_outputs():
    def forward(m, a):
        return m.l(a), a.t(), a[1:]

    check(Of(forward), x(grad=True))
    check(Of(forward), x())


def test_one_output_twice():
    def forward(m, a):
        y = m.l(a)
        return y, y, y.view(-1)

    check(Of(forward), x())


def test_several_forwards_may_be_pending_and_backwards_come_in_any_order():
    module = Of(lambda m, a: torch.tanh(m.l(a)) ** 2)
    wrapped = ORTModule(module)
    inputs = [x(n, 4, grad=True) for n in (3, 5, 3, 2)]
    outputs = [wrapped(a) for a in inputs]
    assert wrapped.fallback_reason is None
    for index in (2, 0, 3, 1):
        outputs[index].sum().backward()
        a = inputs[index].detach().clone().requires_grad_()
        module(a).sum().backward()
        torch.testing.assert_close(inputs[index].grad, a.grad)


def test_gradients_accumulate_and_hooks_of_parameters_run():
    wrapped = ORTModule(Of(lambda m, a: m.l(a).sum()))
    seen = []
    wrapped.l.weight.register_hook(lambda gradient: seen.append(gradient.clone()))
    wrapped.l.bias.register_post_accumulate_grad_hook(lambda p: seen.append(p))
    for _ in range(2):
        wrapped(x()).backward()
    torch.testing.assert_close(wrapped.l.bias.grad, torch.full((4,), 6.0))
    torch.testing.assert_close(wrapped.l.weight.grad, 2 * x().sum(0).expand(4, 4))
    assert len(seen) == 4


def test_a_second_backward_is_refused():
    wrapped = ORTModule(Of(lambda m, a: (m.l(a) ** 2).sum()))
    loss = wrapped(x())
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()


def test_changing_what_backward_needs_is_caught():
    wrapped = ORTModule(Of(lambda m, a: torch.sigmoid(m.l(a) ** 2)))
    a = x()
    y = wrapped(a)
    assert wrapped.fallback_reason is None
    a.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()
    y = wrapped(x())
    y.detach().add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()
    y = wrapped(x())
    with torch.no_grad():
        wrapped.l.bias.add_(1)  # nothing of backward's
    y.sum().backward()


def test_no_grad_and_eval():
    module = Of(lambda m, a: m.d(m.l(a)), d=torch.nn.Dropout(0.5))
    wrapped = ORTModule(module)
    wrapped.eval()
    assert not module.training and not module.d.training
    with torch.no_grad():
        y = wrapped(x())
    assert not y.requires_grad and wrapped.fallback_reason is None
    torch.testing.assert_close(y, module.l(x()))
    check(module, x())  # in eval mode, with gradients


def test_no_grad_regions_cut_gradients():
    def forward(m, a):
        with torch.no_grad():
            b = m.l(a)
        return b * m.l(a)

    check(Of(forward), x(grad=True))


def test_batch_norm_writes_its_statistics():
    module = Of(lambda m, a: m.n(m.l(a)), n=torch.nn.BatchNorm1d(4))
    # The bias before a batch norm has a true gradient of zero.
    wrapped = check(module, x(6, 4), tolerance={"rtol": 1e-4, "atol": 1e-4})
    assert int(wrapped.n.num_batches_tracked) == 2
    before = wrapped.n.running_mean._version
    wrapped(x(6, 4))
    assert wrapped.n.running_mean._version > before
    wrapped.eval()
    statistics = wrapped.n.running_mean.clone()
    wrapped(x(6, 4))
    assert torch.equal(wrapped.n.running_mean, statistics)


def test_buffers_changed_in_place_and_by_assignment():
    def forward(m, a):
        m.count += 1
        m.mean = m.mean * 0.5 + a.mean(0).detach()
        return m.l(a) * m.count + m.mean

    module = Of(forward)
    module.register_buffer("count", torch.zeros(()))
    module.register_buffer("mean", torch.zeros(4))
    check(module, x(), steps=3)


def test_replaced_buffers_and_attributes_are_seen():
    module = Of(lambda m, a: m.l(a) * m.b + m.t + m.scale)
    module.register_buffer("b", torch.ones(4))
    module.t, module.scale = torch.ones(4), 1.0
    wrapped = ORTModule(module)
    with torch.no_grad():
        for change in (
            lambda: None,
            lambda: setattr(wrapped, "b", torch.full((4,), 2.0)),
            lambda: setattr(wrapped, "t", torch.full((4,), 5.0)),
            lambda: setattr(wrapped, "scale", 7.0),
            lambda: setattr(module, "l", torch.nn.Linear(4, 4)),
        ):
            change()
            torch.testing.assert_close(wrapped(x()), module(x()))
            assert wrapped.fallback_reason is None


def test_a_submodule_in_another_mode_is_seen():
    module = Of(lambda m, a: m.d(m.l(a)), d=torch.nn.Dropout(0.9))
    wrapped = ORTModule(module)
    wrapped(x())
    module.d.eval()
    torch.testing.assert_close(wrapped(x()), module.l(x()))


def test_requires_grad_may_change():
    wrapped = ORTModule(Of(lambda m, a: m.l(a).sum()))
    wrapped(x()).backward()
    wrapped.zero_grad()
    wrapped.l.weight.requires_grad_(False)
    wrapped(x()).backward()
    assert wrapped.l.weight.grad is None and wrapped.l.bias.grad is not None
    wrapped.l.weight.requires_grad_(True)
    wrapped(x()).backward()
    assert wrapped.l.weight.grad is not None


def test_autocast_around_the_call():
    with torch.autocast("cpu", dtype=torch.bfloat16):
        check(Of(lambda m, a: m.l(a)), x(), tolerance={"rtol": 2e-2, "atol": 2e-2})


def test_dropout_repeats_under_a_seed_and_differs_between_steps():
    wrapped = ORTModule(Of(lambda m, a: m.d(m.l(a)), d=torch.nn.Dropout(0.3)))
    a = x(200, 4)

    def run():
        torch.manual_seed(7)
        found = []
        for _ in range(2):
            wrapped.zero_grad()
            y = wrapped(a)
            y.sum().backward()
            found += [y.detach(), wrapped.l.bias.grad.clone()]
        return found

    first, second = run(), run()
    assert wrapped.fallback_reason is None
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))
    assert not torch.equal(first[0], first[2])
    kept = (first[0] != 0).float()
    assert abs(kept.mean().item() - 0.7) < 0.05
    # The mask of the backward is the forward's.
    torch.testing.assert_close(first[1], kept.sum(0) / 0.7)


def test_a_model_without_random_ops_leaves_the_generator_alone():
    wrapped = ORTModule(Of(lambda m, a: m.l(a)))
    torch.manual_seed(3)
    state = torch.get_rng_state()
    a = x()
    wrapped(a).sum().backward()
    assert torch.equal(torch.get_rng_state(), state)


def test_six_lengths_one_export_and_a_batch_of_one(monkeypatch):
    import lowtide.ortmodule.graph_transition_manager as transition

    exports = []
    monkeypatch.setattr(transition, "capture", lambda *args: exports.append(args) or transition_capture(*args))
    from lowtide.capture import capture as transition_capture

    model, make_batch = zoo.build("bert")
    reference, _ = zoo.build("bert")
    wrapped = ORTModule(model)
    for batch, length in ((2, 16), (2, 9), (3, 24), (2, 8), (2, 33), (1, 12)):
        names = make_batch(batch=batch, length=length, seed=length)
        expected, found = reference(**names).loss, wrapped(**names).loss
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=0)
    assert wrapped.fallback_reason is None and len(exports) == 1


def test_a_size_that_the_model_asks_about_leads_to_another_capture():
    check_sizes = Of(lambda m, a: m.l(a) * 2 if a.shape[0] == 1 else m.l(a))
    wrapped = ORTModule(check_sizes)
    for n in (3, 1, 5, 1):
        torch.testing.assert_close(wrapped(x(n, 4)), check_sizes(x(n, 4)))
        assert wrapped.fallback_reason is None


def test_arguments_that_are_plain_values_are_part_of_the_graph():
    module = Of(lambda m, a, k, add=None: m.l(a) * k + (0 if add is None else add))
    wrapped = ORTModule(module)
    for args, kwargs in (
        ((x(), 2), {}),
        ((x(), 3), {}),
        ((x(), True), {}),
        ((x(), 2.5), {"add": x()}),
        ((x(),), {"k": 2}),
    ):
        torch.testing.assert_close(wrapped(*args, **kwargs), module(*args, **kwargs))
        assert wrapped.fallback_reason is None


def test_other_strides_and_one_tensor_for_two_arguments():
    module = Of(lambda m, a, b: m.l(a) - m.l(b) * 2)
    a = x(4, 3).t()
    for args in ((a, a), (x(3, 8)[:, ::2], x()), (x(), x(1, 4).expand(3, 4))):
        check(module, *args)


def test_mutated_inputs_are_written():
    def forward(m, a):
        a.add_(1)
        return m.l(a)

    module = Of(forward)
    ours, theirs = x(), x()
    wrapped = ORTModule(module)
    torch.testing.assert_close(wrapped(ours), module(theirs))
    torch.testing.assert_close(ours, theirs)


def test_an_optimizer_trains_it():
    torch.manual_seed(0)
    module = Of(lambda m, a: ((m.l(a) - 1) ** 2).mean())
    wrapped = ORTModule(module)
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1)
    losses = []
    for _ in range(30):
        optimizer.zero_grad()
        loss = wrapped(x(8, 4))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0] and wrapped.fallback_reason is None


def test_memory_and_explanation():
    wrapped = ORTModule(Of(lambda m, a: torch.relu(m.l(a)).sum()))
    assert wrapped.memory_report() is None
    wrapped(x(64, 4)).backward()
    report = wrapped.memory_report()
    assert report["planned_peak_bytes"] >= report["arena_bytes"] >= report["lower_bound_bytes"] > 0
    wrapped(x(128, 4)).backward()
    assert wrapped.memory_report()["arena_bytes"] > report["arena_bytes"]
    assert "Relu" in wrapped.explain()


def test_steps_match_after_a_checkpoint_is_loaded():
    one, other = Of(lambda m, a: m.l(a)), Of(lambda m, a: m.l(a))
    wrapped = ORTModule(one)
    wrapped(x())
    wrapped.load_state_dict(other.state_dict())
    assert_same(step(wrapped, (x(),)), step(other, (x(),)))


def test_writes_into_buffers_under_no_grad_carry_no_gradient():
    def forward(m, a):
        y = m.l(a)
        with torch.no_grad():
            m.b[0] = y.mean(0)
            m.c.mul_(0.5).add_(y.mean(0))
        return y * m.b.sum(0) + m.c

    module = Of(forward)
    module.register_buffer("b", torch.ones(2, 4))
    module.register_buffer("c", torch.ones(4))
    check(module, x(grad=True))


def test_writes_under_no_grad_into_what_has_a_gradient_are_pytorchs():
    def forward(m, a):
        y = m.l(a)
        with torch.no_grad():
            y.mul_(3)
        return y

    with pytest.warns(UserWarning, match="under torch.no_grad"):
        check(Of(forward), x(), in_engine=False)


def test_in_place_operations_and_writes_through_views():
    def forward(m, a):
        y = m.l(a) * 1
        y[:, 0] = 0
        y[1:].mul_(2)
        z = torch.zeros(y.shape[0], 4)
        z.add_(y)
        z.t()[1].copy_(y[:, 2] * 3)
        return z

    check(Of(forward), x(grad=True))


def test_outputs_without_any_gradient():
    module = Of(lambda m, a: m.l(a).argmax(1))
    wrapped = ORTModule(module)
    assert torch.equal(wrapped(x()), module(x())) and wrapped.fallback_reason is None


def test_a_wrapper_inside_of_a_wrapper():
    module = Of(lambda m, a: m.inner(m.l(a)), inner=ORTModule(torch.nn.Linear(4, 4)))
    wrapped = ORTModule(module)
    wrapped(x()).sum().backward()
    assert wrapped.fallback_reason is None and module.inner.weight.grad is not None


def test_weights_of_the_wrong_kind_of_buffer_are_captured_again():
    module = Of(lambda m, a: m.l(a) + m.b.sum())
    module.register_buffer("b", torch.ones(2))
    wrapped = ORTModule(module)
    for replacement in (torch.ones(2), torch.ones(5), torch.ones(2, dtype=torch.float64)):
        module.b = replacement
        torch.testing.assert_close(wrapped(x()), module(x()))
        assert wrapped.fallback_reason is None


def test_one_tensor_for_two_arguments_gets_both_gradients():
    module = Of(lambda m, a, b: torch.tanh(m.l(a)) * b)
    a, b = x(grad=True), x(grad=True)
    wrapped = ORTModule(module)
    wrapped(a, a).sum().backward()
    module(b, b).sum().backward()
    assert wrapped.fallback_reason is None
    torch.testing.assert_close(a.grad, b.grad)


def test_writes_into_an_argument_with_a_gradient_are_pytorchs():
    def forward(m, a):
        a.mul_(3)
        return m.l(a)

    module = Of(forward)
    leaf = x(grad=True)
    with pytest.warns(UserWarning, match="in-place operation|takes a gradient"):
        ORTModule(module)(leaf * 1).sum().backward()
    torch.testing.assert_close(leaf.grad, 3 * module.l.weight.sum(0).expand(3, 4))


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoints_are_inlined_with_pytorchs_gradients(reentrant):
    from torch.utils.checkpoint import checkpoint

    module = Of(lambda m, a: checkpoint(lambda y: torch.sin(m.l(y)), m.l(a), use_reentrant=reentrant))
    check(module, x(grad=True))


def test_autocast_inside():
    def forward(m, a):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = m.l(a)
        return y.float() * 2

    check(Of(forward), x(), tolerance={"rtol": 2e-2, "atol": 2e-2})


def test_inference_mode():
    module = Of(lambda m, a: m.n(m.l(a)), n=torch.nn.BatchNorm1d(4))
    wrapped = ORTModule(module)
    with torch.inference_mode():
        wrapped(x(6, 4))
    assert wrapped.fallback_reason is None and int(module.n.num_batches_tracked) == 1


def test_a_transformers_model_with_its_default_cache():
    model, make_batch = zoo.build("gpt2")
    reference, _ = zoo.build("gpt2")
    model.config.use_cache = reference.config.use_cache = True
    wrapped = ORTModule(model)
    out = wrapped(**make_batch())
    torch.testing.assert_close(out.loss, reference(**make_batch()).loss, rtol=1e-5, atol=0)
    assert wrapped.fallback_reason is None and out.past_key_values is None


def test_every_stage_can_be_read_and_traced(tmp_path, monkeypatch):
    monkeypatch.setenv("LOWTIDE_GUARD", "1")
    monkeypatch.setenv("LOWTIDE_DISABLE_KERNELS", "blas,cpu")
    wrapped = ORTModule(Of(lambda m, a: torch.relu(m.l(a)).sum()))
    wrapped(x()).backward()
    assert "aten::linear" in wrapped.text("captured") and "YieldOp" in wrapped.text("training")
    assert "): reference.Gemm" in wrapped.explain() and "): blas." not in wrapped.explain()
    assert "arena" in wrapped.text("plan") and wrapped.text("program")
    with wrapped.trace(tmp_path / "trace.json"):
        wrapped(x()).backward()
    names = json.loads((tmp_path / "trace.json").read_text())
    assert any("Relu" in event["name"] for event in (names["traceEvents"] if isinstance(names, dict) else names))


def test_equal_sizes_that_are_written_differently():
    # An Expand from min(2, a) to b, equal in every call: it once repeated the first row.
    check(Of(lambda m, a, i: m.l(a).index_put((i,), a[:2])), x(), torch.tensor([0, 2]))


@pytest.mark.parametrize(
    "make",
    [
        lambda: (torch.nn.LSTM(4, 4, batch_first=True), lambda m, a: m.r(a)[0]),
        lambda: (torch.nn.MultiheadAttention(4, 2, batch_first=True), lambda m, a: m.r(a, a, a)[0]),
        lambda: (torch.nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True), lambda m, a: m.r(a)),
        lambda: (torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(4, 4)), lambda m, a: m.r(a)),
        lambda: (torch.nn.GroupNorm(1, 2), lambda m, a: m.r(a)),
        lambda: (torch.nn.Conv1d(2, 3, 3).to(memory_format=torch.contiguous_format), lambda m, a: m.r(a)),
    ],
    ids=["lstm", "attention", "encoder layer", "weight norm", "group norm", "conv1d"],
)
def test_pytorchs_own_modules(make):
    torch.manual_seed(0)
    child, forward = make()
    shape = (3, 2, 4) if isinstance(child, torch.nn.GroupNorm | torch.nn.Conv1d) else (2, 5, 4)
    check(Of(forward, r=child), x(*shape), tolerance={"rtol": 1e-4, "atol": 1e-4})


def test_a_lazy_module_is_captured_once_it_has_shapes():
    wrapped = ORTModule(Of(lambda m, a: m.r(a), r=torch.nn.LazyLinear(3)))
    with pytest.warns(UserWarning, match="lazy"):
        wrapped(x())
    wrapped(x()).sum().backward()
    assert wrapped.fallback_reason is None


def test_attributes_that_forward_reads_lead_to_another_capture_and_others_do_not(monkeypatch):
    import lowtide.ortmodule.graph_transition_manager as transition
    from lowtide.capture import capture

    exports = []
    monkeypatch.setattr(transition, "capture", lambda *args: exports.append(args) or capture(*args))
    module = Of(lambda m, a: m.l(a) * m.scale * getattr(m, "late", 1))
    module.scale = 2
    wrapped = ORTModule(module)
    for name, value, captures in (
        ("step", 1, 1),
        ("step", 2, 1),
        ("scale", 3, 2),
        ("late", 5, 3),
        ("scale", 2, 4),
        ("step", 9, 4),
    ):
        setattr(wrapped, name, value)
        torch.testing.assert_close(wrapped(x()), module(x()))
        assert wrapped.fallback_reason is None and len(exports) == captures, name


def test_code_that_knows_the_examples_sizes():
    check(Of(lambda m, a: m.l(a).expand(3, 4, 4)), x(4, 4))
