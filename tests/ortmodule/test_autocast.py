"""Autocast, half-precision models, scaled losses and cast propagation.

bf16 keeps 8 bits, so that any two orders of the same sums differ in their third digit: PyTorch's own result is no truth
to compare with. The truth is a run in fp64 on the same weights; ours may be at most three times as far from it as that
run is with every result rounded to the same precision at random.
"""

import copy
import re

import pytest
import torch
import zoo
from modules import Of, x
from rounding import RandomRounding
from training.compare import batches_of, distances

from lowtide.ortmodule import ORTModule

# What a parameter's few numbers reach by luck: half a unit in the last place of bf16 and fp16.
FLOOR = {torch.bfloat16: 2.0**-9, torch.float16: 2.0**-12, torch.float32: 1e-6}


def gradients(module, batch, autocast=None):
    module.zero_grad()
    with torch.autocast("cpu", dtype=autocast or torch.bfloat16, enabled=autocast is not None):
        loss = module(**batch).loss
    loss.backward()
    assert getattr(module, "fallback_reason", None) is None
    found = {name: None if p.grad is None else p.grad.clone() for name, p in module.named_parameters()}
    return found, loss.detach()


def assert_within_rounding(ours, exact, rounded, precision):
    """Each of the three: (gradients, loss) per batch."""
    floor = FLOOR[precision]
    errors = [abs(other.double() - true.double()).item() for (_, other), (_, true) in zip(rounded, exact, strict=True)]
    for (_, loss), (_, true) in zip(ours, exact, strict=True):
        assert abs(loss.double() - true.double()).item() <= 3 * max(*errors, floor * abs(true.item()))
    found, rounding = (distances([one for one, _ in runs], [one for one, _ in exact]) for runs in (ours, rounded))
    assert found
    for name, distance in found.items():
        limit = 3 * max(rounding[name], floor)
        assert distance <= limit, f"{name}: {distance:.1e} from fp64, {limit:.1e} is rounding"


def in_fp64(name, model, batches, precision):
    """Of a model in fp64 with the same weights: (gradients, loss) per batch, and the same rounded to `precision`."""
    exact, _ = zoo.build(name, dtype=torch.float64)
    exact.load_state_dict(model.state_dict())
    batches = [{key: _to_fp64(value) for key, value in batch.items()} for batch in batches]
    near = [rounded(precision, seed, gradients, exact, batch) for seed, batch in enumerate(batches)]
    return [gradients(exact, batch) for batch in batches], near


def rounded(precision, seed, run, *args):
    with RandomRounding(precision, seed):
        return run(*args)


def _to_fp64(value):
    return value.double() if value.is_floating_point() else value


def trained_under_autocast(name):
    """The program, whose numbers were compared."""
    model, make_batch = zoo.build(name)
    batches = batches_of(make_batch, 2)
    wrapped = ORTModule(copy.deepcopy(model))
    ours = [gradients(wrapped, batch, torch.bfloat16) for batch in batches]
    assert_within_rounding(ours, *in_fp64(name, model, batches, torch.bfloat16), torch.bfloat16)
    return wrapped.text("training")


@pytest.mark.parametrize(
    "name", ["gpt2", "bert", *(pytest.param(name, marks=pytest.mark.long) for name in ("llama", "resnet"))]
)
def test_autocast_around_a_model(name):
    assert "Cast(to=bf16)" in trained_under_autocast(name)  # casts are nodes


@pytest.mark.parametrize("name", ["bloom", "t5"])
def test_what_is_added_to_scores_stays_fp32(name):
    text = trained_under_autocast(name)
    assert " Attention(" in text and "Softmax(" not in text  # no scores are written out


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("gpt2", torch.bfloat16), pytest.param("resnet", torch.bfloat16, marks=pytest.mark.long), ("bert", torch.float16)],
)
def test_models_in_half_precision(name, dtype):
    model, make_batch = zoo.build(name, dtype=dtype)
    batches = batches_of(make_batch, 2)
    wrapped = ORTModule(copy.deepcopy(model))
    ours = [gradients(wrapped, batch) for batch in batches]
    assert all(p.dtype == dtype and p.grad.dtype == dtype for p in wrapped.parameters() if p.grad is not None)
    assert_within_rounding(ours, *in_fp64(name, model, batches, dtype), dtype)


