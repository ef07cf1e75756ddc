"""The settings of audits and labellings, checked once; their commands' flags are made from these
classes.

Nothing heavy is imported here: the command line reads these classes before it knows which command
will run.
"""

from dataclasses import dataclass
from typing import Literal

from ..flags import flag
from ..reading.settings import ReadingSettings, at_least_one

How = Literal["unicode", "squad", "pokee"]
"""The normaliser of compared answers (`text.normalize`)."""
PairMetric = Literal["info_think", "think_search", "think_answer", "answer_support"]
"""The metrics that ask a judge about pairs of texts."""
LabelMetric = Literal["info_think", "think_search", "think_answer", "answer_support", "rubric"]
"""What a judge can label: pairs of texts, or by a rubric (self-evaluation) whole trajectories."""
Format = Literal["atif", "inspect", "langfuse", "openai", "pi", "trajectory"]
"""What trajectories are converted to."""


@dataclass(frozen=True)
class AuditSettings(ReadingSettings):
    """What an audit measures, and in how many processes."""

    workers: int | None = flag(None, "number of processes; by default one per core")
    metrics: tuple[str, ...] | None = flag(
        None, "metrics to compute, separated by commas; by default all that need no policy"
    )
    how: How = flag(
        "unicode",
        "normalisation of compared answers: 'unicode' as people read them, 'squad' and 'pokee' as "
        "published",
    )
    corpus: str | None = flag(
        None, "the only corpus that was searched; evidence that is not in it counts as invented"
    )
    fetch: bool = flag(
        False, "fetch the pages that reports without a trace cite, each address once"
    )
    fetch_allow: str = flag(
        "", "comma-separated hosts and networks that --fetch may read although they are not public"
    )
    require: tuple[str, ...] = flag(
        (),
        "requirement on a result, such as 'answer_support >= 0.8'; may be given several times",
        several=True,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least_one("workers", self.workers)
        if self.require:
            from .gates import Requirement

            for requirement in self.require:
                Requirement.parse(requirement)


@dataclass(frozen=True)
class LabelSettings(ReadingSettings):
    """What is labelled, and in how many processes rows are read."""

    workers: int | None = flag(1, "number of processes that read rows")
    metric: LabelMetric = flag(
        "info_think", "metric to label pairs for, or 'rubric', which scores whole trajectories"
    )
    sample: int | None = flag(
        None,
        "number of pairs or trajectories to label; larger samples are supersets of smaller ones",
    )
    seed: int = flag(0, "random seed of the sample")
    license: str = flag(
        "", "license of the labels, for the card: an id of the Hub, such as cc-by-4.0"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least_one("workers", self.workers)
        at_least_one("sample", self.sample)
