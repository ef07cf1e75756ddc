"""The base of the dialects whose calls are JSON in `<tool_call>` and whose tool responses stand in
`<tool_response>`.

A response is the environment's where the end of a call or a role precedes it. Anywhere else the
agent wrote it itself.
"""

import json
import re
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, ClassVar, Literal

import msgspec

from .. import loose_json
from ..errors import DataError
from ..formats import call_markup
from ..formats.blocks import as_json
from ..formats.call_arguments import call_in
from ..trajectory import Span, ToolCall
from .base import Dialect
from .segments import Segment
from .turns import GAP, Fields, Grammar, Tag, TurnReader, skip, trimmed, without_tokens

OPEN, CLOSE = "<tool_response>", "</tool_response>"
# A grammar without a tag for the answer: in a turn without calls, text outside all tags is it.
BARE = Grammar("tool_call", "tool_response", ("think", "tool_call", "tool_response"))
MARKS = {
    "tool_call": 0.5, "tool_response": 0.5, "think": 0.25, "answer": 0.25, "helpful": -4.0, "ref": -3.0,
    "search": -3.0, "information": -3.0, "result": -3.0, "search_results": -3.0, "begin_of_query": -3.0,
}  # fmt: skip
"""The marks that all these dialects share; `signs` tell them apart."""
# Where a turn may end: at what begins with a tag, or also at a bare role.
TAGGED = r"<tool_response>|<\|im_start\|>(?:user|tool|system)\n"
PLACES = rf"{TAGGED}|(?<=>)\s{{0,4}}user\n|(?<=\n)user\n"
# What another's words end at: a further role, or the agent's, which may have no token
_NEXT_ROLE = re.compile(
    r"<\|im_start\|>(?:(?P<agent>assistant)\n?|(?:user|tool|system)\n)|(?<=\n)(?P<bare>assistant)\n"
)
_ANY_ROLE = re.compile(r"\b(?:user|tool|ipython|system|assistant|model)\b")
# Whose words stand behind a role; a tool's may have no tags
_PARTIES: dict[str, Literal["tool", "system", "controller"]] = {
    "user": "controller",
    "tool": "tool",
    "ipython": "tool",
    "system": "system",
}
_CUT_TAG = re.compile(r"<(?:/?[a-z_]{0,24})?\Z")
_MOST_REPAIRED, _MOST_BRACKETS = 2_000, 40  # characters and brackets of a call that is repaired
_ANSWER_OPENS = re.compile(r"<answer>\Z", re.IGNORECASE)
_ANSWER_CLOSES = re.compile("</answer>", re.IGNORECASE)
_EARLIER_CLOSES = re.compile("</answer>(?!`)", re.IGNORECASE)  # but for one that is shown as code
_LONGEST_TAG = len("<answer>")
_LONGEST_END = 40  # characters of a closing tag or a special token, with the blanks behind it
_CALL_OPENS, _CALL_END = "<tool_call>", "</tool_call>"
_CODE = re.compile(r"\s*+<code>(.*?)(?:</code>\s*+)?+\Z", re.DOTALL)
_NO_ARGUMENTS = frozenset(("name", "id", "type"))  # fields beside which none were written
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
        if end == self.end:
            cut_tag = _CUT_TAG.search(self.text, max(begin, end - 30), end)
            if cut_tag is not None:
                end = cut_tag.start()
        span = trimmed(self.text, begin, end)
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
            self._doubt(last, answer)
            self.put("answer", without_tokens(self.text, answer))
            takes_thought = not has_thought and not self.dialect.asks_for_thoughts
            unread = [] if takes_thought else self.loose[:-1]
            if takes_thought:
                self._think_before(first[0], answer[0])
        for span in unread:
            beginning = self.text[slice(*span)][:40]
            why = f"text that is neither thought nor answer: {beginning!r}"
            self.issue("content_unread", why, span)

    def _doubt(self, span: Span, answer: Span) -> None:
        """Note what is wrong with the tags around this answer, in the text with that span."""
        start, end = span
        answer_start, answer_end = answer
        tag_start = max(start, answer_start - _LONGEST_TAG)
        opening = _ANSWER_OPENS.search(self.text, tag_start, answer_start)
        closing = _ANSWER_CLOSES.match(self.text, answer_end, end)
        if closing is None:
            if opening:
                self.issue("answer_unclosed", f"{opening[0]} is not closed", opening.span())
            return
        if opening and _EARLIER_CLOSES.search(self.text, start, answer_start):
            self.issue("answer_multiple", "more than one answer; the last counts", answer)
        behind = self.text[closing.end() : end]
        if behind.strip("`*.!\\]$ \n"):
            why = f"text behind the answer: {behind.strip()[:40]!r}"
            self.issue("content_unread", why, (closing.end(), end))

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
                body_start = after + len(OPEN)
                close = text.find(CLOSE, body_start, end)
                is_closed = close >= 0
                yield Segment("tool", (body_start, close if is_closed else end), is_closed)
                start = close + len(CLOSE) if is_closed else end
                continue
            roles = _ANY_ROLE.findall(text, start, after) if after - start >= len("user") else ()
            if roles and roles[-1] not in ("assistant", "model"):  # said to the agent
                following = _NEXT_ROLE.search(text, after, end)
                words = trimmed(text, after, following.start() if following else end)
                # Without its token the name may be the agent's own word
                is_marked = text.find("<|", start, after) >= 0
                yield Segment(_PARTIES[roles[-1]] if is_marked else "controller", words)
                if following and following.lastgroup is None:
                    start = following.start()
                    continue
                after = following.end() if following else end
            if after == end:
                return
            start = self._end_of_turn(text, after, end, last_role)
            yield Segment("agent", (after, start))

    def _end_of_turn(self, text: str, start: int, end: int, last_role: int) -> int:
        """Where the turn ends that begins at `start`: at `end`, if nothing ends it before."""
        places = self.turn_ends if start <= last_role else self.tagged_turn_ends
        for place in places.finditer(text, start, end):
            turn_end = self.ends_at(text, start, place)
            if turn_end is not None:
                return turn_end
        return end

    def last_role(self, text: str, start: int, end: int) -> int:
        """The last place where a turn may end at a bare role; -1: there is none."""
        return text.rfind("user\n", start, end)

    def ends_at(self, text: str, start: int, place: re.Match[str]) -> int | None:
        """Where the turn ends, if it does at this match of `turn_ends`; `None`: it goes on."""
        at = place.start()
        if place[0] == OPEN:
            is_response = at == start or _asked_for(text, start, at)
            return at if is_response else None
        has_token = place[0].startswith("<|")
        # Elsewhere a bare role may be the agent's own word
        if not has_token and not _follows_end(text, start, at):
            return None
        behind_role = skip(text, place.end(), at + _LOOK_BACK)
        # Before a response the turn ends at the next place, which is the response's tag
        return None if text.startswith(OPEN, behind_role) else at

    def read_call(self, raw: str) -> ToolCall | None:
        try:
            call = _decode(raw)
            loose_json.check_depth(raw, call.arguments)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            return self._unusual_call(raw)
        return self._call(call, raw)

    def _unusual_call(self, raw: str) -> ToolCall | None:
        """A call in another model's markup, with code behind it, or in JSON that msgspec refuses:
        with half a character in it, or with a number that no float can hold.
        """
        marked = call_markup.read_tool_call_body(raw) if "<" in raw else None
        if marked:
            name, arguments = marked
            return ToolCall(name, arguments, raw)
        head, opening, _ = raw.partition("<code>")
        code = _CODE.match(raw, len(head)) if opening else None
        if code is not None:
            call_of_code = self.read_call(head)
            if call_of_code is None:
                return None
            arguments = {**call_of_code.arguments, "code": code[1].strip("\n")}
            return ToolCall(call_of_code.name, arguments, raw)
        try:
            call = msgspec.convert(loose_json.decode_strictly(raw), _WrittenCall)
        except (DataError, msgspec.ValidationError):
            return None
        return self._call(call, raw)

    def _call(self, call: _WrittenCall, raw: str) -> ToolCall | None:
        if call.arguments is not msgspec.UNSET:
            return ToolCall(call.name, call.arguments, raw)
        if self.needs_arguments:
            return None
        try:
            fields = loose_json.decode(raw)
        except DataError:
            return None
        # Other fields may be the arguments under another name: that is another form.
        if not fields.keys() <= _NO_ARGUMENTS:
            return None
        return ToolCall(call.name, raw=raw)

    def write_call(self, call: ToolCall) -> str:
        call_as_json = as_json({"name": call.name, "arguments": call.arguments})
        # No argument may look like the end of the call.
        return "\n" + call_as_json.replace("<", "\\u003c") + "\n"

    def call_form(self, tools: Sequence[str]) -> str:
        example = {"name": tools[0] if tools else "…", "arguments": {"…": "…"}}
        return f"JSON like {as_json(example)}"

    def evident_call(self, raw: str) -> ToolCall | None:
        """A call in JSON that environments run although its form is another one: with superfluous
        closing brackets, in a block of code, with other names of its fields (`call_in`).
        """
        text = raw.strip().removeprefix("```json").removeprefix("```").removesuffix("```").lstrip()
        try:
            value, end = loose_json.decode_start(text)
        except DataError:
            return None
        call = None if text[end:].strip("]} \n") else call_in(value)
        if call is None or (self.needs_arguments and not call[1]):
            return None
        name, arguments = call
        return ToolCall(name, arguments, raw)

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


