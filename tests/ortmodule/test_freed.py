"""A wrapper goes with its last reference, as any nn.Module does, and its engine with it: no garbage collector runs."""

import copy
import gc
import weakref

import pytest
import torch
from torch.nn import functional

from lowtide import compile_backend
from lowtide.ortmodule import DebugOptions, ORTModule
from lowtide.utils.hooks import GlobalSubscriberManager, StatisticsSubscriber


@pytest.fixture(autouse=True)
def without_collector():
    gc.collect()
    gc.disable()
    yield
    gc.enable()


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down, self.norm = torch.nn.Linear(8, 16), torch.nn.Linear(16, 4), torch.nn.BatchNorm1d(16)

    def hidden(self, x):
        return self.norm(self.up(x).relu())

    def forward(self, x):
        out = self.down(self.hidden(x))
        return {"loss": out.square().mean(), "out": out}


class Branching(Net):
    def hidden(self, x):
        h = self.up(x).relu()
        return self.norm(h * 2 if h.sum() > 0 else h)


class Noting(Net):
    """Exported again and again, until its changes are refused."""

    def __init__(self):
        super().__init__()
        self.notes = [0]

    def hidden(self, x):
        self.notes.append(sum(self.notes))
        return super().hidden(x)


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return 2 * x * gradient


class WithFunction(Net):
    def hidden(self, x):
        return Square.apply(self.up(x))


class WithOwnMethods(Net):
    def to(self, *args, **kwargs):
        return super().to(*args, **kwargs)

    def eval(self):
        return super().eval()


