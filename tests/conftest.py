"""Settings of every test run: no network, one thread for each worker, the same hypothesis examples every time."""

import gc
import os
import sys
from collections.abc import Iterator

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
from hypothesis import HealthCheck, settings
from paths import RECIPES, ROOT

sys.path += [str(RECIPES), str(ROOT / "scripts")]  # behind the packages, of which `evaluate` is one

settings.register_profile("tests", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tests")


@pytest.fixture(scope="session", autouse=True)
def imports_set_aside() -> Iterator[None]:
    """Every training collects garbage when it begins; among all that torch and others imported that takes long."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs leave no plots, which take longer than two steps of a tiny policy."""
    from faithful_search.analysis import results

    for name in ("reward_curves", "tool_curves", "stability_curves"):
        monkeypatch.setattr(results, name, lambda *given: None)
