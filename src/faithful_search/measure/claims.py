"""What an answer claims, and which of the evidence supports it: an answer shown with its sources."""

import msgspec

from ..judges import GroundingJudge, Judge, LexicalJudge
from ..rewards.answer_support import AnswerSupport
from ..rewards.base import ask
from ..rewards.turns import passages
from ..trajectory import Evidence, Trajectory

_SHORT = 8
"""Words of the longest answer that is looked for as it stands; longer ones are compared word by word."""


class Claim(msgspec.Struct, frozen=True):
    """`supported` by all evidence together, `None` where the judge abstained; `sources` support it by themselves."""

    text: str
    supported: bool | None
    sources: tuple[str, ...] = ()


def claims_of(trajectory: Trajectory, judge: Judge | None = None) -> list[Claim]:
    """The claims of the trajectory's answer as `AnswerSupport` makes them; none where nothing was retrieved or said.

    Without a judge words are compared.

    Example:
        >>> from faithful_search.trajectory import Step
        >>> found = Step(evidence=(Evidence("Paris is the capital.", id="E1"), Evidence("Rome is not.", id="E2")))
        >>> claims_of(Trajectory((found,), answer="Paris"))
        [Claim(text='Paris', supported=True, sources=('E1',))]
    """
    short = len((trajectory.answer or "").split()) <= _SHORT
    judge = judge or (LexicalJudge() if short else GroundingJudge())
    asked = AnswerSupport(judge, evidence="retrieved").pairs(trajectory)
    if any(item.settled for item in asked):  # no claims could be made of it
        return [Claim(trajectory.answer or "", None)]
    pairs, alone = [item.pair for item in asked], distinct(trajectory)
    each = [
        msgspec.structs.replace(pair, premise=passages([item])) for pair in pairs for item in alone
    ]
    verdicts = ask(judge, [*pairs, *each])  # at once: a served judge reads them side by side
    by_source = iter(verdicts[len(pairs) :])
    return [
        Claim(
            pair.hypothesis,
            verdict.label,
            tuple(item.id for item in alone if next(by_source).label),
        )
        for pair, verdict in zip(pairs, verdicts[: len(pairs)], strict=True)
    ]


def distinct(trajectory: Trajectory) -> list[Evidence]:
    """The evidence, each passage once, under the id that it had first."""
    found: dict[tuple[str, str, str], Evidence] = {}
    for item in trajectory.evidence.values():
        found.setdefault((item.title, item.text, item.url), item)
    return list(found.values())
