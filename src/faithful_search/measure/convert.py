"""Trajectories as others write them down: a document for each row, with an audit's scores as metadata."""

import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from ..errors import ConfigError, DataError
from ..trajectory import Trajectory
from ..wire.files import replacing
from ..wire.redact import redact
from .files import PathLike, local_file
from .rows import Raw, Source
from .scores import SCORES, Line, read_scores
from .settings import Reading
from .summary import NAMED
from .writing import results_folder

UNKNOWN = "unknown"
_UNSAFE = re.compile(r"[^\w.-]+", re.ASCII)


class Document(msgspec.Struct, frozen=True):
    """One row: its trajectory, its scores and their reasons, and when it was converted, where a format wants a time."""

    row: int
    trajectory: Trajectory
    now: datetime
    scores: dict[str, float | None] = {}
    reasons: dict[str, str] = {}

    @property
    def name(self) -> str:
        return self.trajectory.id or f"row-{self.row}"

    @property
    def metadata(self) -> dict[str, Any]:
        """What the formats have no place of their own for."""
        read = self.trajectory
        found = {
            "id": read.id,
            "row": self.row,
            "question": read.question,
            "answer": read.answer,
            "gold_answers": list(read.answers),
            "read_as": read.dialect,
            "stop_reason": read.stop_reason,
            "verdicts": {
                str(number): {"helpful": step.helpful, "refs": list(step.refs)}
                for number, step in enumerate(read.steps, start=1)
                if step.helpful is not None
            },
            "issues": [{"kind": issue.kind, "why": issue.why} for issue in read.all_issues()],
            "scores": self.scores,
            "reasons": self.reasons,
        }
        return {
            name: value for name, value in found.items() if value not in (None, "", [], {})
        }  # 0 is kept


class Converted(msgspec.Struct):
    """What became of a file's rows: why some are `unread`, and the numbers of those with what looks like a key."""

    written: int = 0
    scored: int = 0
    unread: list[str] = []
    secrets: list[int] = []

    def told(self, scrub: bool) -> list[str]:
        """The messages for the user, one a line."""
        lines = [f"rows that could not be read: {len(self.unread)}"] if self.unread else []
        lines += [f"  {why}" for why in self.unread[:NAMED]]
        if self.secrets:
            named = ", ".join(map(str, self.secrets[:NAMED])) + (
                ", …" if len(self.secrets) > NAMED else ""
            )
            what = "were taken out" if scrub else "are still there: --scrub takes them out"
            lines.append(f"things that look like keys, in rows {named}, {what}")
        return lines


def convert(
    source: PathLike,
    out: PathLike,
    to: str,
    *,
    scores: PathLike | None = None,
    scrub: bool = False,
    **settings: Any,
) -> Converted:
    """Write each row that can be read in another format, one of `WRITERS`.

    `source` and `settings` (`dialect`, `text_column`, `limit`) are as in `audit`. If `out` ends in `.jsonl` it gets one
    row a line, else it is a folder that gets a file for each row. `scores` is an audit of the same rows, its folder or
    `scores.jsonl`; they become metadata. `scrub` takes out what `redact` takes for a secret; else such rows are only
    counted. Raises `DataError` when the source cannot be read, the result cannot be written, or the scores are of other
    rows, `ConfigError` for an unknown format, or one that cannot be a line of a file.
    """
    out = Path(out)
    if to not in WRITERS:
        raise ConfigError(f"unknown format {to!r}; there are: {', '.join(WRITERS)}")
    if to == "pi" and out.suffix == ".jsonl":
        raise ConfigError(f"a pi session is a file of its own: name a folder instead of {out}")
    rows, found = Source(local_file(source), Reading(**settings)), Converted()
    documents = _documents(rows, to, scores, scrub, found)
    folder = results_folder(out.parent if out.suffix == ".jsonl" else out)
    try:
        if out.suffix == ".jsonl":
            with replacing(out) as partial, partial.open("wb") as file:
                file.writelines(data for _, data in documents)
        else:
            for name, data in documents:
                (folder / name).write_bytes(data)
    except OSError as error:
        raise DataError(f"cannot write {out}: {error}") from error
    found.unread += [rows.error] if rows.error else []
    return found


