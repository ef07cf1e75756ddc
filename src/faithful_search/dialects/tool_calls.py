"""What the dialects share whose calls are JSON in `<tool_call>` and whose tool responses stand in `<tool_response>`.

A text is cut into turns of the agent and what came between them: tool responses, and words of a controller (a user's
message that is no response). A response counts as the environment's when the end of a call or a role precedes it; one
that the agent opens elsewhere it wrote itself. Kinds of issues are those of `pou` without the verdict's, and
`think_unopened` (a thought is closed that was never opened), `response_missing` (parallel calls, fewer responses),
`response_unasked` (a response to a turn that made no call).
"""

from __future__ import annotations

import json
import re
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import msgspec

from ..trajectory import Evidence, Issue, Span, Step, ToolCall, Trajectory
from .base import Dialect
from .fence import Fence, tags, unescape
from .json_call import CLOSE, LOOK_BACK, NO_CALL, OPEN, asked_for, call_form, read_call, repair_call
from .turns import GAP, MOST_STEPS, Grammar, Tag, TurnReader, episode_start, skip

NAMES = ("think", "tool_call", "tool_response", "answer")
GRAMMAR = Grammar(NAMES, "tool_call", "tool_response", last_answer_counts=True)
BARE = Grammar(NAMES[:3], "tool_call", "tool_response")
"""A grammar without a tag for the answer: text outside all tags in a turn without calls is the answer."""
MARKS: Mapping[str, float] = {
    "tool_call": 0.5, "tool_response": 0.5, "think": 0.25, "answer": 0.25, "helpful": -4.0, "ref": -3.0,
    "search": -3.0, "information": -3.0, "result": -3.0, "search_results": -3.0, "begin_of_query": -3.0,
}  # fmt: skip
"""The marks that the whole family shares; `signs` tell its members apart."""
FENCED = tags(*NAMES) + r"|<\|"
PLACES = r"<tool_response>|<\|im_start\|>(?:user|tool)\n|(?<=>)\s{0,4}user\n|(?<=\n)user\n"
_AGENT_AGAIN = re.compile(r"<\|im_start\|>assistant\n?|(?<=\n)assistant\n")
_ANY_ROLE = re.compile(r"user|tool|ipython|system|assistant|model")
_CUT_TAG = re.compile(r"<(?:/?[a-z_]{0,24})?\Z")
_MOST_TOKENS_AT_END = 8
_LENIENT = json.JSONDecoder(strict=False)


def write_call(call: ToolCall) -> str:
    """What stands between a call's tags: as the agent wrote it where that is known, else JSON on a line of its own."""
    if call.raw:
        return call.raw
    text = json.dumps({"name": call.name, "arguments": call.arguments}, ensure_ascii=False)
    return "\n" + text.replace("<", "\\u003c") + "\n"


def read_json(text: str) -> Any:
    """The JSON value in `text`, bare line breaks in its strings allowed; `None` for what is none."""
    try:
        value, end = _LENIENT.raw_decode(text.lstrip())
    except (ValueError, RecursionError):
        return None
    return value if not text.lstrip()[end:].strip() else None


def write_json(value: Any) -> str:
    """JSON as the tools of these systems write it, one line."""
    return json.dumps(value, ensure_ascii=False)


def text_of(value: Any) -> str:
    """A string field of JSON with its fence undone; other values as JSON, nothing for null."""
    if isinstance(value, str):
        return unescape(value)
    return "" if value is None else unescape(write_json(value))


def stretches(heads: Sequence[re.Match[str]], end: int) -> list[tuple[re.Match[str], int]]:
    """Each match with where the next one begins, the last with `end`."""
    return list(zip(heads, [*(head.start() for head in heads[1:]), end], strict=False))


