"""What a capture assumed and a later call changes: sizes, values, attributes, modes. Results stay right."""

import pytest
import torch
import zoo
from modules import Of, assert_same, check, step, x

from lowtide.errors import UnsupportedError
from lowtide.ortmodule import ORTModule


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


def test_a_condition_on_sizes_among_an_ops_arguments():
    module = Of(lambda m, a: m.l(a) * (a.shape[0] == 3))
    wrapped = ORTModule(module)
    for n in (3, 4, 3, 5):
        torch.testing.assert_close(wrapped(x(n, 4)), module(x(n, 4)))
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


def test_steps_match_after_a_checkpoint_is_loaded():
    one, other = Of(lambda m, a: m.l(a)), Of(lambda m, a: m.l(a))
    wrapped = ORTModule(one)
    wrapped(x())
    wrapped.load_state_dict(other.state_dict())
    assert_same(step(wrapped, (x(),)), step(other, (x(),)))


def test_weights_of_the_wrong_kind_of_buffer_are_captured_again():
    module = Of(lambda m, a: m.l(a) + m.b.sum())
    module.register_buffer("b", torch.ones(2))
    wrapped = ORTModule(module)
    for replacement in (torch.ones(2), torch.ones(5), torch.ones(2, dtype=torch.float64)):
        module.b = replacement
        torch.testing.assert_close(wrapped(x()), module(x()))
        assert wrapped.fallback_reason is None


def test_equal_sizes_that_are_written_differently():
    # An Expand from min(2, a) to b, equal in every call: it once repeated the first row.
    check(Of(lambda m, a, i: m.l(a).index_put((i,), a[:2])), x(), torch.tensor([0, 2]))


def test_a_lazy_module_is_captured_once_it_has_shapes():
    wrapped = ORTModule(Of(lambda m, a: m.r(a), r=torch.nn.LazyLinear(3)))
    with pytest.warns(UserWarning, match="lazy"):
        wrapped(x())
    wrapped(x()).sum().backward()
    assert wrapped.fallback_reason is None


def test_attributes_that_forward_reads_lead_to_another_capture_and_others_do_not():
    module = Of(lambda m, a: m.l(a) * m.scale * getattr(m, "late", 1))
    module.scale = 2
    wrapped = ORTModule(module)
    for name, value, captures in (
        ("step", 1, 1),
        ("step", 2, 1),
        ("scale", 3, 2),
        ("late", 5, 3),
        ("scale", 2, 3),
        ("step", 9, 3),
    ):
        setattr(wrapped, name, value)
        torch.testing.assert_close(wrapped(x()), module(x()))
        (counts,) = wrapped.transition_counts().values()
        assert wrapped.fallback_reason is None and sum(counts.values()) == captures, name


def test_code_that_knows_the_examples_sizes():
    check(Of(lambda m, a: m.l(a).expand(3, 4, 4)), x(4, 4))


def test_what_holds_for_some_sizes_alone_is_exported_for_each(monkeypatch):
    """x.view(8, -1) is a column for 8 elements, which is broadcast, and fits as a matrix for 32."""
    monkeypatch.setenv("ORTMODULE_FALLBACK_POLICY", "FALLBACK_DISABLE")
    module = Of(lambda m, a: a.view(8, -1) * m.l.bias)
    wrapped = ORTModule(module)
    for size in (8, 32, 8):
        expected, found = step(module, [x(size)]), step(wrapped, [x(size)])
        assert_same(found, expected)
    with pytest.raises(UnsupportedError, match="broadcast"):
        wrapped(x(16))
