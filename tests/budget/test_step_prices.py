"""What each step of a plan is predicted to take, beside a trace of the same steps."""

import json

import pytest

from lowtide import _lowtide

GRAPH = """graph @g(%x: f32[n, 64] input, %w: f32[64, 64] param) where n in [1, 4096] {
  %t: f32[64, n] = Transpose(perm=[1, 0]) %x
  %y: f32[64, n] = Gelu %t
  %z: f32[64, n] = MatMul %w, %y
  %loss: f32[] = ReduceSum(axes=[0, 1], keepdims=false) %z
  return %loss output
}"""


def prices_with(**calls):
    """A text of prices, of the shipped form, in which a call of some classes takes that many µs."""
    lines = _lowtide.shipped_prices().splitlines()
    for at, line in enumerate(lines):
        words = line.split()
        if words[0] in calls:
            lines[at] = " ".join([*words[:2], str(calls[words[0]]), *words[3:]])
    return "\n".join(lines) + "\n"


def test_each_step_has_its_price():
    session = _lowtide.Session(_lowtide.Graph.parse(GRAPH))
    prices = session.step_prices([128])
    by_op = {op: (kernels, dtype, flops, bytes, drawn, ms) for _, op, kernels, dtype, flops, bytes, drawn, ms in prices}
    kernels, dtype, flops, moved, drawn, ms = by_op["MatMul"]
    assert (kernels, dtype, flops, drawn) == ("matmul", "f32", 2 * 64 * 64 * 128, 0)
    assert moved == 4 * (64 * 64 + 2 * 64 * 128) and ms > 0
    assert by_op["Gelu"][0] == "transcendental" and "Transpose" not in by_op
    assert [step for step, *_ in prices] == sorted({step for step, *_ in prices})
    assert sum(row[-1] for row in session.step_prices([4096])) > sum(row[-1] for row in prices)


def test_a_session_takes_prices_as_text():
    graph = _lowtide.Graph.parse(GRAPH)
    dear = prices_with(matmul=1e6)
    plain, told = _lowtide.Session(graph), _lowtide.Session(graph, prices=dear)
    assert plain.step_prices([8], prices=dear) == told.step_prices([8]) != plain.step_prices([8])
    assert max(row[-1] for row in told.step_prices([8])) > 1000
    with pytest.raises(ValueError, match='prices, line 1: expected "lowtide prices 1", found "none"'):
        _lowtide.Session(graph, prices="none\n")


def test_a_trace_names_the_steps_that_have_prices(gpt2):
    session = gpt2.session
    session.start_trace()
    gpt2.again()
    events = json.loads(session.stop_trace())["traceEvents"]
    traced = {event["args"]["step"]: event["name"] for event in events}
    priced = {step: op for step, op, *_ in session.step_prices(gpt2.values)}
    assert len(priced) > 50
    for step, op in priced.items():  # a step that copies for a kernel bears its node's name
        assert op == "Copy" or traced[step].startswith(op)