class Mixed(torch.nn.Module):
    """Autocast on, off inside of it, another dtype, and an op of fp32's list and one without a lowering."""

    def __init__(self, dtype):
        super().__init__()
        self.first, self.second, self.third = (torch.nn.Linear(16, 16) for _ in range(3))
        self.norm = torch.nn.LayerNorm(16)
        self.dtype = dtype

    def forward(self, a, target):
        with torch.autocast("cpu", dtype=self.dtype):
            y = self.norm(torch.tanh(self.first(a)))
            with torch.autocast("cpu", enabled=False):
                z = self.second(y.float())
            y = torch.special.i0e(self.third(z)) + z
            return torch.nn.functional.mse_loss(y, target)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_inside_of_a_model(dtype):
    torch.manual_seed(0)
    model = Mixed(dtype)
    exact = copy.deepcopy(model).double()
    wrapped = ORTModule(copy.deepcopy(model))

    def run(module, precision=torch.float32):
        module.zero_grad()
        inputs = [x(5, 16).to(precision), x(5, 16).cos().to(precision)]
        with torch.autocast("cpu", enabled=False):
            loss = _in_one_precision(module, *inputs) if precision is torch.float64 else module(*inputs)
        loss.backward()
        return [({name: p.grad.clone() for name, p in module.named_parameters()}, loss.detach())]

    ours, true = run(wrapped), run(exact, torch.float64)
    assert wrapped.fallback_reason is None
    assert_within_rounding(ours, true, rounded(dtype, 0, run, exact, torch.float64), dtype)


def _in_one_precision(model, a, target):
    y = model.norm(torch.tanh(model.first(a)))
    z = model.second(y)
    return torch.nn.functional.mse_loss(torch.special.i0e(model.third(z)) + z, target)


def test_custom_functions_see_the_autocast_around_them():
    seen = []

    class Product(torch.autograd.Function):
        @staticmethod
        def forward(ctx, a, weight):
            ctx.save_for_backward(a, weight)
            seen.append(torch.is_autocast_enabled("cpu"))
            return torch.nn.functional.linear(a, weight)

        @staticmethod
        def backward(ctx, gradient):
            a, weight = ctx.saved_tensors
            return (gradient.float() @ weight).to(a.dtype) * 2, gradient.float().t() @ a.float()

    class Cast(Product):
        @staticmethod
        @torch.amp.custom_fwd(device_type="cpu", cast_inputs=torch.float32)
        def forward(ctx, a, weight):
            return Product.forward(ctx, a, weight)

        @staticmethod
        @torch.amp.custom_bwd(device_type="cpu")
        def backward(ctx, gradient):
            return Product.backward(ctx, gradient)

    module = Of(lambda m, a: (Product.apply(m.l(a), m.l.weight), Cast.apply(m.l(a), m.l.weight)))
    wrapped = ORTModule(module)

    def run(trained):
        trained.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            first, second = trained(x())
        (first.float() + second).sum().backward()
        return first, second, trained.l.weight.grad.clone()

    for _ in range(2):
        for ours, theirs in zip(run(wrapped), run(module), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=2e-2, atol=2e-2)
    assert wrapped.fallback_reason is None and set(seen) == {True, False}


def test_autocast_on_and_off_by_turns():
    module = Of(lambda m, a: torch.tanh(m.l(a)))
    wrapped = ORTModule(module)
    for autocast in (True, False, True, False):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            y, theirs = wrapped(x()), module(x())
        assert y.dtype == theirs.dtype == (torch.bfloat16 if autocast else torch.float32)
        torch.testing.assert_close(y, theirs, rtol=1e-2, atol=1e-2)
        y.sum().backward()
    assert wrapped.fallback_reason is None
    assert wrapped.transition_counts() == {"in training mode": {"first call": 1, "surroundings": 1}}


