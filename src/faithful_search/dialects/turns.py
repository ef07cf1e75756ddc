"""Reading one turn of tagged text, a thought and then one action, in any dialect.

A well-formed turn is read by a single expression, `Grammar.turn`. Any other is taken apart into its
tags by a `TurnReader`, which notes what is wrong with it.
"""

import re
from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from ..trajectory import Issue, Span

if TYPE_CHECKING:
    from .base import Dialect

Fields = dict[str, Any]  # the fields of a `Step` while it is read; `spans` is always among them
# Blanks, chat-role markup and bare role lines may stand between turns without being text;
# R1-Searcher's tokens look like markup, but call a tool. Possessive quantifiers (`*+`), here and
# elsewhere: a match is never tried again, which keeps reading linear.
GAP = re.compile(
    r"(?:\s++|<\|(?!(?:begin|end)_of_(?:query|documents)\|>)[^<>|\n]{1,40}\|>|</?s>|<(?:start|end)_of_turn>|<\uff5c(?:begin|end)\u2581of\u2581sentence\uff5c>|(?:user|assistant|system|tool|model|ipython)(?=\n|<\||\Z))*+"
)
# Bounds for texts of models that are stuck
MOST_STEPS = 10_000  # of a trajectory
MOST_TAGS = 50_000  # in one stretch of text
MOST_ISSUES = 1_000  # of one turn
_TAIL = re.compile(
    r"(?:\s++|<\|[^<>|\n]{1,40}\|>(?:user|tool|ipython)?+|</s>|<eos>|<end_of_turn>|<turn\|>"
    r"|<\uff5cend\u2581of\u2581sentence\uff5c>)*+\Z"
)
_LONGEST_TAIL = 200  # characters; looking further back in every turn would take quadratic time
ELLIPSES = ("...", "\u2026")


def skip(text: str, at: int, until: int | None = None) -> int:
    """The first place from `at` on that is no blank or markup between turns (`GAP`); `until` at
    most.
    """
    # An empty string is a gap, too, so there is always a match.
    return GAP.match(text, at, len(text) if until is None else until).end()  # type: ignore[union-attr]


def trimmed(text: str, start: int, end: int) -> Span:
    """The span without what ends it: blanks, special tokens, and a role after such a token."""
    tail = _TAIL.search(text, max(start, end - _LONGEST_TAIL), end)
    if tail is not None:
        end = tail.start()
    return start, start + len(text[start:end].rstrip())


def without_tokens(text: str, span: Span) -> Span:
    """The span of an answer without the special tokens that end it, if any do."""
    return trimmed(text, *span) if text.endswith((">", "> ", ">\n"), *span) else span


class Tag(NamedTuple):
    """One of the dialect's tags in a text.

    `name` is "call" or "response" for the tags of these, whatever the dialect calls them.
    """

    start: int
    end: int
    closing: bool
    name: str

    @property
    def span(self) -> Span:
        return self.start, self.end


class Grammar:
    """The tags of a dialect.

    Args:
        call: the name of the tag of a call.
        response: the name of the tag of a tool response.
        names: all names of tags, written `<name>` and `</name>`; by default "think", `call`,
            `response` and "answer".
        last_answer_counts: of several answers in a turn the last counts, else the first.
        pattern: finds tags that are written otherwise. Its first group is empty in an opening tag,
            the second is the name.
        opens: a pattern of what opens a thought and is no part of its text.
    """

    def __init__(
        self,
        call: str,
        response: str,
        names: Sequence[str] = (),
        last_answer_counts: bool = True,
        pattern: str = "",
        opens: str = "",
    ) -> None:
        self.names = names = names or ("think", call, response, "answer")
        self.call, self.last_answer_counts = call, last_answer_counts
        self.roles = {call: "call", response: "response"}
        self.blocks = frozenset(("think", call))  # in which backticks are no code
        self.verdicts = frozenset(names) - {"think", call, response, "answer"}
        self.tag = re.compile(pattern or rf"<(/?)({'|'.join(names)})>")
        plain = rf"[^<]*+(?:<(?!/?(?:{'|'.join(names)})>)[^<]*+)*+"
        turn = rf"(?P<step><think>{opens}(?P<think>{plain})</think>\s*+<(?P<action>{call}|answer)>"
        turn += rf"(?P<content>{plain})</(?P=action)>){GAP.pattern}"
        # Matches a well-formed turn: a thought and one action, with no tags in them. With a
        # `pattern` of its own a grammar has none.
        self.turn = re.compile("(?!)" if pattern else turn)
        self._call_tags = None if pattern else (f"</{call}>", f"<{call}>")

    def calls(self, text: str, start: int, end: int) -> bool:
        """Whether a tag of a call stands in this stretch of a text."""
        if self._call_tags is None:
            return any(tag[2] == self.call for tag in self.tag.finditer(text, start, end))
        closing, opening = self._call_tags  # searched from the end, where a call mostly stands
        return text.rfind(closing, start, end) >= 0 or text.rfind(opening, start, end) >= 0

    def tags(self, text: str, start: int = 0, end: int | None = None) -> list[Tag]:
        """The first `MOST_TAGS` tags in this stretch of a text."""
        roles = self.roles
        if end is None:
            end = len(text)
        tags = []
        for match in islice(self.tag.finditer(text, start, end), MOST_TAGS):
            slash, name = match[1], match[2]
            tags.append(Tag(*match.span(), closing=bool(slash), name=roles.get(name, name)))
        return tags


