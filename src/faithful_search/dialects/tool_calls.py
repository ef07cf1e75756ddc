"""What the dialects share whose calls are JSON in `<tool_call>` and whose tool responses stand in `<tool_response>`.

A response is the environment's when the end of a call or a role precedes it; one that the agent opens elsewhere it
wrote itself.
"""

import json
import re
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, ClassVar

import msgspec

from ..formats.blocks import as_json
from ..trajectory import Span, ToolCall
from .base import Dialect
from .segments import Segment
from .turns import GAP, Fields, Grammar, Tag, TurnReader, skip, trimmed

OPEN, CLOSE = "<tool_response>", "</tool_response>"
# Without a tag for the answer: text outside all tags in a turn without calls is the answer.
BARE = Grammar("tool_call", "tool_response", ("think", "tool_call", "tool_response"))
MARKS = {
    "tool_call": 0.5, "tool_response": 0.5, "think": 0.25, "answer": 0.25, "helpful": -4.0, "ref": -3.0,
    "search": -3.0, "information": -3.0, "result": -3.0, "search_results": -3.0, "begin_of_query": -3.0,
}  # fmt: skip
"""The marks that all these dialects share; `signs` tell them apart."""
PLACES = r"<tool_response>|<\|im_start\|>(?:user|tool)\n|(?<=>)\s{0,4}user\n|(?<=\n)user\n"
_AGENT_AGAIN = re.compile(r"<\|im_start\|>assistant\n?|(?<=\n)assistant\n")
_ANY_ROLE = re.compile(r"user|tool|ipython|system|assistant|model")
_CUT_TAG = re.compile(r"<(?:/?[a-z_]{0,24})?\Z")
_MOST_REPAIRED, _MOST_BRACKETS = 2_000, 40
_LENIENT = json.JSONDecoder(strict=False)  # models write line breaks into strings
_CALL_END = "</tool_call>"
_ROLE = "(?:user|tool|ipython)"
_ROLE_BEFORE = re.compile(
    rf"(?:<\|im_start\|>{_ROLE}|<\|start_header_id\|>{_ROLE}|<start_of_turn>user|>\s*+{_ROLE}(?=\n)){GAP.pattern}\Z"
)
_ROLE_LINE = re.compile(rf"\n{_ROLE}\n\s*\Z")
# So many characters before a tool response tell whose it is: in the first a role, in the second a call.
_LOOK_BACK, _CALLED_BEFORE = 200, 4_000


class _Call(msgspec.Struct):
    name: Annotated[str, msgspec.Meta(min_length=1)]
    arguments: dict[str, Any] | msgspec.UnsetType = msgspec.UNSET


# Typed: what is not a call is refused while it is read, without a dict in between.
_decode = msgspec.json.Decoder(_Call).decode


class CallReader(TurnReader):
    """Reads also further calls of a turn, each a step, thoughts that the prompt opened, and answers without a tag."""

    dialect: "ToolCalls"

    def read(self, alone: bool = False) -> list[Fields]:
        self.parallel = self.dialect.parallel and not alone
        self.more: list[Fields] = []  # of all parallel calls after the first
        self.loose: list[Span] = []  # text outside all tags
        if self.tags and self.tags[0].closing and self.tags[0].name == "think":
            self.tags.insert(0, Tag(self.start, self.start, False, "think"))
            if not self.dialect.prefilled:
                self.issue(
                    "think_unopened", "a thought is closed that was not opened", self.tags[1].span
                )
        [fields] = super().read(alone)
        for more in self.more:
            more["spans"]["step"] = fields["spans"]["step"]
        return [fields, *self.more]

    def read_call(self, span: Span) -> None:
        if not self.parallel or "call" not in self.spans:
            super().read_call(span)
            return
        before = len(self.issues)  # issues from here on are those of the further call
        fields: Fields = {"spans": {"call": span}, "same_turn": True, **self.called(span)}
        if own := tuple(self.issues[before:]):
            del self.issues[before:]
            fields["issues"] = own
        self.more.append(fields)

    def outside(self, begin: int, end: int) -> None:
        """Collect what may be the answer, without the beginning of a tag at the end of a text that was cut."""
        if "answer" in self.dialect.grammar.names:
            super().outside(begin, end)
            return
        begin = skip(self.text, begin, end)
        cut = _CUT_TAG.search(self.text, max(begin, end - 30), end) if end == self.end else None
        span = trimmed(self.text, begin, cut.start() if cut else end)
        if span[0] < span[1]:
            self.loose.append(span)

    def finish(self) -> None:
        """Text outside all tags is the answer of a turn without calls, else the thought of one that has no other."""
        if not self.loose:
            return
        thought: Span | None = self.loose[0]
        if "call" not in self.spans:
            answer = self.dialect.find_answer(self.text, self.loose[-1])
            if answer is None:
                return
            self.put("answer", answer)
            start = self.loose[0][0]
            before = self.text[start : answer[0]].removesuffix("<answer>").rstrip()
            thought = (start, start + len(before)) if before and not self.dialect.thinks else None
        if thought and "think" not in self.spans:
            self.put("think", thought)


