"""Trajectories as others write them down, with an audit's scores."""

import gzip
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, get_args

import msgspec

from ..citations import is_address
from ..errors import ConfigError, DataError, reason_of
from ..reading.files import STDIN, PathLike, inside, is_named_as_data, local_file
from ..reading.rows import RowSource
from ..reading.settings import ReadingSettings
from ..trajectory import Citation, Evidence, Step, ToolCall, Trajectory
from ..wire.files import replacing
from ..wire.redact import redact
from .documents import Converted, Document, documents_of
from .inspect_log import write_inspect_log
from .langfuse import batch_of
from .settings import Format
from .writing import make_folder

UNKNOWN = "unknown"
LINES = (".jsonl", ".jsonl.gz")
"""The endings of files with a row a line."""
# How `_written` names the file of a row
_NAME_OF_ROW = re.compile(r"[0-9]{6,}(-[\w.-]+)?\.jsonl?", re.ASCII)
_UNSAFE = re.compile(r"[^\w.-]+", re.ASCII)


def convert(
    source: PathLike,
    out: PathLike,
    to: str,
    *,
    scores: PathLike | None = None,
    scrub: bool = False,
    **settings: Any,
) -> Converted:
    """Write each row that can be read in another format.

    `source` and `settings` (`dialect`, `text_column`, `limit`) are as in `audit`. If `out` ends in
    `.jsonl` or `.jsonl.gz` it gets one row a line, else it is a folder that gets a file for each
    row, and may hold no others of an earlier conversion. `scores` is
    an audit of the same rows, its folder or `scores.jsonl`; they become metadata. `scrub` takes out
    what `redact` takes for a secret; else such rows are only counted. For `inspect`, source and
    `out` are logs, and the scores are added to it; for `langfuse` each row is the body of a request
    that adds its scores to its trace. Raises `DataError` when the
    source cannot be read, the result cannot be written, or the scores are of other rows,
    `ConfigError` for an unknown format, for one that cannot be a line of a file, or that is nothing
    without scores, for an `out` that is the source, or a file of it, for a folder with files of
    other rows, and for an `out` that is named as another kind of file, or `-`. Where no row can be
    read, nothing is written.
    """
    out = Path(out)
    is_file = out.name.endswith(LINES)
    if str(out) == STDIN:
        raise ConfigError(
            "a conversion is not written to the standard output: name a file that ends in "
            f"{' or '.join(LINES)}, or a folder, in the place of {out}"
        )
    if to not in get_args(Format):
        raise ConfigError(f"unknown format {to!r}; there are: {', '.join(get_args(Format))}")
    if to == "pi" and is_file:
        raise ConfigError(f"a pi session is a file of its own: name a folder instead of {out}")
    if to in SCORED and scores is None:
        raise ConfigError(f"{to} is for scores: say of which audit they are (--scores)")
    path = local_file(source)
    rows = RowSource(path, ReadingSettings(**settings))
    if to == "inspect":  # a log keeps all that it holds
        return write_inspect_log(path, rows, out, scores or "")
    if is_named_as_data(out) and not is_file and not out.is_dir():
        raise ConfigError(
            f"{out} is neither a folder nor a file of lines: name one that ends in "
            f"{' or '.join(LINES)}, or a folder"
        )
    _refuse_source(path, out)
    conversion = Converted()
    files = _written(documents_of(rows, scores, conversion), to, scrub, conversion)
    first = next(files, None)
    if first is not None:
        folder = make_folder(out.parent if is_file else out)
        try:
            if is_file:
                _write_lines(out, chain([first], files))
            else:
                _write_files(folder, chain([first], files))
        except OSError as error:
            raise DataError(f"cannot write {out}: {reason_of(error)}") from error
    if rows.error:
        conversion.unread.append(rows.error)
    return conversion


def _write_lines(out: Path, files: Iterable[tuple[str, bytes]]) -> None:
    lines = (data for _, data in files)
    with replacing(out) as partial, partial.open("wb") as file:
        if out.suffix != ".gz":
            file.writelines(lines)
            return
        # Without a time, so that equal rows make equal files
        with gzip.GzipFile(out.stem, "wb", fileobj=file, mtime=0) as packed:
            packed.writelines(lines)


