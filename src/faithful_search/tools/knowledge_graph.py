"""A knowledge graph: the facts one hop around the entities that a query names, as sentences."""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ..errors import needs
from ..trajectory import Evidence
from .base import Condenser, Tool
from .graphs.facts import Graph, Labels, Triple, condensed, joined, read_triples, sentence_of
from .words import words

_RDF = (".nt", ".ttl", ".nq", ".trig", ".n3", ".rdf", ".jsonld")


class KnowledgeGraph(Tool):
    """Facts around named entities, from triples or from an RDF file (extra `rdf`).

    The query's entities are found by the longest labels in it, on word boundaries, with case; without case only when
    that finds none. Their facts in both directions are ranked by how many of the relation's words the query has, then
    in the graph's order.

    Args:
        graph: the facts; each is told as a sentence, those of RDF by relation with all its values.
        condenser: writes one paragraph about each entity from its facts; where it fails, the facts are given.

    Example:
        >>> import asyncio
        >>> graph = KnowledgeGraph([Triple("t1", "France", "capital", "Paris")])
        >>> asyncio.run(graph.knowledge_graph("capital of France"))[0].text
        'The capital of France is Paris.'
    """

    def __init__(
        self,
        graph: Graph | Iterable[Triple],
        name: str = "knowledge_graph",
        top_k: int = 3,
        description: str = "",
        condenser: Condenser | None = None,
    ) -> None:
        self.graph = graph if isinstance(graph, Graph) else Graph(graph)
        self.name, self.top_k, self.description = name, top_k, description
        self.condenser = condenser
        # without a condenser nothing is quicker than the graph itself
        self.cache_key = f"knowledge_graph {self.graph.digest()} {top_k} {condenser.name}" if condenser else ""
        labels = list(dict.fromkeys(self.graph.labels()))
        # case tells Polish from polish, but queries in lower case are understood, too
        self._exact, self._folded = Labels(labels, fold=False), Labels(labels, fold=True)

    @classmethod
    def from_triples(
        cls, triples: str | os.PathLike[str] | Iterable[Mapping[str, Any]], **about: Any
    ) -> "KnowledgeGraph":
        """Read a graph; `about` are the arguments of the class.

        `triples` are rows `id`, `subject`, `relation`, `object`: `"world"`, a `.jsonl[.gz]` file, or the rows
        themselves; or an RDF file, such as `.nt` or `.ttl.gz`. Raises `DataError` for an unreadable or empty source, or
        a row or line that is wrong, naming it.
        """
        path = Path(triples) if isinstance(triples, (str, os.PathLike)) else None
        if path is None or not path.name.removesuffix(".gz").endswith(_RDF):
            return cls(read_triples(triples), **about)
        with needs(str(triples), "rdf"):
            from .graphs.rdf import read_rdf
        return cls(read_rdf(path), **about)

    def __reduce__(self) -> "tuple[type[KnowledgeGraph], tuple[Any, ...]]":
        return type(self), (self.graph, self.name, self.top_k, self.description, self.condenser)

    async def knowledge_graph(self, query: str) -> list[Evidence]:
        """Look up facts about the entities named in the query in a knowledge graph.

        Args:
            query: The entities by name and the relation wanted, such as 'capital of France'.
        """
        asked = set(words(query))
        facts = self.graph.around(self.entities(query))
        # a stable sort: of equals the graph's order
        ranked = sorted(facts, key=lambda fact: -len(asked.intersection(words(fact.triple.relation))))
        if self.condenser is not None:
            return await condensed(self.condenser, query, joined(ranked), self.top_k)
        return joined(ranked)[: self.top_k] if self.graph.lists else [*map(sentence_of, ranked[: self.top_k])]

    def entities(self, query: str) -> list[str]:
        """What the query names, in its order: labels, or the IRIs of an RDF graph."""
        return self._exact.find(query) or self._folded.find(query)
