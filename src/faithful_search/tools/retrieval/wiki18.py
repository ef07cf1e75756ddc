"""Wikipedia of 2018 in passages of 100 words, which most search agents are trained with: what it
takes to search in it, and how to get there.

| kind | is |
|---|---|
| bm25 | our index by words |
| dense | our index of E5's vectors, encoded here |
| search-r1-e5 | the vectors that Search-R1 published, taken as they are |

The passages are those of DPR, as `wiki-18.jsonl.gz` of Search-R1 has them. Neither of its two
repositories states a licence; Wikipedia's text is CC BY-SA.
"""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ...errors import ConfigError, DataError
from .index_folder import MANIFEST, IndexManifest, read_manifest

Kind = Literal["bm25", "dense", "search-r1-e5"]
PASSAGES, DIMENSION = 21_015_324, 768
MODEL = "intfloat/e5-base-v2"
GB = 1e9


@dataclass(frozen=True)
class Download:
    """A file of a data set on the Hub, and its size in bytes."""

    repository: str
    name: str
    size: int


CORPUS = Download("PeterJinGo/wiki-18-corpus", "wiki-18.jsonl.gz", 5_123_307_260)
VECTORS = (
    Download("PeterJinGo/wiki-18-e5-index", "part_aa", 42_949_672_960),
    Download("PeterJinGo/wiki-18-e5-index", "part_ab", 21_609_402_413),
)
# Bytes a passage, of passages of 100 words: stored, in an index by words, in memory while that is
# built. Measured by `faithful-search index` on 162,000 passages, see docs/log.md
_STORED, _BY_WORDS, _BUILDING_BY_WORDS = 690, 545, 3_700
_WORDS_A_SECOND = 10_700
"""Passages that an index by words takes a second, on one core of the same machine."""
_LINKS = 2 * 32 * 4 + 20
"""Bytes of a passage's neighbours in a graph with FAISS's M = 32."""


@dataclass(frozen=True)
class Cost:
    """What an index of a corpus takes, in bytes and seconds.

    ```
    vectors  = passages × dimension × 4  (× 2 in half precision)
    graph    = passages × (dimension × 4 + 2 × M × 4 + 20), M = 32, all of it in memory
    encoding = passages / passages a second of the encoder here
    ```

    Attributes:
        download: bytes that come over the network.
        disk: bytes that are on the disk of the index in the end, downloads included.
        building, searching: bytes of memory.
        seconds: `None` where that depends on a machine that was not asked.
    """

    download: int
    disk: int
    building: int
    searching: int
    seconds: float | None


def cost(
    kind: Kind, *, half: bool = False, hnsw: bool = False, passages_a_second: float | None = None
) -> Cost:
    """What one kind takes. `passages_a_second` is the encoder's on this machine.

    Example:
        >>> round(cost("dense").disk / 1e9, 1), round(cost("dense", half=True).disk / 1e9, 1)
        (84.2, 51.9)
    """
    stored = PASSAGES * _STORED
    download = CORPUS.size
    if kind == "bm25":
        words = PASSAGES * _BY_WORDS
        return Cost(
            download=download,
            disk=download + stored + words,
            building=PASSAGES * _BUILDING_BY_WORDS,
            searching=words,
            seconds=PASSAGES / _WORDS_A_SECOND,
        )
    vectors = PASSAGES * DIMENSION * (2 if half else 4)
    graph = PASSAGES * (DIMENSION * 4 + _LINKS) if hnsw else 0
    seconds = None
    if kind == "search-r1-e5":
        download += sum(file.size for file in VECTORS)
    elif passages_a_second is not None:
        seconds = PASSAGES / passages_a_second
    return Cost(
        download=download,
        disk=CORPUS.size + stored + vectors + graph,
        building=graph,
        searching=graph or vectors,
        seconds=seconds,
    )


