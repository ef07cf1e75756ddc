"""Reading one turn of tagged text, well formed or not: thought, then one action. What dialects share."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple

from ..trajectory import Issue, Span, ToolCall

GAP = re.compile(
    r"(?:\s++|<\|(?!(?:begin|end)_of_(?:query|documents)\|>)[^<>|\n]{1,40}\|>|</?s>|<(?:start|end)_of_turn>|(?:user|assistant|system|tool|model|ipython)(?=\n|<\||\Z))*+"
)
"""Blanks, chat-role markup and bare role lines: what may stand between turns without being text.

R1-Searcher's tokens look like markup, but call a tool.
"""
MOST_STEPS = 10_000
"""Turns read of one trajectory; the text behind them is left unread, with an issue."""
MOST_TAGS = 50_000
"""Tags read in one stretch of text; a model that writes more is stuck, and what follows them is not read."""
MOST_ISSUES = 1_000
"""Issues noted for one turn; further ones would only repeat them."""
ELLIPSES = ("...", "\u2026")
_ASSISTANT = re.compile(
    r"<\|im_start\|>assistant\n?|<\|start_header_id\|>assistant<\|end_header_id\|>\s*|<start_of_turn>model\n|<\|assistant\|>\n?"
)
_PROLOGUE = re.compile(
    r"\s*+(?:(?:<\|(?:begin_of_text|startoftext|endoftext)\|>|<s>|<bos>)\s*+)*+"
    r"(?:<\|im_start\|>|<\|start_header_id\|>|<start_of_turn>|<\|(?:system|tools|user|assistant)\|>)"
)
"""A chat's beginning: the start of a text, where it is told, and a role."""
_BARE_PROLOGUE = re.compile(r"\s*+(?=(?:system|user)\n)")
_USER = re.compile(
    r"(?:<\|im_start\|>(?:user|tool)\n?|<\|start_header_id\|>(?:user|tool|ipython)<\|end_header_id\|>|<start_of_turn>user\n|<\|user\|>)\s*+"
)
_END_OF_MESSAGE = re.compile(r"<\|(?:im_end|eot_id|end)\|>|<end_of_turn>")


def skip(text: str, at: int, until: int | None = None) -> int:
    """Past the blanks and markup (`GAP`) that stand at `at`, but not past `until`."""
    gap = GAP.match(text, at, len(text) if until is None else until)
    assert gap is not None  # nothing is a gap too
    return gap.end()


class Tag(NamedTuple):
    """One protocol tag of the text."""

    start: int
    end: int
    closing: bool
    name: str

    @property
    def span(self) -> Span:
        """The tag's own characters."""
        return self.start, self.end


