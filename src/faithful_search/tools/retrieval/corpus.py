"""Corpora of any of the known kinds as a stream of passages, never all in memory."""

import hashlib
import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from ... import loose_json
from ...bundled import world_file
from ...errors import ConfigError, DataError, needs, reason_of
from ...json_lines import read_lines
from ...trajectory import Evidence
from ..words import paragraphs

_log = logging.getLogger(__name__)
Corpus = str | os.PathLike[str] | Iterable[Mapping[str, Any]]
"""`"world"`; a `.jsonl`, `.jsonl.gz` or `.parquet` file, or a folder of such; a Hub dataset,
`owner/name` or `owner/name:split`; or rows. A row has `text` and may have `id`, `title` and `url`;
or, as Search-R1's, `contents`: the title's line, then the text.
"""

# The columns that may hold a passage's text, and its id; the first of those that are there counts.
TEXTS = ("text", "contents")
IDS = ("id", "_id", "docid")
LONGEST_TITLE = 300
"""A longer first line without quotation marks is not taken for a title."""
_COLUMNS = (*TEXTS, *IDS, "title", "url")
_SUFFIXES = (".jsonl", ".jsonl.gz", ".parquet")
# owner/name or owner/name:split
_DATASET = re.compile(r"\A[\w.-]++/[\w.-]++(?::[\w.+%\[\]-]++)?+\Z")


OnBroken = Callable[[str, str], object]
"""Called for a row without a passage in it, with where it is (file and number from 1), and why."""


def refuse(where: str, why: str) -> None:
    """The default for a broken row: raises `DataError`."""
    raise DataError(f"{where}: {why}")


def passages(
    corpus: Corpus, *, paragraph_characters: int | None = None, on_broken: OnBroken = refuse
) -> Iterator[Evidence]:
    """Yield the passages of a corpus: `text`, `title`, the corpus's id as `source` (else the row's
    number), and `url`.

    Args:
        paragraph_characters: a longer text is cut into paragraphs of at most so many characters,
            the first under the row's id, the others under `id#2`, `id#3`, …, all with its title; by
            default rows stay whole.
        on_broken: called for each row that cannot be read, which is then left out.

    Raises:
        DataError: the corpus cannot be read, or has no passage in it.
        ConfigError: a package is missing.

    Example:
        >>> rows = [{"contents": '"Paris"\\nThe capital of France.'}]
        >>> [passage.title for passage in passages(rows)]
        ['Paris']
    """
    first_broken = ""
    any_passages = False
    for number, (where, row) in enumerate(_rows(corpus), start=1):
        try:
            passage = _passage(row, number)
        except ValueError as error:
            if not first_broken:
                first_broken = f"; the first row left out: {where}: {error}"
            on_broken(where, str(error))
            continue
        any_passages = True
        if paragraph_characters is None or len(passage.text) <= paragraph_characters:
            yield passage
            continue
        for part, text in enumerate(paragraphs(passage.text, paragraph_characters), start=1):
            # The first keeps the row's id, by which questions name their evidence.
            source = passage.source if part == 1 else f"{passage.source}#{part}"
            yield msgspec.structs.replace(passage, text=text, source=source)
    if not any_passages:
        raise DataError(f"{called(corpus)}: no passages in it{first_broken}")


def readable_passages(corpus: Corpus) -> Iterator[Evidence]:
    """The passages of a corpus without its broken rows; a warning in the log counts these."""
    broken: list[str] = []
    yield from passages(corpus, on_broken=lambda where, why: broken.append(f"{where}: {why}"))
    if broken:
        warn_of_broken(corpus, len(broken), broken[0])


def warn_of_broken(corpus: Corpus, count: int, first: str) -> None:
    """Log how many rows of a corpus are left out, and which is the first."""
    _log.warning(
        "%s: %d of its rows are left out, since they cannot be read; the first is %s",
        called(corpus),
        count,
        first,
    )


def readable_twice(corpus: Corpus) -> Corpus:
    """The corpus; rows from an iterator become a list, since a digest and an index each read it."""
    return corpus if isinstance(corpus, (str, os.PathLike)) else list(corpus)


def called(corpus: Corpus) -> str:
    """What the corpus is called in a message and in a manifest."""
    return str(corpus) if isinstance(corpus, (str, os.PathLike)) else "corpus"


def digest(corpus: Corpus) -> str:
    """SHA-256 of a corpus's files or rows, in hex.

    Of a Hub dataset it is that of its fingerprint, which changes with its files and revision; its
    name does not.
    """
    sha = hashlib.sha256()
    if not isinstance(corpus, (str, os.PathLike)):
        for row in corpus:
            sha.update(repr(row).encode("utf-8", "surrogatepass") + b"\n")
        return sha.hexdigest()
    files = _files(corpus)
    if files is None:
        sha.update(str(_dataset(str(corpus))._fingerprint).encode())
        return sha.hexdigest()
    for path in files:
        try:
            with path.open("rb") as file:
                sha.update(hashlib.file_digest(file, "sha256").digest())
        except OSError as error:
            raise DataError(f"cannot read {path}: {reason_of(error)}") from error
    return sha.hexdigest()


def join_contents(title: str, text: str) -> str:
    r"""The passage as the Search-R1 family stores and sends it: its quoted title, on one line,
    before the text.

    Example:
        >>> join_contents("Paris\n(city)", "The capital of France.")
        '"Paris (city)"\nThe capital of France.'
    """
    return f'"{" ".join(title.split())}"\n{text}'


