"""What StatisticsSubscriber and inspect_activation write for modules in PyTorch."""

import math
import os

import numpy
import pytest
import torch

from lowtide.utils import inspect_activation
from lowtide.utils.hooks import GlobalSubscriberManager, StatisticsSubscriber
from lowtide.utils.hooks.measure import measure
from lowtide.utils.hooks.summary_file import Run, format_summary, parse_summary

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
INTEGERS = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64)


def values(dtype, shape):
    if dtype in FLOATS:
        # A mean far from 0, as sums of squares dislike it, and more than float16 could sum up.
        return (torch.randn(shape, dtype=torch.float64) * 3 + 100).to(dtype)
    if dtype is torch.bool:
        return torch.rand(shape) > 0.3
    return torch.randint(torch.iinfo(dtype).min // 2, torch.iinfo(dtype).max // 2, shape).to(dtype)


def check_against_numpy(found, tensor):
    array = tensor.to(torch.float64).numpy().reshape(-1)
    assert (found.shape, found.size) == (tuple(tensor.shape), array.size)
    assert found.dtype == str(tensor.dtype).removeprefix("torch.")
    counts = found.nan, found.inf, found.negative, found.positive, found.zero
    assert counts == (
        numpy.isnan(array).sum(),
        numpy.isinf(array).sum(),
        (array < 0).sum(),
        (array > 0).sum(),
        (array == 0).sum(),
    )
    if array.size == 0:
        assert all(math.isnan(value) for value in (found.min, found.max, found.mean, found.std))
        return
    with numpy.errstate(all="ignore"):
        expected = array.min(), array.max(), array.mean(), array.std(ddof=1) if array.size > 1 else math.nan
    numpy.testing.assert_allclose((found.min, found.max, found.mean, found.std), expected, rtol=1e-6)
    numpy.testing.assert_allclose(found.samples, array[:128], rtol=5e-6)


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS, torch.bool])
@pytest.mark.parametrize("shape", [(3, 5, 700), (70001,), (1,), (), (0, 4)])
def test_statistics_are_numpys(dtype, shape):
    tensor = values(dtype, shape)
    check_against_numpy(parse_summary(format_summary(measure(tensor))), tensor)


@pytest.mark.parametrize("bucket_size", [1, 7, 1000])
def test_buckets_do_not_change_statistics(bucket_size):
    tensor = values(torch.float32, (17, 100))
    check_against_numpy(measure(tensor, bucket_size=bucket_size), tensor)


def test_tensors_with_gaps_and_repetitions_are_read_in_their_order():
    base = values(torch.float32, (40, 30, 20))
    for tensor in (base.transpose(0, 2), base[::3, 1:, ::2], base[0, 0].expand(9, 20), base[:, :1]):
        check_against_numpy(measure(tensor), tensor)


@pytest.mark.parametrize("special", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", FLOATS)
def test_nan_and_infinity_are_counted_and_shown(special, dtype):
    tensor = values(dtype, (30000,))
    tensor[::7] = special
    check_against_numpy(parse_summary(format_summary(measure(tensor))), tensor)


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(6, 8)
        self.relu = torch.nn.ReLU(inplace=True)
        self.out = torch.nn.Linear(8, 3)
        self.unused = torch.nn.Linear(2, 2)

    def forward(self, x):
        h = self.relu(self.inner(x))
        h = inspect_activation("mid/dle", h * 2)
        return self.out(h), h.argmax(-1)


ORDER = [
    "Linear_1_0th_output_forward",
    "ReLU_2_0th_output_forward",
    "mid_dle_forward",
    "Linear_3_0th_output_forward",
    "Model_0_0th_output_forward",
    "Model_0_1th_output_forward",
    "Linear_3_0th_output_backward",
    "Model_0_0th_output_backward",
    "mid_dle_backward",
    "ReLU_2_0th_output_backward",
    "Linear_1_0th_output_backward",
]


def train(model, steps=1):
    for step in range(steps):
        torch.manual_seed(step)
        model(torch.randn(4, 6))[0].square().sum().backward()


def test_each_step_has_a_file_for_each_activation_and_gradient_in_order(tmp_path):
    model = Model()
    GlobalSubscriberManager.subscribe(
        model, [StatisticsSubscriber(output_dir=str(tmp_path / "out"), start_step=1, end_step=3)]
    )
    with pytest.raises(RuntimeError, match="needs a StatisticsSubscriber"):
        GlobalSubscriberManager.unsubscribe()
        train(model)
    GlobalSubscriberManager.subscribe(
        model, [StatisticsSubscriber(tmp_path / "out", start_step=1, end_step=3, override_output_dir=True)]
    )
    train(model, steps=5)
    run = Run(tmp_path / "out")
    assert run.steps() == [1, 2]
    for step in run.steps():
        assert run.order(step) == ORDER
        assert {path.name for path in (tmp_path / "out" / f"step_{step}").iterdir()} == {*ORDER, "order.txt"}
    torch.manual_seed(2)
    x = torch.randn(4, 6)
    hidden = model.inner(x)
    hidden.retain_grad()
    model.out(hidden.relu() * 2).square().sum().backward()
    forward, backward = run.summary(2, ORDER[0]), run.summary(2, ORDER[-1])
    check_against_numpy(forward, hidden.detach())
    check_against_numpy(backward, hidden.grad)
    text = run.path(2, ORDER[0]).read_text()
    assert text.startswith(">>Linear_1_0th_output forward run shape: [4, 8] dtype: float32 size: 32\nmin: ")
    assert run.path(2, "mid_dle_forward").read_text().startswith("mid/dle forward run ")
    assert (forward.depth, run.summary(2, "mid_dle_forward").depth) == (2, -1)


def test_training_is_the_same_with_statistics(tmp_path):
    def gradients(model):
        train(model, steps=2)
        return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]

    GlobalSubscriberManager.subscribe(Model(), [StatisticsSubscriber(tmp_path / "none")])  # for inspect_activation
    torch.manual_seed(3)
    expected = gradients(Model())
    torch.manual_seed(3)
    model = Model()
    GlobalSubscriberManager.subscribe(model, [StatisticsSubscriber(tmp_path / "out")])
    for found, gradient in zip(gradients(model), expected, strict=True):
        assert torch.equal(found, gradient)


