"""Questions to answer: `Task`, and the loaders that map the columns of any source to it."""

import ast
import json
import os
import random
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice, product
from pathlib import Path
from typing import Any

import msgspec

from .bundled import REMEMBERED, tiny_policy, world_file
from .errors import DataError
from .trajectory import read_lines

ANSWER_COLUMNS = (
    "answers",
    "answer",
    "golden_answers",
    "gold_answers",
    "ground_truth",
    "target",
    "gts",
)
QUESTION_COLUMNS = ("question", "query", "problem")
ANSWER_SPLIT = "<|answer_split|>"
_QUOTED = r"""(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")"""
# `*+` gives nothing back: a long text that only begins like a list is refused in linear time
_PRINTED_LIST = re.compile(rf"\s*\[\s*(?:{_QUOTED}(?:[\s,]+{_QUOTED})*+)?[\s,]*\]\s*", re.DOTALL)
WORLD = (
    "world",
    "world_passages",
    "world_remembered",
    "world_pairs",
)  # names of the bundled questions


class Task(msgspec.Struct, frozen=True, omit_defaults=True):
    """One question with its gold answers and, where annotated, the evidence that supports them.

    `edits` make the question's own version of what the tools return: evidence text to the text in its place, or to
    `None` where it is missing. Titles, other evidence and the results of searches stay as they are.
    """

    id: str
    question: str
    answers: tuple[str, ...] = ()
    supporting_ids: tuple[str, ...] = ()
    supporting_titles: tuple[str, ...] = ()
    meta: dict[str, Any] = {}
    edits: dict[str, str | None] = {}


