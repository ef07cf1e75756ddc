"""Search in a corpus: by words (BM25) without network, key or server, or by any other index."""

from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

from ..errors import ConfigError
from ..trajectory import Evidence
from ..wire.http import Http
from .base import Tool
from .batcher import Batcher
from .remote_search import RemoteSearch
from .retrieval.corpus import Corpus
from .retrieval.index import Index
from .retrieval.index_folder import MANIFEST, open_folder, open_index
from .retrieval.opensearch import TIMEOUT, is_engine, open_engine
from .setup import Setup


@dataclass(frozen=True)
class LocalSearch(Tool):
    """Search in the passages of an index; `from_corpus` and `open_search` make one.

    BM25 over up to a hundred thousand passages takes a millisecond a query or less and runs inline;
    with other and larger indexes, queries that arrive together are searched together, on a thread.
    Calls are not cached: a search costs less than a look into the cache.

    Args:
        index: what is searched.
        name, description: see `Tool`.
        top_k: passages that a call returns, at least 1.

    Example:
        >>> import asyncio
        >>> row = {"id": "p1", "title": "Paris", "text": "The capital of France."}
        >>> search = LocalSearch.from_corpus([row])
        >>> [passage.source for passage in asyncio.run(search.local_search("capital of France"))]
        ['p1']
    """

    index: Index
    name: str = "local_search"
    description: str = ""
    top_k: int = 3
    _batcher: Batcher[str, list[Evidence]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.top_k < 1:
            raise ConfigError(f"top_k must be at least 1, got {self.top_k}")
        search_batch = partial(self.index.search_each, top_k=self.top_k)
        object.__setattr__(self, "_batcher", Batcher(search_batch))

    @classmethod
    def open(cls, source: str, setup: Setup) -> Tool:
        if not source:
            raise ConfigError("local_search needs a corpus: --corpus, or --tools local_search=FILE")
        return open_search(source, http=setup.http(), **setup.about)

    @classmethod
    def from_corpus(cls, corpus: Corpus, **fields: Any) -> "LocalSearch":
        """Index `corpus` by BM25, or reopen its cached index. The cache is in
        `FAITHFUL_SEARCH_CACHE`, by default `~/.cache/faithful_search`.

        Args:
            corpus: `"world"`, a `.jsonl[.gz]` or `.parquet` file, a folder of such, a Hub dataset
                (`owner/name[:split]`), or rows `id`, `title`, `text`.
            fields: `name`, `description`, `top_k`.

        Rows that cannot be read are left out, as `faithful-search index` leaves them out; a warning
        in the log counts them.

        Raises:
            DataError: the corpus cannot be read, or has no passage.
        """
        return cls(open_index(corpus), **fields)

    async def local_search(self, query: str) -> list[Evidence]:
        """Search a local collection of documents and return the passages that match best.

        Args:
            query: The words to search for.
        """
        # A thread would cost more than such a search.
        if self.index.quick:
            return self.index.search(query, self.top_k)
        return await self._batcher.ask(query)


def open_search(
    corpus: str, *, http: Http | None = None, **fields: Any
) -> LocalSearch | RemoteSearch:
    """The tool that searches a corpus, wherever it is.

    Args:
        corpus: a file, folder or dataset as of `LocalSearch.from_corpus`, the folder of an index
            that `faithful-search index` made, the `http(s)://` URL of a retrieval server, or a
            search engine, `opensearch+http://host:port/index`.
        http: how a server is asked; an engine is given the same time to answer.
        fields: `name`, `description`, `top_k` of the tool.

    Raises:
        DataError: a corpus or an index cannot be read.
        ConfigError: a package or an encoder is missing, or the engine cannot be reached.
    """
    match kind_of_corpus(corpus):
        case "server":
            if http is not None:
                fields["http"] = http
            return RemoteSearch(corpus, **fields)
        case "engine":
            return LocalSearch(open_engine(corpus, http.timeout if http else TIMEOUT), **fields)
        case "index":
            return LocalSearch(open_folder(corpus), **fields)
    return LocalSearch.from_corpus(corpus, **fields)


def kind_of_corpus(corpus: str) -> Literal["server", "engine", "index", "corpus"]:
    """Whether the name of a corpus is that of a retrieval server, of a search engine, of the folder
    of an index, or of the corpus itself.
    """
    # Addresses first: a folder may be called anything.
    if corpus.startswith(("http://", "https://")):
        return "server"
    if is_engine(corpus):
        return "engine"
    return "index" if (Path(corpus).expanduser() / MANIFEST).is_file() else "corpus"
