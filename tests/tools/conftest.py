"""What several files of this folder use."""

from collections.abc import Iterator

import pytest
from opensearch_server import Engine


@pytest.fixture
def engine() -> Iterator[Engine]:
    with Engine() as engine:
        yield engine