def task_from_row(row: Mapping[str, Any], number: int = 0, where: str = "row") -> Task:
    """Map one row of any known source to a `Task`. Raises `DataError` for one without question or answers."""
    question, answers = row_question(row), row_answers(row)
    if question is None:  # the last message of the user in a prompt
        asked = [
            item
            for item in row.get("prompt") or ()
            if isinstance(item, Mapping) and item.get("role") == "user"
        ]
        question = asked[-1].get("content") if asked else None
    if question is None or answers is None:
        missing = [
            name for name, value in (("question", question), ("answers", answers)) if value is None
        ]
        named, has = " and no column ".join(missing), ", ".join(row) or "nothing"
        raise DataError(f"{where} {number}: no column {named}; it has: {has}")
    used = {*ANSWER_COLUMNS, *QUESTION_COLUMNS, "id", "supporting_ids", "supporting_titles", "meta"}
    return Task(
        id=str(number if row.get("id") is None else row["id"]),
        question=question,
        answers=answers,
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
    """Load tasks from `"world"` (bundled), a local `.jsonl[.gz]`, `.json`, `.csv` or `.parquet` file, or the Hub.

    `"world_passages"` is those of the bundled questions that its passages alone can answer, for agents without a
    knowledge graph; `"world_remembered"` those that `tiny_memory` knows the answers of by heart, training questions;
    `"world_pairs"` two of one fact at once, so that the first answer must be kept in mind until both are known.

    `split` is of the bundled world or a Hub dataset. The first `limit` rows are taken; with a `seed` they are drawn
    uniformly from all rows and stand in the source's order. A row without an id is named after its place in the source.
    Raises `DataError` when the source cannot be read, is empty, or lacks a question or answers column.
    """
    rows: Iterable[tuple[int, dict[str, Any]]] = enumerate(_rows(source, split))
    if seed is not None and limit is not None:
        every = list(rows)  # a uniform draw needs to know how many there are
        drawn = random.Random(seed).sample(range(len(every)), min(limit, len(every)))
        rows = (every[place] for place in sorted(drawn))
    tasks = [task_from_row(row, number, f"{source}, row") for number, row in islice(rows, limit)]
    if not tasks:
        raise DataError(f"{source}: no questions in it")
    return tasks


def _rows(source: str | os.PathLike[str], split: str) -> Iterator[dict[str, Any]]:
    if (name := str(source)) not in WORLD:
        return _rows_of_others(Path(source), split)
    rows = read_rows(world_file(f"{split}.jsonl.gz"))
    if name == "world_passages":
        return (row for row in rows if all(fact.get("passage") for fact in row["meta"]["chain"]))
    if name == "world_remembered":
        known = frozenset(
            json.loads((tiny_policy("memory") / REMEMBERED).read_text(encoding="utf-8"))
        )
        return (row for row in rows if row["id"] in known)
    if name == "world_pairs":
        chains = ((row, row["meta"]["chain"]) for row in rows)
        return _pairs([row for row, chain in chains if len(chain) == 1 and chain[0].get("passage")])
    return rows


def _rows_of_others(path: Path, split: str) -> Iterator[dict[str, Any]]:
    here = path.exists()
    if here and path.name.endswith((".jsonl", ".jsonl.gz")):
        return read_rows(path)
    if here and path.suffix not in (".parquet", ".json", ".csv"):
        raise DataError(f"{path}: expected .jsonl, .jsonl.gz, .json, .csv or .parquet")
    from datasets import load_dataset

    try:
        if here:
            return iter(load_dataset(path.suffix[1:], data_files=str(path), split="train"))
        return iter(load_dataset(str(path), split=split))
    except (
        Exception
    ) as error:  # the failures of the formats' readers and of the Hub are of many unrelated types
        told = (
            f"cannot read {path}"
            if here
            else f"'{path}' is neither a file here nor a dataset that could be loaded"
        )
        raise DataError(f"{told}: {error}") from error


def _pairs(rows: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Each question with three others; `meta["chains"]` has the facts of both."""
    order = random.Random(0).sample(rows, len(rows))
    for apart in range(1, 4):
        for first, second in zip(order, order[apart:] + order[:apart], strict=True):
            both = first, second
            yield {
                "id": "+".join(row["id"] for row in both),
                "question": " ".join(row["question"] for row in both),
                "answers": [
                    " and ".join(pair) for pair in product(*(row["answers"] for row in both))
                ],
                "supporting_ids": [source for row in both for source in row["supporting_ids"]],
                "meta": {"chains": [row["meta"]["chain"] for row in both]},
            }


def read_rows(path: str | os.PathLike[str]) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects of a `.jsonl` or `.jsonl.gz` file. Raises `DataError` naming the line that is broken."""
    for number, line in read_lines(path):
        try:
            row = json.loads(line)
        except ValueError as error:  # also what is not UTF-8
            raise DataError(f"{path}, line {number}: not JSON ({error})") from error
        if not isinstance(row, dict):
            raise DataError(
                f"{path}, line {number}: expected a JSON object, found {type(row).__name__}"
            )
        yield row


def row_question(row: Mapping[str, Any]) -> str | None:
    """The question in a row's own column, or in verl's `extra_info`; none where only a prompt holds it."""
    for place in (row, _mapping(row, "extra_info")):
        if question := first(
            place, QUESTION_COLUMNS, lambda value: isinstance(value, str) and value.strip()
        ):
            return str(question.strip())
    return None


def row_answers(row: Mapping[str, Any]) -> tuple[str, ...] | None:
    """The gold answers in a row's own column, or in verl's `reward_model`; `None` where there is no such column."""
    found = first(row, ANSWER_COLUMNS)
    found = _mapping(row, "reward_model").get("ground_truth") if found is None else found
    return None if found is None else gold_answers(found)


def gold_answers(value: Any) -> tuple[str, ...]:
    """Gold answers however they were stored: text, lists in lists, `{"target": …}`, or a list that was printed.

    Example:
        >>> gold_answers("['late 1967' '1967']"), gold_answers([["a"], "b"]), gold_answers("x<|answer_split|>y")
        (('late 1967', '1967'), ('a', 'b'), ('x', 'y'))
    """
    if value is None:
        return ()
    if isinstance(value, Mapping):
        return gold_answers(value.get("target", list(value.values())))
    if isinstance(value, (list, tuple)):
        return tuple(answer for item in value for answer in gold_answers(item))
    text = str(value)
    if not _PRINTED_LIST.fullmatch(text):
        return tuple(text.split(ANSWER_SPLIT))
    answers = []
    for literal in re.findall(_QUOTED, text, re.DOTALL):
        try:
            answers.append(str(ast.literal_eval(literal)))
        except (ValueError, SyntaxError):  # an escape that Python does not know, or a line break
            answers.append(literal[1:-1])
    return tuple(answers)


def first(
    row: Mapping[str, Any], names: Sequence[str], fits: Callable[[Any], Any] = lambda value: True
) -> Any:
    """The value of the first of these columns that holds what fits; `None` is nothing."""
    return next(
        (row[name] for name in names if row.get(name) is not None and fits(row[name])), None
    )


def _mapping(row: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = row.get(name)
    return value if isinstance(value, Mapping) else {}