class ToolCalls(Dialect):
    """The base of these dialects. A subclass says how a tool response's body is read and written.

    Attributes:
        grammar: the tags of a turn.
        prefilled: whether the opening think tag may be part of the prompt, and so absent.
        asked: finds the question in the prompt's user message, as group 1; `None` where the message is the question.
        opening: first words of a prompt that may stand before the text without any chat markup.
        places: where a turn may end, a pattern.
    """

    stop: ClassVar[tuple[str, ...]] = ("</tool_call>", "</answer>")
    observation_role: ClassVar[str | None] = "user"
    response_tag: ClassVar[str] = "tool_response"
    joins: ClassVar[bool] = True
    fence: ClassVar[Fence] = Fence(FENCED)
    marks: ClassVar[Mapping[str, float]] = MARKS
    grammar: ClassVar[Grammar] = GRAMMAR
    prefilled: ClassVar[bool] = False
    asked: ClassVar[re.Pattern[str] | None] = None
    opening: ClassVar[str] = ""
    places: ClassVar[re.Pattern[str]] = re.compile(PLACES)

    @abstractmethod
    def read_body(self, body: str) -> tuple[list[Evidence], str]:
        """The evidence in a tool response's inner text, without ids, and the note where there is none."""

    @abstractmethod
    def write_body(self, evidence: Sequence[Evidence], note: str, escape: Callable[[str], str]) -> str:
        """The inner text of a tool response; `escape` fences what was retrieved."""

    def parse(self, text: str, *, question: str | None = None) -> Trajectory:
        """Read a trajectory, prompt included or not. Whatever stands in a tool response is data."""
        at, asked = self.begin(text)
        steps: list[dict[str, Any]] = []
        found = 0
        bodies, at = _between(text, at)
        if bodies:
            steps = [{"spans": {"step": (bodies[0][0][0], bodies[0][0][0])}}]
            found = self._answer(steps, text, bodies, found)
        while at < len(text) and len(steps) < MOST_STEPS:
            end = self.turn_end(text, at)
            turn = self.read_turn(text, at, end, parallel=self.parallel)
            bodies, at = _between(text, end)
            found = self._answer(turn, text, bodies, found)
            steps += turn
        trajectory = self.conclude(
            tuple(Step(**fields) for fields in steps), text, asked if question is None else question
        )
        if at >= len(text):
            return trajectory
        issue = Issue("turns_many", f"more than {MOST_STEPS} turns; what follows is not read", (at, len(text)))
        return msgspec.structs.replace(trajectory, issues=(issue,))

    def conclude(self, steps: tuple[Step, ...], text: str, question: str | None) -> Trajectory:
        """The trajectory of these steps: its answer is the last one given."""
        answer = next((step.answer for step in reversed(steps) if step.answer is not None), None)
        ended = "answered" if steps and steps[-1].answer is not None else None
        return Trajectory(steps, question, answer, ended, self.name, text=text)

    def parse_turn(self, text: str, *, first: bool) -> Step:
        """Read one turn; of several calls the first. Spans point into `text`."""
        fields = self.read_turn(text, skip(text, 0), len(text), parallel=False)
        return Step(**fields[0])

    def render_turn(self, step: Step) -> str:
        """Write one turn, or a further call of one."""
        parts = [] if step.same_turn else [f"<think>{step.think or ''}</think>"]
        if step.call is not None:
            parts.append(f"<tool_call>{write_call(step.call)}</tool_call>")
        if step.answer is not None:
            parts.append(self.write_answer(step.answer))
        return "\n".join(parts)

    def write_answer(self, answer: str) -> str:
        """How the end is written."""
        return f"<answer>{answer}</answer>"

    def render_observation(self, evidence: Sequence[Evidence], note: str = "", fence: Fence | None = None) -> str:
        """A tool response; the note only when there is no evidence."""
        body = self.write_body(evidence, note, (fence or self.fence).escape)
        return f"{OPEN}\n{body}\n{CLOSE}"

    def render(self, trajectory: Trajectory) -> str:
        """Write a whole trajectory as one text; the responses of a turn's calls stand behind the turn."""
        parts: list[str] = []
        for turn in trajectory.turns:
            parts += [self.render_turn(step) for step in turn]
            parts += [self.render_observation(step.evidence, step.note) for step in turn if step.call is not None]
        return "\n".join(parts)

    def call_form(self, tools: Sequence[str]) -> str:
        """The JSON of a call, with the first tool's name."""
        return call_form(tools)

    def repair_call(self, raw: str) -> ToolCall | None:
        """The call that broken JSON was meant to be."""
        return repair_call(raw)

    def begin(self, text: str) -> tuple[int, str | None]:
        """Where the agent begins, and the question asked before."""
        at, message = episode_start(text, OPEN)
        asked = self.asked.search(message) if message and self.asked else None
        if asked or at:
            return at, asked[1].strip() if asked else message
        bare = self.opening and text.lstrip().startswith(self.opening)
        asked = self.asked.search(text) if bare and self.asked else None
        return (asked.end(), asked[1].strip()) if asked else (0, None)

    def turn_end(self, text: str, start: int) -> int:
        """Where the turn that begins at `start` ends: at what someone else wrote, or at the text's end."""
        for match in self.places.finditer(text, start):
            end = self.ends_at(text, start, match)
            if end is not None:
                return end
        return len(text)

    def ends_at(self, text: str, start: int, place: re.Match[str]) -> int | None:
        """Where the turn ends if it ends at this place, found by `places`; `None` when it goes on."""
        at = place.start()
        if place[0] == OPEN:
            return at if at == start or asked_for(text, start, at) else None
        if not (place[0].startswith("<|") or _behind_a_tag(text, start, at)):
            return None
        if text.startswith(OPEN, skip(text, place.end(), at + LOOK_BACK)):
            return None  # the next place is that response, and a role precedes it
        return at

    def read_turn(self, text: str, start: int, end: int, parallel: bool) -> list[dict[str, Any]]:
        """The fields of the steps of one turn: one, or one for each call."""
        reader = CallReader(text, start, end, self, parallel)
        first = reader.read()
        return [first, *({**more, "same_turn": True} for more in reader.more)]

    def read_call(self, raw: str) -> ToolCall | None:
        """The call that stands between the tags, or `None`."""
        return read_call(raw)

    def read_bare(self, text: str, span: Span) -> Span | None:
        """Where the answer is in the text outside all tags, for a grammar without a tag for it."""
        return span

    def _answer(self, turn: list[dict[str, Any]], text: str, bodies: list[tuple[Span, bool]], found: int) -> int:
        """Give each call its response, all further ones to the last; returns how much evidence there is by now."""
        asks = [fields for fields in turn if "call" in fields["spans"]]
        if bodies and not asks:
            _add_issue(turn[0], Issue("response_unasked", "a tool response to a turn without a call", bodies[0][0]))
        if bodies and len(bodies) < len(asks):
            _add_issue(asks[-1], Issue("response_missing", f"{len(asks)} calls, {len(bodies)} responses"))
        takers = asks or turn
        for number, fields in enumerate(takers):
            own = bodies[number : number + 1] if number + 1 < len(takers) else bodies[number:]
            found += self._receive(fields, text, own, found) if own else 0
        return found

    def _receive(self, fields: dict[str, Any], text: str, bodies: list[tuple[Span, bool]], found: int) -> int:
        """Put these responses into the step's fields; returns how much evidence there is in them."""
        evidence: list[Evidence] = []
        notes: list[str] = []
        for span, closed in bodies:
            items, note = self.read_body(_inner(text, span))
            evidence += items
            notes += [note] if note else []
            if not closed:
                _add_issue(fields, Issue("response_unclosed", "the tool response is not closed", span))
        named = enumerate(evidence, start=found + 1)
        fields["evidence"] = tuple(msgspec.structs.replace(item, id=f"E{k}") for k, item in named)
        fields["note"] = "\n".join(notes)
        fields["spans"]["response"] = (bodies[0][0][0], bodies[-1][0][1])
        return len(evidence)


