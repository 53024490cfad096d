"""Before each call the processes tell each other what they would do together. It is the same, or PyTorch runs all of
them."""

import contextlib
import hashlib
import itertools

import torch

from lowtide.errors import Error, UnsupportedModel

from .collectives import all_gather
from .meeting import WAIT_S, Meeting
from .mixed_precision import check_settings
from .partitions import Placeholders, is_partitioned
from .processes import Processes
from .roll_call import call_roll, processes_text
from .shards import is_divided, owners_of, shard_of, sharded_modules

_PYTORCH = 0  # in the place of a hash
_MOST_EXPLAINED = 4  # disagreements of which processes tell each other more
_MOST_LETTERS = 120  # of a line of a plan


class Agreement:
    """Of one module, for all its calls."""

    gathers = True  # parameters are not whole

    def __init__(self, module, gathers_partitions=True):
        """`gathers_partitions`: whether graphs gather what DeepSpeed's ZeRO stage 3 has partitioned."""
        self._sharded = sharded_modules(module)
        self._divided = [
            (child, name)
            for child in module.modules()
            for name, parameter in child.named_parameters(recurse=False)
            if is_divided(parameter)
        ]
        self._explained, self._said, self.meeting = 0, {}, None
        partitioned = [parameter for parameter in module.parameters() if is_partitioned(parameter)]
        self._placeholders = Placeholders(partitioned)
        self._groups, self._refusal = (), None
        if partitioned and not gathers_partitions:
            self._refusal = UnsupportedModel(
                "parameters are partitioned by DeepSpeed's ZeRO stage 3, and ORTMODULE_ENABLE_ZERO_STAGE3 is off"
            )
            return
        try:
            parameters = [*(getattr(child, name) for child, name in self._divided), *partitioned]
            owners = owners_of(module)
            shards = [shard_of(parameter, owners) for parameter in parameters]
            groups = dict.fromkeys(shard.group for shard in shards)
            groups |= dict.fromkeys(shard.layout.group for shard in shards if shard.layout is not None)
            # What processes find out among those that divide parameters they tell those that are like them.
            groups = [group.dividing for group in groups] + [group.alike for group in groups if group.alike is not None]
            groups = {group.group_name: group for group in groups}
            self._groups = tuple(map(Processes, groups.values()))
            meetings = [Meeting.of(group, f"gathers/{type(module).__name__}") for group in groups.values()]
            for meeting in filter(None, meetings):
                call_roll(meeting, module)
            self.meeting = next(iter(meetings), None)  # of those that divide parameters
        except UnsupportedModel as refusal:
            self._refusal = refusal

    @property
    def is_needed(self):
        return bool(self._groups) or self._refusal is not None

    @contextlib.contextmanager
    def reached(self, prepare):
        """For the time of a call: gives what `prepare` returns beside a text of what the processes will do together.
        UnsupportedModel where others do something else, or PyTorch runs their module."""
        if self._refusal is not None:
            raise self._refusal
        if not all(is_divided(getattr(child, name)) for child, name in self._divided):
            for root in self._sharded:
                root.reshard()  # PyTorch has run the module before, and may have left parameters whole
        gathered = self._placeholders.gathered()
        with self._placeholders.in_place():
            try:
                check_settings(self._sharded)
                if gathered is not None:
                    raise UnsupportedModel(gathered)
                prepared, text = prepare()
            except Error as error:
                self._tell(_PYTORCH)
                self._explain(f"runs the module in PyTorch: {error}")
                raise
            self._compare(text)
            yield prepared

    def whole_shapes(self):
        """A context in which partitioned parameters have their shapes: for a call that is prepared and not run."""
        return self._placeholders.in_place()

    def _compare(self, text):
        mine = int.from_bytes(hashlib.sha256(text.encode()).digest()[:7]) + 1
        told = self._tell(mine)
        if told == {mine}:
            return
        others = self._explain(text)
        if _PYTORCH in told:
            raise UnsupportedModel(
                "PyTorch runs the module of another process, and all gather parameters together" + _reasons(others)
            )
        raise UnsupportedModel(
            "processes would gather parameters in different orders: their graphs, or under a memory budget their "
            "plans, are not the same" + _first_difference(others)
        )

    def _explain(self, mine):
        """{process: what it would do, or why it does nothing} of those that divide parameters with this one; as it was
        told last where it has been told often. All know of a disagreement, so all come."""
        if self.meeting is not None and self._explained < _MOST_EXPLAINED:
            self._explained += 1
            self._said = self.meeting.exchange(mine, WAIT_S)
        return self._said

    def _tell(self, number):
        """The numbers of all."""
        told = {number}
        for group in (processes.dividing for processes in self._groups):
            numbers = torch.empty(group.size(), dtype=torch.int64, device="cpu")
            mine = number if told == {number} else _PYTORCH
            all_gather(numbers, torch.tensor([mine], dtype=torch.int64, device="cpu"), group)
            told.update(numbers.tolist())
        return told


def _reasons(others):
    said = {rank: text for rank, text in others.items() if text.startswith("runs the module in PyTorch")}
    return "".join(f"; process {rank} {text}" for rank, text in list(said.items())[:1])


def _first_difference(others):
    """In words, of the first process that differs from the first of all."""
    ranks = sorted(others)
    expected = others[ranks[0]].splitlines() if ranks else []
    for rank in ranks:
        lines = others[rank].splitlines()
        for ours, theirs in itertools.zip_longest(lines, expected, fillvalue="nothing"):
            if ours != theirs:
                alike = [other for other in ranks if others[other] == others[rank]]
                return f"; {processes_text(alike)}: {_short(ours)}, {processes_text(ranks[:1])}: {_short(theirs)}"
    return ""


def _short(line):
    return line if len(line) <= _MOST_LETTERS else f"{line[:_MOST_LETTERS]}…"
