"""What the docstrings of the published rewards say of how to hack them is what the gauntlet finds."""

import inspect
import re

import pytest

from faithful_search.gauntlet import cheats, published
from faithful_search.gauntlet.mixes import contender
from faithful_search.gauntlet.results import gauntlet_of
from faithful_search.gauntlet.running import play, questions, try_cheat

CHEATS = {name: cheats.load(name)() for name in cheats.names()}
QUESTIONS = questions(12)
NEAR = 0.1  # of the best cheat, which may be another one on other questions


@pytest.fixture(scope="module")
def rollouts(tmp_path_factory):
    """By dialect, what every player did."""
    folder = tmp_path_factory.mktemp("rollouts")
    names = {published.dialect_of(name) for name in published.names()}
    return {name: play(CHEATS, QUESTIONS, name, folder / name) for name in sorted(names)}


def named_cheats(name: str) -> list[str]:
    """The cheats that the docstring of a reward names."""
    _, _, how = inspect.getdoc(published.load(name)).partition("How to hack it: ")
    return [word for word in re.findall(r"`(\w+)`", how) if word in CHEATS]


@pytest.mark.parametrize("name", published.names())
def test_a_docstring_names_the_best_cheat(rollouts, name):
    mix = contender(name)
    players = rollouts[mix.dialect]
    trials = [try_cheat(mix, cheat, CHEATS[cheat], players) for cheat in CHEATS]
    pays = {cheat: 0.0 for cheat in CHEATS}
    for finding in gauntlet_of(trials).findings:
        pays[finding.cheat] = max(pays[finding.cheat], finding.exploitability.value)
    assert named_cheats(name)
    assert pays[named_cheats(name)[0]] >= max(pays.values()) - NEAR
