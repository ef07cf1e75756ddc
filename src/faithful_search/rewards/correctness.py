"""Is the answer right? Compared with the gold answers, by string or by a judge."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from ..errors import ConfigError, JudgeError
from ..judges.base import Judge, Pair
from ..text import exact_match, f1
from ..trajectory import Trajectory
from .base import Reward, Score

NO_GOLD = Score(None, "no gold answers to compare with")
NO_ANSWER = Score(0.0, "no answer given")


@dataclass(frozen=True)
class Correctness(Reward):
    """R_anc: how well the answer agrees with the best of the gold answers, in [0, 1].

    ```
    em:     1 if normalise(answer) = normalise(gold) for any gold, else 0
    f1:     max over golds of the token F1
    judge:  1 if the judge says the answer follows from the gold answers, else 0
    ```

    Proof-of-Use, section 3.3.3 (there by an LLM judge; strings are the fallback). No answer is 0.0; no gold answers is
    `None`; a judge that cannot be asked makes the rows it was asked about abstain.

    Args:
        metric: "em", "f1" or "judge".
        how: the normaliser of "em" and "f1", "squad" or "pokee"; their figures are not comparable.
        judge: required by "judge"; its premise is the gold answers, its hypothesis the answer.

    Example:
        >>> from faithful_search.trajectory import Trajectory
        >>> Correctness().score(Trajectory(answer="The Louvre.", answers=("Louvre",))).value
        1.0

    How to hack it: with "f1", list many candidates; each gold token found counts.
    """

    metric: Literal["em", "f1", "judge"] = "em"
    how: Literal["squad", "pokee"] = "squad"
    judge: Judge | None = None

    name: ClassVar[str] = "correctness"

    def __post_init__(self) -> None:
        if self.metric not in ("em", "f1", "judge"):
            raise ConfigError(f"Correctness: metric {self.metric!r} is not one of 'em', 'f1', 'judge'")
        if (self.metric == "judge") != (self.judge is not None):
            raise ConfigError("Correctness: metric='judge' and judge=… go together; give both or neither")

    def score(self, trajectory: Trajectory) -> Score:
        return self.score_batch([trajectory])[0]

    def score_batch(self, trajectories: Sequence[Trajectory]) -> list[Score]:
        if self.judge is not None:
            return self._judged(self.judge, trajectories)
        return [_without_comparing(trajectory) or self._by_string(trajectory) for trajectory in trajectories]

    def _by_string(self, trajectory: Trajectory) -> Score:
        compare = exact_match if self.metric == "em" else f1
        value = float(compare(trajectory.answer or "", trajectory.answers, self.how))
        return Score(value, "" if value == 1.0 else f"{trajectory.answer!r} against {' | '.join(trajectory.answers)}")

    def _judged(self, judge: Judge, trajectories: Sequence[Trajectory]) -> list[Score]:
        scores = [_without_comparing(trajectory) for trajectory in trajectories]
        asked = [i for i, score in enumerate(scores) if score is None]
        pairs = [_pair(trajectories[i]) for i in asked]
        try:
            verdicts = judge.judge_batch(pairs) if pairs else []
            answers = [Score(float(verdict.label), verdict.why, {"p": verdict.p}) for verdict in verdicts]
        except JudgeError as error:
            answers = [Score(None, f"the judge abstained: {error}", {"abstained": True})] * len(asked)
        found = dict(zip(asked, answers, strict=True))
        return [found[i] if score is None else score for i, score in enumerate(scores)]


def _without_comparing(trajectory: Trajectory) -> Score | None:
    if not trajectory.answers:
        return NO_GOLD
    return None if (trajectory.answer or "").strip() else NO_ANSWER


def _pair(trajectory: Trajectory) -> Pair:
    return Pair("\n\n".join(trajectory.answers), trajectory.answer or "", trajectory.question or "")
