"""The base of the dialects whose calls are JSON in `<tool_call>` and whose tool responses stand in
`<tool_response>`.

A response is the environment's where the end of a call or a role precedes it. Anywhere else the
agent wrote it itself.
"""

import json
import re
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, ClassVar

import msgspec

from .. import loose_json
from ..errors import DataError
from ..formats import call_markup
from ..formats.blocks import as_json
from ..trajectory import Span, ToolCall
from .base import Dialect
from .segments import Segment
from .turns import GAP, Fields, Grammar, Tag, TurnReader, skip, trimmed

OPEN, CLOSE = "<tool_response>", "</tool_response>"
# A grammar without a tag for the answer: in a turn without calls, text outside all tags is it.
BARE = Grammar("tool_call", "tool_response", ("think", "tool_call", "tool_response"))
MARKS = {
    "tool_call": 0.5, "tool_response": 0.5, "think": 0.25, "answer": 0.25, "helpful": -4.0, "ref": -3.0,
    "search": -3.0, "information": -3.0, "result": -3.0, "search_results": -3.0, "begin_of_query": -3.0,
}  # fmt: skip
"""The marks that all these dialects share; `signs` tell them apart."""
# Where a turn may end: at what begins with a tag, or also at a bare role.
TAGGED = r"<tool_response>|<\|im_start\|>(?:user|tool)\n"
PLACES = rf"{TAGGED}|(?<=>)\s{{0,4}}user\n|(?<=\n)user\n"
_AGENT_AGAIN = re.compile(r"<\|im_start\|>assistant\n?|(?<=\n)assistant\n")
_ANY_ROLE = re.compile(r"user|tool|ipython|system|assistant|model")
_CUT_TAG = re.compile(r"<(?:/?[a-z_]{0,24})?\Z")
_MOST_REPAIRED, _MOST_BRACKETS = 2_000, 40  # characters and brackets of a call that is repaired
_CALL_END = "</tool_call>"
_ROLE = "(?:user|tool|ipython)"
_ROLE_BEFORE = re.compile(
    rf"(?:<\|im_start\|>{_ROLE}|<\|start_header_id\|>{_ROLE}|<start_of_turn>user|>\s*+{_ROLE}(?=\n)){GAP.pattern}\Z"
)
_ROLE_LINE = re.compile(rf"\n{_ROLE}\n\s*\Z")
# How many characters before a tool response are searched for what shows whose it is
_LOOK_BACK = 200  # for a role
_CALLED_BEFORE = 4_000  # for a call


class _WrittenCall(msgspec.Struct):
    """A call as JSON."""

    name: Annotated[str, msgspec.Meta(min_length=1)]
    arguments: dict[str, Any] | msgspec.UnsetType = msgspec.UNSET


# The decoder is typed: it refuses what is no call while it reads, and makes no dict in between.
_decode = msgspec.json.Decoder(_WrittenCall).decode


