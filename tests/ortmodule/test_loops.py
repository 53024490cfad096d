"""Training loops as users write them: each runs with the wrapper and without it, and must end with the same weights."""

import copy
import gc

import pytest
import torch
from modules import Of
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import lowtide
from lowtide.ortmodule import ORTModule

STEPS = 5


def squared_error(m, a, target):
    return torch.nn.functional.mse_loss(m.out(torch.tanh(m.norm(m.l(a)))), target)


def module():
    torch.manual_seed(0)
    return Of(squared_error, norm=torch.nn.LayerNorm(4), out=torch.nn.Linear(4, 2))


@pytest.fixture(scope="module")
def one_wrapper():
    return ORTModule(module())


@pytest.fixture
def wrapped(one_wrapper):
    """A wrapper with first weights; one for the whole file, so that it is captured once."""
    for p in one_wrapper.parameters():
        p.data = p.data.contiguous()
    one_wrapper.load_state_dict(module().state_dict())
    one_wrapper.train().requires_grad_(True).zero_grad()
    yield one_wrapper
    assert one_wrapper.fallback_reason is None


def batch(seed, n=6):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, 4, generator=generator), torch.randn(n, 2, generator=generator)


def sgd(model, lr=0.1, **settings):
    return torch.optim.SGD(model.parameters(), lr=lr, **settings)


def assert_same_weights(ours, theirs):
    for (name, found), expected in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}")


def accumulate(model):
    optimizer = sgd(model)
    for index in range(STEPS):
        for micro in range(3):
            (model(*batch(index * 3 + micro, n=4 + micro)) / 3).backward()
        optimizer.step()
        optimizer.zero_grad()


def clip_by_norm(model):
    optimizer, norms = sgd(model), []
    for index in range(STEPS):
        optimizer.zero_grad()
        model(*batch(index)).backward()
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1))
        optimizer.step()
    return norms


def clip_by_value(model):
    optimizer = sgd(model)
    for index in range(STEPS):
        optimizer.zero_grad()
        model(*batch(index)).backward()
        torch.nn.utils.clip_grad_value_(model.parameters(), 0.01)
        optimizer.step()


def keep_gradient_tensors(model):
    optimizer, found = sgd(model), []
    for index in range(STEPS):
        optimizer.zero_grad(set_to_none=False)
        model(*batch(index)).backward()
        optimizer.step()
        found.append(sum(p.grad.sum().detach() for p in model.parameters()))
    assert len({p.grad.data_ptr() for p in model.parameters()}) == len(list(model.parameters()))
    return found


def schedule(model):
    optimizer = sgd(model)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.5, total_steps=STEPS)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
    for index in range(STEPS):
        optimizer.zero_grad()
        loss = model(*batch(index))
        loss.backward()
        optimizer.step()
        scheduler.step()
        plateau.step(loss.item())


def averaged_weights(model):
    optimizer, plain = sgd(model), getattr(model, "module", model)
    average = AveragedModel(plain, multi_avg_fn=get_ema_multi_avg_fn(0.5))
    found = []
    for index in range(STEPS):
        optimizer.zero_grad()
        model(*batch(index)).backward()
        optimizer.step()
        average.update_parameters(model)
        # Evaluate with the averages in the model's place, then go on.
        own = [p.data for p in model.parameters()]
        for p, mean in zip(model.parameters(), average.module.parameters(), strict=True):
            p.data = mean.data
        with torch.no_grad():
            found.append(model(*batch(99)))
        for p, data in zip(model.parameters(), own, strict=True):
            p.data = data
    return found


def evaluate_between_steps(model):
    optimizer, found = sgd(model), []
    for index in range(STEPS):
        model.train()
        optimizer.zero_grad()
        model(*batch(index)).backward()
        model.eval()
        with torch.no_grad():
            found.append(model(*batch(50, n=3 + index)))
        with torch.inference_mode():
            found.append(model(*batch(51)).clone())
        optimizer.step()
    return found


def load_weights_in_the_middle(model):
    optimizer = sgd(model, momentum=0.9)
    for index in range(STEPS):
        if index == 1:
            saved = copy.deepcopy(model.state_dict()), copy.deepcopy(optimizer.state_dict())
        if index == 3:
            model.load_state_dict(saved[0])
            optimizer.load_state_dict(saved[1])
        optimizer.zero_grad()
        model(*batch(index)).backward()
        optimizer.step()


def write_weights_in_every_way(model):
    optimizer = sgd(model)
    for index in range(STEPS):
        optimizer.zero_grad()
        model(*batch(index)).backward()
        optimizer.step()
        with torch.no_grad():
            model.l.weight.mul_(0.9)
            model.l.bias.copy_(torch.ones(4))
        model.out.weight.data.add_(0.1)
        model.out.weight.data = model.out.weight.data.clone().t().contiguous().t()
        torch.nn.init.constant_(model.norm.bias, 0.5)


