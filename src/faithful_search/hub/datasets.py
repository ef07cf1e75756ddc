"""Trajectories and the bundled world as datasets of the Hub: parquet that its viewer shows, and a card."""

import logging
import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from .. import __version__
from ..bundled import world_file
from ..errors import DataError, needs
from ..measure.convert import WRITERS, Document
from ..measure.rows import read_trajectories
from ..measure.writing import card_of
from ..tasks import load_tasks, read_rows
from ..trajectory import Trajectory
from ..wire.redact import redact
from ..world import SPLITS
from .pushing import Files

logger = logging.getLogger(__name__)
_AT_ONCE = 1000  # rows of a parquet row group
_SESSIONS = 500  # rows that also become a session, each a file of the repository
_NUMBER = (int, float)
_PLAIN = (
    "id",
    "question",
    "answer",
    "stop_reason",
    "dialect",
    "text",
)  # columns that are parts of a trajectory


def stage_trajectories(
    source: str | os.PathLike[str],
    folder: str | os.PathLike[str],
    name: str,
    dialect: str | None = None,
) -> Files:
    """Write a file of trajectories to a folder as the dataset `name`; keys in texts are taken out (`wire.redact`).

    `source` is whatever `read_trajectories` reads, `dialect` that of all rows, by default each row's own. Returns the
    dataset's files by their path in the repository. Rows that cannot be read are logged and left out. Raises
    `ConfigError` without pyarrow, `DataError` when the file or every row of it cannot be read.
    """
    # The file is read twice: parquet needs all columns before the first row, and a log may be larger than the memory
    scored: set[str] = set()
    skipped: list[str] = []
    for row in read_trajectories(source, dialect):
        if row.trajectory is None:
            skipped.append(f"row {row.number}: {row.error}")
            logger.warning("%s: left out: %s", source, skipped[-1])
        else:
            scored |= _told(row.trajectory, "scores").keys()
    names, dialects, sessions = sorted(scored), Counter[str](), {}

    def rows() -> Iterator[dict[str, Any]]:
        whole = (
            row.trajectory
            for row in read_trajectories(source, dialect)
            if row.trajectory is not None
        )
        for number, one in enumerate(whole, start=1):
            dialects[one.dialect] += 1
            if number <= _SESSIONS:
                document = Document(
                    number, one, datetime.now(UTC), _told(one, "scores"), _told(one, "reasons")
                )
                lines = (
                    msgspec.json.encode(redact(line)) + b"\n" for line in WRITERS["pi"](document)
                )
                sessions[f"sessions/{number:06}.jsonl"] = b"".join(lines)
            yield _row(one, names)

    path = Path(folder) / "train-00000.parquet"
    many = _write(path, rows(), names)
    if not many:
        raise DataError(
            f"{source}: no row of it is a trajectory: {skipped[0] if skipped else 'it is empty'}"
        )
    card = _card(
        "trajectories_card.md",
        {"default": {"train": "data/*.parquet"}},
        ["search-agent", "agent-traces"],
        title=name.rpartition("/")[2],
        rows=many,
        dialects=", ".join(f"`{dialect}` ({count:,})" for dialect, count in dialects.items()),
        file=Path(source).name,
        sessions=len(sessions),
        skipped=f" {len(skipped):,} rows could not be read and are left out." if skipped else "",
        name=name,
    )
    return {"README.md": card, f"data/{path.name}": path, **sessions}


def stage_world(folder: str | os.PathLike[str], name: str) -> Files:
    """Write the bundled world to a folder as the dataset `name`; returns and raises as `stage_trajectories` does."""
    parts: dict[tuple[str, str], Iterable[dict[str, Any]]] = {}
    for split in SPLITS:
        parts["questions", split] = (
            {
                "id": task.id,
                "question": task.question,
                "answers": list(task.answers),
                "hops": task.meta["hops"],
            }
            | {"chain": task.meta["chain"], "supporting_ids": list(task.supporting_ids)}
            for task in load_tasks("world", split)
        )
    # by name: the viewer of the Hub shows a list of three without saying what is what
    names = ("subject", "relation", "object")
    parts["passages", "train"] = (
        {**row, "facts": [dict(zip(names, fact, strict=True)) for fact in row["facts"]]}
        for row in read_rows(world_file("passages.jsonl.gz"))
    )
    parts["triples", "train"] = read_rows(world_file("triples.jsonl.gz"))
    counts: Counter[str] = Counter()
    files: dict[str, Path | bytes] = {}
    configs: defaultdict[str, dict[str, str]] = defaultdict(dict)
    for (config, split), rows in parts.items():
        path, there = Path(folder) / f"{config}-{split}.parquet", f"data/{config}/{split}.parquet"
        files[there], configs[config][split] = path, there
        counts[config] += _write(path, rows)
    tags, title = ["multi-hop", "question-answering"], name.rpartition("/")[2]
    return {
        "README.md": _card("world_card.md", configs, tags, "apache-2.0", title=title, **counts),
        **files,
    }


