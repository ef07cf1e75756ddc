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
from ..trajectory import Evidence, Issue, Span, Step, ToolCall, Trajectory
from .base import Dialect, Message
from .fence import Fence, one_line, tags, unescape
from .json_call import CLOSE, NO_CALL, OPEN, asked_for, call_form, read_call, repair_call, schema_lines
from .turns import MOST_STEPS, Grammar, Tag, TurnReader, episode_start, skip, too_many_turns, untagged

_NAMES = ("think", "helpful", "ref", "tool_call", "tool_response", "answer")
_PLAIN = untagged(_NAMES)
_TURN = re.compile(
    r"<think>(?:\s*+<helpful>(yes|no)</helpful>\s*+<ref>([^<]*+)</ref>)?+"
    rf"({_PLAIN})</think>\s*+"
    rf"(?:<tool_call>([^<]*+(?:<(?!/tool_call>|tool_response>)[^<]*+)*+)</tool_call>|<answer>({_PLAIN})</answer>)"
)
_GRAMMAR = Grammar(names=_NAMES, call="tool_call", response="tool_response")
_CITE = re.compile(r" \[(E[0-9]++)\]: ")
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


class PoU(Dialect):
    """The dialect of Proof-of-Use. `Step.helpful` and `Step.refs` of step t judge the evidence of step t - 1.

    Example:
        >>> turn = "<think><helpful>no</helpful><ref>null</ref>hm</think><answer>42</answer>"
        >>> step = PoU().parse_turn(turn, first=False)
        >>> step.helpful, step.refs, step.think, step.answer, step.issues
        (False, (), 'hm', '42', ())
    """

    name: ClassVar[str] = "pou"
    stop: ClassVar[tuple[str, ...]] = ("</tool_call>", "</answer>")
    observation_role: ClassVar[str | None] = "user"
    response_tag: ClassVar[str] = "tool_response"
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

    def parse(self, text: str, *, question: str | None = None) -> Trajectory:
        """Read a trajectory with or without prompt and chat markup. Whatever stands in a tool response is data."""
        at, asked = episode_start(text, OPEN)
        steps: list[Step] = []
        size = len(text)
        judged = False
        while (at := skip(text, at)) < size and len(steps) < MOST_STEPS:
            fields, at = _fast_turn(text, at, judged) or _slow_turn(text, at, judged)
            if at < size:
                at = _read_response(text, at + len(OPEN), fields)
                judged = True
            steps.append(Step(**fields))
        answer = steps[-1].answer if steps else None
        return Trajectory(
            tuple(steps),
            asked if question is None else question,
            answer,
            None if answer is None else "answered",
            "pou",
            text=text,
            issues=(too_many_turns(),) if at < size else (),
        )

    def parse_turn(self, text: str, *, first: bool) -> Step:
        """Read one turn. Without `first` the thought must open with a verdict. Spans point into `text`."""
        at = skip(text, 0)
        found = _fast_turn(text, at, not first)
        if found is None or found[1] < len(text):
            return Step(**_Reader(text, at, len(text), not first).read())
        return Step(**found[0])

    def render_turn(self, step: Step) -> str:
        """Write one turn; the verdict appears where `step.helpful` is not `None`."""
        verdict = ""
        if step.helpful is not None:
            verdict = f"<helpful>{'yes' if step.helpful else 'no'}</helpful><ref>{', '.join(step.refs) or 'null'}</ref>"
        action = "" if step.call is None else f"<tool_call>{_call_text(step.call)}</tool_call>"
        if step.answer is not None:
            action += f"<answer>{step.answer}</answer>"
        return f"<think>{verdict}{step.think or ''}</think>{action}"

    def render_observation(self, evidence: Sequence[Evidence], note: str = "", fence: Fence | None = None) -> str:
        """One line per piece of evidence, with its address if that is http(s) and short; the note only without any.

        Raises:
            DialectError: for evidence whose id is not `E` and a number (the toolbox gives these).
        """
        escape = (fence or self.fence).escape
        lines = [f"{_head(item, escape)} [{_checked(item.id)}]: {escape(item.text)}" for item in evidence]
        body = "\n".join(lines) if lines else escape(note)
        return f"{OPEN}\n{body}\n{CLOSE}"

    def repair_call(self, raw: str) -> ToolCall | None:
        """The call that broken JSON was meant to be."""
        return repair_call(raw)

    def call_form(self, tools: Sequence[str]) -> str:
        """The JSON of a call, with the first tool's name."""
        return call_form(tools)


