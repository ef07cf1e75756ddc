"""A knowledge graph: the facts one hop around the entities that a query names, as sentences."""

import hashlib
import os
from collections.abc import Iterable, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from ..errors import ConfigError, DataError, needs
from ..trajectory import Evidence
from .base import Condenser, Tool
from .graphs.facts import Labels, Triple, condensed, joined, read_triples, sentence_of
from .setup import Setup
from .wikidata import Wikidata
from .words import words

_RDF = (".nt", ".ttl", ".nq", ".trig", ".n3", ".rdf", ".jsonld")
# Facts of an entity that are looked at, in each direction: a class may have millions of members
_MOST = 2_000


class KnowledgeGraph(Tool):
    """Facts around named entities, from triples or from an RDF file (extra `rdf`).

    The query's entities are found by the longest labels in it, on word boundaries, with case;
    without case only when that finds none. Their facts in both directions are ranked by how many of
    the relation's words the query has, then in the order of the triples.

    Args:
        triples: the facts. Raises `DataError` when there are none.
        condenser: writes one paragraph about each entity from its facts; where it fails, the facts
            are given.
        names: further names of entities, each with the entity's key.
        lists: tell all the values of a relation together, as of RDF; by default each fact is a
            sentence.

    Example:
        >>> import asyncio
        >>> graph = KnowledgeGraph([Triple("t1", "France", "capital", "Paris")])
        >>> asyncio.run(graph.knowledge_graph("capital of France"))[0].text
        'The capital of France is Paris.'
    """

    def __init__(
        self,
        triples: Iterable[Triple],
        name: str = "knowledge_graph",
        top_k: int = 3,
        description: str = "",
        condenser: Condenser | None = None,
        names: Iterable[tuple[str, str]] = (),
        lists: bool = False,
    ) -> None:
        self.triples, self.names, self.lists = tuple(triples), tuple(names), lists
        if not self.triples:
            raise DataError("the knowledge graph has no triples")
        self.name, self.top_k, self.description, self.condenser = (
            name,
            top_k,
            description,
            condenser,
        )
        if condenser is not None:  # without one nothing is quicker than the graph itself
            digest = hashlib.sha256(msgspec.json.encode((self.triples, self.names))).hexdigest()
            self.cache_key = f"knowledge_graph {digest} {top_k} {condenser.name}"
        self._places: dict[
            str, tuple[list[int], list[int]]
        ] = {}  # of an entity's triples: as subject, as object
        labels: dict[tuple[str, str], None] = {}
        for place, triple in enumerate(self.triples):
            for incoming, (label, key) in enumerate(triple.ends):
                self._places.setdefault(key, ([], []))[incoming].append(place)
                labels[label, key] = None
        labels |= dict.fromkeys(self.names)
        # case tells Polish from polish, but queries in lower case are understood, too
        self._exact, self._folded = Labels(labels, fold=False), Labels(labels, fold=True)

    @classmethod
    def open(cls, source: str, setup: Setup) -> Tool:
        if not source:
            raise ConfigError(
                "knowledge_graph needs triples: --triples, or --tools knowledge_graph=FILE"
            )
        if source == "wikidata":
            return Wikidata.open("", setup)
        return cls.from_triples(source, condenser=setup.condenser, **setup.about)

    @classmethod
    def from_triples(
        cls, triples: str | os.PathLike[str] | Iterable[Mapping[str, Any]], **fields: Any
    ) -> "KnowledgeGraph":
        """Read a graph; `fields` are the arguments of the class.

        `triples` are rows `id`, `subject`, `relation`, `object`: `"world"`, a `.jsonl[.gz]` file,
        or the rows themselves; or an RDF file, such as `.nt` or `.ttl.gz`. Raises `DataError` for
        an unreadable or empty source, or a row or line that is wrong, naming it.
        """
        path = Path(triples) if isinstance(triples, (str, os.PathLike)) else None
        if path is None or not path.name.removesuffix(".gz").endswith(_RDF):
            return cls(read_triples(triples), **fields)
        with needs(str(triples), "rdf"):
            from .graphs.rdf import read_rdf
        facts, names = read_rdf(path)
        # an ontology's relations are as often verbs as nouns, so that "the knows of Ann" would have
        # to be avoided
        return cls(facts, names=names, lists=True, **fields)

    async def knowledge_graph(self, query: str) -> list[Evidence]:
        """Look up facts about the entities named in the query in a knowledge graph.

        Args:
            query: The entities by name and the relation wanted, such as 'capital of France'.
        """
        query_words = set(words(query))
        places_found: dict[int, bool] = {}  # each triple once: of two entities for the first
        for entity in self.entities(query):
            for incoming, places in enumerate(self._places.get(entity, ())):
                for place in islice(places, _MOST):
                    places_found.setdefault(place, bool(incoming))
        facts = [(self.triples[place], places_found[place]) for place in sorted(places_found)]
        # a stable sort: of equals the graph's order
        ranked = sorted(
            facts, key=lambda fact: -len(query_words.intersection(words(fact[0].relation)))
        )
        if self.condenser is not None:
            return await condensed(self.condenser, query, joined(ranked), self.top_k)
        return (
            joined(ranked)[: self.top_k]
            if self.lists
            else [*map(sentence_of, ranked[: self.top_k])]
        )

    def entities(self, query: str) -> list[str]:
        """What the query names, in its order: labels, or the IRIs of an RDF graph."""
        return self._exact.find(query) or self._folded.find(query)