def _card(
    template: str,
    configs: Mapping[str, Mapping[str, str]],
    tags: list[str],
    license: str | None = None,
    **values: Any,
) -> bytes:
    """A dataset's card; `configs` are the files of each split, by configuration."""
    from huggingface_hub import DatasetCardData

    told = [
        {
            "config_name": name,
            "data_files": [{"split": split, "path": path} for split, path in splits.items()],
        }
        for name, splits in configs.items()
    ]
    tags, tasks = ["faithful-search", *tags], ["question-answering"]
    data = DatasetCardData(tags=tags, task_categories=tasks, configs=told, license=license)
    return card_of(__package__, f"{template}.j2", data, version=__version__, **values)


def _write(path: Path, rows: Iterable[dict[str, Any]], scored: list[str] | None = None) -> int:
    """Write rows to a parquet file, a group at a time; returns how many. `scored`: they are trajectories."""
    with needs("a pushed dataset", "parquet"):
        import pyarrow as pa
        from pyarrow import parquet
    rows, many = iter(rows), 0
    group = list(islice(rows, _AT_ONCE))
    schema = pa.Table.from_pylist(group).schema if scored is None else _schema(scored)
    with parquet.ParquetWriter(path, schema) as writer:
        while group:
            writer.write_table(pa.Table.from_pylist(group, schema=schema))
            many += len(group)
            group = list(islice(rows, _AT_ONCE))
    return many


def _told(one: Trajectory, key: str) -> dict[str, Any]:
    told = one.meta.get(key)
    return told if isinstance(told, dict) else {}


def _if(kinds: tuple[type, ...], value: Any) -> Any:
    """The value where a column of these can hold it: what others put there is only in the column `trajectory`."""
    # from 2**53 on floats are not exact, and at 2**63 the column of whole numbers ends
    return (
        value if type(value) in kinds and not (type(value) is int and abs(value) >= 2**53) else None
    )


def _row(one: Trajectory, names: list[str]) -> dict[str, Any]:
    calls = [step.call.name for step in one.steps if step.call]
    scores, reasons = _told(one, "scores"), _told(one, "reasons")
    whole = msgspec.to_builtins(msgspec.structs.replace(one, tokens=None))
    row = {name: getattr(one, name) for name in _PLAIN} | {
        "gold": list(one.answers),
        "calls": len(calls),
        "tools": sorted(set(calls)),
        "evidence": [msgspec.to_builtins(item) for item in one.evidence.values()],
        "cited": list(dict.fromkeys(ref for step in one.steps for ref in step.refs)),
        "issues": [issue.kind for issue in one.all_issues()],
        "step": _if((int,), one.meta.get("step")),
        "reward": _if(_NUMBER, one.meta.get("reward")),
        **{f"score_{name}": _if(_NUMBER, scores.get(name)) for name in names},
        **{f"why_{name}": _if((str,), reasons.get(name)) for name in names},
    }
    # before it is JSON, in which a key's line breaks and quotes are written otherwise
    return {**redact(row), "trajectory": msgspec.convert(redact(whole), Trajectory).to_json()}


def _schema(scored: list[str]) -> Any:
    """The types of `_row`'s columns: one that is empty in the first group of rows has a type all the same."""
    import pyarrow as pa

    text, texts, whole, real = pa.string(), pa.list_(pa.string()), pa.int64(), pa.float64()
    item = dict.fromkeys(("id", "title", "text", "source", "url"), text) | {"score": real}
    own = dict.fromkeys(_PLAIN, text) | dict.fromkeys(("gold", "tools", "cited", "issues"), texts)
    own |= {"calls": whole, "evidence": pa.list_(pa.struct(item)), "step": whole, "reward": real}
    scores = {f"score_{name}": real for name in scored} | {f"why_{name}": text for name in scored}
    return pa.schema({**own, **scores, "trajectory": text})
