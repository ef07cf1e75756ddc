"""Which episodes are fit to train on: an expert's, and those that a language model wrote.

Proof-of-Use (section 3.4) has a strong model write expert trajectories, reformats them and keeps those that pass a
two-stage filter. `reject` is that filter; `read_written` reads such files and rewrites each row in the run's dialect.
Its reasons besides those of `reject`:

| reason | meaning |
|---|---|
| unreadable | the row is not a trajectory, or its `tools` are not JSON schemas of functions |
| no_question | neither the row nor its prompt holds a question |
| no_verdicts | the dialect asks for verdicts, the row's own does not, and a step from the second on has none |
| unwritable | the dialect cannot express a turn: parallel calls, say, or a tool where it can only search |
| unknown_tool | it calls a tool that the prompt would not describe |
| too_many_tokens | it is longer than `max_length`: half an episode would teach to stop in the middle |
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from .. import dialects
from ..dialects.base import Dialect
from ..errors import DataError, DialectError
from ..inference.chat import ChatFormat
from ..measure.rows import Source
from ..rewards import Citation, Correctness, Format, cited_evidence, step_validity
from ..trajectory import Step, ToolCall, Trajectory, write_jsonl
from .plans import SEARCH, UNKNOWN, contains, counted

UNREADABLE = "unreadable"
_SHOWN = 10
_WHY = {"format": Format(), "citation": Citation(), "wrong_answer": Correctness()}
"""Which reward gives the reason for a rejection in words."""
Schemas = list[dict[str, Any]]


def reject(trajectory: Trajectory, min_steps: int = 3, max_steps: int = 10) -> str | None:
    """Why an episode is not fit to train on, or `None`.

    Stage 1: the format is valid; each verdict parses, agrees with its references, and these exist; (ours:) the answer
    is right and occurs, whole or part by part, in cited evidence or in the question (a yes or no need not), or it is
    "unknown" in a blinded episode. Where there are no verdicts all evidence counts as cited. Stage 2: `min_steps` ≤ T ≤
    `max_steps`.
    """
    if trajectory.stop_reason in ("not_found", "not_named"):
        return trajectory.stop_reason
    if Format().score(trajectory).value != 1.0:
        return "format"
    cites = Citation().covers(trajectory.dialect)
    if cites and not all(step_validity(trajectory)):
        return "citation"
    blind, answer = trajectory.meta.get("blind"), trajectory.answer or ""
    if answer != UNKNOWN if blind else Correctness().score(trajectory).value != 1.0:
        return "wrong_answer"
    if answer.casefold() not in ("yes", "no", UNKNOWN):
        evidence = cited_evidence(trajectory) if cites else trajectory.evidence.values()
        texts = [
            trajectory.question or "",
            *(text for item in evidence for text in (item.title, item.text)),
        ]
        parts = answer.split(" and ")  # of a question that asks for several things
        if not all(
            any(contains(text, part) or contains(text, answer) for text in texts) for part in parts
        ):
            return "ungrounded"
    if len(trajectory.steps) < min_steps:
        return "too_short"
    return "too_long" if len(trajectory.steps) > max_steps else None


def accept(
    trajectories: Iterable[Trajectory], min_steps: int = 3, max_steps: int = 10
) -> tuple[list[Trajectory], Counter[str]]:
    """The episodes that `reject` lets pass, and counts of the others by reason."""
    judged = [(trajectory, reject(trajectory, min_steps, max_steps)) for trajectory in trajectories]
    kept = [trajectory for trajectory, reason in judged if reason is None]
    return kept, Counter(reason for _, reason in judged if reason is not None)


def as_written(trajectory: Trajectory, dialect: Dialect) -> Trajectory:
    """The trajectory as the dialect writes and reads it: text, spans and issues are those of a policy's own episode.
    Evidence is kept: a text does not hold its sources, by which gold is recognised."""
    read = dialect.parse(dialect.render(trajectory), question=trajectory.question, fenced=True)
    steps = list(read.steps)
    if len(steps) == len(trajectory.steps):
        for place, old in enumerate(trajectory.steps):
            if len(old.evidence) == len(steps[place].evidence):
                steps[place] = replace(steps[place], evidence=old.evidence, note=old.note)
    about = {
        "answer": read.answer,
        "dialect": dialect.name,
        "text": read.text,
        "issues": read.issues,
    }
    return replace(trajectory, steps=tuple(steps), tokens=None, **about)


def rewritten(trajectory: Trajectory, dialect: Dialect) -> Trajectory:
    """The same turns in another dialect, without errors of form such as text outside the tags. Raises `DataError` if
    the dialect cannot express a turn."""
    known = tool_names(dialects.load(trajectory.dialect)) if trajectory.dialect else {}
    ours, theirs = {called: name for name, called in known.items()}, tool_names(dialect)
    old = []
    for step in trajectory.steps:
        name = ours.get(step.call.name, step.call.name) if step.call else ""
        call = step.call and ToolCall(
            theirs.get(name, name), step.call.arguments
        )  # without the source's `raw` text
        old.append(replace(step, call=call))
    try:
        made = as_written(replace(trajectory, steps=tuple(old)), dialect)
    except DialectError as error:
        raise DataError(str(error)) from error
    if len(made.steps) != len(old):
        raise DataError(f"{len(old)} turns would become {len(made.steps)}")
    for number, both in enumerate(zip(made.steps, old, strict=True), start=1):
        new, given = map(_said, both)
        if differing := next((part for part in new if new[part] != given[part]), None):
            raise DataError(f"step {number}: {dialect.name} would not keep its {differing}")
    return made


def tool_names(dialect: Dialect) -> dict[str, str]:
    """What a dialect's agents call our tools, where that is not the tool's own name."""
    return {**dialect.tool_names, **({SEARCH: dialect.search_tool} if dialect.search_tool else {})}


@dataclass(frozen=True)
class WrittenRow:
    where: str  # the file and the row's number in it: "written.jsonl, line 3"
    trajectory: Trajectory | None = (
        None  # in the run's dialect if it could be rewritten, else as it was read
    )
    rejected: str | None = None  # the reason why it is not trained on
    why: str = ""  # the reason in a sentence, where it needs one
    tools: Schemas = field(default_factory=list)  # that the prompt describes


def read_written(
    files: Iterable[str | Path],
    chat: ChatFormat,
    tools: Callable[[], Schemas],
    min_steps: int = 3,
    max_steps: int = 10,
    max_length: int | None = None,
) -> Iterator[WrittenRow]:
    """Yield every row of the files, fit to train on or with the reason why not. Unreadable rows do not end the loop.

    A row is what the audit reads: text of an agent, chat messages or the JSON of a `Trajectory`, in any dialect; id,
    question and gold answers come from its columns. Without gold answers the answer is not checked. The prompt
    describes the tools of a column `tools` or of a trajectory's `meta["tools"]`, JSON schemas of functions; for rows
    without any, `tools` is called once. `chat` is of the policy that is to learn them; `max_length` counts the tokens
    of a whole episode, prompt included. Raises `DataError` if a file cannot be read at all, or has no rows. One that
    breaks off is read up to there.
    """
    usual_tools = cache(tools)
    for file in files:
        source, last = Source(file), 0
        unit = "line" if ".jsonl" in str(file) or ".ndjson" in str(file) else "row"
        for raw in source:
            last, row = raw.number, source.reader(raw)
            where, found, why, own = f"{file}, {unit} {last}", row.trajectory, row.error, None
            try:
                own = _own_tools(raw.data, found) if found else None
            except DataError as error:
                found, why = None, str(error)
            if found is None:
                yield WrittenRow(where, rejected=UNREADABLE, why=why)
            else:
                described = usual_tools() if own is None else own
                yield WrittenRow(
                    where,
                    *_fit(found, described, chat, min_steps, max_steps, max_length),
                    described,
                )
        if source.error:
            yield WrittenRow(f"{file}, after {unit} {last}", rejected=UNREADABLE, why=source.error)


def _fit(
    found: Trajectory,
    tools: Schemas,
    chat: ChatFormat,
    min_steps: int,
    max_steps: int,
    max_length: int | None,
) -> tuple[Trajectory, str | None, str]:
    """The trajectory, in the chat's dialect if it can be; the reason why it is not fit, and the same in a sentence."""
    dialect = chat.dialect
    if not (found.question or "").strip():
        return found, "no_question", ""
    if found.dialect != dialect.name:
        bare = next(
            (
                number
                for number, step in enumerate(found.steps[1:], start=2)
                if step.helpful is None
            ),
            None,
        )
        if bare is not None and Citation().covers(dialect.name):
            return (
                found,
                "no_verdicts",
                f"step {bare} of a trajectory of {found.dialect or 'no dialect'} gives none",
            )
        try:
            found = rewritten(found, dialect)
        except DataError as error:
            return found, "unwritable", str(error)
    # After rewriting, calls carry the dialect's own names of the tools.
    named = {
        dialect.tool_names.get(tool["function"]["name"], tool["function"]["name"]) for tool in tools
    }
    strange = [step.call.name for step in found.steps if step.call and step.call.name not in named]
    if strange and not dialect.search_tool:  # a dialect that can only search describes no tools
        why = f"calls {strange[0]}, which its prompt would not describe: open it by a flag, or give the row its `tools`"
        return found, "unknown_tool", why
    if reason := reject(_comparable(found), min_steps, max_steps):
        return found, reason, _WHY[reason].score(found).why if reason in _WHY else ""
    try:
        why = (
            Format().score(rewritten(found, dialect)).why
        )  # a stored one may hold what its dialect cannot write
    except DataError as error:
        why = str(error)
    if why:
        return found, "unwritable", why
    tokens = chat.transcript(found, tools)
    length = len(tokens.prompt_ids) + len(tokens.completion_ids)
    if max_length is not None and length > max_length:
        return found, "too_many_tokens", f"{length} for a max_length of {max_length}"
    return found, None, ""


