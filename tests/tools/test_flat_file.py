"""Vectors that FAISS wrote: taken as they are, whole or in parts, and refused where they are of
something else.
"""

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tiny_bert

from faithful_search.errors import ConfigError, DataError
from faithful_search.tools.retrieval.dense import DenseIndex, Embedder, load_faiss
from faithful_search.tools.retrieval.flat_file import chunks, mapped
from faithful_search.tools.retrieval.index import Passages, store
from faithful_search.tools.retrieval.index_folder import build_folder, open_folder
from faithful_search.tools.retrieval.on_gpu import on_gpus
from faithful_search.trajectory import Evidence

DIMENSION = 16


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    return tiny_bert.saved(tmp_path_factory.mktemp("encoder"))


@pytest.fixture(scope="module")
def passages(tmp_path_factory) -> Passages:
    folder = tmp_path_factory.mktemp("passages")
    store(folder, tiny_bert.corpus())
    return Passages(folder)


@pytest.fixture(scope="module")
def vectors(model) -> np.ndarray:
    return Embedder(model).passages(tiny_bert.corpus())


@pytest.fixture(scope="module")
def flat(vectors, tmp_path_factory) -> Path:
    """As Search-R1 writes `e5_Flat.index`."""
    return written(tmp_path_factory.mktemp("flat") / "e5_Flat.index", vectors)


def written(path: Path, vectors: np.ndarray, kind: str = "IndexFlatIP") -> Path:
    faiss = load_faiss()
    index = getattr(faiss, kind)(DIMENSION)
    index.add(vectors)
    faiss.write_index(index, str(path))
    return path


def parts(flat: Path, folder: Path, size: int) -> list[Path]:
    """As `split` makes them: part_aa, part_ab, …"""
    content = flat.read_bytes()
    files = []
    for place, start in enumerate(range(0, len(content), size)):
        files.append(folder / f"part_a{chr(ord('a') + place)}")
        files[-1].write_bytes(content[start : start + size])
    return files


def built(folder: Path, passages: Passages, model: str, files: list[Path]) -> DenseIndex:
    DenseIndex.build(folder, passages, model=model, vectors=[str(path) for path in files])
    return DenseIndex(folder, passages)


def found(index: DenseIndex) -> list[list[tuple[str, float | None]]]:
    hits = index.search_batch(tiny_bert.QUERIES, 5)
    return [[(hit.source, hit.score) for hit in row] for row in hits]


@pytest.mark.parametrize("size", [10**9, 700, 701, 1001])
def test_parts_are_read_as_the_whole(flat, vectors, tmp_path, size):
    files = parts(flat, tmp_path, size)
    rows = np.concatenate([part for _, part in chunks(mapped(files), 7)])
    assert np.array_equal(rows, vectors)


def test_a_range_of_rows_is_read_across_parts(flat, vectors, tmp_path):
    blocks = mapped(parts(flat, tmp_path, 1001))
    pieces = list(chunks(blocks, 9, 10, 50))
    assert np.array_equal(np.concatenate([part for _, part in pieces]), vectors[10:50])
    assert pieces[0][0] == 10


@pytest.mark.parametrize("size", [10**9, 1001])
def test_published_vectors_find_what_encoded_ones_find(flat, passages, model, tmp_path, size):
    index = built(tmp_path / "taken", passages, model, parts(flat, tmp_path, size))
    DenseIndex.build(tmp_path / "encoded", passages, model=model)
    assert found(index) == found(DenseIndex(tmp_path / "encoded", passages))


def test_only_a_sample_is_encoded(flat, passages, model, tmp_path, monkeypatch):
    encoded: list[int] = []
    encode = Embedder.passages

    def counted(self: Embedder, part: Any) -> np.ndarray:
        encoded.append(len(part))
        return encode(self, part)

    monkeypatch.setattr(Embedder, "passages", counted)
    built(tmp_path / "index", passages, model, [flat])
    assert encoded == [16, 16]


def test_vectors_are_not_copied(flat, passages, model, tmp_path):
    built(tmp_path / "index", passages, model, [flat])
    assert (tmp_path / "index" / "vectors.faiss.0").samefile(flat)


def test_titles_in_quotation_marks_are_recognised(passages, model, tmp_path):
    quoted = [Evidence(text=f'"{p.title}"\n{p.text}') for p in tiny_bert.corpus()]
    flat = written(tmp_path / "flat", Embedder(model).passages(quoted))
    assert len(built(tmp_path / "index", passages, model, [flat])) == tiny_bert.COUNT


def test_a_graph_is_built_of_published_vectors(flat, passages, model, tmp_path):
    DenseIndex.build(tmp_path / "i", passages, model=model, hnsw=True, vectors=[str(flat)])
    assert found(DenseIndex(tmp_path / "i", passages)) == found(
        DenseIndex(tmp_path / "i", passages, exact=True)
    )


