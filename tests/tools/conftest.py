"""What several files of this folder use."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from opensearch_server import Engine


@pytest.fixture
def engine() -> Iterator[Engine]:
    engine = Engine()
    thread = threading.Thread(target=engine.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    yield engine
    engine.server.shutdown()
    engine.server.server_close()
