"""Download published question sets to files with our own columns, and keep a lock file that says
what each of them holds.

    data/hotpotqa.dev.jsonl.gz     every question of a split
    data/hotpotqa.dev.512-seed0.jsonl.gz   a draw of them, which is never taken for the whole
    data/sources.json              for each file: where it is from, its revision, rows, SHA-256

The first download of a repository resolves its newest revision, and later ones take the same.
"""

import gzip
import json
import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import date
from pathlib import Path
from typing import Any

import msgspec

from .. import loose_json
from ..errors import DataError, needs, reason_of
from ..json_lines import read_lines, read_rows
from ..wire.files import alone_in, replacing, sha256_of
from .drawing import drawn
from .published import PublishedSet, published
from .published_rows import NotText, Row, contexts

LOCK = "sources.json"
DATA_FOLDER = "FAITHFUL_SEARCH_DATA"
"""The environment variable that names the folder of data sets; without it, it is `data`."""
_COMMIT = re.compile(r"[0-9a-f]{40}")
_log = logging.getLogger(__name__)
OnBroken = Callable[[str, str], object]
"""Told of a row that could not be read: which one, and why."""


class Source(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a file of the data folder holds, and where it is from.

    `left_out` counts questions that need more than text, `broken` rows that could not be read.
    """

    name: str
    split: str
    repository: str
    revision: str
    rows: int
    sha256: str
    licence: str
    date: str
    configuration: str | None = None
    left_out: dict[str, int] = {}
    broken: int = 0
    limit: int | None = None
    seed: int | None = None


def data_folder() -> Path:
    """The folder of the data sets that `faithful-search data` wrote."""
    return Path(os.environ.get(DATA_FOLDER) or "data")


def file_name(name: str, split: str, limit: int | None = None, seed: int | None = None) -> str:
    """What the file of a split, or of a draw from it, is called.

    Example:
        >>> file_name("nq", "test"), file_name("nq", "test", 512, 0)
        ('nq.test.jsonl.gz', 'nq.test.512-seed0.jsonl.gz')
    """
    if limit is None:
        return f"{name}.{split}.jsonl.gz"
    part = f"first{limit}" if seed is None else f"{limit}-seed{seed}"
    return f"{name}.{split}.{part}.jsonl.gz"


def download(
    name: str,
    split: str | None,
    folder: Path,
    *,
    limit: int | None = None,
    seed: int | None = None,
    revision: str | None = None,
    on_broken: OnBroken = lambda where, why: None,
) -> tuple[Path, Source, bool]:
    """Write a split, or a draw from it, to a file in `folder`, unless it is there already.

    Args:
        name, split: see `published`; without a split the one that papers evaluate on.
        limit, seed: as in `load_tasks`.
        revision: of the repository, a commit, tag or branch. Without it, the one of the lock, else
            the newest.

    Returns the file, what the lock says of it, and whether it was written now. Raises `DataError`
    for what cannot be downloaded, and for a file that is there and not as it was downloaded.
    """
    entry = published(name)
    split = split or entry.evaluated
    entry.split(split)  # raises for a split that the set has not
    path = folder / file_name(name, split, limit, seed)
    lock = read_lock(folder)
    locked = lock.get(path.name)
    if path.exists() and (locked is None or sha256_of(path) != locked.sha256):
        raise DataError(
            f"{path} is not as it was downloaded, if it was: move it elsewhere, or delete it and "
            "run the same command again"
        )
    if revision is not None:
        revision = commit_of(entry, revision)
    is_wanted_revision = locked is not None and revision in (None, locked.revision)
    if locked is not None and path.exists() and is_wanted_revision:
        return path, locked, False
    revision = revision or locked_revision(lock, entry) or commit_of(entry)
    left_out: dict[str, int] = {}
    broken = 0

    def report(where: str, why: str) -> None:
        nonlocal broken
        broken += 1
        on_broken(where, why)

    rows = drawn(questions(entry, split, revision, report, left_out), limit, seed)
    if not rows:
        raise DataError(f"{name}, {split}: no questions in it; {broken:,} rows could not be read")
    folder.mkdir(parents=True, exist_ok=True)
    write_rows(path, rows)
    source = Source(
        name=name,
        split=split,
        repository=entry.files.get(split, entry.repository),
        configuration=entry.configuration,
        revision=revision,
        rows=len(rows),
        left_out=left_out,
        broken=broken,
        limit=limit,
        seed=seed,
        sha256=sha256_of(path),
        licence=entry.licence,
        date=date.today().isoformat(),
    )
    _lock_in(folder, path.name, source)
    return path, source, True


def questions(
    entry: PublishedSet,
    split: str,
    revision: str | None,
    on_broken: OnBroken,
    left_out: dict[str, int] | None = None,
) -> Iterator[Row]:
    """The questions of a split with our columns, `data_source` naming the set. `left_out` counts,
    by what they need, those that need more than text.
    """
    for number, row in _published_rows(entry, split, revision, on_broken):
        try:
            ours = entry.reader(row)
        except NotText as needed:
            if left_out is not None:
                left_out[str(needed)] = left_out.get(str(needed), 0) + 1
        except (DataError, KeyError, TypeError, ValueError, AttributeError) as error:
            # a row may have any shape, and one broken row must not cost the others
            on_broken(f"{entry.name} {split}, row {number}", f"{error}")
        else:
            yield {"id": str(number), **ours, "data_source": entry.name}


def passages(
    entry: PublishedSet, split: str, revision: str | None, on_broken: OnBroken
) -> Iterator[Row]:
    """The passages that come with a set's questions, each once, as the rows of a corpus. Raises
    `DataError` for a set without any.
    """
    seen: set[tuple[str, str]] = set()
    if entry.passages:
        # The split of this name is that of rag-mini-bioasq, so far the only such set
        settings = {"name": entry.passages, "split": "passages", "revision": revision}
        rows: Iterable[tuple[int, Mapping[str, Any]]] = enumerate(_dataset(entry, settings))
    else:
        rows = _published_rows(entry, split, revision, on_broken)
    for _, row in rows:
        for passage in contexts(row):
            key = (passage["title"], passage["text"])
            if key in seen or not passage["text"]:
                continue
            seen.add(key)
            numbered = {"id": f"{entry.name}-{len(seen)}"}
            yield numbered | passage  # a passage's own id, if it has one, replaces the number
    if not seen:
        raise DataError(f"{entry.name} has no passages beside its questions")


def load(name: str, split: str) -> Iterable[Row]:
    """The questions of a split: from the file that `download` wrote to the folder of data, or from
    where it is published, at the locked revision if there is one.
    """
    entry = published(name)
    folder = data_folder()
    entry.split(split)  # raises for a split that the set has not
    path = folder / file_name(name, split)
    if path.exists():
        return read_rows(path)

    def refuse(where: str, why: str) -> None:
        raise DataError(
            f"{where}: {why}. To leave such rows out: faithful-search data {name} --split {split}"
        )

    return _questions_with_log(entry, split, locked_revision(read_lock(folder), entry), refuse)


def _questions_with_log(
    entry: PublishedSet, split: str, revision: str | None, on_broken: OnBroken
) -> Iterator[Row]:
    """The questions; when all are read, a warning is logged of those that were left out."""
    left_out: dict[str, int] = {}
    yield from questions(entry, split, revision, on_broken, left_out)
    for need, count in left_out.items():
        _log.warning("%s, %s: left out, since they need %s: %d", entry.name, split, need, count)


def read_lock(folder: Path) -> dict[str, Source]:
    """What the lock of a folder says of each of its files."""
    path = folder / LOCK
    if not path.exists():
        return {}
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Source])
    except (OSError, msgspec.DecodeError) as error:
        raise DataError(f"cannot read {path}: {reason_of(error)}") from error


def locked_revision(lock: Mapping[str, Source], entry: PublishedSet) -> str | None:
    """The revision at which something of the same repository was downloaded before; `None` where
    nothing was, or where the set is in no repository.
    """
    if entry.files:
        return None
    for source in lock.values():
        if source.repository == entry.repository:
            return source.revision
    return None


def commit_of(entry: PublishedSet, revision: str | None = None) -> str:
    """The commit that a revision of the repository is at, by default `main`; of a file that is no
    repository's, "none".
    """
    if entry.files:
        return "none"
    if revision is not None and _COMMIT.fullmatch(revision):
        return revision
    from huggingface_hub import HfApi

    try:
        return str(HfApi().dataset_info(entry.repository, revision=revision).sha)
    except Exception as error:  # the Hub's failures are of many unrelated types
        raise _unreachable(entry, error) from error


def write_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> int:
    """Write rows as gzipped JSON lines, and return how many there were. An old file is replaced
    only when all rows are written. The same rows give the same bytes.
    """
    count = 0
    with (
        replacing(path) as beside,
        beside.open("wb") as raw,
        gzip.GzipFile(filename="", fileobj=raw, mode="wb", mtime=0) as file,
    ):
        for row in rows:
            line = json.dumps(row, ensure_ascii=False)
            file.write(line.encode("utf-8", "replace") + b"\n")  # half of a surrogate pair: "?"
            count += 1
    return count


def _published_rows(
    entry: PublishedSet, split: str, revision: str | None, on_broken: OnBroken
) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """The rows as published, each with its number, from 0."""
    if entry.is_file:
        yield from _rows_of_file(entry, split, revision, on_broken)
        return
    settings: dict[str, Any] = {"split": entry.split(split)}
    if entry.files:
        settings["data_files"] = entry.files[split]
    else:
        settings |= {"name": entry.configuration, "revision": revision}
    yield from enumerate(_dataset(entry, settings))


def _rows_of_file(
    entry: PublishedSet, split: str, revision: str | None, on_broken: OnBroken
) -> Iterator[tuple[int, Mapping[str, Any]]]:
    from huggingface_hub import hf_hub_download

    try:
        file = hf_hub_download(
            entry.repository, entry.split(split), repo_type="dataset", revision=revision
        )
    except Exception as error:  # the Hub's failures are of many unrelated types
        raise _unreachable(entry, error) from error
    path = Path(file)
    if path.suffix == ".json":
        listed = loose_json.decode(path.read_bytes())
        if not isinstance(listed, list):
            raise DataError(f"{path}: expected a list of rows")
        yield from enumerate(listed)
        return
    for line_number, line in read_lines(path):
        number = line_number - 1  # rows count from 0, lines from 1
        try:
            row = loose_json.decode(line)
        except DataError as error:
            on_broken(f"{entry.name} {split}, row {number}", f"not JSON ({error})")
            continue
        yield number, row


def _dataset(entry: PublishedSet, settings: Mapping[str, Any]) -> Any:
    with needs(f"{entry.name}, which is read by datasets,", "train"):
        from datasets import Image, load_dataset
    try:
        dataset = load_dataset(entry.repository, **settings)
    except Exception as error:  # the Hub's failures are of many unrelated types
        raise _unreachable(entry, error) from error
    for name, feature in dataset.features.items():
        if isinstance(feature, Image):  # whether there is one matters, not what it shows
            dataset = dataset.cast_column(name, Image(decode=False))
    return dataset


def _unreachable(entry: PublishedSet, error: Exception) -> DataError:
    import httpx2
    from huggingface_hub import errors

    no_network = (ConnectionError, httpx2.TransportError, errors.LocalEntryNotFoundError)
    if isinstance(error, no_network):
        why = "the Hub cannot be reached: is there a network, and is HF_HUB_OFFLINE unset?"
    else:
        why = " ".join(str(error).split()).rstrip(".")
        if entry.access:
            why = f"{why}. First {entry.access}"
    return DataError(f"cannot download {entry.name} from {entry.repository}: {why}")


def _lock_in(folder: Path, file: str, source: Source) -> None:
    """Write what a file holds into the lock of the folder. Another download that ends at the same
    time waits, so that neither loses the other's entry.
    """
    with alone_in(folder.absolute()):
        sources = read_lock(folder) | {file: source}
        content = msgspec.json.encode(dict(sorted(sources.items())))
        with replacing(folder / LOCK) as beside:
            beside.write_bytes(msgspec.json.format(content) + b"\n")