@dataclass(frozen=True)
class Grammar:
    """The tags of a dialect: all their `names`, and which of them holds a call and a tool response.

    Of several answers in a turn the first counts, or with `last_answer_counts` the last. `pattern` is for tags that are
    not written `<name>` and `</name>`: its first group is empty in an opening tag, the second is the name. `opens` is a
    pattern of what may open a thought.

    `tag` finds a tag. `turn` matches a whole turn as it should be, a thought and one action without tags in them (its
    groups: `step`, `think`, the action's name `act`, what the action says, `said`, and those of `opens`); with a
    `pattern`, nothing.
    """

    names: tuple[str, ...]
    call: str
    response: str
    last_answer_counts: bool = False
    pattern: str = ""
    opens: str = ""
    tag: re.Pattern[str] = field(init=False, repr=False, compare=False)
    turn: re.Pattern[str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        plain = rf"[^<]*+(?:<(?!/?(?:{'|'.join(self.names)})>)[^<]*+)*+"
        turn = rf"(?P<step><think>{self.opens}(?P<think>{plain})</think>\s*+<(?P<act>{self.call}|answer)>"
        turn += rf"(?P<said>{plain})</(?P=act)>){GAP.pattern}"
        object.__setattr__(self, "tag", re.compile(self.pattern or rf"<(/?)({'|'.join(self.names)})>"))
        object.__setattr__(self, "turn", re.compile("(?!)" if self.pattern else turn))


def episode_start(text: str, response: str) -> tuple[int, str | None]:
    """Where the agent's first turn begins, and the last user message when a prompt stands before it.

    Only a text that begins with chat markup has a prompt: markup further inside may be evidence, which must not decide
    where the agent begins. Of a chat the agent begins after the first assistant marker, unless what precedes that
    marker is a tool response (opening tag `response`): then the agent had already spoken, and the text begins with its
    first turn.
    """
    bare = _BARE_PROLOGUE.match(text)
    if bare is not None:
        return _bare_start(text, bare.end(), response)
    if _PROLOGUE.match(text) is None:
        return 0, None
    marker = _ASSISTANT.search(text)
    if marker is None:
        return 0, None
    user_end = -1
    for match in _USER.finditer(text, 0, marker.start()):
        user_end = match.end()
    if user_end < 0:
        return marker.end(), None
    if text.startswith(response, user_end):
        return 0, None
    return marker.end(), _END_OF_MESSAGE.split(text[user_end : marker.start()], maxsplit=1)[0].strip()


def _bare_start(text: str, begin: int, response: str) -> tuple[int, str | None]:
    """The same for a chat decoded without its special tokens, where roles are lines of their own, from `begin` on."""
    start = text.find("\nassistant\n", begin)
    if start < 0:
        return 0, None
    user = begin if text.startswith("user\n", begin) else text.rfind("\nuser\n", begin, start) + 1
    asked = user + len("user\n")
    if not text.startswith("user\n", user):
        return start + len("\nassistant\n"), None
    if text.startswith(response, asked):
        return 0, None
    return start + len("\nassistant\n"), text[asked:start].strip()


class TurnReader(ABC):
    """Reads a turn in one pass over its tags; problems become `Issue`s. Dialects override the `read_…` methods.

    A turn that is as it should be (`Grammar.turn`) is not taken apart into `tags`; the same methods get its parts.
    `first`: no tool response came before it.
    """

    def __init__(self, text: str, start: int, end: int, grammar: Grammar, first: bool = True) -> None:
        self.text, self.start, self.end, self.grammar, self.first = text, start, end, grammar, first
        self.plain = grammar.turn.fullmatch(text, start, end)
        self.issues: list[Issue] = []
        self.spans: dict[str, Span] = {}
        self.fields: dict[str, Any] = {}
        self.tags: list[Tag] = []
        if self.plain is None:
            found = islice(grammar.tag.finditer(text, start, end), MOST_TAGS)
            self.tags = [Tag(m.start(), m.end(), bool(m[1]), m[2]) for m in found]
            self.unclosed: set[str] = set()

    def read(self) -> dict[str, Any]:
        """The fields of the step."""
        if self.plain is not None:
            return self._plain(self.plain)
        self._walk(0)
        return self._step()

    def turns(self) -> Iterator[dict[str, Any]]:
        """The same for text that may hold several turns with nothing of the environment between them.

        After an action a thought or a call begins the next turn, and after a call an answer does too.
        """
        if self.plain is not None:
            yield self._plain(self.plain)
            return
        at, until = self._walk(0, self._begins_turn)
        while at < len(self.tags):
            if "call" in self.spans:
                self.issue("response_missing", "no tool response follows the call", self.spans["call"])
            yield self._step()
            self.start, self.issues, self.spans, self.fields = until, [], {}, {}
            at, until = self._walk(at, self._begins_turn)
        yield self._step()

    def _step(self) -> dict[str, Any]:
        if "think" not in self.spans:
            self.no_think()
        if not self._acted():
            self.issue("no_action", "the turn has neither a call nor an answer")
        return {**self.fields, "issues": tuple(self.issues), "spans": self.spans}

    def read_think(self, inner: list[Tag], span: Span) -> Span:
        """Look at the tags inside the thought; returns the span of its reasoning."""
        self.nested(inner)
        return span

    @abstractmethod
    def read_call(self, raw: str, span: Span) -> ToolCall | None:
        """The call that `raw` writes, or `None` and an issue."""

    def no_think(self) -> None:
        """Called when the turn has no thought."""
        self.issue("think_missing", "the turn has no <think> block")

    def nested(self, inner: list[Tag]) -> None:
        """Note that protocol tags stand inside a block."""
        if inner:
            self.issue("nested", f"{self.text[inner[0].start : inner[0].end]} inside another block", inner[0].span)

    def issue(self, kind: str, why: str, span: Span | None = None) -> None:
        """Note a problem."""
        if len(self.issues) < MOST_ISSUES:
            self.issues.append(Issue(kind, why, span))

    def _begins_turn(self, tag: Tag) -> bool:
        if tag.closing or not self._acted():
            return False
        return tag.name in ("think", self.grammar.call) or (tag.name == "answer" and "call" in self.spans)

    def _walk(self, at: int, ends: Callable[[Tag], bool] = lambda tag: False) -> tuple[int, int]:
        """Blocks from left to right, from `tags[at]` to the tag that `ends` the turn; `done` is accounted for.

        Returns the next tag to look at and where in the text the turn ended.
        """
        done = self.start
        while at < len(self.tags):
            tag = self.tags[at]
            self._outside(done, tag.start)
            if ends(tag):
                return at, self._end(done, tag.start)
            if tag.closing or tag.name not in ("think", self.grammar.call, "answer", self.grammar.response):
                self.issue("tag_unbalanced", f"{self.text[tag.start : tag.end]} where none belongs", tag.span)
                at, done = at + 1, tag.end
            else:
                at, done = self._block(at)
        self._outside(done, self.end)
        return at, self._end(done, self.end)

    def _plain(self, turn: re.Match[str]) -> dict[str, Any]:
        """What the walk over its tags would do, without its checks: most turns are as they should be."""
        start, end = self.spans["think"] = self.read_think([], turn.span("think"))
        self.fields["think"] = self.text[start:end]
        if turn["act"] == "answer":
            self._answer([], turn.span("said"))
        else:
            span = self.spans["call"] = turn.span("said")
            call = self.read_call(turn["said"], span)
            if call is not None:
                self.fields["call"] = call
        self.spans["step"] = turn.span("step")
        self.fields["issues"], self.fields["spans"] = tuple(self.issues), self.spans
        return self.fields

    def _end(self, done: int, end: int) -> int:
        tail = self.text[done:end]
        self.spans["step"] = (self.start, done if GAP.fullmatch(tail) else done + len(tail.rstrip()))
        return end

    def _block(self, at: int) -> tuple[int, int]:
        """Read the block that `tags[at]` opens; returns the next tag to look at and where the block ends."""
        name = self.tags[at].name
        close = self._closing(at, name)
        closed = close is not None
        if close is None:
            close = self._end_of_unclosed(at, name)
        span = (self.tags[at].end, self.tags[close].start if close < len(self.tags) else self.end)
        inner = self.tags[at + 1 : close]
        if name == "think":
            self._think(inner, span)
        elif not closed and name != self.grammar.response:
            self._unfinished("answer" if name == "answer" else "call", span)
        elif name == "answer":
            self._answer(inner, span)
        elif name == self.grammar.call:
            self._call(span)
        else:
            self.issue("response_forged", "the agent wrote a tool response itself", span)
        return (close + 1, self.tags[close].end) if closed else (close, span[1])

    def _closing(self, at: int, name: str) -> int | None:
        if name in self.unclosed:
            return None
        return next(
            (k for k in range(at + 1, len(self.tags)) if self.tags[k].closing and self.tags[k].name == name), None
        )

    def _end_of_unclosed(self, at: int, name: str) -> int:
        """An unclosed thought ends at the next action, any other block at the end of the turn."""
        self.unclosed.add(name)
        kind = {self.grammar.call: "call", self.grammar.response: "response"}.get(name, name)
        self.issue(f"{kind}_unclosed", f"{self.text[slice(*self.tags[at].span)]} is not closed", self.tags[at].span)
        if name != "think":
            return len(self.tags)
        rest = range(at + 1, len(self.tags))
        actions = (self.grammar.call, "answer")
        return next((k for k in rest if not self.tags[k].closing and self.tags[k].name in actions), len(self.tags))

    def _think(self, inner: list[Tag], span: Span) -> None:
        if "think" in self.spans:
            self.issue("think_multiple", "more than one <think> block; the first counts", span)
            return
        if self._acted():
            self.issue("think_late", "the thought comes after the action", span)
        span = self.spans["think"] = self.read_think(inner, span)
        self.fields["think"] = self.text[slice(*span)]

    def _call(self, span: Span) -> None:
        if self._taken("call", span):
            return
        self.spans["call"] = span
        call = self.read_call(self.text[slice(*span)], span)
        if call is not None:
            self.fields["call"] = call

    def _answer(self, inner: list[Tag], span: Span) -> None:
        if self._taken("answer", span) and not (self.grammar.last_answer_counts and "answer" in self.spans):
            return
        self.nested(inner)
        self.spans["answer"] = span
        self.fields["answer"] = self.text[slice(*span)].strip()

    def _unfinished(self, kind: str, span: Span) -> None:
        """An action that is not closed was cut off or forgotten: it is not carried out, and no answer."""
        if not self._taken(kind, span):
            self.spans[kind] = span

    def _acted(self) -> bool:
        return "call" in self.spans or "answer" in self.spans

    def _taken(self, kind: str, span: Span) -> bool:
        """Whether an action came before this one. The first counts: generation stops there."""
        if not self._acted():
            return False
        if kind in self.spans:
            which = "last" if self.grammar.last_answer_counts and kind == "answer" else "first"
            self.issue(f"{kind}_multiple", f"more than one {kind}; the {which} counts", span)
        else:
            self.issue("answer_and_call", "both a call and an answer; the first counts", span)
        return True

    def _outside(self, begin: int, end: int) -> None:
        if begin == end or GAP.fullmatch(self.text, begin, end):
            return
        outside = self.text[begin:end].strip()
        if outside in ELLIPSES:
            self.issue("elided", "something was left out here when the transcript was written down", (begin, end))
        else:
            self.issue("text_outside", f"text outside all tags: {outside[:40]!r}", (begin, end))