def _write_files(folder: Path, files: Iterable[tuple[str, bytes]]) -> None:
    """Raises `ConfigError` where files of an earlier conversion would stay beside these, and leaves
    the folder as it is: who reads it would take both for one.
    """
    earlier = {path.name for path in folder.iterdir() if _NAME_OF_ROW.fullmatch(path.name)}
    with TemporaryDirectory(prefix=".convert-", dir=folder) as name_of_new:
        new = Path(name_of_new)
        for name, data in files:
            (new / name).write_bytes(data)
            earlier.discard(name)
        if earlier:
            raise ConfigError(
                f"{folder} also holds {len(earlier)} files of an earlier conversion, such as "
                f"{min(earlier)}: delete them, or name another folder"
            )
        for path in new.iterdir():
            path.replace(folder / path.name)


def _refuse_source(source: Path, out: Path) -> None:
    """Raise `ConfigError` where the result would replace what is read: rows that cannot be read
    would be lost, and all that the format has no place for.
    """
    sources = [source]
    if source.is_dir():
        sources += inside(source)
    written_over = [path for path in sources if path.exists() and _NAME_OF_ROW.fullmatch(path.name)]
    sources += [path.parent for path in written_over]
    if out.exists() and any(path.exists() and out.samefile(path) for path in sources):
        raise ConfigError(f"{out} is what is read: name another file or folder for the result")


def _written(
    documents: Iterable[Document], to: str, scrub: bool, conversion: Converted
) -> Iterator[tuple[str, bytes]]:
    """The name of a file for each row, and what is written into it; counted in `conversion`."""
    for document in documents:
        try:
            made = WRITERS[to](document)
        except DataError as error:
            conversion.unread.append(f"row {document.row}: {error}")
            continue
        clean = redact(made)
        if msgspec.json.encode(clean) != msgspec.json.encode(made):
            conversion.secrets.append(document.row)
        conversion.written += 1
        result = clean if scrub else made
        # The number keeps the order and tells equal ids apart; file systems take 255 bytes
        name = _UNSAFE.sub("-", f"{document.row:06}-{document.trajectory.id}").strip("-.")[:100]
        if isinstance(result, list):
            yield f"{name}.jsonl", b"".join(map(_line, result))
        else:
            yield f"{name}.json", _line(result)


def _line(value: Any) -> bytes:
    return msgspec.json.encode(value) + b"\n"


def atif(document: Document) -> dict[str, Any]:
    """The agent trajectory interchange format (ATIF) 1.8: the question is the user's step, each
    turn the agent's.
    """
    source = document.trajectory
    steps: list[dict[str, Any]] = []
    if source.question is not None:
        steps.append({"source": "user", "message": source.question})
    for think, calls, answer in _turns(source):
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
        "agent": {"name": source.dialect or UNKNOWN, "version": UNKNOWN},
        "steps": [{"step_id": number, **step} for number, step in enumerate(steps, start=1)],
        "extra": document.metadata,
    }


def openai(document: Document) -> dict[str, Any]:
    """OpenAI's chat messages, beside them what an audit looks for: id, question, answers."""
    source = document.trajectory
    messages: list[dict[str, Any]] = []
    if source.question is not None:
        messages.append({"role": "user", "content": source.question})
    for (think, calls, answer), steps in zip(_turns(source), source.turns, strict=True):
        message: dict[str, Any] = {"role": "assistant", "content": answer or ""}
        if think:
            message["reasoning_content"] = think  # where servers of open models put it
        annotations = _annotations(steps)
        if annotations:
            message["annotations"] = annotations
        if calls:
            message["tool_calls"] = [_openai_call(call) for call in calls]
        messages.append(message)
        for call in calls:
            messages.append({"role": "tool", "tool_call_id": call.id, "content": call.response})
    return {
        "id": document.name,
        "question": source.question,
        "answers": list(source.answers),
        "messages": messages,
        "metadata": document.metadata,
    }


def _openai_call(call: "_ExportedCall") -> dict[str, Any]:
    function = {"name": call.name, "arguments": _json(call.arguments)}
    return {"id": call.id, "type": "function", "function": function}


def _annotations(steps: Sequence[Step]) -> list[dict[str, Any]]:
    """What an API sent about the sources of a turn's answer, in the form that OpenAI has for it."""
    citations: list[Citation] = []
    for step in steps:
        if step.answer is not None:
            citations += step.citations
    annotations = []
    for citation in citations:
        kind, name = "file_citation", "file_id"
        if is_address(citation.target):
            kind, name = "url_citation", "url"
        fields: dict[str, Any] = {name: citation.target}
        if any(citation.span):
            fields["start_index"], fields["end_index"] = citation.span
        if citation.quote:
            fields["cited_text"] = citation.quote
        annotations.append({"type": kind, kind: fields})
    return annotations


