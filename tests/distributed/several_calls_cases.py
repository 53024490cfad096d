"""One rank: a module that is called several times in a step, through ORTModule and in eager. Arguments: the wrapper
(ddp, fsdp2, zero1, zero2, zero3), then cases."""

import contextlib
import gc
import sys

import torch
from comparisons import assert_same
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from lowtide.ortmodule import ORTModule

STEPS = 5
MICRO_STEPS = 3


class Net(torch.nn.Module):
    """Layers of several buckets, an embedding that is tied to the head, a buffer that forward writes."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.words = torch.nn.Embedding(11, 8)
        self.layers = torch.nn.ModuleList([torch.nn.Linear(8, 8) for _ in range(3)])
        self.norm = torch.nn.LayerNorm(8)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, ids, shift=0.0):
        x = self.words(ids)
        for layer in self.layers:
            x = x + layer(x).tanh()
        if self.training:
            self.seen += ids.numel()
        return self.norm(x + shift) @ self.words.weight.T


class Trained:
    """Under one of the wrappers: `outer` is called, `backward` and `step` are the training's."""

    def __init__(self, wrapper, way, micro_steps):
        self.model = Net().double()
        self.micro_steps, self.wrapper = micro_steps, wrapper
        self.engine, module = None, self.model
        if wrapper == "fsdp2":
            for layer in self.model.layers:
                fully_shard(layer)
            fully_shard(self.model)
        self.module = module = way(module)
        optimizer = torch.optim.SGD(module.parameters(), lr=0.001, momentum=0.9)
        if wrapper.startswith("zero"):
            self.engine = self.outer = deepspeed_engine(module, optimizer, int(wrapper[-1]), micro_steps)
        else:
            self.outer = DistributedDataParallel(module) if wrapper == "ddp" else module
            self.optimizer = optimizer

    def backward(self, loss):
        """Of a micro-step."""
        if self.engine is not None:
            self.engine.backward(loss)  # which divides itself
        else:
            (loss / self.micro_steps).backward()

    def quiet(self, is_last):
        """Around the forward and the backward of a micro-step."""
        if self.wrapper == "fsdp2":
            self.outer.set_requires_gradient_sync(is_last)
        return self.outer.no_sync() if self.wrapper == "ddp" and not is_last else contextlib.nullcontext()

    def step(self, is_last):
        if self.engine is not None:
            self.engine.step()
        elif is_last:
            self.optimizer.step()
            self.optimizer.zero_grad()

    def state(self):
        whole = contextlib.nullcontext()
        if self.engine is not None:
            import deepspeed

            whole = deepspeed.zero.GatheredParameters(list(self.model.parameters()))
        with whole:
            found = [*self.model.parameters(), *self.model.buffers()]
            return [(each.full_tensor() if isinstance(each, DTensor) else each).detach().clone() for each in found]


def deepspeed_engine(module, optimizer, stage, micro_steps):
    import deepspeed

    config = {
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": micro_steps,
        "zero_optimization": {
            "stage": stage,
            "reduce_bucket_size": 200,
            "stage3_param_persistence_threshold": 0,
            "stage3_max_reuse_distance": 0,
        },
        "zero_allow_untested_optimizer": True,
        "gradient_clipping": 0.0,
    }
    return deepspeed.initialize(model=module, optimizer=optimizer, config=config)[0]


def words(seed, *sizes):
    seed = seed * torch.distributed.get_world_size() + torch.distributed.get_rank()
    return torch.randint(11, sizes, generator=torch.Generator().manual_seed(seed))


def apart(one, other):
    return (one.log_softmax(-1) - other.log_softmax(-1) + 1).square().mean()


def siamese(outer, seed):
    return apart(outer(words(seed, 2, 5)), outer(words(100 + seed, 2, 5)))


def other_sizes(outer, seed):
    """Of three calls, each of another length."""
    return sum(outer(words(100 * n + seed, 2, 3 + n)).log_softmax(-1)[..., n].square().mean() for n in range(3))


