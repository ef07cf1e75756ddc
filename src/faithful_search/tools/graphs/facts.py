"""Labelled facts: read from rows, found by the names of the entities they are about, told in plain
text.
"""

import asyncio
import logging
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from ...bundled import world_file
from ...errors import DataError, ToolError
from ...escape import as_line
from ...json_lines import read_rows
from ...trajectory import Evidence
from ..base import Condenser, Partial
from ..summaries import summary_of
from ..words import words

MOST_VALUES = 10
"""Values that are listed; of the others the text says how many there are."""
MOST_FACTS = 30
"""Texts about an entity that a condenser is given."""

_log = logging.getLogger(__name__)
_PARTS = ("subject", "relation", "object")
_PREPOSITIONS = frozenset(
    words("about after as at before between by for from in into of on over to under with")
)


class Triple(msgspec.Struct, frozen=True):
    """One fact: the `relation` of `subject` is `object`, all three as labels. `subject_key` and
    `object_key` tell entities of the same label apart; empty where the label does.
    """

    id: str
    subject: str
    relation: str
    object: str
    subject_key: str = ""
    object_key: str = ""

    @property
    def ends(self) -> tuple[tuple[str, str], tuple[str, str]]:
        """Label and key of the subject, and of the object."""
        return (self.subject, self.subject_key or self.subject), (
            self.object,
            self.object_key or self.object,
        )


Fact = tuple[Triple, bool]
"""A triple that was found for one of its entities: for the object where that is true, else for the
subject.
"""


class Labels:
    """Finds labels in a text, on word boundaries, without case where `fold`; linear in the text for
    bounded labels. Each label comes with the key of what it names, and may name several things.

    Example:
        >>> Labels([("New York", "Q1384"), ("York", "Q42462")], fold=True).find("the new york of York")
        ['Q1384', 'Q42462']
    """

    def __init__(self, labels: Iterable[tuple[str, str]], fold: bool) -> None:
        self.fold = fold
        self.keys: dict[tuple[str, ...], list[str]] = {}
        for label, key in labels:
            # a label without a word in it would be found everywhere
            if spelled := tuple(words(label, fold)):
                self.keys.setdefault(spelled, []).append(key)
        self.lengths = sorted({len(spelled) for spelled in self.keys}, reverse=True)

    def find(self, text: str) -> list[str]:
        """The keys of the labels in `text`, longest label first where they overlap, in its order
        without repeats.
        """
        tokens = tuple(words(text, self.fold))
        covered: set[int] = set()
        matches: list[tuple[int, list[str]]] = []
        # the longest first, so that "York City" in "New York City" is not looked up as York
        for length in self.lengths:
            for start in range(len(tokens) - length + 1):
                keys = self.keys.get(tokens[start : start + length])
                if keys and covered.isdisjoint(range(start, start + length)):
                    covered.update(range(start, start + length))
                    matches.append((start, keys))
        return list(dict.fromkeys(key for _, keys in sorted(matches) for key in keys))


def joined(facts: Iterable[Fact]) -> list[Evidence]:
    """Facts as evidence, all of an entity by one relation in one direction together; in the order
    given.

    Example:
        >>> cities = [(Triple("t1", name, "country", "France"), True) for name in ("Lyon", "Nice")]
        >>> [found.text for found in joined([(Triple("t2", "Ann", "child", "Bo"), False), *cities])]
        ['Ann, child: Bo.', 'Lyon and Nice, country: France.']
    """
    groups: dict[tuple[str, str, bool], list[Triple]] = {}
    for triple, incoming in facts:
        _, key = triple.ends[incoming]
        groups.setdefault((key, triple.relation, incoming), []).append(triple)
    lines = []
    for (_, relation, incoming), triples in groups.items():
        # two sources may state the same fact
        sides = [list(dict.fromkeys(triple.ends[end][0] for triple in triples)) for end in (0, 1)]
        sides[incoming] = sides[incoming][:1]  # one entity, whatever else it is called
        subjects, objects = map(listed, sides)
        lines.append(_evidence((triples[0], incoming), f"{subjects}, {relation}: {objects}."))
    return lines


