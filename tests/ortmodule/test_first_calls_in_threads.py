"""Three threads' first calls of one module that torch.compile compiles: an export in one was in the way of Dynamo in
another, which raised."""

import threading

import pytest
import torch

from lowtide.compile_backend import lowtide
from lowtide.ortmodule import ORTModule


def blocks():
    torch.manual_seed(0)
    parts = [(torch.nn.Linear(16, 16), torch.nn.LayerNorm(16), torch.nn.GELU()) for _ in range(4)]
    return torch.nn.Sequential(*(torch.nn.Sequential(*each) for each in parts)).double()


@pytest.mark.parametrize("attempt", range(4))
def test_they_train(attempt):
    torch.compiler.reset()
    expected, module = blocks(), blocks()
    compiled, other = torch.compile(module, backend=lowtide), ORTModule(blocks())
    inputs = [torch.randn(4 + index, 16, dtype=torch.float64) for index in range(3)]
    barrier, errors, found = threading.Barrier(4), [], {}

    def call(place, function, x):
        barrier.wait()
        try:
            found[place] = function(x)
        except Exception as error:
            errors.append(error)

    calls = [*((compiled, x) for x in inputs), (other, inputs[0])]
    threads = [threading.Thread(target=call, args=(place, *each)) for place, each in enumerate(calls)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    for place, (_, x) in enumerate(calls):
        torch.testing.assert_close(found[place], expected(x))
    sum(found[place].square().sum() for place in range(3)).backward()
    sum(expected(x).square().sum() for x in inputs).backward()
    torch.testing.assert_close([p.grad for p in module.parameters()], [p.grad for p in expected.parameters()])
    torch.compiler.reset()
