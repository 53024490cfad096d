"""Statistics and subscribers through the engine: the same files as in PyTorch, and the same training as without."""

import copy
import warnings

import pytest
import torch
import transformers as hf
import zoo

from lowtide.errors import FallbackWarning
from lowtide.ortmodule import ORTModule
from lowtide.utils import inspect_activation
from lowtide.utils.hooks import GlobalSubscriberManager, StatisticsSubscriber, SubscriberBase
from lowtide.utils.hooks.summary_file import Run


def bloom(dropout=0.0):
    config = hf.BloomConfig(
        vocab_size=99,
        hidden_size=32,
        n_layer=3,
        n_head=4,
        use_cache=False,
        hidden_dropout=dropout,
        attention_dropout=dropout,
    )
    torch.manual_seed(5)
    return hf.BloomForCausalLM(config).train()


def train(model, steps, optimizer_steps=True):
    """Losses and the last gradients."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    losses = []
    for step in range(steps):
        ids = torch.randint(0, 99, (2, 12), generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        torch.manual_seed(step)
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        losses.append(loss.detach())
        if optimizer_steps:
            optimizer.step()
    return losses, {name: parameter.grad for name, parameter in model.named_parameters()}


def run_with_statistics(model, folder, steps=5, **options):
    GlobalSubscriberManager.subscribe(model, [StatisticsSubscriber(folder, **options)])
    result = train(model, steps)
    GlobalSubscriberManager.unsubscribe()
    return result


@pytest.fixture(scope="module")
def bloom_runs(tmp_path_factory):
    """Runs of Bloom in eager, wrapped, and wrapped without statistics."""
    folder = tmp_path_factory.mktemp("bloom")
    run_with_statistics(bloom(), folder / "eager")
    with warnings.catch_warnings():
        warnings.simplefilter("error", FallbackWarning)
        model = ORTModule(bloom())
        found = run_with_statistics(model, folder / "engine")
        with_statistics = model.memory_report(), model.text("training"), model.explain()
        plain = ORTModule(bloom())
        expected = train(plain, 5)
    return Run(folder / "eager"), Run(folder / "engine"), found, expected, with_statistics, plain.memory_report()


def test_bloom_writes_the_same_files_in_the_same_order_in_eager_and_in_the_engine(bloom_runs):
    eager, engine, *_ = bloom_runs
    assert engine.steps() == eager.steps() == [0, 1, 2, 3, 4]
    for step in eager.steps():
        assert engine.order(step) == eager.order(step)
    names = eager.order(0)
    assert "BloomForCausalLM_0_0th_output_backward" in names
    assert (
        sum(name.startswith("BloomAttention") for name in names) == 3 * 4
    )  # its probabilities are read by nobody else


def test_bloom_has_the_same_statistics_in_eager_and_in_the_engine(bloom_runs):
    eager, engine, *_ = bloom_runs
    for step in (0, 4):
        for name in eager.order(step):
            first, second = eager.summary(step, name), engine.summary(step, name)
            assert (first.name, first.direction, first.depth) == (second.name, second.direction, second.depth)
            assert (first.shape, first.dtype, first.nan, first.inf) == (second.shape, second.dtype, 0, 0)
            scale = max(abs(first.min), abs(first.max))
            torch.testing.assert_close(
                torch.tensor([second.min, second.max, second.mean]),
                torch.tensor([first.min, first.max, first.mean]),
                rtol=1e-3,
                atol=1e-4 * scale + 1e-9,
            )


def test_statistics_change_no_bit_of_training(bloom_runs):
    _, _, (losses, gradients), (expected_losses, expected_gradients), *_ = bloom_runs
    assert all(torch.equal(a, b) for a, b in zip(losses, expected_losses, strict=True))
    different = [name for name in gradients if not torch.equal(gradients[name], expected_gradients[name])]
    assert not different


def test_statistics_are_native_nodes_of_the_graph_and_in_the_planned_peak(bloom_runs):
    *_, (memory, text, explanation), plain_memory = bloom_runs
    assert 'Inspect(name="BloomBlock_5_0th_output_forward", record=' in text
    assert 'Inspect(name="BloomBlock_5_0th_output_backward", record=' in text
    assert "0 python steps" in explanation
    assert memory["planned_peak_bytes"] > plain_memory["planned_peak_bytes"]


def test_a_recomputed_activation_is_counted_once(tmp_path, monkeypatch, bloom_runs):
    monkeypatch.setenv("ORTMODULE_MEMORY_OPT_LEVEL", "1")
    model = ORTModule(bloom())
    losses, _ = run_with_statistics(model, tmp_path / "out", steps=2)
    assert "recompute of: " in model.text("training")
    expected = bloom_runs[1]
    found = Run(tmp_path / "out")
    for step in (0, 1):
        assert found.order(step) == expected.order(step)
        for name in found.order(step):
            assert found.path(step, name).read_text() == expected.path(step, name).read_text()
    assert all(torch.equal(a, b) for a, b in zip(losses, bloom_runs[3][0][:2], strict=True))


# ---- a small model


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(6, 8)
        self.relu = torch.nn.ReLU(inplace=True)
        self.same = torch.nn.Identity()
        self.out = torch.nn.Linear(8, 3)
        self.aside = torch.nn.Linear(8, 2)

    def forward(self, x):
        h = self.relu(self.inner(x))
        h = h + self.same(h)
        if any(isinstance(subscriber, StatisticsSubscriber) for subscriber in GlobalSubscriberManager.active()):
            h = inspect_activation("mid/dle", h * 2)
        return self.out(h), self.aside(h), h.argmax(-1)


def step(model, seed=0):
    x = torch.randn(4, 6, generator=torch.Generator().manual_seed(seed))
    model.zero_grad()
    outputs = model(x)
    outputs[0].square().sum().backward()
    return outputs[0]


def test_each_value_has_the_files_that_pytorch_would_write(tmp_path):
    model = Net()
    wrapped = ORTModule(copy.deepcopy(model))
    # Subscribed before wrapping, and after.
    for name, module in (("eager", model), ("engine", wrapped)):
        GlobalSubscriberManager.subscribe(module, [StatisticsSubscriber(tmp_path / name, start_step=1, end_step=3)])
        for seed in range(4):
            step(module, seed)
    assert wrapped.fallback_reason is None
    eager, engine = Run(tmp_path / "eager"), Run(tmp_path / "engine")
    assert engine.steps() == eager.steps() == [1, 2]
    # The output that is not in the loss has no gradient, in the engine neither.
    assert "Linear_5_0th_output_backward" not in eager.order(1)
    for number in (1, 2):
        assert engine.order(number) == eager.order(number)
        for name in eager.order(number):
            first, second = eager.summary(number, name), engine.summary(number, name)
            assert (first.shape, first.dtype, first.depth) == (second.shape, second.dtype, second.depth)
            torch.testing.assert_close(torch.tensor(second.samples), torch.tensor(first.samples), rtol=1e-4, atol=1e-5)


def test_outside_of_its_steps_the_graph_holds_no_statistics(tmp_path):
    model = Net()
    GlobalSubscriberManager.subscribe(model, [StatisticsSubscriber(tmp_path / "out", start_step=1, end_step=2)])
    wrapped = ORTModule(model)
    texts = []
    for _ in range(3):
        step(wrapped)
        texts.append("Inspect(" in wrapped.text("training"))
    assert texts == [False, True, False]
    GlobalSubscriberManager.subscribe(wrapped, [StatisticsSubscriber(tmp_path / "again")])
    step(wrapped)
    assert "Inspect(" in wrapped.text("training")
    GlobalSubscriberManager.unsubscribe()
    step(wrapped)
    assert "Inspect(" not in wrapped.text("training")
    assert Run(tmp_path / "out").steps() == [1]
    assert Run(tmp_path / "again").steps() == [0]


def test_gradients_of_pending_steps_go_to_the_steps_of_their_forwards(tmp_path):
    wrapped = ORTModule(Net())
    GlobalSubscriberManager.subscribe(wrapped, [StatisticsSubscriber(tmp_path / "out")])
    first = wrapped(torch.ones(4, 6))[0].sum()
    second = wrapped(torch.ones(4, 6))[0].sum() * 3
    second.backward()
    first.backward()
    run = Run(tmp_path / "out")
    assert [run.summary(number, "Linear_4_0th_output_backward").max for number in (0, 1)] == [1, 3]


def test_inference_has_statistics_of_forward(tmp_path):
    wrapped = ORTModule(Net())
    GlobalSubscriberManager.subscribe(wrapped, [StatisticsSubscriber(tmp_path / "out")])
    with torch.no_grad():
        wrapped(torch.ones(4, 6))
    assert all(name.endswith("_forward") for name in Run(tmp_path / "out").order(0))
    assert wrapped.fallback_reason is None


class Double(SubscriberBase):
    def post_forward_tensor_apply_impl(self, run_rtx, module, tensor_idx, tensor):
        return tensor * 2 if isinstance(module, torch.nn.Linear) else tensor


def test_what_a_subscriber_does_with_tensors_becomes_a_part_of_the_graph():
    model = Net()
    GlobalSubscriberManager.subscribe(model, [Double()])
    expected = step(model)
    gradient = model.inner.weight.grad
    wrapped = ORTModule(model)
    torch.testing.assert_close(step(wrapped), expected)
    torch.testing.assert_close(model.inner.weight.grad, gradient)
    assert wrapped.fallback_reason is None


class Counter(SubscriberBase):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def post_forward_outmost_module_apply_impl(self, run_rtx, module, args, outputs):
        self.calls += 1
        return args, outputs


class Schedule(SubscriberBase):
    def post_forward_outmost_module_apply_impl(self, run_rtx, module, args, outputs):
        return args, (outputs[0] * run_rtx.global_states.execution_step, *outputs[1:])


@pytest.mark.parametrize(
    ("subscriber", "reason"),
    [
        (Counter(), "the subscriber Counter changes its attribute 'calls'"),
        (Schedule(), "a subscriber reads the step"),
    ],
)
def test_a_subscriber_that_no_graph_can_hold_runs_in_pytorch_with_the_reason(subscriber, reason):
    wrapped = ORTModule(Net())
    GlobalSubscriberManager.subscribe(wrapped, [subscriber])
    with pytest.warns(FallbackWarning, match=reason):
        for _ in range(3):
            result = step(wrapped)
    if isinstance(subscriber, Counter):
        assert subscriber.calls == 3
    else:
        assert torch.equal(result, 2 * Net.forward(wrapped.module, torch.zeros(4, 6))[0]) or result.abs().sum() > 0


class HandsOn(torch.nn.Module):
    """Returns what a child made: itself, or a view of all of it."""

    def __init__(self, child, how):
        super().__init__()
        self.child, self.how = child, how

    def forward(self, x):
        return self.how(self.child(x))


def test_gradients_of_what_modules_hand_on_are_written_in_pytorchs_order(tmp_path):
    def run(folder, wrap):
        torch.manual_seed(0)
        itself = HandsOn(torch.nn.Linear(4, 4), lambda y: y)
        view = HandsOn(itself, lambda y: y.view(3, 4))
        dropout = HandsOn(HandsOn(view, torch.nn.Dropout(0.0)), lambda y: y.to(torch.float32).contiguous())
        model = wrap(torch.nn.Sequential(dropout, HandsOn(torch.nn.Tanh(), lambda y: y.reshape(3, 4))))
        GlobalSubscriberManager.subscribe(model, [StatisticsSubscriber(folder)])
        model(torch.randn(3, 4)).sum().backward()
        GlobalSubscriberManager.unsubscribe()
        return Run(folder).order(0)

    expected, found = run(tmp_path / "eager", lambda model: model), run(tmp_path / "engine", ORTModule)
    assert found == expected and sum(name.endswith("_backward") for name in found) == 9


class FlatAttention(torch.nn.Module):
    """Attention written out in three dims, with heads along the batch, and its probabilities inspected."""

    def __init__(self):
        super().__init__()
        self.qkv = torch.nn.Linear(8, 24)

    def forward(self, x, mask):
        batch, length, _ = x.shape
        heads = [
            part.view(batch, length, 2, 4).transpose(1, 2).reshape(batch * 2, length, 4)
            for part in self.qkv(x).chunk(3, -1)
        ]
        scores = torch.bmm(heads[0], heads[1].transpose(1, 2)).view(batch, 2, length, length) + mask
        probabilities = scores.view(batch * 2, length, length).softmax(-1)
        return torch.bmm(inspect_activation("probabilities", probabilities), heads[2]).tanh()


def test_probabilities_inside_of_attention_in_three_dims_have_their_gradient(tmp_path):
    def run(folder, wrap):
        torch.manual_seed(0)
        model = wrap(FlatAttention())
        GlobalSubscriberManager.subscribe(model, [StatisticsSubscriber(folder)])
        model(torch.randn(2, 5, 8), torch.randn(2, 1, 5, 5)).square().sum().backward()
        GlobalSubscriberManager.unsubscribe()
        return model, Run(folder)

    _, eager = run(tmp_path / "eager", lambda model: model)
    wrapped, engine = run(tmp_path / "engine", ORTModule)
    assert "Attention(" in wrapped.text("training")
    assert engine.order(0) == eager.order(0)
    assert "probabilities_backward" in eager.order(0)
    for name in eager.order(0):
        first, second = eager.summary(0, name), engine.summary(0, name)
        assert first.shape == second.shape
        torch.testing.assert_close(torch.tensor(second.samples), torch.tensor(first.samples), rtol=1e-4, atol=1e-6)


@pytest.mark.long
@pytest.mark.parametrize("name", ["gpt2", "bert", "resnet", "t5", "llama", "vit"])
def test_any_model_has_eagers_files_and_the_bits_that_it_has_without_statistics(name, tmp_path):
    def gradients(folder, wrap):
        model, make_batch = zoo.build(name)
        model = wrap(model)
        if folder:
            GlobalSubscriberManager.subscribe(model, [StatisticsSubscriber(folder)])
        torch.manual_seed(1)
        model(**make_batch()).loss.backward()
        GlobalSubscriberManager.unsubscribe()
        return {name: parameter.grad for name, parameter in model.named_parameters()}

    gradients(tmp_path / "eager", lambda model: model)
    with warnings.catch_warnings():
        warnings.simplefilter("error", FallbackWarning)
        expected, found = gradients(None, ORTModule), gradients(tmp_path / "engine", ORTModule)
    assert [key for key in expected if expected[key] is not None and not torch.equal(found[key], expected[key])] == []
    assert Run(tmp_path / "engine").order(0) == Run(tmp_path / "eager").order(0)


def test_runs_are_equal_byte_for_byte_with_deterministic_algorithms(tmp_path):
    torch.use_deterministic_algorithms(True)
    try:
        for name in ("first", "second"):
            torch.manual_seed(0)
            run_with_statistics(ORTModule(bloom(dropout=0.1)), tmp_path / name, steps=2)
    finally:
        torch.use_deterministic_algorithms(False)
    first, second = Run(tmp_path / "first"), Run(tmp_path / "second")
    for step in (0, 1):
        assert first.order(step) == second.order(step)
        for name in first.order(step):
            assert first.path(step, name).read_bytes() == second.path(step, name).read_bytes()