def lines_about(kind: Kind, needs: Cost, half: bool, hnsw: bool) -> list[str]:
    """What is printed before anything is downloaded."""
    lines = [
        f"wiki18, {kind}: {PASSAGES:,} passages of Wikipedia (2018)",
        f"  download: {needs.download / GB:,.1f} GB, resumed where it was stopped",
        f"  disk: {needs.disk / GB:,.1f} GB, downloads included",
    ]
    if kind != "bm25":
        size = PASSAGES * DIMENSION * (2 if half else 4) / GB
        precision = "half precision" if half else "float32"
        lines.append(f"    of these, vectors: {size:,.1f} GB in {precision}")
    if needs.building:
        memory = f", and there are {_memory() / GB:,.0f} GB here" if _memory() else ""
        lines.append(f"  memory while it is built: {needs.building / GB:,.0f} GB{memory}")
    if kind == "bm25" or hnsw:
        lines.append(f"  memory to search it: {needs.searching / GB:,.0f} GB")
    else:
        lines.append(
            f"  memory to search it: any, since vectors are mapped; {needs.searching / GB:,.0f} GB "
            "keep it from reading the disk for every batch, and faiss-gpu takes as much on GPUs"
        )
    if needs.seconds is not None:
        basis = (
            "on one core, from 162,000 passages" if kind == "bm25" else "this encoder's speed here"
        )
        lines.append(f"  time after the download: about {needs.seconds / 3600:,.1f} h ({basis})")
    elif kind == "search-r1-e5":
        lines.append("  time after the download: minutes, to unpack the text and to sum 65 GB")
    if kind == "bm25":
        lines.append("  a query scores all passages; for many at once fill OpenSearch instead")
    if hnsw:
        lines.append("  and hours to build the graph, which was never measured at this size")
    lines.append("  licence: Wikipedia's text is CC BY-SA; Search-R1's repositories state none")
    return lines


def _memory() -> int:
    """Bytes of this machine's memory; 0 where the system does not say."""
    if "SC_PHYS_PAGES" not in getattr(os, "sysconf_names", {}):
        return 0
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def encoder_speed(embedder: Any, batch: int = 256) -> float:
    """Passages of 100 words that the encoder encodes in a second here, from one batch after a first
    one.
    """
    from time import perf_counter

    from ...trajectory import Evidence

    text = "the river flows through the old town and its castle into " * 10
    sample = [Evidence(text=text, title="River")] * batch
    embedder.passages(sample[:8])
    start = perf_counter()
    embedder.passages(sample)
    return batch / (perf_counter() - start)


def refuse_short_disk(out: Path, needs: Cost) -> None:
    """Raise `ConfigError` where the disk of `out` has no room for what is not there yet."""
    parent = next(folder for folder in out.absolute().parents if folder.exists())
    there: dict[int, int] = {}  # by inode, since vectors are linked from the downloads
    for folder in (downloads_of(out), *parent.glob(f"{out.name}.*.building")):
        for path in folder.rglob("*"):
            status = path.stat()
            there[status.st_ino] = status.st_blocks * 512
    missing = needs.disk - sum(there.values())
    free = shutil.disk_usage(parent).free
    if missing > free:
        raise ConfigError(
            f"{parent} has {free / GB:,.1f} GB free and {missing / GB:,.1f} GB are needed: name "
            "another --out, or take --kind bm25 or --half"
        )


def downloads_of(out: Path) -> Path:
    """Where the files are downloaded to: beside the index, so that they need not be copied."""
    return out.absolute().with_name(f"{out.name}.downloads")


def plan(kind: Kind, out: Path, half: bool, hnsw: bool) -> dict[str, Any] | None:
    """What `build_folder` is told of the vectors; `None` for an index by words."""
    if kind == "bm25":
        return None
    precision = "float16" if half else "float32"
    dense: dict[str, Any] = {"model": MODEL, "revision": None, "hnsw": hnsw, "precision": precision}
    if kind == "search-r1-e5":
        dense["vectors"] = [str(downloads_of(out) / file.name) for file in VECTORS]
    return dense


def finished(out: Path, dense: dict[str, Any] | None) -> IndexManifest | None:
    """The index in `out`, where it is one of this plan: its downloads may be gone."""
    if not (out / MANIFEST).exists():
        return None
    manifest = read_manifest(out)
    return manifest if manifest.plan.dense == dense else None


def fetch(file: Download, out: Path) -> Path:
    """The file in the folder of downloads; goes on where an earlier download was stopped. Raises
    `DataError` where it cannot be downloaded or has another size.
    """
    from huggingface_hub import hf_hub_download

    try:
        path = hf_hub_download(
            file.repository,
            file.name,
            repo_type="dataset",
            local_dir=downloads_of(out),
        )
    except Exception as error:  # the Hub's failures are of many unrelated types
        why = " ".join(str(error).split())
        raise DataError(
            f"cannot download {file.name} of {file.repository}: {why}. The same command goes on "
            "where it was"
        ) from error
    size = os.path.getsize(path)
    if size != file.size:
        raise DataError(
            f"{path} has {size:,} bytes and {file.size:,} were expected: delete it and run the "
            "same command again, or, where the repository has changed, build the index by "
            "faithful-search index"
        )
    return Path(path)
