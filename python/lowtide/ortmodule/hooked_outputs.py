"""Hooks on outputs that others depend on: `out.logits.register_hook(f)`, `retain_grad()`, where the loss is made of the
logits inside. All outputs come out of one function, so that autograd knows of no way from one to another. A link is
that way:

    logits, raw loss = first region(...)
    loss = link(raw loss, logits)          backward: what the loss's gradient gives the logits, if these have a hook

Where there is none, links hand nothing on, and the first region's backward computes all. Where there is one, the part
of the graph from the logits to the loss runs again in a session of its own. Then the first region gets of the logits'
gradient what is not its own doing: the sum is what the hooks have made of it.
"""

import re
import weakref

import torch

from lowtide._lowtide import Graph
from lowtide.errors import EngineError, Error, UnsupportedError

_MOST_PARTS = 100  # kept: sessions


class OutputLinks:
    """Of an agent's graph."""

    def __init__(self, lowered, differentiable, make_session):
        """`lowered`: text of the graph without writes; `differentiable`: outputs, by their places; `make_session`: of a
        Graph."""
        graph = Graph.parse(lowered)
        self._make_session, self._lowered, self._parts = make_session, lowered, {}
        self._left = {}  # outputs of a backward → those that it leaves
        made = [entry["value"] for entry in graph.outputs() if entry["kind"] == "output"]
        self._values = {index: made[index] for index in differentiable}
        self.sources = _sources(graph, self._values)  # output → those that lead to it, in the graph's order
        self.watched = frozenset(index for found in self.sources.values() for index in found)

    def part(self, output, cuts):
        """_Part from the outputs `cuts` to another one."""
        return self._part((output,), cuts, ())

    def separate(self, outputs, names):
        """_Part of these outputs from the inputs, with gradients of those with these names."""
        return self._part(outputs, (), names)

    def _part(self, outputs, cuts, names):
        part = self._parts.get((outputs, cuts))
        if part is None:
            if len(self._parts) >= _MOST_PARTS:
                self._parts.clear()
            ends, values = ([self._values[index] for index in places] for places in (outputs, cuts))
            part = self._parts[outputs, cuts] = _Part(self._lowered, ends, values, names, self._make_session)
        return part

    def left(self, given):
        """The outputs that are none of `given`, a tuple of them, and lead to none of them."""
        if given not in self._left:
            if len(self._left) >= _MOST_PARTS:
                self._left.clear()
            done = {*given, *(index for each in given for index in self.sources.get(each, ()))}
            values = {self._values[index] for index in done}
            self._left[given] = frozenset(index for index, value in self._values.items() if value not in values)
        return self._left[given]


def _sources(graph, values):
    bits = {value: 1 << place for place, value in enumerate(dict.fromkeys(values.values()))}
    reached = {}  # value → bits of the outputs that lead to it
    for node in graph.nodes():
        found = 0
        for value in node["inputs"]:
            found |= reached.get(value, 0) | bits.get(value, 0)
        if found:
            reached.update(dict.fromkeys(node["outputs"], found))
    of_inputs = {entry["value"] for entry in graph.inputs()}
    made = sorted((value, index) for index, value in values.items() if value not in of_inputs)
    sources = {}
    for value, index in made:
        found, seen = [], set()
        for other, other_index in made:
            if other not in seen and reached.get(value, 0) & bits[other]:
                seen.add(other)
                found.append(other_index)
        if found:
            sources[index] = tuple(found)
    return sources


class _Part:
    """Of the graph: from some outputs to others, with all that these need beside them."""

    def __init__(self, lowered, outputs, cuts, names, make_session):
        """`names`: of inputs whose gradients are asked for, beside those of the cuts."""
        graph = Graph.parse(lowered)
        names = [*(graph.value_name(value) for value in cuts), *names]
        part = graph.excerpt(cuts, outputs, {})
        inputs = [part.value_name(entry["value"]) for entry in part.inputs()]
        if made := [name for name in names[: len(cuts)] if name not in inputs and part.find_value(name) is not None]:
            raise UnsupportedError(f"a hook on an output that is made together with another one: {made[0]}")
        text = part.text()
        for name in set(names) & set(inputs):
            text = re.sub(rf"(%{re.escape(name)}: [^%]*? input)\b", r"\1 grad", text, count=1)
        try:
            self._session = make_session(Graph.parse(text))
        except Error as error:
            raise UnsupportedError(f"a hook on an output: {error}") from error
        self._cuts, self.input_names = names[: len(cuts)], self._session.input_names

    def gradients(self, given, cut, gradient, key):
        """By the cuts. `given`: the call's inputs by name; `cut`: the outputs; `key`: of random numbers."""
        found = self.gradients_by_name({**given, **dict(zip(self._cuts, cut, strict=True))}, [gradient], key)
        return [found.get(name) for name in self._cuts]

    def gradients_by_name(self, tensors, gradients, key):
        """{name of an input: its gradient}. `tensors`: by name; `gradients`: of the outputs."""
        inputs = [tensors[name].detach().contiguous() for name in self.input_names]
        pending = self._session.run_forward(inputs, key)
        saved, _ = self._session.saved_by(pending.plan)
        found = self._session.backward(pending, gradients, [inputs[index] for index in saved])
        names = [self.input_names[index] for index in self._session.gradient_targets]
        return dict(zip(names, found, strict=True))


