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
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

from ..trajectory import Evidence, Issue, Span, Step, ToolCall, Trajectory
from .base import Dialect, Fields
from .fence import Fence, tags
from .json_call import CLOSE, LOOK_BACK, NO_CALL, OPEN, asked_for, call_form, read_call, repair_call
from .segments import Segment
from .turns import GAP, Grammar, Tag, TurnReader, skip

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
    """A field of JSON as text: other values than strings as JSON, nothing for null."""
    if isinstance(value, str):
        return value
    return "" if value is None else write_json(value)


def stretches(heads: Sequence[re.Match[str]], end: int) -> list[tuple[re.Match[str], int]]:
    """Each match with where the next one begins, the last with `end`."""
    return list(zip(heads, [*(head.start() for head in heads[1:]), end], strict=False))


class ToolCalls(Dialect):
    """The base of these dialects. A subclass says how a tool response's body is read and written.

    Attributes:
        grammar: the tags of a turn.
        prefilled: whether the opening think tag may be part of the prompt, and so absent.
        asked: finds the question in the prompt's user message, as group 1; `None` where the message is the question.
        prompt_words: first words of a prompt that may stand before the text without any chat markup.
        places: where a turn may end, a pattern.
    """

    stop: ClassVar[tuple[str, ...]] = ("</tool_call>", "</answer>")
    observation_role: ClassVar[str | None] = "user"
    response_tag: ClassVar[str] = "tool_response"
    fence: ClassVar[Fence] = Fence(FENCED)
    marks: ClassVar[Mapping[str, float]] = MARKS
    grammar: ClassVar[Grammar] = GRAMMAR
    prefilled: ClassVar[bool] = False
    asked: ClassVar[re.Pattern[str] | None] = None
    prompt_words: ClassVar[str] = ""
    places: ClassVar[re.Pattern[str]] = re.compile(PLACES)

    @abstractmethod
    def read_body(self, body: str) -> tuple[list[Evidence], str]:
        """The evidence in a tool response's inner text, without ids, and the note where there is none."""

    @abstractmethod
    def write_body(self, evidence: Sequence[Evidence], note: str, escape: Callable[[str], str]) -> str:
        """The inner text of a tool response; `escape` fences what was retrieved."""

    def split(self, text: str, start: int, end: int, fenced: bool) -> Iterator[Segment]:
        """A turn ends where a response or someone's role begins; then come responses, or a controller's words."""
        while start < end:
            after = start if text.startswith(OPEN, start, end) else skip(text, start, end)
            if text.startswith(OPEN, after, end):
                after += len(OPEN)
                close = text.find(CLOSE, after, end)
                yield Segment("tool", text, (after, end if close < 0 else close), fenced, close >= 0)
                start = end if close < 0 else close + len(CLOSE)
                continue
            roles = _ANY_ROLE.findall(text, start, after) if start < after else ()
            if roles and roles[-1] not in ("assistant", "model"):  # said to the agent
                again = _AGENT_AGAIN.search(text, after, end)
                after = again.end() if again else end
            start = after
            if start < end:
                start = self.turn_end(text, start, end)
                yield Segment("agent", text, (after, start))

    def read_turns(self, text: str, start: int, end: int, first: bool) -> list[Fields]:
        """The steps of one turn: one, or one for each call."""
        return self.read_turn(text, start, end, first, parallel=self.parallel)

    def parse_turn(self, text: str, *, first: bool) -> Step:
        """Read one turn; of several calls the first. Spans point into `text`."""
        return Step(**self.read_turn(text, skip(text, 0), len(text), first, parallel=False)[0])

    def read_response(self, segment: Segment) -> tuple[list[Evidence], str]:
        """As `read_body` reads it; the line breaks next to the response's tags are not part of the text."""
        body = segment.body
        if segment.text.startswith(OPEN, segment.span[0] - len(OPEN)):
            body = body.removeprefix("\n").removesuffix("\n")
        return self.read_body(body)

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

    def begin_plain(self, text: str) -> tuple[int, str | None]:
        """Behind a prompt that begins with `prompt_words`."""
        plain = self.asked is not None and self.prompt_words and text.lstrip().startswith(self.prompt_words)
        asked = self.asked.search(text) if plain and self.asked else None
        return (asked.end(), asked[1].strip()) if asked else (0, None)

    def asked_in(self, message: str) -> str:
        """What `asked` finds, or all of the message."""
        found = self.asked.search(message) if self.asked else None
        return found[1].strip() if found else message

    def turn_end(self, text: str, start: int, end: int) -> int:
        """Where the turn that begins at `start` ends: at what someone else wrote, or at `end`."""
        for match in self.places.finditer(text, start, end):
            found = self.ends_at(text, start, match)
            if found is not None:
                return found
        return end

    def ends_at(self, text: str, start: int, place: re.Match[str]) -> int | None:
        """Where the turn ends if it ends at this place, found by `places`; `None` when it goes on."""
        at = place.start()
        if place[0] == OPEN:
            return at if at == start or asked_for(text, start, at) else None
        if not place[0].startswith("<|"):
            # A bare role counts behind a closing tag or a special token only: it may be the agent's own word.
            tag = text.rfind("<", max(start, at - 40), at)
            if tag < 0 or text[tag + 1 : tag + 2] not in ("/", "|") or not text[tag:at].rstrip().endswith(">"):
                return None
        if text.startswith(OPEN, skip(text, place.end(), at + LOOK_BACK)):
            return None  # the next place is that response, and a role precedes it
        return at

    def read_turn(self, text: str, start: int, end: int, first: bool, parallel: bool) -> list[Fields]:
        """The fields of the steps of one turn: one, or one for each call."""
        reader = CallReader(text, start, end, self, parallel)
        return [reader.read(), *({**more, "same_turn": True} for more in reader.more)]

    def read_call(self, raw: str) -> ToolCall | None:
        """The call that stands between the tags, or `None`."""
        return read_call(raw)

    def read_bare(self, text: str, span: Span) -> Span | None:
        """Where the answer is in the text outside all tags, for a grammar without a tag for it."""
        return span


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


def _trimmed(text: str, start: int, end: int) -> Span:
    """The text between without blanks and special tokens at its end."""
    piece = text[start:end].rstrip()
    for _ in range(_MOST_TOKENS_AT_END):
        if not (piece.endswith("|>") and "<|" in piece[-44:]):
            break
        piece = piece[: piece.rindex("<|")].rstrip()
    return start, start + len(piece)
