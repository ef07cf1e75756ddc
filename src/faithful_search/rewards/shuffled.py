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
        rows_of_questions: defaultdict[str, list[int]] = defaultdict(list)
        for row, trajectory in enumerate(trajectories):
            rows_of_questions[trajectory.question or ""].append(row)
        exchanged = list(scores)
        for rows in rows_of_questions.values():
            # Seeded by the rollouts, so that the exchange differs from step to step and a rerun
            # repeats it.
            ids = ":".join(trajectories[row].id or "" for row in rows)
            rng = random.Random(f"{self.seed}:{ids}")
            partners = rng.sample(rows, len(rows))
            for row, partner in zip(rows, partners, strict=True):
                # without the steps, which are another rollout's
                exchanged[row] = msgspec.structs.replace(scores[partner], steps=())
        return exchanged
