"""Training steps of small modules against PyTorch's: structures of outputs, random numbers, autocast, modules."""

import json

import pytest
import torch
from modules import Of, check, x

from lowtide.ortmodule import ORTModule


def test_structures_of_outputs_are_pytorchs():
    def forward(m, a, *rest, flag=False, **names):
        y = m.l(a) + rest[0]
        return {
            "y": y,
            "list": [y.sum(), (a, None)],
            "n": a.shape[0],
            "w": m.l.weight,
            "flag": flag,
            "z": names["z"] * 2,
        }

    wrapped = ORTModule(Of(forward))
    a, b, z = x(), x(), x()
    out = wrapped(a, b, flag="on", z=z)
    assert wrapped.fallback_reason is None
    assert list(out) == ["y", "list", "n", "w", "flag", "z"] and out["n"] == 3 and out["flag"] == "on"
    assert out["list"][1][0] is a and out["list"][1][1] is None and out["w"] is wrapped.l.weight


def test_a_view_of_an_input_among_the_outputs():
    def forward(m, a):
        return m.l(a), a.t(), a[1:]

    check(Of(forward), x(grad=True))
    check(Of(forward), x())


def test_one_output_twice():
    def forward(m, a):
        y = m.l(a)
        return y, y, y.view(-1)

    check(Of(forward), x())


def test_autocast_around_the_call():
    with torch.autocast("cpu", dtype=torch.bfloat16):
        check(Of(lambda m, a: m.l(a)), x(), tolerance={"rtol": 2e-2, "atol": 2e-2})


def test_dropout_repeats_under_a_seed_and_differs_between_steps():
    wrapped = ORTModule(Of(lambda m, a: m.d(m.l(a)), d=torch.nn.Dropout(0.3)))
    a = x(200, 4)

    def run():
        torch.manual_seed(7)
        found = []
        for _ in range(2):
            wrapped.zero_grad()
            y = wrapped(a)
            y.sum().backward()
            found += [y.detach(), wrapped.l.bias.grad.clone()]
        return found

    first, second = run(), run()
    assert wrapped.fallback_reason is None
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))
    assert not torch.equal(first[0], first[2])
    kept = (first[0] != 0).float()
    assert abs(kept.mean().item() - 0.7) < 0.05
    # The mask of the backward is the forward's.
    torch.testing.assert_close(first[1], kept.sum(0) / 0.7)


def test_a_model_without_random_ops_leaves_the_generator_alone():
    wrapped = ORTModule(Of(lambda m, a: m.l(a)))
    torch.manual_seed(3)
    state = torch.get_rng_state()
    a = x()
    wrapped(a).sum().backward()
    assert torch.equal(torch.get_rng_state(), state)


def test_an_optimizer_trains_it():
    torch.manual_seed(0)
    module = Of(lambda m, a: ((m.l(a) - 1) ** 2).mean())
    wrapped = ORTModule(module)
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1)
    losses = []
    for _ in range(30):
        optimizer.zero_grad()
        loss = wrapped(x(8, 4))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0] and wrapped.fallback_reason is None


def test_memory_and_explanation():
    wrapped = ORTModule(Of(lambda m, a: torch.relu(m.l(a)).sum()))
    assert wrapped.memory_report() is None
    wrapped(x(64, 4)).backward()
    report = wrapped.memory_report()
    assert report["planned_peak_bytes"] >= report["arena_bytes"] >= report["lower_bound_bytes"] > 0
    wrapped(x(128, 4)).backward()
    assert wrapped.memory_report()["arena_bytes"] > report["arena_bytes"]
    assert "Relu" in wrapped.explain()


def test_a_wrapper_inside_of_a_wrapper():
    module = Of(lambda m, a: m.inner(m.l(a)), inner=ORTModule(torch.nn.Linear(4, 4)))
    wrapped = ORTModule(module)
    wrapped(x()).sum().backward()
    assert wrapped.fallback_reason is None and module.inner.weight.grad is not None


def test_autocast_inside():
    def forward(m, a):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = m.l(a)
        return y.float() * 2

    check(Of(forward), x(), tolerance={"rtol": 2e-2, "atol": 2e-2})


def test_every_stage_can_be_read_and_traced(tmp_path, monkeypatch):
    monkeypatch.setenv("LOWTIDE_GUARD", "1")
    monkeypatch.setenv("LOWTIDE_DISABLE_KERNELS", "blas,cpu")
    wrapped = ORTModule(Of(lambda m, a: torch.relu(m.l(a)).sum()))
    wrapped(x()).backward()
    assert "aten::linear" in wrapped.text("captured") and "YieldOp" in wrapped.text("training")
    assert "): reference.Gemm" in wrapped.explain() and "): blas." not in wrapped.explain()
    assert "arena" in wrapped.text("plan") and wrapped.text("program")
    with wrapped.trace(tmp_path / "trace.json"):
        wrapped(x()).backward()
    names = json.loads((tmp_path / "trace.json").read_text())
    assert any("Relu" in event["name"] for event in (names["traceEvents"] if isinstance(names, dict) else names))


@pytest.mark.parametrize(
    "make",
    [
        lambda: (torch.nn.LSTM(4, 4, batch_first=True), lambda m, a: m.r(a)[0]),
        lambda: (torch.nn.MultiheadAttention(4, 2, batch_first=True), lambda m, a: m.r(a, a, a)[0]),
        lambda: (torch.nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True), lambda m, a: m.r(a)),
        lambda: (torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(4, 4)), lambda m, a: m.r(a)),
        lambda: (torch.nn.GroupNorm(1, 2), lambda m, a: m.r(a)),
        lambda: (torch.nn.Conv1d(2, 3, 3).to(memory_format=torch.contiguous_format), lambda m, a: m.r(a)),
    ],
    ids=["lstm", "attention", "encoder layer", "weight norm", "group norm", "conv1d"],
)
def test_pytorchs_own_modules(make):
    torch.manual_seed(0)
    child, forward = make()
    shape = (3, 2, 4) if isinstance(child, torch.nn.GroupNorm | torch.nn.Conv1d) else (2, 5, 4)
    check(Of(forward, r=child), x(*shape), tolerance={"rtol": 1e-4, "atol": 1e-4})
