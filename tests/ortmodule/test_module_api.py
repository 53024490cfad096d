"""The wrapper as a nn.Module: classes, methods, hooks, containers, what is added or replaced, and copies."""

import copy
import io
import pickle
import types
import warnings

import pytest
import torch
import zoo
from modules import Of, assert_same, check, step, x

from lowtide.ortmodule import DebugOptions, ORTModule


class Base(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(4, 2)
        self.register_buffer("offset", torch.ones(2))

    def forward(self, a):
        return self.fc(a) + self.offset

    def training_step(self, a):
        return self(a).sum()


class Net(Base):
    """Calls its base class, and has its own of what nn.Module has."""

    def __init__(self):
        super().__init__()
        self.log = []

    def training_step(self, a):
        self.log.append(type(self).__name__)
        return super().training_step(a) * 2

    @torch.no_grad()
    def predict(self, a):
        return self(a).argmax(1)

    @staticmethod
    def name():
        return "net"

    @classmethod
    def build(cls):
        return cls()

    def to(self, *args, **kwargs):
        self.log.append("to")
        return super().to(*args, **kwargs)

    def extra_repr(self):
        return "mine"


# ---------------------------------------------------------------- classes and methods


def test_instances_are_of_both_classes():
    wrapped = ORTModule(Net())
    assert isinstance(wrapped, ORTModule) and isinstance(wrapped, Net) and isinstance(wrapped, torch.nn.Module)
    assert type(wrapped).__name__ == "ORTModule" and not isinstance(ORTModule(torch.nn.Linear(4, 2)), Net)
    assert repr(wrapped).startswith("ORTModule(") and "mine" in repr(wrapped) and "(fc): Linear" in repr(wrapped)


def test_methods_that_call_the_module_come_through_the_engine(monkeypatch):
    net = Net()
    wrapped = ORTModule(net)
    loss = wrapped.training_step(x())  # uses super(), and a method of a base class calls self(...)
    loss.backward()
    assert net.log == ["ORTModule"] and wrapped.fallback_reason is None
    assert wrapped.memory_report() is not None
    assert torch.equal(wrapped.predict(x()), net(x()).argmax(1)) and wrapped.name() == "net"
    assert type(wrapped.build()) is Net
    inherited = ORTModule(Of(lambda m, a: m.l(a)))
    assert inherited.get_parameter("l.weight") is inherited.module.l.weight


def test_overridden_methods_of_nn_module_are_the_modules_own():
    net = Net()
    wrapped = ORTModule(net)
    assert wrapped.to(torch.float64) is wrapped and net.log == ["to"] and net.fc.weight.dtype == torch.float64
    assert wrapped(x().double()).dtype == torch.float64 and wrapped.fallback_reason is None
    assert wrapped.half() is wrapped and net.fc.weight.dtype == torch.float16
    assert wrapped.float().fc.weight.dtype == torch.float32
    assert wrapped.bfloat16()(x().bfloat16()).dtype == torch.bfloat16 and wrapped.fallback_reason is None


def test_names_that_the_wrapper_hides_are_warned_of():
    class Talkative(Net):
        def explain(self):
            return "my own"

    net = Talkative()
    net.text = "mine too"
    with pytest.warns(UserWarning, match="collides with ORTModule's attribute name") as caught:
        wrapped = ORTModule(net)
    assert {str(warning.message).split()[0] for warning in caught} == {"Talkative.explain", "Talkative.text"}
    assert wrapped.module.explain() == "my own" and "not in the engine" in wrapped.explain()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ORTModule(Net())


def test_attributes_are_read_and_written_on_the_module():
    net = Net()
    net.scale = 1.0
    wrapped = ORTModule(net)
    wrapped.scale = 2.0
    wrapped.new = {"a": 1}
    assert net.scale == 2.0 and wrapped.new is net.new and "new" in dir(wrapped) and "fc" in dir(wrapped)
    assert getattr(wrapped, "nothing", 5) == 5
    wrapped.memory_budget = 7  # no name of ours
    assert net.memory_budget == 7
    del wrapped.memory_budget
    assert not hasattr(net, "memory_budget")


def test_attributes_that_forward_reads_take_effect_wherever_they_are_written():
    module = Of(lambda m, a: m.l(a) * m.scale + m.child.shift, child=torch.nn.Identity())
    module.scale, module.child.shift = 1.0, 0.0
    wrapped = ORTModule(module)
    for owner, name, value in (
        (wrapped, "scale", 2.0),
        (module, "scale", 3.0),
        (module.child, "shift", 1.5),
        (wrapped.child, "shift", 2.5),
    ):
        setattr(owner, name, value)
        torch.testing.assert_close(wrapped(x()), module(x()))
    assert wrapped.fallback_reason is None


def test_attributes_of_the_wrapper_itself():
    net = Net()
    wrapped = ORTModule(net)
    wrapped.training = False
    assert not net.training and not wrapped.training
    calls = []
    plain = wrapped.forward
    wrapped.forward = lambda *args: (calls.append(1), plain(*args))[1]  # as accelerate and others replace it
    wrapped(x())
    assert calls == [1] and "forward" not in vars(net)
    with pytest.raises(AttributeError):
        wrapped.module = torch.nn.Linear(1, 1)


class Named(Net):
    def name(self):
        return "the module's"


def renamed(self):
    return f"the wrapper's, {self.fc.out_features}"


def test_a_method_set_on_the_wrapper_is_not_set_on_the_module():
    net = Named()
    wrapped = ORTModule(net)
    wrapped.name = types.MethodType(renamed, wrapped)
    expected = f"the wrapper's, {net.fc.out_features}"
    assert wrapped.name() == expected and net.name() == "the module's" and "name" not in vars(net)
    twin = copy.deepcopy(wrapped)
    assert twin.name() == expected and twin.name.__self__ is twin and twin.module.name() == "the module's"
    del wrapped.name
    assert wrapped.name() == "the module's"


def test_a_getattr_of_the_modules_own():
    class Lenient(Net):
        def __getattr__(self, name):
            if name.startswith("guess_"):
                return name[6:]
            return super().__getattr__(name)

        def half_of(self, a):
            return self(a) / 2

    wrapped = ORTModule(Lenient())
    assert wrapped.guess_me == "me" and wrapped.fc is wrapped.module.fc
    torch.testing.assert_close(wrapped.half_of(x()), wrapped.module(x()) / 2)
    assert wrapped.fallback_reason is None
    with pytest.raises(AttributeError, match="other"):
        _ = wrapped.other


def test_containers_are_indexed_and_iterated():
    sequence = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 4))
    wrapped = ORTModule(sequence)
    assert len(wrapped) == 3 and wrapped[0] is sequence[0] and [*wrapped] == [*sequence] and sequence[1] in [*wrapped]
    assert type(wrapped).__name__ == "ORTModule" and isinstance(wrapped, ORTModule) and wrapped
    before = wrapped(x())
    wrapped[1] = torch.nn.Tanh()
    assert type(sequence[1]) is torch.nn.Tanh and not torch.equal(wrapped(x()), before)
    torch.testing.assert_close(wrapped(x()), sequence(x()))
    assert wrapped.fallback_reason is None
    with pytest.raises(TypeError):
        len(ORTModule(torch.nn.Linear(4, 4)))


