"""Does the evidence support the answer? Proof-of-Use's answer-support alignment, which is Ragas's
faithfulness.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import msgspec

from .. import answer_forms
from ..abstention import claims_of, declines
from ..errors import ConfigError, JudgeError
from ..evidence import supporting_passages
from ..judges import ContainmentJudge, GroundingJudge, Judge, Pair, Request, Verdict, Writer
from ..tasks import world_context
from ..text import holds, sentences, shortened, sub_exact_match
from ..trajectory import NOT_REACHABLE, Evidence, Trajectory
from .base import Column, JudgedReward, Result, Score, StepPair
from .citation import Citation, cited_evidence, step_validity
from .citation_returned import REPORT_UNREAD, is_unread_report
from .declined import CLAIMS_NOTHING, declined
from .turns import answer_of, passages, short_answer

_NAMED = 3  # passages in a reason
_BULLET = re.compile(r"^\s*(?:[-*\u2022]\s+|\d{1,3}[.)]\s+)?")


@dataclass(frozen=True)
class AnswerSupport(JudgedReward):
    """R_ans: the share of the answer's claims that the cited evidence supports.

    ```
    R_ans = |{claims supported by the cited evidence}| / |claims|
          = 0 when T = 1 or no step has R_cite^t = +1
    ```

    Proof-of-Use, section 3.3.3, equation 5. The cited evidence is that of the valid yes-steps. No
    answer, or valid steps that all say no, score 0. The zeros of equation 5 are 0.0 with
    `parts["applies"]` False. In dialects without citations all evidence retrieved stands for the
    cited (ours, and more lenient); `parts["evidence"]` says which. Errors, empty results and copies
    of the call support nothing (`faithful_search.evidence`).

    An answer that says that it has none (`Declined`) claims nothing: it scores 0 and does not
    apply, and a sentence that says so is no claim.

    A judge that can also write (`Writer`, the request "claims") makes claims from question and
    answer, as Ragas does: "Paris" to "What is the capital of France?" becomes "The capital of
    France is Paris." An answer in which it finds no claim scores 0 and does not apply. For any
    other judge the claims are the answer's sentences, with the question. `parts` has the number of
    "claims", their "texts" and how many were "supported".

    Args:
        judge: reads the passages as premise and a claim as hypothesis. By default the claim must
            occur as it stands (`ContainmentJudge`), which suits short answers; audits count the
            words that are found (`GroundingJudge`). `parts["judge"]` says which it was.
        soft: average p instead of the labels; an endpoint gives several claims of an answer a p
            with `together=False`.
        evidence: "cited", "retrieved", or "auto": what is cited in dialects that cite, else what
            was retrieved.

    Example:
        >>> from faithful_search.trajectory import Evidence, Step, ToolCall, Trajectory
        >>> search = Step(call=ToolCall("local_search"), evidence=(Evidence("Paris is the capital.", id="E1"),))
        >>> last = Step(helpful=True, refs=("E1",), answer="Paris")
        >>> AnswerSupport().score(Trajectory(steps=(search, last), answer="Paris")).value
        1.0

    How to hack it: cite everything and answer with a word that some passage is bound to hold.
    """

    judge: Judge = field(default_factory=ContainmentJudge)
    evidence: Literal["auto", "cited", "retrieved"] = "auto"

    name: ClassVar[str] = "answer_support"
    results: ClassVar[Mapping[str, Result]] = {
        "answer_support": Result(
            asks="are the answer's claims supported by the cited, or else the retrieved, evidence?",
            good="what the answer claims is supported by the evidence",
            clean="the evidence supports all that the answer claims",
        ),
    }
    titles: ClassVar[Mapping[str, str]] = {
        "answer_support_facts": "Answer support, by the world's facts",
        "answer_support": "Answer support, by a judge",
        "answer_support_lexical": "Words of the answer that occur in the cited evidence",
        "answer_support_containment": "Answer occurs in the cited evidence",
    }
    columns: ClassVar[Mapping[str, Column]] = {
        "answer_support": Column("ans", "support of the answer"),
    }
    label: ClassVar[str] = "answer support, R_ans"

    def __post_init__(self) -> None:
        if self.evidence not in ("auto", "cited", "retrieved"):
            raise ConfigError(
                f"AnswerSupport: evidence {self.evidence!r} is not 'auto', 'cited' or 'retrieved'"
            )

    def pairs(self, trajectory: Trajectory) -> list[StepPair]:
        return self.pairs_batch([trajectory])[0]

    def pairs_batch(self, trajectories: Sequence[Trajectory]) -> list[list[StepPair]]:
        """Each claim with the evidence; none where there is no evidence, no answer, or one that
        declines. Raises `JudgeError` where the judge is to write claims and cannot be asked at all.
        """
        premises = [self._premise(trajectory) for trajectory in trajectories]
        with_premise = []
        for trajectory, premise in zip(trajectories, premises, strict=True):
            if premise:
                with_premise.append(trajectory)
        return self._paired(trajectories, premises, self._claims(with_premise))

    def score_batch(self, trajectories: Sequence[Trajectory]) -> list[Score]:
        try:
            pairs = self.pairs_batch(trajectories)
        except JudgeError as error:
            premises = [self._premise(trajectory) for trajectory in trajectories]
            unwritten = [_unwritten(str(error))] * len(trajectories)
            pairs = self._paired(trajectories, premises, unwritten)
        return self.scored(trajectories, pairs)

    def _paired(
        self,
        trajectories: Sequence[Trajectory],
        premises: Sequence[str],
        claims: Sequence[list[str] | Verdict],
    ) -> list[list[StepPair]]:
        """The pairs of each trajectory. `claims` are those of the trajectories that have a premise,
        in order, or verdicts that say why there are none.
        """
        claims_in_order = iter(claims)
        pairs_of_rows: list[list[StepPair]] = []
        for trajectory, premise in zip(trajectories, premises, strict=True):
            if premise:
                pairs_of_rows.append(_pairs(trajectory, premise, next(claims_in_order)))
            else:
                pairs_of_rows.append([])
        return pairs_of_rows

    def _premise(self, trajectory: Trajectory) -> str:
        """What the answer's claims are compared with; empty where it has none."""
        if not _answer(trajectory) or declined(trajectory) or self._partly_read(trajectory):
            return ""
        return passages(self._read(trajectory))

    def _partly_read(self, trajectory: Trajectory) -> bool:
        """Whether claims of a report may rest on what could not be read."""
        return any(issue.kind == NOT_REACHABLE for issue in trajectory.issues)

    def _claims(self, trajectories: Sequence[Trajectory]) -> list[list[str] | Verdict]:
        """The claims of each answer, or a verdict that says why there are none."""
        if not isinstance(self.judge, Writer):
            return [claimed_sentences(trajectory) for trajectory in trajectories]
        requests = []
        for trajectory in trajectories:
            texts = {"question": trajectory.question or "", "answer": _answer(trajectory)}
            requests.append(Request("claims", texts))
        if not requests:
            return []
        return [_claims_in(text or "") for text in self.judge.write_batch(requests)]

    def empty(self, trajectory: Trajectory) -> Score:
        used = self._used(trajectory)
        applies = False
        if _answer(trajectory) and declined(trajectory):
            why = CLAIMS_NOTHING
        elif is_unread_report(trajectory):
            why = REPORT_UNREAD
        elif self._partly_read(trajectory):
            why = "a report without a trace: not all that it cites could be read"
        elif used == "cited" and not any(step_validity(trajectory)):
            why = "no step with a valid citation"
        elif used == "retrieved" and not any(step.evidence for step in trajectory.steps):
            why = "no evidence was retrieved"
        elif _answer(trajectory) and self._read(trajectory):
            why = "the answer makes no claim"
        elif _answer(trajectory) and self.evidence_for(trajectory):
            why = "the texts of the evidence are not in the trajectory"
        else:  # a zero that the agent earned
            applies = True
            why = "the answer cites no evidence" if _answer(trajectory) else "no answer given"
        return Score(0.0, why, {"applies": applies, "evidence": used})

    def judged(
        self, trajectory: Trajectory, pairs: Sequence[StepPair], verdicts: Sequence[Verdict]
    ) -> Score:
        score = super().judged(trajectory, pairs, verdicts)
        used = self._used(trajectory)
        claims = [step_pair.pair.hypothesis for step_pair in pairs]
        parts = {**score.parts, "evidence": used, "claims": len(claims), "texts": claims}
        if score.value is None:
            return Score(None, score.why, parts)
        unsupported = []
        for claim, verdict in zip(claims, verdicts, strict=True):
            if not verdict.label:
                unsupported.append(claim)
        parts["supported"] = len(claims) - len(unsupported)
        if unsupported:
            why = f"not supported by the {used} evidence: {unsupported[0]!r}"
        else:
            why = self._upheld(trajectory, pairs)
        # without steps: what the whole answer earned is not the last step's alone
        return Score(score.value, why, parts)

    def _upheld(self, trajectory: Trajectory, pairs: Sequence[StepPair]) -> str:
        """What supports the claims, all of which are: the passages that do so by themselves, where
        words are compared, which costs nothing; else all that were read.
        """
        evidence = self.evidence_for(trajectory)
        alone = list(evidence)
        if len(alone) > 1 and isinstance(self.judge, ContainmentJudge | GroundingJudge):
            alone = [passage for passage in evidence if self._supports(passage, pairs)]
        names = []
        for passage in alone:
            names.append(passage.id or repr(shortened(passage.title or passage.text, 40)))
        if not names:
            why = "supported by several passages together"
        elif len(names) > _NAMED:
            why = f"supported by {', '.join(names[:_NAMED])} and {len(names) - _NAMED} more"
        else:
            why = f"supported by {', '.join(names)}"
        if sub_exact_match(trajectory.question, [_answer(trajectory)], "unicode"):
            why += "; the answer stands in the question"
        return why

    def _supports(self, passage: Evidence, pairs: Sequence[StepPair]) -> bool:
        """Whether a passage by itself supports one of the claims."""
        premise = passages([passage])
        alone = [msgspec.structs.replace(claim.pair, premise=premise) for claim in pairs]
        return any(verdict.label for verdict in self.judge.judge_batch(alone))

    def evidence_for(self, trajectory: Trajectory) -> tuple[Evidence, ...]:
        """The passages that the answer must rest on, each once."""
        if self._used(trajectory) == "cited":
            return cited_evidence(trajectory)
        # a passage that was returned twice would be read, and paid for, twice
        passages_by_words = {
            (passage.title, passage.text): passage for passage in supporting_passages(trajectory)
        }
        return tuple(passages_by_words.values())

    def _read(self, trajectory: Trajectory) -> list[Evidence]:
        """The passages with a text; some APIs keep those of the pages that they found."""
        return [passage for passage in self.evidence_for(trajectory) if passage.text.strip()]

    def _used(self, trajectory: Trajectory) -> str:
        if self.evidence != "auto":
            return self.evidence
        return "cited" if Citation().covers(trajectory.dialect) else "retrieved"


