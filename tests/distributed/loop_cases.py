"""One rank: training loops as users write them, through ORTModule and in eager. Arguments: cases."""

import contextlib
import copy
import gc
import io
import sys

import torch
import zoo
from comparisons import assert_same
from lora import add_lora
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from lowtide.ortmodule import ORTModule

STEPS = 4


def gpt2():
    return zoo.build("gpt2", dtype=torch.float64)


def perceptron(*sizes):
    torch.manual_seed(0)
    layers = [torch.nn.Linear(a, b, dtype=torch.float64) for a, b in zip(sizes, sizes[1:], strict=False)]
    return torch.nn.Sequential(*(part for layer in layers for part in (layer, torch.nn.Tanh())))


def seed_of(step):
    return step * torch.distributed.get_world_size() + torch.distributed.get_rank()


def noise(*sizes, step):
    return torch.randn(sizes, generator=torch.Generator().manual_seed(seed_of(step)), dtype=torch.float64)


def sgd(module):
    return torch.optim.SGD((each for each in module.parameters() if each.requires_grad), lr=0.01, momentum=0.9)


def whole(tensors):
    return [each.full_tensor() if isinstance(each, DTensor) else each for each in tensors]


def train(outer, make_batch, optimizer=None, between=lambda step: None):
    """Losses; `between` runs behind each step."""
    return train_by(lambda step: outer(**make_batch(seed=seed_of(step))).loss, optimizer or sgd(outer), between)


def train_by(loss_of, optimizer, between=lambda step: None):
    losses = []
    for step in range(STEPS):
        loss = loss_of(step)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
        between(step)
    return torch.stack(losses)


def join_and_accumulation(wrap):
    """Rank 1 has fewer batches, the last ones not of a whole step."""
    model, make_batch = gpt2()
    outer = DistributedDataParallel(wrap(model))
    optimizer, losses = sgd(outer), []
    with outer.join():
        for batch in range(9 - 4 * torch.distributed.get_rank()):
            is_last = batch % 3 == 2
            with contextlib.nullcontext() if is_last else outer.no_sync():
                loss = outer(**make_batch(seed=seed_of(batch))).loss
                loss.backward()
            losses.append(loss.detach())
            if is_last:
                optimizer.step()
                optimizer.zero_grad()
    return [torch.stack(losses), *model.parameters()]


def evaluation_on_one_rank(wrap):
    model, make_batch = gpt2()
    module = wrap(model)
    outer, found = DistributedDataParallel(module), []

    def evaluate(step):
        if torch.distributed.get_rank() == 0:
            module.eval()
            with torch.no_grad():
                found.append(module(**make_batch(seed=1000, length=9)).loss)
            module.train()
        torch.distributed.barrier()

    return [train(outer, make_batch, between=evaluate), *found, *model.parameters()]


def best_of_rank_0_is_loaded(wrap):
    """A state dict of rank 0 goes to all ranks in the middle."""
    model, make_batch = gpt2()
    outer = DistributedDataParallel(wrap(model))
    state = [copy.deepcopy(outer.module.state_dict())]

    def go_back(step):
        if step == 1:
            torch.distributed.broadcast_object_list(state)
            outer.module.load_state_dict(state[0])

    return [train(outer, make_batch, between=go_back), *model.parameters()]


def average_of_weights(wrap):
    model, make_batch = gpt2()
    outer = DistributedDataParallel(wrap(model))
    average = torch.optim.swa_utils.AveragedModel(model)
    losses = train(outer, make_batch, between=lambda step: average.update_parameters(model))
    return [losses, *model.parameters(), *average.module.parameters()]


def play(maker, judge, gathered=list):
    """Losses and parameters of two networks, each of which trains through the other."""
    of_maker, of_judge, losses = sgd(maker), sgd(judge), []
    for step in range(STEPS):
        real, made = noise(6, 7, step=step), maker(noise(6, 5, step=100 + step))
        loss = judge(torch.cat([made.detach(), real])).mul(torch.tensor([[1.0]] * 6 + [[-1.0]] * 6)).mean()
        loss.backward()
        of_judge.step()
        of_judge.zero_grad()
        fooled = -judge(made).mean()
        fooled.backward()
        of_judge.zero_grad()
        of_maker.step()
        of_maker.zero_grad()
        losses += [loss.detach(), fooled.detach()]
    return [torch.stack(losses), *gathered(maker.parameters()), *gathered(judge.parameters())]


def two_networks(wrap):
    """A GAN: two DistributedDataParallel that train in turn, each through the other."""
    makers, judges = perceptron(5, 16, 7), perceptron(7, 16, 1)
    maker, judge = (DistributedDataParallel(wrap(each)) for each in (makers, judges))
    return play(maker, judge)