def _documents(
    rows: Source, to: str, scores: PathLike | None, scrub: bool, found: Converted
) -> Iterator[tuple[str, bytes]]:
    """The name of a file for each row, and what is written into it; counted in `found`."""
    now = datetime.now(UTC)
    for raw, line in _with_scores(rows, scores):
        read = rows.reader(raw)
        if read.trajectory is None:
            found.unread.append(f"row {raw.number}: {read.error}")
            continue
        cells = line.scores if line is not None else {}
        values = {name: cell.value for name, cell in cells.items()}
        reasons = {name: cell.why for name, cell in cells.items() if cell.why}
        made = WRITERS[to](Document(raw.number, read.trajectory, now, values, reasons))
        clean = redact(made)
        if msgspec.json.encode(clean) != msgspec.json.encode(made):
            found.secrets.append(raw.number)
        found.scored += bool(cells)
        found.written += 1
        kept = clean if scrub else made
        lines, ending = (kept, ".jsonl") if isinstance(kept, list) else ([kept], ".json")
        # The number keeps the order and tells equal ids apart; file systems take 255 bytes
        name = _UNSAFE.sub("-", f"{raw.number:06}-{read.trajectory.id}").strip("-.")[:100]
        yield f"{name}{ending}", b"".join(msgspec.json.encode(one) + b"\n" for one in lines)


def _with_scores(rows: Source, scores: PathLike | None) -> Iterator[tuple[Raw, Line | None]]:
    """Each row with its line of the scores; both files are in the order of the source, so neither is held."""
    path = Path(scores or "")
    lines = iter(()) if scores is None else read_scores(path / SCORES if path.is_dir() else path)
    line = next(lines, None)
    for raw in rows:
        while line is not None and line.row < raw.number:
            line = next(lines, None)
        own = line if line is not None and line.row == raw.number else None
        if own is not None and own.digest != raw.digest:
            raise DataError(
                f"{scores}: row {raw.number} is not the row that was scored; audit the file again"
            )
        yield raw, own


def atif(document: Document) -> dict[str, Any]:
    """The agent trajectory interchange format (ATIF) 1.8: the question is the user's step, each turn the agent's."""
    read = document.trajectory
    steps: list[dict[str, Any]] = (
        [] if read.question is None else [{"source": "user", "message": read.question}]
    )
    for think, calls, answer in _turns(read):
        step: dict[str, Any] = {"source": "agent", "message": answer or ""}
        if think:
            step["reasoning_content"] = think
        if calls:
            step["tool_calls"] = [
                {"tool_call_id": call.id, "function_name": call.name, "arguments": call.arguments}
                for call in calls
            ]
            results = [{"source_call_id": call.id, "content": call.response} for call in calls]
            step["observation"] = {"results": results}
        steps.append(step)
    return {
        "schema_version": "ATIF-v1.8",
        "session_id": document.name,
        "agent": {"name": read.dialect or UNKNOWN, "version": UNKNOWN},
        "steps": [{"step_id": number, **step} for number, step in enumerate(steps, start=1)],
        "extra": document.metadata,
    }


def openai(document: Document) -> dict[str, Any]:
    """OpenAI's chat messages, beside them what an audit looks for: id, question, answers."""
    read = document.trajectory
    messages: list[dict[str, Any]] = (
        [] if read.question is None else [{"role": "user", "content": read.question}]
    )
    for think, calls, answer in _turns(read):
        message: dict[str, Any] = {"role": "assistant", "content": answer or ""}
        if think:
            message["reasoning_content"] = think  # where servers of open models put it
        if calls:
            message["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": _json(call.arguments)},
                }
                for call in calls
            ]
        messages.append(message)
        messages += [
            {"role": "tool", "tool_call_id": call.id, "content": call.response} for call in calls
        ]
    row = {
        "id": document.name,
        "question": read.question,
        "answers": list(read.answers),
        "messages": messages,
    }
    return {**row, "metadata": document.metadata}