class Tagger(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.head = torch.nn.Embedding(50, 16), torch.nn.Linear(16, 50)

    def forward(self, ids, labels):
        return (functional.cross_entropy(self.head(self.table(ids)).view(-1, 50), labels.view(-1)),)


def parts_of(wrapper):
    """Weak references to what shall go: the modules, their tensors, the managers, their sessions' agents."""
    managers = wrapper._training_manager, wrapper._inference_manager
    agents = [manager.last_agent for manager in managers if manager.last_agent is not None]
    steps = [run.agent for manager in managers if manager.last_step for run in manager.last_step.ran if run.agent]
    return [
        weakref.ref(part)
        for part in (wrapper, *wrapper.module.modules(), *wrapper.parameters(), *managers, *agents, *steps)
    ]


def alive(references):
    return [type(part).__name__ for reference in references if (part := reference()) is not None]


def trained(wrapper, steps=2):
    for _ in range(steps):
        wrapper(torch.randn(5, 8))["loss"].backward()
        wrapper.zero_grad()
    return wrapper


def test_a_wrapper_that_was_never_called():
    references = parts_of(ORTModule(Net()))
    assert not alive(references)


@pytest.mark.parametrize("net", [Net, WithFunction, WithOwnMethods])
def test_after_training(net):
    wrapper = trained(ORTModule(net()))
    assert wrapper.fallback_reason is None
    references = parts_of(wrapper)
    del wrapper
    assert not alive(references)


def test_after_inference_and_other_sizes():
    wrapper = ORTModule(Net()).eval()
    with torch.no_grad():
        for batch in (3, 5):
            wrapper(torch.randn(batch, 8))
    assert wrapper.fallback_reason is None
    references = parts_of(trained(wrapper.train()))
    del wrapper
    assert not alive(references)


def test_outputs_keep_what_their_backward_needs():
    module = Net()
    eager, x = copy.deepcopy(module), torch.randn(5, 8)
    wrapper = trained(ORTModule(module), 1)
    trained_eager = trained(eager, 0)
    eager.load_state_dict(module.state_dict())
    loss, expected = wrapper(x)["loss"], trained_eager(x)["loss"]
    parameters, references = list(module.parameters()), parts_of(wrapper)
    wrapper_is = references[0]
    del wrapper, module
    assert wrapper_is() is None  # the outputs hold the step, not the wrapper
    loss.backward()
    expected.backward()
    for found, other in zip(parameters, eager.parameters(), strict=True):
        torch.testing.assert_close(found.grad, other.grad)
    del loss, parameters, found
    assert not alive(references)


@pytest.mark.filterwarnings("ignore::lowtide.errors.FallbackWarning")
@pytest.mark.usefixtures("with_pieces")
def test_in_pieces():
    wrapper = trained(ORTModule(Branching()), 3)
    assert "pieces in the engine" in wrapper.fallback_reason
    references = parts_of(wrapper)
    del wrapper
    assert not alive(references)


@pytest.mark.filterwarnings("ignore::lowtide.errors.FallbackWarning")
@pytest.mark.parametrize("net", [Branching, Noting])
def test_what_pytorch_runs(net, monkeypatch):
    monkeypatch.setenv("LOWTIDE_PIECES", "0")
    wrapper = trained(ORTModule(net()))
    assert wrapper.fallback_reason is not None
    references = parts_of(wrapper)
    del wrapper
    assert not alive(references)


@pytest.mark.filterwarnings("ignore::lowtide.errors.FallbackWarning")
@pytest.mark.parametrize("net", [Branching, Noting])
def test_an_export_that_fails_looks_through_no_old_objects(net, monkeypatch):
    """A collection of all generations takes longer than the export of a small model."""
    monkeypatch.setenv("LOWTIDE_PIECES", "0")
    wrapper, generations = ORTModule(net()), set()

    def note(phase, info):
        generations.add(info["generation"])

    gc.callbacks.append(note)
    try:
        wrapper(torch.randn(5, 8))
    finally:
        gc.callbacks.remove(note)
    assert wrapper.fallback_reason is not None
    assert generations and max(generations) < 2


@pytest.mark.filterwarnings("ignore::lowtide.errors.FallbackWarning")
def test_tensors_of_a_trace_that_failed_go(monkeypatch):
    """Sizes of the exporter's inputs hold these inputs, in cycles that Python does not see."""

    def of_traces():
        return {id(found) for found in gc.get_objects() if type(found).__name__ == "FakeTensor"}

    monkeypatch.setenv("LOWTIDE_PIECES", "0")
    wrapper, before = ORTModule(Branching()), of_traces()
    wrapper(torch.randn(5, 8))
    assert wrapper.fallback_reason is not None
    assert of_traces() <= before


def test_compiled():
    torch.compiler.reset()
    module = Net()
    compiled = trained(torch.compile(module, backend=compile_backend.lowtide))
    references = [weakref.ref(part) for part in (compiled, *module.modules(), *module.parameters())]
    del compiled, module
    assert not alive(references)


def test_engines_of_compiled_modules_go_with_dynamos_code(pieces):
    """Dynamo keeps it for other modules of the class."""
    trained(torch.compile(Net(), backend=compile_backend.lowtide))
    engines = [weakref.ref(piece.last_manager.last_agent) for piece in pieces]
    pieces.clear()
    torch.compiler.reset()
    assert engines and not alive(engines)


def test_with_subscribers(tmp_path):
    module = Net()
    GlobalSubscriberManager.subscribe(module, [StatisticsSubscriber(tmp_path / "out")])
    try:
        references = parts_of(trained(ORTModule(module)))
        assert (tmp_path / "out").exists()
    finally:
        GlobalSubscriberManager.unsubscribe()
    del module
    assert not alive(references)


@pytest.mark.parametrize("options", [{"keep_outputs": ("loss",)}, {"memory_budget": "100%"}, {"verify": True}])
def test_with_options(options):
    wrapper = trained(ORTModule(Net(), DebugOptions(), **options))
    assert wrapper.fallback_reason is None
    references = parts_of(wrapper)
    del wrapper
    assert not alive(references)


def test_with_a_level_of_the_memory_optimizer(monkeypatch):
    monkeypatch.setenv("ORTMODULE_MEMORY_OPT_LEVEL", "1")
    references = parts_of(trained(ORTModule(Net())))
    assert not alive(references)


def test_with_labels_left_out():
    wrapper, ids = ORTModule(Tagger(), keep_outputs=(0,)), torch.randint(1, 50, (4, 24))
    for _ in range(2):
        wrapper(ids, ids.masked_fill(torch.rand(ids.shape) < 0.8, -100))[0].backward()
    assert wrapper.fallback_reason is None
    references = parts_of(wrapper)
    del wrapper
    assert not alive(references)


def test_a_method_that_was_taken_holds_its_wrapper():
    wrapper = ORTModule(WithOwnMethods())
    reference = weakref.ref(wrapper)
    to, call = wrapper.to, wrapper.forward
    del wrapper
    assert to("cpu") is reference() and call(torch.randn(5, 8))["out"].shape == (5, 4)
    del to, call
    assert reference() is None
    assert type(ORTModule(WithOwnMethods()).to("cpu")).__name__ == "ORTModule"


@pytest.mark.parametrize("net", [Net, Branching])
@pytest.mark.filterwarnings("ignore::lowtide.errors.FallbackWarning")
def test_no_tensor_of_the_first_call_is_kept(net):
    torch.compiler.reset()
    ours = ORTModule(net())
    ours(torch.randn(37, 8))["loss"].backward()
    gc.collect()  # Dynamo's, of a call that compiles
    tensors = [leaf for leaf in gc.get_objects() if type(leaf) is torch.Tensor]
    assert not [leaf.shape for leaf in tensors if 37 in leaf.shape], "neither arguments nor what lay between pieces"
