"""The flags that say which tools there are, for recipes and commands alike."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from ..errors import ConfigError
from ..flags import flag
from ..trajectory import Evidence
from ..wire.cache import Cache
from ..wire.guard import Guard
from ..wire.http import AGENT, Http
from ..wire.retry import Patience
from .base import Condenser, Tool
from .browse import Browse, Fetch, Jina
from .cassette import Cassette
from .irrelevant import Irrelevant
from .knowledge_graph import KnowledgeGraph
from .local_search import kind_of_corpus, open_search
from .retrieval.corpus import digest, passages
from .retrieval.index import Passages
from .retrieval.index_folder import read_manifest
from .toolbox import Toolbox
from .web import providers
from .web_search import WebSearch
from .wikidata import Wikidata

_SOURCES = ("web_search", "browse", "corpus", "triples", "domain_corpus")
_SHARE = 0.85
"""Of a call's time that its requests get: what is left is for telling the policy what went wrong."""


@dataclass
class ToolArguments:
    """Which tools the agent has, and how patient they are. Keys are read from the environment."""

    corpus: str = flag(
        "world",
        "of local_search: 'world', a file, an index folder, a Hub dataset, the http:// URL of a retrieval "
        "server, a qdrant+ or opensearch+ URL of a search engine, or 'none'",
    )
    triples: str = flag(
        "world", "of knowledge_graph: 'world', a .jsonl, .nt or .ttl file, 'wikidata', or 'none'"
    )
    web_search: str = flag("none", "'serper', 'searxng', 'ddgs', or 'none'")
    searxng_url: str | None = flag(None, "your SearXNG server, for --web_search searxng")
    browse: str = flag("none", "who reads pages: 'fetch' (this machine), 'jina', or 'none'")
    browse_allow: str = flag(
        "", "hosts and networks, comma-separated, that may be fetched though not public"
    )
    domain_corpus: str = flag(
        "none", "a second corpus as a tool of its own, such as one never trained with"
    )
    domain_name: str = flag("domain_search", "what the policy calls that tool")
    domain_description: str = flag("", "what the policy is told about that tool")
    negative_tool: bool = flag(False, "add the deliberately irrelevant tool")
    search_top_k: int = flag(3, "pieces of evidence a query returns")
    tool_timeout: float = flag(30.0, "seconds a call may take, repetitions included")
    tool_retries: int = flag(2, "repetitions of a call that failed for the moment")
    tool_concurrency: int = flag(64, "calls at once, of all tools")
    tool_cache: str | None = flag(None, "SQLite file that keeps results of remote tools")
    tool_cache_days: float = flag(30.0, "age at which a kept result counts no more")
    tool_cache_megabytes: int = flag(4000, "within which that file is kept")
    contact: str = flag(
        "", "where services may write to about requests, told them: Wikidata asks for it"
    )
    cassette: str | None = flag(None, "JSONL file of recorded calls of remote tools")
    cassette_mode: str = flag("replay", "'replay' asks no service; 'record' adds to the file")

    def build_toolbox(
        self, names: Mapping[str, str] | None = None, condenser: Condenser | None = None
    ) -> Toolbox:
        """The tools, ready for calls: under `names` of the agent's own, with a `condenser` that shortens pages and
        facts. Raises `ConfigError` when there would be no tool, for a setting without meaning, a missing key or
        package, and `DataError` for a corpus, triples or a cassette that cannot be read."""
        cache = None
        if self.tool_cache:
            age, size = self.tool_cache_days * 86_400.0, self.tool_cache_megabytes * 1_000_000
            cache = Cache(self.tool_cache, max_age=age, max_bytes=size)
        tools = list(self._tools(names or {}, condenser, cache))
        if not tools:
            raise ConfigError(
                "no tools: give --corpus, --triples, --web_search, --browse or --negative_tool"
            )
        return Toolbox(
            tools,
            timeout=self.tool_timeout,
            concurrency=self.tool_concurrency,
            patience=Patience(retries=self.tool_retries),
            cache=cache,
            cassette=Cassette(self.cassette, self.cassette_mode) if self.cassette else None,  # type: ignore[arg-type]
        )

    @property
    def given_tools(self) -> list[str]:
        """The flags that give a tool."""
        given = [name for name in _SOURCES if getattr(self, name) != "none"]
        return [*given, "negative_tool"] if self.negative_tool else given

    def corpus_passages(self) -> Iterator[Evidence]:
        """The passages of the corpus. Raises `ConfigError` when it is a server's, or there is none, and `DataError`
        when it cannot be read."""
        match "none" if self.corpus == "none" else kind_of_corpus(self.corpus):
            case "index":  # holds its passages: the corpus it was made of may be gone
                return chain.from_iterable(Passages(Path(self.corpus).expanduser()).batches())
            case "corpus":
                return passages(self.corpus)
        raise ConfigError(
            f"the passages of the corpus {self.corpus!r} cannot be read from here; give the corpus"
        )

    def corpus_digest(self) -> str | None:
        """SHA-256 that changes with the corpus, or with the index of one; `None` for a server's, or none."""
        match "none" if self.corpus == "none" else kind_of_corpus(self.corpus):
            case "index":
                return read_manifest(Path(self.corpus).expanduser()).plan.key
            case "corpus":
                return digest(self.corpus)
        return None

    def _tools(
        self, names: Mapping[str, str], condenser: Condenser | None, cache: Cache | None
    ) -> Iterator[Tool]:
        def named(name: str) -> dict[str, Any]:
            return {"name": names.get(name, name), "top_k": self.search_top_k}

        if (self.web_search == "searxng") != (self.searxng_url is not None):
            raise ConfigError("--web_search searxng and --searxng_url go together")
        for name, known in (("web_search", providers.names()), ("browse", ["fetch", "jina"])):
            if (given := getattr(self, name)) not in (*known, "none"):
                raise ConfigError(f"unknown {name} {given!r}; there are: {', '.join(known)}, none")
        if self.web_search != "none":
            # the package behind ddgs brings its own client
            service: dict[str, Any] = {} if self.web_search == "ddgs" else {"http": self._http()}
            if self.searxng_url is not None:
                service["url"] = self.searxng_url
            yield WebSearch(providers.load(self.web_search)(**service), **named("web_search"))
        if self.browse != "none":
            # agents choose what is read: what is not public is refused here, also where another machine would fetch it
            guard = Guard(
                tuple(filter(None, (entry.strip() for entry in self.browse_allow.split(","))))
            )
            fetches = self.browse == "fetch"
            reader = (
                Fetch(self._http(guard=guard)) if fetches else Jina(guard=guard, http=self._http())
            )
            how: dict[str, Any] = {"cache": cache, "condenser": condenser, **named("browse")}
            yield Browse(reader, timeout=_SHARE * self.tool_timeout, **how)
        if self.corpus != "none":
            yield open_search(self.corpus, http=self._http(), **named("local_search"))
        if self.triples == "wikidata":
            # an entity with many statements takes some megabytes
            http = self._http(max_bytes=20_000_000)
            yield Wikidata(condenser=condenser, http=http, **named("knowledge_graph"))
        elif self.triples != "none":
            yield KnowledgeGraph.from_triples(
                self.triples, condenser=condenser, **named("knowledge_graph")
            )
        if self.domain_corpus != "none":
            about = named(self.domain_name)
            yield open_search(
                self.domain_corpus, description=self.domain_description, http=self._http(), **about
            )
        if self.negative_tool:
            yield Irrelevant(top_k=self.search_top_k)

    def _http(self, **how: Any) -> Http:
        """One client for each service, which gives up before the toolbox does: then the policy reads why."""
        agent = f"{AGENT} ({self.contact})" if self.contact else AGENT
        patience = Patience(retries=self.tool_retries)
        return Http(timeout=_SHARE * self.tool_timeout, patience=patience, user_agent=agent, **how)