class ToolCalls(Dialect):
    """The base of these dialects. A subclass says how a tool response's body is read and written."""

    stop: ClassVar[tuple[str, ...]] = ("</tool_call>", "</answer>")
    observation_role = "user"
    frame = (f"{OPEN}\n", f"\n{CLOSE}")
    marks = MARKS
    grammar = Grammar("tool_call", "tool_response")
    reader: ClassVar[type[TurnReader]] = CallReader
    no_call = ("call_json", 'the call is not JSON of the form {"name": …, "arguments": {…}}')
    needs_arguments: ClassVar[bool] = False  # whether a call without arguments is none
    prefilled: ClassVar[bool] = (
        False  # whether the opening think tag may be part of the prompt, and so absent
    )
    places: ClassVar[re.Pattern[str]] = re.compile(PLACES)  # where a turn may end

    def split(self, text: str, start: int, end: int) -> Iterator[Segment]:
        """A turn ends where a response or someone's role begins; then come responses, or a controller's words."""
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
            for place in self.places.finditer(text, after, end):
                if (found := self.ends_at(text, after, place)) is not None:
                    start = found
                    break
            yield Segment("agent", (after, start))

    def ends_at(self, text: str, start: int, place: re.Match[str]) -> int | None:
        """Where the turn ends if it ends at this place, found by `places`; `None` when it goes on."""
        at = place.start()
        if place[0] == OPEN:
            return at if at == start or _asked_for(text, start, at) else None
        if not place[0].startswith("<|"):
            # A bare role counts behind a closing tag or a special token only: it may be the agent's own word.
            tag = text.rfind("<", max(start, at - 40), at)
            if (
                tag < 0
                or text[tag + 1 : tag + 2] not in ("/", "|")
                or not text[tag:at].rstrip().endswith(">")
            ):
                return None
        # Behind a role may come a response: that is the next place.
        return None if text.startswith(OPEN, skip(text, place.end(), at + _LOOK_BACK)) else at

    def read_call(self, raw: str) -> ToolCall | None:
        try:
            call = _decode(raw)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            return None
        if call.arguments is msgspec.UNSET:
            return None if self.needs_arguments else ToolCall(call.name, raw=raw)
        return ToolCall(call.name, call.arguments, raw)

    def write_call(self, call: ToolCall) -> str:
        # No argument may look like the end of the call.
        return (
            "\n"
            + as_json({"name": call.name, "arguments": call.arguments}).replace("<", "\\u003c")
            + "\n"
        )

    def call_form(self, tools: Sequence[str]) -> str:
        return f"JSON like {as_json({'name': tools[0] if tools else '…', 'arguments': {'…': '…'}})}"

    def evident_call(self, raw: str) -> ToolCall | None:
        """With superfluous closing brackets behind its JSON, as environments run it."""
        text = raw.lstrip()
        try:
            end = _LENIENT.raw_decode(text)[1]
        except (ValueError, RecursionError):
            return None
        call = None if text[end:].strip("]} \n") else self.read_call(text[:end])
        return None if call is None else msgspec.structs.replace(call, raw=raw)

    def repair_call(self, raw: str) -> ToolCall | None:
        """From broken JSON, such as `{'name': 'look', 'arguments': {'query': 'Rome'}`, from its first brace on."""
        brackets = raw.count("{") + raw.count("[")
        if (
            "{" not in raw or len(raw) > _MOST_REPAIRED or brackets > _MOST_BRACKETS
        ):  # the latter would take long
            return None
        import json_repair  # it loads slowly, and few calls are broken

        text = raw[raw.index("{") :]
        try:
            try:
                meant, end = json.JSONDecoder().raw_decode(text)
            except ValueError:
                meant, end = json_repair.loads(text), len(text)
            if "{" in text[end:] or set(meant) != {"name", "arguments"}:
                return None
            # Read again, so that all values are those that reading gives.
            call = ToolCalls.read_call(self, json.dumps(meant))
        except (
            Exception
        ):  # the repair is made for the slips of models; what policies write may be anything
            return None
        return msgspec.structs.replace(call, raw=raw) if call else None


def _asked_for(text: str, start: int, at: int) -> bool:
    """Whether the tool response at `at`, in a turn from `start` on, is the environment's: behind a call or a role.

    A bare role on a line of its own counts where the turn called something, whatever the agent wrote behind its call.
    """
    if text.endswith(_CALL_END, start, at):  # as nearly always
        return True
    called = text.rfind(_CALL_END, max(start, at - _CALLED_BEFORE), at)
    if called >= 0 and (
        GAP.fullmatch(text, called + len(_CALL_END), at)
        or _ROLE_LINE.search(text, max(start, at - 20), at)
    ):
        return True
    return _ROLE_BEFORE.search(text, max(start, at - _LOOK_BACK), at) is not None