def pi(document: Document) -> list[dict[str, Any]]:
    """A Pi session (version 3), which the Hub shows: a header, then entries that name the one
    before them.

    The scores are an entry of their own, outside the conversation.
    """
    source = document.trajectory
    time = document.now.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    milliseconds = int(document.now.timestamp() * 1000)
    # Pi requires a provider and a cost for each message, which a trajectory does not have
    counts = {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0}
    usage = {**counts, "totalTokens": 0, "cost": {**counts, "total": 0}}
    made_by = {"api": UNKNOWN, "provider": UNKNOWN, "model": UNKNOWN, "usage": usage}

    def text(value: str) -> list[dict[str, Any]]:
        return [{"type": "text", "text": value}]

    messages: list[dict[str, Any]] = []
    if source.question is not None:
        messages.append({"role": "user", "content": text(source.question)})
    for think, calls, answer in _turns(source):
        content: list[dict[str, Any]] = []
        if think:
            content.append({"type": "thinking", "thinking": think})
        if answer is not None:
            content += text(answer)
        for call in calls:
            content.append(
                {"type": "toolCall", "id": call.id, "name": call.name, "arguments": call.arguments}
            )
        reason = "toolUse" if calls else "stop"
        messages.append({"role": "assistant", "content": content, **made_by, "stopReason": reason})
        for call in calls:
            result = {
                "role": "toolResult",
                "toolCallId": call.id,
                "toolName": call.name,
                "isError": call.failed,
                "content": text(call.response),
            }
            messages.append(result)
    entries: list[dict[str, Any]] = []
    for message in messages:
        message["timestamp"] = milliseconds
        entries.append({"type": "message", "message": message})
    entries.append({"type": "custom", "customType": "faithful-search", "data": document.metadata})
    header: dict[str, Any] = {
        "type": "session",
        "version": 3,
        "id": document.name,
        "timestamp": time,
        "cwd": "/",
        "harness": "faithful-search",
    }
    lines = [header]
    parent: str | None = None
    for number, entry in enumerate(entries, start=1):
        id = f"{number:08x}"
        lines.append({**entry, "id": id, "parentId": parent, "timestamp": time})
        parent = id
    return lines


def trajectory(document: Document) -> dict[str, Any]:
    """Our own trajectory, as `fs.read_jsonl` reads it; scores and reasons are in its `meta`, as in
    an evaluation's.
    """
    meta = dict(document.trajectory.meta)
    if document.scores:
        meta["scores"] = document.scores
        meta["reasons"] = document.reasons
    source = msgspec.structs.replace(document.trajectory, meta=meta)
    made: dict[str, Any] = msgspec.to_builtins(source)
    return made


WRITERS: dict[str, Callable[[Document], Any]] = {
    "atif": atif,
    "openai": openai,
    "langfuse": batch_of,
    "pi": pi,
    "trajectory": trajectory,
}
"""By format, what makes of a row a value to be written as JSON; a list is one value a line.
`inspect` is no such format: it is the log that was read, with scores.
"""
SCORED = ("inspect", "langfuse")
"""Formats that are nothing without scores."""


class _ExportedCall(NamedTuple):
    """`response` is JSON of the evidence, each with its id, and of a note on it; a note alone as it
    is.
    """

    id: str
    name: str
    arguments: dict[str, Any]
    response: str
    failed: bool


def _turns(trajectory: Trajectory) -> Iterator[tuple[str, list[_ExportedCall], str | None]]:
    """The thought, calls and answer of each turn, in order; a thought without a call or an answer
    is one, too.
    """
    count = 0
    for steps in trajectory.turns:
        calls: list[_ExportedCall] = []
        for step in steps:
            if step.call is not None:
                count += 1
                calls.append(_exported(step.call, step, f"call_{count}"))
        answer = next((step.answer for step in steps if step.answer is not None), None)
        yield (steps[0].think or "").strip(), calls, answer


def _exported(call: ToolCall, step: Step, id: str) -> _ExportedCall:
    """The call of a step, with what it returned."""
    arguments = call.arguments
    if not arguments and call.raw.strip():
        arguments = {"raw": call.raw}  # what could not be parsed goes along as it was written
    response = step.note
    if step.evidence:
        entries = [_passage(passage) for passage in step.evidence]
        if step.note:
            entries.append({"note": step.note})
        response = _json(entries)
    return _ExportedCall(
        id=id,
        name=call.name or UNKNOWN,
        arguments=arguments,
        response=response,
        failed=not step.evidence and bool(step.note),
    )


def _passage(passage: Evidence) -> dict[str, str]:
    """The fields of a passage that are not empty, and its text."""
    fields = {"id": passage.id, "title": passage.title, "url": passage.url}
    entry = {name: value for name, value in fields.items() if value}
    return {**entry, "text": passage.text}


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()
