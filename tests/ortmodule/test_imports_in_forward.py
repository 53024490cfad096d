"""Modules that forward imports itself, as libraries do that load their parts late: their code runs once."""

import builtins
import importlib
import sys

import pytest
import torch

from lowtide.ortmodule import ORTModule

_OWN = builtins.__import__
_TABLES = """
import torch

TABLE = torch.arange(3.0, dtype=torch.float64)
print("loaded")

class Scale:
    factors = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    shifts = [torch.ones(3, dtype=torch.float64) * 2]

    @classmethod
    def of(cls, x):
        return x * cls.factors + TABLE + cls.shifts[0]
"""


@pytest.mark.parametrize("by_function", [False, True])
def test_what_a_module_holds_is_no_tensor_of_the_trace(by_function, tmp_path, monkeypatch, capsys):
    monkeypatch.syspath_prepend(tmp_path)
    name = f"tables_read_late_{by_function}"
    (tmp_path / f"{name}.py").write_text(_TABLES)
    (tmp_path / f"around_{name}.py").write_text(f"from {name} import Scale\n")

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(3, 3)

        def forward(self, x):
            if by_function:
                return importlib.import_module(name).Scale.of(self.layer(x)).sum()
            scale = __import__(f"around_{name}").Scale
            return scale.of(self.layer(x)).sum()

    torch.manual_seed(0)
    model = Model().double()
    wrapped, x = ORTModule(model), torch.ones(2, 3, dtype=torch.float64)
    found = [wrapped(x) for _ in range(2)]
    assert wrapped.fallback_reason is None
    assert found[0].item() == found[1].item() == pytest.approx(model(x).item(), rel=1e-12)
    assert capsys.readouterr().out.count("loaded") == 1
    tables = sys.modules[name]
    assert torch.equal(tables.TABLE, torch.arange(3.0, dtype=torch.float64))
    assert torch.equal(tables.Scale.factors, tables.TABLE + 1)


def test_what_is_imported_already_is_had_as_ever():
    """PyTorch itself imports in its functions: thousands of times a trace."""

    class Model(torch.nn.Module):
        def forward(self, x):
            import math

            return x * (math.pi if builtins.__import__ is _OWN else 0)

    wrapped, finders = ORTModule(Model()), list(sys.meta_path)
    x = torch.ones(2, requires_grad=True)
    assert torch.equal(wrapped(x), x * 3.141592653589793)
    assert wrapped.fallback_reason is None
    assert sys.meta_path == finders
