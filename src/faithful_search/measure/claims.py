"""The claims of an answer, each with the evidence that supports it."""

import msgspec

from ..errors import JudgeError
from ..evidence import supporting_passages
from ..judges import ContainmentJudge, GroundingJudge, Judge
from ..rewards.answer_support import AnswerSupport
from ..rewards.base import ask
from ..rewards.turns import answer_of, passages
from ..trajectory import Evidence, Trajectory

_SHORT = 8
"""The largest number of words of an answer that is looked for as a whole. The words of a longer one
are counted.
"""


class Claim(msgspec.Struct, frozen=True, repr_omit_defaults=True):
    """A claim of an answer.

    Attributes:
        text: the claim.
        supported: whether all evidence together supports it; `None` without a verdict.
        sources: the ids of the passages that support it alone.
        judge: the name of the judge.
        why: why there is no verdict.
    """

    text: str
    supported: bool | None
    sources: tuple[str, ...] = ()
    judge: str = ""
    why: str = ""


def claims_of(trajectory: Trajectory, judge: Judge | None = None) -> list[Claim]:
    """The claims of the trajectory's answer, as `AnswerSupport` makes them. There are none if
    nothing was retrieved, or the agent gives no answer.

    Without a judge a short answer is looked for as a whole (`ContainmentJudge`), and the words of a
    longer one are counted (`GroundingJudge`).

    Example:
        >>> from faithful_search.trajectory import Step
        >>> paris = Evidence("Paris is the capital.", id="E1")
        >>> rome = Evidence("Rome is not.", id="E2")
        >>> claims_of(Trajectory((Step(evidence=(paris, rome)),), answer="Paris"))
        [Claim(text='Paris', supported=True, sources=('E1',), judge='containment')]
    """
    short = len(answer_of(trajectory).split()) <= _SHORT
    judge = judge or (ContainmentJudge() if short else GroundingJudge())
    try:
        step_pairs = AnswerSupport(judge, evidence="retrieved").pairs(trajectory)
    except JudgeError as error:
        return [Claim(trajectory.answer or "", None, judge=judge.name, why=str(error))]
    for step_pair in step_pairs:
        if step_pair.settled is not None:  # no claims could be made of the answer
            why = step_pair.settled.why
            return [Claim(trajectory.answer or "", None, judge=judge.name, why=why)]
    pairs = [step_pair.pair for step_pair in step_pairs]
    evidence = distinct(trajectory)
    pairs_of_passages = []
    for pair in pairs:
        for passage in evidence:
            alone = msgspec.structs.replace(pair, premise=passages([passage]))
            pairs_of_passages.append(alone)
    # All at once, since a served judge answers them concurrently
    verdicts = iter(ask(judge, [*pairs, *pairs_of_passages]))
    verdicts_on_pairs = [next(verdicts) for _ in pairs]
    claims = []
    for pair, verdict in zip(pairs, verdicts_on_pairs, strict=True):
        claim = Claim(
            text=pair.hypothesis,
            supported=verdict.label,
            sources=tuple(passage.id for passage in evidence if next(verdicts).label),
            judge=verdict.judge or judge.name,
            why=verdict.why if verdict.abstained else "",
        )
        claims.append(claim)
    return claims


def distinct(trajectory: Trajectory) -> list[Evidence]:
    """The passages that can support a claim, each once, under the id that it had first."""
    passages_by_text: dict[tuple[str, str, str], Evidence] = {}
    for passage in supporting_passages(trajectory):
        passages_by_text.setdefault((passage.title, passage.text, passage.url), passage)
    return list(passages_by_text.values())
