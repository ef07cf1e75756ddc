"""Trajectories that a language model wrote, for the supervised start: read, rewritten in one dialect, filtered.

Proof-of-Use (section 3.4) has a strong model write expert trajectories, reformats them and keeps those that pass a
two-stage filter, `filtering.reject`. Reasons besides those of `reject`:

| reason | meaning |
|---|---|
| unreadable | the row is not a trajectory, or its `tools` are not JSON schemas of functions |
| no_question | neither the row nor its prompt holds a question |
| no_verdicts | the dialect asks for verdicts, the row's own does not, and a step from the second on has none |
| unwritable | the dialect cannot express a turn: parallel calls, say, or a tool where it can only search |
| unknown_tool | it calls a tool that the prompt would not describe |
| too_many_tokens | it is longer than `max_length`: half an episode would teach to stop in the middle |
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from .. import dialects
from ..dialects.base import Dialect
from ..errors import DataError, DialectError
from ..inference.chat import ChatFormat
from ..measure.rows import Source
from ..rewards import Citation, Correctness, Format
from ..trajectory import Step, ToolCall, Trajectory, write_jsonl
from .filtering import reject
from .plans import SEARCH, counted

UNREADABLE = "unreadable"
_SHOWN = 10
_WHY = {"format": Format(), "citation": Citation(), "wrong_answer": Correctness()}
"""Which reward gives the reason for a rejection in words."""
Schemas = tuple[dict[str, Any], ...]


@dataclass(frozen=True)
class WrittenRow:
    """One row of a file, and whether it is trained on.

    Attributes:
        where: the file and the row's number in it: `"written.jsonl, line 3"`.
        trajectory: in the run's dialect if it could be rewritten, else as it was read; `None`: unreadable.
        rejected: the reason why it is not trained on; `None` if it is.
        why: the reason in a sentence, where it needs one.
        tools: JSON schemas of the tools that the prompt describes.
    """

    where: str
    trajectory: Trajectory | None = None
    rejected: str | None = None
    why: str = ""
    tools: Schemas = ()

    @property
    def compared(self) -> bool:
        """Whether there were gold answers to compare the answer with."""
        return self.trajectory is not None and bool(self.trajectory.answers)


class _Rejected(Exception):
    """A reason, a sentence, and the trajectory as far as it was rewritten."""


def read_written(
    files: Iterable[str | os.PathLike[str]],
    chat: ChatFormat,
    tools: Callable[[], Sequence[dict[str, Any]]],
    min_steps: int = 3,
    max_steps: int = 10,
    max_length: int | None = None,
) -> Iterator[WrittenRow]:
    """Yield every row of the files, fit to train on or with the reason why not. Unreadable rows do not end the loop.

    A row is what the audit reads: text of an agent, chat messages or the JSON of a `Trajectory`, in any dialect; id,
    question and gold answers come from its columns. Without gold answers the answer is not checked.

    Args:
        files: `.jsonl`, `.json`, both also `.gz`, or `.parquet`.
        chat: of the policy that is to learn them; rows in another dialect than its own are rewritten.
        tools: gives the schemas that the prompt describes, called at most once, for rows without their own: a column
            `tools` or a trajectory's `meta["tools"]`, a list of JSON schemas of functions.
        min_steps, max_steps: bounds of T, see `reject`.
        max_length: tokens of a whole episode, prompt included; `None`: any number.

    Raises:
        DataError: if a file cannot be read at all, or has no rows. A file that breaks off is read up to there.
    """
    usual_tools = cache(lambda: tuple(tools()))
    for file in files:
        source, last = Source(file), 0
        unit = "line" if ".jsonl" in str(file) or ".ndjson" in str(file) else "row"
        for raw in source:
            last, row = raw.number, source.reader(raw)
            where = f"{file}, {unit} {last}"
            if row.trajectory is None:
                yield WrittenRow(where, rejected=UNREADABLE, why=row.error)
                continue
            try:
                own = _own_tools(raw.data, row.trajectory)
            except DataError as error:
                yield WrittenRow(where, rejected=UNREADABLE, why=str(error))
                continue
            described = usual_tools() if own is None else own
            try:
                found = _fit(row.trajectory, described, chat, min_steps, max_steps, max_length)
                yield WrittenRow(where, found, tools=described)
            except _Rejected as error:
                reason, why, found = error.args
                yield WrittenRow(where, found, reason, why, described)
        if source.error:
            yield WrittenRow(f"{file}, after {unit} {last}", rejected=UNREADABLE, why=source.error)


def _fit(
    found: Trajectory, tools: Schemas, chat: ChatFormat, min_steps: int, max_steps: int, max_length: int | None
) -> Trajectory:
    """The trajectory in the chat's dialect. Raises `_Rejected` if it is not fit to train on."""
    dialect = chat.dialect
    if not (found.question or "").strip():
        raise _Rejected("no_question", "", found)
    if found.dialect != dialect.name:
        bare = next((number for number, step in enumerate(found.steps[1:], start=2) if step.helpful is None), None)
        if bare is not None and Citation().covers(dialect.name):
            why = f"step {bare} of a trajectory of {found.dialect or 'no dialect'} gives none"
            raise _Rejected("no_verdicts", why, found)
        try:
            found = rewritten(found, dialect)
        except DataError as error:
            raise _Rejected("unwritable", str(error), found) from error
    # After rewriting, calls carry the dialect's own names of the tools.
    named = {dialect.tool_names.get(tool["function"]["name"], tool["function"]["name"]) for tool in tools}
    strange = [step.call.name for step in found.steps if step.call and step.call.name not in named]
    if strange and not dialect.search_tool:  # a dialect that can only search describes no tools
        why = f"calls {strange[0]}, which its prompt would not describe: open it by a flag, or give the row its `tools`"
        raise _Rejected("unknown_tool", why, found)
    if reason := reject(_comparable(found), min_steps, max_steps):
        raise _Rejected(reason, _WHY[reason].score(found).why if reason in _WHY else "", found)
    try:
        why = Format().score(rewritten(found, dialect)).why  # a stored one may hold what its dialect cannot write
    except DataError as error:
        why = str(error)
    if why:
        raise _Rejected("unwritable", why, found)
    tokens = chat.transcript(found, tools)
    length = len(tokens.prompt_ids) + len(tokens.completion_ids)
    if max_length is not None and length > max_length:
        raise _Rejected("too_many_tokens", f"{length} for a max_length of {max_length}", found)
    return found


