"""What processes of a group tell each other through the group's store, where nobody waits for one that never comes, as
all would in a collective."""

import collections
import datetime
import itertools
import time

import torch.distributed as dist

WAIT_S = 10  # where training goes on without those that have not come

_held = collections.Counter()  # (group, name) → meetings of this process so far


class Meeting:
    """Of the processes of a group that make one under this name: their first ones belong together, and so on."""

    def __init__(self, group, name):
        key = group.group_name, name
        _held[key] += 1
        self._store = dist.PrefixStore(f"lowtide/{name}/{_held[key]}", group.get_group_store())
        self._rank, self.ranks = dist.get_rank(), dist.get_process_group_ranks(group)
        self._numbers = itertools.count()

    @classmethod
    def of(cls, group, name):
        """None where there is nobody to meet, or PyTorch does not tell the store."""
        return cls(group, name) if group.size() > 1 and hasattr(group, "get_group_store") else None

    def exchange(self, text, seconds=None):
        """{process: its text} of those that come within so many seconds; None: within the group's timeout. Processes
        have their numbers in the default group."""
        number = next(self._numbers)
        keys = {rank: f"{number}/{rank}" for rank in self.ranks}
        self._store.set(keys[self._rank], text)
        if not self._wait(list(keys.values()), seconds):
            keys = {rank: key for rank, key in keys.items() if self._store.check([key])}
        return dict(zip(keys, map(bytes.decode, self._store.multi_get(list(keys.values()))), strict=True))

    def show(self, name, text):
        """For those that look."""
        self._store.set(f"{name}/{self._rank}", text)

    def look(self, name, rank):
        """What that process shows; None where it does not come."""
        key = f"{name}/{rank}"
        return self._store.get(key).decode() if self._wait([key], WAIT_S) else None

    def made_by_first(self, key, make):
        """What `make` returns in the first process, for those that ask for the same key; "" for one that the first
        process does not answer, which may make it itself."""
        asked, made = f"{key}/asked", f"{key}/made"
        if self._rank == self.ranks[0]:
            text = ""
            self._store.set(asked, "1")
            try:
                text = make()
            finally:
                self._store.set(made, text)
            return text
        end = time.monotonic() + WAIT_S
        while not self._store.check([asked]):  # waiting in vain would be told as an error
            if time.monotonic() > end:
                return ""
            time.sleep(0.05)
        if not self._wait([made]):
            return ""
        return self._store.get(made).decode()

    def _wait(self, keys, seconds=None):
        """Whether they are there in time."""
        limit = self._store.timeout if seconds is None else datetime.timedelta(seconds=seconds)
        try:
            self._store.wait(keys, limit)
        except RuntimeError:  # DistStoreError, where a process has gone too
            return False
        return True
