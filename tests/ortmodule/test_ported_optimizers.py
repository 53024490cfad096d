"""lowtide.optim and lowtide.utils.data: what ORTModule's documentation promises of these names."""

import copy
import itertools

import pytest
import torch

from lowtide.optim import AdamWMode, FP16_Optimizer, FusedAdam
from lowtide.ortmodule import ORTModule
from lowtide.utils.data import LoadBalancingDistributedBatchSampler, LoadBalancingDistributedSampler


def trained(make_optimizer, steps=5):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2)).double()
    late = torch.nn.Linear(4, 2).double()  # has no gradient in the first steps
    optimizer = make_optimizer([{"params": model.parameters()}, {"params": late.parameters(), "lr": 0.1}])
    for step in range(steps):
        optimizer.zero_grad()
        a = torch.randn(3, 4, dtype=torch.float64)
        (model(a) + (late(a) if step > 1 else 0)).square().sum().backward()
        optimizer.step()
    return [parameter.detach() for parameter in (*model.parameters(), *late.parameters())]


class Written(torch.optim.Optimizer):
    """The update as AdamW of transformers wrote it, or Adam without the bias's correction."""

    def __init__(self, params, lr, eps, weight_decay, mode, correct):
        super().__init__(params, {"lr": lr})
        self.eps, self.decay, self.mode, self.correct = eps, weight_decay, mode, correct

    @torch.no_grad()
    def step(self):
        owned = [(p, group["lr"]) for group in self.param_groups for p in group["params"] if p.grad is not None]
        for p, lr in owned:
            state, gradient = self.state[p], p.grad
            t = state["t"] = state.get("t", 0) + 1
            if self.mode is AdamWMode.ADAM_L2_REGULARIZATION:
                gradient = gradient + self.decay * p
            if self.mode is AdamWMode.ADAMW_TORCH:
                p -= lr * self.decay * p
            m = state["m"] = 0.9 * state.get("m", 0) + 0.1 * gradient
            v = state["v"] = 0.999 * state.get("v", 0) + 0.001 * gradient**2
            rate = lr * (1 - 0.999**t) ** 0.5 / (1 - 0.9**t) if self.correct else lr
            p -= rate * m / (v.sqrt() + self.eps)
            if self.mode is AdamWMode.ADAMW_TRANSFORMERS:
                p -= lr * self.decay * p


@pytest.mark.parametrize(
    ("mode", "correct"),
    [(AdamWMode.ADAMW_TRANSFORMERS, True), *itertools.product(AdamWMode, [False])],
)
def test_fused_adam_is_the_written_formula(mode, correct):
    options = {"lr": 0.01, "eps": 1e-2, "weight_decay": 0.3}
    found = trained(lambda groups: FusedAdam(groups, adam_w_mode=mode, bias_correction=correct, **options))
    expected = trained(lambda groups: Written(groups, mode=mode, correct=correct, **options))
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("mode", "theirs"),
    [(AdamWMode.ADAM_L2_REGULARIZATION, torch.optim.Adam), (AdamWMode.ADAMW_TORCH, torch.optim.AdamW)],
)
def test_fused_adam_is_pytorchs_in_pytorchs_modes(mode, theirs):
    options = {"lr": 0.01, "eps": 1e-2, "weight_decay": 0.3}
    found = trained(lambda groups: FusedAdam(groups, adam_w_mode=mode, **options))
    for ours, expected in zip(found, trained(lambda groups: theirs(groups, **options)), strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-9, atol=1e-12)


