"""What the tests of served judges share."""

import functools
import ssl

import pytest


@pytest.fixture(autouse=True)
def no_keys(monkeypatch):
    for name in ("FAITHFUL_SEARCH_API_KEY", "OPENAI_API_KEY", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(autouse=True, scope="module")
def one_tls_context():
    """Reading the certificates costs more than all else that a new client does, and no test here needs them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ssl, "create_default_context", functools.cache(ssl.create_default_context))
        yield