def scaled_losses(model):
    optimizer = sgd(model)
    for index in range(STEPS):
        optimizer.zero_grad()
        (model(*batch(index)) * 1024).backward()
        for p in model.parameters():
            p.grad /= 1024
        optimizer.step()


def closures(model):
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)

    def closure():
        optimizer.zero_grad()
        loss = model(*batch(0))
        loss.backward()
        return loss

    for _ in range(2):
        optimizer.step(closure)


def sharpness_aware(model):
    """Two steps at two points; the weights change in place between them."""
    optimizer = sgd(model)
    for index in range(STEPS):
        model(*batch(index)).backward()
        with torch.no_grad():
            moves = [p.grad * 0.05 for p in model.parameters()]
            for p, move in zip(model.parameters(), moves, strict=True):
                p.add_(move)
        optimizer.zero_grad()
        model(*batch(index)).backward()
        with torch.no_grad():
            for p, move in zip(model.parameters(), moves, strict=True):
                p.sub_(move)
        optimizer.step()
        optimizer.zero_grad()


def steps_inside_of_backward(model):
    optimizers = {p: torch.optim.SGD([p], lr=0.1) for p in model.parameters()}

    def update(p):
        optimizers[p].step()
        optimizers[p].zero_grad()

    handles = [p.register_post_accumulate_grad_hook(update) for p in model.parameters()]
    for index in range(STEPS):
        model(*batch(index)).backward()
        assert all(p.grad is None for p in model.parameters())
    for handle in handles:
        handle.remove()


def gradient_hooks(model):
    optimizer = sgd(model)
    handles = [p.register_hook(lambda gradient: gradient.clamp(-0.01, 0.01) * 2) for p in model.parameters()]
    for index in range(STEPS):
        optimizer.zero_grad()
        model(*batch(index)).backward()
        optimizer.step()
    for handle in handles:
        handle.remove()


def gradients_by_function(model):
    for index in range(STEPS):
        found = torch.autograd.grad(model(*batch(index)), list(model.parameters()))
        with torch.no_grad():
            for p, gradient in zip(model.parameters(), found, strict=True):
                p -= 0.1 * gradient
    assert all(p.grad is None for p in model.parameters())


def freeze_and_thaw(model):
    optimizer = sgd(model, momentum=0.9)
    for index in range(STEPS):
        model.l.requires_grad_(index % 2 == 0)
        optimizer.zero_grad()
        model(*batch(index)).backward()
        assert (model.l.weight.grad is None) == (index % 2 == 1)
        optimizer.step()


def anomaly_detection(model):
    optimizer = sgd(model)
    with torch.autograd.set_detect_anomaly(True):
        for index in range(2):
            optimizer.zero_grad()
            model(*batch(index)).backward()
            optimizer.step()


def skip_steps_without_a_backward(model):
    optimizer = sgd(model)
    for index in range(STEPS):
        optimizer.zero_grad()
        loss = model(*batch(index))
        if index % 2:
            del loss
            continue
        loss.backward()
        optimizer.step()


LOOPS = [
    accumulate,
    clip_by_norm,
    clip_by_value,
    keep_gradient_tensors,
    schedule,
    averaged_weights,
    evaluate_between_steps,
    load_weights_in_the_middle,
    write_weights_in_every_way,
    scaled_losses,
    closures,
    sharpness_aware,
    steps_inside_of_backward,
    gradient_hooks,
    gradients_by_function,
    freeze_and_thaw,
    anomaly_detection,
    skip_steps_without_a_backward,
]


@pytest.mark.parametrize("loop", LOOPS, ids=lambda loop: loop.__name__)
def test_loops_end_with_pytorchs_weights(loop, wrapped):
    eager = module()
    expected, found = loop(eager), loop(wrapped)
    assert_same_weights(wrapped, eager)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


OPTIMIZERS = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "SGD foreach": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, foreach=True),
    "SGD fused": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, fused=True),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01, foreach=False),
    "AdamW foreach": lambda p: torch.optim.AdamW(p, lr=0.01, foreach=True),
    "AdamW fused": lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
    "Adam amsgrad": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True),
    "Adagrad fused": lambda p: torch.optim.Adagrad(p, lr=0.1, fused=True),
    "RMSprop foreach": lambda p: torch.optim.RMSprop(p, lr=0.01, foreach=True),
    "Adafactor": lambda p: torch.optim.Adafactor(p, lr=0.01),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers(name, wrapped):
    eager = module()
    for model in (eager, wrapped):
        optimizer = OPTIMIZERS[name](model.parameters())
        for index in range(STEPS):
            optimizer.zero_grad()
            model(*batch(index)).backward()
            optimizer.step()
    # Where a gradient is zero but for rounding Adam's step is all of lr.
    assert_same_weights(wrapped, eager)


# ---------------------------------------------------------------- memory


