"""Which episodes are fit to train on: an expert's, and those that a language model wrote.

Proof-of-Use (section 3.4) has a strong model write expert trajectories, reformats them and keeps
those that pass a two-stage filter. `reject` is that filter; `read_written` reads such files and
rewrites each row in the run's dialect. Its reasons besides those of `reject`:

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
from ..evidence import supporting_passages
from ..inference.chat import ChatFormat
from ..reading.rows import RowSource
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

    Stage 1: the format is valid; each verdict parses, agrees with its references, and these exist;
    (ours:) the answer is right and occurs, whole or part by part, in cited evidence or in the
    question (a yes or no need not), or it is "unknown" in a blinded episode. Where there are no
    verdicts all evidence counts as cited; where the dialect asks for no tool and none was called,
    the answer need only be right. Stage 2: `min_steps` ≤ T ≤ `max_steps`.
    """
    if trajectory.stop_reason in ("not_found", "not_named"):
        return trajectory.stop_reason
    if Format().score(trajectory).value != 1.0:
        return "format"
    cites = Citation().covers(trajectory.dialect)
    if cites and not all(step_validity(trajectory)):
        return "citation"
    answer = trajectory.answer or ""
    if trajectory.meta.get("blind"):
        if answer != UNKNOWN:
            return "wrong_answer"
    elif Correctness().score(trajectory).value != 1.0:
        return "wrong_answer"
    if _rests_on_evidence(trajectory) and answer.casefold() not in ("yes", "no", UNKNOWN):
        evidence = cited_evidence(trajectory) if cites else supporting_passages(trajectory)
        texts = [trajectory.question or ""]
        for passage in evidence:
            texts += [passage.title, passage.text]
        if not _stands_in(answer, texts):
            return "ungrounded"
    if len(trajectory.steps) < min_steps:
        return "too_short"
    if len(trajectory.steps) > max_steps:
        return "too_long"
    return None


def _rests_on_evidence(trajectory: Trajectory) -> bool:
    """Whether an answer has to stand in evidence: it need not where the dialect asks for no tool,
    and none was called.
    """
    if any(step.call is not None for step in trajectory.steps):
        return True
    return not trajectory.dialect or dialects.load(trajectory.dialect).needs_tools


def _stands_in(answer: str, texts: Sequence[str]) -> bool:
    """Whether the answer stands in one of the texts; to a question that asks for several things
    ("A and B"), each part in one.
    """

    def stands(part: str) -> bool:
        return any(contains(text, part) for text in texts)

    return stands(answer) or all(map(stands, answer.split(" and ")))


def accept(
    trajectories: Iterable[Trajectory], min_steps: int = 3, max_steps: int = 10
) -> tuple[list[Trajectory], Counter[str]]:
    """The episodes that `reject` lets pass, and counts of the others by reason."""
    accepted: list[Trajectory] = []
    reasons: Counter[str] = Counter()
    for trajectory in trajectories:
        reason = reject(trajectory, min_steps, max_steps)
        if reason is None:
            accepted.append(trajectory)
        else:
            reasons[reason] += 1
    return accepted, reasons


def as_written(trajectory: Trajectory, dialect: Dialect) -> Trajectory:
    """The trajectory as the dialect writes and reads it: text, spans and issues are those of a
    policy's own episode. Evidence is kept: a text does not hold its sources, by which gold is
    recognised.
    """
    parsed = dialect.parse(dialect.render(trajectory), question=trajectory.question, fenced=True)
    steps = list(parsed.steps)
    if len(steps) == len(trajectory.steps):
        for place, old in enumerate(trajectory.steps):
            if len(old.evidence) == len(steps[place].evidence):
                steps[place] = replace(steps[place], evidence=old.evidence, note=old.note)
    return replace(
        trajectory,
        steps=tuple(steps),
        tokens=None,
        answer=parsed.answer,
        dialect=dialect.name,
        text=parsed.text,
        issues=parsed.issues,
    )


