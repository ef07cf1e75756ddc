"""How the rows of files are read. Commands make their flags from this class.

Nothing heavy is imported here: the command line reads the class before it knows which command will
run.
"""

from dataclasses import dataclass

from ..errors import ConfigError
from ..flags import flag


@dataclass(frozen=True)
class ReadingSettings:
    """Which rows of a file are read, and which of their columns.

    Raises:
        ConfigError: `limit` is below 1.
        DialectError: `dialect` is unknown.
    """

    dialect: str | None = flag(None, "dialect of all rows; detected per row by default")
    text_column: str | None = flag(None, "the column that holds the text; by default a known name")
    question_column: str | None = flag(
        None, "the column that holds the question; by default a known name"
    )
    gold_column: str | None = flag(
        None, "the column that holds the gold answers; by default a known name"
    )
    answer_tool: str | None = flag(
        None, "the tool whose last call hands in the answer; by default known by its name"
    )
    id_column: str | None = flag(
        None, "the column that holds the row's id; by default a known name"
    )
    limit: int | None = flag(None, "read at most this many rows of each file")

    def __post_init__(self) -> None:
        at_least_one("limit", self.limit)
        if self.dialect is not None:
            from .. import dialects

            dialects.load(self.dialect)


def at_least_one(name: str, value: int | None) -> None:
    """Raise `ConfigError` for a number below 1."""
    if value is not None and value < 1:
        raise ConfigError(f"{name} must be at least 1, got {value}")


WHOLE = ReadingSettings()
"""All rows; columns and dialects are found by themselves."""
