"""What forward and its hooks put into lists, dicts and variables in each call anew are outputs of the graph."""

import copy

import pytest
import torch
from modules import of

from lowtide.ortmodule import ORTModule


class Deep(torch.nn.Module):
    def __init__(self, step=None):
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(3)).double()
        self.acts, self.named, self.step = [], {}, step

    def forward(self, x):
        if self.step is clearing:
            self.acts.clear()
        for index, layer in enumerate(self.layers):
            x = torch.tanh(layer(x))
            if self.step is not None:
                self.step(self, index, x)
        return x


def clearing(module, index, x):
    module.acts.append(x)


def appending(module, index, x):
    module.acts.append(x if index else x.detach())


def naming(module, index, x):
    module.named[f"layer {index}"] = x


class Recorder:
    def __init__(self):
        self.last, self.each = None, []

    def __call__(self, module, arguments, output):
        self.last = output

    def take(self, module, arguments, output):
        self.each.append(output)


def of_module(step):
    def build():
        module = Deep(step)
        clear = module.acts.clear if step is appending else int
        return module, lambda: [*module.acts, *module.named.values()], clear

    return build


def hooked_dict():
    module, features = Deep(), {}
    module.layers[0].register_forward_hook(lambda _, arguments, output: features.__setitem__("first", output))
    module.layers[2].register_forward_hook(lambda _, arguments, output: features.__setitem__(2, (output, output.sum())))
    return module, lambda: [features["first"], *features[2]], int


def hooked_list():
    module, features = Deep(), []
    for layer in module.layers:
        layer.register_forward_hook(lambda _, arguments, output: features.append(output))
    return module, lambda: features, features.clear


def hooked_variable():
    module, last = Deep(), None

    def hook(_, arguments, output):
        nonlocal last
        last = output

    module.layers[1].register_forward_hook(hook)
    return module, lambda: [last], int


def hooked_object():
    module, recorder = Deep(), Recorder()
    module.layers[1].register_forward_hook(recorder)
    module.layers[0].register_forward_hook(recorder.take)
    return module, lambda: [recorder.last, *recorder.each], recorder.each.clear


HABITS = {
    "a list that forward clears": (of_module(clearing), 2),
    "a list that the user clears": (of_module(appending), 1),
    "a dict": (of_module(naming), 2),
    "a hook's dict": (hooked_dict, 2),
    "a hook's list": (hooked_list, 1),
    "a hook's variable": (hooked_variable, 2),
    "a hook's object": (hooked_object, 1),
}


def given(index):
    rows = 3 + index % 4
    return torch.randn(rows, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(index))


def steps(build, wrap):
    module, collected, clear = build()
    wrapped, found = wrap(module), []
    for index in range(8):
        clear()
        out = wrapped(given(index))
        kept = list(collected())
        assert kept
        module.zero_grad()
        (out.sum() + sum(each.square().sum() for each in kept)).backward()
        found.append([out, *kept, *(p.grad.clone() for p in module.parameters())])
    return wrapped, found


@pytest.mark.parametrize("name", HABITS)
def test_what_is_collected_is_there_after_each_call(name):
    build, exports = HABITS[name]
    _, expected = steps(build, lambda module: module)
    wrapped, found = steps(build, ORTModule)
    torch.testing.assert_close(found, expected)
    assert wrapped.fallback_reason is None
    (counts,) = wrapped.transition_counts().values()
    assert sum(counts.values()) == exports


def carried(m, a):
    before = m.state.get("h")
    y = m.l(a) if before is None else m.l(a) + before.sum()
    m.state["h"] = y.detach()
    return y


def beside_a_number(m, a):
    m.state.update(h=m.l(a), rate=m.rate)
    return m.state["h"]


def test_plain_values_beside_it_keep_their_order():
    module = of(beside_a_number, state={}, rate=0.5)
    eager, wrapped = copy.deepcopy(module), ORTModule(module)
    for index in range(4):
        module.rate = eager.rate = 0.5 + index
        torch.testing.assert_close(wrapped(given(index)), eager(given(index)))
        assert list(module.state) == list(eager.state) and module.state["rate"] == eager.state["rate"]
        assert wrapped.fallback_reason is None


def sized(m, a):
    before = m.state.get("h")
    y = m.l(a) * (1 if before is None else before.shape[0])
    m.state["h"] = y.detach()
    return y


@pytest.mark.parametrize("function", [carried, sized])
def test_what_the_last_call_left_is_read(function):
    module = of(function, state={})
    eager, wrapped = copy.deepcopy(module), ORTModule(module)
    for index in (0, 0, 0, 1, 1, 2):
        torch.testing.assert_close(wrapped(given(index)), eager(given(index)))
        torch.testing.assert_close(module.state["h"], eager.state["h"])


def test_a_list_that_grows_is_pytorchs():
    module = of(lambda m, a: (m.acts.append(m.l(a)), m.acts[-1])[1], acts=[])
    wrapped = ORTModule(module)
    for index in range(5):
        wrapped(given(index))
        assert len(module.acts) == index + 1
    assert wrapped.fallback_reason is not None
    module.acts.clear()
    wrapped(given(0))
    assert wrapped.fallback_reason is None and len(module.acts) == 1


def test_a_call_that_fails_leaves_what_was_there():
    def forward(m, a):
        m.acts.clear()
        m.acts.append(m.l(a))
        if a.shape[0] == 5:
            raise ValueError("five")
        return m.acts[0]

    module = of(forward, acts=[])
    wrapped = ORTModule(module)
    for index in range(3):
        if given(index).shape[0] == 5:
            with pytest.raises(ValueError, match="five"):
                wrapped(given(index))
        else:
            wrapped(given(index))
        assert all(type(each) is torch.Tensor for each in module.acts)


class Meter:
    def __init__(self):
        self.total, self.count, self.last = 0.0, 0, None

    def update(self, value):
        self.total += value
        self.count += 1
        self.last = value


def metered(m, a):
    y = m.l(a)
    m.meter.update(y.square().mean().item())
    return y


def test_a_meter_counts_each_call():
    module = of(metered, meter=Meter())
    eager, wrapped = copy.deepcopy(module), ORTModule(module)
    for index in range(6):
        torch.testing.assert_close(wrapped(given(index)), eager(given(index)))
        ours, theirs = module.meter, eager.meter
        assert (ours.total, ours.last) == pytest.approx((theirs.total, theirs.last), rel=1e-12)
        assert ours.count == theirs.count and type(ours.count) is int
        assert wrapped.fallback_reason is None
    (counts,) = wrapped.transition_counts().values()
    assert sum(counts.values()) <= 3
