"""How hard to attack: a little with every test run, long with `pytest tests/attacks --attack N`."""

import pytest
from dialect_texts import EVERY

_SMALL = 15


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--attack", type=int, default=_SMALL, metavar="N", help="rounds of each attack"
    )


@pytest.fixture(params=EVERY, scope="module")
def name(request: pytest.FixtureRequest) -> str:
    """That of each dialect in turn."""
    return request.param


@pytest.fixture
def rounds(request: pytest.FixtureRequest) -> int:
    """How many attacks of its kind a test makes; `pytest tests` knows no `--attack`, as this file
    is read later.
    """
    found: int = request.config.getoption("attack", _SMALL)
    return found
