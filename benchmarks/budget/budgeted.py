"""A model of benchmarks/training whose training step is asked for its loss alone, under budgets that change between
steps: one export, one archive of plans."""

import gc
import json

import lowtide
from lowtide.ortmodule import DebugOptions, LogLevel, ORTModule


class BudgetedStep:
    """module(**batch).loss, under the budget that was set last; `frontier`: every plan, at the batch's sizes."""

    def __init__(self, model, batch):
        self.module = ORTModule(model, DebugOptions(LogLevel.ERROR), keep_outputs=("loss",))
        self.module(**batch).loss.backward()
        if reason := self.module.fallback_reason:
            raise RuntimeError(f"runs in PyTorch: {reason}")
        self.agent = self.module._training_manager.last_agent
        self.session = self.agent.session
        self.values = self.agent.symbol_values()
        self.memory_without = self.session.memory(self.values)
        self.frontier = json.loads(self.session.frontier(self.values))
        self.rungs = self.frontier["rungs"]

    def __call__(self, **batch):
        return self.module(**batch).loss

    def set_budget(self, budget_bytes):
        """0: none."""
        self.session.set_memory_budget(budget_bytes)

    def planned_peak_bytes(self, values=None):
        return self.session.memory(values or self.values)["planned_peak_bytes"]

    def transitions(self):
        """{trigger: how often}, of docs/transitions.md."""
        counts = self.module.transition_counts()
        return {name: count for of_mode in counts.values() for name, count in of_mode.items() if count}

    def rung_within(self, budget_bytes):
        """The index of the fastest plan within that many bytes, at the batch's sizes."""
        fitting = (index for index, rung in enumerate(self.rungs) if rung["peak_bytes"] <= budget_bytes)
        return min(fitting, key=lambda index: self.rungs[index]["predicted_ms"])

    def predicted_ms(self, budget_bytes):
        return self.rungs[self.rung_within(budget_bytes)]["predicted_ms"]


def nearest_rung(rungs, added):
    """The index of the plan whose predicted time is nearest to `added` (0.1: a tenth) over the first one's."""
    first = rungs[0]["predicted_ms"]
    return min(range(len(rungs)), key=lambda i: (abs(rungs[i]["predicted_ms"] / first - 1 - added), i))


def give_back_memory(model):
    """What a step before has left: gradients, and blocks that the engine keeps."""
    model.zero_grad(set_to_none=True)
    gc.collect()
    lowtide.release_memory()
