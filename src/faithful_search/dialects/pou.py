"""Proof-of-Use: from the second step on, every thought opens with a verdict on the evidence received (section 3.2).

```
<think>plan</think><tool_call>{"name": "local_search", "arguments": {"query": "…"}</tool_call>
<tool_response>
Title [E1]: text
Other title [E2]: text
</tool_response>
<think><helpful>yes</helpful><ref>E1</ref>reasoning</think><answer>…</answer>
```

Issues of a turn, by kind:

| kind | meaning |
|---|---|
| think_missing, think_unclosed, think_multiple, think_late | no thought; not closed; several; one after the action |
| verdict_missing, verdict_not_first | after a tool response: no verdict in the thought; it does not open the thought |
| verdict_unexpected | the first thought of an episode, with nothing to judge, has one (it is read all the same) |
| verdict_invalid, verdict_unclosed, verdict_multiple | it is not exactly `yes` or `no`; not closed; there are several |
| ref_missing, ref_unclosed, ref_empty, ref_null_mixed | no citation; not closed; nothing in it; `null` beside ids |
| call_json, call_unclosed, call_multiple | no `{"name": str, "arguments": object}`; not closed; several (first wins) |
| answer_unclosed, answer_multiple, answer_and_call | not closed (so none); several; both actions (first wins) |
| no_action | neither call nor answer |
| nested, tag_unbalanced | a protocol tag inside a thought or an answer; a closing tag or verdict where none belongs |
| response_forged | the agent wrote a tool response itself; what is in it is not read |
| text_outside | text that stands outside all tags |
| response_unclosed | the tool response that follows is cut off |
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

from ..errors import DialectError
from ..trajectory import Evidence, Span, Step, Trajectory
from .base import Dialect
from .fence import Fence, one_line, tags
from .passages import write_json
from .tool_calls import MARKS, OPEN, ToolCalls, asked_for
from .turns import Fields, Grammar, Tag, TurnReader

_NAMES = ("think", "helpful", "ref", "tool_call", "tool_response", "answer")
_VERDICT = r"(?:\s*+<helpful>(?P<helpful>yes|no)</helpful>\s*+<ref>(?P<ref>[^<]*+)</ref>)?+"
_CITE = re.compile(r" \[(E[0-9]++)\]: ")
# Without the blank: a pattern that begins with one character alone is found four times as fast.
_BARE_CITE = re.compile(r"\[(E[0-9]++)\]: ")
_ID = re.compile(r"E[0-9]+")
_LONGEST_URL = 500
_FENCE = tags(*_NAMES) + r"|<\||\[[Ee][0-9]++\]"

_SYSTEM = """Answer the question. You work in turns and may use tools.

Each turn is one thought and one action, and nothing else:
<think>your reasoning</think><tool_call>{"name": "tool's name", "arguments": {...}}</tool_call>
or, once you know enough:
<think>your reasoning</think><answer>the answer, as short as possible</answer>

After a call you receive a tool_response block. Evidence in it reads: Title [E1]: text. The id in brackets names it.
The address of a page stands behind its title: Title <https://...> [E1]: text.
From your second turn on, the thought must open with your verdict on the response you just received:
<think><helpful>yes</helpful><ref>E1, E2</ref>your reasoning</think> when it helped: cite ids of that response only;
<think><helpful>no</helpful><ref>null</ref>your reasoning</think> when it did not.
Let evidence, not memory, decide the answer. If a response did not help, try another query or another tool.