def _fast_turn(text: str, start: int, judged: bool) -> tuple[dict[str, Any], int] | None:
    """A well-formed turn at `start`, and where the response after it (or the text's end) is; `None` for any other."""
    match = _TURN.match(text, start)
    if match is None:
        return None
    end = match.end() if text.startswith(OPEN, match.end()) else skip(text, match.end())
    responds = end < len(text)
    verdict, ref, think, raw, answer = match.groups()
    if (verdict is None) is judged or (responds and (raw is None or not text.startswith(OPEN, end))):
        return None
    span = match.span
    spans = {"step": span(), "think": span(3)}
    fields: dict[str, Any] = {"think": think, "spans": spans}
    if judged:
        refs = _cited(ref)
        if refs is None:
            return None
        fields |= {"helpful": verdict == "yes", "refs": refs}
        spans |= {"helpful": span(1), "ref": span(2)}
    if raw is None:
        fields["answer"], spans["answer"] = answer.strip(), span(5)
        return fields, end
    call = read_call(raw, strict=True)
    if call is None:
        return None
    fields["call"], spans["call"] = call, span(4)
    return fields, end


def _cited(ref: str) -> tuple[str, ...] | None:
    """The ids of a citation as it should be, none of them for `null`; `None` for any other."""
    if ref == "null":
        return ()
    return None if "null" in ref else _ids(ref) or None


def _ids(ref: str) -> tuple[str, ...]:
    if "," not in ref:
        ref = ref.strip()
        return (ref,) if ref else ()
    return tuple([name for part in ref.split(",") if (name := part.strip())])


def _slow_turn(text: str, start: int, judged: bool) -> tuple[dict[str, Any], int]:
    """Any turn at all: up to the tool response that the environment wrote, or the text's end."""
    end = _turn_end(text, start)
    return _Reader(text, start, end, judged).read(), end


def _turn_end(text: str, start: int) -> int:
    """A tool response is the environment's when a call's end or a user role precedes it; else the agent wrote it."""
    at = text.find(OPEN, start)
    while at >= 0 and not asked_for(text, start, at):
        at = text.find(OPEN, at + 1)
    return len(text) if at < 0 else at


def _read_response(text: str, start: int, fields: dict[str, Any]) -> int:
    """Put the tool response that begins at `start` into the step's fields; returns where it ends."""
    end = text.find(CLOSE, start)
    if end < 0:
        end = next_at = len(text)
        fields["issues"] = (
            *fields.get("issues", ()),
            Issue("response_unclosed", "the tool response is not closed", (start, end)),
        )
    else:
        next_at = end + len(CLOSE)
    fields["spans"]["response"] = (start, end)
    first = start + 1 if text.startswith("\n", start) else start
    last = end - 1 if end > first and text[end - 1] == "\n" else end
    pieces = _CITE.split(text[first:last])
    if len(pieces) == 1:
        fields["note"] = unescape(pieces[0])
    else:
        fields["evidence"] = _evidence(pieces)
    return next_at


def _evidence(pieces: list[str]) -> tuple[Evidence, ...]:
    """From `[title, id, text + newline + title, id, …, text]`. Lines before the first title belong to no evidence."""
    found = []
    title = pieces[0].rpartition("\n")[2]
    last = len(pieces) - 1
    for at in range(1, last, 2):
        body, following = pieces[at + 1], ""
        if at + 1 < last:
            body, _, following = body.rpartition("\n")
        title, url = _title_and_url(title)
        if "&" in body or "&" in title or "&" in url:
            body, title, url = unescape(body), unescape(title), unescape(url)
        found.append(Evidence(body, title, pieces[at], url=url))
        title = following
    return tuple(found)


def _head(item: Evidence, escape: Callable[[str], str]) -> str:
    """What stands before the id: the title, and the address of a page, which may hold no `<`.

    A longer address would crowd out the evidence, and a shortened one lead nowhere: it is left out.
    """
    title = one_line(escape(item.title))
    if item.url.startswith(("http://", "https://")) and len(item.url) <= _LONGEST_URL:
        return f"{title} <{one_line(escape(item.url)).replace('<', '&lt;')}>"
    return f"{title[:-1]}&#62;" if title.endswith(">") else title


def _title_and_url(head: str) -> tuple[str, str]:
    """What `_head` wrote, still escaped."""
    at = head.rfind(" <http") if head.endswith(">") else -1
    return (head, "") if at < 0 else (head[:at], head[at + 2 : -1])


