"""When something travels in a step, and for how much of that time this process waits for it.

Every collective and message that Python begins is watched: another thread waits for it, so that its end is known also
where nobody waits. DistributedDataParallel begins and waits in C++: `send_bucket` is a comm hook that does as it would.
"""

import threading
import time

import torch
from torch.distributed import ProcessGroup, Work

BEGIN = """allreduce allreduce_coalesced allgather allgather_coalesced _allgather_base allgather_into_tensor_coalesced
all_gather_single all_gather_single_coalesced reduce reduce_scatter _reduce_scatter_base reduce_scatter_single
reduce_scatter_tensor_coalesced reduce_scatter_single_coalesced alltoall alltoall_base all_to_all_single broadcast
gather scatter send recv""".split()  # whichever this PyTorch has


class Traffic:
    """with traffic: a step; figures() then."""

    def __init__(self):
        self._wait = Work.wait
        self._travels, self._waits, self._watched, self._last_bucket = [], [], {}, None

    def __enter__(self):
        methods = [(ProcessGroup, name, self._beginning) for name in BEGIN if hasattr(ProcessGroup, name)]
        methods.append((Work, "wait", self._waiting))
        self._originals = [(owner, name, vars(owner)[name]) for owner, name, _ in methods]
        for owner, name, watched in methods:
            setattr(owner, name, watched(getattr(owner, name)))
        return self

    def __exit__(self, *_):
        for original in self._originals:
            setattr(*original)
        for _, watcher in self._watched.values():
            watcher.join()
        self._watched.clear()

    def _beginning(self, original):
        def begin(group, *arguments, **options):
            start = time.perf_counter()
            work = original(group, *arguments, **options)
            self._waits.append((start, time.perf_counter()))  # in case that it is over already
            if work is not None:
                watcher = threading.Thread(target=self._watch, args=(work, start))
                self._watched[id(work)] = work, watcher  # `work`: nothing else gets its id meanwhile
                watcher.start()
            return work

        return begin

    def _watch(self, work, start):
        try:
            self._wait(work)
        finally:
            self._travels.append((start, time.perf_counter()))

    def _waiting(self, original):
        def wait(work, *arguments):
            start = time.perf_counter()
            _, watcher = self._watched.get(id(work), (None, None))
            if watcher is None:
                done = original(work, *arguments)
            else:
                watcher.join()
                done = True
            self._waits.append((start, time.perf_counter()))
            return done

        return wait

    def send_bucket(self, _, bucket):
        """What DistributedDataParallel does without a hook."""
        buffer = bucket.buffer().div_(torch.distributed.get_world_size())
        self._last_bucket = time.perf_counter()
        return torch.distributed.all_reduce(buffer, async_op=True).get_future().then(lambda done: done.value()[0])

    def backward_ended(self):
        """DistributedDataParallel does nothing but wait once its last bucket travels."""
        if self._last_bucket is not None:
            self._waits.append((self._last_bucket, time.perf_counter()))
            self._last_bucket = None

    def figures(self):
        """Milliseconds in which something travelled, and those of them in which this process did not wait."""
        waits = _length(self._waits)
        hidden = _length(self._travels + self._waits) - waits
        return {"travels_ms": _length(self._travels) * 1e3, "hidden_ms": hidden * 1e3}


def _length(intervals):
    """Of all moments that lie in one of them."""
    total, reached = 0.0, float("-inf")
    for begin, end in sorted(intervals):
        total += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    return total