def rewritten(trajectory: Trajectory, dialect: Dialect) -> Trajectory:
    """The same turns as `dialect` writes and reads them; evidence keeps its sources and addresses.

    Errors of form (text outside the tags, say) are gone; all content is kept.

    Raises:
        DataError: if the dialect cannot express a turn.

    Example:
        >>> from faithful_search import dialects
        >>> turn = "<think>So.</think><search>capital</search><information>none</information>"
        >>> found = dialects.parse(turn + "<think>Well.</think><answer>Paris</answer>", "search_r1")
        >>> rewritten(found, dialects.load("research")).steps[0].call.arguments
        {'query': 'capital'}
    """
    source = dialects.load(trajectory.dialect) if trajectory.dialect else None
    old = [
        msgspec.structs.replace(step, call=step.call and _renamed(step.call, source, dialect))
        for step in trajectory.steps
    ]
    try:
        text = dialect.render(msgspec.structs.replace(trajectory, steps=tuple(old)))
    except DialectError as error:
        raise DataError(str(error)) from error
    read = dialect.parse(text, question=trajectory.question, fenced=True)
    if len(read.steps) != len(old):
        raise DataError(f"{len(old)} turns would become {len(read.steps)}")
    for number, (new, given) in enumerate(zip(read.steps, old, strict=True), start=1):
        if differing := next((part for part, value in _said(new).items() if value != _said(given)[part]), None):
            raise DataError(f"step {number}: {dialect.name} would not keep its {differing}")
    kept = [msgspec.structs.replace(a, evidence=b.evidence, note=b.note) for a, b in zip(read.steps, old, strict=True)]
    return msgspec.structs.replace(
        trajectory,
        steps=tuple(kept),
        answer=read.answer,
        dialect=dialect.name,
        text=read.text,
        issues=read.issues,
        tokens=None,
    )


def by_tools(rows: Sequence[WrittenRow]) -> list[tuple[list[Trajectory], list[dict[str, Any]]]]:
    """The trajectories to train on, in order, grouped by their tools, with these tools' schemas.

    Without gold answers the own answer becomes one, so that the filter passes it again.

    Raises:
        DataError: if there are none, with the reasons.
    """
    groups: dict[str, tuple[list[Trajectory], list[dict[str, Any]]]] = {}
    for row in rows:
        if row.trajectory is not None and row.rejected is None:
            group = groups.setdefault(json.dumps(row.tools, sort_keys=True), ([], list(row.tools)))
            group[0].append(_comparable(row.trajectory))
    if not groups:
        first = next((row for row in rows if row.rejected), None)
        example = f"the first, {first.where}: {first.why or first.rejected}" if first else "the files hold none"
        raise DataError(f"none of {len(rows)} trajectories can be trained on: {_reasons(rows)}; {example}")
    return list(groups.values())