def by_tools(rows: Sequence[WrittenRow]) -> list[tuple[list[Trajectory], Schemas]]:
    """The trajectories to train on, in order, grouped by their tools, with these tools' schemas. Without gold answers
    the own answer becomes one, so that the filter passes it again. None at all is a `DataError`."""
    groups: dict[str, tuple[list[Trajectory], Schemas]] = {}
    for row in rows:
        if row.trajectory is not None and row.rejected is None:
            group = groups.setdefault(json.dumps(row.tools, sort_keys=True), ([], row.tools))
            group[0].append(_comparable(row.trajectory))
    if not groups:  # so every row was rejected: a file without rows is not read
        example = f"the first, {rows[0].where}: {rows[0].why or rows[0].rejected}"
        reasons = counted(row.rejected for row in rows if row.rejected)
        raise DataError(f"none of {len(rows)} trajectories can be trained on: {reasons}; {example}")
    return list(groups.values())


def summary(rows: Sequence[WrittenRow]) -> list[str]:
    """Lines to print: counts by reason, and the rows that could not be read."""
    fit = [row for row in rows if row.rejected is None]
    reasons = counted(row.rejected for row in rows if row.rejected)
    lines = [f"{len(fit)} of {len(rows)} trajectories kept; rejected: {reasons}"]
    if loose := sum(not row.trajectory.answers for row in fit if row.trajectory):
        lines.append(
            f"{loose} of those kept have no gold answers: whether their answers are right was not checked"
        )
    for names, count in Counter(
        tuple(tool["function"]["name"] for tool in row.tools) for row in fit
    ).items():
        lines.append(f"{count} prompts describe {', '.join(names) or 'no tool'}")
    broken = [row for row in rows if row.rejected == UNREADABLE]
    lines += [f"{row.where}: {row.why}" for row in broken[:_SHOWN]]
    if len(broken) > _SHOWN:
        lines.append(
            f"… and {len(broken) - _SHOWN} more that cannot be read; reasons.jsonl lists all"
        )
    return lines