# ---------------------------------------------------------------- what is added, replaced or removed


def test_modules_parameters_and_buffers_are_added_and_replaced():
    module = Of(lambda m, a: sum((child(a) for child in m.children()), 0) * getattr(m, "gain", 1) + getattr(m, "b", 0))
    wrapped, twin = ORTModule(module), copy.deepcopy(module)
    changes = [
        lambda m: None,
        lambda m: m.add_module("late", torch.nn.Linear(4, 4)),
        lambda m: m.register_parameter("gain", torch.nn.Parameter(torch.full((4,), 2.0))),
        lambda m: m.register_buffer("b", torch.full((4,), 3.0)),
        lambda m: setattr(m, "late", torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh())),
        lambda m: setattr(m, "b", torch.full((1,), 5.0)),
        lambda m: m.late[0].register_forward_hook(lambda child, args, out: out * 2),
        lambda m: delattr(m, "late"),
    ]
    for change in changes:
        for target in (wrapped, twin):
            torch.manual_seed(1)
            change(target)
        assert list(wrapped.state_dict()) == list(twin.state_dict())
        assert [name for name, _ in wrapped.named_parameters()] == [name for name, _ in twin.named_parameters()]
        assert_same(step(wrapped, (x(),)), step(twin, (x(),)))
        assert wrapped.fallback_reason is None


