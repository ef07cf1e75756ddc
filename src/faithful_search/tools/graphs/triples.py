"""A graph of labelled triples, as rows or JSONL give them: an entity is its label."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
from pyoxigraph import Literal, NamedNode, Quad, Store

from ...bundled import world_file
from ...errors import DataError
from ...tasks import read_rows
from .facts import Fact

_PARTS = ("subject", "relation", "object")
_BASE = "urn:faithful-search:"
_LABEL = NamedNode("http://www.w3.org/2000/01/rdf-schema#label")


class Triple(msgspec.Struct, frozen=True):
    """One fact: the `relation` of `subject` is `object`."""

    id: str
    subject: str
    relation: str
    object: str


class TripleGraph:
    """Triples in an in-memory RDF store. Facts come in the order given.

    Raises:
        DataError: when there are none.
    """

    def __init__(self, triples: Iterable[Triple]) -> None:
        self.triples = tuple(triples)
        if not self.triples:
            raise DataError("the knowledge graph has no triples")
        self.store = Store()
        self.store.extend(quad for number, triple in enumerate(self.triples) for quad in _quads(number, triple))

    def digest(self) -> str:
        """Tells these facts from others, for a cache's key."""
        return hashlib.sha256(msgspec.json.encode(self.triples)).hexdigest()

    def labels(self) -> Iterator[tuple[str, str]]:
        """The entities, each its own key."""
        for label in dict.fromkeys(label for triple in self.triples for label in (triple.subject, triple.object)):
            yield label, label

    def around(self, entities: Sequence[str]) -> list[Fact]:
        """The facts that have one of the entities as subject or object, each once."""
        found = {number: label for label in reversed(entities) for number in self._numbers(label)}
        return [self._fact(number, found[number]) for number in sorted(found)]

    def _numbers(self, label: str) -> Iterator[int]:
        entity = _node("entity", label)
        for subject, object_ in ((entity, None), (None, entity)):
            for quad in self.store.quads_for_pattern(subject, None, object_, None):
                if isinstance(quad.graph_name, NamedNode):
                    yield int(quad.graph_name.value.rsplit("/", 1)[1])

    def _fact(self, number: int, entity: str) -> Fact:
        triple = self.triples[number]
        return Fact(
            triple.subject, triple.relation, triple.object, entity, triple.id, incoming=entity != triple.subject
        )

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


def _quads(number: int, triple: Triple) -> Iterator[Quad]:
    """The fact in a graph of its own, which keeps its number, and the labels of its three parts."""
    subject, object_ = _node("entity", triple.subject), _node("entity", triple.object)
    relation = _node("relation", triple.relation)
    yield Quad(subject, relation, object_, NamedNode(f"{_BASE}fact/{number}"))
    for node, label in ((subject, triple.subject), (relation, triple.relation), (object_, triple.object)):
        yield Quad(node, _LABEL, Literal(label))


def _node(kind: str, label: str) -> NamedNode:
    return NamedNode(f"{_BASE}{kind}/{quote(label, safe='')}")


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
