"""Reading one turn of tagged text, a thought and then one action, in any dialect.

A well-formed turn is read by a single expression, `Grammar.turn`. Any other is taken apart into its tags by a
`TurnReader`, which notes what is wrong with it.
"""

import re
from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from ..trajectory import Issue, Span

if TYPE_CHECKING:
    from .base import Dialect

Fields = dict[str, Any]  # the fields of a step while it is read, `spans` among them
# Blanks, chat-role markup and bare role lines may stand between turns without being text; R1-Searcher's tokens look
# like markup, but call a tool. Possessive quantifiers (`*+`), here and elsewhere: a match is never tried again, which
# keeps reading linear.
GAP = re.compile(
    r"(?:\s++|<\|(?!(?:begin|end)_of_(?:query|documents)\|>)[^<>|\n]{1,40}\|>|</?s>|<(?:start|end)_of_turn>|(?:user|assistant|system|tool|model|ipython)(?=\n|<\||\Z))*+"
)
# Bounds for stuck models: turns of a trajectory, tags in one stretch of text, issues of one turn.
MOST_STEPS, MOST_TAGS, MOST_ISSUES = 10_000, 50_000, 1_000
_TAIL = re.compile(r"(?:\s++|<\|[^<>|\n]{1,40}\|>(?:user|tool|ipython)?+)*+\Z")
_LONGEST_TAIL = 200  # characters; looking further back in every turn would take quadratic time
ELLIPSES = ("...", "\u2026")


def skip(text: str, at: int, until: int | None = None) -> int:
    """Past the blanks and markup (`GAP`) at `at`, but not past `until`."""
    # An empty string is a gap, too, so there is always a match.
    return GAP.match(text, at, len(text) if until is None else until).end()  # type: ignore[union-attr]


def trimmed(text: str, start: int, end: int) -> Span:
    """The stretch without the blanks, special tokens and role behind such a token at its end."""
    tail = _TAIL.search(text, max(start, end - _LONGEST_TAIL), end)
    return start, start + len(text[start : tail.start() if tail else end].rstrip())


class Tag(NamedTuple):
    """One protocol tag of the text. Those of calls and responses are named so, whatever a dialect calls them."""

    start: int
    end: int
    closing: bool
    name: str

    @property
    def span(self) -> Span:
        return self.start, self.end


