"""What a suite is: questions that are named instead of given as a file."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

Rows = Iterable[dict[str, Any]]


@dataclass(frozen=True, eq=False)
class Suite:
    """Questions that `load_tasks` knows by name, and the judges that know their facts.

    Args:
        names: the names of its sets of questions. One of them may also name its corpus and triples.
        rows: given one of the names and a split, the rows of that set, with the columns that
            `tasks.task_from_row` reads. Raises `DataError` for a split that it does not have.
        judges: the judges that know the facts behind the questions, so that nothing need be
            compared and no model asked: by name, where the class is, as `module:Class`.
    """

    names: tuple[str, ...]
    rows: Callable[[str, str], Rows]
    judges: Mapping[str, str] = field(default_factory=dict)