def test_parametrizations_of_the_wrapped_module_itself():
    torch.manual_seed(0)
    wrapped, twin = ORTModule(torch.nn.Linear(4, 4)), torch.nn.Linear(4, 4)
    twin.load_state_dict(wrapped.state_dict())
    assert_same(step(wrapped, (x(),)), step(twin, (x(),)))
    for target in (wrapped, twin):
        torch.nn.utils.parametrizations.weight_norm(target)
    assert_same(step(wrapped, (x(),)), step(twin, (x(),)))
    assert wrapped.fallback_reason is None and "parametrizations.weight.original0" in wrapped.state_dict()


# ---------------------------------------------------------------- hooks


def test_forward_hooks_inside_are_captured_when_they_are_added_and_gone_when_removed():
    module = Of(lambda m, a: m.other(m.l(a)), other=torch.nn.Linear(4, 4))
    wrapped, twin = ORTModule(module), copy.deepcopy(module)
    assert_same(step(wrapped, (x(),)), step(twin, (x(),)))
    handles = [target.l.register_forward_hook(lambda child, args, out: torch.tanh(out)) for target in (module, twin)]
    assert_same(step(wrapped, (x(),)), step(twin, (x(),)))
    handles += [target.other.register_forward_pre_hook(lambda child, args: (args[0] * 3,)) for target in (module, twin)]
    handles += [target.register_forward_hook(lambda child, args, out: out - 1) for target in (module, twin)]
    assert_same(step(wrapped, (x(),)), step(twin, (x(),)))
    for handle in handles:
        handle.remove()
    assert_same(step(wrapped, (x(),)), step(twin, (x(),)))
    assert wrapped.fallback_reason is None


def test_hooks_of_the_wrapper_change_inputs_outputs_and_gradients():
    wrapped = ORTModule(Of(lambda m, a: m.l(a)))
    plain = wrapped(x()).detach()
    handles = [
        wrapped.register_forward_pre_hook(lambda m, args, kwargs: ((args[0] * 2,), kwargs), with_kwargs=True),
        wrapped.register_forward_hook(lambda m, args, out: out * 10),
    ]
    torch.testing.assert_close(wrapped(x()), wrapped.module(x() * 2) * 10)
    for handle in handles:
        handle.remove()
    torch.testing.assert_close(wrapped(x()), plain)
    seen = []
    wrapped.register_full_backward_pre_hook(lambda m, gradients: seen.append(gradients[0].shape))
    wrapped.register_full_backward_hook(lambda m, inputs, outputs: (inputs[0] * 0,))
    leaf = x(grad=True)
    wrapped(leaf).sum().backward()
    assert seen == [(3, 4)] and leaf.grad.abs().sum() == 0 and wrapped.fallback_reason is None


def test_hooks_of_state_dicts():
    wrapped, seen = ORTModule(Net()), []
    wrapped.register_state_dict_post_hook(lambda m, state, prefix, meta: seen.append("saved"))
    wrapped.register_load_state_dict_post_hook(lambda m, keys: seen.append("loaded"))
    wrapped.load_state_dict(wrapped.state_dict())
    assert seen == ["saved", "loaded"]


