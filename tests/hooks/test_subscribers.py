"""Subscribers around plain PyTorch modules."""

import copy

import pytest
import torch

from lowtide.utils.hooks import GlobalSubscriberManager, StatisticsSubscriber, SubscriberBase


class Two(torch.nn.Module):
    """Its child gives two tensors in a dict, and one module serves twice."""

    def __init__(self):
        super().__init__()
        self.block = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh())
        self.act = self.block[1]
        self.head = torch.nn.Linear(4, 2)

    def forward(self, x, scale=1.0):
        return {"y": self.head(self.act(self.block(x))) * scale, "x": x}


class Recorder(SubscriberBase):
    def __init__(self, **steps):
        super().__init__(**steps)
        self.calls = []

    def _note(self, what, run_rtx, module):
        number = run_rtx.global_states.module_to_module_index[module]
        self.calls.append((run_rtx.global_states.execution_step, what, number))

    def pre_forward_outmost_module_apply_impl(self, run_rtx, module, args, kwargs):
        self._note("outmost pre", run_rtx, module)
        return args, kwargs

    def pre_forward_module_apply_impl(self, run_rtx, module, args, kwargs):
        self._note("pre", run_rtx, module)
        return args, kwargs

    def post_forward_module_apply_impl(self, run_rtx, module, args, outputs):
        self._note("post", run_rtx, module)
        return args, outputs

    def post_forward_outmost_module_apply_impl(self, run_rtx, module, args, outputs):
        self._note("outmost post", run_rtx, module)
        return args, outputs


def test_hooks_run_around_each_module_in_their_steps_until_unsubscribed():
    model, recorder = Two(), Recorder(start_step=1, end_step=2)
    GlobalSubscriberManager.subscribe(model, [recorder])
    states = GlobalSubscriberManager.get_run_context().global_states
    # Depth first; the Tanh has two parents and one number.
    assert [states.module_to_module_index[m] for m in (model, model.block, model.block[0], model.act, model.head)] == [
        0,
        1,
        2,
        3,
        4,
    ]
    assert states.module_index_to_depth == {0: 1, 1: 2, 2: 3, 3: 3, 4: 2}
    for _ in range(3):
        model(torch.ones(1, 4))
    whats = [(what, number) for step, what, number in recorder.calls]
    assert {step for step, _, _ in recorder.calls} == {1}
    assert whats == [
        ("outmost pre", 0),
        ("pre", 0),
        ("pre", 1),
        ("pre", 2),
        ("post", 2),
        ("pre", 3),
        ("post", 3),
        ("post", 1),
        ("pre", 3),
        ("post", 3),
        ("pre", 4),
        ("post", 4),
        ("post", 0),
        ("outmost post", 0),
    ]
    assert GlobalSubscriberManager.get_subscriber(Recorder) is recorder
    GlobalSubscriberManager.unsubscribe()
    assert all(not child._forward_hooks and not child._forward_pre_hooks for child in model.modules())
    with pytest.raises(RuntimeError, match="no Recorder is subscribed"):
        GlobalSubscriberManager.get_subscriber(Recorder)


def test_subscribing_again_takes_the_first_hooks_away_and_starts_at_step_0():
    first, second = Recorder(), Recorder()
    one, other = Two(), Two()
    GlobalSubscriberManager.subscribe(one, [first])
    one(torch.ones(1, 4))
    GlobalSubscriberManager.subscribe(other, [second])
    calls = len(first.calls)
    one(torch.ones(1, 4))
    other(torch.ones(1, 4))
    assert len(first.calls) == calls
    assert {step for step, _, _ in second.calls} == {0}


class Change(SubscriberBase):
    """Adds 1 to each tensor that enters or leaves a Linear, and 10 to the model's kwarg."""

    def pre_forward_tensor_apply_impl(self, run_rtx, module, tensor_idx, tensor):
        return tensor + 1 if isinstance(module, torch.nn.Linear) else tensor

    def post_forward_tensor_apply_impl(self, run_rtx, module, tensor_idx, tensor):
        return tensor + 1 if isinstance(module, torch.nn.Linear) else tensor

    def pre_forward_outmost_module_apply_impl(self, run_rtx, module, args, kwargs):
        return args, {name: value + 10 for name, value in kwargs.items()}


def test_what_a_subscriber_returns_takes_the_place_of_what_it_was_given():
    model = Two()
    x = torch.randn(3, 4)
    expected = (model.head(model.act(model.act(model.block[0](x + 1) + 1)) + 1) + 1) * 12
    GlobalSubscriberManager.subscribe(model, [Change()])
    result = model(x, scale=2)
    assert torch.equal(result["y"], expected)
    assert result["x"] is x


def test_a_copy_of_a_subscribed_model_is_numbered_anew():
    model, recorder = Two(), Recorder()
    GlobalSubscriberManager.subscribe(model, [recorder])
    twin = copy.deepcopy(model)
    with pytest.warns(UserWarning, match="copied after the subscription"):
        twin(torch.ones(1, 4))
    assert [number for _, what, number in recorder.calls if what == "pre"] == [0, 1, 2, 3, 3, 4]
    GlobalSubscriberManager.unsubscribe()
    calls = len(recorder.calls)
    twin(torch.ones(1, 4))
    assert len(recorder.calls) == calls


@pytest.mark.parametrize(
    ("module", "subscribers", "error", "message"),
    [
        (object(), [Recorder()], ValueError, "expected a torch.nn.Module, found a object"),
        (torch.nn.Identity(), [print], ValueError, "found a builtin_function_or_method"),
        (torch.nn.Identity(), [], RuntimeError, "at least one subscriber"),
    ],
)
def test_a_wrong_subscription_is_refused(module, subscribers, error, message):
    with pytest.raises(error, match=message):
        GlobalSubscriberManager.subscribe(module, subscribers)


@pytest.mark.parametrize(("start", "end"), [(3, 3), (5, 2), (-1, 4), (0, 0), (1.5, 2)])
def test_a_range_without_steps_is_refused(start, end, tmp_path):
    with pytest.raises(ValueError, match=r"start_step"):
        StatisticsSubscriber(tmp_path / "out", start_step=start, end_step=end)
    assert not (tmp_path / "out").exists()