def difference(outer, step):
    return (outer(noise(3, 6, step=step)) - outer(noise(3, 6, step=100 + step))).square().mean()


def two_calls_before_backward(wrap):
    """Siamese: the same weights for both sides."""
    model = perceptron(6, 16, 4)
    outer = DistributedDataParallel(wrap(model))
    return [train_by(lambda step: difference(outer, step), sgd(outer)), *model.parameters()]


def loss_of_gathered_outputs(wrap):
    """Contrastive: rows of all ranks stand against each other."""
    model = perceptron(6, 16, 4)
    outer = DistributedDataParallel(wrap(model))

    def loss_of(step):
        rows = torch.cat(torch.distributed.nn.all_gather(outer(noise(3, 6, step=step))))
        return torch.nn.functional.cross_entropy(rows @ rows.T, torch.arange(len(rows)))

    return [train_by(loss_of, sgd(outer)), *model.parameters()]


class Checkpointed(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.parts = torch.nn.ModuleList([perceptron(6, 16, 6), perceptron(6, 16, 6)])

    def forward(self, x):
        for part in self.parts:
            x = checkpoint(part, x, use_reentrant=False)
        return x.square().mean()


def checkpointed_layers(wrap):
    model = Checkpointed()
    outer = DistributedDataParallel(wrap(model))
    return [train_by(lambda step: outer(noise(3, 6, step=step)), sgd(outer)), *model.parameters()]


def divided_optimizer(wrap):
    model, make_batch = gpt2()
    outer = DistributedDataParallel(wrap(model))
    optimizer = ZeroRedundancyOptimizer(outer.parameters(), optimizer_class=torch.optim.AdamW, lr=1e-3, eps=1e-3)
    return [train(outer, make_batch, optimizer=optimizer), *model.parameters()]


def optimizers_of_parts(wrap):
    """One for the embeddings and one for the rest, the first in every second step alone."""
    model, make_batch = gpt2()
    outer = DistributedDataParallel(wrap(model))
    embeddings = list(model.transformer.wte.parameters())
    rest = [each for each in model.parameters() if all(each is not one for one in embeddings)]
    often, seldom = torch.optim.SGD(rest, lr=0.01), torch.optim.SGD(embeddings, lr=0.01)

    def update_embeddings(step):
        if step % 2 == 1:
            seldom.step()
            seldom.zero_grad()

    return [train(outer, make_batch, often, update_embeddings), *model.parameters()]


def parameters_frozen_on_the_way(wrap):
    """Wrapped anew, as DistributedDataParallel asks for."""
    model, make_batch = gpt2()
    module = wrap(model)
    losses = [train(DistributedDataParallel(module), make_batch)]
    model.transformer.wte.requires_grad_(False)
    losses.append(train(DistributedDataParallel(module), make_batch))
    return [*losses, *model.parameters()]


def whole_object_saved(wrap):
    """torch.save of the module that DistributedDataParallel holds, and training on from there."""
    model, make_batch = gpt2()
    outer = DistributedDataParallel(wrap(model))
    losses = [train(outer, make_batch)]
    file = io.BytesIO()
    torch.save(outer.module.state_dict(), file)
    file.seek(0)
    again, _ = gpt2()
    again.load_state_dict(torch.load(file))
    losses.append(train(DistributedDataParallel(wrap(again)), make_batch))
    return [*losses, *again.parameters()]


def lora(wrap):
    model, make_batch = gpt2()
    add_lora(model)
    return [train(DistributedDataParallel(wrap(model)), make_batch), *model.parameters()]


def lora_divided(wrap):
    model, make_batch = gpt2()
    add_lora(model)
    for block in model.transformer.h:
        fully_shard(block)
    fully_shard(model)
    return [train(wrap(model), make_batch), *whole(model.parameters())]


def divided_and_checkpointed(wrap):
    model, make_batch = gpt2()
    for index, block in enumerate(model.transformer.h):
        model.transformer.h[index] = checkpoint_wrapper(block)
        fully_shard(model.transformer.h[index])
    fully_shard(model)
    return [train(wrap(model), make_batch), *whole(model.parameters())]


def divided_evaluation(wrap):
    model, make_batch = gpt2()
    for block in model.transformer.h:
        fully_shard(block)
    outer, found = wrap(fully_shard(model)), []

    def evaluate(step):
        outer.eval()
        with torch.no_grad():
            found.append(outer(**make_batch(seed=seed_of(1000), length=9)).loss)
        outer.train()

    return [train(outer, make_batch, between=evaluate), *found, *whole(model.parameters())]


def divided_two_calls(wrap):
    model = perceptron(6, 16, 4)
    outer = wrap(fully_shard(model))
    return [train_by(lambda step: difference(outer, step), sgd(outer)), *whole(model.parameters())]


def divided_and_frozen(wrap):
    model, make_batch = gpt2()
    model.transformer.wte.requires_grad_(False)
    model.transformer.h[0].requires_grad_(False)
    for block in model.transformer.h:
        fully_shard(block)
    fully_shard(model)
    return [train(wrap(model), make_batch), *whole(model.parameters())]


def teacher_and_pupil(wrap):
    """The pupil learns what an average of itself says without gradients, through a wrapper of its own."""
    model, make_batch = gpt2()
    teachers, outer = copy.deepcopy(model), DistributedDataParallel(wrap(model))
    teacher = wrap(teachers.requires_grad_(False))

    def loss_of(step):
        batch = make_batch(seed=seed_of(step))
        with torch.no_grad():
            said = teacher(**batch).logits
        return torch.nn.functional.mse_loss(outer(**batch).logits, said + 1)

    def follow(step):
        with torch.no_grad():
            for slow, fast in zip(teachers.parameters(), model.parameters(), strict=True):
                slow.lerp_(fast, 0.1)

    return [train_by(loss_of, sgd(outer), follow), *model.parameters(), *teachers.parameters()]


class Branches(torch.nn.Module):
    """Of two layers each process takes the one that its argument asks for."""

    def __init__(self):
        super().__init__()
        self.first, self.second = perceptron(6, 8, 6), perceptron(6, 9, 6)

    def forward(self, x, second):
        return (self.second if second else self.first)(x).square().mean()


def layers_that_ranks_choose(wrap):
    model = Branches()
    outer = DistributedDataParallel(wrap(model), find_unused_parameters=True)

    def loss_of(step):
        return outer(noise(3, 6, step=step), second=seed_of(step) % 3 == 0)

    return [train_by(loss_of, sgd(outer)), *model.parameters()]


def group_of_one_rank(wrap):
    """Groups of one process each: nothing is averaged."""
    model, make_batch = gpt2()
    groups = [torch.distributed.new_group([rank]) for rank in range(torch.distributed.get_world_size())]
    outer = DistributedDataParallel(wrap(model), process_group=groups[torch.distributed.get_rank()])
    return [train(outer, make_batch), *model.parameters()]


def divided_two_networks(wrap):
    """A GAN whose networks are both divided."""
    makers, judges = perceptron(5, 16, 7), perceptron(7, 16, 1)
    for layer in (*makers, *judges):
        if list(layer.parameters()):
            fully_shard(layer)
    maker, judge = (wrap(fully_shard(each)) for each in (makers, judges))
    return play(maker, judge, whole)


def divided_but_for_some(wrap):
    """Norms stay whole in each process, which averages their gradients by itself."""
    model, make_batch = gpt2()
    kept = [each for name, each in model.named_parameters() if "ln_" in name]
    for block in model.transformer.h:
        fully_shard(block, ignored_params=set(kept))
    fully_shard(model, ignored_params=set(kept))
    outer, losses = wrap(model), []
    optimizer = sgd(outer)
    for step in range(STEPS):
        loss = outer(**make_batch(seed=seed_of(step))).loss
        loss.backward()
        for each in kept:
            torch.distributed.all_reduce(each.grad)
            each.grad /= torch.distributed.get_world_size()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return [torch.stack(losses), *whole(model.parameters())]


LOOPS = {
    each.__name__: each
    for each in (
        join_and_accumulation,
        evaluation_on_one_rank,
        best_of_rank_0_is_loaded,
        average_of_weights,
        two_networks,
        two_calls_before_backward,
        loss_of_gathered_outputs,
        checkpointed_layers,
        divided_optimizer,
        optimizers_of_parts,
        parameters_frozen_on_the_way,
        whole_object_saved,
        lora,
        lora_divided,
        divided_and_checkpointed,
        divided_evaluation,
        divided_two_calls,
        divided_and_frozen,
        teacher_and_pupil,
        layers_that_ranks_choose,
        group_of_one_rank,
        divided_two_networks,
        divided_but_for_some,
    )
}


def compare(label):
    wrapped = []

    def wrap(model):
        wrapped.append(ORTModule(model))
        return wrapped[-1]

    expected = [each.detach().clone() for each in LOOPS[label](lambda model: model)]
    found = LOOPS[label](wrap)
    reasons = [module.fallback_reason for module in wrapped]
    assert reasons == [None] * len(wrapped) != [], reasons
    assert_same(found, expected)


def main():
    torch.distributed.init_process_group("gloo")
    torch.set_num_threads(1)
    for label in sys.argv[1:]:
        compare(label)
        print(f"{label}: right on rank {torch.distributed.get_rank()}", flush=True)
        gc.collect()
    torch.distributed.barrier()  # gloo's threads of a group may outlive one that is left while another is at work
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
