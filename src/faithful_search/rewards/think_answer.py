"""Does the answer follow from the agent's last thought? VERITAS's think-answer faithfulness."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import msgspec

from ..citations import without_marks
from ..judges.base import Judge, Pair, Verdict
from ..text import normalize, sub_exact_match
from ..trajectory import Trajectory
from .base import Column, JudgedReward, Result, Score, StepPair
from .declined import CLAIMS_NOTHING, declined
from .turns import answer_of, asks_for_thoughts, short_answer, thought


@dataclass(frozen=True)
class ThinkAnswer(JudgedReward):
    """1 when the answer follows from the last thought before it, else 0.

    ```
    without a judge (sub-EM):  1 if normalise(answer) occurs, as characters, in normalise(thought), else 0
    with one:                  its label
    ```

    VERITAS, section 3.3. The thought is that of the answering turn, or the last one before it in
    dialects that ask for one in every turn; a check of an earlier answer is not one. Without an
    answer or such a thought there is no value, nor where the transcript leaves something out
    ("...") between the two. Sub-EM looks for what exact match compares: the content of a box, of
    JSON or of another form. Of an answer that says that it has none (`Declined`) nothing is
    measured.

    Args:
        judge: is asked about the pairs; without one sub-EM compares them.
        soft: average the judge's p instead of its labels.
        how: the normaliser of sub-EM, "squad", "pokee" or "unicode"; figures of two of them cannot
            be compared.
        most_words: sub-EM says nothing about answers of more words: no thought holds a paragraph
            word for word.

    With "unicode" sub-EM says nothing about yes and no either: as words they stand in most
    thoughts.

    How to hack it: name every candidate in the last thought. Sub-EM of "squad" and "pokee" also
    finds "no" in "now".
    """

    judge: Judge | None = None  # type: ignore[assignment]
    how: Literal["squad", "pokee", "unicode"] = "squad"
    most_words: int | None = None

    name: ClassVar[str] = "think_answer"
    results: ClassVar[Mapping[str, Result]] = {
        "think_answer": Result(
            asks="does the answer follow from the last thought?",
            good="answers follow from the last thought",
            clean="the answer follows from the last thought",
        ),
        "think_answer_sub_em": Result(
            asks="does the last thought contain the answer?",
            good="the last thought contains the answer",
            clean="the last thought contains the answer",
        ),
    }
    titles: ClassVar[Mapping[str, str]] = {
        "think_answer_faithfulness": "Think-answer faithfulness",
        "think_answer_facts": "Think-answer faithfulness, by the world's facts",
        "think_answer_sub_em": "Think-answer substring match",
    }
    columns: ClassVar[Mapping[str, Column]] = {
        "think_answer": Column("t-a", "think-answer"),
    }
    label: ClassVar[str] = "think-answer"

    def __post_init__(self) -> None:
        normalize("", self.how)  # refuses a normaliser that does not exist

    @property
    def judge_name(self) -> str:
        return f"sub_em_{self.how}" if self.judge is None else self.judge.name

    def pairs(self, trajectory: Trajectory) -> list[StepPair]:
        answer = self._answer(trajectory)
        if not answer or self._too_long(answer) or self._closed(answer):
            return []
        answer_number = _number_of_answer(trajectory)
        thought_number = _number_of_thought(trajectory, answer_number)
        if not thought_number or _is_elided(trajectory, thought_number, answer_number):
            return []
        step = trajectory.steps[thought_number - 1]
        premise = without_marks(thought((step,)), trajectory)
        pair = Pair(premise, answer, trajectory.question or "", "think_answer")
        if self.judge is not None:
            return [StepPair(answer_number, pair)]
        p = sub_exact_match(pair.premise, [answer], self.how)
        why = "" if p else f"{answer!r} is not in the last thought"
        verdict = Verdict(p, bool(p), why, self.judge_name)
        return [StepPair(answer_number, pair, verdict)]

    def judged(
        self, trajectory: Trajectory, pairs: Sequence[StepPair], verdicts: Sequence[Verdict]
    ) -> Score:
        score = super().judged(trajectory, pairs, verdicts)
        if score.value is None or not declined(trajectory):
            return score
        parts = {**score.parts, "applies": False}
        return msgspec.structs.replace(score, why=CLAIMS_NOTHING, parts=parts)

    def empty(self, trajectory: Trajectory) -> Score:
        answer = self._answer(trajectory)
        if self._too_long(answer):
            return Score(
                None,
                f"an answer of more than {self.most_words} words is not looked for in the thought",
            )
        if self._closed(answer):
            return Score(None, "yes or no is not looked for in the thought: it stands in most")
        if not answer:
            return Score(None, "no answer given")
        return Score(None, "no thought right before the answer")

    def _answer(self, trajectory: Trajectory) -> str:
        """What sub-EM looks for in the thought, or what the judge reads."""
        if self.judge is None:
            return short_answer(trajectory)
        return answer_of(trajectory).strip()

    def _closed(self, answer: str) -> bool:
        """Whether sub-EM says nothing about the answer since it is a yes or no."""
        if self.judge is not None or self.how != "unicode":
            return False
        return normalize(answer, "unicode") in ("yes", "no")

    def _too_long(self, answer: str) -> bool:
        """Whether sub-EM says nothing about the answer since it has too many words."""
        if self.judge is not None or self.most_words is None:
            return False
        return len(answer.split()) > self.most_words


def _number_of_answer(trajectory: Trajectory) -> int:
    """The number, from 1, of the last step that answers; where none does, of the last step."""
    steps = trajectory.steps
    for number in range(len(steps), 0, -1):
        if steps[number - 1].answer is not None:
            return number
    return len(steps)


def _number_of_thought(trajectory: Trajectory, answer_number: int) -> int:
    """The number of the last step with a thought, up to the one that answers; 0 where there is
    none. In protocols that ask for no thoughts, only the thought of that step itself counts.
    """
    earliest = 1 if asks_for_thoughts(trajectory.dialect) else max(1, answer_number)
    for number in range(answer_number, earliest - 1, -1):
        if thought((trajectory.steps[number - 1],)):
            return number
    return 0


def _is_elided(trajectory: Trajectory, thought_number: int, answer_number: int) -> bool:
    """Whether the transcript leaves something out between the thought and the answer: the last
    thought may have been there.
    """
    steps = trajectory.steps[thought_number - 1 : answer_number]
    _, thought_end = steps[0].spans.get("think", (0, 0))
    for step in steps:
        for issue in step.issues:
            if issue.kind == "elided" and issue.span and issue.span[0] >= thought_end:
                return True
    return False