class Grammar:
    """The tags of a dialect: which there are, which holds a call, and which a tool response.

    `names` are those written `<name>` and `</name>`. A `pattern` finds tags that are written otherwise: its first group
    is empty in an opening tag, the second is the name. `opens` is a pattern of what may open a thought. Of several
    answers in a turn the last counts, or the first.
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
        self.tag = re.compile(pattern or rf"<(/?)({'|'.join(names)})>")
        plain = rf"[^<]*+(?:<(?!/?(?:{'|'.join(names)})>)[^<]*+)*+"
        turn = rf"(?P<step><think>{opens}(?P<think>{plain})</think>\s*+<(?P<act>{call}|answer)>"
        turn += rf"(?P<said>{plain})</(?P=act)>){GAP.pattern}"
        # A well-formed turn, a thought and one action without tags in them; with a `pattern`, nothing.
        self.turn = re.compile("(?!)" if pattern else turn)


class TurnReader:
    """Takes a turn apart, well formed or not, in one pass over its tags; `first`: no tool response came before."""

    def __init__(
        self, dialect: "Dialect", text: str, start: int, end: int, first: bool = True
    ) -> None:
        self.dialect, self.text, self.start, self.end, self.first = dialect, text, start, end, first
        found, roles = (
            islice(dialect.grammar.tag.finditer(text, start, end), MOST_TAGS),
            dialect.grammar.roles,
        )
        self.tags = [
            Tag(*match.span(), bool(match[1]), roles.get(match[2], match[2])) for match in found
        ]
        self.unclosed: set[str] = set()
        self.issues: list[Issue] = []
        self.spans: dict[str, Span] = {}
        self.fields: Fields = {}

    def read(self, alone: bool = False) -> list[Fields]:
        """The fields of each step in this stretch; with `alone` the whole of it is one turn.

        Where the environment writes into the agent's own message, a stretch may hold several turns: after an action a
        thought or a call begins the next, and after a call an answer does too.
        """
        several = not alone and self.dialect.observation_role is None
        steps: list[Fields] = []
        at, done = 0, self.start  # before `done` all is accounted for
        while at < len(self.tags):
            tag = self.tags[at]
            self.outside(done, tag.start)
            begins = ("think", "call", "answer" if "call" in self.spans else "think")
            if several and self.acted and not tag.closing and tag.name in begins:
                if "call" in self.spans:
                    self.issue(
                        "response_missing", "no tool response follows the call", self.spans["call"]
                    )
                steps.append(self._step(done, tag.start))
                self.start = done = tag.start
                self.issues, self.spans, self.fields = [], {}, {}
            elif tag.closing or tag.name not in ("think", "call", "answer", "response"):
                self.unbalanced(tag)
                at, done = at + 1, tag.end
            else:
                at, done = self._block(at)
        self.outside(done, self.end)
        return [*steps, self._step(done, self.end)]

    # What some dialects read in their own way

    def read_think(self, inner: list[Tag], span: Span) -> Span:
        """Look at the tags `inner` to the thought; returns the span of its reasoning."""
        self.nested(inner)
        return span

    def no_think(self) -> None:
        if self.dialect.thinks:
            self.issue("think_missing", "the turn has no <think> block")

    def read_call(self, span: Span) -> None:
        if not self._taken("call", span):
            self.spans["call"] = span
            self.fields |= self.called(span)

    def outside(self, begin: int, end: int) -> None:
        if begin == end or GAP.fullmatch(self.text, begin, end):
            return
        outside = self.text[begin:end].strip()
        if outside in ELLIPSES:
            self.issue(
                "elided",
                "something was left out here when the transcript was written down",
                (begin, end),
            )
        else:
            self.issue("text_outside", f"text outside all tags: {outside[:40]!r}", (begin, end))

    def finish(self) -> None:
        """Look at the turn as a whole, before it is noted what it lacks."""

    # What they share

    def called(self, span: Span) -> Fields:
        """The call that stands there, if any; a broken one that can only be one call is it, with its issue."""
        raw = self.text[slice(*span)]
        call = self.dialect.read_call(raw)
        if call is None:
            self.issue(*self.dialect.no_call, span)
            call = self.dialect.evident_call(raw)
        return {} if call is None else {"call": call}

    def nested(self, inner: list[Tag]) -> None:
        if inner:
            self.issue(
                "nested", f"{self.text[slice(*inner[0].span)]} inside another block", inner[0].span
            )

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
        self.spans["step"] = (
            self.start,
            done if GAP.fullmatch(tail) else done + len(tail.rstrip()),
        )
        self.finish()
        if "think" not in self.spans:
            self.no_think()
        if not self.acted:
            self.issue("no_action", "the turn has neither a call nor an answer")
        return {**self.fields, "issues": tuple(self.issues), "spans": self.spans}

    def _block(self, at: int) -> tuple[int, int]:
        """Read the block that `tags[at]` opens; returns the next tag to look at and where the block ends."""
        tag, name, rest = self.tags[at], self.tags[at].name, range(at + 1, len(self.tags))
        ends = (k for k in rest if self.tags[k].closing and self.tags[k].name == name)
        # What was not closed once is not closed later: looking again and again would take quadratic time.
        close = None if name in self.unclosed else next(ends, None)
        closed = close is not None
        if close is None:
            self.unclosed.add(name)
            self.issue(f"{name}_unclosed", f"{self.text[slice(*tag.span)]} is not closed", tag.span)
            # An unclosed thought ends at the next action, any other block at the end of the turn.
            actions = (
                k
                for k in rest
                if not self.tags[k].closing and self.tags[k].name in ("call", "answer")
            )
            close = next(actions, len(self.tags)) if name == "think" else len(self.tags)
        span = (tag.end, self.tags[close].start if close < len(self.tags) else self.end)
        inner = self.tags[at + 1 : close]
        if name == "think" and "think" in self.spans:
            self.issue("think_multiple", "more than one <think> block; the first counts", span)
        elif name == "think":
            if self.acted:
                self.issue("think_late", "the thought comes after the action", span)
            self.put("think", self.read_think(inner, span))
        elif name == "response":
            self.issue("response_forged", "the agent wrote a tool response itself", span)
        elif not closed:
            # What was cut off is not run and does not count; behind it may stand the role of a response.
            if not self._taken(name, span):
                self.spans[name] = trimmed(self.text, *span)
        elif name == "call":
            self.read_call(span)
        else:
            self._answer(inner, span)
        return (close + 1, self.tags[close].end) if closed else (close, span[1])

    def _answer(self, inner: list[Tag], span: Span) -> None:
        last_counts = self.dialect.grammar.last_answer_counts
        if self._taken("answer", span) and not (last_counts and "answer" in self.spans):
            return
        self.nested(inner)
        found = self.dialect.find_answer(self.text, span)
        if found is None:
            self.issue("answer_unboxed", "no \\boxed{} in the answer", span)
        self.put("answer", found or span)

    def put(self, part: str, span: Span) -> None:
        """The thought or the answer stands there."""
        text = self.text[slice(*span)]
        self.spans[part], self.fields[part] = span, text.strip() if part == "answer" else text

    def _taken(self, kind: str, span: Span) -> bool:
        """Whether an action came before this one. The first counts: generation stops there."""
        if kind in self.spans:
            which = (
                "last" if self.dialect.grammar.last_answer_counts and kind == "answer" else "first"
            )
            self.issue(f"{kind}_multiple", f"more than one {kind}; the {which} counts", span)
        elif self.acted:
            self.issue("answer_and_call", "both a call and an answer; the first counts", span)
        return self.acted
