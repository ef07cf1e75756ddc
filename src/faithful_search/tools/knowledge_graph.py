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
from .graphs.facts import Fact, Labels, Triple, condensed, joined, read_triples, sentence_of
from .setup import Setup
from .wikidata import Wikidata
from .words import words

_RDF = (".nt", ".ttl", ".nq", ".trig", ".n3", ".rdf", ".jsonld")
# Facts of an entity that are ranked, in each direction: a class may have millions of members.
_MOST_FACTS = 2_000


class KnowledgeGraph(Tool):
    """Facts around named entities, from triples or from an RDF file (extra `rdf`).

    The query's entities are found by the longest labels in it, on word boundaries, with case;
    without case only when that finds none. Their facts in both directions are ranked by how many of
    the relation's words the query has, then in the order of the triples.

    Args:
        triples: the facts, at least one.
        name, description: see `Tool`.
        top_k: passages that a call returns.
        condenser: writes one paragraph about each entity from its facts; where it fails, the facts
            are returned.
        names: further names of entities, each with the entity's key.
        lists: write all values of a relation into one passage; by default each fact is a sentence.

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
        self.triples = tuple(triples)
        self.names = tuple(names)
        self.lists = lists
        if not self.triples:
            raise DataError("the knowledge graph has no triples")
        self.name = name
        self.top_k = top_k
        self.description = description
        self.condenser = condenser
        if condenser is not None:  # without one a look into the graph is as quick as into a cache
            digest = hashlib.sha256(msgspec.json.encode((self.triples, self.names))).hexdigest()
            self.cache_key = f"knowledge_graph {digest} {top_k} {condenser.name}"
        # By an entity's key, the places of its triples: those where it is the subject, and those
        # where it is the object
        self._places: dict[str, tuple[list[int], list[int]]] = {}
        labels: dict[tuple[str, str], None] = {}  # with the key of what they name, each once
        for place, triple in enumerate(self.triples):
            for as_object, (label, key) in enumerate(triple.ends):
                self._places.setdefault(key, ([], []))[as_object].append(place)
                labels[label, key] = None
        labels |= dict.fromkeys(self.names)
        # Case tells Polish from polish, but queries in lower case are understood, too.
        self._exact = Labels(labels, fold=False)
        self._folded = Labels(labels, fold=True)

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
        """Read a graph.

        Args:
            triples: rows `id`, `subject`, `relation`, `object`: `"world"`, a `.jsonl[.gz]` file, or
                the rows themselves; or an RDF file, such as `.nt` or `.ttl.gz`.
            fields: the other arguments of the class.

        Raises:
            DataError: the source cannot be read or is empty, or a row or line is wrong; names it.
        """
        path = Path(triples) if isinstance(triples, (str, os.PathLike)) else None
        if path is None or not path.name.removesuffix(".gz").endswith(_RDF):
            return cls(read_triples(triples), **fields)
        with needs(str(triples), "rdf"):
            from .graphs.rdf import read_rdf
        facts, names = read_rdf(path)
        # As lists, since an ontology's relations are as often verbs as nouns: as a sentence this
        # would be "the knows of Ann".
        return cls(facts, names=names, lists=True, **fields)

    async def knowledge_graph(self, query: str) -> list[Evidence]:
        """Look up facts about the entities named in the query in a knowledge graph.

        Args:
            query: The entities by name and the relation wanted, such as 'capital of France'.
        """
        # By place, whether the triple was found for its object: each once, for the entity that the
        # query names first.
        for_object: dict[int, bool] = {}
        for entity in self.entities(query):
            for as_object, places in enumerate(self._places.get(entity, ())):
                for place in islice(places, _MOST_FACTS):
                    for_object.setdefault(place, bool(as_object))
        facts = [(self.triples[place], for_object[place]) for place in sorted(for_object)]
        query_words = set(words(query))

        def shared_words(fact: Fact) -> int:
            triple, _ = fact
            return len(query_words.intersection(words(triple.relation)))

        # Of equals the order stays: that of the graph.
        ranked = sorted(facts, key=shared_words, reverse=True)
        if self.condenser is not None:
            return await condensed(self.condenser, query, joined(ranked), self.top_k)
        if self.lists:
            return joined(ranked)[: self.top_k]
        return [sentence_of(fact) for fact in ranked[: self.top_k]]

    def entities(self, query: str) -> list[str]:
        """The keys of the entities that the query names, in its order: their labels, or in an RDF
        graph their IRIs.
        """
        return self._exact.find(query) or self._folded.find(query)