# ---------------------------------------------------------------- checkpoints and copies


@pytest.mark.parametrize("strict", [True, False])
def test_checkpoints_load_both_ways(strict):
    net, wrapped = Net(), ORTModule(Net())
    assert list(wrapped.state_dict()) == list(net.state_dict()) == ["offset", "fc.weight", "fc.bias"]
    assert wrapped.state_dict()._metadata.keys() == net.state_dict()._metadata.keys()
    wrapped.load_state_dict(net.state_dict(), strict=strict)
    torch.testing.assert_close(wrapped(x()), net(x()))
    other = Net()
    other.load_state_dict(wrapped.state_dict(), strict=strict)
    torch.testing.assert_close(other(x()), net(x()))
    wrong = {"fc.weigth": torch.zeros(2, 4)}
    with pytest.raises(RuntimeError, match="fc.weigth"):
        wrapped.load_state_dict(wrong)
    keys = wrapped.load_state_dict(wrong, strict=False)
    assert keys.unexpected_keys == ["fc.weigth"] and "fc.weight" in keys.missing_keys
    # The wrapper inside of a larger model, its checkpoint in the same model without it.
    outer, plain = torch.nn.Sequential(ORTModule(Net()), torch.nn.ReLU()), torch.nn.Sequential(Net(), torch.nn.ReLU())
    assert list(outer.state_dict()) == list(plain.state_dict())
    plain.load_state_dict(outer.state_dict())
    torch.testing.assert_close(outer(x()), plain(x()))
    assigned = ORTModule(Net())
    assigned(x())
    assigned.load_state_dict(net.state_dict(), assign=True)
    torch.testing.assert_close(assigned(x()), net(x()))


def double_output(module, args, output):
    return output * 2


@pytest.mark.parametrize("way", ["pickle", "torch.save", "deepcopy"])
def test_copies_keep_weights_mode_options_and_hooks_and_train_apart(way):
    options = DebugOptions()
    wrapped = ORTModule(Net().eval(), options)
    wrapped.register_forward_hook(double_output)
    expected = wrapped(x()).detach()
    if way == "deepcopy":
        twin = copy.deepcopy(wrapped)
    elif way == "pickle":
        twin = pickle.loads(pickle.dumps(wrapped))
    else:
        file = io.BytesIO()
        torch.save(wrapped, file)
        file.seek(0)
        twin = torch.load(file, weights_only=False)
    assert type(twin) is type(wrapped) and isinstance(twin, Net) and not twin.training
    assert twin.memory_report() is None, "a copy captures anew"
    torch.testing.assert_close(twin(x()), expected)
    twin.zero_grad()
    twin(x()).sum().backward()
    assert twin.fallback_reason is None and wrapped.fc.weight.grad is None
    with torch.no_grad():
        twin.fc.weight.zero_()
    torch.testing.assert_close(wrapped(x()), expected)


def test_a_deepcopy_of_a_model_that_holds_wrappers_keeps_what_they_share():
    shared = ORTModule(torch.nn.Linear(4, 4))
    model = torch.nn.ModuleDict({"a": shared, "b": torch.nn.Sequential(shared, torch.nn.ReLU())})
    twin = copy.deepcopy(model)
    assert twin["a"] is twin["b"][0] and twin["a"] is not shared and len(list(twin.parameters())) == 2


def test_save_pretrained_writes_what_the_model_itself_writes(tmp_path):
    model, _ = zoo.build("gpt2")  # its two embeddings are one tensor
    wrapped = ORTModule(model)
    wrapped.save_pretrained(tmp_path / "wrapped")
    model.save_pretrained(tmp_path / "plain")
    for name in ("config.json", "model.safetensors"):
        assert (tmp_path / "wrapped" / name).read_bytes() == (tmp_path / "plain" / name).read_bytes()


