"""Steps of tiny models under what the memory optimizer is asked for: the bits of losses, gradients and buffers."""

import copy
import os
from contextlib import contextmanager

import torch
import zoo

from lowtide.capture import Call, capture, schema_of
from lowtide.ortmodule.budget import parse_budget
from lowtide.ortmodule.post_export_processed_model_info import PostExportProcessedModelInfo
from lowtide.ortmodule.training_agent import TrainingAgent

DROPOUT = 0.2
STEPS = 3


@contextmanager
def asked_for(config="", level=0, probe=""):
    """The environment variables of the memory optimizer."""
    names = {"CONFIG": config, "LEVEL": str(level), "PROBE_CONFIG": probe}
    wanted = {f"ORTMODULE_MEMORY_OPT_{name}": value for name, value in names.items() if value not in ("", "0")}
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def build(name, layers=None, dropout=DROPOUT):
    """zoo.build with another number of layers."""
    with_layers, wanted = zoo.LAYERS, layers or zoo.LAYERS
    zoo.LAYERS = zoo.SIZES["num_hidden_layers"] = wanted
    try:
        return zoo.build(name, dropout=dropout)
    finally:
        zoo.LAYERS = zoo.SIZES["num_hidden_layers"] = with_layers


class Trainee:
    """A model captured once, and trained under any settings from the same weights."""

    def __init__(self, name, layers=None, dropout=DROPOUT):
        self.model, self.make_batch = build(name, layers, dropout)
        self.captured = capture(self.model, (), self.make_batch())
        self._weights = copy.deepcopy(self.model.state_dict())

    def agent(self, budget=None, **asked):
        """`budget`: as users write it."""
        budget = None if budget is None else parse_budget(budget)
        with asked_for(**asked):
            return TrainingAgent(self.model, self.captured, training=True, budget=budget)

    def train(self, agent, steps=STEPS):
        """Every loss, gradient and buffer of SGD steps with dropout on."""
        self.model.load_state_dict(self._weights)
        optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05)
        torch.manual_seed(5)
        found = {}
        call = Call((), self.make_batch())
        schema = schema_of(call, self.model.forward)
        guards = self.captured.exported.guards
        info = PostExportProcessedModelInfo(self.model, self.captured, agent, guards, schema, True, call)
        for step in range(steps):
            optimizer.zero_grad()
            seen, inputs = info.bind((), self.make_batch(seed=step))
            loss = agent.run(inputs, seen.sizes()).loss
            loss.backward()
            found[f"loss of step {step}"] = loss.detach().clone()
            for name, parameter in self.model.named_parameters():
                if parameter.grad is not None:
                    found[f"gradient of {name} in step {step}"] = parameter.grad.clone()
            optimizer.step()
            for name, buffer in self.model.named_buffers():
                found[f"buffer {name} after step {step}"] = buffer.clone()
        return found

    def planned_peak(self, agent, batch=2, length=16):
        sizes = Call((), self.make_batch(batch=batch, length=length)).sizes()
        return agent.session.memory(agent.symbol_values(sizes))["planned_peak_bytes"]


def differences(found, expected):
    """Names of the values that are not the same bits."""
    assert found.keys() == expected.keys()
    return [name for name in expected if not torch.equal(_bits(found[name]), _bits(expected[name]))]


def _bits(tensor):
    return tensor.contiguous().view(torch.uint8) if tensor.dim() else tensor.reshape(1).view(torch.uint8)
