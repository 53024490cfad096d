"""`lowtide compare`: two runs' statistics, and the first divergence in them."""

import re
import shutil
import subprocess

import layered
import pytest
import torch
import transformers

from lowtide.cli import main
from lowtide.convergence.compare import compare
from lowtide.errors import InvalidArgument
from lowtide.ortmodule import ORTModule
from lowtide.utils.hooks import GlobalSubscriberManager, StatisticsSubscriber
from lowtide.utils.hooks.summary_file import read_summary, write_summary

LAYERS, FAULTY = 12, 7
STEPS = 2


class Scale(torch.autograd.Function):
    """A fault: one part in a thousand too much, forward or backward."""

    @staticmethod
    def forward(ctx, x, forward, backward):
        ctx.factor = backward
        return x * forward

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.factor, None, None


class Faulty(torch.nn.Module):
    def __init__(self, inner, forward=1.0, backward=1.0):
        super().__init__()
        self.inner, self.factors = inner, (forward, backward)

    def forward(self, x):
        return Scale.apply(self.inner(x), *self.factors)


def gpt2(dtype=torch.float32, **fault):
    torch.manual_seed(3)
    config = transformers.GPT2Config(
        n_layer=LAYERS, n_embd=32, n_head=2, vocab_size=61, n_positions=16, use_cache=False, resid_pdrop=0.0,
        embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    model = transformers.GPT2LMHeadModel(config)
    for index, block in enumerate(model.transformer.h):
        block.mlp.act = Faulty(block.mlp.act, **fault if index == FAULTY else {})
    return model.to(dtype)


def record(folder, model, steps=STEPS):
    """The statistics of SGD steps."""
    GlobalSubscriberManager.subscribe(model, [StatisticsSubscriber(folder, override_output_dir=True)])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(9)
    for _ in range(steps):
        ids = torch.randint(0, 61, (2, 16), generator=generator)
        optimizer.zero_grad()
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
    GlobalSubscriberManager.unsubscribe()
    return folder


@pytest.fixture(scope="module")
def healthy(tmp_path_factory):
    return record(tmp_path_factory.mktemp("healthy"), gpt2())


@pytest.fixture(scope="module", params=["forward", "backward"])
def fault(request, tmp_path_factory):
    """(direction, model, folder of its run)"""
    model = gpt2(**{request.param: 1 + 1e-3})
    return request.param, model, record(tmp_path_factory.mktemp("faulty"), model)


def number_of_module(model, wanted):
    """As the subscribers count: depth first, the root 0."""
    return [id(module) for module in model.modules()].index(id(wanted))


def test_equal_runs(healthy, tmp_path, capsys):
    again = record(tmp_path / "again", gpt2())
    assert main(["compare", str(healthy), str(again)]) == 0
    assert "no difference" in capsys.readouterr().out


def test_rounding_is_rounding(healthy, tmp_path, capsys):
    """fp32 against fp64."""
    exact = record(tmp_path / "exact", gpt2(torch.float64))
    assert main(["compare", str(healthy), str(exact)]) == 0
    told = capsys.readouterr().out
    assert re.search(r"no divergence: differences of up to \d\.\de-0[5-9] are rounding", told), told


def test_a_fault_is_named(healthy, fault, tmp_path, capsys):
    direction, model, folder = fault
    assert main(["compare", str(healthy), str(folder), "--html", str(tmp_path / "page.html")]) == 1
    act = model.transformer.h[FAULTY].mlp.act
    # The gradient of what goes into the faulty function: what its inner module returns.
    module = act if direction == "forward" else act.inner
    name = f"{type(module).__name__}_{number_of_module(model, module)}_0th_output"
    told = capsys.readouterr().out
    assert f"first divergence: step 0, {direction}, {name}: differs by 1.0e-03" in told
    found = re.search(r"before it differs by at most (\S+);", told)
    assert float(found.group(1)) == 0
    assert "largest differences:" in told
    assert name in (tmp_path / "page.html").read_text()


def plan_again(wrapped):
    """The captured graph in a new session, as the environment asks for now."""
    agent = wrapped._last_agent()
    agent.__init__(wrapped.module, agent.captured, True)


@pytest.mark.parametrize("name", ["resnet", *(pytest.param(name, marks=pytest.mark.long) for name in ("gpt2", "bert"))])
def test_a_fault_in_the_engine_is_named(name, tmp_path, monkeypatch, capsys):
    """Three steps of the same batch: healthy, with a fault forward, with one backward."""
    model, make_batch = layered.build(name)
    batch = make_batch(torch.Generator().manual_seed(0))
    wrapped = ORTModule(model)
    GlobalSubscriberManager.subscribe(wrapped, [StatisticsSubscriber(tmp_path / "all", end_step=3)])
    for step, direction in enumerate(("", "forward", "backward")):
        if direction:
            value = layered.faulty_value(wrapped.text("training"), name, direction)
            monkeypatch.setenv("LOWTIDE_TEST_FAULT", f"{value}:{layered.FACTOR}")
            plan_again(wrapped)
        wrapped(**batch).loss.backward()
        assert wrapped.fallback_reason is None
        shutil.copytree(tmp_path / f"all/step_{step}", tmp_path / f"run_{direction}/step_0")
    for direction in ("forward", "backward"):
        assert main(["compare", str(tmp_path / "run_"), str(tmp_path / f"run_{direction}")]) == 1
        module = model.get_submodule(layered.SHOWN_BY[name][direction])
        shown = f"{type(module).__name__}_{number_of_module(model, module)}_0th_output"
        told = capsys.readouterr().out
        found = re.search(rf"first divergence: step 0, {direction}, {shown}: differs by (\S+) ", told)
        assert found and 5e-4 < float(found.group(1)) < 2e-3, told
        assert "what came before it differs by at most 0.0e+00" in told


def test_what_is_no_fault(monkeypatch):
    """A name that no step makes, and one without a factor."""
    wrapped = ORTModule(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh()))
    monkeypatch.setenv("LOWTIDE_TEST_FAULT", "tanhs:1.001")
    with pytest.raises(InvalidArgument, match="no step makes a floating value called tanhs; there are tanh"):
        wrapped(torch.ones(2, 4))
    monkeypatch.setenv("LOWTIDE_TEST_FAULT", "tanh")
    with pytest.raises(InvalidArgument, match="expected VALUE:FACTOR"):
        wrapped(torch.ones(2, 4))


