"""When a graph is exported or processed anew: the reason in words, the counts, and results that stay right."""

import logging
import re
from pathlib import Path

import pytest
import torch
from modules import Of, check, step, x
from torch.nn.utils import parametrize

from lowtide.errors import FallbackWarning, InvalidArgument
from lowtide.ortmodule import DebugOptions, LogLevel, ORTModule
from lowtide.ortmodule.transitions import TRANSITIONS, Action

DOCUMENT = Path(__file__).parents[2] / "docs" / "transitions.md"


class Watched:
    """An ORTModule with what it logged about transitions since it was last asked."""

    def __init__(self, module, caplog):
        caplog.set_level(logging.INFO, "lowtide")
        self.module, self.caplog = module, caplog
        self.wrapped = ORTModule(module, DebugOptions(log_level=LogLevel.INFO))

    def reasons(self):
        texts = [record.getMessage() for record in self.caplog.records]
        self.caplog.clear()
        actions = "|".join(action.value for action in Action)
        found = [re.match(rf"\w+, in [^:]*: ((?:{actions}): .*)", text, re.DOTALL) for text in texts]
        return [match[1] for match in found if match]

    def call(self, *args, **kwargs):
        """The reasons of a call, whose result is PyTorch's."""
        torch.testing.assert_close(self.wrapped(*args, **kwargs), self.module(*args, **kwargs))
        assert self.wrapped.fallback_reason is None
        return self.reasons()


def exports(wrapped):
    return sum(
        count
        for counts in wrapped.transition_counts().values()
        for trigger, count in counts.items()
        if TRANSITIONS[trigger].action is Action.EXPORT
    )


def test_the_document_has_the_table_of_the_code():
    rows = re.findall(r"^\| (.+) \| (.+) \| (.+) \| (.+) \|$", DOCUMENT.read_text(), re.MULTILINE)
    documented = {row[0]: row for row in rows if row[0] in TRANSITIONS}
    assert documented == {t.trigger: (t.trigger, t.action.value, t.when, t.example) for t in TRANSITIONS.values()}


# ---- arguments


def test_reasons_about_arguments(caplog):
    watched = Watched(Of(lambda m, a, mask=None, k=1: m.l(a) * k + (0 if mask is None else mask)), caplog)
    mask = torch.ones(3, 4, dtype=torch.int64)
    assert watched.call(x()) == ["re-export: the first call in training mode"]
    assert watched.call(x(), mask=None) == ["re-export: argument `mask` came, it is None"]
    assert watched.call(x(), mask=mask) == ["re-export: argument `mask` was None, is now i64[3, 4]"]
    assert watched.call(x(), mask=mask.float()) == ["re-export: argument `mask` was i64[3, 4], is now f32[3, 4]"]
    assert watched.call(x(), mask=mask[0]) == ["re-export: argument `mask` was f32[3, 4], is now i64[4]"]
    assert watched.call(x(), mask=None, k=2) == ["re-export: argument `mask` was i64[4], is now None"]
    assert exports(watched.wrapped) == 6
    # All of them again, in another order, with other sizes: nothing is new.
    for _ in range(2):
        for batch in (3, 5):
            a, ones = x(batch, 4), torch.ones(batch, 4, dtype=torch.int64)
            assert watched.call(a, mask=None, k=2) == []
            assert watched.call(a, mask=ones) == watched.call(a) == watched.call(a, mask=None) == []
            assert watched.call(a, mask=ones[0]) == watched.call(a, mask=ones.float()) == []
    assert watched.wrapped.transition_counts() == {"in training mode": {"first call": 1, "argument": 5}}


def test_sizes_that_the_model_asks_about_and_surroundings(caplog):
    watched = Watched(Of(lambda m, a: m.l(a) * 2 if a.shape[0] == 1 else m.l(a)), caplog)
    watched.call(x())
    (reason,) = watched.call(x(1, 4))
    assert reason.startswith("re-export: sizes: ") and "args_0 [1, 4]" in reason
    with torch.autocast("cpu", torch.bfloat16):
        assert watched.call(x()) == ["re-export: autocast around the call was off, is now bfloat16"]
    assert watched.call(x()) == watched.call(x(1, 4)) == []


# ---- the module