class CallReader(TurnReader):
    """Reads a turn of these dialects; `more` holds the fields of all calls after the first."""

    def __init__(self, text: str, start: int, end: int, dialect: ToolCalls, parallel: bool) -> None:
        super().__init__(text, start, end, dialect.grammar)
        self.dialect, self.parallel = dialect, parallel
        self.more: list[dict[str, Any]] = []
        self.loose: list[Span] = []
        if self.tags and self.tags[0].closing and self.tags[0].name == "think":
            self.tags.insert(0, Tag(start, start, False, "think"))
            if not dialect.prefilled:
                self.issue("think_unopened", "a thought is closed that was not opened", self.tags[1].span)

    def _step(self) -> dict[str, Any]:
        if self.loose:
            self._bare()
        fields = super()._step()
        for more in self.more:
            more["spans"]["step"] = fields["spans"]["step"]
        return fields

    def no_think(self) -> None:
        """Nothing to note where the protocol asks for no thought."""
        if self.dialect.thinks:
            super().no_think()

    def read_call(self, raw: str, span: Span) -> ToolCall | None:
        """The call as the dialect reads it, or `None` and an issue."""
        call = self.dialect.read_call(raw)
        if call is None:
            self.issue("call_json", NO_CALL, span)
        return call

    def _call(self, span: Span) -> None:
        if not self.parallel or "call" not in self.spans:
            super()._call(span)
            return
        call = self.dialect.read_call(self.text[slice(*span)])
        found = {"call": call} if call else {"issues": (Issue("call_json", NO_CALL, span),)}
        self.more.append({"spans": {"call": span}, **found})

    def _outside(self, begin: int, end: int) -> None:
        if "answer" in self.grammar.names:
            super()._outside(begin, end)
            return
        gap = GAP.match(self.text, begin, end)
        begin = gap.end() if gap else begin
        cut = _CUT_TAG.search(self.text, max(begin, end - 30), end) if end == self.end else None
        span = _trimmed(self.text, begin, cut.start() if cut else end)
        if span[0] < span[1]:
            self.loose.append(span)

    def _bare(self) -> None:
        """Text outside all tags: the answer of a turn without calls, else the thought of one that has no other."""
        if "call" in self.spans:
            if "think" not in self.spans:
                span = self.spans["think"] = self.loose[0]
                self.fields["think"] = self.text[slice(*span)]
            return
        answer = self.dialect.read_bare(self.text, self.loose[-1])
        if answer is not None:
            self.spans["answer"] = answer
            self.fields["answer"] = self.text[slice(*answer)].strip()


