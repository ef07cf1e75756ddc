"""The questions of the bundled world, and those of them that some agents can answer.

| name | questions |
|---|---|
| world | all |
| world_passages | those that passages alone answer, for agents without a knowledge graph |
| world_remembered | training questions whose answers `tiny_memory` knows by heart |
| world_pairs | two of one fact at once: the agent must keep the first answer in mind |
"""

import json
import random
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

from ..bundled import REMEMBERED, tiny_policy, world_file
from ..errors import DataError
from ..json_lines import read_rows
from .base import QuestionSource, Rows

SPLITS = ("train", "validation", "test", "test2")
PARTNERS = 3
"""How many other questions each is paired with in `world_pairs`."""


def _rows(name: str, split: str) -> Rows:
    if split not in SPLITS:
        raise DataError(f"{name} has no split {split!r}; it has: {', '.join(SPLITS)}")
    rows = read_rows(world_file(f"{split}.jsonl.gz"))
    if name == "world_passages":
        return filter(_is_in_passages, rows)
    if name == "world_remembered":
        text = (tiny_policy("memory") / REMEMBERED).read_text(encoding="utf-8")
        remembered = frozenset(json.loads(text))
        return (row for row in rows if row["id"] in remembered)
    if name == "world_pairs":
        of_one_fact = [row for row in rows if len(_chain(row)) == 1]
        return _pairs([row for row in of_one_fact if _is_in_passages(row)])
    return rows


def _is_in_passages(row: dict[str, Any]) -> bool:
    """Whether passages alone answer a question."""
    return all(fact.get("passage") for fact in _chain(row))


def _chain(row: dict[str, Any]) -> list[dict[str, Any]]:
    """The facts that lead to the answer of a question."""
    chain: list[dict[str, Any]] = row["meta"]["chain"]
    return chain


def _pairs(rows: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Each question with `PARTNERS` others; `meta["chains"]` has the facts of both."""
    order = random.Random(0).sample(rows, len(rows))
    for distance in range(1, PARTNERS + 1):
        rotated = order[distance:] + order[:distance]
        for first, second in zip(order, rotated, strict=True):
            answers = product(first["answers"], second["answers"])
            yield {
                "id": f"{first['id']}+{second['id']}",
                "question": f"{first['question']} {second['question']}",
                "answers": [" and ".join(pair) for pair in answers],
                "supporting_ids": [*first["supporting_ids"], *second["supporting_ids"]],
                "meta": {"chains": [_chain(first), _chain(second)]},
            }


QUESTIONS = QuestionSource(
    names=("world", "world_passages", "world_remembered", "world_pairs"),
    rows=_rows,
    judges={"facts": "faithful_search.world.facts:FactsJudge"},
    has_corpus=True,
)