def write_written(folder: str | Path, rows: Sequence[WrittenRow]) -> None:
    """Write all that was read to `episodes.jsonl`, fit or not, and a line for every row to `reasons.jsonl`: its `id`,
    `where` it is, why it is `rejected` (null if it is trained on), and `why` in words."""
    write_jsonl(
        Path(folder) / "episodes.jsonl",
        (row.trajectory for row in rows if row.trajectory is not None),
    )
    with (Path(folder) / "reasons.jsonl").open("w", encoding="utf-8") as file:
        for row in rows:
            told = {name: getattr(row, name) for name in ("where", "rejected", "why")}
            line = {"id": row.trajectory.id if row.trajectory else "", **told}
            file.write(json.dumps(line, ensure_ascii=False) + "\n")


def _comparable(trajectory: Trajectory) -> Trajectory:
    """With its own answer as the gold one if it has none, so that comparing the two passes."""
    loose = not trajectory.answers and trajectory.answer is not None
    return replace(trajectory, answers=(trajectory.answer,)) if loose else trajectory


def _own_tools(data: bytes, trajectory: Trajectory) -> Schemas | None:
    own = None
    with suppress(
        ValueError, RecursionError, AttributeError
    ):  # the audit's reader accepts such a row, too
        own = json.loads(data).get("tools")
    tools = trajectory.meta.get("tools") if own is None else own
    try:
        tools = json.loads(tools) if isinstance(tools, str) else tools
        for schema in (tool["function"] for tool in tools or ()):
            msgspec.convert((schema["name"], schema["parameters"]), tuple[str, dict[str, Any]])
    except (ValueError, KeyError, TypeError) as error:
        told = "its tools are not a list of JSON schemas of functions, as a toolbox's `schemas` gives them"
        raise DataError(f"{told}: {error}") from error
    return tools or None


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
