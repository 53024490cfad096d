"""Capture by the text of its graph, its guards, and the traps of torch.export that are silent without us."""

import random

import numpy
import pytest
import torch
import zoo
from torch.utils.checkpoint import checkpoint

from lowtide._lowtide import Graph
from lowtide.capture import Call, capture, recapture
from lowtide.errors import UnsupportedError


class Of(torch.nn.Module):
    """A module whose forward is a function of (module, inputs…), with one linear layer to train."""

    def __init__(self, forward, **children):
        super().__init__()
        self.l = torch.nn.Linear(4, 4)
        self._forward = forward
        for name, child in children.items():
            setattr(self, name, child)

    def forward(self, *args, **kwargs):
        return self._forward(self, *args, **kwargs)


def text(module, *args, **kwargs):
    return capture(module, args, kwargs).graph.text()


def sizes(*tensors):
    return tuple(tuple(tensor.shape) for tensor in tensors)


# ---- import


def test_a_node_per_call_with_names_sizes_and_lines():
    graph = text(Of(lambda m, x: torch.relu(m.l(x)) * 2), torch.randn(3, 4))
    assert "%args_0: f32[args_0_dim0, 4] input,\n" in graph and "%l.weight: f32[4, 4] param,\n" in graph
    linear = next(line for line in graph.splitlines() if "aten::linear.default" in line)
    line = Of.forward.__code__.co_firstlineno + 1
    assert linear.endswith(f"// l  test_capture.py:{line}")
    assert 'aten::mul.Tensor(operands=["self"], other=2) %relu' in graph
    assert graph.rstrip().endswith("return %mul output\n}")


@pytest.mark.parametrize("name", ["gpt2", "bloom", "resnet", "t5"])
def test_models_verify_and_their_text_parses_back(name):
    model, make_batch = zoo.build(name)
    graph = capture(model, (), make_batch()).graph
    graph.verify()
    assert Graph.parse(graph.text()).text() == graph.text()


def test_lists_and_absent_elements_of_lists_are_operands():
    module = Of(lambda m, x, i: torch.cat([m.l(x), x], 1)[:, i])
    graph = text(module, torch.randn(3, 4), torch.tensor([1, 0]))
    assert 'operands=["tensors", "tensors"]' in graph
    assert 'operands=["self", "indices", "indices"]' in graph and "%slice, _, %args_1" in graph or "_, %args_1" in graph


