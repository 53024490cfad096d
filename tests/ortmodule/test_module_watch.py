"""lowtide._lowtide.ModuleWatch alone: what it finds, and that its shortcuts work on the Python and PyTorch in use."""

import sys

import pytest
import torch

from lowtide import _lowtide
from lowtide.capture import PLAIN


@pytest.fixture
def watch():
    return _lowtide.ModuleWatch(PLAIN, torch.Tensor)


def test_the_shortcuts_of_this_python_and_pytorch():
    assert _lowtide.shortcuts() == (sys.version_info < (3, 13), True)


@pytest.mark.parametrize("size", [0, 1, 3, 40])
def test_tables(watch, size):
    tables = [{index: object() for index in range(size)} for _ in range(50)]
    for table in tables:
        watch.add_table(table)
    assert watch.check(0) is None
    for number in (0, 17, 49):
        tables[number]["new"] = 1
        assert watch.check(0) == watch.check(0) == ("table", number)
        del tables[number]["new"]
        assert watch.check(0) is None
    if size:
        tables[3][0] = object()
        assert watch.check(0) == ("table", 3)


def test_tables_that_fill_by_handles(watch):
    tables = [{} for _ in range(50)]
    for table in tables:
        watch.add_table(table, by_handle=True)
    assert watch.check(7) is None
    for number in (0, 17, 49):
        tables[number]["new"] = 1
        assert watch.check(8) == ("table", number)
        del tables[number]["new"]
        assert watch.check(8) is None
        tables[number]["new"] = 1
        assert ("table", number) in [watch.check(8) for _ in range(4)]
        del tables[number]["new"]
        assert watch.check(7) is None


def test_attributes(watch):
    class Owner:
        limit = 3

    owners, one = [Owner() for _ in range(3)], object()
    for owner in owners:
        owner.flag, owner.items, owner.one = True, [1, [2]], one
        for name in ("flag", "items", "one", "absent"):
            watch.add_attribute(vars(owner), name)
        watch.add_computed(owner, "limit")
    assert watch.check(0) is None
    owners[1].unwatched = 5
    owners[1].flag = 1 == 1.0  # an equal value
    owners[1].items = [1, [2]]
    assert watch.check(0) is None
    for change, back, found in [
        (lambda: setattr(owners[1], "flag", 1), lambda: setattr(owners[1], "flag", True), ("attribute", 4)),
        (lambda: owners[1].items[1].append(3), owners[1].items[1].pop, ("attribute", 5)),
        (lambda: setattr(owners[2], "one", object()), lambda: setattr(owners[2], "one", one), ("attribute", 10)),
        (lambda: setattr(owners[0], "absent", None), lambda: delattr(owners[0], "absent"), ("attribute", 3)),
        (lambda: setattr(Owner, "limit", 4), lambda: setattr(Owner, "limit", 3), ("computed", 0)),
    ]:
        change()
        assert watch.check(0) == watch.check(0) == found
        back()
        assert watch.check(0) is None


def test_tensors_and_what_is_none(watch):
    tables = [{"weight": torch.nn.Parameter(torch.randn(2)), "bias": None} for _ in range(40)]
    for table in tables:
        watch.add_tensors(table)
    assert watch.check(0) is None
    tables[20]["bias"] = torch.nn.Parameter(torch.randn(2))
    assert watch.check(0) == ("kind", 41)
    tables[20]["bias"] = tables[30]["weight"] = None
    assert watch.check(0) == ("kind", 60)


def test_tensors(watch):
    table = {f"p{index}": torch.nn.Parameter(torch.randn(2, 3)) for index in range(30)}
    watch.add_tensors(table)
    assert watch.check(0) is None
    table["p7"].data = torch.randn(2, 3)
    assert watch.check(0) is None
    was, table["p9"] = table["p9"], torch.nn.Parameter(torch.randn(2, 3), requires_grad=False)
    assert watch.check(0) == watch.check(0) == ("moved", 0)
    watch.settle()
    assert watch.check(0) is None
    assert [number for number, wanted in enumerate(watch.requires_grad()) if not wanted] == [9]
    for other in (torch.randn(2, 4), torch.randn(3, 2).t(), torch.randn(2, 3).double(), torch.randn(2, 3, 1)):
        table["p11"].data = other
        assert watch.check(0) == ("kind", 11)
    table["p11"].data = torch.randn(2, 3)
    assert watch.check(0) is None
    table["p9"] = torch.randn(2, 3)  # no parameter
    assert watch.check(0) == ("kind", 9)
    table["p9"] = was
    assert watch.check(0) == ("moved", 0)
    table["p9"] = "no tensor at all"
    assert watch.check(0) == ("kind", 9)
    table["p9"] = was
    table["p30"] = None
    assert watch.check(0) == ("names", 0)
    del table["p30"]
    torch.utils.swap_tensors(table["p4"], torch.nn.Parameter(torch.randn(5)))
    assert watch.check(0) == ("kind", 4)
