"""The BM25 index of a corpus, kept in a cache folder under what its content is."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from ...errors import DataError
from .corpus import Corpus, digest, readable_twice
from .index import Index
from .index_folder import VERSION, Plan, fill, open_folder


def open_index(corpus: Corpus, cache_dir: str | os.PathLike[str] | None = None) -> Index:
    """The BM25 index of a corpus, from the cache when its content was indexed before.

    It is strict: a corpus with a broken row is refused. `index_folder.build_folder` leaves such rows out and says so.

    Args:
        corpus: see `corpus.Corpus`.
        cache_dir: where indexes are kept; by default `FAITHFUL_SEARCH_CACHE` or `~/.cache/faithful_search`.

    Raises:
        DataError: an unreadable file, a row without text, no rows at all, or a cache folder that cannot be written.
    """
    corpus = readable_twice(corpus)
    plan = Plan("bm25", digest(corpus))
    folder = _cache_root(cache_dir) / "bm25" / f"{plan.digest[:32]}-{VERSION}"
    try:
        return open_folder(folder)
    except DataError:  # none yet, or a damaged one
        pass
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        _publish(corpus, plan, folder)
    except OSError as error:
        raise DataError(f"cannot write {folder}: {error}; name another place in FAITHFUL_SEARCH_CACHE") from error
    return open_folder(folder)


def _publish(corpus: Corpus, plan: Plan, folder: Path) -> None:
    """Build beside `folder` and move it there whole: nobody ever sees half an index."""
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".building-") as work:
        build = Path(work) / "index"
        build.mkdir()
        fill(build, corpus, plan)
        if folder.exists():
            folder.rename(Path(work) / "damaged")
        try:
            build.rename(folder)
        except OSError:
            if not folder.exists():  # else another process was first, with the same content
                raise


def _cache_root(cache_dir: str | os.PathLike[str] | None) -> Path:
    return Path(cache_dir or os.environ.get("FAITHFUL_SEARCH_CACHE") or Path.home() / ".cache" / "faithful_search")
