"""Settings of every test run: no network, one thread for each worker, the same hypothesis examples
every time.
"""

import functools
import gc
import os
import sys

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import httpcore2
import pytest
from hypothesis import HealthCheck, settings
from paths import ROOT

sys.path.append(str(ROOT / "scripts"))

gc.set_threshold(100_000, 20, 20)  # what is imported and set up has more objects than garbage has

settings.register_profile(
    "tests", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("tests")


@pytest.fixture(scope="session", autouse=True)
def one_tls_context() -> None:
    """Reading the system's certificates takes longer than a request to a server on loopback."""
    httpcore2.default_ssl_context = functools.cache(httpcore2.default_ssl_context)


@pytest.fixture(scope="module", autouse=True)
def imports_set_aside() -> None:
    """Garbage is collected when a training begins, and by pytest: among all that torch and others
    import it takes long.

    What was imported and kept since the last module was tested is set aside.
    """
    gc.freeze()


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs leave no plots, which take longer than two steps of a tiny policy."""
    from faithful_search.analysis import results

    for name in ("reward_curves", "tool_curves", "stability_curves"):
        monkeypatch.setattr(results, name, lambda *given: None)
