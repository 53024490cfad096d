"""Backward region by region: what each hands out, and a run of it."""

from lowtide._lowtide import release_memory

from .given_inputs import check_versions, version_of


class Regions:
    """Of the backward of one plan of an agent's session."""

    def __init__(self, agent, plan):
        found = agent.session.backward_regions(plan)
        inputs, outputs = agent.saved_by(plan)
        self.saved_inputs = len(inputs)
        place_of_input = {index: place for place, index in enumerate(inputs)}
        place_of_output = {index: len(inputs) + place for place, index in enumerate(outputs)}
        # By region: the gradients that it hands out, the inputs that they are of, places of what autograd saved for it.
        self.gradients = [gradients for gradients, _, _ in found]
        self.targets = [[agent.gradient_targets[number] for number in numbers] for numbers in self.gradients]
        self.reads = [
            [place_of_input[index] for index in read] + [place_of_output[index] for index in read_outputs]
            for _, read, read_outputs in found
        ]
        # By region: places of outputs that no later one reads.
        self.done_with = [
            {place for place in read if place >= self.saved_inputs}.difference(*self.reads[number + 1 :])
            for number, read in enumerate(self.reads)
        ]
        # Under ZeRO stage 3. DeepSpeed copies a gradient before it reduces it, and has no other room for that.
        self.are_copied = any(
            source.shard is not None and source.shard.gives_whole_gradient for source in agent.captured.sources
        )
        targets = (index for targets in self.targets for index in targets)
        # A parameter, or None.
        self.parameter = next((index for index in targets if agent.captured.sources[index].kind == "param"), None)


class BackwardByRegion:
    """One backward: each next() runs a region and returns its gradients, which nobody of ours holds then."""

    def __init__(self, agent, forward, gradients, saved):
        """`saved`: the tensors that autograd saved, inputs and outputs. They and `gradients` live as long as this, but
        outputs until the last region that reads them has run."""
        self._agent, self._gradients, self._saved = agent, gradients, list(saved)
        self._pending, self._step, _ = forward.take()
        self._regions = agent.regions_of(self._pending.plan)
        self._versions = [version_of(tensor) for tensor in saved]
        self._next = 0
        self._missing, self._inspected = set(), []

    def __next__(self):
        agent, number = self._agent, self._next
        self._next += 1
        check_versions(self._saved, self._versions, self._regions.reads[number])
        found, missing, inspected = agent.run_backward(self._run_region)
        for place in self._regions.done_with[number]:
            self._saved[place] = None
        is_last = self._next == len(self._regions.gradients)
        if agent.inspects:
            self._inspected.extend(inspected)
            if is_last:
                agent.inspections.backward_done(self._step, self._inspected)
        self._missing.update(missing or ())
        given = tuple(gradient is not None for gradient in self._gradients)
        if self._missing or not any(given):
            exist = agent.gradients_that_exist(given, frozenset(self._missing))
            numbers = self._regions.gradients[number]
            found = [tensor if exist[place] else None for place, tensor in zip(numbers, found, strict=True)]
        return found

    def _run_region(self):
        session = self._agent.session
        if self._regions.are_copied:
            release_memory()  # outputs that nobody holds any more
        if self._next == 1:
            session.begin_backward(self._pending, self._gradients, self._saved[: self._regions.saved_inputs])
        return session.run_next_region(self._pending, self._regions.gradients[self._next - 1])
