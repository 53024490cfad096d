"""Samplers for samples of unequal cost: in each step, all ranks get samples that cost about the same.

samples by cost   1 2 3 | 4 5 6 | 7 8 9      ranks 0 1 2
rounds            [1 2 3] [4 5 6] [7 8 9]    rank r takes the r-th of each round, rounds in any order
"""

import math

import torch
from torch.utils.data import Sampler


class LoadBalancingDistributedSampler:
    """Indices of a map-style dataset for one rank.

    `complexity_fn`: from a sample to an int, its cost. `group_size`: samples are sorted in groups of so many, and the
    groups shuffled; without, all are sorted, and the rounds shuffled. `drop_last`: ranks get equally many by leaving
    samples out, not by repeating some. `random_level`: 0 to 1, the share of the range of costs by which a cost may be
    taken for larger, so that rounds differ between epochs. ValueError for a rank or a level that cannot be.
    """

    def __init__(
        self,
        dataset,
        complexity_fn,
        world_size=None,
        rank=None,
        shuffle=True,
        group_size=None,
        seed=0,
        drop_last=False,
        random_level=0,
    ):
        self.dataset, self.complexity_fn = dataset, complexity_fn
        self.world_size = torch.distributed.get_world_size() if world_size is None else world_size
        self.rank = torch.distributed.get_rank() if rank is None else rank
        if not 0 <= self.rank < self.world_size:
            raise ValueError(f"rank is {self.rank}, expected 0 to {self.world_size - 1}")
        if not 0 <= random_level <= 1:
            raise ValueError(f"random_level is {random_level}, expected 0 to 1")
        self.shuffle, self.group_size, self.seed = shuffle, group_size, seed
        self.drop_last, self.random_level = drop_last, random_level
        self.epoch = 0
        share = len(dataset) / self.world_size
        self.num_samples = math.floor(share) if drop_last else math.ceil(share)
        self.total_size = self.num_samples * self.world_size
        self._costs = None  # of each sample, once asked

    def set_epoch(self, epoch):
        """Other epochs have other orders; call it before each."""
        self.epoch = epoch

    def __len__(self):
        return self.num_samples

    def __iter__(self):
        return iter([indices[self.rank] for indices in self.rounds()])

    def rounds(self):
        """[one index for each rank], in the order of this epoch: the same on all ranks."""
        generator = torch.Generator().manual_seed(self.seed + self.epoch)
        order = self._sorted(generator)
        rounds = [
            [order[place % len(order)] for place in range(start, start + self.world_size)]
            for start in range(0, self.total_size, self.world_size)
        ]
        if self.shuffle and self.group_size is None:
            rounds = [rounds[place] for place in torch.randperm(len(rounds), generator=generator).tolist()]
        return rounds

    def _sorted(self, generator):
        if self._costs is None:
            self._costs = [int(self.complexity_fn(self.dataset[index])) for index in range(len(self.dataset))]
        costs = self._costs
        if not costs:
            return []
        spread = int((max(costs) - min(costs)) * self.random_level)
        if spread > 0:
            more = torch.randint(spread + 1, (len(costs),), generator=generator).tolist()
            costs = [cost + extra for cost, extra in zip(costs, more, strict=True)]
        size = self.group_size or len(costs)
        groups = [range(start, min(start + size, len(costs))) for start in range(0, len(costs), size)]
        groups = [sorted(group, key=costs.__getitem__) for group in groups]
        if self.shuffle and self.group_size is not None:
            groups = [groups[place] for place in torch.randperm(len(groups), generator=generator).tolist()]
        return [index for group in groups for index in group]


class LoadBalancingDistributedBatchSampler(Sampler):
    """Batches of unequal size out of a LoadBalancingDistributedSampler.

    `batch_fn`: from a rank's indices to a list of batches, each a list of indices. `drop_last`: ranks come to equally
    many batches by leaving some out, not by repeating some. ValueError for another sampler, or one that drops samples.
    """

    def __init__(self, sampler, batch_fn, drop_last=False):
        if not isinstance(sampler, LoadBalancingDistributedSampler):
            raise ValueError(f"sampler is a {type(sampler).__name__}, expected a LoadBalancingDistributedSampler")
        if sampler.drop_last:
            raise ValueError("drop_last of the sampler is set: only the batch sampler may leave something out")
        self.sampler, self.batch_fn, self.drop_last = sampler, batch_fn, drop_last
        self._batches = None  # (epoch, this rank's)

    def set_epoch(self, epoch):
        self.sampler.set_epoch(epoch)

    def __len__(self):
        return len(self._of_epoch())

    def __iter__(self):
        return iter(self._of_epoch())

    def _of_epoch(self):
        if self._batches is None or self._batches[0] != self.sampler.epoch:
            by_rank = [self.batch_fn(list(indices)) for indices in zip(*self.sampler.rounds(), strict=True)]
            counts = [len(batches) for batches in by_rank]
            count = min(counts, default=0) if self.drop_last else max(counts, default=0)
            own = by_rank[self.sampler.rank] if by_rank else []
            if not own:
                count = 0
            self._batches = self.sampler.epoch, [own[place % len(own)] for place in range(count)]
        return self._batches[1]
