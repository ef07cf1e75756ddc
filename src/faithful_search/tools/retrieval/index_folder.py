"""The folder of an index: built in steps that survive a kill, published whole, opened by what its
manifest says.

    manifest.json      what it holds and what it was made of
    passages.jsonl     the passages in corpus order (passages.offsets: where each begins)
    skipped.jsonl      the rows left out, and why
    bm25/  dense/      what each way to search needs besides

A build works in a folder beside it, named after its plan and renamed at the end. Killed, it goes on
with the first step that was not finished, and with vectors in the middle of theirs.
"""

import glob
import hashlib
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import msgspec

from ...errors import ConfigError, DataError
from ...trajectory import Evidence
from ...wire.cache import key_of
from ...wire.files import alone_in
from .bm25 import BM25Index
from .corpus import Corpus, OnBroken, called, digest, passages, readable_twice, refuse
from .dense import DenseIndex
from .index import OFFSETS, HybridIndex, Index, Passages, damaged, store, write_whole

Kind = Literal["bm25", "dense", "hybrid"]
VERSION = 3
_log = logging.getLogger(__name__)
MANIFEST, SKIPPED = "manifest.json", "skipped.jsonl"
_QUICK = 1_000_000_000
"""Bytes of an index whose checksums are compared whenever it is opened: about a second."""


class IndexPlan(msgspec.Struct, frozen=True):
    """What an index is made of: two builds of the same plan give the same index. `digest` is the
    corpus's, `dense` what `DenseIndex.build` is told of the encoder and its vectors: `model`,
    `revision`, `hnsw`, `precision`.
    """

    kind: Kind
    digest: str
    paragraph_characters: int | None = None
    limit: int | None = None
    dense: dict[str, Any] | None = None

    @property
    def key(self) -> str:
        return key_of(version=VERSION, plan=msgspec.to_builtins(self))


class IndexManifest(msgspec.Struct, frozen=True, tag_field="version", tag=VERSION):
    """What the folder holds: how many passages, how many rows left out, the sizes of its files and
    their SHA-256.
    """

    plan: IndexPlan
    corpus: str
    passages: int
    skipped: int
    files: dict[str, tuple[int, str]]

    @property
    def bytes(self) -> int:
        """What the folder takes on disk."""
        return sum(size for size, _ in self.files.values())


def build_folder(
    corpus: Corpus,
    out: str | os.PathLike[str],
    *,
    kind: Kind = "bm25",
    dense: Mapping[str, Any] | None = None,
    knobs: Mapping[str, Any] | None = None,
    paragraph_characters: int | None = None,
    limit: int | None = None,
    overwrite: bool = False,
    on_broken: OnBroken = refuse,
) -> IndexManifest:
    """Make the index of a corpus in `out`; where an earlier call was killed, go on where it was.

    Args:
        corpus, paragraph_characters, on_broken: see `corpus.passages`. `on_broken` does not hear of
        rows that an
            earlier call had read.
        out: a new or empty folder; one with the very same index is left as it is.
        kind: `hybrid` is both, joined by their ranks.
        dense: for `dense` and `hybrid`, see `IndexPlan`.
        knobs: how the encoder runs, which does not change the result: `device`, `batch_size`.
        limit: index only the first passages.
        overwrite: replace another index in `out` when the new one is complete, and remove
            unfinished builds of others.

    Raises `DataError` for an unusable corpus, or a folder that cannot be written; `ConfigError`
    when `out` holds something else, another process is building it, or the model is missing.
    """
    target, corpus = Path(out).expanduser().absolute(), readable_twice(corpus)
    if (kind == "bm25") is not (dense is None):
        raise ConfigError(f"an index of kind {kind!r} {'has no' if dense else 'needs a'} model")
    plan = IndexPlan(
        kind, digest(corpus), paragraph_characters, limit, dict(dense) if dense else None
    )
    if target.is_file() or (target.is_dir() and any(target.iterdir())):
        if not (target / MANIFEST).exists():
            raise ConfigError(f"{target} exists and is not an index: choose another folder")
        # running the same command twice is fine: a resumed script does
        if not overwrite:
            return _finished(target, plan)
    made = _build(target, plan, corpus, knobs or {}, on_broken)
    for stale in target.parent.glob(f"{glob.escape(target.name)}.*.building") if overwrite else ():
        with alone_in(stale, wait=False) as alone:
            if alone:
                shutil.rmtree(stale, ignore_errors=True)
    return made


