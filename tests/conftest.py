import gc
import os
import signal
import tempfile

import pytest


def pytest_configure(config):
    os.environ.setdefault("LOWTIDE_RAISE_BUGS", "1")  # else a bug would look like a fallback that a test expects
    # Tests of what PyTorch takes over mean the whole module; test_pieces.py is of the pieces.
    os.environ.setdefault("LOWTIDE_PIECES", "0")
    # Whoever calibrated has other prices, and with them other plans under a budget.
    cache = tempfile.TemporaryDirectory(prefix="lowtide-tests-")
    config.add_cleanup(cache.cleanup)
    os.environ["XDG_CACHE_HOME"] = cache.name
    # A shell's background job starts with Ctrl-C ignored; the tests of Ctrl-C need Python's own handler.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser):
    parser.addoption("--all", action="store_true", help="also run the tests marked long")


def pytest_collection_modifyitems(config, items):
    if config.getoption("--all"):
        return
    long = pytest.mark.skip(reason="long: runs with ./dev test --all")
    for item in items:
        if "long" in item.keywords:
            item.add_marker(long)


@pytest.fixture(scope="module", autouse=True)
def quick_collections():
    """A collection of garbage, as after each export that fails, need not look through all that was imported."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def pieces(monkeypatch):
    """The pieces that torch.compile's graphs become from now on."""
    import torch

    from lowtide.ortmodule import piece as piece_module

    made, init = [], piece_module.Piece.__init__

    def noting(self, *args, **kwargs):
        init(self, *args, **kwargs)
        made.append(self)

    monkeypatch.setattr(piece_module.Piece, "__init__", noting)
    torch.compiler.reset()
    yield made
    torch.compiler.reset()


@pytest.fixture
def with_pieces(monkeypatch):
    """What is no graph runs in pieces, as for users."""
    import torch

    monkeypatch.setenv("LOWTIDE_PIECES", "1")
    torch.compiler.reset()
    yield
    torch.compiler.reset()