def test_sizes_as_arguments_are_symbolic():
    graph = text(
        Of(lambda m, x: m.l(x).reshape(x.shape[0] * 2, 2) + torch.arange(x.shape[0] // 2).sum()), torch.randn(6, 4)
    )
    assert "shape=[2*args_0_dim0, 2]" in graph
    assert "end=args_0_dim0//2" in graph


def test_no_grad_regions_cut_gradients():
    def forward(m, x):
        with torch.no_grad():
            a = m.l(x)
        return a * m.l(x)

    graph = text(Of(forward), torch.randn(3, 4))
    region = next(line for line in graph.splitlines() if "aten::linear" in line)
    assert "%args_0, %p_module_l_weight_detached, %p_module_l_bias_detached" in region
    assert "%args_0, %l.weight, %l.bias" in graph, "the one outside keeps its gradient"


def test_autocast_around_the_call_is_in_the_types():
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert ": bf16[args_0_dim0, 4] = aten::linear.default" in text(Of(lambda m, x: m.l(x)), torch.randn(3, 4))


def test_autocast_inside_is_inlined():
    def forward(m, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = m.l(x)
        return y.float()

    assert ": bf16[args_0_dim0, 4] = aten::linear.default" in text(Of(forward), torch.randn(3, 4))


def test_tied_parameters_are_one_input():
    module = Of(lambda m, x: m.other(m.l(x)), other=torch.nn.Linear(4, 4))
    module.other.weight = module.l.weight
    captured = capture(module, (torch.randn(3, 4),))
    assert captured.graph.text().count(" param") == 3
    assert [source.paths for source in captured.sources if source.kind == "param"][0] == ("l.weight", "other.weight")


def test_frozen_parameters_say_so():
    module = Of(lambda m, x: m.l(x))
    module.l.weight.requires_grad_(False)
    assert "%l.weight: f32[4, 4] param frozen" in text(module, torch.randn(3, 4))


def test_buffers_and_constants_are_inputs():
    module = Of(lambda m, x: m.l(x) * m.b + m.t + torch.tensor(2.0))
    module.register_buffer("b", torch.ones(4), persistent=False)
    module.t = torch.ones(4)
    captured = capture(module, (torch.randn(3, 4),))
    kinds = {(source.paths or ("",))[0]: source.kind for source in captured.sources}
    assert kinds["b"] == "buffer" and kinds["t"] == "constant" and kinds[""] == "constant"


def test_an_output_that_is_an_input_comes_from_the_caller():
    module = Of(lambda m, x: {"y": m.l(x), "x": x, "n": x.shape[0] * 2, "w": m.l.weight, "none": None})
    captured = capture(module, (torch.randn(3, 4),))
    y, x, w = torch.zeros(()), torch.zeros(()), torch.zeros(())
    assert captured.imported.outputs == [("graph", 0), ("source", 0), ("source", 1)]
    assert captured.rebuild([y, x, w], ((5, 4),)) == {"y": y, "x": x, "n": 10, "w": w, "none": None}


# ---- sizes and guards


def test_the_same_dim_of_different_inputs_is_tied_and_a_call_can_teach_otherwise():
    module = Of(lambda m, x, y: m.l(x).sum() + m.l(y).sum())
    x, y = torch.randn(3, 4), torch.randn(3, 4)
    captured = capture(module, (x, y))
    assert "args_1_dim0 == args_0_dim0" in captured.guards() and "args_1: f32[args_0_dim0, 4]" in captured.graph.text()
    assert captured.accepts(sizes(torch.randn(7, 4), torch.randn(7, 4)))
    assert not captured.accepts(sizes(x, torch.randn(5, 4)))
    again = recapture(captured, module, (x, torch.randn(5, 4)))
    assert "args_1: f32[args_1_dim0, 4]" in again.graph.text()
    assert again.exported is captured.exported, "a tie is our own guess: no second export"
    assert again.accepts(sizes(x, torch.randn(5, 4))) and again.accepts(sizes(x, y))


def test_equal_batch_and_length_stay_independent():
    module = Of(lambda m, x: m.l(torch.nn.functional.one_hot(x, 4).float()).sum())
    captured = capture(module, (torch.zeros(5, 5, dtype=torch.long),))
    assert "i64[args_0_dim0, args_0_dim1]" in captured.graph.text()
    assert captured.accepts(((3, 9),))


def test_a_batch_of_one_is_not_specialised():
    captured = capture(Of(lambda m, x: m.l(x)), (torch.randn(1, 4),))
    assert captured.accepts(((1, 4),)) and captured.accepts(((6, 4),))


def test_whether_a_tensor_is_contiguous_is_no_guard():
    captured = capture(Of(lambda m, x: m.l(x).transpose(0, 1).contiguous().view(-1, 4)), (torch.randn(1, 5, 4),))
    assert captured.accepts(((1, 5, 4),)) and captured.accepts(((6, 1, 4),))


def test_a_copy_that_contiguous_need_not_make_is_none():
    module = Of(lambda m, x: m.l(x).contiguous().mul_(2))
    assert "aten::clone" not in capture(module, (torch.randn(3, 4),)).graph.text()


@pytest.mark.parametrize(
    "forward",
    [
        lambda m, x: (t := m.l(x).transpose(0, 1)).contiguous().mul_(2) + t,
        lambda m, x: (c := (t := m.l(x).transpose(0, 1)).contiguous()) + t.mul_(2) * c,
        lambda m, x: m.l(x) + x.transpose(0, 1).contiguous().mul_(2).transpose(0, 1),
    ],
)
def test_writes_that_tell_a_copy_from_the_tensor_are_of_batches_that_have_one(forward):
    """Of a batch of one contiguous() returns the tensor itself."""
    captured = capture(Of(forward), (torch.randn(3, 5, 4),))
    assert captured.accepts([[2, 7, 4]])
    assert not captured.accepts([[1, 5, 4]]) and not captured.accepts([[3, 1, 4]])
    assert capture(Of(forward), (torch.randn(1, 5, 4),)).accepts([[1, 5, 4]])


@pytest.mark.parametrize(
    "forward",
    [
        lambda m, x: m.l(x).transpose(0, 1).contiguous().mul_(2) + 1,
        lambda m, x: (m.l(x).transpose(0, 1).contiguous(), m.l(x).mul_(2))[1],
    ],
)
def test_writes_that_nothing_tells_are_no_reason_to_refuse(forward):
    capture(Of(forward), (torch.randn(3, 5, 4),))


def test_a_branch_on_size_one_is_a_guard_and_leads_to_another_capture():
    module = Of(lambda m, x: m.l(x) * 2 if x.shape[0] == 1 else m.l(x))
    many = capture(module, (torch.randn(3, 4),))
    assert "aten::mul" not in many.graph.text() and not many.accepts(((1, 4),))
    one = recapture(many, module, (torch.randn(1, 4),))
    assert "aten::mul" in one.graph.text() and one.accepts(((1, 4),)) and not one.accepts(((3, 4),))


def test_a_branch_on_a_size_is_a_guard():
    module = Of(lambda m, x: m.l(x) * 2 if x.shape[0] > 10 else m.l(x))
    small = capture(module, (torch.randn(3, 4),))
    assert small.accepts(((10, 4),)) and not small.accepts(((11, 4),))
    assert "aten::mul" in recapture(small, module, (torch.randn(11, 4),)).graph.text()


def test_images_get_free_heights_once_they_move():
    module = Of(lambda m, x: x.mean((1, 2, 3)))
    captured = capture(module, (torch.randn(2, 3, 8, 8),))
    assert not captured.accepts(((2, 3, 16, 8),))
    again = recapture(captured, module, (torch.randn(2, 3, 16, 8),))
    assert "args_0: f32[args_0_dim0, 3, args_0_dim2, 8]" in again.graph.text()
    assert again.accepts(((2, 3, 32, 8),))


def test_a_size_in_float_arithmetic_is_an_operand():
    captured = capture(Of(lambda m, x: m.l(x) / x.shape[0] ** 0.5), (torch.randn(4, 4),))
    assert captured.accepts(((9, 4),))


def test_a_size_in_float_arithmetic_that_an_op_wants_as_it_is_becomes_a_constant():
    def attention(m, x):
        q = m.l(x)[None]
        return torch.nn.functional.scaled_dot_product_attention(q, q, q, scale=x.shape[0] / 2)

    module = Of(attention)
    captured = capture(module, (torch.randn(4, 4),))
    assert "scale=2.0" in captured.graph.text() and not captured.accepts(((9, 4),))
    assert "scale=4.5" in recapture(captured, module, (torch.randn(9, 4),)).graph.text()


def test_one_tensor_for_two_arguments_stays_two_inputs():
    x = torch.randn(3, 4)
    captured = capture(Of(lambda m, x, y: m.l(x) - y), (x, x))
    assert [source.index for source in captured.sources if source.kind == "input"] == [0, 1]
    assert captured.graph.text().count(" input") == 2


def test_plain_values_are_part_of_the_schema():
    schema = [Call((torch.randn(2), flag), {}).schema() for flag in (True, 1, 1.0, "a", None)]
    assert len(set(schema)) == 5


# ---- traps


class Twice(torch.autograd.Function):
    """A backward on purpose unlike the derivative."""

    @staticmethod
    def forward(ctx, x, factor):
        ctx.save_for_backward(x)
        ctx.factor = factor
        return x * 2, factor

    @staticmethod
    def backward(ctx, gradient, _):
        return gradient * 100 * ctx.factor, None


def test_custom_functions_are_single_nodes():
    captured = capture(Of(lambda m, x: Twice.apply(m.l(x), 3.0)[0].sum()), (torch.randn(3, 4),))
    assert (
        "= test_capture.Twice(call=0) %linear" in captured.graph.text() or "test_capture.Twice" in captured.graph.text()
    )
    assert captured.functions[0].function is Twice and captured.functions[0].filled(["x"]) == ["x", 3.0]
    assert torch.autograd.Function.apply.__func__ is torch.autograd.Function.__dict__["apply"].__func__


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoint_is_inlined(reentrant):
    module = Of(lambda m, x: checkpoint(lambda y: torch.sin(m.l(y)), x, use_reentrant=reentrant))
    x = torch.randn(3, 4, requires_grad=True)  # without, a reentrant one gives the layer no gradient
    graph = text(module, x)
    assert graph.count("aten::sin") == 1 and "detach" not in graph
    assert capture(module, (x,)).checkpoints == 1
    assert capture(Of(lambda m, x: m.l(x)), (torch.randn(3, 4),)).checkpoints == 0


def refused(module, *args):
    with pytest.raises(UnsupportedError) as error:
        capture(module, args or (torch.randn(3, 4),))
    return str(error.value)


def test_backward_hooks_are_refused():
    module = Of(lambda m, x: m.l(x))
    module.l.register_full_backward_hook(lambda *_: None)
    assert "module 'l'" in refused(module)


@pytest.mark.parametrize("name", ["register_hook", "retain_grad"])
def test_tensor_hooks_in_forward_are_refused(name):
    def forward(m, x):
        y = m.l(x)
        y.register_hook(lambda g: g * 7) if name == "register_hook" else y.retain_grad()
        return y

    reason = refused(Of(forward))
    assert f"Tensor.{name}" in reason and "test_capture.py:" in reason
    torch.ones(1, requires_grad=True).mul(1).register_hook(lambda g: g)  # works again


@pytest.mark.parametrize(
    "draw", [random.random, lambda: numpy.random.rand(), lambda: numpy.random.default_rng().random()]
)
def test_python_and_numpy_random_numbers_are_refused_and_left_alone(draw):
    random.seed(1), numpy.random.seed(1)
    before = random.getstate(), numpy.random.get_state()[1].tolist()
    assert "random" in refused(Of(lambda m, x: m.l(x) * draw()))
    assert before == (random.getstate(), numpy.random.get_state()[1].tolist())


def test_python_counters_are_refused_and_left_alone():
    def forward(m, x):
        m.seen.append(1)
        m.calls += 1
        return m.l(x) * m.calls

    module = Of(forward)
    module.calls, module.seen = 0, []
    assert "'calls'" in refused(module)
    assert module.calls == 0 and module.seen == []


def test_an_activation_kept_on_the_module_is_an_output_and_not_left_there():
    def forward(m, x):
        m.l.kept = m.l(x)
        return m.l.kept * 2

    module = Of(forward)
    captured = capture(module, (torch.ones(2, 4),))
    assert [(write.path, write.name) for write in captured.exported.writes] == [("l", "kept")]
    assert len(captured.graph.outputs()) == 2 and not hasattr(module.l, "kept")


def test_data_dependent_branches_and_sizes_are_refused_with_the_line():
    branch = refused(Of(lambda m, x: m.l(x) if x.sum() > 0 else x))
    assert "test_capture.py:" in branch
    assert "without an upper bound" in refused(Of(lambda m, x: m.l(x) + torch.zeros(x.argmax().item(), 1).sum()))


def test_unknown_arguments_and_outputs_are_refused_by_type():
    class Thing:
        __slots__ = ()

    assert "Thing" in refused(Of(lambda m, x, t: m.l(x)), torch.randn(3, 4), Thing())
    assert "Thing" in refused(Of(lambda m, x: (m.l(x), Thing())))


def test_export_leaves_generators_as_they_were():
    module = Of(lambda m, x: torch.nn.functional.dropout(m.l(x)) + torch.rand(4))
    example, generators = torch.randn(3, 4), (random.getstate, lambda: numpy.random.get_state()[1].tolist())
    before = torch.get_rng_state(), [state() for state in generators]
    capture(module, (example,))
    assert torch.equal(torch.get_rng_state(), before[0]) and [state() for state in generators] == before[1]


def test_nothing_is_printed_by_a_failing_export(capfd):
    refused(Of(lambda m, x: m.l(x) if x.sum() > 0 else x))
    assert capfd.readouterr() == ("", "")


def test_buffers_assigned_in_submodules_are_outputs_to_be_put_there():
    class Inner(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("b", torch.zeros(4))

        def forward(self, x):
            self.b = self.b * 0.5 + x.mean(0)
            return x + self.b

    module = Of(lambda m, x: m.inner(m.l(x)), inner=Inner())
    before = module.inner.b
    graph = text(module, torch.randn(3, 4))
    assert "aten::copy_.default" not in graph and "return %add_1 output, %add output" in graph
    assert module.inner.b is before
