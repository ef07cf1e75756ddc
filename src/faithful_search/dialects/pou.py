"""Proof-of-Use: from the second step on, every thought opens with a verdict on the evidence received (section 3.2).

```
<think>plan</think><tool_call>{"name": "local_search", "arguments": {"query": "…"}}</tool_call>
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

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from ..errors import DialectError
from ..trajectory import Evidence, Span, Step, ToolCall, Trajectory
from .base import Dialect, Fields, Message
from .fence import Fence, one_line, tags
from .json_call import NO_CALL, OPEN, asked_for, read_call, schema_lines
from .tool_calls import ToolCalls
from .turns import Grammar, Tag, TurnReader

_NAMES = ("think", "helpful", "ref", "tool_call", "tool_response", "answer")
_VERDICT = r"(?:\s*+<helpful>(?P<helpful>yes|no)</helpful>\s*+<ref>(?P<ref>[^<]*+)</ref>)?+"
_CITE = re.compile(r" \[(E[0-9]++)\]: ")
_BARE_CITE = re.compile(r"\[(E[0-9]++)\]: ")
"""Without the blank: a pattern that begins with one character alone is found four times as fast."""
_ID = re.compile(r"E[0-9]+")
_LONGEST_URL = 500
_FENCE = tags(*_NAMES) + r"|<\||\[[Ee][0-9]++\]"

_SYSTEM = """Answer the question. You work in turns and may use tools.

Each turn is one thought and one action, and nothing else:
<think>your reasoning</think><tool_call>{{"name": "tool's name", "arguments": {{...}}}}</tool_call>
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


class PoU(ToolCalls):
    """The dialect of Proof-of-Use. `Step.helpful` and `Step.refs` of step t judge the evidence of step t - 1.

    Example:
        >>> turn = "<think><helpful>no</helpful><ref>null</ref>hm</think><answer>42</answer>"
        >>> step = PoU().parse_turn(turn, first=False)
        >>> step.helpful, step.refs, step.think, step.answer, step.issues
        (False, (), 'hm', '42', ())
    """

    name: ClassVar[str] = "pou"
    grammar: ClassVar[Grammar] = Grammar(_NAMES, "tool_call", "tool_response", opens=_VERDICT)
    fence: ClassVar[Fence] = Fence(_FENCE)
    marks: ClassVar[Mapping[str, float]] = {
        "helpful": 4.0, "ref": 2.0, "tool_call": 0.5, "tool_response": 0.5, "think": 0.25, "answer": 0.25,
        "search": -3.0, "information": -3.0, "result": -3.0, "search_results": -3.0, "begin_of_query": -3.0,
    }  # fmt: skip
    signs: ClassVar[Mapping[str, float]] = {
        r"<tool_response>\n[^\n<]{0,60}(?: <http[^\n<>]{0,200}>)? \[E[0-9]{1,7}\]: ": 4.0
    }

    def prompt(self, question: str, tools: Sequence[dict[str, Any]]) -> list[Message]:
        """System message (protocol and the tools' schemas), then the question."""
        return [
            {"role": "system", "content": _SYSTEM.format(tools=schema_lines(tools))},
            {"role": "user", "content": question},
        ]

    def turn_end(self, text: str, start: int, end: int) -> int:
        """At a response only: no role ends a turn, so that a thought may hold any word."""
        at = text.find(OPEN, start, end)
        while at > start and not asked_for(text, start, at):
            at = text.find(OPEN, at + 1, end)
        return end if at < 0 else at

    def read_turn(self, text: str, start: int, end: int, first: bool, parallel: bool) -> list[Fields]:
        """The fields of a turn's one step."""
        return [_Reader(text, start, end, self.grammar, first).read()]

    def read_body(self, body: str) -> tuple[list[Evidence], str]:
        """Evidence by its ids. Lines before the first title belong to no evidence."""
        pieces = _BARE_CITE.split(body)  # title, id, text + newline + title, id, …, text
        blank = 1
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
        """Write a whole trajectory as one text, turns and responses next to each other."""
        return Dialect.render(self, trajectory)

    def render_turn(self, step: Step) -> str:
        """Write one turn; the verdict appears where `step.helpful` is not `None`."""
        verdict = ""
        if step.helpful is not None:
            verdict = f"<helpful>{'yes' if step.helpful else 'no'}</helpful><ref>{', '.join(step.refs) or 'null'}</ref>"
        action = "" if step.call is None else f"<tool_call>{_call_text(step.call)}</tool_call>"
        if step.answer is not None:
            action += f"<answer>{step.answer}</answer>"
        return f"<think>{verdict}{step.think or ''}</think>{action}"

    def write_body(self, evidence: Sequence[Evidence], note: str, escape: Callable[[str], str]) -> str:
        """One line per piece of evidence, with its address if that is http(s) and short; the note only without any.

        Raises:
            DialectError: for evidence whose id is not `E` and a number (the toolbox gives these).
        """
        lines = [f"{_head(item, escape)} [{_checked(item.id)}]: {escape(item.text)}" for item in evidence]
        return "\n".join(lines) if lines else escape(note)


