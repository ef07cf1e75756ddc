"""How hard to attack: a little with every test run, long with `pytest tests/attacks --attack N`."""

import pytest

_SMALL = 15


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--attack", type=int, default=_SMALL, metavar="N", help="rounds of each attack")


@pytest.fixture
def rounds(request: pytest.FixtureRequest) -> int:
    """How many attacks of its kind a test makes; `pytest tests` knows no `--attack`, as this file is read later."""
    found: int = request.config.getoption("attack", _SMALL)
    return found
