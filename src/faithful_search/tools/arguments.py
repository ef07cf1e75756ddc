"""The flags that say which tools there are, for recipes and commands alike."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Literal

from ..errors import ConfigError
from ..flags import flag, knob
from ..trajectory import Evidence
from ..wire.cache import Cache
from ..wire.retry import Patience
from . import find
from .base import Condenser, Tool
from .cassette import Cassette
from .local_search import kind_of_corpus
from .retrieval.corpus import digest, passages
from .retrieval.index import Passages
from .retrieval.index_folder import read_manifest
from .setup import Setup
from .toolbox import Toolbox

_SECOND = "domain_search"  # stands for the second `local_search`, over the second corpus
# For each tool the flag that says what it opens. A further tool needs none: `--tools` names it.
_FLAGS = {
    "web_search": "web_search",
    "browse": "browse",
    "local_search": "corpus",
    "knowledge_graph": "triples",
    _SECOND: "domain_corpus",
}


@dataclass
class ToolArguments:
    """Which tools the agent has, and how patient they are. Keys are read from the environment."""

    corpus: str = flag(
        "world",
        "Corpus of the tool local_search: 'world', a file, the folder of an index, a Hub dataset, "
        "the http:// URL of a retrieval server, the opensearch+ URL of a search engine, or 'none'.",
    )
    triples: str = flag(
        "world",
        "Facts of the tool knowledge_graph: 'world', a .jsonl, .nt or .ttl file, 'wikidata', or "
        "'none'.",
    )
    web_search: str = flag("none", "Web search service: 'serper', 'searxng', 'ddgs', or 'none'.")
    searxng_url: str | None = flag(None, "URL of your SearXNG server, for --web_search searxng.")
    browse: str = flag(
        "none", "Reader of web pages: 'fetch' (this machine), 'jina', or 'none' for no such tool."
    )
    browse_allow: str = flag(
        "", "Hosts and networks, comma-separated, that may be fetched although they are not public."
    )
    domain_corpus: str = flag(
        "none", "Second corpus, searched by a tool of its own, such as one never trained with."
    )
    domain_name: str = flag("domain_search", "Name of the tool that searches the second corpus.")
    domain_description: str = flag("", "Description of that tool, which the policy reads.")
    negative_tool: bool = flag(False, "Add a tool that returns nothing relevant.")
    tools: str = flag(
        "",
        "Further tools, comma-separated: the name of a tool or the path of a file that defines "
        "one, then '=' and what it opens, if anything: 'browse=jina,glossary.py=terms.json'.",
    )
    search_top_k: int = flag(3, "Number of passages that a query returns.")
    tool_timeout: float = knob(Toolbox, "timeout")
    tool_retries: int = knob(Patience, "retries")
    tool_concurrency: int = knob(Toolbox, "concurrency")
    tool_cache: str | None = flag(None, "SQLite file in which results of remote tools are cached.")
    tool_cache_days: float = flag(30.0, "Days after which a cached result expires.")
    tool_cache_megabytes: int = flag(4000, "Maximum size of the cache file.")
    contact: str = flag(
        "", "E-mail or URL sent to services in the User-Agent header; Wikidata asks for one."
    )
    cassette: str | None = flag(None, "JSONL file of recorded calls of remote tools.")
    cassette_mode: Literal["replay", "record"] = knob(Cassette, "mode")

    def build_toolbox(
        self,
        names: Mapping[str, str] | None = None,
        condenser: Condenser | None = None,
        needs_tools: bool = True,
    ) -> Toolbox:
        """The tools, ready for calls.

        Args:
            names: by a tool's name, another under which the agent knows it.
            condenser: shortens pages and facts.
            needs_tools: whether to refuse where there would be no tool.

        Raises:
            ConfigError: there would be no tool, a setting has no meaning, or a key or a package is
                missing.
            DataError: a corpus, triples or a cassette cannot be read.
        """
        cache = None
        if self.tool_cache:
            cache = Cache(
                self.tool_cache,
                max_age=self.tool_cache_days * 86_400.0,
                max_bytes=self.tool_cache_megabytes * 1_000_000,
            )
        tools = list(self._tools(names or {}, condenser, cache))
        if needs_tools and not tools:
            raise ConfigError("no tools: give --corpus, --triples, --web_search or --browse")
        return Toolbox(
            tools,
            timeout=self.tool_timeout,
            concurrency=self.tool_concurrency,
            patience=Patience(retries=self.tool_retries),
            cache=cache,
            cassette=Cassette(self.cassette, self.cassette_mode) if self.cassette else None,
        )

    @property
    def given_tools(self) -> list[str]:
        """The names of the flags that add a tool."""
        flags = [flag for flag in _FLAGS.values() if getattr(self, flag) != "none"]
        if self.negative_tool:
            flags.append("negative_tool")
        if self.tools:
            flags.append("tools")
        return flags

    @property
    def opened_tools(self) -> list[str]:
        """The tools that the flags open, by our own names."""
        return list(self._sources())

    def corpus_passages(self) -> Iterator[Evidence]:
        """The passages of the corpus that its index holds.

        Raises:
            ConfigError: the corpus is behind a server, or there is none.
            DataError: it cannot be read.
        """
        match "none" if self.corpus == "none" else kind_of_corpus(self.corpus):
            case "index":  # which holds its passages: the corpus that it was made of may be gone
                return chain.from_iterable(Passages(Path(self.corpus).expanduser()).batches())
            case "corpus":
                # A warning counts the broken rows when the corpus is opened as a tool
                return passages(self.corpus, on_broken=lambda where, why: None)
        raise ConfigError(
            f"the passages of the corpus {self.corpus!r} cannot be read from here; give the corpus"
        )

    def corpus_digest(self) -> str | None:
        """A SHA-256 that changes with the corpus, or with its index; `None` where the corpus is
        behind a server, or there is none.
        """
        match "none" if self.corpus == "none" else kind_of_corpus(self.corpus):
            case "index":
                return read_manifest(Path(self.corpus).expanduser()).plan.key
            case "corpus":
                return digest(self.corpus)
        return None

    def _tools(
        self, names: Mapping[str, str], condenser: Condenser | None, cache: Cache | None
    ) -> Iterator[Tool]:
        """The tools, in the order in which the policy reads of them."""
        setup = Setup(self, condenser=condenser, cache=cache)
        sources = self._sources()
        if self.searxng_url is not None and "web_search" not in sources:
            raise ConfigError("--web_search searxng and --searxng_url go together")
        for tool, source in sources.items():
            if tool == _SECOND:
                name = names.get(self.domain_name, self.domain_name)
                second = replace(setup, name=name, description=self.domain_description)
                yield find("local_search").open(source, second)
            else:
                yield find(tool).open(source, replace(setup, name=names.get(tool, "")))

    def _sources(self) -> dict[str, str]:
        """What each tool opens, in the order in which the policy reads of the tools."""
        sources: dict[str, str] = {}
        for tool, flag_name in _FLAGS.items():
            source = getattr(self, flag_name)
            if source != "none":
                sources[tool] = source
        if self.negative_tool:
            sources["irrelevant"] = ""
        for entry in self.tools.split(","):
            if not entry.strip():
                continue
            tool, equals, source = entry.strip().partition("=")
            if source == "none":
                sources.pop(tool, None)
            elif equals or tool not in sources:
                sources[tool] = source
        return sources
