"""Whatever a user names as a corpus, opened as a search tool."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..wire.http import Http
from .base import Tool
from .local_search import LocalSearch
from .remote_search import RemoteSearch
from .retrieval.engines import TIMEOUT, is_engine, open_engine
from .retrieval.index_folder import MANIFEST, open_folder


def open_search(corpus: str, *, http: Http | None = None, **about: Any) -> Tool:
    """The tool that searches a corpus, wherever it is.

    Args:
        corpus: `"world"`, a `.jsonl[.gz]` or `.parquet` file or a folder of such, a Hub dataset (`owner/name` or
            `owner/name:split`), the folder of an index that `faithful-search index` made, the `http(s)://` URL of a
            retrieval server, or a search engine: `qdrant+http://host:port/collection`, `qdrant+folder/collection`,
            `opensearch+http://host:port/index`.
        http: how a server is asked; an engine is given the same time to answer.
        about: `name`, `description`, `top_k` of the tool.

    Returns:
        A `RemoteSearch` for a retrieval server, else a `LocalSearch`.

    Raises:
        DataError: for a corpus or an index that cannot be read.
        ConfigError: when a package or an encoder is missing, or an engine cannot be reached.
    """
    # the most explicit names first: a folder may be called anything
    if is_server(corpus):
        return RemoteSearch(corpus, **(about | ({"http": http} if http else {})))
    if is_engine(corpus):
        return LocalSearch(open_engine(corpus, http.timeout if http else TIMEOUT), **about)
    if is_index(corpus):
        return LocalSearch(open_folder(corpus), **about)
    return LocalSearch.from_corpus(corpus, **about)


def is_server(corpus: str) -> bool:
    """Whether it names a retrieval server."""
    return corpus.startswith(("http://", "https://"))


def is_index(corpus: str) -> bool:
    """Whether it names the folder of an index."""
    return (Path(corpus).expanduser() / MANIFEST).is_file()
