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
    "find",
    "method_of",
    "names",
    "schema_of",
]


def names() -> list[str]:
    """The tools of this package: the files here that define one."""
    return registry.files(sys.modules[__name__], Tool)


def find(name: str) -> type[Tool]:
    """The tool's class: by a name of `names`, by an entry point of the group
    `faithful_search.tools`, or by the path of a file that defines one.

    Raises `ConfigError` for an unknown name.
    """
    return registry.find(sys.modules[__name__], name, Tool, names())
