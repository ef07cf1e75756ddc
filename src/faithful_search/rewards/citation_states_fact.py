"""Does what is cited state what was asked for? A citation can be valid in form and still say
nothing to the call.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import ClassVar

from ..errors import ConfigError
from ..evidence import supporting
from ..judges import Judge, Pair, Verdict, load
from ..tasks import world_context
from ..trajectory import Trajectory
from .base import JudgedReward, Result, StepPair
from .citation import Citation, step_validity
from .perturbation import query_of
from .turns import passages


@dataclass(frozen=True)
class CitationStatesFact(JudgedReward):
    """The share of the valid yes-steps in which a cited passage states what the call before asked
    for (ours).

    ```
    |{t : R_cite^t = +1, yes, one cited passage states what call t - 1 asked for}| / |{t : R_cite^t = +1, yes}|
    ```

    `Citation` asks whether a citation names passages that were there; this asks whether the right
    ones were named.

    Args:
        judge: reads the cited passages as premise and the call's query as hypothesis, with the task
            "states". By default the judge "facts"; for questions that are not bundled one that is
            asked by prompts. One that compares texts is refused (`ConfigError`).
        soft: average p instead of the labels.

    How to hack it: cite every passage of a response.
    """

    judge: Judge = field(default_factory=partial(load, "facts"))

    name: ClassVar[str] = "citation_states_fact"
    results: ClassVar[Mapping[str, Result]] = {
        "citation_states_fact": Result(
            asks="do the cited passages state what was asked for?",
            good="cited passages state what was asked for",
        ),
    }
    titles: ClassVar[Mapping[str, str]] = {
        "citation_states_fact": "Citations that state what was asked for",
    }
    nothing: ClassVar[str] = "no valid step says yes"

    def __post_init__(self) -> None:
        check_reads(self.judge, "CitationStatesFact")

    def covers(self, dialect: str) -> bool:
        return Citation().covers(dialect)

    def pairs(self, trajectory: Trajectory) -> list[StepPair]:
        pairs = []
        valid = step_validity(trajectory)
        context = world_context(trajectory.meta)
        for number, (previous, step) in enumerate(pairwise(trajectory.steps), start=2):
            if not valid[number - 2] or not step.helpful:
                continue
            query = query_of(previous)
            cited = [passage for passage in supporting(previous) if passage.id in step.refs]
            pair = Pair(passages(cited), query, trajectory.question or "", "states", context)
            settled = None
            if not query:
                settled = Verdict(0.0, False, "the call asks for nothing")
            pairs.append(StepPair(number, pair, settled))
        return pairs


def check_reads(judge: Judge, who: str) -> None:
    """Raise `ConfigError` for a judge of a kind that compares texts, whatever it is asked about
    them.
    """
    if type(judge).reads_queries is False:
        needed = "a judge that is asked by prompts ('endpoint', 'generator')"
        raise ConfigError(
            f"{who} needs {needed}; {judge.name} compares texts and cannot tell what a query asks "
            "for"
        )