def test_fused_adam_trains_a_wrapper_and_goes_on_from_a_checkpoint():
    wrapped = ORTModule(torch.nn.Linear(4, 2))
    optimizer = FusedAdam(wrapped.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    a, states = torch.randn(3, 4), []
    for _ in range(2):
        wrapped(a).sum().backward()
        assert optimizer.step(lambda: 3.0) == 3.0
        optimizer.zero_grad(set_to_none=False)
        assert wrapped.weight.grad is None
        scheduler.step()
        states.append((copy.deepcopy(wrapped.state_dict()), copy.deepcopy(optimizer.state_dict())))
    other = torch.nn.Linear(4, 2)
    other.load_state_dict(states[0][0])
    again = FusedAdam(other.parameters())
    again.load_state_dict(states[0][1])
    other(a).sum().backward()
    again.step()
    torch.testing.assert_close(other.state_dict(), states[1][0])


def test_fused_adam_refuses_sparse_gradients():
    table = torch.nn.Embedding(4, 2, sparse=True)
    table(torch.tensor([1])).sum().backward()
    with pytest.raises(RuntimeError, match="SparseAdam"):
        FusedAdam(table.parameters()).step()


def test_fp16_optimizer_leaves_an_optimizer_alone():
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    assert FP16_Optimizer(optimizer, get_tensor_model_parallel_rank=None) is optimizer


# ---- samplers

COSTS = [7, 1, 30, 2, 9, 40, 3, 20, 8, 5]


def samplers(ranks=3, **options):
    return [
        LoadBalancingDistributedSampler(COSTS, int, world_size=ranks, rank=rank, **options) for rank in range(ranks)
    ]


def rounds(made):
    return list(zip(*made, strict=True))


@pytest.mark.parametrize("shuffle", [True, False])
def test_ranks_get_samples_of_like_cost_at_a_time(shuffle):
    made = samplers(shuffle=shuffle)
    found = rounds(made)
    assert len(found) == len(made[0]) == 4 and {index for each in found for index in each} == set(range(len(COSTS)))
    order = sorted(range(len(COSTS)), key=COSTS.__getitem__)
    expected = [tuple((order + order[:2])[start : start + 3]) for start in range(0, 12, 3)]
    assert (found == expected) != shuffle and sorted(found) == sorted(expected)


def test_epochs_have_orders_of_their_own_and_ranks_the_same():
    made = samplers(random_level=0.5)
    seen = set()
    for epoch in range(5):
        for sampler in made:
            sampler.set_epoch(epoch)
        assert rounds(made) == rounds(made)
        seen.add(tuple(rounds(made)))
    assert len(seen) == 5


def test_groups_are_sorted_inside_and_shuffled_as_wholes():
    (sampler,) = samplers(ranks=1, group_size=5)
    indices = list(sampler)
    halves = {tuple(indices[:5]), tuple(indices[5:])}
    assert halves == {(1, 3, 0, 4, 2), (6, 9, 8, 7, 5)}


def test_samples_may_be_dropped():
    made = samplers(drop_last=True)
    indices = [index for each in rounds(made) for index in each]
    assert len(indices) == 9 == len(set(indices)) and 5 not in indices  # the costliest is left over


def in_batches_of_cost(indices):
    batches, cost = [[]], 0
    for index in indices:
        if batches[-1] and cost + COSTS[index] > 30:
            batches.append([])
            cost = 0
        batches[-1].append(index)
        cost += COSTS[index]
    return batches


def test_batches_are_as_many_on_each_rank():
    for drop_last in (False, True):
        made = [LoadBalancingDistributedBatchSampler(each, in_batches_of_cost, drop_last) for each in samplers()]
        own = [in_batches_of_cost(list(each)) for each in samplers()]
        count = (min if drop_last else max)(map(len, own))
        assert [len(each) for each in made] == [count] * 3 and len({len(each) for each in own}) > 1
        for sampler, batches in zip(made, own, strict=True):
            assert list(sampler) == [batches[place % len(batches)] for place in range(count)]
        made[0].set_epoch(1)
        assert list(made[0]) != own[0]
    loader = torch.utils.data.DataLoader(COSTS, batch_sampler=made[0])
    assert sum(len(batch) for batch in loader) == sum(map(len, made[0]))


def test_mistakes_in_samplers():
    with pytest.raises(ValueError, match="rank is 3, expected 0 to 2"):
        LoadBalancingDistributedSampler(COSTS, int, world_size=3, rank=3)
    with pytest.raises(ValueError, match="random_level is 2"):
        samplers(random_level=2)
    with pytest.raises(ValueError, match="expected a LoadBalancingDistributedSampler"):
        LoadBalancingDistributedBatchSampler([1], list)
    with pytest.raises(ValueError, match="only the batch sampler"):
        LoadBalancingDistributedBatchSampler(samplers(drop_last=True)[0], list)
