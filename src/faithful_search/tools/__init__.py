"""Tools: what an agent can call, and the toolbox that runs the calls."""

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
    "method_of",
    "schema_of",
]
