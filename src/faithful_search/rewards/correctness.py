"""Is the answer right? Compared with the gold answers, by string or by a judge."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from ..errors import ConfigError
from ..judges.base import Judge, Pair, Verdict
from ..text import exact_match, f1, sub_exact_match
from ..trajectory import Trajectory
from .base import NOT_UPHELD, BatchReward, Column, Result, Score, ask
from .turns import short_answer

NO_GOLD = Score(None, "no gold answers to compare with")
NO_ANSWER = Score(0.0, "no answer given")
EXACT = Score(1.0, "", {"exact_match": True, "judge": "exact match, not asked"})
_COMPARE = {"em": exact_match, "f1": f1, "sub_em": sub_exact_match}
METRICS = (*_COMPARE, "judge")
DIFFERS = "exact_match_squad"
"""The part of a score that says what SQuAD's normaliser gives, where that is another value."""


@dataclass(frozen=True)
class Correctness(BatchReward):
    """R_anc: how well the answer agrees with the best of the gold answers, in [0, 1].

    ```
    em:     1 if normalise(answer) = normalise(gold) for any gold, else 0
    f1:     max over golds of the token F1
    sub_em: 1 if normalise(answer) contains any normalise(gold), as characters, else 0
    judge:  1 if em is 1, or the judge says the answer follows from the gold answers, else 0
    ```

    Proof-of-Use, section 3.3.3 (there by an LLM judge; strings are the fallback). No answer is 0.0,
    no gold answers `None`. The judge is not asked about an exact match: `parts["exact_match"]` is
    then True.

    Args:
        metric: "em", "f1", "sub_em" or "judge".
        how: the normaliser, "squad", "pokee" or "unicode"; their figures are not comparable.
        judge: required by "judge"; its premise is the gold answers, its hypothesis the answer.

    Example:
        >>> from faithful_search.trajectory import Trajectory
        >>> Correctness().score(Trajectory(answer="The Louvre.", answers=("Louvre",))).value
        1.0

    How to hack it: list many candidates. "f1" pays for every gold token among them, "sub_em" for
    any gold answer.
    """

    metric: Literal["em", "f1", "sub_em", "judge"] = "em"
    how: Literal["squad", "pokee", "unicode"] = "squad"
    judge: Judge | None = None

    name: ClassVar[str] = "correctness"
    # Audits and evaluations call the judge's result `answer_correctness` and `lm_accuracy`; a study
    # of controls calls what it measures `right`, whatever the metric.
    results: ClassVar[Mapping[str, Result]] = {
        "exact_match": Result(
            asks="is the answer a gold answer?",
            clean="the answer is a gold answer",
        ),
        "f1": Result(
            asks="how many words do answer and gold answer share?",
            clean="the answer has the words of a gold answer and no others",
        ),
        "sub_em": Result(
            asks="does the answer contain a gold answer?",
            good="the answer contains a gold answer",
            clean="the answer contains a gold answer",
        ),
        "answer_correctness": Result(
            asks="does the judge find the answer right?",
            good="the judge finds the answer right",
            clean="the judge finds the answer right",
        ),
        "lm_accuracy": Result(
            asks="is the answer a gold answer, or does the judge find it right?",
        ),
        "right": Result(
            asks="is the answer right?",
            good="the answer is right",
        ),
    }
    titles: ClassVar[Mapping[str, str]] = {
        "exact_match": "Exact match",
        "f1": "F1",
        "lm_accuracy": "Answer right, by a judge",
    }
    columns: ClassVar[Mapping[str, Column]] = {
        "correctness": Column("anc", "right answers"),
        "exact_match": Column("EM", "exact match"),
    }
    label: ClassVar[str] = "answer correctness, R_anc"

    def __post_init__(self) -> None:
        if self.metric not in METRICS:
            raise ConfigError(
                f"Correctness: metric {self.metric!r} is not one of {', '.join(map(repr, METRICS))}"
            )
        if (self.metric == "judge") != (self.judge is not None):
            raise ConfigError(
                "Correctness: metric='judge' and judge=… go together; give both or neither"
            )

    def score_batch(self, trajectories: Sequence[Trajectory]) -> list[Score]:
        scores: dict[int, Score] = {}
        pairs: dict[int, Pair] = {}  # for the rows that only the judge can score
        for row, trajectory in enumerate(trajectories):
            answer = short_answer(trajectory)
            if not trajectory.answers:
                scores[row] = NO_GOLD
            elif not answer.strip():
                scores[row] = NO_ANSWER
            elif self.judge is None:
                scores[row] = self._compared(trajectory, answer)
            elif exact_match(answer, trajectory.answers, self.how):  # costs no question
                scores[row] = EXACT
            else:
                gold = "\n\n".join(trajectory.answers)
                pairs[row] = Pair(gold, answer, trajectory.question or "", "correctness")
        if self.judge is not None:
            verdicts = ask(self.judge, list(pairs.values()))
            for row, verdict in zip(pairs, verdicts, strict=True):
                scores[row] = _judged(verdict, self.judge)
        return [scores[row] for row in range(len(trajectories))]

    def _compared(self, trajectory: Trajectory, answer: str) -> Score:
        """The score of an answer by strings."""
        compare = _COMPARE[self.metric]
        value = float(compare(answer, trajectory.answers, self.how))
        why = ""
        if value != 1.0:
            why = f"{answer!r} against {' | '.join(trajectory.answers)}"
        parts = {}
        if self.metric == "em" and self.how != "squad":
            of_squad = float(compare(answer, trajectory.answers, "squad"))
            if of_squad != value:
                parts[DIFFERS] = of_squad
        return Score(value, why, parts)


def _judged(verdict: Verdict, judge: Judge) -> Score:
    """The score of an answer by the judge's verdict."""
    judged_by = {"judge": verdict.judge or judge.name}
    if verdict.label is None:
        return Score(None, f"no verdict: {verdict.why}", {"abstained": True, **judged_by})
    why = verdict.why
    if not why and not verdict.label:
        why = NOT_UPHELD
    return Score(float(verdict.label), why, {"p": verdict.p, "exact_match": False, **judged_by})
