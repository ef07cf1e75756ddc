"""Questions to answer: `Task`, and the loaders that map the columns of any source to it."""

import csv
import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from . import columns, suites
from .errors import DataError
from .json_lines import read_rows
from .suites.drawing import drawn
from .suites.published import same_set
from .suites.published_rows import is_encrypted

CHANGE = "counterfactual"
"""The entry in `meta` of a question that is asked in a changed world, and of its rollouts: what is
different there.
"""


def world_context(meta: Mapping[str, Any]) -> str:
    """What is different in the world of a task or trajectory with this `meta`, as JSON; empty where
    nothing is. Only those who know the facts read it: some judges and foils.
    """
    change = meta.get(CHANGE)
    return "" if change is None else json.dumps(change, ensure_ascii=False, sort_keys=True)


class Task(msgspec.Struct, frozen=True, omit_defaults=True):
    """One question with its gold answers and, where annotated, the evidence that supports them.

    `edits` make the question's own version of what the tools return: evidence text to the text in
    its place, or to `None` where it is missing. Titles, other evidence and the results of searches
    stay as they are.
    """

    id: str
    question: str
    answers: tuple[str, ...] = ()
    supporting_ids: tuple[str, ...] = ()
    supporting_titles: tuple[str, ...] = ()
    meta: dict[str, Any] = {}
    edits: dict[str, str | None] = {}


def task_from_row(row: Mapping[str, Any], number: int = 0, where: str = "row") -> Task:
    """Map one row of any known source to a `Task`. `number` counts from 0; it is the id of a row
    without one. Raises `DataError` for one without question or answers.
    """
    question, gold = columns.question(row), columns.golds(row)
    if question is None or gold is None:
        missing = []
        if question is None:
            missing.append("question")
        if gold is None:
            missing.append("answers")
        raise DataError(
            f"{where} {number + 1}: no column {' and no column '.join(missing)}; it has: "
            f"{', '.join(row) or 'nothing'}"
        )
    if is_encrypted(row):
        raise DataError(
            f"{where} {number + 1}: encrypted, as BrowseComp's questions are: load them by their "
            "name, browsecomp"
        )
    used = {question.column, gold.column, *columns.ALIASES}
    used.update(("id", "supporting_ids", "supporting_titles", "meta"))
    return Task(
        id=str(number if row.get("id") is None else row["id"]),
        question=question.value,
        answers=gold.value,
        supporting_ids=tuple(row.get("supporting_ids") or ()),
        supporting_titles=tuple(row.get("supporting_titles") or ()),
        meta={key: value for key, value in row.items() if key not in used}
        | dict(_mapping(row, "meta")),
    )


def load_tasks(
    source: str | os.PathLike[str],
    split: str = "train",
    limit: int | None = None,
    *,
    seed: int | None = None,
) -> list[Task]:
    """Load tasks from `"world"` (bundled), a local `.jsonl[.gz]`, `.json`, `.csv` or `.parquet`
    file, or the Hub.

    `"world"` and `"hotpotqa"` are names that `suites` knows: `suites/world.py` lists the bundled
    ones, `suites/published.py` those that are on the Hub. `FILE#hotpotqa` takes from a file of
    several sets those rows whose column `data_source` names this one.

    `split` is of a known name or a Hub dataset. The first `limit` rows are taken; with a
    `seed` they are drawn uniformly from all rows and stand in the source's order. A row without an
    id is named after its place in the source. Raises `DataError` when the source cannot be read, is
    empty, or lacks a question or answers column.
    """
    rows = drawn(_numbered(source, split), limit, seed)
    tasks = [task_from_row(row, number, f"{source}, row") for number, row in rows]
    if not tasks:
        raise DataError(f"{source}: no questions in it")
    return tasks


def _numbered(source: str | os.PathLike[str], split: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """The rows with their places in the source."""
    file, mark, name = str(source).rpartition("#")
    if not mark or Path(source).exists():
        yield from enumerate(_rows(source, split))
        return
    sets: dict[str, None] = {}
    count = 0
    for number, row in enumerate(_rows(file, split)):
        there = str(row.get("data_source") or "")
        if same_set(there, name):
            count += 1
            yield number, row
        else:
            sets[there] = None
    if not count:
        names = ", ".join(filter(None, sets)) or "none, since it has no column data_source"
        raise DataError(f"{file}: no questions of {name!r} in it; it has those of: {names}")


def _rows(source: str | os.PathLike[str], split: str) -> Iterable[dict[str, Any]]:
    named = suites.of(source)
    return _rows_of_others(Path(source), split) if named is None else named.rows(str(source), split)


def _rows_of_others(path: Path, split: str) -> Iterator[dict[str, Any]]:
    here = path.exists()
    if here and path.name.endswith((".jsonl", ".jsonl.gz")):
        return read_rows(path)
    if here and path.suffix not in (".parquet", ".json", ".csv"):
        raise DataError(f"{path}: expected .jsonl, .jsonl.gz, .json, .csv or .parquet")
    if here and path.suffix == ".csv":
        _refuse_columns_of_one_name(path)
    from datasets import load_dataset

    try:
        if here:
            return iter(load_dataset(path.suffix[1:], data_files=str(path), split="train"))
        return iter(load_dataset(str(path), split=split))
    # the failures of the formats' readers and of the Hub are of many unrelated types
    except Exception as error:
        if here:
            raise DataError(f"cannot read {path}: {error}") from error
        raise DataError(
            f"'{path}' is neither a file here nor a dataset that could be loaded: {error}"
        ) from error


def _refuse_columns_of_one_name(path: Path) -> None:
    """Raise `DataError` where the header of a CSV file names a column twice. The second would be
    renamed, and nobody could tell which of the two counted.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            lines = (line for line in file if line.strip())
            header = next(csv.reader(lines), [])
    except (OSError, UnicodeDecodeError, csv.Error):
        return  # what is wrong with the file, its reader says
    for name, count in Counter(header).items():
        if name.strip() and count > 1:
            raise DataError(f"{path}: {count} columns are called {name!r}; rename or remove them")


def _mapping(row: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = row.get(name)
    return value if isinstance(value, Mapping) else {}