class LinkedOutputs:
    """Those of one call."""

    def __init__(self, links):
        self._links, self._watched = links, {}
        self._found = {}  # output → (its gradient, the outputs with a hook, their gradients), until backward ends

    def link(self, outputs, first):
        """Puts links into the list of outputs. `first`: the context of the first region, which holds this."""
        for index in range(len(outputs)):
            self._watch(index, outputs[index])
        for index, sources in self._links.sources.items():
            sources = [source for source in sources if outputs[source] is not None]
            if outputs[index] is not None and sources:
                others = [outputs[source] for source in sources]
                outputs[index] = _Link.apply(self, first, index, sources, outputs[index], *others)
                self._watch(index, outputs[index])

    def _watch(self, index, output):
        if index in self._links.watched and output is not None:
            self._watched[index] = weakref.ref(output), output._version

    def hooked(self, outputs):
        """Those with a hook."""
        return tuple(index for index in outputs if self._hooked(index) is not None)

    def _hooked(self, index):
        reference, version = self._watched.get(index, (None, 0))
        tensor = reference and reference()
        if tensor is None or tensor._version != version:  # what is changed in place is no output any more
            return None
        return tensor if tensor.retains_grad or tensor._backward_hooks else None

    def from_inside(self, first, output, gradient, hooked):
        """{output with a hook: what the gradient of `output` gives it}."""
        known = self._found.get(output)
        if known is None or known[0] is not gradient or known[1] != hooked:
            if torch.is_grad_enabled():
                raise EngineError("a hook on an output that others depend on, in a backward under create_graph=True")
            agent, forward = first.agent, first.forward
            part = self._links.part(output, hooked)
            given = dict(zip(agent.session.input_names, first.given.recall(first.saved_tensors), strict=True))
            cut = [self._hooked(index) for index in hooked]
            with forward.random.again():
                found = part.gradients(given, cut, gradient, forward.random.key)
            known = self._found[output] = gradient, hooked, dict(zip(hooked, found, strict=True))
        return known[2]

    def from_outside(self, first, gradients):
        """Of the gradients that reach the first region, by its outputs: without what it will add itself."""
        hooked, inside = self.hooked(sorted(self._watched)), {}
        for output, sources in self._links.sources.items() if hooked else ():
            found = tuple(index for index in sources if index in hooked)
            if found and gradients[output] is not None:
                for index, part in self.from_inside(first, output, gradients[output], found).items():
                    if part is not None:
                        inside[index] = inside[index] + part if index in inside else part
        self._found.clear()
        gradients = list(gradients)
        for index, part in inside.items():
            gradient = torch.zeros_like(part) if gradients[index] is None else gradients[index]
            gradients[index] = None if torch.equal(gradient, part) else gradient - part
        return gradients


class _Link(torch.autograd.Function):
    @staticmethod
    def forward(ctx, linked, first, index, sources, output, *others):
        ctx.linked, ctx.first, ctx.index, ctx.sources = linked, first, index, sources
        ctx.set_materialize_grads(False)
        return output.detach()

    @staticmethod
    @torch.compiler.disable  # a backward within a function that Dynamo compiles
    def backward(ctx, gradient):
        hooked = () if gradient is None else ctx.linked.hooked(ctx.sources)
        found = ctx.linked.from_inside(ctx.first, ctx.index, gradient, hooked) if hooked else {}
        return None, None, None, None, gradient, *map(found.get, ctx.sources)


def ways_of(session, differentiable, make_session):
    """OutputLinks, None where there is one output."""
    return OutputLinks(session.lowered_text(), differentiable, make_session) if len(differentiable) > 1 else None
