"""What rewards share that ask a judge about pairs of texts."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import msgspec

from ..errors import JudgeError
from ..judges import GroundingJudge, Judge, Pair, Verdict
from ..trajectory import Trajectory
from .base import BatchReward, Score

NOT_UPHELD = "not upheld by the judge"


class Asked(msgspec.Struct, frozen=True):
    """One pair of a trajectory: `step` (from 1) is where its hypothesis stands. `settled` needs no judge."""

    step: int
    pair: Pair
    settled: Verdict | None = None


@dataclass(frozen=True)
class JudgedReward(BatchReward):
    """The share of a trajectory's pairs that the judge upholds; subclasses say which pairs those are.

    The value is the mean of the labels. A trajectory without pairs has none; one of whose pairs the judge abstained
    from abstains as a whole. A batch asks the judge once. `parts["pairs"]` holds step, p, label and reason of each pair
    (and `settled` where no judge was asked), `parts["judge"]` who judged, with the version of its prompt.

    Args:
        judge: is asked about the pairs, with the reward's name as their `task`; by default the words are compared.
        soft: average p instead of the labels.
    """

    judge: Judge = field(default_factory=GroundingJudge)
    soft: bool = False

    nothing: ClassVar[str] = "nothing to judge"  # why a trajectory without pairs has no value

    @property
    def judge_name(self) -> str:
        return self.judge.name

    @abstractmethod
    def pairs(self, trajectory: Trajectory) -> list[Asked]: ...

    def pairs_batch(self, trajectories: Sequence[Trajectory]) -> list[list[Asked]]:
        """The pairs of many trajectories, for rewards that must ask before they know them."""
        return [self.pairs(trajectory) for trajectory in trajectories]

    def empty(self, trajectory: Trajectory) -> Score:
        """The score of a trajectory without pairs."""
        return Score(None, self.nothing)

    def score_batch(self, trajectories: Sequence[Trajectory]) -> list[Score]:
        asked = self.pairs_batch(trajectories)
        verdicts = iter(ask(self.judge, [item.pair for own in asked for item in own if item.settled is None]))
        scores = []
        for trajectory, own in zip(trajectories, asked, strict=True):
            found = [item.settled or next(verdicts) for item in own]
            scores.append(self.judged(trajectory, own, found) if own else self.empty(trajectory))
        return scores

    def judged(self, trajectory: Trajectory, asked: Sequence[Asked], verdicts: Sequence[Verdict]) -> Score:
        """The score of a trajectory with these pairs and verdicts."""
        both = list(zip(asked, verdicts, strict=True))
        judge = next((said.judge for item, said in both if item.settled is None and said.judge), self.judge_name)
        told: list[dict[str, Any]] = []
        for item, said in both:
            told.append({"step": item.step, "p": said.p, "label": said.label, "why": said.why})
            if item.settled is not None:
                told[-1]["settled"] = True
        parts: dict[str, Any] = {"judge": judge, "pairs": told}
        missing = next((verdict for verdict in verdicts if verdict.abstained), None)
        if missing is not None:
            return Score(None, f"the judge abstained: {missing.why}", {"abstained": True, **parts})
        values = [float(verdict.p if self.soft else verdict.label) for verdict in verdicts]  # type: ignore[arg-type]
        against = next((f"step {item.step}: {said.why or NOT_UPHELD}" for item, said in both if not said.label), "")
        by_step = {item.step: value for item, value in zip(asked, values, strict=True)}
        # where a step has several pairs, the mean over pairs is not the mean over steps: then none has a share
        numbers = range(1, len(trajectory.steps) + 1) if len(by_step) == len(asked) else ()
        steps = tuple(by_step.get(number) for number in numbers)
        return Score(sum(values) / len(values), against, {"applies": True, **parts}, steps)


def ask(judge: Judge, pairs: Sequence[Pair]) -> list[Verdict]:
    """The judge's verdicts, equal pairs asked about once; where it cannot be asked at all, verdicts that abstain."""
    different = list(dict.fromkeys(pairs))
    try:
        verdicts = dict(zip(different, judge.judge_batch(different) if different else [], strict=True))
    except JudgeError as error:
        verdicts = dict.fromkeys(different, Verdict(None, None, str(error), judge.name))
    return [verdicts[pair] for pair in pairs]
