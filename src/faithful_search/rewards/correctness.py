"""Is the answer right? Compared with the gold answers, by string or by a judge."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from ..errors import ConfigError
from ..judges.base import Judge, Pair
from ..text import exact_match, f1, sub_exact_match
from ..trajectory import Trajectory
from .base import NOT_UPHELD, BatchReward, Score, ask

NO_GOLD = Score(None, "no gold answers to compare with")
NO_ANSWER = Score(0.0, "no answer given")
EXACT = Score(1.0, "", {"exact_match": True, "judge": "exact match, not asked"})
_COMPARE = {"em": exact_match, "f1": f1, "sub_em": sub_exact_match}
METRICS = (*_COMPARE, "judge")


@dataclass(frozen=True)
class Correctness(BatchReward):
    """R_anc: how well the answer agrees with the best of the gold answers, in [0, 1].

    ```
    em:     1 if normalise(answer) = normalise(gold) for any gold, else 0
    f1:     max over golds of the token F1
    sub_em: 1 if normalise(answer) contains any normalise(gold), as characters, else 0
    judge:  1 if em is 1, or the judge says the answer follows from the gold answers, else 0
    ```

    Proof-of-Use, section 3.3.3 (there by an LLM judge; strings are the fallback). No answer is 0.0, no gold answers
    `None`. The judge is not asked about an exact match: `parts["exact_match"]` is then True.

    Args:
        metric: "em", "f1", "sub_em" or "judge".
        how: the normaliser, "squad" or "pokee"; their figures are not comparable.
        judge: required by "judge"; its premise is the gold answers, its hypothesis the answer.

    Example:
        >>> from faithful_search.trajectory import Trajectory
        >>> Correctness().score(Trajectory(answer="The Louvre.", answers=("Louvre",))).value
        1.0

    How to hack it: with "f1" and "sub_em", list many candidates; each gold token, or any gold answer, found counts.
    """

    metric: Literal["em", "f1", "sub_em", "judge"] = "em"
    how: Literal["squad", "pokee"] = "squad"
    judge: Judge | None = None

    name: ClassVar[str] = "correctness"

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
        scores: list[Score | None] = []
        for item in trajectories:
            if not item.answers:
                scores.append(NO_GOLD)
            elif not (item.answer or "").strip():
                scores.append(NO_ANSWER)
            elif self.judge is not None:  # an exact match costs no question
                scores.append(EXACT if exact_match(item.answer, item.answers, self.how) else None)
            else:
                value = float(_COMPARE[self.metric](item.answer or "", item.answers, self.how))
                why = "" if value == 1.0 else f"{item.answer!r} against {' | '.join(item.answers)}"
                scores.append(Score(value, why))
        asked = [
            Pair("\n\n".join(item.answers), item.answer or "", item.question or "", "correctness")
            for item, score in zip(trajectories, scores, strict=True)
            if score is None
        ]
        judged = []
        for verdict in ask(self.judge, asked) if self.judge else []:
            told = {"judge": verdict.judge or (self.judge.name if self.judge else "")}
            if verdict.label is None:
                judged.append(
                    Score(None, f"the judge abstained: {verdict.why}", {"abstained": True, **told})
                )
            else:
                why = verdict.why or ("" if verdict.label else NOT_UPHELD)
                judged.append(
                    Score(float(verdict.label), why, {"p": verdict.p, "exact_match": False, **told})
                )
        found = iter(judged)
        return [score or next(found) for score in scores]  # a score is true, also one of 0.0
