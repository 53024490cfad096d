import pytest
import torch

from lowtide.store import plans


@pytest.fixture(autouse=True)
def same_weights_each_time():
    torch.manual_seed(0)


# ---- of the cache: its folder, and how often something was exported or planned


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("ORTMODULE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("ORTMODULE_FALLBACK_POLICY", "FALLBACK_DISABLE")
    return tmp_path / "cache"


@pytest.fixture
def exports(monkeypatch):
    done, original = [], torch.export.export

    def counted(*args, **kwargs):
        done.append(1)
        return original(*args, **kwargs)

    monkeypatch.setattr(torch.export, "export", counted)
    return done


@pytest.fixture
def planned(monkeypatch):
    """How often a session was planned."""
    done, original = [], plans.Session

    def counted(*args, **kwargs):
        if not kwargs.get("stored_plan"):
            done.append(1)
        return original(*args, **kwargs)

    monkeypatch.setattr(plans, "Session", counted)
    return done
