"""The folder of an index: how it is built and opened.

    manifest.json      what it holds and what it was made of
    passages.jsonl     the passages in corpus order (passages.offsets: where each begins)
    skipped.jsonl      the rows that were left out, and why
    bm25/  dense/      what each way to search needs besides

A build works in a folder beside it, which is named after its plan and renamed at the end. After a
kill the same call goes on with the first step that was not finished, and within the vectors with
the first that are missing.
"""

import glob
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import msgspec

from ...errors import ConfigError, DataError, reason_of
from ...trajectory import Evidence
from ...wire.cache import key_of
from ...wire.files import alone_in, sha256_of
from .bm25 import BM25Index
from .corpus import (
    Corpus,
    OnBroken,
    called,
    digest,
    passages,
    readable_twice,
    refuse,
    warn_of_broken,
)
from .dense import DenseIndex
from .index import OFFSETS, HybridIndex, Index, Passages, damaged, store, write_whole

Kind = Literal["bm25", "dense", "hybrid"]
VERSION = 3
"""Of the folder's form: one of another version is built again."""
MANIFEST = "manifest.json"
SKIPPED = "skipped.jsonl"
# Up to so many bytes, the checksums of an index are compared whenever it is opened: that takes
# about a second.
_ALWAYS_CHECKED_BYTES = 1_000_000_000


class IndexPlan(msgspec.Struct, frozen=True):
    """What an index is made of. Two builds of the same plan give the same index.

    Attributes:
        digest: of the corpus; see `corpus.digest`.
        paragraph_characters: where longer texts are cut; `None` keeps rows whole.
        limit: how many passages are indexed; `None` for all.
        dense: arguments of `DenseIndex.build` that say which encoder and what vectors: `model`,
            `revision`, `hnsw`, `precision`; `None` for BM25 alone.
    """

    kind: Kind
    digest: str
    paragraph_characters: int | None = None
    limit: int | None = None
    dense: dict[str, Any] | None = None

    @property
    def key(self) -> str:
        """SHA-256 of the plan, by which builds and caches are named."""
        return key_of(version=VERSION, plan=msgspec.to_builtins(self))


class IndexManifest(msgspec.Struct, frozen=True, tag_field="version", tag=VERSION):
    """What the folder holds.

    Attributes:
        corpus: what it is called; see `corpus.called`.
        passages: how many there are.
        skipped: rows that were left out.
        files: the size and the SHA-256 of each, by its path in the folder.
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
            rows that an earlier call had read.
        out: a new or empty folder; one with the very same index is left as it is.
        kind: `hybrid` is both, joined by their ranks.
        dense: for `dense` and `hybrid`, see `IndexPlan`.
        knobs: how the encoder runs, which does not change the result: `device`, `batch_size`.
        limit: index only the first passages.
        overwrite: replace another index in `out` when the new one is complete, and remove
            unfinished builds of others.

    Raises:
        DataError: the corpus cannot be used, or the folder not be written.
        ConfigError: `out` holds something else, another process is building it, or the model is
            missing.
    """
    target = Path(out).expanduser().absolute()
    corpus = readable_twice(corpus)
    if kind == "bm25" and dense is not None:
        raise ConfigError(f"an index of kind {kind!r} has no model")
    if kind != "bm25" and dense is None:
        raise ConfigError(f"an index of kind {kind!r} needs a model")
    plan = IndexPlan(
        kind=kind,
        digest=digest(corpus),
        paragraph_characters=paragraph_characters,
        limit=limit,
        dense=dict(dense) if dense else None,
    )
    if target.is_file() or (target.is_dir() and any(target.iterdir())):
        if not (target / MANIFEST).exists():
            raise ConfigError(f"{target} exists and is not an index: choose another folder")
        if not overwrite:
            # The same command twice is fine, as a script that is run again does it.
            return _finished(target, plan)
    manifest = _build(target, plan, corpus, knobs or {}, on_broken)
    if overwrite:
        for unfinished in target.parent.glob(f"{glob.escape(target.name)}.*.building"):
            with alone_in(unfinished, wait=False) as is_alone:
                if is_alone:
                    shutil.rmtree(unfinished, ignore_errors=True)
    return manifest


def open_index(corpus: Corpus) -> Index:
    """The BM25 index of a corpus, from the cache when its content was indexed before.

    Rows that cannot be read are left out, as `faithful-search index` leaves them out; a warning in
    the log counts them.

    Raises:
        DataError: the corpus cannot be read, or the cache not be written.
    """
    corpus = readable_twice(corpus)
    plan = IndexPlan("bm25", digest(corpus))
    home = os.environ.get("FAITHFUL_SEARCH_CACHE") or Path.home() / ".cache" / "faithful_search"
    # Named by the content: the same passages under another name share it, and changed ones under
    # the same name do not.
    folder = Path(home).absolute() / "bm25" / plan.key[:32]
    try:
        index = open_folder(folder)
    except DataError:  # there is none yet, or a damaged one
        _build(folder, plan, corpus, on_broken=lambda where, why: None, wait=True)
        index = open_folder(folder)
    skipped = read_manifest(folder).skipped
    if skipped:
        first_line, _, _ = (folder / SKIPPED).read_bytes().partition(b"\n")
        first = msgspec.json.decode(first_line)
        warn_of_broken(corpus, skipped, f"{first['where']}: {first['why']}")
    return index


