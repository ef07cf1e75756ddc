"""A knowledge graph: the facts one hop around the entities that a query names, as sentences."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
from pyoxigraph import Literal, NamedNode, Quad, Store

from ..bundled import world_file
from ..errors import DataError
from ..tasks import read_rows
from ..trajectory import Evidence
from .base import Tool
from .words import words

_PARTS = ("subject", "relation", "object")
_BASE = "urn:faithful-search:"
_LABEL = NamedNode("http://www.w3.org/2000/01/rdf-schema#label")


class Triple(msgspec.Struct, frozen=True):
    """One fact: the `relation` of `subject` is `object`."""

    id: str
    subject: str
    relation: str
    object: str


class KnowledgeGraph(Tool):
    """Facts around named entities, from an in-memory RDF store.

    The query's entities are found by the longest labels in it, on word boundaries, with case; without case only when
    that finds none. Their facts in both directions are ranked by how many of the relation's words the query has, then
    in the order given.

    Args:
        triples: the facts.
        name: what the policy calls it.
        top_k: facts a query returns at most.
        description: what the policy is told; empty for the default.

    Example:
        >>> import asyncio
        >>> graph = KnowledgeGraph([Triple("t1", "France", "capital", "Paris")])
        >>> asyncio.run(graph.knowledge_graph("capital of France"))[0].text
        'The capital of France is Paris.'
    """

    def __init__(
        self, triples: Iterable[Triple], name: str = "knowledge_graph", top_k: int = 3, description: str = ""
    ) -> None:
        self.triples = tuple(triples)
        self.name, self.top_k, self.description = name, top_k, description
        if not self.triples:
            raise DataError("the knowledge graph has no triples")
        self.store = Store()
        self.store.extend(quad for number, triple in enumerate(self.triples) for quad in _quads(number, triple))
        labels = dict.fromkeys(label for triple in self.triples for label in (triple.subject, triple.object))
        self._exact, self._folded = _Labels(labels, fold=False), _Labels(labels, fold=True)

    @classmethod
    def from_triples(
        cls,
        triples: str | os.PathLike[str] | Iterable[Mapping[str, Any]],
        name: str = "knowledge_graph",
        top_k: int = 3,
        description: str = "",
    ) -> KnowledgeGraph:
        """Read rows `id`, `subject`, `relation`, `object`: `"world"`, a `.jsonl[.gz]` file, or the rows themselves.

        Raises:
            DataError: an unreadable or empty source, or a row that lacks a part, naming it.
        """
        if isinstance(triples, (str, os.PathLike)):
            path = world_file("triples.jsonl.gz") if str(triples) == "world" else Path(triples)
            return cls(_triples(read_rows(path), str(path)), name, top_k, description)
        return cls(_triples(triples, "triples"), name, top_k, description)

    def __reduce__(self) -> tuple[type[KnowledgeGraph], tuple[Any, ...]]:
        return type(self), (self.triples, self.name, self.top_k, self.description)

    async def knowledge_graph(self, query: str) -> list[Evidence]:
        """Look up facts about the entities named in the query in a knowledge graph.

        Args:
            query: The entities by name and the relation wanted, such as 'capital of France'.
        """
        entities = self.entities(query)
        asked = set(words(query))
        facts = {number: label for label in reversed(entities) for number in self._around(label)}
        overlap = {number: len(asked.intersection(words(self.triples[number].relation))) for number in facts}
        best = sorted(facts, key=lambda number: (-overlap[number], number))[: self.top_k]
        return [self._evidence(number, facts[number]) for number in best]

    def entities(self, query: str) -> list[str]:
        """The labels that the query names, in its order."""
        return self._exact.find(query) or self._folded.find(query)

    def _around(self, label: str) -> Iterator[int]:
        """Numbers of the triples that have the entity as subject or object."""
        entity = _node("entity", label)
        for subject, object_ in ((entity, None), (None, entity)):
            for quad in self.store.quads_for_pattern(subject, None, object_, None):
                if isinstance(quad.graph_name, NamedNode):
                    yield int(quad.graph_name.value.rsplit("/", 1)[1])

    def _evidence(self, number: int, label: str) -> Evidence:
        triple = self.triples[number]
        sentence = f"The {triple.relation} of {triple.subject} is {triple.object}."
        return Evidence(text=sentence, title=label, source=triple.id)


class _Labels:
    """Finds labels in a text: a trie over their words, linear in the text for labels of bounded length."""

    def __init__(self, labels: Iterable[str], fold: bool) -> None:
        self.fold = fold
        self.root: dict[str | None, Any] = {}
        for label in labels:
            node = self.root
            for word in words(label, fold):
                node = node.setdefault(word, {})
            if node is not self.root:
                node.setdefault(None, []).append(label)

    def find(self, text: str) -> list[str]:
        """The labels in `text`, longest first where they overlap, given in the text's order without repeats."""
        tokens = words(text, self.fold)
        matches = [match for start in range(len(tokens)) for match in self._from(tokens, start)]
        taken: set[int] = set()
        kept: list[tuple[int, list[str]]] = []
        for start, end, labels in sorted(matches, key=lambda match: (match[0] - match[1], match[0])):
            if taken.isdisjoint(range(start, end)):
                taken.update(range(start, end))
                kept.append((start, labels))
        return list(dict.fromkeys(label for _, labels in sorted(kept) for label in labels))

    def _from(self, tokens: list[str], start: int) -> Iterator[tuple[int, int, list[str]]]:
        node = self.root
        for end in range(start, len(tokens)):
            if tokens[end] not in node:
                return
            node = node[tokens[end]]
            if None in node:
                yield start, end + 1, node[None]


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
