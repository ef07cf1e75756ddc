"""A reward whose values go to other rollouts of the same question: what is left of it is noise."""

import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import msgspec

from ..trajectory import Trajectory
from .base import BatchReward, Reward, Score
from .evidence_sensitivity import EvidenceSensitivity


@dataclass(frozen=True)
class Shuffled(BatchReward):
    """A control for a reward: its scores, exchanged at random among the rollouts of a question.

    A group's advantages then have the same variance and none of the information. A reward that
    trains no better than its shuffled self adds nothing but noise. Rollouts of a question are those
    of one `question` in a batch.

    Args:
        reward: whose scores are exchanged.
        seed: of the exchange; it also depends on the rollouts' ids.

    How to hack it: there is nothing to gain.
    """

    reward: Reward = field(default_factory=EvidenceSensitivity)
    seed: int = 0

    name: ClassVar[str] = "shuffled"
    range: ClassVar[tuple[float, float]] = (-1.0, 1.0)

    def measure(self, score: Score) -> float | None:
        return self.reward.measure(score)

    @property
    def bounds(self) -> tuple[float, float]:
        return self.reward.bounds

    def score_batch(self, trajectories: Sequence[Trajectory]) -> list[Score]:
        scores = self.reward.score_batch(trajectories)
        groups: defaultdict[str, list[int]] = defaultdict(list)
        for number, trajectory in enumerate(trajectories):
            groups[trajectory.question or ""].append(number)
        exchanged = list(scores)
        for group in groups.values():
            # seeded by the rollouts, so that the exchange differs from step to step and a rerun
            # repeats it
            ids = ":".join(trajectories[number].id or "" for number in group)
            rng = random.Random(f"{self.seed}:{ids}")
            for number, partner in zip(group, rng.sample(group, len(group)), strict=True):
                # without the steps, which are another rollout's
                exchanged[number] = msgspec.structs.replace(scores[partner], steps=())
        return exchanged
