"""The folder of an index: built in steps that survive a kill, published whole, opened by what its manifest says.

    manifest.json      what it holds and what it was made of
    passages.jsonl     the passages in corpus order (passages.offsets: where each begins)
    skipped.jsonl      the rows left out, and why
    bm25/  dense/      what each way to search needs besides, and says of itself (dense/manifest.json: the model)

A build works in the folder `OUT.building` beside `OUT` and renames it at the end. Killed, it goes on with the first
step that was not finished, and with vectors in the middle of theirs. The cache of `open_index` is made of such folders,
each named by its corpus's digest.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import msgspec

from ...errors import ConfigError, DataError
from ...trajectory import Evidence
from ...wire.files import lock
from .bm25 import BM25Index
from .corpus import BrokenRow, Corpus, OnBroken, called, digest, passages, readable_twice, refuse
from .dense import BEGUN, DenseIndex, Precision
from .hybrid import HybridIndex
from .index import Index
from .passages import OFFSETS, Passages, Progress, damaged, silent, store, write_whole

Kind = Literal["bm25", "dense", "hybrid"]
VERSION = 2
MANIFEST, SKIPPED = "manifest.json", "skipped.jsonl"
_QUICK = 1_000_000_000
"""Bytes of an index whose checksums are compared whenever it is opened: about a second."""


class Dense(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the vectors of an index are made by: the encoder's Hub id or directory and its revision on the Hub, whether
    there is a graph for approximate search, and the precision of the vectors on disk."""

    model: str
    revision: str | None = None
    hnsw: bool = False
    precision: Precision = "float32"


