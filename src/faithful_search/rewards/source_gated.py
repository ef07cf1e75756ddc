"""Correctness that cannot be earned from memory: a right answer counts only where evidence holds
it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import msgspec

from ..errors import ConfigError
from ..judges.lexical import terms
from ..text import normalize
from ..trajectory import Trajectory
from .answer_support import AnswerSupport, claimed_sentences
from .base import BatchReward, Column, Score
from .correctness import Correctness
from .look_ups import UNKNOWN, YES_OR_NO, first_look_up
from .turns import short_answer


@dataclass(frozen=True)
class SourceGated(BatchReward):
    """The outcome where the cited evidence supports the answer, else 0, in [0, 1].

    ```
    R = outcome · [R_ans = 1]
    outcome: `Correctness`       R_ans: `AnswerSupport`, the share of the answer's claims that the evidence supports
    ```

    Ours; reward environments call it source gating.

    **What must be supported.** With the default support the normalised answer must occur, as whole
    words, in a passage that a valid yes-step cites; in dialects without citations, in one that a
    tool returned. Of an answer in a box or another form it is what is compared with the gold
    answers. A sentence that declines ("I could not find Lima") and a line "Confidence:" are no
    claims: an answer earns no more than its claims by themselves.

    **Answers that no passage holds.** Where words are compared, a yes or no counts if any evidence
    is cited (or returned), also in a sentence that says nothing else ("Yes, they are."). "unknown"
    claims nothing and counts if a tool was asked.

    **Answers that a call looked up.** With `looked_up=False`, as in the mixes of this package, an
    answer counts for nothing where a call holds all of it, in any order, and neither the question
    nor any evidence before the call does: the agent knew or guessed it, and what comes back only
    agrees with it.

    - Accents, plurals, typography and forms around the answer (a box, JSON) make no difference.
    - Of an answer that says more than a gold answer ("It is Lima."), the gold answers in it
      are looked for, too.
    - Words of the question need not be in the evidence: who is asked for a city, and reads of New
      York, has read of New York City.
    - A yes or no, "unknown", and an answer of function words alone ("It") are never looked up:
      calls hold them by chance. Names of arguments, and numbers beside a text (`top_k`), are not
      read.

    The support is asked for only where the outcome is above 0. `parts["outcome"]` is the value
    without the gate, `parts["supported"]` whether the gate is open (`None` where nobody was asked),
    `parts["supported_by"]` the judge.

    Raises `ConfigError` for a support that averages probabilities: the gate would stay closed.

    Args:
        outcome: says whether the answer is right.
        support: says whether evidence holds it; its `evidence` and `judge` are the knobs.
        looked_up: whether an answer counts that a call looked up and evidence then holds.

    Example:
        >>> from faithful_search.trajectory import Evidence, Step, ToolCall, Trajectory
        >>> passage = Evidence("Lima is the capital of Peru.", id="E1")
        >>> search = Step(call=ToolCall("local_search"), evidence=(passage,))
        >>> last = Step(helpful=True, refs=("E1",), answer="Lima")
        >>> read = Trajectory((search, last), answer="Lima", answers=("Lima",))
        >>> from_memory = Trajectory((Step(answer="Lima"),), answer="Lima", answers=("Lima",))
        >>> [score.value for score in SourceGated().score_batch([read, from_memory])]
        [1.0, 0.0]

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

    def __post_init__(self) -> None:
        if self.support.soft:
            raise ConfigError(
                "SourceGated: the gate opens where all claims are supported, and a mean of "
                "probabilities is hardly ever 1: use a support with soft=False"
            )

    def score_batch(self, trajectories: Sequence[Trajectory]) -> list[Score]:
        """As `Reward.score_batch`. Rules decide what they can, and the judge the rest at once."""
        outcomes = self.outcome.score_batch(trajectories)
        by_rule = list(map(self._by_rule, trajectories, outcomes))
        rows = [row for row, score in enumerate(by_rule) if score is None]
        open_trajectories = [trajectories[row] for row in rows]
        open_outcomes = [outcomes[row] for row in rows]
        by_judge = iter(self._by_judge(open_trajectories, open_outcomes))
        scores: list[Score] = []
        for score in by_rule:
            scores.append(next(by_judge) if score is None else score)
        return scores

    def _by_rule(self, trajectory: Trajectory, outcome: Score) -> Score | None:
        """The score where no judge need be asked for it, else `None`."""
        if not outcome.value:
            parts = {**outcome.parts, "outcome": outcome.value, "supported": None}
            return Score(outcome.value, outcome.why, parts)
        support = self._support_by_rule(trajectory)
        if support is None:
            return None
        return _gated(outcome, outcome, support)

    def _support_by_rule(self, trajectory: Trajectory) -> Score | None:
        """The support of a right answer where a rule gives it, else `None`."""
        if not self.looked_up:  # such answers count for nothing
            look_up = first_look_up(trajectory)
            if look_up is not None:
                why = f"step {look_up.step} asks for {look_up.name!r} before any evidence holds it"
                return Score(0.0, why)
        answer = normalize(short_answer(trajectory))
        if answer == UNKNOWN:
            if any(step.call for step in trajectory.steps):
                return Score(1.0)
            return Score(0.0, "no tool was asked")
        if self.support.judge.lexical and _says_yes_or_no(answer, trajectory.answers):
            if self.support.evidence_for(trajectory):
                return Score(1.0)
            return Score(0.0, f"{answer!r} rests on no evidence")
        return None

    def _by_judge(
        self, trajectories: Sequence[Trajectory], outcomes: Sequence[Score]
    ) -> list[Score]:
        """The scores of right answers whose support no rule gives."""
        # Words beside the answer are not compared with the gold answers, so nothing need hold them
        answers_alone = []
        for trajectory in trajectories:
            answer = short_answer(trajectory)
            answers_alone.append(msgspec.structs.replace(trajectory, answer=answer))
        earned_scores = self._earned(answers_alone, outcomes)
        to_judge = []
        for trajectory, earned in zip(answers_alone, earned_scores, strict=True):
            if earned.value:
                to_judge.append(trajectory)
        judged = iter(self.support.score_batch(to_judge))
        scores = []
        for outcome, earned in zip(outcomes, earned_scores, strict=True):
            if earned.value:
                support = next(judged)
            elif earned.value is None:  # nobody could say whether the claims are right
                support = Score(None, earned.why)
            else:
                support = Score(0.0, "the right words stand in no claim of the answer")
            scores.append(_gated(outcome, earned, support))
        return scores

    def _earned(self, trajectories: Sequence[Trajectory], outcomes: Sequence[Score]) -> list[Score]:
        """What each answer earns as a whole or by its claims alone, whichever is less."""
        rows = []  # of the answers that hold more than claims
        claims_alone = []
        for row, trajectory in enumerate(trajectories):
            claims = "\n".join(claimed_sentences(trajectory))
            if _unspaced(claims) != _unspaced(trajectory.answer or ""):
                rows.append(row)
                claims_alone.append(msgspec.structs.replace(trajectory, answer=claims))
        earned = list(outcomes)
        for row, score in zip(rows, self.outcome.score_batch(claims_alone), strict=True):
            if (score.value or 0.0) < (earned[row].value or 0.0):
                earned[row] = score
        return earned


def _gated(outcome: Score, earned: Score, support: Score) -> Score:
    """The score of a right answer: what it `earned` if the support is full, else 0; none where the
    support has none.
    """
    parts = {**outcome.parts, "outcome": outcome.value, "supported": None}
    if "judge" in support.parts:
        parts["supported_by"] = support.parts["judge"]
    if support.value is None:
        return Score(None, support.why, {**parts, "abstained": True})
    if support.value < 1.0:
        why = f"counts for nothing: {support.why}"
        return Score(0.0, why, {**parts, "supported": False})
    return Score(earned.value, earned.why, {**parts, "supported": True})


def _unspaced(text: str) -> str:
    return "".join(text.split())


def _says_yes_or_no(answer: str, golds: Sequence[str]) -> bool:
    """Whether a normalised answer is a yes or no; or says one as a gold answer does, and nothing
    that a passage could hold.
    """
    if answer in YES_OR_NO:
        return True
    first_word = answer.partition(" ")[0]
    says_nothing_else = first_word in YES_OR_NO and not terms(answer)
    return says_nothing_else and any(normalize(gold) in YES_OR_NO for gold in golds)
