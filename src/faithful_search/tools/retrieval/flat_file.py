"""Vectors as FAISS writes them: a flat index of inner products, in one file or cut into parts.

Search-R1 publishes its index of Wikipedia so (`e5_Flat.index`, as `part_aa` and `part_ab`). The
files are mapped as they are: a header of 45 bytes, then float32 numbers, row by row.
"""

import os
import struct
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median

import numpy as np

from ...errors import ConfigError, DataError, reason_of
from ...trajectory import Evidence
from .corpus import join_contents
from .index import Passages

# What FAISS's `write_index` puts first: the kind, the dimension, how many, two numbers that mean
# nothing any more, whether it is trained, the metric (0: inner product), how many numbers follow
_HEADER = struct.Struct("<4siqqq?iQ")
_INNER_PRODUCT = b"IxFI"
_SAMPLE = 16
_LIKE = 0.95
"""The least median cosine of a sample with what the encoder makes of the same passages. Half
precision, another length and quotation marks around the title keep it above; other weights or
another order of the passages do not.
"""


def mapped(files: Sequence[Path]) -> list[np.ndarray]:
    """The vectors in these files, one after the other, as arrays of (rows, dimension), float32,
    mapped from disk. A vector that is cut between two files is an array of its own. Rows may lie
    at addresses that are no multiple of four, see `chunks`.

    Raises `DataError` for files that are no such index, or are not all of it.
    """
    dimension, count = _read_header(files)
    row = 4 * dimension
    blocks: list[np.ndarray] = []
    cut = b""
    for place, path in enumerate(files):
        try:
            raw = np.memmap(path, dtype=np.uint8, mode="r")
        except (OSError, ValueError) as error:  # missing, or empty
            raise DataError(f"cannot read {path}: {reason_of(error)}") from error
        start = _HEADER.size if place == 0 else 0
        if cut:
            missing = min(row - len(cut), len(raw) - start)
            cut += raw[start : start + missing].tobytes()
            start += missing
            if len(cut) == row:
                blocks.append(np.frombuffer(cut, dtype=np.float32).reshape(1, dimension))
                cut = b""
        count_here = (len(raw) - start) // row
        end = start + count_here * row
        if count_here:
            numbers = np.asarray(raw[start:end]).view(np.float32)
            blocks.append(numbers.reshape(count_here, dimension))
        cut += raw[end:].tobytes()
    if cut or sum(map(len, blocks)) != count:
        raise DataError(
            f"{_called(files)}: {sum(map(len, blocks)):,} whole vectors, and its header says "
            f"{count:,}: a part is missing, or not all of it was downloaded"
        )
    return blocks


def chunks(
    blocks: Sequence[np.ndarray], size: int, first: int = 0, last: int | None = None
) -> Iterator[tuple[int, np.ndarray]]:
    """The rows from `first` to before `last`, at most `size` at a time: the number of the first
    one, and (rows, dimension) as float32 that FAISS can read.
    """
    if last is None:
        last = sum(map(len, blocks))
    start = 0  # the number of the block's first row
    for block in blocks:
        begin = max(first, start)
        end = min(last, start + len(block))
        for number in range(begin, end, size):
            following = min(number + size, end)
            part = block[number - start : following - start]
            yield number, np.require(part, np.float32, ["C", "A"])
        start += len(block)


def check_made_by(
    blocks: Sequence[np.ndarray],
    passages: Passages,
    encode: Callable[[Sequence[Evidence]], np.ndarray],
    files: Sequence[Path],
) -> None:
    """Refuse vectors that are not those of these passages by this encoder: how many there are, and
    a sample of some passages from all over the corpus, encoded anew.

    Raises `ConfigError`, which says how alike they are.
    """
    count = sum(map(len, blocks))
    dimension = blocks[0].shape[1]
    if count != len(passages):
        raise ConfigError(
            f"{_called(files)} has {count:,} vectors and the corpus {len(passages):,} passages: "
            "they do not belong together"
        )
    numbers = sorted({round(place * (count - 1) / (_SAMPLE - 1)) for place in range(_SAMPLE)})
    sample = [passages.get(number) for number in numbers]
    # as we write a passage for an encoder, and as the Search-R1 family does
    ours = encode(sample)
    theirs = encode([_quoted(passage) for passage in sample])
    if ours.shape[1] != dimension:
        raise ConfigError(
            f"{_called(files)} has vectors of {dimension:,} numbers, and those of the encoder have "
            f"{ours.shape[1]:,}: name the encoder that made them"
        )
    cosines: list[float] = []
    for place, number in enumerate(numbers):
        [(_, vectors)] = chunks(blocks, 1, number, number + 1)
        cosine_with_ours = float(vectors[0] @ ours[place])
        cosine_with_theirs = float(vectors[0] @ theirs[place])
        cosines.append(max(cosine_with_ours, cosine_with_theirs))
    alike = median(cosines)
    if not alike >= _LIKE:
        raise ConfigError(
            f"{_called(files)} was made by another encoder, or of another corpus or order: the "
            f"median cosine with what this encoder makes of {len(numbers)} of the passages is "
            f"{alike:.3f}, and {_LIKE} is asked for"
        )


def _quoted(passage: Evidence) -> Evidence:
    """A passage as the Search-R1 family writes it, with its title in quotes in the first line."""
    if not passage.title:
        return Evidence(text=passage.text)
    return Evidence(text=join_contents(passage.title, passage.text))


def link(files: Sequence[Path], folder: Path) -> tuple[str, ...]:
    """Put the files into a folder, without a copy of their content; their names there."""
    names: list[str] = []
    for place, path in enumerate(files):
        name = f"vectors.faiss.{place}"
        target = folder / name
        target.unlink(missing_ok=True)
        source = path.resolve()  # the Hub's cache has links in place of files
        try:
            os.link(source, target)
        except OSError:  # another disk, or a file system without hard links
            target.symlink_to(source)
        names.append(name)
    return tuple(names)


def _read_header(files: Sequence[Path]) -> tuple[int, int]:
    """Dimension and number of vectors."""
    try:
        with files[0].open("rb") as file:
            content = file.read(_HEADER.size)
        kind, dimension, count, _, _, trained, metric, numbers = _HEADER.unpack(content)
    except (OSError, struct.error) as error:
        raise DataError(f"cannot read {files[0]} as an index of FAISS: {error}") from error
    if kind != _INNER_PRODUCT or metric != 0:
        raise DataError(
            f"{files[0]} is no flat FAISS index of inner products (it begins with {kind!r}): "
            "others cannot be taken; where files are parts of one, name them in their order"
        )
    if not trained or dimension < 1 or numbers != count * dimension:
        raise DataError(f"{files[0]}: its header is damaged")
    return dimension, count


def _called(files: Sequence[Path]) -> str:
    return " and ".join(str(path) for path in files)
