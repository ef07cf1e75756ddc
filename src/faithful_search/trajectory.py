"""What a search agent leaves behind: a `Trajectory` of `Step`s, each with the evidence its call
returned.

All values are frozen. `Step.helpful` and `Step.refs` judge the evidence of the step *before*, as in
Proof-of-Use (section 3.2.3).
"""

import gzip
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Literal

import msgspec

from .errors import DataError
from .json_lines import read_lines
from .text import well_formed
from .wire.files import replacing

NO_TRACE, NOT_REACHABLE = "report_without_trace", "source_not_reachable"
"""Kinds of issues: what the writer of a report read is not known; what it cites could not be read.
"""
Span = tuple[int, int]  # half-open character range in `Trajectory.text`
Source = Literal["", "text", "messages", "environment"]


class Evidence(msgspec.Struct, frozen=True, omit_defaults=True):
    """One retrieved passage.

    Attributes:
        text: what the source says.
        title: the title of the page or passage.
        id: `E1`, `E2`, …, given by the toolbox and unique in a rollout; citations name it.
        source: the id of the passage in its corpus.
        url: the address of the page.
        score: how well it fits the query, by the search that found it.
        label: the number or id that the tool itself printed with the passage.
    """

    text: str
    title: str = ""
    id: str = ""
    source: str = ""
    url: str = ""
    score: float | None = None
    label: str = ""


class Citation(msgspec.Struct, frozen=True, omit_defaults=True):
    """A place in an answer or a thought that names its source.

    Attributes:
        span: where the mark stands in that text; of a citation that an API sent beside the text,
            the words that cite, or (0, 0) where it did not say.
        target: what is named: an address, an id, a title, or a number as text.
        how: the form: "number", "raised", "footnote", "cursor", "link", "address", "tag", "ref",
            "id", "author", "list" (an entry of the writer's own list of sources) or "api".
        quote: the words of the source that an API quotes.
    """

    span: Span
    target: str
    how: str
    quote: str = ""


class ToolCall(msgspec.Struct, frozen=True, omit_defaults=True):
    """A tool call as the agent wrote it.

    Attributes:
        name: the tool's name.
        arguments: its arguments, by their names.
        raw: the text between the call's tags.
    """

    name: str
    arguments: dict[str, Any] = {}
    raw: str = ""


class Issue(msgspec.Struct, frozen=True, omit_defaults=True):
    """A problem found while parsing: data about the policy, never an exception.

    Attributes:
        kind: what is wrong, in a word that can be counted; docs/dialects.md lists the kinds.
        why: the reason, in a sentence.
        span: where in the trajectory's text, if that is known.
    """

    kind: str
    why: str
    span: Span | None = None


class Step(msgspec.Struct, frozen=True, omit_defaults=True):
    """One turn of the agent and what the environment returned for it.

    Attributes:
        think: the thought before the call or the answer.
        call: the tool call; `None` where the turn called nothing.
        evidence: the passages that the call returned.
        note: the text of a tool response that is not evidence: an error, or that nothing was found.
        answer: the final answer, where this step gives it.
        helpful: the verdict on the *previous* step's evidence; `None` where there is none.
        refs: the ids of the evidence that this verdict cites; `()` where there is none.
        same_turn: this is a further call of the turn that the step before began; only the first
            has the thought.
        verified: the agent's own check of the answer it gave before (Pokee's verification mode);
            the check's text is in `think`.
        issues: what could not be read as its dialect wants it.
        spans: where each part's inner text stands in the trajectory's text; the parts are "step"
            (the model's whole turn), "think", "helpful", "ref", "call", "response" and "answer".
        citations: what an API sent beside the step's answer, or beside its thought where it has no
            answer; marks in the text itself are found by `citations`.
    """

    think: str | None = None
    call: ToolCall | None = None
    evidence: tuple[Evidence, ...] = ()
    note: str = ""
    answer: str | None = None
    helpful: bool | None = None
    refs: tuple[str, ...] = ()
    same_turn: bool = False
    verified: bool | None = None
    issues: tuple[Issue, ...] = ()
    spans: dict[str, Span] = {}
    citations: tuple[Citation, ...] = ()


class Tokens(msgspec.Struct, frozen=True, omit_defaults=True):
    """The token ids of a rollout, exactly as sampled and appended.

    `mask[i]` is 1 where `completion_ids[i]` was sampled by the policy and 0 where the environment
    added it. `turns[k]` is `(start, middle, end)`: step k's own tokens are
    `completion_ids[start:middle]`, its tool response `[middle:end]`.
    """

    prompt_ids: list[int]
    completion_ids: list[int]
    mask: list[int]
    turns: tuple[tuple[int, int, int], ...]
    logprobs: list[float] | None = None