def _pairs(trajectory: Trajectory, premise: str, claims: list[str] | Verdict) -> list[StepPair]:
    """Each claim with the premise; or the whole answer with the verdict that says why there are no
    claims.
    """
    step = len(trajectory.steps)
    question = trajectory.question or ""
    if isinstance(claims, Verdict):
        pair = Pair(premise, _answer(trajectory), question)
        return [StepPair(step, pair, settled=claims)]
    context = world_context(trajectory.meta)
    pairs = []
    for claim in claims:
        pair = Pair(premise, claim, question, context=context)
        pairs.append(StepPair(step, pair))
    return pairs


def _answer(trajectory: Trajectory) -> str:
    """What the answer claims, as text.

    A sentence that says that there is no answer claims nothing. What is compared with gold answers
    may stand in one ("I do not know, maybe \\boxed{Veldt}"), and is a claim all the same.
    """
    full_text = answer_of(trajectory).strip()
    answer = answer_forms.claimed(full_text).strip()
    compared = short_answer(trajectory)
    if compared in (full_text, answer) or declines(compared):
        return answer
    claims = claims_of(answer)
    if not claims or any(holds(claim, compared) for claim in claims):
        return answer
    return f"{answer}\n{compared}"


def _claims_in(text: str) -> list[str] | Verdict:
    """The claims that a writer wrote, one a line; none where it wrote "NONE", a verdict where it
    wrote nothing.
    """
    lines = [_BULLET.sub("", line).strip() for line in text.splitlines()]
    claims = [line for line in lines if line]
    if len(claims) == 1 and claims[0].rstrip(".").upper() == "NONE":
        return []
    return claims or _unwritten("nothing was written")


def _unwritten(why: str) -> Verdict:
    return Verdict(None, None, f"no claims were made of the answer: {why}", "claims")


def claimed_sentences(trajectory: Trajectory) -> list[str]:
    """The answer's sentences that claim something: not a line between paragraphs, or what is left
    where a mark was taken out. An answer of signs alone, as it was written, is a claim.
    """
    answer = _answer(trajectory)
    # an answer that declines as its gold answer does is a claim
    claims = claims_of(answer) or sentences(answer)
    with_words = [sentence for sentence in claims if any(map(str.isalnum, sentence))]
    if with_words or answer != (trajectory.answer or "").strip():
        return with_words
    return claims
