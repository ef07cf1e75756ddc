"""A knowledge graph: the facts one hop around the entities that a query names, as sentences."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError
from ..trajectory import Evidence
from .base import Tool
from .condenser import Condenser
from .graphs.facts import Fact, condensed, evidence_of, grouped
from .graphs.labels import Labels
from .graphs.triples import RDF_SUFFIXES, Triple, TripleGraph, read_triples
from .words import words

if TYPE_CHECKING:
    from .graphs.rdf import RdfGraph


class KnowledgeGraph(Tool):
    """Facts around named entities, from triples or from RDF (extra `rdf`).

    The query's entities are found by the longest labels in it, on word boundaries, with case; without case only when
    that finds none. Their facts in both directions are ranked by how many of the relation's words the query has, then
    in the graph's order.

    Args:
        graph: the facts: triples, or an `RdfGraph`.
        name: what the policy calls it.
        top_k: pieces of evidence a query returns at most.
        description: what the policy is told; empty for the default.
        join: whether one piece of evidence holds all the values that a relation has for an entity; otherwise it holds
            one fact.
        condenser: writes one paragraph about each entity from its facts; where it fails, the facts are given.

    Example:
        >>> import asyncio
        >>> graph = KnowledgeGraph([Triple("t1", "France", "capital", "Paris")])
        >>> asyncio.run(graph.knowledge_graph("capital of France"))[0].text
        'The capital of France is Paris.'
    """

    def __init__(
        self,
        graph: Iterable[Triple] | TripleGraph | RdfGraph,
        name: str = "knowledge_graph",
        top_k: int = 3,
        description: str = "",
        join: bool = False,
        condenser: Condenser | None = None,
    ) -> None:
        self.graph = TripleGraph(graph) if isinstance(graph, Iterable) else graph
        self.name, self.top_k, self.description = name, top_k, description
        self.join, self.condenser = join, condenser
        # without a condenser nothing is quicker than the graph itself
        self.cache_key = f"knowledge_graph {self.graph.digest()} {top_k} {condenser.name}" if condenser else ""
        labels = list(self.graph.labels())
        self._exact, self._folded = Labels(labels, fold=False), Labels(labels, fold=True)

    @classmethod
    def from_triples(
        cls,
        triples: str | os.PathLike[str] | Iterable[Mapping[str, Any]],
        name: str = "knowledge_graph",
        top_k: int = 3,
        description: str = "",
        join: bool | None = None,
        condenser: Condenser | None = None,
        languages: Sequence[str] = ("en",),
    ) -> KnowledgeGraph:
        """Read a graph.

        Args:
            triples: rows `id`, `subject`, `relation`, `object`: `"world"`, a `.jsonl[.gz]` file, or the rows
                themselves; or an RDF file or a pyoxigraph store's folder, see `RdfGraph`.
            join: see the class; by default only RDF is joined.
            languages: of RDF labels, best first.

        Raises:
            DataError: an unreadable or empty source, or a row or line that is wrong, naming it.
            ConfigError: when pyoxigraph, which reads RDF, is missing.
        """
        if isinstance(triples, (str, os.PathLike)) and _is_rdf(Path(triples)):
            try:
                from .graphs.rdf import RdfGraph
            except ImportError as error:
                raise ConfigError(f"{triples} needs pyoxigraph: pip install 'faithful-search[rdf]'") from error
            graph = RdfGraph(triples, languages)
            return cls(graph, name, top_k, description, join is not False, condenser)
        return cls(read_triples(triples), name, top_k, description, bool(join), condenser)

    def __reduce__(self) -> tuple[type[KnowledgeGraph], tuple[Any, ...]]:
        return type(self), (self.graph, self.name, self.top_k, self.description, self.join, self.condenser)

    async def knowledge_graph(self, query: str) -> list[Evidence]:
        """Look up facts about the entities named in the query in a knowledge graph.

        Args:
            query: The entities by name and the relation wanted, such as 'capital of France'.
        """
        groups = self._groups(query) if self.graph.inline else await asyncio.to_thread(self._groups, query)
        if self.condenser is None:
            return [evidence_of(group) for group in groups[: self.top_k]]
        return await condensed(self.condenser, query, [evidence_of(group) for group in groups], self.top_k)

    def entities(self, query: str) -> list[str]:
        """What the query names, in its order: labels, or the IRIs of an RDF graph."""
        return self._exact.find(query) or self._folded.find(query)

    def _groups(self, query: str) -> list[list[Fact]]:
        """What a piece of evidence tells each, best first."""
        asked = set(words(query))
        facts = self.graph.around(self.entities(query))
        ranked = sorted(facts, key=lambda fact: -len(asked.intersection(words(fact.relation))))
        return grouped(ranked) if self.join or self.condenser else [[fact] for fact in ranked]


def _is_rdf(path: Path) -> bool:
    return path.is_dir() or path.name.removesuffix(".gz").endswith(RDF_SUFFIXES)
