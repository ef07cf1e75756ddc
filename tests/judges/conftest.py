"""What the tests of served judges share."""

import pytest


@pytest.fixture(autouse=True)
def no_keys(monkeypatch):
    for name in ("FAITHFUL_SEARCH_API_KEY", "OPENAI_API_KEY", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        monkeypatch.delenv(name, raising=False)