def test_accumulating_gradients_takes_no_more_arenas(wrapped):
    gc.collect()
    lowtide.release_memory()
    begin = lowtide.pool_bytes()["live_bytes"]
    live, total = [], []
    for index in range(12):
        wrapped(*batch(index, n=3000)).backward()
        now = lowtide.pool_bytes()
        live.append(now["live_bytes"] - begin)
        total.append(now["live_bytes"] + now["free_bytes"] - begin)
    arena = wrapped.memory_report()["arena_bytes"]
    assert arena > 100_000
    # The gradients of the first step may pin its arena; later ones are added to them from another place.
    assert live == live[:1] * 12 and live[0] <= 1.1 * arena and max(total) <= 2.2 * arena
    wrapped.zero_grad()
    assert lowtide.pool_bytes()["live_bytes"] == begin


def test_a_step_leaves_no_bytes_behind(wrapped):
    optimizer = sgd(wrapped)

    def run():
        optimizer.zero_grad()
        wrapped(*batch(0, n=3000)).backward()
        optimizer.step()

    for _ in range(3):
        run()
    before = lowtide.pool_bytes()
    for _ in range(30):
        run()
    after = lowtide.pool_bytes()
    assert after["live_bytes"] == before["live_bytes"] and after["free_bytes"] <= before["free_bytes"]


# ---------------------------------------------------------------- checkpoints of activations inside


class Layers(torch.nn.Module):
    """Layers under torch.utils.checkpoint, with a keyword argument and a tensor that needs no gradient."""

    def __init__(self, reentrant):
        super().__init__()
        self.layers = torch.nn.ModuleList(Of(lambda m, a, *, gain: torch.tanh(m.l(a)) * gain) for _ in range(3))
        self.reentrant = reentrant

    def forward(self, a):
        from torch.utils.checkpoint import checkpoint

        for index, layer in enumerate(self.layers):
            if self.reentrant is None:
                a = layer(a, gain=index + 1)
            elif self.reentrant:
                a = checkpoint(lambda a, n, layer=layer: layer(a, gain=n), a, index + 1, use_reentrant=True)
            else:
                a = checkpoint(layer, a, gain=index + 1, use_reentrant=False)
        return a


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointed_layers_train(reentrant):
    torch.manual_seed(0)
    eager = Layers(None)
    wrapped = ORTModule(Layers(reentrant))
    wrapped.load_state_dict(eager.state_dict())
    for model in (eager, wrapped):
        optimizer = sgd(model)
        for index in range(3):
            optimizer.zero_grad()
            model(batch(index)[0].requires_grad_()).sum().backward()
            optimizer.step()
    assert_same_weights(wrapped, eager)
    assert wrapped.fallback_reason is None


# ---------------------------------------------------------------- frameworks' loops


class Manual(torch.nn.Module):
    """Lightning's manual optimisation, with the attributes that its trainer writes at each step."""

    def __init__(self, model):
        super().__init__()
        self.model, self.trainer_step, self.logged, self._optimizers = model, 0, {}, None

    def forward(self, a, target):
        return self.model(a, target)

    def configure_optimizers(self):
        return [sgd(self.model.l), sgd(self.model.out, momentum=0.5)]

    def optimizers(self):
        if self._optimizers is None:
            self._optimizers = self.configure_optimizers()
        return self._optimizers

    def manual_backward(self, loss):
        loss.backward()

    def toggle_optimizer(self, optimizer):
        chosen = {id(p) for group in optimizer.param_groups for p in group["params"]}
        for p in self.parameters():
            p.requires_grad_(id(p) in chosen)

    def untoggle_optimizer(self):
        self.requires_grad_(True)

    def log(self, name, value):
        self.logged = {**self.logged, name: float(value)}

    def training_step(self, data, index):
        self.trainer_step, self.current = index, data
        for which, optimizer in enumerate(self.optimizers()):
            self.toggle_optimizer(optimizer)
            loss = self(*data)
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()
            self.untoggle_optimizer()
            self.log(f"loss{which}", loss)


@pytest.mark.parametrize("where", ["whole", "inner"])
def test_lightnings_manual_loop(where):
    eager = Manual(module())
    model = ORTModule(Manual(module())) if where == "whole" else Manual(ORTModule(module()))
    for index in range(STEPS):
        for candidate in (eager, model):
            candidate.training_step(batch(index), index)
    wrapped = model if where == "whole" else model.model
    assert wrapped.fallback_reason is None and wrapped.memory_report() is not None
    assert model.logged.keys() == {"loss0", "loss1"} and model.trainer_step == STEPS - 1
    for name, value in eager.logged.items():
        assert model.logged[name] == pytest.approx(value, rel=1e-4)
    assert_same_weights(model, eager)


def test_gradients_reach_what_is_around_the_module(wrapped):
    torch.manual_seed(0)
    before, twin = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
    twin.load_state_dict(before.state_dict())
    eager = module()
    for first, model in ((twin, eager), (before, wrapped)):
        a, target = batch(0)
        (model(first(a), target) * 2 + first.weight.sum()).backward()
    torch.testing.assert_close(before.weight.grad, twin.weight.grad)