class Plan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What an index is made of: two builds of the same plan give the same index. `digest` is the corpus's."""

    kind: Kind
    digest: str
    paragraph_characters: int | None = None
    limit: int | None = None
    dense: Dense | None = None
    version: int = VERSION


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the folder holds: made by which plan of which corpus, how many passages, how many rows left out, the sizes
    of its files and their SHA-256 (an older index has none)."""

    plan: Plan
    corpus: str
    passages: int
    skipped: int
    sizes: dict[str, int]
    sums: dict[str, str] = {}

    @property
    def bytes(self) -> int:
        """What the folder takes on disk."""
        return sum(self.sizes.values())


def build_folder(
    corpus: Corpus,
    out: str | os.PathLike[str],
    *,
    kind: Kind = "bm25",
    dense: Dense | None = None,
    knobs: Mapping[str, Any] | None = None,
    paragraph_characters: int | None = None,
    limit: int | None = None,
    overwrite: bool = False,
    on_broken: OnBroken = refuse,
    progress: Progress = silent,
) -> Manifest:
    """Make the index of a corpus in `out`; where an earlier call was killed, go on where it was.

    Args:
        out: a new or empty folder; one with the very same index is left as it is.
        kind, dense: `hybrid` is both, joined by their ranks; what makes the vectors is needed for it and for `dense`.
        knobs: how the encoder runs, which does not change the result: `device`, `batch_size`.
        corpus, paragraph_characters, on_broken: see `corpus.passages`. What an earlier call
            had read is not read again, so `on_broken` does not hear of its rows.
        limit: index only the first passages.
        overwrite: replace another index in `out`, which stays until the new one is complete, and forget another one's
            unfinished build.

    Raises:
        DataError: an unusable corpus, or a folder that cannot be written.
        ConfigError: when `out` holds something else or another index, or another process is building it; when the model
            is missing.
    """
    target, corpus = Path(out).expanduser().absolute(), readable_twice(corpus)
    if (kind == "bm25") is not (dense is None):
        raise ConfigError(f"an index of kind {kind!r} {'has no' if dense else 'needs a'} model")
    plan = Plan(kind, digest(corpus), paragraph_characters, limit, dense)
    if target.exists() and not (target.is_dir() and not any(target.iterdir())):
        if not (target / MANIFEST).exists():
            raise ConfigError(f"{target} is there already and is no index: name another folder")
        # running the same command twice is fine: a resumed script does
        if not overwrite:
            try:
                there = read_manifest(target)
            except DataError as error:
                raise ConfigError(f"{error}, with --overwrite") from error
            _check_same(target, there.plan, plan)
            _check_files(target, there, sums=True)
            return there
    try:
        with _alone(target) as work:
            return _build(work, target, corpus, plan, overwrite, knobs or {}, on_broken, progress)
    except OSError as error:
        raise DataError(f"cannot write {target}: {error}") from error


def open_index(corpus: Corpus, cache_dir: str | os.PathLike[str] | None = None) -> Index:
    """The BM25 index of a corpus, from the cache when its content was indexed before.

    It is strict: a corpus with a broken row is refused. `build_folder` can leave such rows out and say so.
    The cache is in `cache_dir`, by default `FAITHFUL_SEARCH_CACHE` or `~/.cache/faithful_search`. Raises `DataError`
    for an unreadable file, a row without text, no rows at all, or a cache folder that cannot be written.
    """
    corpus = readable_twice(corpus)
    plan = Plan("bm25", digest(corpus))
    root = Path(cache_dir or os.environ.get("FAITHFUL_SEARCH_CACHE") or Path.home() / ".cache" / "faithful_search")
    # by content: the same passages under another name are found, changed ones under the same name are not
    folder = root.absolute() / "bm25" / f"{plan.digest[:32]}-{VERSION}"
    try:
        with suppress(DataError):  # none yet, or a damaged one
            return open_folder(folder)
        with _alone(folder, wait=True) as work:
            with suppress(DataError):  # another process may have built it meanwhile
                return open_folder(folder)
            try:
                _build(work, folder, corpus, plan, overwrite=True)
            except Exception:  # a corpus that is refused leaves nothing in the cache; a killed build is gone on with
                shutil.rmtree(work, ignore_errors=True)
                raise
    except OSError as error:
        raise DataError(f"cannot write {folder}: {error}; name another place in FAITHFUL_SEARCH_CACHE") from error
    return open_folder(folder)


def open_folder(path: str | os.PathLike[str], **knobs: Any) -> Index:
    """The index in a folder that `build_folder` wrote; `knobs` are those of `DenseIndex.open`, where it holds one:
    `model`, `exact`, `beam`, `device`.

    Files of up to 1 GB together are compared with their checksums; those of a larger index when it is built again.
    Raises `DataError` when there is none, it is damaged, or of another version, and `ConfigError` when what it needs is
    missing, or its model is another one by now.
    """
    folder = Path(path).expanduser().absolute()
    manifest = read_manifest(folder)
    _check_files(folder, manifest, sums=manifest.bytes <= _QUICK)
    parts: list[Index] = []
    try:
        found = Passages(folder)
        if manifest.plan.kind != "dense":
            parts.append(BM25Index(folder / "bm25", found))
        if manifest.plan.kind != "bm25":
            parts.append(DenseIndex.open(folder / "dense", found, **knobs))
    except ConfigError:
        raise
    except (OSError, ValueError, IndexError) as error:
        raise damaged(folder, error) from error
    return HybridIndex(tuple(parts)) if len(parts) > 1 else parts[0]


def read_manifest(path: str | os.PathLike[str]) -> Manifest:
    """What an index's folder says it holds. Raises `DataError` when there is none, or of another version."""
    file = Path(path) / MANIFEST
    try:
        manifest = msgspec.json.decode(file.read_bytes(), type=Manifest)
    except OSError as error:
        raise DataError(
            f"{path} is no index ({error.strerror or error}): make one with: faithful-search index CORPUS {path}"
        ) from error
    except ValueError as error:
        raise DataError(f"{file} was not written by this version ({error}): build the index again") from error
    if manifest.plan.version != VERSION:
        raise DataError(f"{file} is of version {manifest.plan.version}, not {VERSION}: build the index again")
    return manifest


