"""Trajectories, and the bundled world, as datasets for the Hub: parquet files and a card.

A dataset of trajectories has a column for each score, and the whole trajectory as JSON. Its first
rows also become sessions in Pi's format, which the Hub's viewer of agent traces shows.
"""

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
from ..escape import as_line
from ..json_lines import read_rows
from ..measure.convert import WRITERS
from ..measure.documents import Document
from ..measure.writing import card_of
from ..reading.rows import read_trajectories
from ..tasks import Task, load_tasks
from ..trajectory import Trajectory
from ..wire.redact import redact
from ..world import SPLITS
from .pushing import Files

logger = logging.getLogger(__name__)
_GROUP_ROWS = 1000  # of a parquet row group
_SESSIONS = 500  # the number of rows that also become a session, each a file of the repository
_NUMBER = (int, float)
_TRAJECTORY_COLUMNS = ("id", "question", "answer", "stop_reason", "dialect", "text")


def stage_trajectories(
    source: str | os.PathLike[str],
    folder: str | os.PathLike[str],
    name: str,
    dialect: str | None = None,
) -> Files:
    """Write a file of trajectories to a folder as the dataset `name`, without the keys in its texts
    (`wire.redact`).

    Rows that cannot be read are logged and left out.

    Args:
        source: a file, as `read_trajectories` takes it.
        folder: for the parquet file.
        name: of the repository, OWNER/NAME.
        dialect: of all rows; by default it is detected for each row.

    Returns the files of the dataset by their paths in the repository. Raises `ConfigError` without
    pyarrow, and `DataError` when the file or all of its rows cannot be read.
    """
    # The file is read twice: parquet needs all columns before the first row, and the file may be
    # larger than the memory
    metrics: set[str] = set()
    skipped: list[str] = []
    for row in read_trajectories(source, dialect):
        if row.trajectory is not None:
            metrics |= _meta(row.trajectory, "scores").keys()
            continue
        skipped.append(f"row {row.number}: {row.error}")
    scored = sorted(metrics)
    dialects: Counter[str] = Counter()
    sessions: dict[str, bytes] = {}

    def rows() -> Iterator[dict[str, Any]]:
        number = 0
        for row in read_trajectories(source, dialect):
            if row.trajectory is None:
                continue
            number += 1
            dialects[row.trajectory.dialect] += 1
            if number <= _SESSIONS:
                sessions[f"sessions/{number:06}.jsonl"] = _session(number, row.trajectory)
            yield _row(row.trajectory, scored)

    path = Path(folder) / "train-00000.parquet"
    count = _write(path, rows(), scored)
    if not count:
        why = skipped[0] if skipped else "it is empty"
        raise DataError(f"{source}: no row of it is a trajectory: {why}")
    for reason in skipped:
        logger.warning("%s: left out: %s", as_line(str(source)), as_line(reason))
    card = _card(
        "trajectories_card.md",
        {"default": {"train": "data/*.parquet"}},
        ["search-agent", "agent-traces"],
        title=name.rpartition("/")[2],
        rows=count,
        dialects=dialects,
        file=Path(source).name,
        sessions=len(sessions),
        skipped=len(skipped),
        name=name,
    )
    return {"README.md": card, f"data/{path.name}": path, **sessions}


def _session(number: int, trajectory: Trajectory) -> bytes:
    """The trajectory as a session in Pi's format, in JSON lines."""
    document = Document(
        row=number,
        trajectory=trajectory,
        now=datetime.now(UTC),
        scores=_meta(trajectory, "scores"),
        reasons=_meta(trajectory, "reasons"),
    )
    session = b""
    for line in WRITERS["pi"](document):
        session += msgspec.json.encode(redact(line)) + b"\n"
    return session


def stage_world(folder: str | os.PathLike[str], name: str) -> Files:
    """Write the bundled world to a folder as the dataset `name`. Returns and raises as
    `stage_trajectories` does.
    """
    parts: dict[tuple[str, str], Iterable[dict[str, Any]]] = {}
    for split in SPLITS:
        parts["questions", split] = map(_question_row, load_tasks("world", split))
    parts["passages", "train"] = map(_passage_row, read_rows(world_file("passages.jsonl.gz")))
    parts["triples", "train"] = read_rows(world_file("triples.jsonl.gz"))
    counts: Counter[str] = Counter()
    files: dict[str, Path | bytes] = {}
    configs: defaultdict[str, dict[str, str]] = defaultdict(dict)
    for (config, split), rows in parts.items():
        path = Path(folder) / f"{config}-{split}.parquet"
        path_there = f"data/{config}/{split}.parquet"
        files[path_there] = path
        configs[config][split] = path_there
        counts[config] += _write(path, rows)
    card = _card(
        "world_card.md",
        configs,
        ["multi-hop", "question-answering"],
        "apache-2.0",
        title=name.rpartition("/")[2],
        **counts,
    )
    return {"README.md": card, **files}


