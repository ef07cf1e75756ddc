"""The flags that every recipe with episodes shares: which tools there are, and how an episode is bounded."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from .. import dialects
from ..errors import ConfigError
from ..tools import Irrelevant, KnowledgeGraph, LocalSearch, Toolbox
from .episode import Limits


@dataclass
class EnvironmentArguments:
    """Tools and limits of the episodes."""

    corpus: str = field(
        default="world", metadata={"help": "passages of local_search: 'world', a JSONL file, or 'none'"}
    )
    triples: str = field(
        default="world", metadata={"help": "triples of knowledge_graph: 'world', a JSONL file, or 'none'"}
    )
    negative_tool: bool = field(default=False, metadata={"help": "add the deliberately irrelevant tool"})
    search_top_k: int = field(default=3, metadata={"help": "pieces of evidence a call returns"})
    tool_timeout: float = field(default=30.0, metadata={"help": "seconds a call may take"})
    dialect: str = field(default="pou", metadata={"help": "how the agent writes"})
    turns: int = field(default=10, metadata={"help": "reasoning steps an episode may have"})
    turn_tokens: int = field(default=256, metadata={"help": "tokens a turn may have"})
    generation_batch: int = field(default=64, metadata={"help": "rows per forward pass when sampling and probing"})

    def toolbox(self) -> Toolbox:
        """The tools of the episodes, under the names that the dialect's calls carry.

        Raises:
            ConfigError: when there would be none, or any but `LocalSearch` for a dialect that can only search.
            DialectError: for an unknown dialect.
        """
        only = dialects.load(self.dialect).search_tool
        if only and (self.corpus == "none" or self.triples != "none" or self.negative_tool):
            raise ConfigError(
                f"the dialect {self.dialect!r} has one tool, search in a corpus: "
                "give --corpus, and set --triples none and --negative_tool false"
            )
        tools: list[Any] = []
        if self.corpus != "none":
            tools.append(LocalSearch.from_corpus(self.corpus, top_k=self.search_top_k, name=only or "local_search"))
        if self.triples != "none":
            tools.append(KnowledgeGraph.from_triples(self.triples, top_k=self.search_top_k))
        if self.negative_tool:
            tools.append(Irrelevant(top_k=self.search_top_k))
        if not tools:
            raise ConfigError("no tools: give --corpus, --triples or --negative_tool")
        return Toolbox(tools, timeout=self.tool_timeout, top_k=self.search_top_k)

    def limits(self, total_tokens: int) -> Limits:
        """The bounds of an episode of at most `total_tokens` after the prompt."""
        return Limits(self.turns, self.turn_tokens, total_tokens)
