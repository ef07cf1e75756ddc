"""A batch of rollouts as a training step makes it: what was asked, what was sampled, how it scored.

`RolloutBatch` is the one value that goes from the rollout to the reward and on to the update. Each
of the three adds its fields by `dataclasses.replace`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec

from ..rewards import Correctness, Score
from ..rewards.evidence_sensitivity import PROBES, Probe
from ..tools import ToolStats
from ..trajectory import Tokens, Trajectory

_EXACT_MATCH = Correctness()


class ScoredRollout(NamedTuple):
    """A rollout without its tokens, with its reward (`score`) and the score of each part of the mix
    (`components`). `turns` is the number of turns that the policy wrote.
    """

    trajectory: Trajectory
    turns: int
    score: Score
    components: dict[str, Score]

    @property
    def unjudged(self) -> bool:
        """Whether it has no reward because a judge abstained."""
        return self.score.value is None and bool(self.score.parts.get("abstained"))

    def is_right(self, outcome: str | None) -> bool:
        """Whether its answer is right, by the component `outcome`, or by exact match for `None`."""
        score = self.components[outcome] if outcome else _EXACT_MATCH.score(self.trajectory)
        return score.value is not None and score.value >= 1

    def logged(self, step: int, alpha: float | None) -> Trajectory:
        """The trajectory with its reward in `meta`, and for each component the value, the steps,
        the reason and the details.
        """
        components = self.components.items()
        meta = {
            **self.trajectory.meta,
            "step": step,
            "reward": self.score.value,
            "why": self.score.why,
            "scores": {name: score.value for name, score in components},
            "steps": {name: score.steps for name, score in components if score.steps},
            "reasons": {name: score.why for name, score in components if score.why},
            "parts": {name: score.parts for name, score in components if score.parts},
            "alpha": alpha,
        }
        return msgspec.structs.replace(self.trajectory, meta=meta)


@dataclass(frozen=True)
class RolloutBatch:
    """The rollouts of one step of sampling.

    Args:
        task_numbers: the index of each rollout's question among the trainer's tasks. Like `tokens`,
            `local` and `probes`, it has an entry for each rollout of this process.
        tool_stats: the counts of each tool before the rollouts.
        tokens: the ids that were sampled and read, with the places of turns.
        local: the rollouts of this process with their scores.
        gathered: the rollouts of all processes, in the order of the global batch.
        probes: what `EvidenceSensitivity` asked the policy; empty unless the loss needs it.
    """

    task_numbers: Sequence[int]
    tool_stats: Mapping[str, ToolStats] = field(default_factory=dict)
    tokens: Sequence[Tokens] = ()
    local: Sequence[ScoredRollout] = ()
    gathered: Sequence[ScoredRollout] = ()
    probes: list[list[Probe]] = field(default_factory=list)


def take_probes(
    components: Sequence[Mapping[str, Score]],
) -> tuple[list[dict[str, Score]], list[list[Probe]]]:
    """The components of each rollout without their probes, and the probes of each rollout.

    Probes hold the token ids of whole contexts. The update needs them, but neither the log nor
    other processes do.
    """
    rows: list[dict[str, Score]] = []
    probes: list[list[Probe]] = []
    for component_scores in components:
        row = dict(component_scores)
        row_probes: list[Probe] = []
        for name, score in component_scores.items():
            if PROBES not in score.parts:
                continue
            parts: dict[str, Any] = dict(score.parts)
            row_probes += parts.pop(PROBES)
            row[name] = msgspec.structs.replace(score, parts=parts)
        rows.append(row)
        probes.append(row_probes)
    return rows, probes
