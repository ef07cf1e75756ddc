"""Does the evidence support the answer? Proof-of-Use's answer-support alignment, which is Ragas's faithfulness."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from ..errors import ConfigError, JudgeError
from ..judges import Judge, LexicalJudge, Pair, Request, Verdict, Writer
from ..text import sentences
from ..trajectory import Evidence, Trajectory
from ..world import Change
from .base import Asked, JudgedReward, Score
from .citation import Citation, cited_evidence, step_validity
from .turns import passages

_BULLET = re.compile(r"^\s*(?:[-*\u2022]\s+|\d{1,3}[.)]\s+)?")


@dataclass(frozen=True)
class AnswerSupport(JudgedReward):
    """R_ans: the share of the answer's claims that the cited evidence supports.

    ```
    R_ans = |{claims supported by the cited evidence}| / |claims|
          = 0 when T = 1 or no step has R_cite^t = +1
    ```

    Proof-of-Use, section 3.3.3, equation 5. The cited evidence is that of the valid yes-steps. No answer, or valid
    steps that all say no, score 0. The zeros of equation 5 are 0.0 with `parts["applies"]` False. In dialects without
    citations all evidence retrieved stands for the cited (ours, and more lenient); `parts["evidence"]` says which.

    A judge that can also write (`Writer`, the request "claims") makes claims from question and answer, as Ragas does:
    "Paris" to "What is the capital of France?" becomes "The capital of France is Paris." An answer in which it finds no
    claim scores 0 and does not apply. For any other judge the claims are the answer's sentences, with the question.
    `parts` has the number of "claims", their "texts" and how many were "supported".

    Args:
        judge: reads the passages as premise and a claim as hypothesis. By default the claim's words must occur as they
            are, which suits short answers.
        soft: average p instead of the labels; an endpoint gives several claims of an answer a p with `together=False`.
        evidence: "cited", "retrieved", or "auto": what is cited in dialects that cite, else what was retrieved.

    Example:
        >>> from faithful_search.trajectory import Evidence, Step, ToolCall, Trajectory
        >>> search = Step(call=ToolCall("local_search"), evidence=(Evidence("Paris is the capital.", id="E1"),))
        >>> last = Step(helpful=True, refs=("E1",), answer="Paris")
        >>> AnswerSupport().score(Trajectory(steps=(search, last), answer="Paris")).value
        1.0

    How to hack it: cite everything and answer with a word that some passage is bound to hold.
    """

    judge: Judge = field(default_factory=LexicalJudge)
    evidence: Literal["auto", "cited", "retrieved"] = "auto"

    name: ClassVar[str] = "answer_support"

    def __post_init__(self) -> None:
        if self.evidence not in ("auto", "cited", "retrieved"):
            raise ConfigError(
                f"AnswerSupport: evidence {self.evidence!r} is not 'auto', 'cited' or 'retrieved'"
            )

    def pairs(self, trajectory: Trajectory) -> list[Asked]:
        return self.pairs_batch([trajectory])[0]

    def pairs_batch(self, trajectories: Sequence[Trajectory]) -> list[list[Asked]]:
        """Each claim with the evidence; none where there is no evidence or no answer."""
        premises = [
            passages(self.evidence_for(item)) if _answer(item) else "" for item in trajectories
        ]
        claims = iter(
            self._claims(
                [item for item, premise in zip(trajectories, premises, strict=True) if premise]
            )
        )
        found = []
        for item, premise in zip(trajectories, premises, strict=True):
            own = next(claims) if premise else []
            step, question, change = len(item.steps), item.question or "", Change.of(item.meta)
            if isinstance(own, Verdict):
                found.append([Asked(step, Pair(premise, _answer(item), question), own)])
            else:
                found.append(
                    [Asked(step, Pair(premise, claim, question, change=change)) for claim in own]
                )
        return found

    def _claims(self, trajectories: Sequence[Trajectory]) -> list[list[str] | Verdict]:
        """The claims of each answer, or a verdict that says why there are none."""
        if not isinstance(self.judge, Writer):
            return [sentences(_answer(item)) for item in trajectories]
        asked = [
            Request("claims", {"question": one.question or "", "answer": _answer(one)})
            for one in trajectories
        ]
        try:
            texts, failed = self.judge.write_batch(asked) if asked else [], "nothing was written"
        except JudgeError as error:
            texts, failed = [None] * len(asked), str(error)
        claims: list[list[str] | Verdict] = []
        for text in texts:
            written = list(
                filter(None, (_BULLET.sub("", line).strip() for line in (text or "").splitlines()))
            )
            none = [line.rstrip(".").upper() for line in written] == ["NONE"]
            missing = Verdict(None, None, f"no claims were made of the answer: {failed}", "claims")
            claims.append([] if none else written or missing)
        return claims

    def empty(self, trajectory: Trajectory) -> Score:
        used, applies = self._used(trajectory), False
        if used == "cited" and not any(step_validity(trajectory)):
            why = "no step with a valid citation"
        elif used == "retrieved" and not any(step.evidence for step in trajectory.steps):
            why = "no evidence was retrieved"
        elif _answer(trajectory) and self.evidence_for(trajectory):
            why = "the answer makes no claim"
        else:
            why, applies = (
                "the answer cites no evidence" if _answer(trajectory) else "no answer given",
                True,
            )
        return Score(0.0, why, {"applies": applies, "evidence": used})

    def judged(
        self, trajectory: Trajectory, asked: Sequence[Asked], verdicts: Sequence[Verdict]
    ) -> Score:
        score, used = super().judged(trajectory, asked, verdicts), self._used(trajectory)
        texts = [item.pair.hypothesis for item in asked]
        parts = {**score.parts, "evidence": used, "claims": len(texts), "texts": texts}
        if score.value is None:
            return Score(None, score.why, parts)
        against = [text for text, verdict in zip(texts, verdicts, strict=True) if not verdict.label]
        parts["supported"] = len(texts) - len(against)
        # without steps: what the whole answer earned is not the last step's alone
        return Score(
            score.value,
            f"not supported by the {used} evidence: {against[0]!r}" if against else "",
            parts,
        )

    def evidence_for(self, trajectory: Trajectory) -> tuple[Evidence, ...]:
        """The passages that the answer must rest on, each once."""
        if self._used(trajectory) == "cited":
            return cited_evidence(trajectory)
        # a passage that was returned twice would be read, and paid for, twice
        found = {
            (item.title, item.text): item for step in trajectory.steps for item in step.evidence
        }
        return tuple(found.values())

    def _used(self, trajectory: Trajectory) -> str:
        cites = "cited" if Citation().covers(trajectory.dialect) else "retrieved"
        return cites if self.evidence == "auto" else self.evidence


def _answer(trajectory: Trajectory) -> str:
    return (trajectory.answer or "").strip()
