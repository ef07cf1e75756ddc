"""What a search agent leaves behind: a `Trajectory` of `Step`s, each with the evidence its call returned.

All values are frozen. `Step.helpful` and `Step.refs` judge the evidence of the step *before*, as in Proof-of-Use
(section 3.2.3).
"""

import gzip
import os
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from .errors import DataError
from .text import well_formed
from .wire.files import replacing

Span = tuple[int, int]  # half-open character range in `Trajectory.text`


class Evidence(msgspec.Struct, frozen=True, omit_defaults=True):
    """One retrieved passage. `id` (`E1`, `E2`, …) is given by the toolbox and unique in a rollout."""

    text: str
    title: str = ""
    id: str = ""
    source: str = ""
    url: str = ""
    score: float | None = None


class ToolCall(msgspec.Struct, frozen=True, omit_defaults=True):
    """A tool call as the agent wrote it. `raw` is the text between the call's tags."""

    name: str
    arguments: dict[str, Any] = {}
    raw: str = ""


class Issue(msgspec.Struct, frozen=True, omit_defaults=True):
    """A problem found while parsing: data about the policy, never an exception."""

    kind: str
    why: str
    span: Span | None = None


class Step(msgspec.Struct, frozen=True, omit_defaults=True):
    """One turn of the agent and what the environment returned for it.

    Attributes:
        helpful, refs: the verdict on the *previous* step's evidence; `None` and `()` where there is none.
        note: the text of a tool response that is not evidence: an error, or that nothing was found.
        same_turn: this is a further call of the turn that the step before began; only the first has the thought.
        verified: the agent's own check of the answer it gave before (Pokee's verification mode), told in `think`.
        spans: by part ("step", "think", "helpful", "ref", "call", "response", "answer"), where its inner text stands in
            the trajectory's text; "step" is the model's whole turn.
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


class Tokens(msgspec.Struct, frozen=True, omit_defaults=True):
    """The token ids of a rollout, exactly as sampled and appended.

    `mask[i]` is 1 where `completion_ids[i]` was sampled by the policy and 0 where the environment added it. `turns[k]`
    is `(start, middle, end)`: step k's own tokens are `completion_ids[start:middle]`, its tool response `[middle:end]`.
    """

    prompt_ids: list[int]
    completion_ids: list[int]
    mask: list[int]
    turns: tuple[tuple[int, int, int], ...]
    logprobs: list[float] | None = None


class Trajectory(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A whole episode. `answers` are the gold answers when known; `text` is what was parsed, spans point into it."""

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

    @property
    def turns(self) -> list[tuple[Step, ...]]:
        """The steps grouped into the agent's turns: one step each, more where calls were made in parallel."""
        groups: list[tuple[Step, ...]] = []
        for step in self.steps:
            before = groups.pop() if step.same_turn and groups else ()
            groups.append((*before, step))
        return groups

    @property
    def evidence(self) -> dict[str, Evidence]:
        """All evidence of the episode by id, first come first kept."""
        found: dict[str, Evidence] = {}
        for item in (item for step in self.steps for item in step.evidence):
            found.setdefault(item.id, item)
        return found

    def all_issues(self) -> list[Issue]:
        """The trajectory's own issues, then those of its steps in order."""
        return [*self.issues, *(issue for step in self.steps for issue in step.issues)]

    def to_json(self) -> str:
        """One line of JSON that `from_json` reads back to an equal value; of half characters, see `well_formed`."""
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
        return {_well_formed(key): _well_formed(item) for key, item in value.items()}
    return list(map(_well_formed, value)) if isinstance(value, (list, tuple)) else value


def write_jsonl(path: str | os.PathLike[str], trajectories: Iterable[Trajectory]) -> int:
    """Write one trajectory a line (gzip when the name ends in `.gz`); returns how many.

    The file appears under its name only when complete: a failed write leaves the old file as it was.
    """
    path, count = Path(path), 0
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as partial, _opener(path)(partial, "wb") as file:
        for trajectory in trajectories:
            file.write(encoded(trajectory) + b"\n")
            count += 1
    return count


def read_jsonl(
    path: str | os.PathLike[str], on_error: Callable[[int, DataError], None] | None = None
) -> Iterator[Trajectory]:
    """Yield the trajectories of a file written by `write_jsonl`.

    A broken line goes to `on_error(line_number, error)` and is skipped; without `on_error` it raises `DataError`, as a
    file that cannot be read or is cut short always does.
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


def read_lines(path: str | os.PathLike[str]) -> Iterator[tuple[int, bytes]]:
    """Yield the lines of a file that are not blank, with their numbers from 1; gzip when the name ends in `.gz`.

    Raises `DataError` when the file cannot be read, or is a broken or truncated gzip.
    """
    try:
        with _opener(Path(path))(path, "rb") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield number, line
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"cannot read {path}: {error}") from error


def _opener(path: Path) -> Callable[..., Any]:
    return gzip.open if path.suffix == ".gz" else open
