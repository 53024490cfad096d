"""verify=True: each plan that a step uses is run once more without any recipe, and has to give the same bits."""

from dataclasses import dataclass

import torch

from lowtide._lowtide import Session
from lowtide.errors import InternalError

from .custom_functions import CallHandler

_RECIPES = ("memory_config", "memory_level", "memory_knee", "memory_budget", "memory_budget_fraction")
_WITHOUT_RECIPES = "default_rematerialisation"


@dataclass
class _Before:
    """What forward was given, as it was then."""

    inputs: list
    random_state: torch.Tensor


@dataclass
class _Step:
    plan: object
    before: _Before
    random_key: int
    outputs: list  # None for views of inputs


class PlanCheck:
    """Of one captured graph. The second run has the same inputs, incoming gradients and random key; what it computes is
    compared in backward, where both are known, and nobody else sees it."""

    def __init__(self, captured, options):
        """`options`: of the session that is checked."""
        self._captured = captured
        self._options = {name: value for name, value in options.items() if name not in _RECIPES}
        self._options["disabled_passes"] = [*options.get("disabled_passes", ()), _WITHOUT_RECIPES]
        self._options["fault"] = ("", 1.0)
        self._session = None
        # Processes that compute together check together, whatever plan each of them has: in every call.
        self._always = bool(captured.imported.groups)
        self.checked = set()  # plans

    def before(self, tensors, updated):
        """To be called before forward. `tensors`: BoundInputs; `updated`: places of those that forward writes."""
        inputs = []
        for index, source in enumerate(self._captured.sources):
            tensor = tensors[index].detach()
            inputs.append(tensor.clone() if source.kind == "input" or index in updated else tensor)
        return _Before(inputs, torch.get_rng_state())

    def after(self, plan, before, random_key, outputs):
        """Of a forward that `plan` served; None where that plan has been checked."""
        if self._is_done(plan):
            return None
        kept = [output if output is None or type(output) is tuple else output.detach().clone() for output in outputs]
        return _Step(plan, before, random_key, [None if type(output) is tuple else output for output in kept])

    def compare(self, step, incoming, gradients):
        """InternalError, which names the first tensor that differs."""
        if self._is_done(step.plan):
            return
        outputs, expected = self._run(step, incoming)
        names = [graph_output["value"] for graph_output in self._captured.graph.outputs()]
        for place, (found, wanted) in enumerate(zip(step.outputs, outputs, strict=True)):
            if found is not None and type(wanted) is not tuple:
                self._same(f"the output %{self._captured.graph.value_name(names[place])}", found, wanted)
        for target, found, wanted in zip(self._session.gradient_targets, gradients, expected, strict=True):
            source = self._captured.sources[target]
            self._same(f"the gradient of {source.paths[0] if source.kind != 'input' else source.name}", found, wanted)
        self.checked.add(step.plan)

    def _is_done(self, plan):
        return plan in self.checked and not self._always

    def _run(self, step, incoming):
        if self._session is None:
            self._session = Session(self._captured.graph, **self._options)
            self._session.set_call_handler(CallHandler(self._captured.functions, self._captured.imported.groups))
        session, now = self._session, torch.get_rng_state()
        torch.set_rng_state(step.before.random_state)
        try:
            outputs, pending = session.forward(step.before.inputs, step.random_key, True)
            saved = [step.before.inputs[index] for index in session.saved_inputs]
            return outputs, session.backward(pending, incoming, saved)
        finally:
            torch.set_rng_state(now)

    def _same(self, name, found, wanted):
        if (found is None) != (wanted is None):
            raise InternalError(f"verify: {name} is {'missing' if found is None else 'there'} in this plan alone")
        if found is None:
            return
        differ = (_bits(found) != _bits(wanted)).any(-1)
        if differ.any():
            first = int(differ.nonzero()[0])
            raise InternalError(
                f"verify: {name} is not what the plan without recipes computes: {int(differ.sum())} of "
                f"{differ.numel()} elements differ, the first at {first}: expected "
                f"{wanted.reshape(-1)[first].item()!r}, found {found.reshape(-1)[first].item()!r}"
            )


def _bits(tensor):
    """[elements, bytes of each]: NaN is NaN, and 0 is not -0."""
    flat = tensor.detach().reshape(-1).contiguous()
    return flat.view(torch.uint8).reshape(flat.numel(), flat.element_size())
