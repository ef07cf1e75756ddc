"""Correctness that cannot be earned from memory: a right answer counts only where evidence holds it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from ..judges import is_lexical
from ..text import normalize
from ..trajectory import Trajectory
from .answer_support import AnswerSupport
from .base import BatchReward, Score
from .correctness import Correctness

ABSTENTION = "unknown"  # the answer that claims nothing
_UNASKED = Score(None, "the answer is not right")  # of the support, where it cannot change anything


@dataclass(frozen=True)
class SourceGated(BatchReward):
    """The outcome where the cited evidence supports the answer, else 0, in [0, 1].

    ```
    R = outcome · [R_ans = 1]
    outcome: `Correctness`       R_ans: `AnswerSupport`, the share of the answer's claims that the evidence supports
    ```

    Ours; reward environments call it source gating. With the default support the normalised answer must occur, as whole
    words, in a passage that a valid yes-step cites; in dialects without citations, in one that a tool returned. No
    passage can hold a yes or no: where words are compared, they count where any evidence is cited (or returned).
    "unknown" claims nothing, so it counts once a tool was asked.

    The support is asked for only where the outcome is above 0. `parts["outcome"]` is the value without the gate,
    `parts["supported"]` whether the gate is open (`None` where nobody was asked), `parts["supported_by"]` the judge.

    Args:
        outcome: says whether the answer is right.
        support: says whether evidence holds it; its `evidence` and `judge` are the knobs.

    How to hack it: answer from memory and cite everything; some passage is likely to hold the word.
    """

    outcome: Correctness = field(default_factory=Correctness)
    support: AnswerSupport = field(default_factory=AnswerSupport)

    name: ClassVar[str] = "source_gated"

    def score_batch(self, trajectories: Sequence[Trajectory]) -> list[Score]:
        outcomes = self.outcome.score_batch(trajectories)
        settled: list[Score | None] = []
        for item, outcome in zip(trajectories, outcomes, strict=True):
            if not outcome.value:
                settled.append(_UNASKED)
                continue
            answer = normalize(item.answer or "")
            if answer == ABSTENTION:
                called = any(step.call for step in item.steps)
                settled.append(Score(float(called), "" if called else "no tool was asked"))
            # any passage holds such words, or none does, whatever the answer rests on
            elif answer in ("yes", "no") and is_lexical(self.support.judge):
                held = bool(self.support.evidence_for(item))
                settled.append(
                    Score(float(held), "" if held else f"{answer!r} rests on no evidence")
                )
            else:
                settled.append(None)
        asked = [item for item, score in zip(trajectories, settled, strict=True) if score is None]
        judged = iter(self.support.score_batch(asked))
        scores = []
        for outcome, score in zip(outcomes, settled, strict=True):
            support = score or next(judged)
            told = {**outcome.parts, "outcome": outcome.value, "supported": None}
            if "judge" in support.parts:
                told["supported_by"] = support.parts["judge"]
            if support is _UNASKED:
                scores.append(Score(outcome.value, outcome.why, told))
            elif support.value is None:
                scores.append(Score(None, support.why, {**told, "abstained": True}))
            elif support.value < 1.0:
                scores.append(
                    Score(0.0, f"counts for nothing: {support.why}", {**told, "supported": False})
                )
            else:
                scores.append(Score(outcome.value, outcome.why, {**told, "supported": True}))
        return scores
