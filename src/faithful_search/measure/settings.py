"""The settings of audits and labellings, checked once; their commands' flags are made from these classes.

Nothing heavy is imported here: the command line reads these classes before it knows which command will run.
"""

from dataclasses import dataclass
from typing import Literal

from ..errors import ConfigError
from ..flags import flag

How = Literal["squad", "pokee"]
"""The normaliser of compared answers."""
PairMetric = Literal["info_think", "think_search", "think_answer", "answer_support"]
"""The metrics that ask a judge about pairs of texts."""
Format = Literal["atif", "openai", "pi", "trajectory"]
"""What trajectories are converted to."""


@dataclass(frozen=True)
class Reading:
    """How the rows of files are read. Raises `ConfigError` for a number below 1, `DialectError` for an unknown one."""

    dialect: str | None = flag(None, "how all rows are written; by default each row's is detected")
    text_column: str | None = flag(None, "the column that holds the text; by default a known name")
    limit: int | None = flag(None, "read only the first rows of a file, this many")

    def __post_init__(self) -> None:
        for name in ("limit", "workers", "sample"):  # the last two of the classes below
            value = getattr(self, name, None)
            if value is not None and value < 1:
                raise ConfigError(f"{name} must be at least 1, got {value}")
        if self.dialect is not None:
            from .. import dialects

            dialects.load(self.dialect)


WHOLE = Reading()
"""All rows, each as it shows itself."""


@dataclass(frozen=True)
class AuditSettings(Reading):
    """What an audit measures, and in how many processes."""

    workers: int | None = flag(None, "processes; by default one for each core")
    metrics: tuple[str, ...] | None = flag(
        None, "names, separated by commas; by default all that need no policy"
    )
    how: How = flag("squad", "normaliser of answers")
    corpus: str | None = flag(
        None, "the only corpus that was searched; evidence that it does not hold was invented"
    )


@dataclass(frozen=True)
class LabelSettings(Reading):
    """What is labelled, and in how many processes rows are read."""

    workers: int | None = flag(1, "processes that read rows")
    metric: PairMetric = flag("info_think", "whose pairs are labelled")
    sample: int | None = flag(None, "how many pairs are labelled; more contain fewer")
    seed: int = flag(0, "of the sample")
    license: str = flag("", "of the labels, for the card: an id of the Hub's, as cc-by-4.0")
