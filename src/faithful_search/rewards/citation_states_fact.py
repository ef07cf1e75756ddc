"""Does what is cited state what was asked for? A citation can be valid in form and still say nothing to the call."""

from dataclasses import dataclass, field
from itertools import pairwise
from typing import ClassVar

from ..errors import ConfigError
from ..judges import Judge, Pair, Verdict
from ..judges.facts import FactsJudge
from ..trajectory import Trajectory
from ..world import Change
from .base import Asked, JudgedReward
from .citation import Citation, step_validity
from .perturbation import query_of
from .turns import passages


@dataclass(frozen=True)
class CitationStatesFact(JudgedReward):
    """The share of the valid yes-steps in which a cited passage states what the call before asked for (ours).

    ```
    |{t : R_cite^t = +1, yes, one cited passage states what call t - 1 asked for}| / |{t : R_cite^t = +1, yes}|
    ```

    `Citation` asks whether a citation names passages that were there; this asks whether the right ones were named.

    Args:
        judge: reads the cited passages as premise and the call's query as hypothesis, with the task "states". By
            default the bundled world's facts; for other questions one that is asked by prompts. One that compares texts
            is refused (`ConfigError`).
        soft: average p instead of the labels.

    How to hack it: cite every passage of a response.
    """

    judge: Judge = field(default_factory=FactsJudge)

    name: ClassVar[str] = "citation_states_fact"
    nothing: ClassVar[str] = "no valid step says yes"

    def __post_init__(self) -> None:
        check_reads(self.judge, "CitationStatesFact")

    def covers(self, dialect: str) -> bool:
        return Citation().covers(dialect)

    def pairs(self, trajectory: Trajectory) -> list[Asked]:
        found = []
        valid, change = step_validity(trajectory), Change.of(trajectory.meta)
        for number, (previous, step) in enumerate(pairwise(trajectory.steps), start=2):
            if valid[number - 2] and step.helpful:
                query = query_of(previous)
                cited = passages(item for item in previous.evidence if item.id in step.refs)
                settled = None if query else Verdict(0.0, False, "the call asks for nothing")
                pair = Pair(cited, query, trajectory.question or "", "states", change)
                found.append(Asked(number, pair, settled))
        return found


def check_reads(judge: Judge, who: str) -> None:
    """Raise `ConfigError` for a judge of a kind that compares texts, whatever it is asked about them."""
    if getattr(type(judge), "reads_queries", True) is False:
        asked = "a judge that is asked by prompts ('endpoint', 'generator')"
        raise ConfigError(
            f"{who} needs {asked}; {judge.name} compares texts and cannot tell what a query asks for"
        )
