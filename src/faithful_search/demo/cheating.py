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
"""As many are played and scored together: a reward may exchange the evidence of one for another's.
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
    place = len(trial.settings) // 2  # the middle of the schedule
    number = questions_offered().index(question)
    payment = trial.cheating[number]
    return CheatAttempt(
        cheat=cheat,
        exploits=cheats.load(cheat).exploits(),
        reward=reward,
        setting=trial.settings[place],
        rollout=_played(cheat, contender(reward).dialect)[cheat][number],
        value=payment.values[place],
        reader=trial.honest[number].values[place],
        parts=payment.parts,
        why=payment.why,
    )


@lru_cache
def _trial(reward: str, cheat: str) -> Trial:
    mix = contender(reward)
    return try_cheat(mix, cheat, cheats.load(cheat)(), _played(cheat, mix.dialect))


@lru_cache
def _played(cheat: str, dialect: str) -> Rollouts:
    return play({cheat: cheats.load(cheat)()}, questions(_QUESTIONS), dialect)