def open_index(corpus: Corpus) -> Index:
    """The BM25 index of a corpus, from the cache when its content was indexed before.

    Rows that cannot be read are left out, as `faithful-search index` leaves them out; a warning in
    the log counts them. Raises `DataError` for a corpus that cannot be read, or a cache that cannot
    be written.
    """
    corpus = readable_twice(corpus)
    plan = IndexPlan("bm25", digest(corpus))
    root = Path(
        os.environ.get("FAITHFUL_SEARCH_CACHE") or Path.home() / ".cache" / "faithful_search"
    )
    # by content: the same passages under another name are found, changed ones under the same name
    # are not
    folder = root.absolute() / "bm25" / plan.key[:32]
    try:
        index = open_folder(folder)
    except DataError:  # none yet, or a damaged one
        _build(folder, plan, corpus, on_broken=lambda where, why: None, wait=True)
        index = open_folder(folder)
    if skipped := read_manifest(folder).skipped:
        first = msgspec.json.decode((folder / SKIPPED).read_bytes().partition(b"\n")[0])
        _log.warning(
            "%s: %d of its rows are left out, since they cannot be read; the first is %s: %s",
            *(called(corpus), skipped, first["where"], first["why"]),
        )
    return index


def open_folder(path: str | os.PathLike[str], **knobs: Any) -> Index:
    """The index in a folder that `build_folder` wrote; `knobs` are those of `DenseIndex`, where it
    holds one. Raises `DataError` for a folder that cannot be used, and `ConfigError` when a package
    or its model is missing.
    """
    folder = Path(path).expanduser().absolute()
    manifest = read_manifest(folder)
    _check_files(folder, manifest, sums=manifest.bytes <= _QUICK)
    parts: list[Index] = []
    try:
        stored = Passages(folder)
        if manifest.plan.kind != "dense":
            parts.append(BM25Index(folder / "bm25", stored))
        if manifest.plan.kind != "bm25":
            parts.append(DenseIndex(folder / "dense", stored, **knobs))
    except ConfigError:
        raise
    except (OSError, ValueError, IndexError) as error:
        raise damaged(folder, error) from error
    return HybridIndex(tuple(parts)) if len(parts) > 1 else parts[0]


def read_manifest(path: str | os.PathLike[str]) -> IndexManifest:
    """What an index's folder says it holds. Raises `DataError` as `open_folder`."""
    file = Path(path) / MANIFEST
    try:
        return msgspec.json.decode(file.read_bytes(), type=IndexManifest)
    except OSError as error:
        make = f"make one with: faithful-search index CORPUS {path}"
        raise DataError(f"{path} is no index ({error.strerror or error}): {make}") from error
    except ValueError as error:
        raise DataError(
            f"{file} was not written by this version ({error}): build the index again"
        ) from error


def _finished(target: Path, plan: IndexPlan) -> IndexManifest:
    """What an index holds that is whole and of this plan."""
    try:
        manifest = read_manifest(target)
    except DataError as error:
        raise ConfigError(f"{error}, with --overwrite") from error
    old, new = msgspec.to_builtins(manifest.plan), msgspec.to_builtins(plan)
    differing = [
        "its corpus" if key == "digest" else f"{key} {old[key]}"
        for key in old
        if old[key] != new[key]
    ]
    if differing:
        message = f"{target} is made of something else ({', '.join(differing)})"
        raise ConfigError(f"{message}: name another folder, or --overwrite it")
    _check_files(target, manifest, sums=True)
    return manifest