class Inner(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(4, 4)
        self.norm = torch.nn.BatchNorm1d(4)
        self.register_buffer("mean", torch.zeros(4))
        self.scale = 1.0
        self._shift = 0.0
        self.weights = [1.0, 2.0]
        self.config = Config()
        self.act = torch.tanh
        self.steps = 0

    def forward(self, a):
        y = self.norm(self.fc(a)) * self.scale + self._shift + self.mean.sum()
        return self.act(y) * self.weights[0] * (2 if self.config.double else 1)


class Config:
    def __init__(self):
        self.double, self.unread = False, 0


def hook(module, args, output):
    return output * 2


CHANGES = {
    "a plain attribute": (
        lambda m: setattr(m.encoder, "scale", 2.0),
        "`self.encoder.scale` was 1.0, is now 2.0: a number from now on",
    ),
    "a private attribute": (
        lambda m: setattr(m.encoder, "_shift", 3.0),
        "`self.encoder._shift` was 0.0, is now 3.0: a number from now on",
    ),
    "an element of a list": (
        lambda m: m.encoder.weights.__setitem__(0, 5.0),
        "`self.encoder.weights[0]` was 1.0, is now 5.0: a number from now on",
    ),
    "a config": (
        lambda m: setattr(m.encoder.config, "double", True),
        "attribute `double` of a Config was False, is now True",
    ),
    "a function": (lambda m: setattr(m.encoder, "act", torch.sin), "attribute `act` of module 'encoder' was replaced"),
    "a frozen batch norm": (
        lambda m: m.encoder.norm.eval(),
        "attribute `training` of module 'encoder.norm' was True, is now False",
    ),
    "a submodule": (lambda m: setattr(m.encoder, "fc", torch.nn.Linear(4, 4)), "submodule 'encoder.fc' was replaced"),
    "a forward hook": (
        lambda m: m.encoder.fc.register_forward_hook(hook),
        "a forward hook of module 'encoder.fc' came",
    ),
    "strides of a parameter": (
        lambda m: setattr(m.encoder.fc.weight, "data", m.encoder.fc.weight.data.t().contiguous().t()),
        "parameter 'encoder.fc.weight' has other strides",
    ),
    "a buffer of another kind": (
        lambda m: setattr(m.encoder, "mean", torch.zeros(5)),
        "buffer 'encoder.mean' was f32[4], is now f32[5]",
    ),
    "a parameter for none": (
        lambda m: setattr(m.encoder.fc, "bias", None),
        "parameter 'encoder.fc.bias' was f32[4], is now None",
    ),
    "tied parameters": (
        lambda m: setattr(m.l, "weight", m.encoder.fc.weight),
        "other names than before share one parameter or buffer",
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_changes_of_the_module_are_seen(name, caplog):
    change, reason = CHANGES[name]
    module = Of(lambda m, a: m.l(m.encoder(a)), encoder=Inner())
    wrapped = Watched(module, caplog)
    wrapped.wrapped(x(6, 4)).sum().backward()
    wrapped.reasons()
    change(module)
    ours, theirs = wrapped.wrapped(x(6, 4)), module(x(6, 4))
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    assert wrapped.wrapped.fallback_reason is None
    assert wrapped.reasons() == [f"re-export: {reason}"]


def test_what_changes_nothing(caplog):
    module = Of(lambda m, a: m.l(m.encoder(a)), encoder=Inner().eval())
    watched = Watched(module, caplog)
    watched.call(x(6, 4))
    for change in (
        lambda: setattr(module.encoder, "steps", 1),
        lambda: setattr(module.encoder.config, "unread", 1),
        lambda: setattr(module.encoder.fc, "weight", torch.nn.Parameter(torch.randn(4, 4))),
        lambda: setattr(module.encoder, "mean", torch.ones(4)),
        lambda: setattr(module.l.weight, "data", torch.randn(4, 4)),
        lambda: module.l.bias.data.fill_(3),
        lambda: setattr(module.encoder, "weights", [1.0, 2.0]),
    ):
        change()
        assert watched.call(x(6, 4)) == []
    expected = step(module, (x(6, 4),))
    found = step(watched.wrapped, (x(6, 4),))
    torch.testing.assert_close(found[1], expected[1], rtol=1e-4, atol=1e-5)


def test_attributes_that_come_and_go(caplog):
    watched = Watched(Of(lambda m, a: m.l(a) * getattr(m, "late", 1)), caplog)
    watched.call(x())
    watched.module.late = 5
    assert watched.call(x()) == ["re-export: attribute `late` of the module came, it is 5"]
    del watched.module.late
    assert watched.call(x()) == []  # the first graph fits again


def test_a_parametrization_that_comes_is_seen(caplog):
    watched = Watched(Of(lambda m, a: m.l(a)), caplog)
    watched.call(x())
    parametrize.register_parametrization(watched.module.l, "weight", torch.nn.Softplus())
    assert len(watched.call(x())) == 1


# ---- gradients


def test_requires_grad_flips_process_the_graph_anew_and_alternate(caplog):
    module = Of(lambda m, a: torch.tanh(m.other(m.l(a))), other=torch.nn.Linear(4, 4))
    watched = Watched(module, caplog)

    def compare(*args):
        expected, found = step(module, args), step(watched.wrapped, args)
        assert {n: g is None for n, g in found[1].items()} == {n: g is None for n, g in expected[1].items()}
        torch.testing.assert_close(found, expected)
        return watched.reasons()

    compare(x())
    module.l.weight.requires_grad_(False)
    assert compare(x()) == ["re-post-process: param 'l.weight' required a gradient, does no longer"]
    assert compare(x(grad=True)) == ["re-post-process: argument `args_0` required no gradient, does now"]
    for _ in range(2):
        module.l.weight.requires_grad_(True)
        assert compare(x()) == []
        module.l.weight.requires_grad_(False)
        assert compare(x()) == compare(x(grad=True)) == []
    assert watched.wrapped.transition_counts() == {"in training mode": {"first call": 1, "requires_grad": 2}}


def test_one_parameter_is_frozen_while_another_thaws(caplog):
    module = Of(lambda m, a: torch.tanh(m.other(m.l(a))), other=torch.nn.Linear(4, 4))
    watched = Watched(module, caplog)
    for turn in range(6):
        for parameter in module.l.parameters():
            parameter.requires_grad_(turn % 2 == 0)
        for parameter in module.other.parameters():
            parameter.requires_grad_(turn % 3 != 1)
        expected, found = step(module, (x(grad=True),)), step(watched.wrapped, (x(grad=True),))
        assert {n: g is None for n, g in found[1].items()} == {n: g is None for n, g in expected[1].items()}
        torch.testing.assert_close(found, expected)
    assert watched.wrapped.fallback_reason is None
    # Four combinations: one comes with the export, and two return.
    assert watched.wrapped.transition_counts()["in training mode"] == {"first call": 1, "requires_grad": 3}


def test_what_gets_into_a_table_by_no_method_of_pytorchs_is_found(caplog):
    class Layer(torch.nn.Module):
        def forward(self, a):
            return torch.tanh(a) * sum(1 for _ in self.parameters())

    module = Of(lambda m, a: m.act(m.l(a)), act=Layer())
    watched = Watched(module, caplog)
    watched.call(x())
    for table, value in [
        (module.act._parameters, torch.nn.Parameter(torch.ones(2))),
        (module.act._modules, torch.nn.Tanh()),
    ]:
        table["0"] = value
        assert len(watched.call(x())) == 1
        assert watched.call(x()) == []
        table.clear()
        watched.call(x())


def test_what_gets_into_a_hook_table_without_a_handle_is_found_some_calls_later():
    module = Of(lambda m, a: m.l(a))
    wrapped = ORTModule(module)
    plain = wrapped(x())
    module.l._forward_hooks[0] = hook
    outputs = [wrapped(x()) for _ in range(4)]
    torch.testing.assert_close(outputs[-1], plain * 2)
    module.l._forward_hooks.clear()
    torch.testing.assert_close(wrapped(x()), plain)


def test_an_attribute_comes_while_another_goes(caplog):
    module = Of(lambda m, a: m.l(a) * getattr(m, "factor", 1))
    module.other = 1
    watched = Watched(module, caplog)
    watched.call(x())
    attributes = vars(module)
    del attributes["other"]
    attributes["factor"] = 3
    assert watched.call(x()) == ["re-export: attribute `factor` of the module came, it is 3"]


def test_tensors_that_become_others_within_their_objects(caplog):
    watched = Watched(Of(lambda m, a: m.l(a.to(m.l.weight.dtype))), caplog)
    watched.call(x())
    module = watched.module
    module.l.weight.data, module.l.bias.data = torch.randn(4, 4), torch.randn(4)
    assert watched.call(x()) == []
    module.l.weight.data = torch.randn(4, 8)[:, ::2]
    assert watched.call(x()) == ["re-export: parameter 'l.weight' has other strides"]
    for parameter in module.l.parameters():
        torch.utils.swap_tensors(parameter, torch.nn.Parameter(parameter.detach().double().contiguous()))
    assert watched.call(x()) == ["re-export: parameter 'l.weight' was f32[4, 4], is now f64[4, 4]"]


def test_code_that_asks_for_requires_grad_is_exported_again(caplog):
    watched = Watched(Of(lambda m, a: m.l(a) * (2 if m.l.weight.requires_grad else 3)), caplog)
    watched.call(x())
    watched.module.l.weight.requires_grad_(False)
    reason = "re-export: param 'l.weight' required a gradient, does no longer, and forward asks for requires_grad"
    assert watched.call(x()) == [reason]
    watched.module.l.weight.requires_grad_(True)
    assert watched.call(x()) == []


def test_unused_parameters_may_change_their_minds(caplog):
    watched = Watched(Of(lambda m, a: m.l(a), unused=torch.nn.Linear(4, 4)), caplog)
    watched.call(x())
    watched.module.unused.weight.requires_grad_(False)
    assert watched.call(x()) == []


def test_modes_are_training_and_gradients(caplog):
    module = Of(lambda m, a: m.d(m.l(a)), d=torch.nn.Dropout(0.5))
    wrapped = ORTModule(module)
    for mode in (True, False, True, False):
        wrapped.train(mode)
        for enabled in (True, False):
            with torch.set_grad_enabled(enabled):
                assert wrapped(x()).requires_grad == enabled
    modes = ["in training mode", "in training mode, without gradients"]
    modes += [mode.replace("training", "evaluation") for mode in modes]
    assert wrapped.transition_counts() == {mode: {"first call": 1} for mode in modes}
    check(module.eval(), x())


# ---- limits


def test_new_kinds_of_calls_run_in_pytorch_after_eight_exports_and_known_ones_do_not():
    module = Of(lambda m, a, k: sum(m.l(a) for _ in range(k)))
    wrapped = ORTModule(module)
    with pytest.warns(FallbackWarning) as caught:
        for k in range(1, 13):
            torch.testing.assert_close(wrapped(x(), k), module(x(), k))
            assert (wrapped.fallback_reason is None) == (k < 9)
    assert len(caught) == 1 and "8 graphs were exported in training mode, the most that" in str(caught[0].message)
    assert "the value of `args_1` is part of each graph" in str(caught[0].message)
    for k in range(1, 9):
        wrapped(x(5, 4), k).sum().backward()
        assert wrapped.fallback_reason is None
    counts = {"first call": 1, "number": 1, "constant": 1, "argument": 7, "limit": 4}
    assert wrapped.transition_counts() == {"in training mode": counts}


def test_a_refused_kind_of_call_is_not_tried_again():
    module = Of(lambda m, a, k: m.l(a) if k or a.sum() > 1e9 else m.l(a).sum())
    wrapped = ORTModule(module)
    with pytest.warns(FallbackWarning):
        for _ in range(3):
            wrapped(x(), 0)
            assert wrapped.fallback_reason is not None
            wrapped(x(), 1)
            assert wrapped.fallback_reason is None
    assert wrapped.transition_counts() == {"in training mode": {"first call": 2, "refused": 1}}


def test_a_refusal_for_the_same_reason_is_no_third_try():
    """State that each call changes gives a refusal's guards up each time."""

    def forward(m, a):
        m.calls = 2 * m.calls + 1
        return m.l(a).sum() if a.sum() > -1e9 else a

    module = Of(forward)
    module.calls = 0
    wrapped = ORTModule(module)
    with pytest.warns(FallbackWarning):
        for _ in range(4):
            wrapped(x())
    assert wrapped.transition_counts() == {"in training mode": {"first call": 2, "refused": 2}}


def test_partitioned_parameters_without_a_part_are_refused_before_any_try():
    """As another DeepSpeed might leave them: hooks fill them, which no export can run."""
    module = Of(lambda m, a: m.l(a))

    def gather(child, args):
        for parameter in child.parameters(recurse=False):
            parameter.data, parameter.ds_status = parameter.ds_full, "available"

    def release(child, args, output):
        for parameter in child.parameters(recurse=False):
            parameter.data, parameter.ds_status = torch.empty(0), "not available"

    for parameter in module.l.parameters():
        parameter.ds_full, parameter.ds_shape = parameter.data.clone(), parameter.shape
        parameter.data = torch.empty(0)
    module.l.register_forward_pre_hook(gather)
    module.l.register_forward_hook(release)
    wrapped = ORTModule(module)
    with pytest.warns(FallbackWarning, match=r"shape \[4, 4\] is partitioned by DeepSpeed.*has no ds_tensor"):
        for _ in range(3):
            assert wrapped(x()).shape == module(x()).shape
    assert wrapped.transition_counts() == {}


@pytest.mark.parametrize("by_name", [False, True])
def test_the_order_of_a_dicts_keys_is_forwards_to_read(by_name):
    module = Of(lambda m, batch: m.l(torch.cat([value * k for k, value in enumerate(batch.values(), 1)])))
    wrapped = ORTModule(module)
    one = {"a": x(), "b": -x()}
    for batch in (one, dict(reversed(one.items())), one):
        args, kwargs = ((), {"batch": batch}) if by_name else ((batch,), {})
        torch.testing.assert_close(wrapped(*args, **kwargs), module(*args, **kwargs))
        assert wrapped.fallback_reason is None
    assert exports(wrapped) == 2


def test_the_order_of_keyword_arguments_needs_no_export():
    module = torch.nn.Bilinear(4, 4, 2)
    wrapped = ORTModule(module)
    for kwargs in ({"input1": x(), "input2": -x()}, {"input2": -x(), "input1": x()}):
        torch.testing.assert_close(wrapped(**kwargs), module(**kwargs))
    assert exports(wrapped) == 1


# ---- the manager's own interface


def test_the_processed_model_constructs_inputs_and_restores_outputs(monkeypatch):
    monkeypatch.setenv("ORTMODULE_SKIPCHECK_POLICY", "SKIP_CHECK_BUILD_GRADIENT|SKIP_CHECK_EXECUTION_AGENT")
    module = Of(lambda m, a, b=None: {"out": m.l(a) + m.mean, "size": a.shape[0]})
    module.register_buffer("mean", torch.zeros(4))
    wrapper = ORTModule(module)
    manager = wrapper._training_manager._graph_transition_manager
    changed, info = manager.use_cache_or_reconstruct_post_processed_model((x(grad=True),), {"b": None})
    assert changed
    changed, again = manager.use_cache_or_reconstruct_post_processed_model((x(5, 4, grad=True),), {"b": None})
    assert not changed and again is info
    assert info.onnx_graph_input_names_user_defined == ["args_0"]
    assert set(info.onnx_graph_input_names) == {"args_0", "l.weight", "l.bias", "mean"}
    assert set(info.onnx_graph_input_names_require_grad) == {"args_0", "l.weight", "l.bias"}
    assert info.onnx_graph_input_names_require_grad_user_defined == ["args_0"]
    assert info.onnx_graph_input_dynamic_axes_map == {"args_0": {0: "args_0_dim0"}}
    assert list(info.buffer_for_ort_runs) == [name for name in info.onnx_graph_input_names if name != "args_0"]
    assert info.buffer_for_ort_runs["l.weight"] is module.l.weight
    a = x(5, 4, grad=True)
    inputs = info.construct_inputs((a,), {"b": None})
    by_name = dict(zip(info.onnx_graph_input_names, inputs, strict=True))
    assert by_name["args_0"] is a and by_name["mean"] is module.mean
    accessors = dict(zip(info.onnx_graph_input_names, info.data_accessor, strict=True))
    assert accessors["args_0"]((a,), {}) is a and accessors["mean"] is None
    assert info.restore_outputs([a])["out"] is a and info.restore_outputs([a])["size"] == 5
    model = info._post_export_processed_model
    assert {value.name for value in model.graph.input} == set(info.onnx_graph_input_names)
    assert "Gemm" in {node.op_type for node in model.graph.node} and model is info._post_export_processed_model
    with pytest.raises(InvalidArgument, match="another graph"):
        info.construct_inputs((a.double(),), {"b": None})