def sentence_of(fact: Fact) -> Evidence:
    """One fact as a sentence.

    Example:
        >>> sentence_of((Triple("t1", "France", "capital", "Paris"), False)).text
        'The capital of France is Paris.'
        >>> sentence_of((Triple("t2", "Paris", "capital of", "France"), False)).text
        'Paris, capital of: France.'
    """
    triple, _ = fact
    if triple.relation.split()[-1] in _PREPOSITIONS:  # not "the capital of of Paris"
        return joined([fact])[0]
    return _evidence(fact, f"The {triple.relation} of {triple.subject} is {triple.object}.")


def _evidence(fact: Fact, text: str) -> Evidence:
    triple, incoming = fact
    entity, key = triple.ends[incoming]
    url = key if key.startswith(("http://", "https://")) else ""
    return Evidence(text=text, title=entity, source=triple.id, url=url)


async def condensed(
    condenser: Condenser, query: str, facts: Sequence[Evidence], top_k: int
) -> list[Evidence]:
    """One paragraph about each entity, which `condenser` writes from the facts. An entity of which
    they say nothing that was asked is left out, unless all are. Where the condenser fails, the
    facts themselves come after the paragraphs, and what is returned is `Partial`.
    """
    by_entity: dict[tuple[str, str], list[Evidence]] = {}
    for fact in facts:
        by_entity.setdefault((fact.title, fact.url), []).append(fact)

    async def paragraph(items: list[Evidence]) -> str | None:
        try:
            return await summary_of(condenser, query, [fact.text for fact in items[:MOST_FACTS]])
        except ToolError as error:
            _log.warning("no summary, so the facts themselves are shown: %s", as_line(str(error)))
            return None

    # one request to a model each, so no more than will be shown
    entities = list(by_entity.values())[:top_k]
    texts = await asyncio.gather(*map(paragraph, entities))
    paragraphs = [
        msgspec.structs.replace(items[0], text=text)
        for text, items in zip(texts, entities, strict=True)
        if text
    ]
    untold = [
        fact for text, items in zip(texts, entities, strict=True) if text is None for fact in items
    ]
    results = ([*paragraphs, *untold] or list(facts))[:top_k]
    return Partial(results) if None in texts else results


def listed(values: Sequence[str]) -> str:
    """`A, B and C`; what is beyond `MOST_VALUES` is counted."""
    if len(values) > MOST_VALUES:
        values = [*values[:MOST_VALUES], f"{len(values) - MOST_VALUES} more"]
    return values[0] if len(values) == 1 else f"{', '.join(values[:-1])} and {values[-1]}"


def read_triples(source: str | os.PathLike[str] | Iterable[Mapping[str, Any]]) -> Iterator[Triple]:
    """Rows `id`, `subject`, `relation`, `object`: of `"world"`, of a `.jsonl[.gz]` file, or the
    rows themselves. Raises `DataError` for an unreadable source, or a row that lacks a part, naming
    it.
    """
    where = "triples"
    if isinstance(source, (str, os.PathLike)):
        path = world_file("triples.jsonl.gz") if str(source) == "world" else Path(source)
        source, where = read_rows(path), str(path)
    for number, row in enumerate(source, start=1):
        place = f"{where}, row {number}"
        if not isinstance(row, Mapping):
            raise DataError(
                f"{place}: expected an object with {', '.join(_PARTS)}; it is {type(row).__name__}"
            )
        if missing := [
            name for name in _PARTS if row.get(name) is None or not str(row[name]).strip()
        ]:
            has = ", ".join(map(str, row)) or "nothing"
            raise DataError(f"{place}: no {' and no '.join(missing)}; it has: {has}")
        triple = Triple(str(row.get("id", number)), *(str(row[name]) for name in _PARTS))
        try:
            msgspec.json.encode(triple)
        except UnicodeEncodeError as error:
            raise DataError(f"{place}: not valid Unicode ({error.reason})") from error
        yield triple