def summary(rows: Sequence[WrittenRow]) -> list[str]:
    """Lines to print: counts by reason, and the rows that could not be read."""
    fit = [row for row in rows if row.rejected is None]
    lines = [f"{len(fit)} of {len(rows)} trajectories kept; rejected: {_reasons(rows)}"]
    if loose := sum(not row.compared for row in fit):
        lines.append(f"{loose} of those kept have no gold answers: whether their answers are right was not checked")
    for names, count in Counter(tuple(tool["function"]["name"] for tool in row.tools) for row in fit).items():
        lines.append(f"{count} prompts describe {', '.join(names) or 'no tool'}")
    broken = [row for row in rows if row.rejected == UNREADABLE]
    lines += [f"{row.where}: {row.why}" for row in broken[:_SHOWN]]
    if len(broken) > _SHOWN:
        lines.append(f"… and {len(broken) - _SHOWN} more that cannot be read; reasons.jsonl lists all")
    return lines


def write_written(folder: str | os.PathLike[str], rows: Sequence[WrittenRow]) -> None:
    """Write all that was read to `episodes.jsonl`, fit or not, and a line for every row to `reasons.jsonl`.

    Such a line has `id`, `where`, `rejected` (null if it is trained on), `why`, and `compared`: whether there were gold
    answers.
    """
    write_jsonl(Path(folder) / "episodes.jsonl", (row.trajectory for row in rows if row.trajectory is not None))
    with (Path(folder) / "reasons.jsonl").open("w", encoding="utf-8") as file:
        for row in rows:
            told = {name: getattr(row, name) for name in ("where", "rejected", "why", "compared")}
            line = {"id": "" if row.trajectory is None else row.trajectory.id, **told}
            file.write(json.dumps(line, ensure_ascii=False) + "\n")


def _comparable(trajectory: Trajectory) -> Trajectory:
    """With its own answer as the gold one if it has none, so that comparing the two passes."""
    if trajectory.answers or trajectory.answer is None:
        return trajectory
    return msgspec.structs.replace(trajectory, answers=(trajectory.answer,))


def _own_tools(data: bytes, trajectory: Trajectory) -> Schemas | None:
    try:
        row = json.loads(data)
    except (ValueError, RecursionError):  # the audit's reader accepts such a row, too
        row = None
    own = row.get("tools") if isinstance(row, dict) else None
    tools = trajectory.meta.get("tools") if own is None else own
    if isinstance(tools, str):
        try:
            tools = json.loads(tools)
        except ValueError as error:
            raise DataError(f"its tools are not JSON ({error})") from error
    if not tools:
        return None
    try:
        msgspec.convert(tools, list[_Schema])
    except msgspec.ValidationError as error:
        message = "its tools are not a list of JSON schemas of functions, as a toolbox's `schemas` gives them"
        raise DataError(message) from error
    return tuple(tools)


class _Function(msgspec.Struct):
    name: str
    parameters: Any


class _Schema(msgspec.Struct):
    function: _Function


def _renamed(call: ToolCall, source: Dialect | None, target: Dialect) -> ToolCall:
    """The call under the target's name of the tool, without the source's `raw` text."""
    ours = {theirs: name for name, theirs in source.tool_names.items()} if source else {}
    if source and source.search_tool:
        ours[source.search_tool] = SEARCH
    name = ours.get(call.name, call.name)
    if target.search_tool and name == SEARCH:
        name = target.search_tool
    return ToolCall(target.tool_names.get(name, name), call.arguments)


def _said(step: Step) -> dict[str, Any]:
    """What must stay the same in another dialect; blanks at the ends of a text may not."""
    return {
        "thought": (step.think or "").strip(),
        "call": step.call and (step.call.name, step.call.arguments),
        "answer": step.answer if step.answer is None else step.answer.strip(),
        "verdict": (step.helpful, step.refs, step.verified),
        "parallel call": step.same_turn,
        "evidence": len(step.evidence),
    }


def _reasons(rows: Iterable[WrittenRow]) -> str:
    return counted(Counter(row.rejected for row in rows if row.rejected))