class _Reader(TurnReader):
    """Adds the verdict to what a turn of any dialect has."""

    def __init__(self, text: str, start: int, end: int, judged: bool) -> None:
        super().__init__(text, start, end, _GRAMMAR)
        self.judged = judged

    def no_think(self) -> None:
        super().no_think()
        if self.judged:
            self.issue("verdict_missing", "no verdict on the tool response before")

    def read_call(self, raw: str, span: Span) -> ToolCall | None:
        call = read_call(raw, strict=True)
        if call is None:
            self.issue("call_json", NO_CALL, span)
        return call

    def read_think(self, inner: list[Tag], span: Span) -> Span:
        rest = self._verdict(inner, span)
        self.nested([tag for tag in inner if tag.name not in ("helpful", "ref")])
        return rest, span[1]

    def _verdict(self, inner: list[Tag], span: Span) -> int:
        """Read `<helpful>…</helpful><ref>…</ref>`; returns where the reasoning begins."""
        at = next((k for k, tag in enumerate(inner) if tag.name == "helpful" and not tag.closing), None)
        if at is None:
            self._no_verdict(inner, span)
            return span[0]
        opening = inner[at].span
        if not self.judged:
            self.issue("verdict_unexpected", "a verdict before there was any tool response", opening)
        opens = not self.text[span[0] : opening[0]].strip()
        if not opens:
            self.issue("verdict_not_first", "the verdict does not open the thought", opening)
        rest, used = self._helpful(inner, at)
        more = [tag for tag in (*inner[:at], *inner[used:]) if tag.name in ("helpful", "ref")]
        if more:
            self.issue("verdict_multiple", "more verdict tags than one verdict has", more[0].span)
        return rest if opens else span[0]

    def _no_verdict(self, inner: list[Tag], span: Span) -> None:
        if self.judged:
            self.issue("verdict_missing", "no verdict on the tool response before", span)
        for tag in inner:
            if tag.name in ("helpful", "ref"):
                self.issue("tag_unbalanced", f"{self.text[tag.start : tag.end]} where none belongs", tag.span)

    def _helpful(self, inner: list[Tag], at: int) -> tuple[int, int]:
        """Read the verdict whose tag is `inner[at]`; returns the end of the verdict and how many tags are used up."""
        if not _closes(inner, at + 1, "helpful"):
            self.issue("verdict_unclosed", "<helpful> is not closed", inner[at].span)
            return inner[at].start, at + 1
        span = self.spans["helpful"] = (inner[at].end, inner[at + 1].start)
        value = self.text[slice(*span)]
        if value not in ("yes", "no"):
            self.issue("verdict_invalid", f"the verdict is {value[:40]!r}, not yes or no", span)
        if value.strip().lower() in ("yes", "no"):
            self.fields["helpful"] = value.strip().lower() == "yes"
        return self._ref(inner, at + 2, inner[at + 1].end)

    def _ref(self, inner: list[Tag], at: int, done: int) -> tuple[int, int]:
        opens = at < len(inner) and inner[at].name == "ref" and not inner[at].closing
        if not opens or self.text[done : inner[at].start].strip():
            self.issue("ref_missing", "no <ref> behind the verdict", (done, done))
            return done, at
        if not _closes(inner, at + 1, "ref"):
            self.issue("ref_unclosed", "<ref> is not closed", inner[at].span)
            return done, at + 1
        span = self.spans["ref"] = (inner[at].end, inner[at + 1].start)
        names = _ids(self.text[slice(*span)])
        ids = tuple(name for name in names if name != "null")
        if not names:
            self.issue("ref_empty", "<ref> holds neither ids nor null", span)
        elif ids and len(ids) < len(names):
            self.issue("ref_null_mixed", "null stands beside ids", span)
        self.fields["refs"] = ids
        return inner[at + 1].end, at + 2


def _closes(inner: list[Tag], at: int, name: str) -> bool:
    return at < len(inner) and inner[at].closing and inner[at].name == name


def _call_text(call: ToolCall) -> str:
    if call.raw:
        return call.raw
    text = json.dumps({"name": call.name, "arguments": call.arguments}, ensure_ascii=False)
    return text.replace("<", "\\u003c") if _GRAMMAR.tag.search(text) else text


def _checked(name: str) -> str:
    if not _ID.fullmatch(name):
        raise DialectError(
            f"evidence id {name!r}: this dialect writes E and a number; give the evidence ids through the toolbox"
        )
    return name