def _question_row(task: Task) -> dict[str, Any]:
    return {
        "id": task.id,
        "question": task.question,
        "answers": list(task.answers),
        "hops": task.meta["hops"],
        "chain": task.meta["chain"],
        "supporting_ids": list(task.supporting_ids),
    }


def _passage_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """The passage with named parts of its facts: the Hub's viewer shows lists without names."""
    facts = [
        {"subject": subject, "relation": relation, "object": object}
        for subject, relation, object in row["facts"]
    ]
    return {**row, "facts": facts}


def _card(
    template: str,
    configs: Mapping[str, Mapping[str, str]],
    tags: list[str],
    license: str | None = None,
    **values: Any,
) -> bytes:
    """The card of a dataset. `configs` has the file of each split, by configuration."""
    from huggingface_hub import DatasetCardData

    sections = []
    for name, splits in configs.items():
        data_files = [{"split": split, "path": path} for split, path in splits.items()]
        sections.append({"config_name": name, "data_files": data_files})
    data = DatasetCardData(
        tags=["faithful-search", *tags],
        task_categories=["question-answering"],
        configs=sections,
        license=license,
    )
    return card_of(__package__, f"{template}.j2", data, version=__version__, **values)


def _write(path: Path, rows: Iterable[dict[str, Any]], scored: list[str] | None = None) -> int:
    """Write rows to a parquet file, a group at a time, and return their number.

    Rows of trajectories have the columns of these `scored` metrics. Otherwise the first group says
    what the columns are.
    """
    with needs("a pushed dataset", "parquet"):
        import pyarrow as pa
        from pyarrow import parquet
    rows = iter(rows)
    count = 0
    group = list(islice(rows, _GROUP_ROWS))
    schema = pa.Table.from_pylist(group).schema if scored is None else _schema(scored)
    with parquet.ParquetWriter(path, schema) as writer:
        while group:
            writer.write_table(pa.Table.from_pylist(group, schema=schema))
            count += len(group)
            group = list(islice(rows, _GROUP_ROWS))
    return count


def _meta(trajectory: Trajectory, key: str) -> dict[str, Any]:
    """The scores or reasons in the trajectory's `meta`, in which others may put anything."""
    value = trajectory.meta.get(key)
    return value if isinstance(value, dict) else {}


def _cell(kinds: tuple[type, ...], value: Any) -> Any:
    """The value, or `None` where a column of these types cannot hold it. The column `trajectory`
    holds it in any case.
    """
    if type(value) not in kinds:
        return None
    # A column of floats is not exact from 2**53 on, and one of whole numbers ends at 2**63
    if type(value) is int and abs(value) >= 2**53:
        return None
    return value


def _row(trajectory: Trajectory, scored: list[str]) -> dict[str, Any]:
    """The columns of a trajectory (`_schema`), with the scores and reasons of the `scored`
    metrics.
    """
    called_tools = [step.call.name for step in trajectory.steps if step.call]
    cited: dict[str, None] = {}  # the ids of passages, in order, each once
    for step in trajectory.steps:
        cited |= dict.fromkeys(step.refs)
    row: dict[str, Any] = {name: getattr(trajectory, name) for name in _TRAJECTORY_COLUMNS}
    row |= {
        "gold": list(trajectory.answers),
        "calls": len(called_tools),
        "tools": sorted(set(called_tools)),
        "evidence": [msgspec.to_builtins(passage) for passage in trajectory.passages],
        "cited": list(cited),
        "issues": [issue.kind for issue in trajectory.all_issues()],
        "step": _cell((int,), trajectory.meta.get("step")),
        "reward": _cell(_NUMBER, trajectory.meta.get("reward")),
    }
    scores = _meta(trajectory, "scores")
    reasons = _meta(trajectory, "reasons")
    for name in scored:
        row[f"score_{name}"] = _cell(_NUMBER, scores.get(name))
        row[f"why_{name}"] = _cell((str,), reasons.get(name))
    # Redacted before it becomes JSON, where line breaks and quotes within a key look different
    without_tokens = msgspec.structs.replace(trajectory, tokens=None)
    redacted = msgspec.convert(redact(msgspec.to_builtins(without_tokens)), Trajectory)
    return {**redact(row), "trajectory": redacted.to_json()}


def _schema(scored: list[str]) -> Any:
    """The types of the columns of `_row`. They are not taken from the first group of rows, in which
    a column may be empty.
    """
    import pyarrow as pa

    text = pa.string()
    texts = pa.list_(text)
    integer = pa.int64()
    real = pa.float64()
    passage = {
        "id": text,
        "title": text,
        "text": text,
        "source": text,
        "url": text,
        "score": real,
    }
    columns = dict.fromkeys(_TRAJECTORY_COLUMNS, text)
    columns |= {
        "gold": texts,
        "tools": texts,
        "cited": texts,
        "issues": texts,
        "calls": integer,
        "evidence": pa.list_(pa.struct(passage)),
        "step": integer,
        "reward": real,
    }
    for name in scored:
        columns[f"score_{name}"] = real
    for name in scored:
        columns[f"why_{name}"] = text
    columns["trajectory"] = text
    return pa.schema(columns)