def pi(document: Document) -> list[dict[str, Any]]:
    """A Pi session (version 3), which the Hub shows: a header, then entries that name the one before them.

    The scores are an entry of their own, outside the conversation.
    """
    read, time = (
        document.trajectory,
        document.now.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
    )
    # Pi requires a provider and a cost for each message, which a trajectory does not have
    counts = {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0}
    usage = {**counts, "totalTokens": 0, "cost": {**counts, "total": 0}}
    made_by = {"api": UNKNOWN, "provider": UNKNOWN, "model": UNKNOWN, "usage": usage}

    def text(value: str) -> list[dict[str, Any]]:
        return [{"type": "text", "text": value}]

    messages: list[dict[str, Any]] = []
    if read.question is not None:
        messages.append({"role": "user", "content": text(read.question)})
    for think, calls, answer in _turns(read):
        content: list[dict[str, Any]] = [{"type": "thinking", "thinking": think}] if think else []
        content += text(answer) if answer is not None else []
        content += [
            {"type": "toolCall", "id": call.id, "name": call.name, "arguments": call.arguments}
            for call in calls
        ]
        reason = "toolUse" if calls else "stop"
        messages.append({"role": "assistant", "content": content, **made_by, "stopReason": reason})
        for call in calls:
            answered = {"toolCallId": call.id, "toolName": call.name, "isError": call.failed}
            messages.append({"role": "toolResult", **answered, "content": text(call.response)})
    milliseconds = int(document.now.timestamp() * 1000)
    entries = [
        {"type": "message", "message": {**message, "timestamp": milliseconds}}
        for message in messages
    ]
    entries.append({"type": "custom", "customType": "faithful-search", "data": document.metadata})
    header = {"type": "session", "version": 3, "id": document.name, "timestamp": time, "cwd": "/"}
    lines, before = [{**header, "harness": "faithful-search"}], None
    for number, entry in enumerate(entries, start=1):
        lines.append({**entry, "id": f"{number:08x}", "parentId": before, "timestamp": time})
        before = f"{number:08x}"
    return lines


def trajectory(document: Document) -> dict[str, Any]:
    """Our own trajectory, as `fs.read_jsonl` reads it; scores and reasons are in its `meta`, as in an evaluation's."""
    read = document.trajectory
    given = {"scores": document.scores, "reasons": document.reasons} if document.scores else {}
    made: dict[str, Any] = msgspec.to_builtins(
        msgspec.structs.replace(read, meta={**read.meta, **given})
    )
    return made


WRITERS: dict[str, Callable[[Document], Any]] = {
    "atif": atif,
    "openai": openai,
    "pi": pi,
    "trajectory": trajectory,
}
"""By format, what makes of a row a value to be written as JSON; a list is one value a line."""


class _Call(NamedTuple):
    """`response` is JSON of the evidence, each with its id; the note as it is."""

    id: str
    name: str
    arguments: dict[str, Any]
    response: str
    failed: bool


def _turns(trajectory: Trajectory) -> Iterator[tuple[str, list[_Call], str | None]]:
    """The thought, calls and answer of each turn, in order; a thought without a call or an answer is one, too."""
    count = 0
    for steps in trajectory.turns:
        calls = []
        for step in steps:
            if step.call is not None:
                count += 1
                # What could not be parsed goes along as it was written
                arguments = step.call.arguments or (
                    {"raw": step.call.raw} if step.call.raw.strip() else {}
                )
                found = [
                    {"id": one.id, "title": one.title, "url": one.url, "text": one.text}
                    for one in step.evidence
                ]
                shown = [
                    {name: text for name, text in one.items() if text or name == "text"}
                    for one in found
                ]
                response, failed = (
                    _json(shown) if shown else step.note,
                    not shown and bool(step.note),
                )
                calls.append(
                    _Call(f"call_{count}", step.call.name or UNKNOWN, arguments, response, failed)
                )
        answer = next((step.answer for step in steps if step.answer is not None), None)
        yield (steps[0].think or "").strip(), calls, answer


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()