def split_contents(contents: str) -> tuple[str, str]:
    r"""Title and text of such a passage; the title may be unquoted, and a text of one line has
    none.

    Example:
        >>> split_contents('"Paris"\nThe capital of France.'), split_contents("Only a text.")
        (('Paris', 'The capital of France.'), ('', 'Only a text.'))
    """
    first_line, line_break, body = contents.partition("\n")
    if not line_break:
        return "", contents
    title = first_line.strip()
    if len(title) >= 2 and title[0] == title[-1] == '"':
        return title[1:-1], body
    if len(title) <= LONGEST_TITLE:
        return title, body
    return "", contents


def _passage(row: Any, number: int) -> Evidence:
    """The passage of a row, or of a line of JSON.

    Args:
        number: that of the row, which is the passage's id where the row has none.

    Raises:
        ValueError: says why there is no passage.
    """
    if isinstance(row, bytes):
        try:
            row = loose_json.decode(row, halves=True)  # lone surrogates are refused below
        except DataError as error:
            raise ValueError(f"not JSON ({error})") from error
    if not isinstance(row, Mapping):
        raise ValueError(f"expected an object with 'text'; it is {type(row).__name__}")

    text = row.get("text")
    title = _first_value(row, ["title"])
    if not isinstance(text, str) and isinstance(row.get("contents"), str):
        first_line, text = split_contents(row["contents"])
        # Beside a column `title`, a first line that does not repeat it belongs to the text.
        if title and title != first_line:
            text = row["contents"]
        title = title or first_line
    if not isinstance(text, str):
        raise ValueError(
            f"no column 'text' with a string; it has: {', '.join(map(str, row)) or 'nothing'}"
        )
    if not text.strip():
        raise ValueError("its text is empty")
    passage = Evidence(
        text=text,
        title=title,
        source=_first_value(row, IDS) or str(number),
        url=_first_value(row, ["url"]),
    )
    # What cannot be encoded can neither be stored nor be shown to a tokenizer.
    try:
        msgspec.json.encode(passage)
    except UnicodeEncodeError as error:
        raise ValueError(f"not valid Unicode ({error.reason})") from error
    return passage


def _first_value(row: Mapping[str, Any], columns: Iterable[str]) -> str:
    """The value of the first of these columns that has one; empty where none has."""
    for name in columns:
        if row.get(name) is not None:
            return str(row[name])
    return ""


def _rows(corpus: Corpus) -> Iterator[tuple[str, Any]]:
    """Where each row is, and the row: a mapping, or a line of JSON as it is written."""
    if not isinstance(corpus, (str, os.PathLike)):
        yield from _numbered("corpus, row", enumerate(corpus, start=1))
        return
    files = _files(corpus)
    if files is None:
        dataset = _dataset(str(corpus))
        columns = dataset.select_columns(_columns_to_read(corpus, dataset.column_names))
        yield from _numbered(f"{corpus}, row", enumerate(columns, start=1))
        return
    for path in files:
        if path.suffix == ".parquet":
            yield from _numbered(f"{path}, row", enumerate(_parquet_rows(path), start=1))
        else:
            yield from _numbered(f"{path}, line", read_lines(path))


def _numbered(source: str, rows: Iterable[tuple[int, Any]]) -> Iterator[tuple[str, Any]]:
    """Numbered rows, each with its number behind the name of its source."""
    for number, row in rows:
        yield f"{source} {number}", row


def _parquet_rows(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of a Parquet file, read batch by batch."""
    with needs(str(path), "parquet"):
        import pyarrow
        from pyarrow import parquet
    try:
        with parquet.ParquetFile(path) as file:
            columns = _columns_to_read(path, file.schema_arrow.names)
            for batch in file.iter_batches(columns=columns):
                yield from batch.to_pylist()
    except (OSError, pyarrow.ArrowException) as error:
        raise DataError(f"cannot read {path}: {reason_of(error)}") from error


def _columns_to_read(where: object, columns: list[str]) -> list[str]:
    """Those of the columns that passages are made of; `DataError` where none holds a text."""
    if not any(name in columns for name in TEXTS):
        raise DataError(
            f"{where}: no column 'text' (or 'contents'); it has: {', '.join(columns) or 'nothing'}"
        )
    return [name for name in _COLUMNS if name in columns]


def _files(corpus: str | os.PathLike[str]) -> list[Path] | None:
    """The files of a corpus on this machine; `None` for the name of a dataset."""
    if str(corpus) == "world":
        return [world_file("passages.jsonl.gz")]
    path = Path(corpus).expanduser()
    if path.is_dir():
        # Sorted, since a passage without an id is known by the number of its row.
        inside = sorted(path.rglob("*"))
        files = [file for file in inside if file.name.endswith(_SUFFIXES) and file.is_file()]
        if not files:
            raise DataError(f"{path}: no {', '.join(_SUFFIXES[:-1])} or {_SUFFIXES[-1]} file in it")
        return files
    if path.name.endswith(_SUFFIXES):
        return [path]
    if path.exists():
        raise DataError(f"{path}: expected a {', '.join(_SUFFIXES)} file or a folder of such")
    return None


def _dataset(name: str) -> Any:
    """A Hub dataset's split, mapped from the copy that `datasets` keeps on disk."""
    if not _DATASET.match(name):
        raise DataError(f"cannot read {name}: there is no such file or folder")
    try:
        from datasets import load_dataset
    except ImportError as error:
        raise ConfigError(
            f"{name!r} is no file or folder here; to look for such a dataset on the Hub takes the "
            "package datasets: pip install 'faithful-search[train]'"
        ) from error
    repository, _, split = name.partition(":")
    try:
        return load_dataset(repository, split=split or "train")
    except Exception as error:  # the Hub's failures are of many unrelated types
        raise DataError(
            f"{name!r} is no file or folder here, nor a dataset that could be loaded: {error}"
        ) from error