def rewritten(trajectory: Trajectory, dialect: Dialect) -> Trajectory:
    """The same turns in another dialect, without errors of form such as text outside the tags.
    Raises `DataError` if the dialect cannot express a turn.
    """
    source_names = tool_names(dialects.load(trajectory.dialect)) if trajectory.dialect else {}
    our_names = {name: ours for ours, name in source_names.items()}
    names = tool_names(dialect)
    steps = []
    for step in trajectory.steps:
        if step.call is not None:
            name = our_names.get(step.call.name, step.call.name)
            # without the source's `raw` text
            call = ToolCall(names.get(name, name), step.call.arguments)
            step = replace(step, call=call)
        steps.append(step)
    try:
        result = as_written(replace(trajectory, steps=tuple(steps)), dialect)
    except DialectError as error:
        raise DataError(str(error)) from error
    if len(result.steps) != len(steps):
        raise DataError(f"{len(steps)} turns would become {len(result.steps)}")
    for number, (new_step, step) in enumerate(zip(result.steps, steps, strict=True), start=1):
        new = _content(new_step)
        old = _content(step)
        for part in new:
            if new[part] != old[part]:
                raise DataError(f"step {number}: {dialect.name} would not keep its {part}")
    return result


def tool_names(dialect: Dialect) -> dict[str, str]:
    """What a dialect's agents call our tools, where that is not the tool's own name."""
    names = dict(dialect.tool_names)
    if dialect.search_tool:
        names[SEARCH] = dialect.search_tool
    return names


@dataclass(frozen=True)
class WrittenRow:
    """A row of a file of episodes.

    Args:
        where: the file and the row's number in it: "written.jsonl, line 3".
        trajectory: in the run's dialect if it could be rewritten, else as it was read.
        rejected: the reason why it is not trained on.
        why: the reason in a sentence, where it needs one.
        tools: those that the prompt describes.
    """

    where: str
    trajectory: Trajectory | None = None
    rejected: str | None = None
    why: str = ""
    tools: Schemas = field(default_factory=list)


def read_written(
    files: Iterable[str | Path],
    chat: ChatFormat,
    tools: Callable[[], Schemas],
    min_steps: int = 3,
    max_steps: int = 10,
    max_length: int | None = None,
) -> Iterator[WrittenRow]:
    """Yield every row of the files, fit to train on or with the reason why not. Unreadable rows do
    not end the loop.

    A row is what the audit reads: text of an agent, chat messages or the JSON of a `Trajectory`, in
    any dialect; id, question and gold answers come from its columns. Without gold answers the
    answer is not checked. The prompt describes the tools of a column `tools` or of a trajectory's
    `meta["tools"]`, JSON schemas of functions; for rows without any, `tools` is called once. `chat`
    is of the policy that is to learn them; `max_length` counts the tokens of a whole episode,
    prompt included. Raises `DataError` if a file cannot be read at all, or has no rows. One that
    breaks off is read up to there.
    """
    usual_tools = cache(tools)
    for file in files:
        source = RowSource(file)
        has_lines = ".jsonl" in str(file) or ".ndjson" in str(file)
        unit = "line" if has_lines else "row"
        last = 0
        for raw in source:
            last = raw.number
            where = f"{file}, {unit} {last}"
            row = source.reader(raw)
            if row.trajectory is None:
                yield WrittenRow(where, rejected=UNREADABLE, why=row.error)
                continue
            try:
                row_tools = _tools_of_row(raw.data, row.trajectory)
            except DataError as error:
                yield WrittenRow(where, rejected=UNREADABLE, why=str(error))
                continue
            described = usual_tools() if row_tools is None else row_tools
            trajectory, rejected, why = _fit(
                row.trajectory, described, chat, min_steps, max_steps, max_length
            )
            yield WrittenRow(where, trajectory, rejected, why, described)
        if source.error:
            yield WrittenRow(f"{file}, after {unit} {last}", rejected=UNREADABLE, why=source.error)


