"""Labelled facts: read from rows, found by the names of their entities, and written as text."""

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
"""Values that a text lists; of the others it says how many there are."""
MOST_FACTS = 30
"""Texts about an entity from which a condenser writes."""

_log = logging.getLogger(__name__)
_PARTS = ("subject", "relation", "object")
_PREPOSITIONS = frozenset(
    words("about after as at before between by for from in into of on over to under with")
)


class Triple(msgspec.Struct, frozen=True):
    """One fact: the `relation` of `subject` is `object`, all three as labels.

    Attributes:
        subject_key, object_key: what tells entities of one label apart, such as an IRI; empty where
            the label is the key.
    """

    id: str
    subject: str
    relation: str
    object: str
    subject_key: str = ""
    object_key: str = ""

    @property
    def ends(self) -> tuple[tuple[str, str], tuple[str, str]]:
        """Label and key of the subject, then of the object."""
        subject = (self.subject, self.subject_key or self.subject)
        object_ = (self.object, self.object_key or self.object)
        return subject, object_


Fact = tuple[Triple, bool]
"""A triple that was found for one of its entities: the object where the second is true, else the
subject.
"""


class Labels:
    """Finds labels in a text, on word boundaries. Linear in the text for labels of limited length.

    Args:
        labels: each with the key of what it names; one label may name several things.
        fold: whether case is ignored.

    Example:
        >>> labels = Labels([("New York", "Q1384"), ("York", "Q42462")], fold=True)
        >>> labels.find("the new york of York")
        ['Q1384', 'Q42462']
    """

    def __init__(self, labels: Iterable[tuple[str, str]], fold: bool) -> None:
        self.fold = fold
        self.keys: dict[tuple[str, ...], list[str]] = {}  # by the words of a label
        for label, key in labels:
            label_words = tuple(words(label, fold))
            if label_words:  # a label without a word would be found everywhere
                self.keys.setdefault(label_words, []).append(key)
        # How many words labels have, longest first
        self.lengths = sorted({len(label_words) for label_words in self.keys}, reverse=True)

    def find(self, text: str) -> list[str]:
        """The keys of the labels in `text`, in its order, each once. Of labels that overlap only
        the longest counts.
        """
        text_words = tuple(words(text, self.fold))
        covered: set[int] = set()  # places of words that belong to a label already
        matches: list[tuple[int, list[str]]] = []  # where a label begins, and its keys
        # The longest first, so that "York City" in "New York City" is not looked up as York.
        for length in self.lengths:
            for start in range(len(text_words) - length + 1):
                keys = self.keys.get(text_words[start : start + length])
                places = range(start, start + length)
                if keys and covered.isdisjoint(places):
                    covered.update(places)
                    matches.append((start, keys))
        distinct: dict[str, None] = {}
        for _, keys in sorted(matches):
            distinct |= dict.fromkeys(keys)
        return list(distinct)


def joined(facts: Iterable[Fact]) -> list[Evidence]:
    """Facts as evidence: one passage for all that have the entity, the relation and the direction
    in common, in the order of the first of each.

    Example:
        >>> cities = [(Triple("t1", name, "country", "France"), True) for name in ("Lyon", "Nice")]
        >>> child = (Triple("t2", "Ann", "child", "Bo"), False)
        >>> [passage.text for passage in joined([child, *cities])]
        ['Ann, child: Bo.', 'Lyon and Nice, country: France.']
    """
    groups: dict[tuple[str, str, bool], list[Triple]] = {}
    for triple, for_object in facts:
        _, key = triple.ends[for_object]
        groups.setdefault((key, triple.relation, for_object), []).append(triple)
    passages = []
    for (_, relation, for_object), triples in groups.items():
        # Each once: two sources may state the same fact.
        subjects = list(dict.fromkeys(triple.subject for triple in triples))
        objects = list(dict.fromkeys(triple.object for triple in triples))
        # The entity of a group is one, whatever other labels it has.
        if for_object:
            objects = objects[:1]
        else:
            subjects = subjects[:1]
        text = f"{listed(subjects)}, {relation}: {listed(objects)}."
        passages.append(_evidence((triples[0], for_object), text))
    return passages