class CallReader(TurnReader):
    """Also reads further calls of a turn, each a step of its own, thoughts that the prompt opened,
    and answers without a tag.
    """

    dialect: "ToolCalls"

    def read(self, alone: bool = False) -> list[Fields]:
        self.parallel_calls = self.dialect.parallel_calls and not alone
        self.further_steps: list[Fields] = []  # of all parallel calls after the first
        self.loose: list[Span] = []  # text outside all tags
        if self.tags and self.tags[0].closing and self.tags[0].name == "think":
            self.tags.insert(0, Tag(self.start, self.start, False, "think"))
            if not self.dialect.may_open_in_prompt:
                why = "a thought is closed that was not opened"
                self.issue("think_unopened", why, self.tags[1].span)
        [fields] = super().read(alone)  # one: these dialects' turns are messages of their own
        for further in self.further_steps:
            further["spans"]["step"] = fields["spans"]["step"]
        return [fields, *self.further_steps]

    def read_call(self, span: Span) -> None:
        if not self.parallel_calls or "call" not in self.spans:
            super().read_call(span)
            return
        before = len(self.issues)
        fields: Fields = {"spans": {"call": span}, "same_turn": True, **self.called(span)}
        call_issues = tuple(self.issues[before:])
        if call_issues:
            del self.issues[before:]
            fields["issues"] = call_issues
        self.further_steps.append(fields)

    def outside(self, begin: int, end: int) -> None:
        """Collect what may be the answer. A text that was cut may end within a tag, which is left
        out.
        """
        if "answer" in self.dialect.grammar.names:
            super().outside(begin, end)
            return
        begin = skip(self.text, begin, end)
        cut = _CUT_TAG.search(self.text, max(begin, end - 30), end) if end == self.end else None
        span = trimmed(self.text, begin, cut.start() if cut else end)
        if span[0] < span[1]:
            self.loose.append(span)

    def finish(self) -> None:
        """Take the text outside all tags.

        In a turn without calls it is the answer, and what stands before the answer is the thought
        where the dialect asks for none. In a turn with calls it is the thought, unless there is
        another. What is neither is an issue, but breaks no rule: it has no tags in these dialects.
        """
        if not self.loose:
            return
        has_thought = "think" in self.spans
        first, last = self.loose[0], self.loose[-1]
        if "call" in self.spans:
            unread = self.loose if has_thought else self.loose[1:]
            if not has_thought:
                self.put("think", first)
        else:
            answer = self.dialect.find_answer(self.text, last)
            if answer is None:
                return
            self.put("answer", answer)
            takes_thought = not has_thought and not self.dialect.asks_for_thoughts
            unread = [] if takes_thought else self.loose[:-1]
            if takes_thought:
                self._think_before(first[0], answer[0])
        for span in unread:
            shown = self.text[slice(*span)][:40]
            self.issue(
                "content_unread", f"text that is neither thought nor answer: {shown!r}", span
            )

    def _think_before(self, start: int, answer_start: int) -> None:
        """Take what stands before the answer as the thought, if there is anything."""
        before = self.text[start:answer_start]
        before = before.removesuffix("<answer>").removesuffix("\\boxed{").rstrip()
        if before:
            self.put("think", (start, start + len(before)))