def fit_in(
    trajectory: Trajectory,
    tools: Schemas,
    dialect: Dialect,
    min_steps: int = 3,
    max_steps: int = 10,
) -> tuple[Trajectory, str | None, str]:
    """The trajectory, in the dialect if it can be; the reason why it is not fit, and the same in a
    sentence. Its length is not looked at, which depends on a policy's tokenizer.

    Args:
        trajectory: in any dialect.
        tools: the schemas of the tools that its prompt describes.
        dialect: the one that is to be learnt.
        min_steps: as `reject` takes it.
        max_steps: as `reject` takes it.
    """
    if not (trajectory.question or "").strip():
        return trajectory, "no_question", ""
    if trajectory.dialect != dialect.name:
        later = enumerate(trajectory.steps[1:], start=2)
        without_verdict = next((number for number, step in later if step.helpful is None), None)
        if without_verdict is not None and Citation().covers(dialect.name):
            source = trajectory.dialect or "no dialect"
            why = f"step {without_verdict} of a trajectory of {source} gives none"
            return trajectory, "no_verdicts", why
        try:
            trajectory = rewritten(trajectory, dialect)
        except DataError as error:
            return trajectory, "unwritable", str(error)
    # After rewriting, calls carry the dialect's own names of the tools.
    names = [tool["function"]["name"] for tool in tools]
    described = {dialect.tool_names.get(name, name) for name in names}
    called = [step.call.name for step in trajectory.steps if step.call]
    unknown = [name for name in called if name not in described]
    if unknown and not dialect.search_tool:  # a dialect that can only search describes no tools
        why = (
            f"calls {unknown[0]}, which its prompt would not describe: open it by a flag, or give "
            "the row its `tools`"
        )
        return trajectory, "unknown_tool", why
    reason = reject(_comparable(trajectory), min_steps, max_steps)
    if reason in _WHY:
        return trajectory, reason, _WHY[reason].score(trajectory).why
    if reason is not None:
        return trajectory, reason, ""
    try:
        # a stored one may hold what its dialect cannot write
        why = Format().score(rewritten(trajectory, dialect)).why
    except DataError as error:
        why = str(error)
    if why:
        return trajectory, "unwritable", why
    return trajectory, None, ""


def _fit(
    trajectory: Trajectory,
    tools: Schemas,
    chat: ChatFormat,
    min_steps: int,
    max_steps: int,
    max_length: int | None,
) -> tuple[Trajectory, str | None, str]:
    """As `fit_in`, for a policy whose prompts and limit are known."""
    trajectory, rejected, why = fit_in(trajectory, tools, chat.dialect, min_steps, max_steps)
    if rejected is not None:
        return trajectory, rejected, why
    tokens = chat.transcript(trajectory, tools)
    length = len(tokens.prompt_ids) + len(tokens.completion_ids)
    if max_length is not None and length > max_length:
        return trajectory, "too_many_tokens", f"{length} for a max_length of {max_length}"
    return trajectory, None, ""


def by_tools(rows: Sequence[WrittenRow]) -> list[tuple[list[Trajectory], Schemas]]:
    """The trajectories to train on, in order, grouped by their tools, with these tools' schemas.
    Where there are no gold answers the trajectory's own becomes one, so that the filter lets it
    pass again. Raises `DataError` when no row is fit.
    """
    groups: dict[str, tuple[list[Trajectory], Schemas]] = {}
    for row in rows:
        if row.trajectory is not None and row.rejected is None:
            key = json.dumps(row.tools, sort_keys=True)
            trajectories, _ = groups.setdefault(key, ([], row.tools))
            trajectories.append(_comparable(row.trajectory))
    if not groups:  # so every row was rejected: a file without rows is not read
        example = f"the first, {rows[0].where}: {rows[0].why or rows[0].rejected}"
        reasons = counted(row.rejected for row in rows if row.rejected)
        raise DataError(f"none of {len(rows)} trajectories can be trained on: {reasons}; {example}")
    return list(groups.values())