def target_without_gradients(outer, seed):
    """BYOL: the second call says what the first one should."""
    first = outer(words(seed, 2, 5))
    with torch.no_grad():
        target = outer(words(100 + seed, 2, 5))
    return apart(first, target) + apart(outer(words(200 + seed, 2, 5)), target)


def evaluated_between(outer, seed):
    first = outer(words(seed, 2, 5))
    outer.eval()
    with torch.no_grad():
        target = outer(words(100, 2, 4))
    outer.train()
    return apart(first, first.detach() + target.mean())


def recurrent(outer, seed):
    """What the first call gives goes into the second one."""
    first = outer(words(seed, 2, 5))
    return outer(words(100 + seed, 2, 5), first.softmax(-1)[..., :8]).log_softmax(-1)[..., 0].square().mean()


def one_without_use(outer, seed):
    """The second call's output is dropped."""
    first = outer(words(seed, 2, 5))
    outer(words(100 + seed, 2, 5))
    return apart(first, first.detach().roll(1, -1))


def penalty(outer, seed):
    """The same batch twice, as R-Drop has it."""
    ids = words(seed, 2, 5)
    return apart(outer(ids), outer(ids, 0.5))


LOSSES = {
    each.__name__: each
    for each in (
        siamese,
        other_sizes,
        target_without_gradients,
        evaluated_between,
        recurrent,
        one_without_use,
        penalty,
    )
}


def in_turn(trained, loss_of, first_seed):
    """Losses of the micro-steps of a step."""
    losses = []
    for micro_step in range(trained.micro_steps):
        is_last = micro_step + 1 == trained.micro_steps
        with trained.quiet(is_last):
            losses.append(loss_of(trained.outer, first_seed + micro_step))
            trained.backward(losses[-1])
        trained.step(is_last)
    return losses


def crossed(trained, loss_of, first_seed):
    """All forwards, then all backwards from the last to the first."""
    with trained.quiet(is_last=False):
        losses = [loss_of(trained.outer, first_seed + micro_step) for micro_step in range(trained.micro_steps)]
        for loss in losses[:0:-1]:
            trained.backward(loss)
            trained.step(is_last=False)
    with trained.quiet(is_last=True):
        trained.backward(losses[0])
    trained.step(is_last=True)
    return losses


ORDERS = {"": in_turn, "accumulation": in_turn, "crossed": crossed}


def run(wrapper, loss_of, way, micro_steps, steps):
    trained, losses = Trained(wrapper, way, micro_steps), []
    for step in range(STEPS):
        losses += [loss.detach() for loss in steps(trained, loss_of, step * micro_steps)]
    found = [torch.stack(losses), *trained.state()]
    reason = getattr(trained.module, "fallback_reason", None)
    if trained.engine is not None:
        trained.engine.destroy()
    assert reason is None, reason
    return found


def compare(wrapper, label):
    name, _, order = label.partition("-")
    how = (MICRO_STEPS if order else 1), ORDERS[order]
    eager = run(wrapper, LOSSES[name], lambda model: model, *how)
    found = run(wrapper, LOSSES[name], ORTModule, *how)
    assert_same(found, eager, 1e-9)
    if label.endswith("crossed") and wrapper == "zero3":
        return  # DeepSpeed 0.19.8 counts micro-steps by backwards, and does not add up these
    plain = run("ddp", LOSSES[name], lambda model: model, how[0], in_turn)
    # DeepSpeed holds parameters in f32 besides.
    assert_same(found, plain, 1e-5 if wrapper.startswith("zero") else 1e-9)


def main():
    wrapper, *labels = sys.argv[1:]
    if wrapper.startswith("zero"):
        import deepspeed

        # It would compile its own communication in shared memory, behind a lock that a killed run leaves behind.
        sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None
        deepspeed.init_distributed("gloo", verbose=False)
    else:
        torch.distributed.init_process_group("gloo")
    torch.set_num_threads(1)
    for label in labels:
        compare(wrapper, label)
        print(f"{wrapper} {label}: right on rank {torch.distributed.get_rank()}", flush=True)
        gc.collect()
    torch.distributed.barrier()  # gloo's threads of a group may outlive one that is left while another is at work
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