def test_an_activation_that_many_products_read_has_eagers_gradient():
    """Autocast casts it for each of them, and adds what they give in f32. Here one cast serves all of them."""
    torch.manual_seed(0)
    heads = 12
    module = Of(lambda m, a: torch.stack([head(m.norm(a)) for head in m.heads]))
    module.norm = torch.nn.LayerNorm(16)
    module.heads = torch.nn.ModuleList(torch.nn.Linear(16, 16) for _ in range(heads))
    gradient = torch.randn(heads, 32, 16)

    def distance_of(trained):
        given = torch.randn(32, 16, generator=torch.Generator().manual_seed(1)).requires_grad_()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = trained(given)
        y.backward(gradient.to(y.dtype))
        weights = torch.stack([head.weight.detach() for head in module.heads]).double()
        exact = given.detach().double().requires_grad_()
        normed = torch.nn.functional.layer_norm(exact, (16,))
        (normed @ weights.mT).backward(gradient.to(y.dtype).double())
        return (given.grad - exact.grad).norm()

    wrapped = ORTModule(copy.deepcopy(module))
    assert distance_of(wrapped) < 1.2 * distance_of(module)
    assert wrapped.fallback_reason is None


def test_a_scaled_loss_gives_scaled_gradients():
    module = Of(lambda m, a: (m.l(a) ** 2).mean())
    wrapped = ORTModule(module)
    (wrapped(x()) * 2.0**16).backward()
    found = wrapped.l.weight.grad / 2.0**16
    module.zero_grad()
    module(x()).backward()
    torch.testing.assert_close(found, module.l.weight.grad)


def test_a_grad_scaler_skips_and_steps_as_with_eager():
    """In fp16 the first scales overflow: these steps are skipped, and the scale comes down."""
    torch.manual_seed(0)
    module = Of(lambda m, a: ((torch.relu(m.l(a)) - 1) ** 2).mean())
    runs = []
    for trained in (ORTModule(copy.deepcopy(module)), module):
        optimizer = torch.optim.SGD(trained.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**30)
        scales, losses = [], []
        for index in range(20):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16):
                loss = trained(x(8, 4) + index / 20)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            scales.append(scaler.get_scale())
            losses.append(loss.item())
        runs.append((scales, losses))
        assert getattr(trained, "fallback_reason", None) is None
    (scales, losses), (their_scales, their_losses) = runs
    assert scales == their_scales and scales[-1] < 2.0**30
    torch.testing.assert_close(losses, their_losses, rtol=2e-3, atol=0)


# ---- cast propagation


def cast_heavy(m, a):
    y = torch.relu(m.l(a).float()).reshape(-1, 2, 4).transpose(1, 2)
    y = torch.softmax(y.float(), -1).to(torch.bfloat16)
    return torch.nn.functional.gelu(y.float()).to(torch.bfloat16) * 3


def run_cast_heavy():
    torch.manual_seed(0)
    wrapped = ORTModule(Of(cast_heavy).to(torch.bfloat16))
    y = wrapped(x(6, 4).to(torch.bfloat16))
    y.float().sum().backward()
    assert wrapped.fallback_reason is None
    return y.detach(), wrapped.l.weight.grad.clone(), wrapped.text("training").count("Cast(")


def test_levels_of_cast_propagation(monkeypatch):
    found = {}
    for level in ("0", "1"):
        monkeypatch.setenv("LOWTIDE_PROPAGATE_CAST_OPS_LEVEL", level)
        found[level] = run_cast_heavy()
    assert found["1"][2] < found["0"][2]
    # Forward has the same bits; backward rounds at other places.
    assert torch.equal(found["0"][0], found["1"][0])
    torch.testing.assert_close(found["0"][1], found["1"][1], rtol=2e-2, atol=2e-2)
    monkeypatch.delenv("LOWTIDE_PROPAGATE_CAST_OPS_LEVEL")
    assert run_cast_heavy()[2] == found["1"][2]  # the default is 1


