"""What a call's inputs were, for a backward that runs forward again: a further one, or one under create_graph=True."""

import math
import weakref

import torch

from lowtide.errors import EngineError
from lowtide.guards.values import DTYPES

_TORCH_DTYPES = {name: dtype for dtype, name in DTYPES.items()}


class InputMemory:
    """Of one captured graph. Arguments are remembered weakly: those that no gradient depends on may be gone, or be
    others by then. The rest of a batch is held as long as autograd holds what it saves, as eager's masks, indices and
    targets are. Activations, arguments with a gradient, are held in the first step, and in all if some step had a
    further backward: one that has a single backward must not hold more than autograd does."""

    def __init__(self, captured, session):
        self._sources = captured.sources
        numbers = captured.exported.numbers  # 0-d tensors that were made for the call
        self._arguments = [
            index
            for index, source in enumerate(self._sources)
            if source.kind == "input" and source.index not in numbers
        ]
        self._others = sorted(set(range(len(self._sources))) - set(self._arguments))
        types = [captured.graph.value_type(entry["value"]) for entry in captured.graph.inputs()]
        self._dtypes, self._shapes = [_TORCH_DTYPES[dtype] for dtype, _ in types], [shape for _, shape in types]
        self._reads = session.gradient_reads
        read = [index for index in self._arguments if index in self._reads]
        self._activations = [index for index in read if self._sources[index].requires_grad]
        self._batch = [index for index in read if not self._sources[index].requires_grad]
        self.had_backward, self.had_further_backward = False, False  # some step
        self.written = sorted(set(self._reads) & set(session.updated_inputs))  # by forward itself: kept as they were
        self._watched = {}  # plan → inputs that gradients depend on and autograd does not watch

    def held_bytes(self, sizes):
        """Of the copies of what forward writes, from a call's forward to its backward."""
        found = 0
        for index in self.written:
            source = self._sources[index]
            shape = sizes[source.index] if source.kind == "input" else self._shapes[index]
            found += math.prod(shape) * self._dtypes[index].itemsize
        return found

    def remember(self, tensors, sizes, plan, saved):
        """GivenInputs, after forward. `tensors`: BoundInputs; `sizes`: of the call's tensors; `saved`: the inputs that
        autograd saves for the plan's backward, and watches for changes."""
        watched = self._watched.get(plan)
        if watched is None:
            watched = self._watched[plan] = [index for index in self._reads if index not in saved]
        return GivenInputs(
            self,
            [weakref.ref(tensor) for tensor in tensors.take(self._arguments)],
            tensors.take(self._others),
            sizes,
            saved,
            self._holder(tensors),
            watched,
            [version_of(tensor) for tensor in tensors.take(watched)],
        )

    def _holder(self, tensors):
        """Empty, or with one tensor for autograd to save: what a further backward needs lives as long as that. Which of
        the two is the same in all calls: a checkpoint around the module counts what is saved, and asks that a call that
        runs again, between backwards of others, saves as much."""
        holds_all = self.had_further_backward or not self.had_backward
        held = self._batch + self._activations if holds_all else self._batch
        return [_holding(tensors.take(held))] if self._batch or self._activations else []

    def recall(self, given, saved):
        """All inputs in order, from GivenInputs and the tensors that autograd saved: those that forward writes as they
        were before it. EngineError where somebody else has changed one that gradients depend on."""
        self.had_further_backward = True
        found = dict(zip(self._others, given.others, strict=True))
        found.update((index, tensor()) for index, tensor in zip(self._arguments, given.arguments, strict=True))
        found.update(zip(given.saved, saved[: len(given.saved)], strict=True))
        for index, version in zip(given.watched, given.versions, strict=True):
            if index in self.written and not self._sources[index].requires_grad:
                continue
            if found[index] is None:
                raise EngineError(f"{_AGAIN} {self._text(index)}, which is gone: hold it until the last backward")
            if (now := version_of(found[index])) != version:
                raise EngineError(
                    f"{_AGAIN} {self._text(index)}, which has been modified by an inplace operation: it is at version "
                    f"{now}, expected {version}"
                )
        before = saved[len(saved) - len(self.written) :]
        for index, tensor in zip(self.written, before, strict=True):
            found[index] = _AsItWas.apply(found[index], tensor)
        for index in self._arguments:
            size = given.sizes[self._sources[index].index]
            if found[index] is None or found[index].shape != size:
                found[index] = torch.zeros(
                    size, dtype=self._dtypes[index], requires_grad=self._sources[index].requires_grad
                )
        return [found[index] for index in range(len(self._sources))]

    def _text(self, index):
        source = self._sources[index]
        words = {"input": "argument", "param": "parameter"}
        return f"{words.get(source.kind, source.kind)} '{source.paths[0] if source.paths else source.name}'"


class _Holder(bytearray):
    """The bytes of a tensor, which live as long as it does, and others with them. Were those saved themselves, PyTorch
    would look whether somebody changed them in place, also for a backward that reads none of them."""

    __slots__ = ("tensors",)


def _holding(tensors):
    holder = _Holder(1)
    holder.tensors = tensors
    return torch.frombuffer(holder, dtype=torch.uint8)


class _AsItWas(torch.autograd.Function):
    """A tensor with the history of another one."""

    @staticmethod
    def forward(ctx, now, before):
        return before.view_as(before)

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None


_AGAIN = "a second backward, or one under create_graph=True, runs forward again. Its gradients depend on"


class GivenInputs:
    """The inputs of one call."""

    __slots__ = ("arguments", "holder", "memory", "others", "saved", "sizes", "versions", "watched")

    def __init__(self, memory, arguments, others, sizes, saved, holder, watched, versions):
        self.memory, self.arguments, self.others, self.sizes = memory, arguments, others, sizes
        self.saved, self.holder, self.watched, self.versions = saved, holder, watched, versions

    def take_holder(self):
        holder, self.holder = self.holder, []
        return holder

    def recall(self, saved):
        return self.memory.recall(self, saved)

    def found(self, saved):
        """All inputs in order as they were before forward, None for arguments that are gone; `saved`: as in recall."""
        memory = self.memory
        found = dict(zip(memory._others, self.others, strict=True))
        found.update((index, tensor()) for index, tensor in zip(memory._arguments, self.arguments, strict=True))
        found.update(zip(self.saved, saved[: len(self.saved)], strict=True))
        found.update(zip(memory.written, saved[len(saved) - len(memory.written) :], strict=True))
        return [found[index] for index in range(len(found))]

    def of_step(self, saved):
        """Of the tensors that autograd saved, those that the step's own backward reads, which begins."""
        self.memory.had_backward = True
        return saved[: len(saved) - len(self.memory.written)]


def check_versions(tensors, versions, places):
    """PyTorch's error where somebody has changed one of them in place since its version was read."""
    for place in places:
        if (now := version_of(tensors[place])) != versions[place]:
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified by an inplace operation, by a "
                f"hook of a gradient that this backward has handed out already: a {tensors[place].dtype} tensor of "
                f"{list(tensors[place].shape)} is at version {now}, expected {versions[place]}"
            )


def version_of(tensor):
    """PyTorch's count of changes in place; inference tensors have none."""
    return None if tensor.is_inference() else tensor._version