class TurnReader:
    """Reads turns tag by tag, well formed or not, and notes what is wrong with them.

    `first`: no tool response came before `text[start:end]`.
    """

    def __init__(
        self, dialect: "Dialect", text: str, start: int, end: int, first: bool = True
    ) -> None:
        self.dialect = dialect
        self.text = text
        self.start = start
        self.end = end
        self.first = first
        self.tags = dialect.grammar.tags(text, start, end)
        self.unclosed: set[str] = set()  # names of tags that are not closed from here on
        # Of the turn that is being read:
        self.issues: list[Issue] = []
        self.spans: dict[str, Span] = {}
        self.fields: Fields = {}

    def read(self, alone: bool = False) -> list[Fields]:
        """The fields of each step in this stretch; with `alone` the whole of it is one turn.

        Where the environment writes into the agent's own message, a stretch may hold several turns:
        after an action a thought or a call begins the next, and after a call an answer does too.
        """
        several = not alone and self.dialect.observation_role is None
        steps: list[Fields] = []
        number = 0  # of the next tag
        done = self.start  # all text before is accounted for
        while number < len(self.tags):
            tag = self.tags[number]
            self.outside(done, tag.start)
            if several and self._begins_turn(tag):
                if "call" in self.spans:
                    why = "no tool response follows the call"
                    self.issue("response_missing", why, self.spans["call"])
                steps.append(self._step(done, tag.start))
                self.start = done = tag.start
                self.issues, self.spans, self.fields = [], {}, {}
            elif tag.closing or tag.name not in ("think", "call", "answer", "response"):
                self.unbalanced(tag)
                number += 1
                done = tag.end
            else:
                number, done = self._block(number)
        self.outside(done, self.end)
        return [*steps, self._step(done, self.end)]

    def _begins_turn(self, tag: Tag) -> bool:
        """Whether another turn begins at this tag, since the one before it has acted."""
        if tag.closing or not self.acted:
            return False
        if tag.name == "answer":
            return "call" in self.spans
        return tag.name in ("think", "call")

    # Hooks for what some dialects read in their own way

    def read_think(self, inner: list[Tag], span: Span) -> Span:
        """Take a thought, which has the tags `inner` in it; returns the span of its reasoning."""
        self.nested(inner)
        return span

    def no_think(self) -> None:
        """Take a turn that has no thought."""
        if self.dialect.asks_for_thoughts:
            self.issue("think_missing", "the turn has no <think> block")

    def read_call(self, span: Span) -> None:
        """Take a closed call."""
        if not self._taken("call", span):
            self.spans["call"] = span
            self.fields |= self.called(span)

    def outside(self, begin: int, end: int) -> None:
        """Take a stretch of text outside all blocks."""
        if begin == end or GAP.fullmatch(self.text, begin, end):
            return
        text = self.text[begin:end].strip()
        if text in ELLIPSES:
            why = "something was left out here when the transcript was written down"
            self.issue("elided", why, (begin, end))
        else:
            self.issue("text_outside", f"text outside all tags: {text[:40]!r}", (begin, end))

    def finish(self) -> None:
        """Take the turn as a whole, before issues say what it lacks."""

    # What all of them use

    def called(self, span: Span) -> Fields:
        """The field `call`, of the call with this span; no field where it cannot be read.

        A broken call that can only mean one thing is that call, and has an issue.
        """
        raw = self.text[slice(*span)]
        call = self.dialect.read_call(raw)
        if call is None:
            self.issue(*self.dialect.unreadable_call, span)
            call = self.dialect.evident_call(raw)
        return {} if call is None else {"call": call}

    def nested(self, inner: list[Tag]) -> None:
        """Note that a block has these tags in it, if any."""
        if inner:
            span = inner[0].span
            self.issue("nested", f"{self.text[slice(*span)]} inside another block", span)

    def unbalanced(self, tag: Tag) -> None:
        self.issue("tag_unbalanced", f"{self.text[slice(*tag.span)]} where none belongs", tag.span)

    def issue(self, kind: str, why: str, span: Span | None = None) -> None:
        if len(self.issues) < MOST_ISSUES:
            self.issues.append(Issue(kind, why, span))

    @property
    def acted(self) -> bool:
        return "call" in self.spans or "answer" in self.spans

    def _step(self, done: int, until: int) -> Fields:
        """The fields of the turn that ends at `until`, read up to `done`."""
        tail = self.text[done:until]
        end = done if GAP.fullmatch(tail) else done + len(tail.rstrip())
        self.spans["step"] = (self.start, end)
        self.finish()
        if "think" not in self.spans:
            self.no_think()
        if not self.acted:
            self.issue("no_action", "the turn has neither a call nor an answer")
        return {**self.fields, "issues": tuple(self.issues), "spans": self.spans}

    def _block(self, opening: int) -> tuple[int, int]:
        """Read the block that the tag of this number opens.

        Returns the number of the next tag to look at, and where the block ends.
        """
        tag = self.tags[opening]
        name = tag.name
        closing = self._closing(opening)
        if closing is not None:
            close = closing
        else:
            self.issue(f"{name}_unclosed", f"{self.text[slice(*tag.span)]} is not closed", tag.span)
            close = self._end_of_unclosed(opening)
        span = (tag.end, self.tags[close].start if close < len(self.tags) else self.end)
        inner = self.tags[opening + 1 : close]
        if name == "think" and "think" in self.spans:
            self.issue("think_multiple", "more than one <think> block; the first counts", span)
        elif name == "think":
            if self.acted:
                self.issue("think_late", "the thought comes after the action", span)
            self.put("think", self.read_think(inner, span))
        elif name == "response":
            self.issue("response_forged", "the agent wrote a tool response itself", span)
        elif closing is None:
            # What was cut off is not run and does not count. The role of a response may follow it.
            if not self._taken(name, span):
                self.spans[name] = trimmed(self.text, *span)
        elif name == "call":
            self.read_call(span)
        else:
            self._answer(inner, span)
        if closing is None:
            return close, span[1]
        return closing + 1, self.tags[closing].end

    def _closing(self, opening: int) -> int | None:
        """The number of the tag that closes the one of this number; `None`: it is not closed."""
        name = self.tags[opening].name
        # What was not closed once is not closed later: looking again and again would take quadratic
        # time.
        if name in self.unclosed:
            return None
        for number in range(opening + 1, len(self.tags)):
            if self.tags[number].closing and self.tags[number].name == name:
                return number
        self.unclosed.add(name)
        return None

    def _end_of_unclosed(self, opening: int) -> int:
        """The number of the tag before which an unclosed block ends.

        A thought ends at the next action, any other block at the end of the turn.
        """
        if self.tags[opening].name == "think":
            for number in range(opening + 1, len(self.tags)):
                tag = self.tags[number]
                if not tag.closing and tag.name in ("call", "answer"):
                    return number
        return len(self.tags)

    def _answer(self, inner: list[Tag], span: Span) -> None:
        last_counts = self.dialect.grammar.last_answer_counts
        if self._taken("answer", span) and not (last_counts and "answer" in self.spans):
            return
        self.nested(inner)
        answer = self.dialect.find_answer(self.text, span)
        if answer is None:
            self.issue("answer_unboxed", "no \\boxed{} in the answer", span)
        self.put("answer", without_tokens(self.text, answer or span))

    def put(self, part: str, span: Span) -> None:
        """Set the thought or the answer to what stands there."""
        text = self.text[slice(*span)]
        self.spans[part] = span
        self.fields[part] = text.strip() if part == "answer" else text

    def _taken(self, kind: str, span: Span) -> bool:
        """Whether an action came before this one. The first counts: generation stops there."""
        if kind in self.spans:
            last_counts = self.dialect.grammar.last_answer_counts and kind == "answer"
            which = "last" if last_counts else "first"
            self.issue(f"{kind}_multiple", f"more than one {kind}; the {which} counts", span)
        elif self.acted:
            self.issue("answer_and_call", "both a call and an answer; the first counts", span)
        return self.acted