@pytest.mark.parametrize("name", ["gpt2", pytest.param("bert", marks=pytest.mark.long), "llama"])
def test_casts_keep_fewer_bytes_under_autocast(name, monkeypatch, tmp_path):
    """Level 1 makes casts of parameters, norms and kept activations again in backward: the same bits, a lower peak.
    Kernels that do casts have the same bits, and hardly a cast is left, to be kept or made again."""
    monkeypatch.setenv("ORTMODULE_CACHE_DIR", str(tmp_path))  # one export for both
    model, make_batch = zoo.build(name)
    batch = make_batch()
    found, peaks, stashed, casts = [], [], [], []
    for level, disabled in (("0", "absorb_casts"), ("1", "absorb_casts"), ("1", "")):
        monkeypatch.setenv("LOWTIDE_PROPAGATE_CAST_OPS_LEVEL", level)
        monkeypatch.setenv("LOWTIDE_DISABLE_PASSES", disabled)
        wrapped = ORTModule(copy.deepcopy(model))
        found.append(gradients(wrapped, batch, torch.bfloat16))
        peaks.append(wrapped.memory_report()["planned_peak_bytes"])
        stashed.append(stashed_names(wrapped.text("training")))
        casts.append(wrapped.text("training").count("= Cast("))
    (without, loss), (with_casts, same_loss), (absorbed, absorbed_loss) = found
    assert torch.equal(loss, same_loss) and torch.equal(loss, absorbed_loss)
    torch.testing.assert_close(absorbed, with_casts, rtol=0, atol=0)
    assert casts[2] < 0.2 * casts[1] and peaks[2] < 1.02 * peaks[1]
    # llama's keys are cast before their heads are repeated, so that these gradients are added in bf16.
    close = {"rtol": 2e-2, "atol": 2e-3} if name == "llama" else {"rtol": 0, "atol": 0}
    torch.testing.assert_close(with_casts, without, **close)
    assert peaks[1] < 0.99 * peaks[0]
    assert sum("cast" in value for value in stashed[0]) > 10 and sum("cast" in value for value in stashed[1]) <= 4
    if name == "llama":  # each half of a rotation has a cast of its own; a gradient rotates back
        assert wrapped.text("training").count("= RotaryEmbedding") == 2 * 4


def stashed_names(text):
    """Forward values that backward reads."""
    forward, _, backward = text.partition("YieldOp")
    made = set(re.findall(r"%([\w.]+): [^=]*?(?=,| =)", forward.partition(" {\n")[2]))
    return made & set(re.findall(r"%([\w.]+)", re.sub(r"//.*", "", backward)))


def test_users_may_allow_more_ops(monkeypatch):
    monkeypatch.setenv("LOWTIDE_PROPAGATE_CAST_OPS_LEVEL", "0")
    none = run_cast_heavy()[2]
    monkeypatch.setenv("LOWTIDE_PROPAGATE_CAST_OPS_ALLOW", "Gelu,Softmax")
    assert run_cast_heavy()[2] < none


def test_the_feature_table_tells_the_level(monkeypatch, caplog):
    def row():
        caplog.clear()
        with caplog.at_level("WARNING", logger="lowtide"):
            ORTModule(Of(lambda m, a: m.l(a)))(x())
        return next(line for line in caplog.text.splitlines() if "Cast Propagation" in line)

    assert "ON" in row() and "Level 1 enabled" in row()
    monkeypatch.setenv("LOWTIDE_PROPAGATE_CAST_OPS_LEVEL", "0")
    assert "OFF" in row()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_convolutions_of_16_bits_run_on_pytorchs_kernels(dims, dtype):
    """They ran on the reference's loops: a step of vit under autocast took 18 s."""
    make = (torch.nn.Conv1d, torch.nn.Conv2d, torch.nn.Conv3d)[dims - 1]
    torch.manual_seed(0)
    module = Of(lambda m, a: m.grouped(torch.relu(m.conv(a))).float().square().mean(),
                conv=make(4, 6, 3, padding=1), grouped=make(6, 4, 3, stride=2, groups=2))  # fmt: skip
    image = x(2, 4, *[9] * dims)
    found = {}
    for name, outer, low in (("ours", ORTModule(copy.deepcopy(module)), True), ("eager", module, True),
                             ("exact", copy.deepcopy(module), False)):  # fmt: skip
        with torch.autocast("cpu", dtype=dtype, enabled=low):
            loss = outer(image)
        loss.backward()
        if name == "ours":
            assert outer.fallback_reason is None
            kernels = outer.explain()
            assert "aten.ConvGrad." in kernels and ": reference.Conv" not in kernels
        found[name] = [loss.detach(), *(p.grad for p in outer.parameters())]
    for ours, eager, exact in zip(found["ours"], found["eager"], found["exact"], strict=True):
        if exact is None:
            continue
        limit = 3 * max((eager - exact).norm(), FLOOR[dtype] * exact.norm())
        assert (ours - exact).norm() <= limit
