"""One call of a module in pieces, with its backward: what ran where, its share of the time, and what it needs."""

import time
from dataclasses import dataclass

import torch

from lowtide._lowtide import step_bytes_beside, step_peak
from lowtide.capture import trees

_SUMS = ("gradient_bytes", "lower_bound_bytes", "output_bytes", "held_bytes")


@dataclass(frozen=True)
class Ran:
    """One call of a piece: `agent`, `sizes` and whether it kept what its backward needs alone where the engine ran it,
    else `reason`."""

    agent: object
    sizes: object
    seconds: float
    reason: str | None
    in_two: bool = False

    def memory(self):
        """As TrainingAgent.memory_report tells it."""
        return self.agent.memory_report(self.sizes, self.in_two)

    def need(self):
        """StepNeed of this call."""
        return self.agent.step_need(self.agent.symbol_values(self.sizes), self.in_two)


class StepOfPieces:
    """`ran`: Ran, in order; `breaks`: "model.py:41" → reason; `share`: tells the engine's share of its time, once it is
    known; `arena_bytes`: of the arena that the graphs had together, if they had one."""

    def __init__(self, ran, breaks, share, arena_bytes=None):
        self.ran, self._breaks, self.share, self._arena_bytes = ran, breaks, share, arena_bytes
        self.in_engine = [one for one in ran if one.agent is not None]

    def words(self):
        """How it ran: "3 of 3 pieces in the engine, 97% of the step's time; breaks: model.py:41 (…)". The share is that
        of a step which compiled nothing, once there was one."""
        text = f"{len(self.in_engine)} of {len(self.ran)} pieces in the engine"
        if (share := self.share()) is not None:
            text += f", {share:.0%} of the step's time"
        if self._breaks:
            text += f"; breaks: {', '.join(f'{where} ({why})' for where, why in self._breaks.items())}"
        reasons = dict.fromkeys(one.reason for one in self.ran if one.reason)
        return text + "".join(f"; in PyTorch: {reason}" for reason in reasons)

    def memory(self):
        """As TrainingAgent.memory_report tells it of one graph: bytes of all pieces in the engine, as they are live at
        once (step_peak). What PyTorch allocates between the pieces is not in it."""
        reports, needs = [one.memory() for one in self.in_engine], [one.need() for one in self.in_engine]
        found = {name: sum(report[name] for report in reports) for name in _SUMS}
        found["external_bytes"] = max((need.external_bytes for need in needs), default=0)
        found["arena_bytes"] = self._arena_bytes or step_peak(needs) - step_bytes_beside(needs)
        found["planned_peak_bytes"] = found["arena_bytes"] + step_bytes_beside(needs)
        return found

    def opportunities(self, configuration, probe):
        """Rows of TrainingAgent.memory_stat of each graph that trains, with its place among the pieces and the peak
        after of the whole step."""
        peak, rows = self.memory()["planned_peak_bytes"], []
        for place, agent, sizes in self._graphs():
            if agent.training:
                stat = agent.memory_stat(configuration, probe, sizes=sizes)
                own = agent.session.memory(agent.symbol_values(sizes), False)["planned_peak_bytes"]
                for row in stat["rows"]:
                    after = row["peak_after"]
                    rows.append({**row, "piece": place, "peak_after": after and peak - own + after})
        return sorted(rows, key=lambda row: -row["saving_bytes"])

    def report(self):
        """Of SessionReport, what the feature table reads: sums over the graphs."""
        reports = [agent.session.report for _, agent, _ in self._graphs()]
        counts = ("lowered", "native_nodes", "aten_nodes", "python_nodes")
        found = {name: sum(report[name] for report in reports) for name in counts}
        return found | {"fallbacks": [call for report in reports for call in report["fallbacks"]]}

    def texts(self, text):
        """`text` of (TrainingAgent, sizes) of each graph, under its place among the pieces."""
        return "\n".join(f"piece {place} of {len(self.ran)}:\n{text(*graph)}" for place, *graph in self._graphs())

    def _graphs(self):
        """(place from 1, TrainingAgent, sizes) of the first run of each graph."""
        seen = set()
        for place, one in enumerate(self.ran, start=1):
            if one.agent is not None and one.agent not in seen:
                seen.add(one.agent)
                yield place, one.agent, one.sizes


class SharesOfTime:
    """Of the engine, by the pieces that ran: measured once, in a step that compiles nothing."""

    def __init__(self, parameters):
        """`parameters`: gives those of the module."""
        self._parameters = parameters
        self._known = {}  # agents → share
        self._agents = set()  # ids of those that have run
        self._measured = None  # the _Step that is

    def of(self, ran):
        """What tells the share, or None as long as it is not known."""

        def share():
            self._settle()
            return self._known.get(_key(ran))

        return share

    def call_begins(self):
        self._settle()
        if self._measured is not None:  # its backward never came
            self._measured.end_hooks()
            self._measured = None

    def call_ended(self, ran, seconds, result):
        """`seconds`: of the whole forward; `result`: what it returned."""
        key = _key(ran)
        is_new = not self._agents.issuperset(key)
        self._agents.update(key)
        if is_new or key in self._known:
            return
        outputs = [leaf for leaf in trees.flatten(result)[0] if isinstance(leaf, torch.Tensor) and leaf.grad_fn]
        parameters = [parameter for parameter in self._parameters() if parameter.requires_grad] if outputs else []
        self._measured = _Step(ran, seconds, outputs, parameters)

    def _settle(self):
        step = self._measured
        if step is not None and (share := step.share()) is not None:
            self._known[step.key] = share
            step.end_hooks()
            self._measured = None


def _key(ran):
    return tuple(id(one.agent) for one in ran)


class _Step:
    """Its backward goes from the first gradient that reaches an output to the last that reaches a parameter."""

    def __init__(self, ran, forward_seconds, outputs, parameters):
        self.key = _key(ran)
        self._agents = {one.agent for one in ran if one.agent is not None}
        self._in_engine = sum(one.seconds for one in ran if one.agent is not None) - self._backwards()
        self._forward_seconds, self._has_backward = forward_seconds, bool(parameters)
        self._begin = self._end = None
        self._hooks = [output.register_hook(self._note_begin) for output in outputs]
        self._hooks += [parameter.register_hook(self._note_end) for parameter in parameters]

    def share(self):
        """None before backward has begun."""
        if not self._has_backward:
            return min(self._in_engine + self._backwards(), self._forward_seconds) / self._forward_seconds
        if self._end is None or self._begin is None:
            return None
        total = self._forward_seconds + self._end - self._begin
        return min(self._in_engine + self._backwards(), total) / total

    def end_hooks(self):
        for hook in self._hooks:
            hook.remove()

    def _backwards(self):
        """Of the pieces, so far."""
        return sum(agent.backward_seconds for agent in self._agents)

    def _note_begin(self, _):
        self._begin = self._begin or time.perf_counter()

    def _note_end(self, _):
        self._end = time.perf_counter()


def summary_of(stat):
    """The tables of TrainingAgent.memory_stat."""
    return f"{stat['insight']}\n{stat['summary']}"
