"""transformers' Trainer and accelerate with the wrapper and without: the same losses, checkpoints that load in both."""

import copy

import pytest
import torch
import zoo

from lowtide.ortmodule import ORTModule

accelerate = pytest.importorskip("accelerate")
transformers = pytest.importorskip("transformers")

STEPS, SAVED = 20, 10


long = pytest.mark.long


def rows(make_batch, count=10):
    """Samples of one length, as a data set of a user's would hold them."""
    batches = [make_batch(batch=1, length=12, seed=seed) for seed in range(count)]
    return [{name: tensor[0] for name, tensor in batch.items()} for batch in batches]


class Run:
    """A Trainer's run: the losses of its steps, and where its checkpoints are."""

    def __init__(self, architecture, folder, wrap, resume=None, keep_outputs=None):
        model, make_batch = zoo.build(architecture)
        self.model = ORTModule(model, keep_outputs=keep_outputs) if wrap else model
        self.folder = folder
        settings = transformers.TrainingArguments(
            output_dir=str(folder),
            max_steps=STEPS,
            per_device_train_batch_size=2,
            learning_rate=5e-3,
            lr_scheduler_type="linear",
            max_grad_norm=1.0,
            logging_steps=1,
            save_steps=SAVED,
            eval_strategy="steps",
            eval_steps=SAVED,
            report_to=[],
            use_cpu=True,
            seed=3,
            disable_tqdm=True,
        )
        data = rows(make_batch)
        self.trainer = transformers.Trainer(model=self.model, args=settings, train_dataset=data, eval_dataset=data[:4])
        self.trainer.train(resume_from_checkpoint=str(resume) if resume else None)
        history = self.trainer.state.log_history
        self.losses = {entry["step"]: entry["loss"] for entry in history if "loss" in entry}
        self.eval_losses = {entry["step"]: entry["eval_loss"] for entry in history if "eval_loss" in entry}
        self.norms = {entry["step"]: entry["grad_norm"] for entry in history if "grad_norm" in entry}

    @property
    def checkpoint(self):
        return self.folder / f"checkpoint-{SAVED}"


@pytest.fixture(scope="module", params=["gpt2", pytest.param("bert", marks=pytest.mark.long)])
def runs(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    return [Run(request.param, folder / str(wrap), wrap) for wrap in (True, False)]


def assert_same_numbers(found, expected, tolerance=1e-4):
    assert found.keys() == expected.keys() and found
    for step, value in expected.items():
        assert found[step] == pytest.approx(value, rel=tolerance), step


def test_twenty_steps_have_the_same_losses(runs):
    wrapped, plain = runs
    assert wrapped.model.fallback_reason is None and wrapped.model.memory_report() is not None
    assert len(plain.losses) == STEPS and plain.losses[STEPS] < plain.losses[1]
    assert_same_numbers(wrapped.losses, plain.losses)
    assert_same_numbers(wrapped.eval_losses, plain.eval_losses)
    assert_same_numbers(wrapped.norms, plain.norms, 1e-3)


def test_nothing_but_the_loss_is_needed_in_training_steps(runs, tmp_path):
    _, plain = runs
    kept = Run(plain.model.config.model_type, tmp_path, True, keep_outputs=("loss",))
    assert kept.model.fallback_reason is None
    assert_same_numbers(kept.losses, plain.losses)
    assert_same_numbers(kept.eval_losses, plain.eval_losses)


def test_checkpoints_hold_the_same_files(runs):
    wrapped, plain = runs
    files = [sorted(path.name for path in run.checkpoint.iterdir()) for run in runs]
    assert files[0] == files[1] and "config.json" in files[0] and "model.safetensors" in files[0]
    assert (wrapped.checkpoint / "config.json").read_text() == (plain.checkpoint / "config.json").read_text()


@pytest.mark.parametrize("resumed_wrapped", [True, pytest.param(False, marks=long)])
def test_a_checkpoint_of_one_resumes_in_the_other(runs, resumed_wrapped, tmp_path, request):
    wrapped, plain = runs
    saved = plain if resumed_wrapped else wrapped
    architecture = plain.model.config.model_type
    if architecture == "bert" and not request.config.getoption("--all"):
        pytest.skip("long: runs with ./dev test --all")
    resumed = Run(architecture, tmp_path, resumed_wrapped, resume=saved.checkpoint)
    after = {step: loss for step, loss in plain.losses.items() if step > SAVED}
    assert_same_numbers({step: resumed.losses[step] for step in after}, after)
    if resumed_wrapped:
        assert resumed.model.fallback_reason is None


def test_a_saved_model_is_read_without_the_wrapper(runs, tmp_path):
    wrapped, _ = runs
    wrapped.trainer.save_model(str(tmp_path))
    again = type(wrapped.model.module).from_pretrained(tmp_path)
    for (name, found), expected in zip(again.named_parameters(), wrapped.model.parameters(), strict=True):
        assert torch.equal(found, expected), name


# ---------------------------------------------------------------- accelerate's own loop


def loop(model, make_batch, folder=None, precision="no"):
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    accelerate.state.GradientState._reset_state()
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2, mixed_precision=precision)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer)
    loader = torch.utils.data.DataLoader(rows(make_batch, 16), batch_size=2)
    prepared, optimizer, scheduler, loader = accelerator.prepare(model, optimizer, scheduler, loader)
    losses = []
    for index, batch in enumerate(loader):
        with accelerator.accumulate(prepared):
            loss = prepared(**batch).loss
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(prepared.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        if folder and index == 3:
            accelerator.save_state(str(folder))
    return losses, accelerator, prepared


@pytest.mark.parametrize("precision", ["no", pytest.param("bf16", marks=long)])
def test_accelerates_loop(precision, tmp_path):
    plain, make_batch = zoo.build("gpt2")
    wrapped = ORTModule(copy.deepcopy(plain))
    expected, *_ = loop(plain, make_batch, precision=precision)
    found, accelerator, prepared = loop(wrapped, make_batch, tmp_path, precision)
    assert found == pytest.approx(expected, rel=1e-4 if precision == "no" else 2e-2)
    assert wrapped.fallback_reason is None
    unwrapped = accelerator.unwrap_model(prepared, keep_fp32_wrapper=False)
    assert unwrapped is wrapped and "_original_forward" not in vars(wrapped.module)
    final = wrapped.state_dict()["lm_head.weight"].clone()
    accelerator.load_state(str(tmp_path))
    assert not torch.equal(wrapped.state_dict()["lm_head.weight"], final)
    batch = make_batch(batch=2, length=12)
    torch.testing.assert_close(wrapped(**batch).loss, wrapped.module(**batch).loss, rtol=1e-5, atol=1e-6)


def test_the_label_smoother_knows_a_causal_model_by_its_name(tmp_path):
    """It shifts labels for classes whose names it has in a list."""
    model, make_batch = zoo.build("gpt2")
    model.eval()
    losses = []
    for each in (ORTModule(copy.deepcopy(model)), model):
        settings = transformers.TrainingArguments(str(tmp_path), label_smoothing_factor=0.1, use_cpu=True, report_to=[])
        trainer = transformers.Trainer(model=each, args=settings)
        losses.append(trainer.compute_loss(each, make_batch()).item())
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
