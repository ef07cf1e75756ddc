"""Correctness that cannot be earned from memory: a right answer counts only where evidence holds
it.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar
from urllib.parse import unquote

from ..answer_tokens import one_typography
from ..text import content_words, holds, normalize
from ..trajectory import Evidence, ToolCall, Trajectory
from .answer_support import AnswerSupport
from .base import BatchReward, Column, Score
from .correctness import Correctness
from .turns import answer_of, passages, short_answer

ABSTENTION = "unknown"  # the answer that claims nothing
NEVER_LOOKED_UP = frozenset((ABSTENTION, "yes", "no", "true", "false"))
"""Answers that calls hold as words of their own: "no country for old men"."""
_UNASKED = Score(None, "the answer is not right")  # of the support, where it cannot change anything


@dataclass(frozen=True)
class SourceGated(BatchReward):
    """The outcome where the cited evidence supports the answer, else 0, in [0, 1].

    ```
    R = outcome · [R_ans = 1]
    outcome: `Correctness`       R_ans: `AnswerSupport`, the share of the answer's claims that the evidence supports
    ```

    Ours; reward environments call it source gating. With the default support the normalised answer
    must occur, as whole words, in a passage that a valid yes-step cites; in dialects without
    citations, in one that a tool returned. No passage can hold a yes or no: where words are
    compared, they count where any evidence is cited (or returned). "unknown" claims nothing, so it
    counts once a tool was asked.

    A call looks the answer up when it holds the whole answer, and neither the question nor any
    evidence before it does: the agent knew or guessed it, and what comes back only agrees with it.
    Where `looked_up` is false, as in the mixes of this package, such an answer counts for nothing.
    Forms around the answer (a box, JSON) and differences in typography are no matter; names of
    arguments, and numbers beside a text (`top_k`), are not read. A yes or no, "unknown", and an
    answer of function words alone ("It") are never looked up: calls hold these by chance.

    The support is asked for only where the outcome is above 0. `parts["outcome"]` is the value
    without the gate, `parts["supported"]` whether the gate is open (`None` where nobody was asked),
    `parts["supported_by"]` the judge.

    Args:
        outcome: says whether the answer is right.
        support: says whether evidence holds it; its `evidence` and `judge` are the knobs.
        looked_up: whether an answer counts that a call looked up and evidence then holds.

    How to hack it: answer from memory and cite everything; some passage is likely to hold the word.
    Search for the answer itself and cite what comes back; without `looked_up`, for a part of it.
    """

    outcome: Correctness = field(default_factory=Correctness)
    support: AnswerSupport = field(default_factory=AnswerSupport)
    looked_up: bool = True

    name: ClassVar[str] = "source_gated"
    columns: ClassVar[Mapping[str, Column]] = {
        "source_gated": Column("gated", "right answers that the cited evidence holds"),
    }
    label: ClassVar[str] = "correct and in the evidence, R_anc"

    def score_batch(self, trajectories: Sequence[Trajectory]) -> list[Score]:
        outcomes = self.outcome.score_batch(trajectories)
        settled: list[Score | None] = []
        for trajectory, outcome in zip(trajectories, outcomes, strict=True):
            settled.append(self._without_support(trajectory, outcome))
        to_judge = [
            trajectory
            for trajectory, score in zip(trajectories, settled, strict=True)
            if score is None
        ]
        judged = iter(self.support.score_batch(to_judge))
        scores = []
        for outcome, score in zip(outcomes, settled, strict=True):
            support = score or next(judged)
            parts = {**outcome.parts, "outcome": outcome.value, "supported": None}
            if "judge" in support.parts:
                parts["supported_by"] = support.parts["judge"]
            if support is _UNASKED:
                scores.append(Score(outcome.value, outcome.why, parts))
            elif support.value is None:
                scores.append(Score(None, support.why, {**parts, "abstained": True}))
            elif support.value < 1.0:
                scores.append(
                    Score(0.0, f"counts for nothing: {support.why}", {**parts, "supported": False})
                )
            else:
                scores.append(Score(outcome.value, outcome.why, {**parts, "supported": True}))
        return scores

    def _without_support(self, trajectory: Trajectory, outcome: Score) -> Score | None:
        """What stands in for the support where nobody need judge it; `None` where it is judged."""
        if not outcome.value:
            return _UNASKED
        step = 0 if self.looked_up else step_that_looks_up(trajectory)
        if step:
            why = f"step {step} asks for {short_answer(trajectory)!r} before any evidence holds it"
            return Score(0.0, why)
        answer = normalize(answer_of(trajectory))
        if answer == ABSTENTION:
            has_called = any(step.call for step in trajectory.steps)
            return Score(float(has_called), "" if has_called else "no tool was asked")
        # any passage holds such words, or none does, whatever the answer rests on
        if answer in ("yes", "no") and self.support.judge.lexical:
            has_evidence = bool(self.support.evidence_for(trajectory))
            why = "" if has_evidence else f"{answer!r} rests on no evidence"
            return Score(float(has_evidence), why)
        return None


def step_that_looks_up(trajectory: Trajectory) -> int:
    """The first step (from 1) whose call holds the whole answer, where neither the question nor the
    evidence before it does; 0: there is none.

    Example:
        >>> from faithful_search.trajectory import Step, ToolCall
        >>> search = Step("I look.", ToolCall("local_search", {"query": "Lima"}))
        >>> steps = (search, Step("So it is.", answer="Lima"))
        >>> step_that_looks_up(Trajectory(steps, "What is the capital of Peru?", "Lima"))
        1
    """
    answer = _plain(short_answer(trajectory))
    if answer in NEVER_LOOKED_UP or not content_words(answer):
        return 0
    if holds(_plain(trajectory.question or ""), answer):
        return 0
    for number, step in enumerate(trajectory.steps, start=1):
        if step.call is not None and holds(_plain(_asked(step.call)), answer):
            return number
        if holds(_plain(_returned(step.evidence)), answer):
            return 0
    return 0


def _asked(call: ToolCall) -> str:
    """What a call asks for: the texts in its arguments, one a line. Numbers and switches beside a
    text are settings, also where they are quoted. Without arguments the call is as written.
    """
    values = list(_values(call.arguments))
    texts = []
    for value in values:
        if isinstance(value, str) and not value.strip().isdecimal():
            texts.append(unquote(value))
    return "\n".join(texts or map(str, values)) if values else call.raw


def _values(value: Any) -> Iterator[Any]:
    """The texts, numbers and switches within lists and dictionaries."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        for inner in value:
            yield from _values(inner)
    else:
        yield value


def _returned(evidence: Iterable[Evidence]) -> str:
    """What the agent can have read: passages, and addresses, which it may open next."""
    evidence = list(evidence)
    addresses = [unquote(f"{passage.url} {passage.source}") for passage in evidence]
    return "\n".join([passages(evidence), *addresses])


def _plain(text: str) -> str:
    # with a blank for each mark, so that a tag beside a word is no part of it
    return normalize(one_typography(text), "pokee")