def test_text_is_generated_between_training_steps():
    """A method of a library's that looks itself up on type(self), with caches that grow at each call."""
    model, make_batch = zoo.build("gpt2")
    model.config.use_cache = model.generation_config.use_cache = True
    plain, wrapped, batch = copy.deepcopy(model), ORTModule(model), make_batch()
    before = wrapped(**batch).loss
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        start = {"input_ids": batch["input_ids"][:, :4], "attention_mask": torch.ones(2, 4, dtype=torch.long)}
        found = wrapped.eval().generate(**start, max_new_tokens=4, do_sample=False)
    assert torch.equal(found, plain.eval().generate(**start, max_new_tokens=4, do_sample=False))
    after = wrapped.train()(**batch).loss
    assert torch.equal(before, after) and wrapped.fallback_reason is None


def test_modes_and_gradients_reach_the_module_from_outside():
    outer = torch.nn.Sequential(ORTModule(Of(lambda m, a: m.d(m.l(a)), d=torch.nn.Dropout(0.5))))
    outer.eval()
    assert not outer[0].training and not outer[0].module.d.training
    torch.testing.assert_close(outer(x()), outer[0].l(x()))
    outer.train()
    assert outer[0].module.d.training
    outer.requires_grad_(False)
    assert not outer(x()).requires_grad
    outer.requires_grad_(True)
    outer(x()).sum().backward()
    outer.zero_grad(set_to_none=False)
    assert outer[0].l.weight.grad.abs().sum() == 0
    outer.zero_grad()
    assert outer[0].l.weight.grad is None
    names = []
    outer.apply(lambda module: names.append(type(module).__name__))
    assert names == ["Linear", "Dropout", "Of", "Sequential"]


def test_buffers_are_listed_and_used():
    module = Of(lambda m, a: m.l(a) + m.used)
    module.register_buffer("used", torch.ones(4))
    module.register_buffer("unused", torch.ones(3))
    module.register_buffer("scratch", torch.ones(3), persistent=False)
    wrapped = check(module, x())
    assert [name for name, _ in wrapped.named_buffers()] == ["used", "unused", "scratch"]
    assert (
        len(list(wrapped.buffers())) == 3 and "scratch" not in wrapped.state_dict() and "unused" in wrapped.state_dict()
    )


def test_constants_beside_parameters():
    def forward(m, a):
        return m.l(a) * m.table + torch.tensor([1.0, 2.0, 3.0, 4.0]) + m.inner(a)

    module = Of(forward, inner=Of(lambda m, a: a @ m.matrix))
    module.table, module.inner.matrix = torch.full((4,), 2.0), torch.eye(4)
    wrapped = check(module, x(grad=True))
    module.table = torch.full((4,), 3.0)
    torch.testing.assert_close(wrapped(x()), module(x()))
    assert wrapped.fallback_reason is None


def test_an_attribute_that_changes_before_an_export_is_used_again():
    # The attribute was looked for by identity, not found, and the export's own tensor was taken for good.
    module = Of(lambda m, a, b: m.l(a).sum() * m.table + b.sum())
    module.table = torch.full((4,), 2.0)
    wrapped = ORTModule(module)
    torch.testing.assert_close(wrapped(x(), x(3, 4)), module(x(), x(3, 4)))
    module.table = torch.full((4,), 7.0)
    # Sizes that were equal by accident, then another input that needs a gradient: one export, imported three times.
    for args in ((x(), x(5, 4)), (x(grad=True), x(5, 4))):
        torch.testing.assert_close(wrapped(*args), module(*args))
    assert wrapped.fallback_reason is None


def test_identities_leave_no_step():
    module = Of(lambda m, a: m.i(m.l(m.i(a))) + 0 * m.d(a), i=torch.nn.Identity(), d=torch.nn.Dropout(0.0))
    wrapped = check(module, x())
    assert "Identity" not in wrapped.text("plan") and "Dropout" not in wrapped.text("plan")