def _behind_a_tag(text: str, start: int, at: int) -> bool:
    """Whether a closing tag or a special token stands directly before `at`."""
    tag = text.rfind("<", max(start, at - 40), at)
    return tag >= 0 and text[tag + 1 : tag + 2] in ("/", "|") and text[tag:at].rstrip().endswith(">")


def _between(text: str, at: int) -> tuple[list[tuple[Span, bool]], int]:
    """What stands between two turns from `at` on: spans of responses and whether closed; where the agent goes on."""
    bodies: list[tuple[Span, bool]] = []
    while True:
        after = skip(text, at)
        if text.startswith(OPEN, after):
            at = _body(text, after + len(OPEN), bodies)
        elif _received(text[at:after]):
            again = _AGENT_AGAIN.search(text, after)
            return bodies, again.end() if again else len(text)
        else:
            return bodies, after


def _body(text: str, start: int, bodies: list[tuple[Span, bool]]) -> int:
    end = text.find(CLOSE, start)
    bodies.append(((start, end if end >= 0 else len(text)), end >= 0))
    return end + len(CLOSE) if end >= 0 else len(text)


def _received(gap: str) -> bool:
    """Whether what follows this gap is said to the agent: the last role in it is not the agent's."""
    roles = _ANY_ROLE.findall(gap)
    return bool(roles) and roles[-1] not in ("assistant", "model")


def _inner(text: str, span: Span) -> str:
    """A response's text without the line breaks that belong to its tags."""
    start, end = span
    start += text.startswith("\n", start, end)
    end -= end > start and text[end - 1] == "\n"
    return text[start:end]


def _trimmed(text: str, start: int, end: int) -> Span:
    """The text between without blanks and special tokens at its end."""
    piece = text[start:end].rstrip()
    for _ in range(_MOST_TOKENS_AT_END):
        if not (piece.endswith("|>") and "<|" in piece[-44:]):
            break
        piece = piece[: piece.rindex("<|")].rstrip()
    return start, start + len(piece)


def _add_issue(fields: dict[str, Any], issue: Issue) -> None:
    fields["issues"] = (*fields.get("issues", ()), issue)
