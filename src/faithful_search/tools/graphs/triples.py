"""A graph of labelled triples, as rows or JSONL give them: an entity is its label."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from ...bundled import world_file
from ...errors import DataError
from ...tasks import read_rows
from .facts import Fact

RDF_SUFFIXES = (".nt", ".ttl", ".nq", ".trig", ".n3", ".rdf", ".jsonld")
"""Of the files that `rdf` reads, each also with `.gz` after it."""

_PARTS = ("subject", "relation", "object")


class Triple(msgspec.Struct, frozen=True):
    """One fact: the `relation` of `subject` is `object`."""

    id: str
    subject: str
    relation: str
    object: str


class TripleGraph:
    """Triples found by the labels of their entities. Facts come in the order given.

    Attributes:
        inline: whether its answers are quick enough for an event loop.

    Raises:
        DataError: when there are none.
    """

    inline = True

    def __init__(self, triples: Iterable[Triple]) -> None:
        self.triples = tuple(triples)
        if not self.triples:
            raise DataError("the knowledge graph has no triples")
        self._places: dict[str, list[int]] = {}
        for place, triple in enumerate(self.triples):
            for label in {triple.subject, triple.object}:
                self._places.setdefault(label, []).append(place)

    def digest(self) -> str:
        """Tells these facts from others, for a cache's key."""
        return hashlib.sha256(msgspec.json.encode(self.triples)).hexdigest()

    def labels(self) -> Iterator[tuple[str, str]]:
        """The entities, each its own key."""
        for label in dict.fromkeys(label for triple in self.triples for label in (triple.subject, triple.object)):
            yield label, label

    def around(self, entities: Sequence[str]) -> list[Fact]:
        """The facts that have one of the entities as subject or object, each once: of two entities for the first."""
        found = {place: label for label in reversed(entities) for place in self._places.get(label, ())}
        return [
            Fact(told.subject, told.relation, told.object, found[place], told.id, incoming=found[place] != told.subject)
            for place, told in ((place, self.triples[place]) for place in sorted(found))
        ]

    def __reduce__(self) -> tuple[type[TripleGraph], tuple[Any, ...]]:
        return type(self), (self.triples,)


def read_triples(source: str | os.PathLike[str] | Iterable[Mapping[str, Any]]) -> Iterator[Triple]:
    """Rows `id`, `subject`, `relation`, `object`: of `"world"`, of a `.jsonl[.gz]` file, or the rows themselves.

    Raises:
        DataError: an unreadable source, or a row that lacks a part, naming it.
    """
    if isinstance(source, (str, os.PathLike)):
        path = world_file("triples.jsonl.gz") if str(source) == "world" else Path(source)
        return _triples(read_rows(path), str(path))
    return _triples(source, "triples")


def _triples(rows: Iterable[Mapping[str, Any]], where: str) -> Iterator[Triple]:
    for number, row in enumerate(rows, start=1):
        if not isinstance(row, Mapping):
            kind = type(row).__name__
            raise DataError(f"{where}, row {number}: expected an object with {', '.join(_PARTS)}; it is {kind}")
        missing = [name for name in _PARTS if row.get(name) is None or not str(row[name]).strip()]
        if missing:
            has = ", ".join(map(str, row)) or "nothing"
            raise DataError(f"{where}, row {number}: no {' and no '.join(missing)}; it has: {has}")
        triple = Triple(str(row.get("id", number)), str(row["subject"]), str(row["relation"]), str(row["object"]))
        try:
            msgspec.json.encode(triple)
        except UnicodeEncodeError as error:
            raise DataError(f"{where}, row {number}: not valid Unicode ({error.reason})") from error
        yield triple
