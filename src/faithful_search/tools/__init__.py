"""Tools: what an agent can call, and the toolbox that runs the calls."""

import sys

from .. import registry
from ..wire.retry import Patience
from .base import Observation, Partial, Tool, method_of, schema_of
from .browse import Browse
from .cassette import Cassette, CassetteMiss
from .irrelevant import Irrelevant
from .knowledge_graph import KnowledgeGraph
from .lane import ToolStats
from .local_search import LocalSearch
from .remote_search import RemoteSearch
from .toolbox import Session, Toolbox
from .web_search import WebSearch
from .wikidata import Wikidata

__all__ = [
    "Browse",
    "Cassette",
    "CassetteMiss",
    "Irrelevant",
    "KnowledgeGraph",
    "LocalSearch",
    "Observation",
    "Partial",
    "Patience",
    "RemoteSearch",
    "Session",
    "Tool",
    "ToolStats",
    "Toolbox",
    "WebSearch",
    "Wikidata",
    "load",
    "method_of",
    "names",
    "schema_of",
]


def names() -> list[str]:
    """The files here that define a tool."""
    return [name for name in registry.names(sys.modules[__name__], Tool) if name != "base"]


def load(name: str) -> type[Tool]:
    """The tool class of the file of that name: `load("local_search")` is `LocalSearch`. Raises `ConfigError` when there
    is none, naming those that exist."""
    return registry.load(sys.modules[__name__], name, Tool)