def _follows_end(text: str, start: int, at: int) -> bool:
    """Whether a closing tag or a special token stands right before `at`, blanks aside, in a turn
    from `start` on.
    """
    tag = text.rfind("<", max(start, at - _LONGEST_END), at)
    if tag < 0 or not text.startswith(("</", "<|"), tag):
        return False
    return text[tag:at].rstrip().endswith(">")


def _asked_for(text: str, start: int, at: int) -> bool:
    """Whether the environment wrote the tool response at `at`, in a turn from `start` on: a call or
    a role stands right before it.

    Where the turn called something, a bare role on a line of its own is enough, whatever the agent
    wrote between the two.
    """
    if text.endswith(_CALL_END, start, at):  # as nearly always
        return True
    called = text.rfind(_CALL_END, max(start, at - _CALLED_BEFORE), at)
    if text.rfind(_CALL_OPENS, max(start, called, at - _CALLED_BEFORE), at) >= 0:
        return True  # the sampler stopped at the call's end and left that out
    if called >= 0:
        if GAP.fullmatch(text, called + len(_CALL_END), at):
            return True
        if _ROLE_LINE.search(text, max(start, at - 20), at):
            return True
    return _ROLE_BEFORE.search(text, max(start, at - _LOOK_BACK), at) is not None
