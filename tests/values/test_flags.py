"""Flags that set a reward's parameters: their defaults, help texts and choices."""

from dataclasses import dataclass
from typing import Literal

import pytest

from faithful_search.errors import ConfigError
from faithful_search.flags import check_literals, flag, knob


@dataclass
class Settings:
    """Settings whose flags say themselves what they do."""

    turns: int = flag(10, "Maximum number of turns.")


@dataclass
class Reward:
    """A reward.

    Args:
        weight: what it counts,
            at most 100 %.
    """

    weight: float = 0.5


class Stricter(Reward):
    """Says nothing of the parameters that it has from `Reward`."""


def mix(alpha: float = 0.3) -> None:
    """A mix.

    Args:
        alpha: a constant weight.

    Raises:
        ConfigError: never.
    """


@pytest.mark.parametrize(
    ("owner", "parameter", "default"),
    [(Reward, "weight", 0.5), (mix, "alpha", 0.3), (Settings, "turns", 10)],
)
def test_a_knobs_default_is_its_owners(owner, parameter, default):
    assert knob(owner, parameter).default == default


def test_a_knob_may_have_a_default_of_its_own():
    assert knob(Reward, "weight", default=0.0).default == 0.0


@pytest.mark.parametrize(
    ("owner", "parameter", "text"),
    [
        (Reward, "weight", "What it counts, at most 100 %."),
        (Stricter, "weight", "What it counts, at most 100 %."),
        (mix, "alpha", "A constant weight."),
        (Settings, "turns", "Maximum number of turns."),
    ],
)
def test_a_knobs_help_is_what_its_owner_says(owner, parameter, text):
    assert knob(owner, parameter).metadata["help"] == text


def test_a_literal_takes_its_choices_only():
    @dataclass
    class Choosing:
        draws: Literal["rollout", "question"] = "rollout"

    check_literals(Choosing("question"))
    with pytest.raises(ConfigError, match="unknown draws 'batch'; there are: rollout, question"):
        check_literals(Choosing("batch"))
