"""Do the cited passages support the answer? Proof-of-Use's answer-support alignment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from ..errors import JudgeError
from ..judges.base import Judge, Pair, Verdict
from ..judges.lexical import LexicalJudge
from ..text import sentences
from ..trajectory import Evidence, Trajectory
from .base import Reward, Score
from .citation import cited_evidence, step_validity


@dataclass(frozen=True)
class AnswerSupport(Reward):
    """R_ans: the share of the answer's claims that the cited evidence supports.

    ```
    R_ans = |{claims supported by the cited evidence}| / |claims|
          = 0 when T = 1 or no step has R_cite^t = +1
    ```

    Proof-of-Use, section 3.3.3, equation 5. The cited evidence is that of the valid yes-steps; the claims are the
    answer's sentences, so that a short answer is one claim. No answer, or valid steps that all say no, score 0. The
    zeros of equation 5 are 0.0 with `parts["applies"]` False. When the judge cannot be asked the rows that needed it
    abstain; a batch asks it once.

    Args:
        judge: reads the cited passages as premise (blank lines between them) and a claim as hypothesis.

    Example:
        >>> from faithful_search.trajectory import Evidence, Step, ToolCall, Trajectory
        >>> search = Step(call=ToolCall("local_search"), evidence=(Evidence("Paris is the capital.", id="E1"),))
        >>> last = Step(helpful=True, refs=("E1",), answer="Paris")
        >>> AnswerSupport().score(Trajectory(steps=(search, last), answer="Paris")).value
        1.0

    How to hack it: cite everything and answer with a word that some passage is bound to hold.
    """

    judge: Judge = field(default_factory=LexicalJudge)

    name: ClassVar[str] = "answer_support"

    def score(self, trajectory: Trajectory) -> Score:
        return self.score_batch([trajectory])[0]

    def score_batch(self, trajectories: Sequence[Trajectory]) -> list[Score]:
        asked = [_pairs(trajectory) for trajectory in trajectories]
        pairs = [pair for own in asked for pair in own]
        try:
            verdicts = iter(self.judge.judge_batch(pairs) if pairs else [])
        except JudgeError as error:
            abstained = Score(None, f"the judge abstained: {error}", {"abstained": True})
            return [abstained if own else _without_judge(t) for t, own in zip(trajectories, asked, strict=True)]
        return [
            _share([next(verdicts) for _ in own], own) if own else _without_judge(trajectory)
            for trajectory, own in zip(trajectories, asked, strict=True)
        ]


def _pairs(trajectory: Trajectory) -> list[Pair]:
    cited = cited_evidence(trajectory)
    if not cited or not (trajectory.answer or "").strip():
        return []
    premise = "\n\n".join(map(_passage, cited))
    claims = sentences(trajectory.answer or "")
    return [Pair(premise, claim, trajectory.question or "") for claim in claims]


def _passage(evidence: Evidence) -> str:
    return f"{evidence.title}\n{evidence.text}" if evidence.title else evidence.text


def _without_judge(trajectory: Trajectory) -> Score:
    if not any(step_validity(trajectory)):
        return Score(0.0, "no step with a valid citation", {"applies": False})
    if not (trajectory.answer or "").strip():
        return Score(0.0, "no answer given", {"applies": True})
    return Score(0.0, "the answer cites no evidence", {"applies": True})


def _share(verdicts: list[Verdict], pairs: list[Pair]) -> Score:
    unsupported = [pair.hypothesis for pair, verdict in zip(pairs, verdicts, strict=True) if not verdict.label]
    why = f"not supported by the cited evidence: {unsupported[0]!r}" if unsupported else ""
    supported = len(pairs) - len(unsupported)
    parts = {"applies": True, "claims": len(pairs), "supported": supported, "p": [verdict.p for verdict in verdicts]}
    return Score(supported / len(pairs), why, parts)