def _head(item: Evidence, escape: Callable[[str], str]) -> str:
    """What stands before the id: the title, and the address of a page, which may hold no `<`.

    A longer address would crowd out the evidence, and a shortened one lead nowhere: it is left out.
    """
    title = one_line(escape(item.title))
    if item.url.startswith(("http://", "https://")) and len(item.url) <= _LONGEST_URL:
        return f"{title} <{one_line(escape(item.url)).replace('<', '&lt;')}>"
    return f"{title[:-1]}&#62;" if title.endswith(">") else title


class _Reader(TurnReader):
    """Adds the verdict to what a turn of any dialect has."""

    def no_think(self) -> None:
        super().no_think()
        if not self.first:
            self.issue("verdict_missing", "no verdict on the tool response before")

    def read_call(self, raw: str, span: Span) -> ToolCall | None:
        call = read_call(raw, strict=True)
        if call is None:
            self.issue("call_json", NO_CALL, span)
        return call

    def read_think(self, inner: list[Tag], span: Span) -> Span:
        if self.plain and (said := self.plain["helpful"]):
            said_at = self.spans["helpful"] = self.plain.span("helpful")
            if self.first:
                self._unexpected((said_at[0] - len("<helpful>"), said_at[0]))
            self.fields["helpful"] = said == "yes"
            self._ref(self.plain.span("ref"))
            return span
        rest = self._verdict(inner, span)
        self.nested([tag for tag in inner if tag.name not in ("helpful", "ref")])
        return rest, span[1]

    def _verdict(self, inner: list[Tag], span: Span) -> int:
        """Read `<helpful>…</helpful><ref>…</ref>`; returns where the reasoning begins."""
        at = next((k for k, tag in enumerate(inner) if tag.name == "helpful" and not tag.closing), None)
        if at is None:
            if not self.first:
                self.issue("verdict_missing", "no verdict on the tool response before", span)
            for tag in inner:
                if tag.name in ("helpful", "ref"):
                    self.issue("tag_unbalanced", f"{self.text[tag.start : tag.end]} where none belongs", tag.span)
            return span[0]
        opening = inner[at].span
        if self.first:
            self._unexpected(opening)
        opens = not self.text[span[0] : opening[0]].strip()
        if not opens:
            self.issue("verdict_not_first", "the verdict does not open the thought", opening)
        rest, used = self._tags(inner, at)
        more = [tag for tag in (*inner[:at], *inner[used:]) if tag.name in ("helpful", "ref")]
        if more:
            self.issue("verdict_multiple", "more verdict tags than one verdict has", more[0].span)
        return rest if opens else span[0]

    def _tags(self, inner: list[Tag], at: int) -> tuple[int, int]:
        """Read the verdict whose tag is `inner[at]`; returns the end of the verdict and how many tags are used up."""
        if not _closes(inner, at + 1, "helpful"):
            self.issue("verdict_unclosed", "<helpful> is not closed", inner[at].span)
            return inner[at].start, at + 1
        self._helpful((inner[at].end, inner[at + 1].start))
        done, at = inner[at + 1].end, at + 2
        opens = at < len(inner) and inner[at].name == "ref" and not inner[at].closing
        if not opens or self.text[done : inner[at].start].strip():
            self.issue("ref_missing", "no <ref> behind the verdict", (done, done))
            return done, at
        if not _closes(inner, at + 1, "ref"):
            self.issue("ref_unclosed", "<ref> is not closed", inner[at].span)
            return done, at + 1
        self._ref((inner[at].end, inner[at + 1].start))
        return inner[at + 1].end, at + 2

    def _unexpected(self, opening: Span) -> None:
        self.issue("verdict_unexpected", "a verdict before there was any tool response", opening)

    def _helpful(self, span: Span) -> None:
        self.spans["helpful"] = span
        value = self.text[slice(*span)]
        if value not in ("yes", "no"):
            self.issue("verdict_invalid", f"the verdict is {value[:40]!r}, not yes or no", span)
        if value.strip().lower() in ("yes", "no"):
            self.fields["helpful"] = value.strip().lower() == "yes"

    def _ref(self, span: Span) -> None:
        self.spans["ref"] = span
        names = [name for part in self.text[slice(*span)].split(",") if (name := part.strip())]
        ids = tuple([name for name in names if name != "null"])
        if not names:
            self.issue("ref_empty", "<ref> holds neither ids nor null", span)
        elif ids and len(ids) < len(names):
            self.issue("ref_null_mixed", "null stands beside ids", span)
        self.fields["refs"] = ids


def _closes(inner: list[Tag], at: int, name: str) -> bool:
    return at < len(inner) and inner[at].closing and inner[at].name == name


def _call_text(call: ToolCall) -> str:
    if call.raw:
        return call.raw
    text = json.dumps({"name": call.name, "arguments": call.arguments}, ensure_ascii=False)
    return text.replace("<", "\\u003c") if PoU.grammar.tag.search(text) else text


def _checked(name: str) -> str:
    if not _ID.fullmatch(name):
        raise DialectError(
            f"evidence id {name!r}: this dialect writes E and a number; give the evidence ids through the toolbox"
        )
    return name