def summary(rows: Sequence[WrittenRow]) -> list[str]:
    """Lines to print: counts by reason, and the rows that could not be read."""
    fit = [row for row in rows if row.rejected is None]
    trajectories = [row.trajectory for row in fit if row.trajectory]
    reasons = counted(row.rejected for row in rows if row.rejected)
    lines = [f"{len(fit)} of {len(rows)} trajectories kept; rejected: {reasons}"]
    unchecked = sum(not trajectory.answers for trajectory in trajectories)
    if unchecked:
        lines.append(
            f"{unchecked} of those kept have no gold answers: whether their answers are right was "
            "not checked"
        )
    in_text = sum(trajectory.evidence_from == "text" for trajectory in trajectories)
    if in_text:
        lines.append(
            f"{in_text} of those kept have their tool responses inside the agent's own text, where "
            "an agent may have invented them; chat messages, or trajectories, show who wrote them"
        )
    prompts: Counter[str] = Counter()
    for row in fit:
        prompts[", ".join(tool["function"]["name"] for tool in row.tools)] += 1
    for names, count in prompts.items():
        lines.append(f"{count} prompts describe {names or 'no tool'}")
    broken = [row for row in rows if row.rejected == UNREADABLE]
    lines += [f"{row.where}: {row.why}" for row in broken[:_SHOWN]]
    if len(broken) > _SHOWN:
        lines.append(
            f"… and {len(broken) - _SHOWN} more that cannot be read; reasons.jsonl lists all"
        )
    return lines


def with_tools(trajectory: Trajectory, tools: Schemas) -> Trajectory:
    """The trajectory with the tools that its prompt described, as `read_written` reads them."""
    return replace(trajectory, meta={**trajectory.meta, "tools": tools})


def write_written(folder: str | Path, rows: Sequence[WrittenRow]) -> None:
    """Write all that was read to `episodes.jsonl`, fit or not, and a line for every row to
    `reasons.jsonl`: its `id`, `where` it is, why it is `rejected` (null if it is trained on), and
    `why` in words.
    """
    write_jsonl(
        Path(folder) / "episodes.jsonl",
        (row.trajectory for row in rows if row.trajectory is not None),
    )
    with (Path(folder) / "reasons.jsonl").open("w", encoding="utf-8") as file:
        for row in rows:
            line = {
                "id": row.trajectory.id if row.trajectory else "",
                "where": row.where,
                "rejected": row.rejected,
                "why": row.why,
            }
            file.write(json.dumps(line, ensure_ascii=False) + "\n")


def _comparable(trajectory: Trajectory) -> Trajectory:
    """With its own answer as the gold one if it has none, so that comparing the two passes."""
    if trajectory.answers or trajectory.answer is None:
        return trajectory
    return replace(trajectory, answers=(trajectory.answer,))


def _tools_of_row(data: bytes, trajectory: Trajectory) -> Schemas | None:
    tools = None
    # the audit's reader accepts such a row, too
    with suppress(ValueError, RecursionError, AttributeError):
        tools = json.loads(data).get("tools")
    if tools is None:
        tools = trajectory.meta.get("tools")
    try:
        if isinstance(tools, str):
            tools = json.loads(tools)
        for tool in tools or ():
            schema = tool["function"]
            msgspec.convert((schema["name"], schema["parameters"]), tuple[str, dict[str, Any]])
    except (ValueError, RecursionError, KeyError, TypeError) as error:
        raise DataError(
            "its tools are not a list of JSON schemas of functions, as a toolbox's `schemas` gives "
            f"them: {error}"
        ) from error
    return tools or None


def _content(step: Step) -> dict[str, Any]:
    """What must stay the same in another dialect; blanks at the ends of a text may not."""
    return {
        "thought": (step.think or "").strip(),
        "call": None if step.call is None else (step.call.name, step.call.arguments),
        "answer": None if step.answer is None else step.answer.strip(),
        "verdict": (step.helpful, step.refs, step.verified),
        "parallel call": step.same_turn,
        "evidence": len(step.evidence),
    }