def _build(
    target: Path,
    plan: IndexPlan,
    corpus: Corpus,
    knobs: Mapping[str, Any] = {},
    on_broken: OnBroken = refuse,
    wait: bool = False,
) -> IndexManifest:
    """Take all steps that are not done yet, then put the index in the place of what is there."""
    # what an earlier build left here is of the same plan, so every finished step counts
    work = target.with_name(f"{target.name}.{plan.key[:12]}.building")
    try:
        with alone_in(work, wait) as alone:
            if not alone:
                raise ConfigError(f"another process is building in {work}: wait for it")
            with suppress(ConfigError, DataError):
                manifest = _finished(target, plan)  # another process may have built it meanwhile
                with suppress(OSError):
                    work.rmdir()
                return manifest
            # whoever was waited for may have moved it into the index's place, since damaged
            work.mkdir(parents=True, exist_ok=True)
            try:
                if not (work / OFFSETS).exists():
                    store(work, _read(work / SKIPPED, corpus, plan, on_broken))
            except Exception:  # a corpus that is refused leaves nothing
                shutil.rmtree(work, ignore_errors=True)
                raise
            stored = Passages(work)
            if plan.kind != "dense":
                BM25Index.build(work / "bm25", stored)
            if plan.dense is not None:
                DenseIndex.build(work / "dense", stored, **plan.dense, **knobs)
            manifest = _write_manifest(work, plan, called(corpus), len(stored))
            # readers never see half an index; the old one goes only when the new one is complete
            aside: dict[str, Any] = {"prefix": f"{target.name}.old-", "dir": target.parent}
            with tempfile.TemporaryDirectory(**aside, ignore_cleanup_errors=True) as old:
                if target.exists():
                    target.rename(Path(old) / target.name)
                work.rename(target)
            return manifest
    except OSError as error:
        advice = "name another place, for the cache in FAITHFUL_SEARCH_CACHE"
        raise DataError(f"cannot write {target}: {error}; {advice}") from error


def _read(report: Path, corpus: Corpus, plan: IndexPlan, on_broken: OnBroken) -> Iterator[Evidence]:
    """The passages; what was left out is in the report when the last was taken."""
    with report.open("wb") as file:

        def skip(where: str, why: str) -> None:
            on_broken(where, why)
            file.write(msgspec.json.encode({"where": where, "why": why}) + b"\n")

        corpus_passages = passages(
            corpus, paragraph_characters=plan.paragraph_characters, on_broken=skip
        )
        yield from islice(corpus_passages, plan.limit)


def _write_manifest(work: Path, plan: IndexPlan, corpus: str, passages: int) -> IndexManifest:
    for half in work.rglob(".*.partial"):  # of a file that was being replaced
        half.unlink()
    paths = [path for path in sorted(work.rglob("*")) if path.is_file() and path != work / MANIFEST]
    files = {path.relative_to(work).as_posix(): (path.stat().st_size, _sum(path)) for path in paths}
    manifest = IndexManifest(
        plan, corpus, passages, (work / SKIPPED).read_bytes().count(b"\n"), files
    )
    write_whole(work / MANIFEST, msgspec.json.format(msgspec.json.encode(manifest)) + b"\n")
    return manifest


def _sum(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _check_files(folder: Path, manifest: IndexManifest, sums: bool) -> None:
    """Refuse files that are not as they were written."""
    try:
        wrong = [
            name
            for name, (size, _) in manifest.files.items()
            if (folder / name).stat().st_size != size
        ]
        # a size is wrong after most accidents, and costs nothing to compare
        if sums and not wrong:
            wrong = [
                name
                for name, (_, digest) in manifest.files.items()
                if _sum(folder / name) != digest
            ]
    except OSError as error:
        raise damaged(folder, error) from error
    if wrong:
        raise damaged(folder, f"{', '.join(wrong)} not as written")