class Trajectory(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A whole episode: what an agent did for one question, and what it received.

    Attributes:
        steps: the agent's turns with what the environment returned for each.
        question: the question; `None` where it is not known.
        answer: the agent's final answer; `None` where it gave none.
        stop_reason: why the episode ended: "answered", "turn_limit" and the like.
        dialect: the name of the dialect that it was read in.
        id: the id of the row or task that it belongs to.
        answers: the gold answers, where they are known.
        text: the text that was parsed; spans point into it.
        issues: what could not be read as the dialect wants it, and belongs to no single step.
        tokens: the token ids of a rollout of our own engine.
        meta: anything else that is known of the episode.
        evidence_from: where the tool responses stood, and so who can have written them: in the
            agent's own "text", where an agent can invent them; in "messages" of their own; or
            "environment", where our own code ran the tools. Empty where there were none, or where
            it is not known.
    """

    steps: tuple[Step, ...] = ()
    question: str | None = None
    answer: str | None = None
    stop_reason: str | None = None
    dialect: str = ""
    id: str = ""
    answers: tuple[str, ...] = ()
    text: str = ""
    issues: tuple[Issue, ...] = ()
    tokens: Tokens | None = None
    meta: dict[str, Any] = {}
    evidence_from: Source = ""

    @property
    def turns(self) -> list[tuple[Step, ...]]:
        """The steps grouped into the agent's turns: one step each, more where calls were made in
        parallel.
        """
        groups: list[tuple[Step, ...]] = []
        for step in self.steps:
            before = groups.pop() if step.same_turn and groups else ()
            groups.append((*before, step))
        return groups

    @property
    def passages(self) -> list[Evidence]:
        """All evidence of the episode in order, also where two passages have one id."""
        return [passage for step in self.steps for passage in step.evidence]

    @property
    def evidence(self) -> dict[str, Evidence]:
        """The evidence by id; of two passages with one id, which is an issue, the first."""
        by_id: dict[str, Evidence] = {}
        for passage in self.passages:
            by_id.setdefault(passage.id, passage)
        return by_id

    def all_issues(self) -> list[Issue]:
        """The trajectory's own issues, then those of its steps in order."""
        return [*self.issues, *(issue for step in self.steps for issue in step.issues)]

    def to_json(self) -> str:
        """One line of JSON that `from_json` reads back to an equal value; of half characters, see
        `well_formed`.
        """
        return encoded(self).decode()

    @staticmethod
    def from_json(line: str | bytes) -> "Trajectory":
        """Read what `to_json` wrote. Raises `DataError` when it is something else."""
        try:
            return _DECODER.decode(line)
        except (msgspec.MsgspecError, UnicodeError) as error:
            raise DataError(f"not a trajectory: {error}") from error


_DECODER = msgspec.json.Decoder(Trajectory)
_ENCODER = msgspec.json.Encoder()


def encoded(value: Any, encoder: msgspec.json.Encoder = _ENCODER) -> bytes:
    """The JSON of a value; of half characters, see `well_formed`."""
    try:
        return encoder.encode(value)
    except UnicodeEncodeError:  # half of a surrogate pair, which JSON from elsewhere may hold
        return encoder.encode(_well_formed(msgspec.to_builtins(value, enc_hook=encoder.enc_hook)))


def _well_formed(value: Any) -> Any:
    if isinstance(value, str):
        return well_formed(value)
    if isinstance(value, dict):
        return {_well_formed(key): _well_formed(entry) for key, entry in value.items()}
    return list(map(_well_formed, value)) if isinstance(value, (list, tuple)) else value


def write_jsonl(path: str | os.PathLike[str], trajectories: Iterable[Trajectory]) -> int:
    """Write one trajectory a line (gzip when the name ends in `.gz`); returns how many.

    The file appears under its name only when complete: a failed write leaves the old file as it
    was.
    """
    path, count = Path(path), 0
    path.parent.mkdir(parents=True, exist_ok=True)
    opener: Callable[..., Any] = gzip.open if path.suffix == ".gz" else open
    with replacing(path) as partial, opener(partial, "wb") as file:
        for trajectory in trajectories:
            file.write(encoded(trajectory) + b"\n")
            count += 1
    return count


def read_jsonl(
    path: str | os.PathLike[str], on_error: Callable[[int, DataError], None] | None = None
) -> Iterator[Trajectory]:
    """Yield the trajectories of a file written by `write_jsonl`.

    A broken line goes to `on_error(line_number, error)` and is skipped; without `on_error` it
    raises `DataError`, as a file that cannot be read or is cut short always does.
    """
    for number, line in read_lines(path):
        try:
            trajectory = Trajectory.from_json(line)
        except DataError as error:
            if on_error is None:
                raise DataError(f"{path}, line {number}: {error}") from error
            on_error(number, error)
        else:
            yield trajectory
