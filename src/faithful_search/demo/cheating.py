"""Cheats against rewards, for the page: what one did with a question, what it was paid, and why."""

from functools import lru_cache

import msgspec

from ..errors import DataError
from ..gauntlet import cheats, published
from ..gauntlet.mixes import MIXES, contender
from ..gauntlet.results import TOO_MUCH, Trial
from ..gauntlet.running import Rollouts, play, questions, try_cheat
from ..trajectory import Trajectory

_QUESTIONS = 8
"""The number of questions that are played and scored together. One is not enough: a reward may put
another question's evidence in the place of its own.
"""
FIRST_CHEAT, FIRST_REWARD = "looked_up", "exact_match"


class CheatAttempt(msgspec.Struct, frozen=True):
    """What a cheat did with a question, and what a reward paid it.

    Attributes:
        cheat: the cheat's name.
        exploits: what it does, in a sentence.
        reward: the reward's name.
        setting: what the reward's schedule was taken to be; empty where it has none.
        rollout: what the cheat did.
        value: what it was paid; `None`: the reward has no value for it.
        reader: what the honest reader was paid for the same question.
        parts: the values of the reward's parts.
        why: the reasons of these parts.
    """

    cheat: str
    exploits: str
    reward: str
    setting: str
    rollout: Trajectory
    value: float | None
    reader: float | None
    parts: dict[str, float | None]
    why: dict[str, str]

    @property
    def pays_off(self) -> bool:
        """Whether it earns more than `TOO_MUCH` of what the reader earns."""
        return (self.value or 0.0) > TOO_MUCH * (self.reader or 0.0)


def cheats_offered() -> list[str]:
    """The names of the cheats that visitors choose from."""
    return cheats.names()


def rewards_offered() -> list[str]:
    """The names of the mixes that visitors choose from."""
    return [*MIXES, *published.names()]


@lru_cache
def questions_offered() -> list[str]:
    """The questions that visitors choose from."""
    return [task.question for task in questions(_QUESTIONS)]


def attempt(question: str, cheat: str, reward: str) -> CheatAttempt:
    """Play a cheat, score it, and say why.

    Raises `DataError` for a choice that is not offered: names of files are refused, too.
    """
    offered = {
        "question": (question, questions_offered()),
        "cheat": (cheat, cheats_offered()),
        "reward": (reward, rewards_offered()),
    }
    for kind, (choice, choices) in offered.items():
        if choice not in choices:
            raise DataError(f"there is no {kind} {choice!r} here")
    trial = _trial(reward, cheat)
    middle = len(trial.settings) // 2  # of the reward's schedule
    number = questions_offered().index(question)
    rollouts = _rollouts_of(cheat, contender(reward).dialect)
    payment = trial.cheating[number]
    return CheatAttempt(
        cheat=cheat,
        exploits=cheats.load(cheat).exploits(),
        reward=reward,
        setting=trial.settings[middle],
        rollout=rollouts[cheat][number],
        value=payment.values[middle],
        reader=trial.honest[number].values[middle],
        parts=payment.parts,
        why=payment.why,
    )


@lru_cache
def _trial(reward: str, cheat: str) -> Trial:
    """What a cheat and the honest reader are paid for each question."""
    mix = contender(reward)
    player = cheats.load(cheat)()
    return try_cheat(mix, cheat, player, _rollouts_of(cheat, mix.dialect))


@lru_cache
def _rollouts_of(cheat: str, dialect: str) -> Rollouts:
    """What a cheat and the honest reader do with each question, by their names."""
    player = cheats.load(cheat)()
    return play({cheat: player}, questions(_QUESTIONS), dialect)