def open_folder(path: str | os.PathLike[str], **knobs: Any) -> Index:
    """The index in a folder that `build_folder` wrote.

    Args:
        knobs: those of `DenseIndex`, where the folder holds one.

    Raises:
        DataError: the folder cannot be used.
        ConfigError: a package or the model is missing.
    """
    folder = Path(path).expanduser().absolute()
    manifest = read_manifest(folder)
    _check_files(folder, manifest, checksums=manifest.bytes <= _ALWAYS_CHECKED_BYTES)
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
        raise DataError(
            f"{path} is no index ({reason_of(error)}): make one with: faithful-search index "
            f"CORPUS {path}"
        ) from error
    except ValueError as error:
        raise DataError(
            f"{file} was not written by this version ({error}): build the index again"
        ) from error


def _finished(target: Path, plan: IndexPlan) -> IndexManifest:
    """The manifest of an index that is complete and of this plan.

    Raises `ConfigError` where it is of another plan, and `DataError` where it is damaged.
    """
    try:
        manifest = read_manifest(target)
    except DataError as error:
        raise ConfigError(f"{error}, with --overwrite") from error
    old = msgspec.to_builtins(manifest.plan)
    new = msgspec.to_builtins(plan)
    differences = []
    for name, value in old.items():
        if value != new[name]:
            differences.append("its corpus" if name == "digest" else f"{name} {value}")
    if differences:
        raise ConfigError(
            f"{target} is made of something else ({', '.join(differences)}): name another folder, "
            "or --overwrite it"
        )
    _check_files(target, manifest, checksums=True)
    return manifest


def _build(
    target: Path,
    plan: IndexPlan,
    corpus: Corpus,
    knobs: Mapping[str, Any] = {},
    on_broken: OnBroken = refuse,
    wait: bool = False,
) -> IndexManifest:
    """Take all steps that are not done yet, then put the index in the place of what is there.

    Args:
        wait: wait for another process that builds the same, rather than raise `ConfigError`.
    """
    # Named by the plan, so that whatever an earlier build left here is of the same index.
    work = target.with_name(f"{target.name}.{plan.key[:12]}.building")
    try:
        with alone_in(work, wait) as is_alone:
            if not is_alone:
                raise ConfigError(f"another process is building in {work}: wait for it")
            with suppress(ConfigError, DataError):
                manifest = _finished(target, plan)  # another process may have built it meanwhile
                with suppress(OSError):
                    work.rmdir()
                return manifest
            # The process that was waited for may have renamed the folder.
            work.mkdir(parents=True, exist_ok=True)
            try:
                if not (work / OFFSETS).exists():
                    store(work, _read(work / SKIPPED, corpus, plan, on_broken))
            except Exception:
                shutil.rmtree(work, ignore_errors=True)  # half a corpus is of no use
                raise
            stored = Passages(work)
            if plan.kind != "dense":
                BM25Index.build(work / "bm25", stored)
            if plan.dense is not None:
                DenseIndex.build(work / "dense", stored, **plan.dense, **knobs)
            manifest = _write_manifest(work, plan, called(corpus), len(stored))
            _publish(work, target)
            return manifest
    except OSError as error:
        raise DataError(
            f"cannot write {target}: {error}; name another place, for the cache in "
            "FAITHFUL_SEARCH_CACHE"
        ) from error


def _publish(work: Path, target: Path) -> None:
    """Put a complete index in the place of `target`: readers never see half an index."""
    with tempfile.TemporaryDirectory(
        prefix=f"{target.name}.old-", dir=target.parent, ignore_cleanup_errors=True
    ) as old:
        if target.exists():
            target.rename(Path(old) / target.name)
        work.rename(target)


def _read(report: Path, corpus: Corpus, plan: IndexPlan, on_broken: OnBroken) -> Iterator[Evidence]:
    """The passages of a corpus; each row that is left out is written into the report."""
    with report.open("wb") as file:

        def skip(where: str, why: str) -> None:
            on_broken(where, why)
            file.write(msgspec.json.encode({"where": where, "why": why}) + b"\n")

        corpus_passages = passages(
            corpus, paragraph_characters=plan.paragraph_characters, on_broken=skip
        )
        yield from islice(corpus_passages, plan.limit)


def _write_manifest(work: Path, plan: IndexPlan, corpus: str, passages: int) -> IndexManifest:
    """Write down what a folder holds that is complete but for this."""
    for leftover in work.rglob(".*.partial"):  # of a file whose writer was killed
        leftover.unlink()
    files = {}
    for path in sorted(work.rglob("*")):
        if path.is_file() and path != work / MANIFEST:
            files[path.relative_to(work).as_posix()] = (path.stat().st_size, sha256_of(path))
    manifest = IndexManifest(
        plan=plan,
        corpus=corpus,
        passages=passages,
        skipped=(work / SKIPPED).read_bytes().count(b"\n"),
        files=files,
    )
    write_whole(work / MANIFEST, msgspec.json.format(msgspec.json.encode(manifest)) + b"\n")
    return manifest


def _check_files(folder: Path, manifest: IndexManifest, checksums: bool) -> None:
    """Raise `DataError` for files that are not as they were written.

    Their sizes are always compared, which costs nothing and shows most accidents.
    """
    changed = []
    try:
        for name, (size, _) in manifest.files.items():
            if (folder / name).stat().st_size != size:
                changed.append(name)
        if checksums and not changed:
            for name, (_, checksum) in manifest.files.items():
                if sha256_of(folder / name) != checksum:
                    changed.append(name)
    except OSError as error:
        raise damaged(folder, error) from error
    if changed:
        raise damaged(folder, f"{', '.join(changed)} not as written")
