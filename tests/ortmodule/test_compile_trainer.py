"""transformers' Trainer and accelerate with torch.compile(backend="lowtide"), through what they make public."""

import copy

import pytest
import torch
import zoo

from lowtide import compile_backend

accelerate = pytest.importorskip("accelerate")
transformers = pytest.importorskip("transformers")

STEPS = 6


def rows(make_batch, count=2 * STEPS):
    batches = [make_batch(batch=1, length=12, seed=seed) for seed in range(count)]
    return [{name: tensor[0] for name, tensor in batch.items()} for batch in batches]


def losses_of_trainer(model, data, folder):
    settings = transformers.TrainingArguments(
        output_dir=str(folder),
        max_steps=STEPS,
        per_device_train_batch_size=2,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        seed=3,
        disable_tqdm=True,
    )
    trainer = transformers.Trainer(model=model, args=settings, train_dataset=data)
    trainer.train()
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


class LowtidePlugin(accelerate.utils.TorchDynamoPlugin):
    """As docs/torch-compile.md has it."""

    def to_kwargs(self):
        return super().to_kwargs() | {"backend": compile_backend.lowtide}


def losses_of_accelerate(model, data, plugin=None):
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    accelerate.state.GradientState._reset_state()
    accelerator = accelerate.Accelerator(cpu=True, dynamo_plugin=plugin)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    loader = torch.utils.data.DataLoader(data, batch_size=2)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    losses = []
    for batch in loader:
        loss = model(**batch).loss
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


@pytest.fixture
def model_and_rows():
    model, make_batch = zoo.build("gpt2")
    return model, rows(make_batch)


def in_engine(pieces):
    return pieces and {piece.fallback_reason for piece in pieces} == {None}


def test_a_compiled_model_in_trainer(model_and_rows, pieces, tmp_path):
    model, data = model_and_rows
    expected = losses_of_trainer(copy.deepcopy(model), data, tmp_path / "plain")
    model.compile(backend=compile_backend.lowtide)
    assert losses_of_trainer(model, data, tmp_path) == pytest.approx(expected, rel=1e-4)
    assert in_engine(pieces)


@pytest.mark.long
def test_accelerates_plugin(model_and_rows, pieces):
    model, data = model_and_rows
    expected = losses_of_accelerate(copy.deepcopy(model), data)
    found = losses_of_accelerate(model, data, LowtidePlugin(backend="inductor"))
    assert found == pytest.approx(expected, rel=1e-4)
    assert in_engine(pieces)