def sentence_of(fact: Fact) -> Evidence:
    """One fact as a sentence.

    Example:
        >>> sentence_of((Triple("t1", "France", "capital", "Paris"), False)).text
        'The capital of France is Paris.'
        >>> sentence_of((Triple("t2", "Paris", "capital of", "France"), False)).text
        'Paris, capital of: France.'
    """
    triple, _ = fact
    # "capital of" would become "The capital of of Paris".
    if triple.relation.split()[-1] in _PREPOSITIONS:
        return joined([fact])[0]
    return _evidence(fact, f"The {triple.relation} of {triple.subject} is {triple.object}.")


def _evidence(fact: Fact, text: str) -> Evidence:
    """A passage about the entity that a fact was found for."""
    triple, for_object = fact
    entity, key = triple.ends[for_object]
    url = key if key.startswith(("http://", "https://")) else ""
    return Evidence(text=text, title=entity, source=triple.id, url=url)


async def condensed(
    condenser: Condenser, query: str, facts: Sequence[Evidence], top_k: int
) -> list[Evidence]:
    """One paragraph about each entity, which `condenser` writes from the facts.

    An entity of which they say nothing that was asked is left out; where that is so of all, the
    facts themselves are returned. Where the condenser fails for an entity, its facts come after the
    paragraphs, and the result is `Partial`.
    """
    by_entity: dict[tuple[str, str], list[Evidence]] = {}
    for fact in facts:
        by_entity.setdefault((fact.title, fact.url), []).append(fact)

    async def paragraph(facts_of_entity: list[Evidence]) -> str | None:
        texts = [fact.text for fact in facts_of_entity[:MOST_FACTS]]
        try:
            return await summary_of(condenser, query, texts)
        except ToolError as error:
            _log.warning("no summary, so the facts themselves are shown: %s", as_line(str(error)))
            return None

    # Each paragraph is a request to a model, so there are no more than will be shown.
    entities = list(by_entity.values())[:top_k]
    texts = await asyncio.gather(*map(paragraph, entities))
    paragraphs: list[Evidence] = []
    facts_without_paragraph: list[Evidence] = []
    for text, facts_of_entity in zip(texts, entities, strict=True):
        if text:
            paragraphs.append(msgspec.structs.replace(facts_of_entity[0], text=text))
        elif text is None:
            facts_without_paragraph += facts_of_entity
    results = [*paragraphs, *facts_without_paragraph] or list(facts)
    results = results[:top_k]
    return Partial(results) if None in texts else results


def listed(values: Sequence[str]) -> str:
    """`A, B and C`; of more than `MOST_VALUES` the others are counted, as `A, B and 7 more`."""
    if len(values) > MOST_VALUES:
        values = [*values[:MOST_VALUES], f"{len(values) - MOST_VALUES} more"]
    if len(values) == 1:
        return values[0]
    return f"{', '.join(values[:-1])} and {values[-1]}"


def read_triples(source: str | os.PathLike[str] | Iterable[Mapping[str, Any]]) -> Iterator[Triple]:
    """Read facts.

    Args:
        source: rows `id`, `subject`, `relation`, `object`: those of `"world"`, of a `.jsonl[.gz]`
            file, or the rows themselves.

    Raises:
        DataError: the source cannot be read, or a row lacks a part; names it.
    """
    where = "triples"
    if isinstance(source, (str, os.PathLike)):
        path = world_file("triples.jsonl.gz") if str(source) == "world" else Path(source)
        source = read_rows(path)
        where = str(path)
    for number, row in enumerate(source, start=1):
        place = f"{where}, row {number}"
        if not isinstance(row, Mapping):
            raise DataError(
                f"{place}: expected an object with {', '.join(_PARTS)}; it is {type(row).__name__}"
            )
        missing = []
        for name in _PARTS:
            if row.get(name) is None or not str(row[name]).strip():
                missing.append(name)
        if missing:
            columns = ", ".join(map(str, row)) or "nothing"
            raise DataError(f"{place}: no {' and no '.join(missing)}; it has: {columns}")
        triple = Triple(
            id=str(row.get("id", number)),
            subject=str(row["subject"]),
            relation=str(row["relation"]),
            object=str(row["object"]),
        )
        try:
            msgspec.json.encode(triple)
        except UnicodeEncodeError as error:
            raise DataError(f"{place}: not valid Unicode ({error.reason})") from error
        yield triple
