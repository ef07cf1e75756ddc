"""Trajectories and the bundled world as datasets of the Hub: parquet that its viewer shows, and a card."""

from __future__ import annotations

import gzip
import json
import logging
import os
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from .. import __version__
from ..bundled import world_file
from ..errors import ConfigError, DataError
from ..measure.convert import WRITERS, Document
from ..measure.rows import read_trajectories
from ..tasks import load_tasks
from ..trajectory import Trajectory
from ..wire.redact import redact
from ..world import SPLITS
from .card import render, with_front
from .repository import Files

logger = logging.getLogger(__name__)
_AT_ONCE = 1000  # rows of a parquet row group
_SESSIONS = 500  # rows that also become a session, each a file of the repository


def stage_trajectories(
    source: str | os.PathLike[str], folder: str | os.PathLike[str], name: str, dialect: str | None = None
) -> Files:
    """Write a file of trajectories to a folder as the dataset `name`; keys in texts are taken out (`wire.redact`).

    Args:
        source: whatever `read_trajectories` reads: `trajectories.jsonl` of a run, or another agent's log.
        dialect: of all rows; by default each row's own.

    Returns:
        The dataset's files by their path in the repository. Rows that cannot be read are logged and left out.

    Raises:
        ConfigError: when pyarrow is not installed.
        DataError: when the file cannot be read, or not one row of it.
    """
    # The file is read twice: parquet needs all columns before the first row, and a log may be larger than the memory
    names = sorted({part for one in _read(source, dialect) for part in _told(one)})
    dialects: dict[str, int] = {}
    skipped: list[str] = []
    sessions: dict[str, Path | bytes] = {}

    def rows() -> Iterator[dict[str, Any]]:
        for number, one in enumerate(_read(source, dialect, skipped), start=1):
            dialects[one.dialect] = dialects.get(one.dialect, 0) + 1
            if number <= _SESSIONS:
                document = Document(number, one, datetime.now(UTC), _told(one), _told(one, "reasons"))
                lines = (msgspec.json.encode(redact(line)) + b"\n" for line in WRITERS["pi"](document))
                sessions[f"sessions/{number:06}.jsonl"] = b"".join(lines)
            yield _row(one, names)

    path = Path(folder) / "train-00000.parquet"
    many = _write(path, rows(), _schema(names))
    if not many:
        raise DataError(f"{source}: no row of it is a trajectory: {skipped[0] if skipped else 'it is empty'}")
    for reason in skipped:
        logger.warning("%s: left out: %s", source, reason)
    card = render(
        "trajectories_card.md",
        title=name.rpartition("/")[2],
        rows=many,
        dialects=", ".join(f"`{dialect}` ({count:,})" for dialect, count in dialects.items()),
        version=__version__,
        file=Path(source).name,
        sessions=len(sessions),
        skipped=f" {len(skipped):,} rows could not be read and are left out." if skipped else "",
        name=name,
    )
    tags = ["faithful-search", "search-agent", "agent-traces"]
    return {"README.md": _card(card, {"train": "data/*.parquet"}, tags), f"data/{path.name}": path, **sessions}


def stage_world(folder: str | os.PathLike[str], name: str) -> Files:
    """Write the bundled world to a folder as the dataset `name`; returns its files as `stage_trajectories` does.

    Raises:
        ConfigError: when pyarrow is not installed.
    """
    out, counts, files = Path(folder), {"questions": 0, "passages": 0, "triples": 0}, {}
    parts: dict[str, Iterable[dict[str, Any]]] = {}
    for split in SPLITS:
        parts[f"questions/{split}"] = (
            {"id": task.id, "question": task.question, "answers": list(task.answers), "hops": task.meta["hops"]}
            | {"chain": task.meta["chain"], "supporting_ids": list(task.supporting_ids)}
            for task in load_tasks("world", split)
        )
    # by name: the viewer of the Hub shows a list of three without saying what is what
    names = ("subject", "relation", "object")
    parts["passages/train"] = (
        {**row, "facts": [dict(zip(names, fact, strict=True)) for fact in row["facts"]]}
        for row in _lines("passages.jsonl.gz")
    )
    parts["triples/train"] = _lines("triples.jsonl.gz")
    for part, rows in parts.items():
        path = out / f"{part.replace('/', '-')}.parquet"
        counts[part.partition("/")[0]] += _write(path, rows)
        files[f"data/{part}.parquet"] = path
    card = render("world_card.md", title=name.rpartition("/")[2], version=__version__, **counts)
    splits = {split: f"data/questions/{split}.parquet" for split in SPLITS}
    more = {part: f"data/{part}/train.parquet" for part in ("passages", "triples")}
    tags = ["faithful-search", "multi-hop", "question-answering"]
    return {"README.md": _card(card, splits, tags, more, license="apache-2.0"), **files}


