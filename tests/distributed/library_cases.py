"""One rank: accelerate and transformers' Trainer, which put DistributedDataParallel around what they are given.
Arguments: the model, then cases."""

import tempfile

import accelerate
import torch
import transformers
from one_rank import STEPS, assert_same, run_cases, zoo
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from lowtide.ortmodule import ORTModule


def rows(make_batch, count=24):
    """Samples of one length, as a data set of a user's would hold them."""
    batches = [make_batch(batch=1, length=12, seed=seed) for seed in range(count)]
    return [{name: tensor[0] for name, tensor in batch.items()} for batch in batches]


def train_with_accelerate(name, wrap):
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
    model, make_batch = zoo.build(name, dtype=torch.float64)
    module = wrap(model)
    loader = torch.utils.data.DataLoader(rows(make_batch), batch_size=2)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01, momentum=0.9)
    prepared, optimizer, loader = accelerator.prepare(module, optimizer, loader)
    assert isinstance(prepared, DistributedDataParallel) and accelerator.unwrap_model(prepared) is module
    losses = []
    for _ in range(3):
        for batch in loader:
            with accelerator.accumulate(prepared):
                loss = prepared(**batch).loss
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(prepared.parameters(), 0.5)
                optimizer.step()
                optimizer.zero_grad()
            losses.append(accelerator.gather(loss.detach()))
    return module, [torch.stack(losses), *model.parameters()]


def fsdp_plugin():
    return accelerate.FullyShardedDataParallelPlugin(
        fsdp_version=2, auto_wrap_policy="transformer_based_wrap", cpu_ram_efficient_loading=False
    )


def train_with_fsdp_plugin(name, wrap):
    """accelerate takes the plugin only where it finds an accelerator: the two attributes of its state that tell so are
    set here, and all that follows is its own."""
    accelerator = accelerate.Accelerator(cpu=True)
    before = accelerator.state.distributed_type
    accelerator.state.distributed_type, accelerator.state.fsdp_plugin = accelerate.DistributedType.FSDP, fsdp_plugin()
    model, make_batch = zoo.build(name, dtype=torch.float64)
    module = wrap(model)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01, momentum=0.9)
    prepared, optimizer = accelerator.prepare(module, optimizer)
    assert isinstance(prepared, FSDPModule) and isinstance(model, FSDPModule)
    assert any(isinstance(layer, FSDPModule) for layer in list(model.modules())[1:])
    losses = []
    for step in range(STEPS):
        loss = prepared(**make_batch(seed=2 * step + accelerator.process_index)).loss
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(prepared.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    state = accelerator.get_state_dict(prepared)
    accelerator.state.distributed_type = before
    whole = [parameter.full_tensor() for parameter in model.parameters()]
    return module, [torch.stack(losses), *whole, *(state[name].clone() for name in sorted(state))]


class FSDPTrainer(transformers.Trainer):
    """As it is where accelerate takes its FSDP2 plugin."""

    def create_accelerator_and_postprocess(self):
        super().create_accelerator_and_postprocess()
        self.accelerator.state.distributed_type = accelerate.DistributedType.FSDP
        self.accelerator.state.fsdp_plugin = fsdp_plugin()
        self.is_fsdp_enabled = True


def train_with_trainer(name, wrap, trainer_class=transformers.Trainer):
    model, make_batch = zoo.build(name, dtype=torch.float64)
    module = wrap(model)
    with tempfile.TemporaryDirectory() as folder:
        settings = transformers.TrainingArguments(
            output_dir=folder,
            max_steps=STEPS,
            per_device_train_batch_size=2,
            gradient_accumulation_steps=2,
            optim="sgd",
            learning_rate=0.01,
            logging_steps=1,
            save_strategy="no",
            report_to=[],
            use_cpu=True,
            seed=3,
            disable_tqdm=True,
        )
        trainer = trainer_class(model=module, args=settings, train_dataset=rows(make_batch))
        trainer.train()
    assert isinstance(trainer.model_wrapped, DistributedDataParallel) or trainer_class is FSDPTrainer
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert len(losses) == STEPS
    whole = [each.full_tensor() if isinstance(each, DTensor) else each for each in model.parameters()]
    return module, [torch.tensor(losses), *whole]


def train_with_trainer_and_fsdp(name, wrap):
    module, found = train_with_trainer(name, wrap, FSDPTrainer)
    assert isinstance(module, FSDPModule)
    accelerate.state.AcceleratorState._reset_state()
    return module, found


WAYS = {
    "accelerate": train_with_accelerate,
    "fsdp_plugin": train_with_fsdp_plugin,
    "trainer": train_with_trainer,
    "trainer_fsdp": train_with_trainer_and_fsdp,
}


def compare(name, label):
    (_, expected), (module, found) = (WAYS[label](name, wrap) for wrap in (lambda model: model, ORTModule))
    assert module.fallback_reason is None, module.fallback_reason
    # Trainer logs losses in four places.
    assert_same(found[:1], expected[:1], 1e-3 if label.startswith("trainer") else 1e-6)
    assert_same(found[1:], expected[1:])


if __name__ == "__main__":
    torch.distributed.init_process_group("gloo")
    run_cases(compare)