def test_a_checkpointed_activation_is_counted_once(tmp_path):
    linear, tanh = torch.nn.Linear(4, 4), torch.nn.Tanh()

    class Checkpointed(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.tanh = linear, tanh

        def forward(self, x):
            return torch.utils.checkpoint.checkpoint(lambda x: self.tanh(self.linear(x)), x, use_reentrant=False)

    model = Checkpointed()
    GlobalSubscriberManager.subscribe(model, [StatisticsSubscriber(tmp_path / "out")])
    for _ in range(2):
        model(torch.ones(2, 4)).sum().backward()
    run = Run(tmp_path / "out")
    assert run.steps() == [0, 1]
    assert sorted(run.order(1)) == sorted(
        f"{name}_0th_output_{direction}"
        for name in ("Linear_1", "Tanh_2", "Checkpointed_0")
        for direction in ("forward", "backward")
    )


def test_a_name_that_is_used_twice_warns_and_keeps_the_last(tmp_path):
    class Twice(torch.nn.Module):
        def forward(self, x):
            return inspect_activation("here", inspect_activation("here", x) + 1)

    GlobalSubscriberManager.subscribe(model := Twice(), [StatisticsSubscriber(tmp_path / "out")])
    with pytest.warns(UserWarning, match="the name here is used more than once"):
        model(torch.zeros(2))
    run = Run(tmp_path / "out")
    assert run.summary(0, "here_forward").mean == 1
    assert run.order(0) == ["here_forward", "Twice_0_0th_output_forward"]


def test_a_tensor_without_statistics_warns_and_training_goes_on(tmp_path):
    GlobalSubscriberManager.subscribe(model := torch.nn.Identity(), [StatisticsSubscriber(tmp_path / "out")])
    with pytest.warns(UserWarning, match="no statistics of a tensor of dtype torch.complex64") as warned:
        for _ in range(2):
            model(torch.ones(2, dtype=torch.complex64))
    assert len(warned) == 1


@pytest.mark.parametrize(("name", "tensor"), [("", torch.ones(1)), (7, torch.ones(1)), ("x", [1.0])])
def test_inspect_activation_refuses_what_is_no_name_or_tensor(name, tensor):
    with pytest.raises(ValueError, match="inspect_activation"):
        inspect_activation(name, tensor)


# ---- folders and disks


def test_an_existing_folder_needs_leave(tmp_path):
    (tmp_path / "out" / "step_0").mkdir(parents=True)
    (tmp_path / "out" / "notes.txt").write_text("mine")
    with pytest.raises(FileExistsError, match="override_output_dir"):
        StatisticsSubscriber(tmp_path / "out")
    with pytest.warns(UserWarning, match="removes the 1 steps of an earlier run"):
        StatisticsSubscriber(tmp_path / "out", override_output_dir=True)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["notes.txt"]


def test_a_folder_that_cannot_be_written_is_refused_before_training(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(FileExistsError, match="is a file"):
        StatisticsSubscriber(tmp_path / "file", override_output_dir=True)
    with pytest.raises(OSError):
        StatisticsSubscriber(tmp_path / "file" / "out")
    with pytest.raises(OSError):
        StatisticsSubscriber("/proc/lowtide")


def fail_to_write(*arguments, **keywords):
    raise OSError(28, os.strerror(28))


def test_a_full_disk_is_refused_before_training(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", fail_to_write)
    with pytest.raises(OSError, match="cannot be written: No space left on device"):
        StatisticsSubscriber(tmp_path / "out")


def test_a_disk_that_becomes_full_ends_the_statistics_and_not_the_training(tmp_path, monkeypatch):
    model = Model()
    GlobalSubscriberManager.subscribe(model, [StatisticsSubscriber(tmp_path / "out")])
    train(model)
    monkeypatch.setattr("pathlib.Path.write_text", fail_to_write)
    with pytest.warns(UserWarning, match="statistics end in step 1: .*No space left") as warned:
        train(model, steps=2)
    assert len(warned) == 1
    assert all(parameter.grad is not None for parameter in model.inner.parameters())


@pytest.mark.parametrize("bucket_size", [0, -5, 2.5])
def test_a_wrong_bucket_size_is_refused(tmp_path, bucket_size):
    with pytest.raises(ValueError, match="bucket_size"):
        StatisticsSubscriber(tmp_path / "out", bucket_size=bucket_size)


def test_a_damaged_file_is_refused_by_name(tmp_path):
    GlobalSubscriberManager.subscribe(model := torch.nn.Tanh(), [StatisticsSubscriber(tmp_path / "out")])
    model(torch.ones(3))
    run = Run(tmp_path / "out")
    path = run.path(0, "Tanh_0_0th_output_forward")
    path.write_text(path.read_text()[:-30])
    with pytest.raises(ValueError, match="Tanh_0_0th_output_forward is not a summary of a tensor, or was cut off"):
        run.summary(0, "Tanh_0_0th_output_forward")