Tools, as JSON schemas, one a line:
{tools}"""


class _Reader(TurnReader):
    """Reads also the verdict that opens a thought."""

    def turns(self) -> tuple[Fields]:
        return (self.read(),)

    def no_think(self) -> None:
        super().no_think()
        if not self.first:
            self.issue("verdict_missing", "no verdict on the tool response before")

    def read_think(self, inner: list[Tag], span: Span) -> Span:
        """Read the verdict; the reasoning begins behind it where it opens the thought."""
        verdict = [tag for tag in inner if tag.name in ("helpful", "ref")]
        start = next((k for k, tag in enumerate(inner) if tag.name == "helpful" and not tag.closing), None)
        rest = span[0]
        if start is None:
            if not self.first:
                self.issue("verdict_missing", "no verdict on the tool response before", span)
            for tag in verdict:
                self.unbalanced(tag)
        else:
            opening = inner[start].span
            if self.first:
                self.issue("verdict_unexpected", "a verdict before there was any tool response", opening)
            opens = not self.text[span[0] : opening[0]].strip()
            if not opens:
                self.issue("verdict_not_first", "the verdict does not open the thought", opening)
            end, used = self._verdict(inner, start)
            more = [tag for tag in (*inner[:start], *inner[used:]) if tag.name in ("helpful", "ref")]
            if more:
                self.issue("verdict_multiple", "more verdict tags than one verdict has", more[0].span)
            rest = end if opens else rest
        self.nested([tag for tag in inner if tag.name not in ("helpful", "ref")])
        return rest, span[1]

    def _verdict(self, inner: list[Tag], at: int) -> tuple[int, int]:
        """Read `<helpful>…</helpful><ref>…</ref>` from `inner[at]` on; returns where it ends and the next tag."""
        said = self._inner(inner, at, "helpful")
        if said is None:
            self.issue("verdict_unclosed", "<helpful> is not closed", inner[at].span)
            return inner[at].start, at + 1
        self.spans["helpful"] = said
        value = self.text[slice(*said)]
        if value not in ("yes", "no"):
            self.issue("verdict_invalid", f"the verdict is {value[:40]!r}, not yes or no", said)
        if value.strip().lower() in ("yes", "no"):
            self.fields["helpful"] = value.strip().lower() == "yes"
        done, at = inner[at + 1].end, at + 2
        opens = at < len(inner) and inner[at].name == "ref" and not inner[at].closing
        if not opens or self.text[done : inner[at].start].strip():
            self.issue("ref_missing", "no <ref> behind the verdict", (done, done))
            return done, at
        cited = self._inner(inner, at, "ref")
        if cited is None:
            self.issue("ref_unclosed", "<ref> is not closed", inner[at].span)
            return done, at + 1
        self.spans["ref"] = cited
        names = _names(self.text[slice(*cited)])
        self.fields["refs"] = ids = tuple([name for name in names if name != "null"])
        if not names:
            self.issue("ref_empty", "<ref> holds neither ids nor null", cited)
        elif ids and len(ids) < len(names):
            self.issue("ref_null_mixed", "null stands beside ids", cited)
        return inner[at + 1].end, at + 2

    def _inner(self, inner: list[Tag], at: int, name: str) -> Span | None:
        """What stands between the tag `inner[at]` and the one that closes it, if that is the next."""
        closes = at + 1 < len(inner) and inner[at + 1].closing and inner[at + 1].name == name
        return (inner[at].end, inner[at + 1].start) if closes else None


class PoU(ToolCalls):
    """The dialect of Proof-of-Use. `Step.helpful` and `Step.refs` of step t judge the evidence of step t - 1.

    Example:
        >>> turn = "<think><helpful>no</helpful><ref>null</ref>hm</think><answer>42</answer>"
        >>> step = PoU().parse_turn(turn, first=False)
        >>> step.helpful, step.refs, step.think, step.answer, step.issues
        (False, (), 'hm', '42', ())
    """

    system = _SYSTEM
    grammar = Grammar(_NAMES, "tool_call", "tool_response", opens=_VERDICT)
    reader = _Reader
    needs_arguments = True
    fence = Fence(_FENCE)
    marks = MARKS | {"helpful": 4.0, "ref": 2.0}
    signs: ClassVar[Mapping[str, float]] = {
        r"<tool_response>\n[^\n<]{0,60}(?: <http[^\n<>]{0,200}>)? \[E[0-9]{1,7}\]: ": 4.0
    }

    def turn_end(self, text: str, start: int, end: int) -> int:
        """At a response only: no role ends a turn, so that a thought may hold any word."""
        at = text.find(OPEN, start, end)  # faster than the family's pattern
        while at > start and not asked_for(text, start, at):
            at = text.find(OPEN, at + 1, end)
        return end if at < 0 else at

    def fields_of(self, turn: re.Match[str], first: bool) -> Fields | None:
        """Also with the verdict that a turn should have."""
        if (turn["helpful"] is None) is not first:
            return None
        fields = super().fields_of(turn, first)
        if fields is not None and not first:
            refs = _names(turn["ref"])
            if refs == ["null"]:
                refs = []
            elif not refs or "null" in refs:
                return None
            fields["helpful"], fields["refs"] = turn["helpful"] == "yes", tuple(refs)
            fields["spans"] = {"helpful": turn.span("helpful"), "ref": turn.span("ref"), **fields["spans"]}
        return fields

    def read_body(self, body: str, fenced: bool) -> tuple[list[Evidence], str]:
        """Evidence by its ids. Lines before the first title belong to no evidence."""
        pieces = _BARE_CITE.split(body)  # title, id, text + newline + title, id, …, text
        blank = 1
        # Only where a blank stands before every id do both patterns find the same.
        for piece in pieces[:-1:2]:
            if not piece or piece[-1] != " ":
                pieces, blank = _CITE.split(body), 0
                break
        last = len(pieces) - 1
        if not last:
            return [], body
        found = []
        head = pieces[0][pieces[0].rfind("\n") + 1 : len(pieces[0]) - blank]
        for at in range(1, last, 2):
            title, url, text = head, "", pieces[at + 1]
            if at + 1 < last:
                end = text.rfind("\n")
                head, text = text[end + 1 : len(text) - blank], text[: max(end, 0)]
            if title[-1:] == ">" and (address := title.rfind(" <http")) >= 0:
                title, url = title[:address], title[address + 2 : -1]
            found.append(Evidence(text, title, pieces[at], url=url))
        return found, ""

    def conclude(self, steps: Sequence[Fields]) -> tuple[str | None, str | None]:
        """An answer ends the episode: only the last turn's counts."""
        return super().conclude(steps[-1:])

    def render(self, trajectory: Trajectory) -> str:
        """A whole trajectory as one text, without line breaks between turns and responses."""
        return Dialect.render(self, trajectory)

    def render_turn(self, step: Step) -> str:
        verdict = action = ""
        if step.helpful is not None:
            verdict = f"<helpful>{'yes' if step.helpful else 'no'}</helpful><ref>{', '.join(step.refs) or 'null'}</ref>"
        if step.call is not None:
            call = write_json({"name": step.call.name, "arguments": step.call.arguments})
            if self.grammar.tag.search(call):  # no argument may look like the end of the call
                call = call.replace("<", "\\u003c")
            action = f"<tool_call>{step.call.raw or call}</tool_call>"
        if step.answer is not None:
            action += f"<answer>{step.answer}</answer>"
        return f"<think>{verdict}{step.think or ''}</think>{action}"

    def write_body(self, evidence: Sequence[Evidence], escape: Callable[[str], str]) -> str:
        """One line per piece of evidence, with its address if that is http(s) and short.

        Raises:
            DialectError: for evidence whose id is not `E` and a number (the toolbox gives these).
        """
        for item in evidence:
            if not _ID.fullmatch(item.id):
                raise DialectError(
                    f"evidence id {item.id!r}: this dialect writes E and a number; give the evidence ids through the "
                    "toolbox"
                )
        return "\n".join(f"{_head(item, escape)} [{item.id}]: {escape(item.text)}" for item in evidence)


def _names(cited: str) -> list[str]:
    return [name for part in cited.split(",") if (name := part.strip())]


def _head(item: Evidence, escape: Callable[[str], str]) -> str:
    """What stands before the id: the title, and the address of a page, which may hold no `<`.

    A longer address would crowd out the evidence, and a shortened one lead nowhere: it is left out.
    """
    title = one_line(escape(item.title))
    if item.url.startswith(("http://", "https://")) and len(item.url) <= _LONGEST_URL:
        return f"{title} <{one_line(escape(item.url)).replace('<', '&lt;')}>"
    return f"{title[:-1]}&#62;" if title.endswith(">") else title