def test_a_later_fault_is_named_in_its_step(healthy, tmp_path):
    """One wrong number in one file of the second step."""
    damaged = tmp_path / "damaged"
    shutil.copytree(healthy, damaged)
    path = next((damaged / "step_1").glob("GPT2MLP_*_0th_output_forward"))
    summary = read_summary(path)
    summary.nan = 3
    path.unlink()
    write_summary(damaged, 1, summary)
    found = compare(healthy, damaged)[0].first_divergence
    assert (found.step, found.file, found.reason) == (1, path.name, "nan")


def test_a_missing_tensor_is_a_divergence_forward_alone(healthy, tmp_path):
    damaged = tmp_path / "damaged"
    shutil.copytree(healthy, damaged)
    order = (damaged / "step_0/order.txt").read_text().splitlines()
    backward = next(line for line in order if line.endswith("_backward"))
    forward = order[40]
    for gone in (backward, forward):
        (damaged / "step_0" / gone).unlink()
    (damaged / "step_0/order.txt").write_text("".join(f"{name}\n" for name in order if name not in (backward, forward)))
    found = compare(healthy, damaged)[0].first_divergence
    assert (found.file, found.reason) == (forward, "missing")


def test_ranks(healthy, tmp_path, capsys):
    for run in ("A", "B"):
        for rank in ("rank_0", "rank_1"):
            shutil.copytree(healthy, tmp_path / run / rank)
    path = tmp_path / "B/rank_1/step_0" / (healthy / "step_0/order.txt").read_text().split("\n", 1)[0]
    summary = read_summary(path)
    summary.mean += summary.max
    path.unlink()
    write_summary(tmp_path / "B/rank_1", 0, summary)
    comparisons = compare(tmp_path / "A", tmp_path / "B")
    assert [comparison.label for comparison in comparisons] == ["rank_0", "rank_1"]
    assert comparisons[0].first_divergence is None and comparisons[1].first_divergence.reason == "mean"
    assert main(["compare", str(tmp_path / "A"), str(healthy)]) == 2
    assert "expected the same ranks" in capsys.readouterr().err


def test_what_is_no_run(tmp_path, capsys):
    assert main(["compare", str(tmp_path), str(tmp_path / "nothing")]) == 2
    assert "no folder" in capsys.readouterr().err


@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs chromium")
def test_the_page_in_a_browser(healthy, fault, tmp_path):
    """The script runs, needs nothing from elsewhere, and marks the first divergence among cells for each tensor and
    step."""
    page = tmp_path / "page.html"
    assert main(["compare", str(healthy), str(fault[2]), "--html", str(page)]) == 1
    assert not re.search(r"(src|href)\s*=", page.read_text())
    command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}"]
    done = subprocess.run(
        [*command, "--dump-dom", page.as_uri()], capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL
    )
    tensors = len((healthy / "step_0/order.txt").read_text().splitlines())
    assert done.stdout.count('class="cell') == STEPS * tensors, done.stderr
    assert done.stdout.count('class="cell first"') == 1
