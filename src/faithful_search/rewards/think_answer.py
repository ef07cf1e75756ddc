"""Does the answer follow from the agent's last thought? VERITAS's think-answer faithfulness."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from ..judges.base import Judge, Pair, Verdict
from ..text import normalize, sub_exact_match
from ..trajectory import Trajectory
from .base import Asked, JudgedReward, Score
from .turns import asks_for_thoughts, thought


@dataclass(frozen=True)
class ThinkAnswer(JudgedReward):
    """1 when the answer follows from the last thought before it, else 0.

    ```
    without a judge (sub-EM):  1 if normalise(answer) occurs, as characters, in normalise(thought), else 0
    with one:                  its label
    ```

    VERITAS, section 3.3. The thought is that of the answering turn, or the last one before it in dialects that ask for
    one in every turn; a check of an earlier answer is not one. Without an answer or such a thought there is no value,
    nor where the transcript leaves something out ("...") between the two.

    Args:
        judge, soft: see `JudgedReward`; without a judge sub-EM.
        how: the normaliser of sub-EM, "squad" or "pokee"; their figures are not comparable.
        most_words: sub-EM says nothing about answers of more words: no thought holds a paragraph word for word.

    How to hack it: name every candidate in the last thought. Sub-EM also finds "no" in "now".
    """

    judge: Judge | None = None  # type: ignore[assignment]
    how: Literal["squad", "pokee"] = "squad"
    most_words: int | None = None

    name: ClassVar[str] = "think_answer"

    def __post_init__(self) -> None:
        normalize("", self.how)  # refuses a normaliser that does not exist

    @property
    def judge_name(self) -> str:
        return f"sub_em_{self.how}" if self.judge is None else self.judge.name

    def pairs(self, trajectory: Trajectory) -> list[Asked]:
        steps, answer = trajectory.steps, (trajectory.answer or "").strip()
        step = next(
            (i for i in range(len(steps), 0, -1) if steps[i - 1].answer is not None), len(steps)
        )
        earliest = 0 if asks_for_thoughts(trajectory.dialect) else max(0, step - 1)
        number = next((i for i in range(step, earliest, -1) if thought((steps[i - 1],))), 0)
        if not answer or not number or self._too_long(answer):
            return []
        # where something behind the thought was left out of the transcript, the last thought may have been, too
        _, end = steps[number - 1].spans.get("think", (0, 0))
        elided = [
            issue.span
            for own in steps[number - 1 : step]
            for issue in own.issues
            if issue.kind == "elided"
        ]
        if any(span is not None and span[0] >= end for span in elided):
            return []
        pair = Pair(
            thought((steps[number - 1],)), answer, trajectory.question or "", "think_answer"
        )
        if self.judge is not None:
            return [Asked(step, pair)]
        found = sub_exact_match(pair.premise, [answer], self.how)
        why = "" if found else f"{answer!r} is not in the last thought"
        return [Asked(step, pair, Verdict(found, bool(found), why, self.judge_name))]

    def empty(self, trajectory: Trajectory) -> Score:
        answer = (trajectory.answer or "").strip()
        if self._too_long(answer):
            return Score(
                None,
                f"an answer of more than {self.most_words} words is not looked for in the thought",
            )
        return Score(None, "no thought right before the answer" if answer else "no answer given")

    def _too_long(self, answer: str) -> bool:
        return (
            self.judge is None
            and self.most_words is not None
            and len(answer.split()) > self.most_words
        )