def test_vectors_in_another_order_are_refused(vectors, passages, model, tmp_path):
    flat = written(tmp_path / "flat", vectors[::-1].copy())
    with pytest.raises(ConfigError, match="another encoder, or of another corpus or order"):
        built(tmp_path / "index", passages, model, [flat])


def test_vectors_of_another_encoder_are_refused(flat, passages, tmp_path):
    other = tiny_bert.other_model(tmp_path / "other")
    with pytest.raises(ConfigError, match=r"the median cosine .* is -?0\.\d+, and 0\.95 is asked"):
        built(tmp_path / "index", passages, other, [flat])


def test_an_encoder_of_another_size_is_refused(flat, passages, tmp_path):
    other = tiny_bert.other_model(tmp_path / "other", 32)
    with pytest.raises(ConfigError, match="vectors of 16 numbers, and those of the encoder"):
        built(tmp_path / "index", passages, other, [flat])


def test_vectors_of_fewer_passages_are_refused(vectors, passages, model, tmp_path):
    flat = written(tmp_path / "flat", vectors[:-1])
    with pytest.raises(ConfigError, match="they do not belong together"):
        built(tmp_path / "index", passages, model, [flat])


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (lambda files: files[:-1], "a part is missing, or not all of it was downloaded"),
        (lambda files: files[1:], "name them in their order"),
        (lambda files: [*files, files[0].with_name("gone")], "cannot read .*gone"),
    ],
)
def test_incomplete_parts_are_refused(flat, tmp_path, damage, why):
    with pytest.raises(DataError, match=why):
        mapped(damage(parts(flat, tmp_path, 1001)))


def test_an_index_of_distances_is_refused(vectors, tmp_path):
    with pytest.raises(DataError, match=r"no flat FAISS index of inner products .*IxF2"):
        mapped([written(tmp_path / "flat", vectors, "IndexFlatL2")])


def test_a_damaged_part_is_not_opened(flat, passages, model, tmp_path):
    copy = Path(shutil.copy(flat, tmp_path / "copy"))
    built(tmp_path / "index", passages, model, [copy])
    copy.write_bytes(copy.read_bytes()[:-7])
    with pytest.raises(ValueError, match="a part is missing"):
        DenseIndex(tmp_path / "index", passages)


def test_a_folder_is_built_opened_and_built_again(flat, model, tmp_path):
    rows = [{"id": p.source, "title": p.title, "text": p.text} for p in tiny_bert.corpus()]
    dense = {"model": model, "hnsw": False, "precision": "float32", "vectors": [str(flat)]}
    first = build_folder(rows, tmp_path / "index", kind="dense", dense=dense)
    assert open_folder(tmp_path / "index").search("w1 w2", 1)
    assert build_folder(rows, tmp_path / "index", kind="dense", dense=dense) == first


class StandInGpus:
    """FAISS as faiss-gpu has it, on the CPU."""

    def __init__(self, devices: int, room: int = 10**9) -> None:
        self.faiss, self.devices, self.room = load_faiss(), devices, room
        self.half: list[bool] = []

    def get_num_gpus(self) -> int:
        return self.devices

    def GpuIndexFlatConfig(self) -> SimpleNamespace:
        return SimpleNamespace(device=-1, useFloat16=False)

    def StandardGpuResources(self) -> object:
        return object()

    def GpuIndexFlatIP(self, resources: object, dimension: int, settings: Any) -> Any:
        self.half.append(settings.useFloat16)
        if len(self.half) * dimension > self.room:
            raise RuntimeError("out of memory")
        return self.faiss.IndexFlatIP(dimension)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.faiss, name)


@pytest.mark.parametrize("devices", [1, 3, 1000])
def test_gpus_find_what_the_cpu_finds(flat, passages, model, tmp_path, monkeypatch, devices):
    index = built(tmp_path / "index", passages, model, parts(flat, tmp_path, 1001))
    stand_in = StandInGpus(devices)
    monkeypatch.setattr("faithful_search.tools.retrieval.dense.load_faiss", lambda: stand_in)
    assert found(DenseIndex(tmp_path / "index", passages)) == found(index)
    assert len(stand_in.half) == min(devices, tiny_bert.COUNT)


def test_the_cpu_can_be_asked_for(flat, passages, model, tmp_path, monkeypatch):
    built(tmp_path / "index", passages, model, [flat])
    stand_in = StandInGpus(1)
    monkeypatch.setattr("faithful_search.tools.retrieval.dense.load_faiss", lambda: stand_in)
    DenseIndex(tmp_path / "index", passages, device="cpu")
    assert stand_in.half == []


def test_half_precision_stays_half_on_gpus(vectors):
    stand_in = StandInGpus(2)
    on_gpus(stand_in, [vectors.astype(np.float16)], half=True)
    assert stand_in.half == [True, True]


def test_without_room_on_the_gpus_the_cpu_searches(vectors, caplog):
    assert on_gpus(StandInGpus(2, room=20), [vectors], half=False) is None
    assert "searching on the CPU" in caplog.text