def _read(source: Any, dialect: str | None, skipped: list[str] | None = None) -> Iterator[Trajectory]:
    for row in read_trajectories(source, dialect):
        if row.trajectory is not None:
            yield row.trajectory
        elif skipped is not None:
            skipped.append(f"row {row.number}: {row.error}")


def _told(one: Trajectory, key: str = "scores") -> dict[str, Any]:
    told = one.meta.get(key)
    return told if isinstance(told, dict) else {}


def _if(kind: type, value: Any) -> Any:
    """The value where a column of this kind can hold it: what others put there is only in the column `trajectory`."""
    if isinstance(value, bool) or not isinstance(value, (int, float) if kind is float else kind):
        return None
    # from there on floats are not exact, and at 2**63 the column of whole numbers ends
    return None if isinstance(value, int) and abs(value) >= 2**53 else kind(value)


def _row(one: Trajectory, names: list[str]) -> dict[str, Any]:
    calls = [step.call.name for step in one.steps if step.call]
    scores, reasons = _told(one), _told(one, "reasons")
    whole = msgspec.to_builtins(msgspec.structs.replace(one, tokens=None))
    row = {
        "id": one.id,
        "question": one.question,
        "gold": list(one.answers),
        "answer": one.answer,
        "stop_reason": one.stop_reason,
        "dialect": one.dialect,
        "calls": len(calls),
        "tools": sorted(set(calls)),
        "evidence": [msgspec.to_builtins(item) for item in one.evidence.values()],
        "cited": list(dict.fromkeys(ref for step in one.steps for ref in step.refs)),
        "issues": [issue.kind for issue in one.all_issues()],
        "text": one.text,
        "step": _if(int, one.meta.get("step")),
        "reward": _if(float, one.meta.get("reward")),
        **{f"score_{name}": _if(float, scores.get(name)) for name in names},
        **{f"why_{name}": _if(str, reasons.get(name)) for name in names},
    }
    # before it is JSON, in which a key's line breaks and quotes are written otherwise
    return {**redact(row), "trajectory": msgspec.convert(redact(whole), Trajectory).to_json()}


def _schema(names: list[str]) -> Any:
    import pyarrow as pa

    # Given, not inferred: a column that is empty in the first group of rows has a type all the same
    text, texts, whole, real = pa.string(), pa.list_(pa.string()), pa.int64(), pa.float64()
    item = dict.fromkeys(("id", "title", "text", "source", "url"), text) | {"score": real}
    lists = {"evidence": pa.list_(pa.struct(item)), "cited": texts, "issues": texts}
    return pa.schema(
        {
            **{"id": text, "question": text, "gold": texts, "answer": text, "stop_reason": text, "dialect": text},
            **{"calls": whole, "tools": texts, **lists, "text": text, "step": whole, "reward": real},
            **{f"score_{name}": real for name in names},
            **{f"why_{name}": text for name in names},
            "trajectory": text,
        }
    )


def _lines(name: str) -> Iterator[dict[str, Any]]:
    with gzip.open(world_file(name), "rt", encoding="utf-8") as file:
        yield from map(json.loads, file)


def _write(path: Path, rows: Iterable[dict[str, Any]], schema: Any = None) -> int:
    """Write rows to a parquet file, a group at a time; returns how many."""
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError as error:
        raise ConfigError("datasets are pushed as parquet: pip install 'faithful-search[parquet]'") from error
    rows, many, writer = iter(rows), 0, None
    try:
        while group := list(islice(rows, _AT_ONCE)):
            table = pa.Table.from_pylist(group, schema=schema)
            schema = table.schema
            writer = writer or parquet.ParquetWriter(path, schema)
            writer.write_table(table)
            many += len(group)
    finally:
        if writer is not None:
            writer.close()
    return many


def _card(body: str, splits: dict[str, str], tags: list[str], more: dict[str, str] | None = None, **data: Any) -> bytes:
    from huggingface_hub import DatasetCard, DatasetCardData

    own = {"config_name": "questions" if more else "default", "data_files": _files(splits)}
    others = [{"config_name": name, "data_files": _files({"train": path})} for name, path in (more or {}).items()]
    front = DatasetCardData(tags=tags, task_categories=["question-answering"], configs=[own, *others], **data)
    return str(DatasetCard(with_front(front, body))).encode()


def _files(splits: dict[str, str]) -> list[dict[str, str]]:
    return [{"split": split, "path": path} for split, path in splits.items()]