class ToolCalls(Dialect):
    """The base of these dialects; a subclass defines how a tool response's body is read and
    written.
    """

    stop: ClassVar[tuple[str, ...]] = ("</tool_call>", "</answer>")
    observation_role = "user"
    frame = (f"{OPEN}\n", f"\n{CLOSE}")
    marks = MARKS
    grammar = Grammar("tool_call", "tool_response")
    turn_reader: ClassVar[type[TurnReader]] = CallReader
    unreadable_call = (
        "call_json",
        'the call is not JSON of the form {"name": …, "arguments": {…}}',
    )
    needs_arguments: ClassVar[bool] = False  # a call without arguments cannot be read
    # The opening think tag may be part of the prompt, and so absent from the turn.
    may_open_in_prompt: ClassVar[bool] = False
    turn_ends: ClassVar[re.Pattern[str]] = re.compile(PLACES)  # where a turn may end
    # Those places that begin with a tag. They are found in a tenth of the time.
    tagged_turn_ends: ClassVar[re.Pattern[str]] = re.compile(TAGGED)

    def split(self, text: str, start: int, end: int) -> Iterator[Segment]:
        """A turn ends where a response or someone's role begins; then come responses, or a
        controller's words.
        """
        last_role = self.last_role(text, start, end)
        while start < end:
            opens = text.startswith(OPEN, start, end)
            after = start if opens else skip(text, start, end)
            if opens or text.startswith(OPEN, after, end):
                after += len(OPEN)
                close = text.find(CLOSE, after, end)
                yield Segment("tool", (after, end if close < 0 else close), close >= 0)
                start = end if close < 0 else close + len(CLOSE)
                continue
            roles = _ANY_ROLE.findall(text, start, after) if after - start >= len("user") else ()
            if roles and roles[-1] not in ("assistant", "model"):  # said to the agent
                again = _AGENT_AGAIN.search(text, after, end)
                after = again.end() if again else end
            if after == end:
                return
            start = end
            places = self.turn_ends if after <= last_role else self.tagged_turn_ends
            for place in places.finditer(text, after, end):
                turn_end = self.ends_at(text, after, place)
                if turn_end is not None:
                    start = turn_end
                    break
            yield Segment("agent", (after, start))

    def last_role(self, text: str, start: int, end: int) -> int:
        """The last place where a turn may end at a bare role; -1: there is none."""
        return text.rfind("user\n", start, end)

    def ends_at(self, text: str, start: int, place: re.Match[str]) -> int | None:
        """Where the turn ends, if it does at this match of `turn_ends`; `None`: it goes on."""
        at = place.start()
        if place[0] == OPEN:
            return at if at == start or _asked_for(text, start, at) else None
        if not place[0].startswith("<|"):
            # A bare role counts only after a closing tag or a special token: it may be the agent's
            # own word.
            tag = text.rfind("<", max(start, at - 40), at)
            closes = tag >= 0 and text[tag + 1 : tag + 2] in ("/", "|")
            if not closes or not text[tag:at].rstrip().endswith(">"):
                return None
        # A response may follow the role: then the turn ends at the next place, the response's tag.
        return None if text.startswith(OPEN, skip(text, place.end(), at + _LOOK_BACK)) else at

    def read_call(self, raw: str) -> ToolCall | None:
        try:
            call = _decode(raw)
            loose_json.check_depth(raw, call.arguments)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            return self._unusual_call(raw)
        return self._call(call, raw)

    def _unusual_call(self, raw: str) -> ToolCall | None:
        """A call in another model's markup, or in JSON that msgspec refuses: with half a character
        in it, or with a number that no float can hold.
        """
        marked = call_markup.read_tool_call_body(raw) if "<" in raw else None
        if marked:
            name, arguments = marked
            return ToolCall(name, arguments, raw)
        try:
            call = msgspec.convert(loose_json.decode_strictly(raw), _WrittenCall)
        except (DataError, msgspec.ValidationError):
            return None
        return self._call(call, raw)

    def _call(self, call: _WrittenCall, raw: str) -> ToolCall | None:
        if call.arguments is msgspec.UNSET:
            return None if self.needs_arguments else ToolCall(call.name, raw=raw)
        return ToolCall(call.name, call.arguments, raw)

    def write_call(self, call: ToolCall) -> str:
        written = as_json({"name": call.name, "arguments": call.arguments})
        # No argument may look like the end of the call.
        return "\n" + written.replace("<", "\\u003c") + "\n"

    def call_form(self, tools: Sequence[str]) -> str:
        example = {"name": tools[0] if tools else "…", "arguments": {"…": "…"}}
        return f"JSON like {as_json(example)}"

    def evident_call(self, raw: str) -> ToolCall | None:
        """A call with superfluous closing brackets after its JSON: environments run it."""
        text = raw.lstrip()
        try:
            end = loose_json.decode_start(text)[1]
        except DataError:
            return None
        if text[end:].strip("]} \n"):
            return None
        call = self.read_call(text[:end])
        return call and msgspec.structs.replace(call, raw=raw)

    def repair_call(self, raw: str) -> ToolCall | None:
        """The call in broken JSON, such as `{'name': 'look', 'arguments': {'query': 'Rome'}`; text
        before its first brace is skipped.
        """
        brackets = raw.count("{") + raw.count("[")
        # Many brackets take long.
        if "{" not in raw or len(raw) > _MOST_REPAIRED or brackets > _MOST_BRACKETS:
            return None
        import json_repair  # it loads slowly, and few calls are broken

        text = raw[raw.index("{") :]
        try:
            try:
                repaired, end = json.JSONDecoder().raw_decode(text)
            except ValueError:
                repaired, end = json_repair.loads(text), len(text)
            if "{" in text[end:] or set(repaired) != {"name", "arguments"}:
                return None
            # Read it again, so that all values are those that reading gives.
            call = ToolCalls.read_call(self, json.dumps(repaired))
        except Exception:  # json_repair expects the slips of models; policies write anything
            return None
        return call and msgspec.structs.replace(call, raw=raw)


def _asked_for(text: str, start: int, at: int) -> bool:
    """Whether the environment wrote the tool response at `at`, in a turn from `start` on: a call or
    a role stands right before it.

    Where the turn called something, a bare role on a line of its own is enough, whatever the agent
    wrote between the two.
    """
    if text.endswith(_CALL_END, start, at):  # as nearly always
        return True
    called = text.rfind(_CALL_END, max(start, at - _CALLED_BEFORE), at)
    if called >= 0:
        if GAP.fullmatch(text, called + len(_CALL_END), at):
            return True
        if _ROLE_LINE.search(text, max(start, at - 20), at):
            return True
    return _ROLE_BEFORE.search(text, max(start, at - _LOOK_BACK), at) is not None