def _build(
    work: Path,
    target: Path,
    corpus: Corpus,
    plan: Plan,
    overwrite: bool,
    knobs: Mapping[str, Any] = {},
    on_broken: OnBroken = refuse,
    progress: Progress = silent,
) -> Manifest:
    """Take all steps of a build in `work` that are not done yet, the manifest last; then move it to `target`."""
    _prepare(work, plan, overwrite)
    if not (work / MANIFEST).exists():
        if not (work / OFFSETS).exists():
            store(work, _read(work / SKIPPED, corpus, plan, on_broken), progress)
        found = Passages(work)
        if plan.kind != "dense":
            BM25Index.build(work / "bm25", found, progress=progress)
        if plan.dense is not None:
            settings = msgspec.structs.asdict(plan.dense) | dict(knobs)
            DenseIndex.build(work / "dense", found, progress=progress, **settings)
        for half in work.rglob(".*.partial"):  # of a file that was being replaced
            half.unlink()
        files = [file for file in sorted(work.rglob("*")) if file.is_file() and file.name != BEGUN]
        sizes = {file.relative_to(work).as_posix(): file.stat().st_size for file in files}
        skipped = (work / SKIPPED).read_bytes().count(b"\n")
        sums = {name: _sum(work / name) for name in sizes}
        made = Manifest(plan, called(corpus), len(found), skipped, sizes, sums)
        write_whole(work / MANIFEST, msgspec.json.format(msgspec.json.encode(made)) + b"\n")
    manifest = read_manifest(work)
    for begun in work.rglob(BEGUN):
        begun.unlink()
    # readers never see half an index; the old one goes only when the new one is complete
    old = Path(tempfile.mkdtemp(prefix=f"{target.name}.old-", dir=target.parent))
    if target.exists():
        target.rename(old / target.name)
    work.rename(target)
    shutil.rmtree(old, ignore_errors=True)
    return manifest


def _prepare(work: Path, plan: Plan, overwrite: bool) -> None:
    """An empty folder, or one with what an earlier build of the same plan left."""
    work.mkdir(exist_ok=True)  # whoever was waited for may have moved it into the index's place
    file = work / BEGUN
    try:
        begun = msgspec.json.decode(file.read_bytes(), type=Plan) if file.exists() else None
        if (work / MANIFEST).exists():
            begun = read_manifest(work).plan
    except msgspec.DecodeError as error:
        raise DataError(f"{file} was not written by this version ({error}): delete its folder") from error
    # what is there is of the same corpus and settings, so every finished step counts
    if begun == plan:
        return
    if begun is None and any(entry.name != f".{BEGUN}.partial" for entry in work.iterdir()):
        raise ConfigError(f"{work} is there already and is no unfinished index: name another folder")
    if begun is not None and not overwrite:
        _check_same(work, begun, plan)
    # what says whose folder it is goes last: killed before, it can still be emptied
    for entry in sorted(work.iterdir(), key=lambda entry: entry.name == BEGUN):
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()
    write_whole(file, msgspec.json.encode(plan))


def _read(report: Path, corpus: Corpus, plan: Plan, on_broken: OnBroken) -> Iterator[Evidence]:
    """The passages; what was left out is in the report when the last was taken."""
    with report.open("wb") as file:

        def skip(broken: BrokenRow) -> None:
            on_broken(broken)
            file.write(msgspec.json.encode({"where": broken.where, "why": broken.why}) + b"\n")

        found = passages(corpus, paragraph_characters=plan.paragraph_characters, on_broken=skip)
        yield from islice(found, plan.limit)


def _check_same(target: Path, there: Plan, plan: Plan) -> None:
    """Refuse to go on with, or take for done, what is made of something else."""
    old, new = msgspec.to_builtins(there), msgspec.to_builtins(plan)
    other = ["its corpus" if key == "digest" else f"{key} {old[key]}" for key in old if old[key] != new[key]]
    if other:
        raise ConfigError(
            f"{target} is made of something else ({', '.join(other)}): name another folder, or --overwrite it"
        )


@contextmanager
def _alone(target: Path, wait: bool = False) -> Iterator[Path]:
    """The folder in which `target` is built, for one process at a time: two would write into each other's files."""
    work = target.with_name(f"{target.name}.building")
    work.mkdir(parents=True, exist_ok=True)
    if os.name == "nt":  # where a folder cannot be opened
        yield work
        return
    handle = os.open(work, os.O_RDONLY)
    try:
        if not lock(handle, wait):
            raise ConfigError(f"another process is building in {work}: wait for it")
        yield work
    finally:
        os.close(handle)


def _sum(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _check_files(folder: Path, manifest: Manifest, sums: bool) -> None:
    """Refuse files that are not as they were written."""
    try:
        wrong = [name for name, size in manifest.sizes.items() if (folder / name).stat().st_size != size]
        # a size is wrong after most accidents, and costs nothing to compare
        if sums and not wrong:
            wrong = [name for name, digest in manifest.sums.items() if _sum(folder / name) != digest]
    except OSError as error:
        raise damaged(folder, error) from error
    if wrong:
        raise damaged(folder, f"{', '.join(wrong)} not as written")
