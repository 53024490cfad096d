"""A training step as autograd sees it: a chain of functions, one a region of the engine's backward.

Backward runs the first region in the first function and hands its gradients to PyTorch, which accumulates them and runs
their hooks before the next function runs the next region. A token leads from each function to the next.
"""

import struct
import weakref

import torch

from .hooked_outputs import LinkedOutputs
from .regions import BackwardByRegion
from .separate_outputs import LeftOutputs


def run_chain(agent, tensors, sizes):
    """(outputs with None for views of inputs, {index of such an output: view}). `tensors`: BoundInputs."""
    call = _Call(agent, tensors, sizes)
    token, targets = None, agent.gradient_targets
    if agent.hands_out_by_region:
        with torch.no_grad():
            call.run_forward()  # which tells the plan
        regions = agent.regions_of(call.forward.pending.plan)
        chain = call.chain = _Chain(regions)
        for number in range(len(regions.targets) - 1, 0, -1):
            token = _NextRegion.apply(chain, number, token, *tensors.take(regions.targets[number]))
        targets = regions.targets[0]
    outputs = list(_FirstRegion.apply(call, token, *tensors.take(targets)))
    if agent.links is not None:
        call.linked.link(outputs, call.context)
    return outputs, call.views


class _Call:
    """What the functions need of one call when they are applied."""

    chain = outputs = views = forward = context = linked = None

    def __init__(self, agent, tensors, sizes):
        self.agent, self.tensors, self.sizes = agent, tensors, sizes

    def run_forward(self):
        self.outputs, self.views, self.forward = self.agent.forward_step(self.tensors, keep=True)


class _Chain:
    """What the functions of one step share."""

    def __init__(self, regions):
        self.gradients = regions.gradients  # by function
        self._runs = weakref.WeakValueDictionary()  # number → _Token
        self._count = 0

    def begin(self, run):
        """(the token's gradient, which leads to the next functions; gradients of the first). `run`: next() gives those
        of each function."""
        found = next(run)
        if len(self.gradients) == 1:
            return None, found
        self._count += 1
        token = self._runs[self._count] = _Token(struct.pack("d", self._count))
        token.run = run
        return torch.frombuffer(token, dtype=torch.float64), found

    def next(self, token):
        return next(self._runs[int(token)].run)

    def parts(self, gradients):
        """Of all gradients, function by function; none is held any longer. PyTorch copies what others hold too."""
        gradients = list(gradients)
        return (_taken(gradients, numbers) for numbers in self.gradients)


def _taken(items, places):
    taken = [items[place] for place in places]
    for place in places:
        items[place] = None
    return taken


class _Token(bytearray):
    """The bytes of a token's gradient, which live as long as it does: with it PyTorch frees the run, also where a
    backward ends early."""

    __slots__ = ("__weakref__", "run")


class _FirstRegion(torch.autograd.Function):
    """Forward, and the first region of backward. Parameters are arguments: hooks and accumulation are autograd's."""

    @staticmethod
    def forward(ctx, call, token, *targets):
        if call.forward is None:
            call.run_forward()
        agent, outputs = call.agent, call.outputs
        ctx.agent, ctx.forward, ctx.chain = agent, call.forward, call.chain
        plan = ctx.forward.pending.plan
        # PyTorch looks in backward whether somebody changed these in place, and hooks on saved tensors see them.
        saved_inputs, saved_outputs = agent.saved_by(plan)
        saved = [outputs[index] for index in saved_outputs]
        given = ctx.given = agent.remember(call.tensors, call.sizes, plan)
        inputs = call.tensors.take(saved_inputs)
        ctx.save_for_backward(*inputs, *saved, *given.take_holder(), *call.forward.take_before())
        if agent.links is not None:
            call.linked = ctx.linked = LinkedOutputs(agent.links)
            call.context = ctx
        if agent.outputs_without_grad:
            others = [outputs[index] for index in agent.outputs_without_grad if outputs[index] is not None]
            ctx.mark_non_differentiable(*others)
        ctx.set_materialize_grads(False)
        ctx.left = None  # LeftOutputs, behind a backward
        return tuple(outputs)

    @staticmethod
    @torch.compiler.disable  # a backward within a function that Dynamo compiles
    def backward(ctx, *gradients):
        agent, chain = ctx.agent, ctx.chain
        try:
            saved = ctx.saved_tensors
        except RuntimeError:  # PyTorch's graph was not kept, or somebody has changed a saved tensor
            if ctx.left is None or not ctx.left.take_all_of(gradients, agent.grad_outputs):
                raise
            return _of_left_outputs(ctx, gradients)
        if agent.ways is not None:
            given = tuple(index for index in agent.grad_outputs if gradients[index] is not None)
            left = agent.ways.left(given)
            ctx.left = LeftOutputs(left, ctx.given, saved) if left else None
        if agent.links is not None:
            gradients = ctx.linked.from_outside(ctx, gradients)
        incoming = [gradients[index] for index in agent.grad_outputs]
        if chain is not None and ctx.forward.pending is not None and not torch.is_grad_enabled():
            token, found = chain.begin(BackwardByRegion(agent, ctx.forward, incoming, ctx.given.of_step(saved)))
            return None, token, *found
        found = _all_gradients(ctx, incoming, saved)
        if chain is None:
            return None, None, *found
        token, found = chain.begin(chain.parts(found))
        return None, token, *found


def _of_left_outputs(ctx, gradients):
    found = ctx.left.gradients(ctx.agent, ctx.forward, gradients)
    if ctx.chain is None:
        return None, None, *found
    token, found = ctx.chain.begin(ctx.chain.parts(found))
    return None, token, *found


def _all_gradients(ctx, incoming, saved):
    agent, forward = ctx.agent, ctx.forward
    if torch.is_grad_enabled():
        return agent.differentiable_gradients(forward, ctx.given.recall(saved), incoming, ctx.given.sizes)
    if forward.pending is not None:
        return agent.backward(forward, incoming, ctx.given.of_step(saved)[: len(ctx.given.saved)])
    # The backward before has used the activations up.
    inputs = ctx.given.recall(saved)
    forward = agent.forward_again(forward, inputs, ctx.given.sizes)
    saved_inputs, _ = agent.saved_by(forward.pending.plan)
    return agent.backward(forward, incoming, [inputs[index] for index in saved_inputs])


class _NextRegion(torch.autograd.Function):
    """A further region of backward."""

    @staticmethod
    def forward(ctx, chain, number, token, *targets):
        ctx.chain, ctx.is_last = chain, number + 1 == len(chain.gradients)
        ctx.set_materialize_grads(False)
        return torch.zeros(1, dtype=torch.float64)

    @staticmethod
    @torch.compiler.disable
    def backward(ctx, token):
        found = ctx.chain.next(token)
        return None, None, None if ctx.is_last else token, *found
