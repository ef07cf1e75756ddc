"""Search-R1 (and DeSA, VERITAS): `<think> <search> <information> <answer>` in one running assistant text.

```
<think>plan</think>
<search>query</search>

<information>Doc 1(Title: "Title") text
Doc 2(Title: "Other") text
</information>

<think>reasoning</think>
<answer>…</answer>
```

The text holds no ids: evidence is numbered `E1`, `E2`, … through the trajectory as it comes. Kinds of issues are those
of `pou` without the verdict's, and `call_empty` (an empty query), `response_unasked` (information nobody searched for).
`response_unclosed` is common in this dialect: its environment cuts observations at 500 tokens, closing tag and all.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from ..trajectory import Evidence, Issue, Span, Step, ToolCall, Trajectory
from .base import Dialect, Message
from .fence import Fence, tags, unescape
from .turns import GAP, Grammar, TurnReader, episode_start

_GRAMMAR = Grammar(("think", "search", "information", "answer"), "search", "information", last_answer_counts=True)
_OPEN, _CLOSE = "<information>", "</information>"
_INVALID = (
    "\nMy previous action is invalid. If I want to search, I should put the query between <search> and </search>. "
    "If I want to give the final answer, I should put the answer between <answer> and </answer>. Let me try again.\n"
)
_PROMPT = (
    "Answer the given question. You must conduct reasoning inside <think> and </think> first every time you "
    "get new information. After reasoning, if you find you lack some knowledge, you can call a search engine "
    "by <search> query </search> and it will return the top searched results between <information> and "
    "</information>. You can search as many times as your want. If you find no further external knowledge "
    "needed, you can directly provide the answer inside <answer> and </answer>, without detailed "
    "illustrations. For example, <answer> Beijing </answer>. Question: "
)
_ASKED = re.compile(r"For example, <answer> Beijing </answer>\. Question: ([^\n]*)\n?")
_BREAK = re.compile(r"<information>|\n?My previous action is invalid\. [^\n]*(?:\n|\Z)")
_SPEAKS = re.compile(r"<(?:think|search|answer)>")
_DOC = re.compile(r"Doc [0-9]++ ?\(Title: ?")
_NOT_IN_TITLE = re.compile(r'"(?=\))|[\n\r]')


class SearchR1(Dialect):
    """The dialect of Search-R1. `Step.call` is `search(query=…)`; no verdicts: `helpful` is `None`, `refs` empty.

    A step's answer is the last of its turn, the trajectory's the last of all: so that system's reward reads them.
    """

    name: ClassVar[str] = "search_r1"
    stop: ClassVar[tuple[str, ...]] = ("</search>", "</answer>")
    observation_role: ClassVar[str | None] = None
    response_tag: ClassVar[str] = "information"
    search_tool: ClassVar[str | None] = "search"
    fence: ClassVar[Fence] = Fence(
        tags(*_GRAMMAR.names) + r"|<\||Doc [0-9]++ ?\(Title:|My previous action is invalid\."
    )
    marks: ClassVar[Mapping[str, float]] = {
        "search": 2.0, "information": 4.0, "think": 0.5, "answer": 0.5,
        "helpful": -3.0, "ref": -3.0, "tool_call": -3.0, "tool_response": -3.0, "result": -4.0, "search_results": -4.0,
    }  # fmt: skip

    def prompt(self, question: str, tools: Sequence[dict[str, Any]]) -> list[Message]:
        """One user message. The dialect knows a single tool and does not describe it: `tools` are not shown."""
        asked = question.strip()
        return [{"role": "user", "content": f"{_PROMPT}{asked if asked.endswith('?') else asked + '?'}\n"}]

    def parse(self, text: str, *, question: str | None = None) -> Trajectory:
        """Read a trajectory, prompt included or not. Whatever stands in an information block is data."""
        at, asked = _begin(text)
        steps: list[Step] = []
        found = 0
        while (at := _skip(text, at)) < len(text):
            pause = _BREAK.search(text, at)
            end = pause.start() if pause else len(text)
            fields = _Reader(text, at, end, _GRAMMAR).read()
            at = pause.end() if pause else end
            if pause and pause[0] == _OPEN:
                at = _read_response(text, at, fields, found)
                found += len(fields.get("evidence", ()))
            steps.append(Step(**fields))
        answer = next((step.answer for step in reversed(steps) if step.answer is not None), None)
        ended = "answered" if steps and steps[-1].answer is not None else None
        return Trajectory(tuple(steps), asked if question is None else question, answer, ended, self.name, text=text)

    def parse_turn(self, text: str, *, first: bool) -> Step:
        """Read one turn; `first` makes no difference here. Spans point into `text`."""
        return Step(**_Reader(text, _skip(text, 0), len(text), _GRAMMAR).read())

    def render_turn(self, step: Step) -> str:
        """Write one turn."""
        action = (
            "" if step.call is None else f"\n<search>{step.call.raw or step.call.arguments.get('query', '')}</search>"
        )
        if step.answer is not None:
            action += f"\n<answer>{step.answer}</answer>"
        return f"<think>{step.think or ''}</think>{action}"

    def render_observation(self, evidence: Sequence[Evidence], note: str = "", fence: Fence | None = None) -> str:
        """`Doc` lines, numbered from 1 in each response; the note only when there is no evidence."""
        escape = (fence or self.fence).escape
        docs = [
            f'Doc {number}(Title: "{_title(escape(item.title))}") {escape(item.text)}\n'
            for number, item in enumerate(evidence, start=1)
        ]
        return f"\n\n{_OPEN}{''.join(docs) or escape(note)}{_CLOSE}\n\n"

    def render(self, trajectory: Trajectory) -> str:
        """Write a whole trajectory as one text; after a turn without action stands what the environment says to it."""
        parts: list[str] = []
        for number, step in enumerate(trajectory.steps, start=1):
            parts.append(self.render_turn(step))
            if step.call is not None:
                parts.append(self.render_observation(step.evidence, step.note))
            elif step.answer is None and number < len(trajectory.steps):
                parts.append(_INVALID)
        return "".join(parts)

    def call_form(self, tools: Sequence[str]) -> str:
        """The words of a query; there is one tool, and nothing else to write."""
        return "a query between an opening and a closing search tag"

    def on_invalid(self, step: Step) -> str | None:
        """The line that this system's environment puts into the agent's mouth."""
        return _INVALID


class _Reader(TurnReader):
    def read_call(self, raw: str, span: Span) -> ToolCall | None:
        query = raw.strip()
        if not query:
            self.issue("call_empty", "the query is empty", span)
            return None
        return ToolCall("search", {"query": query}, raw)


def _begin(text: str) -> tuple[int, str | None]:
    """After the prompt, with chat markup or without; its example must not be read as an answer."""
    at, message = episode_start(text, _OPEN)
    asked = _ASKED.search(message) if message else None
    if asked or at:
        return at, asked[1] if asked else message
    raw = _ASKED.search(text) if text.lstrip().startswith("Answer the given question") else None
    return (raw.end(), raw[1]) if raw else (0, None)


def _skip(text: str, at: int) -> int:
    match = GAP.match(text, at)
    return match.end() if match else at


def _read_response(text: str, start: int, fields: dict[str, Any], found: int) -> int:
    """Put the information that begins at `start` into the step's fields; returns where it ends."""
    end, next_at = _response_end(text, start)
    issues = list(fields["issues"])
    if end == next_at:
        issues.append(Issue("response_unclosed", "the information is cut off", (start, end)))
    if "call" not in fields["spans"]:
        issues.append(Issue("response_unasked", "information for a turn that did not search", (start, end)))
    fields["issues"] = tuple(issues)
    fields["spans"]["response"] = (start, end)
    body = text[start:end]
    docs = list(_DOC.finditer(body))
    stops = [match.start() for match in docs[1:]] + [len(body)]
    if docs:
        read = (_document(body[match.end() : stop]) for match, stop in zip(docs, stops, strict=True))
        fields["evidence"] = tuple(
            Evidence(text, title, f"E{found + k}") for k, (title, text) in enumerate(read, start=1)
        )
    else:
        fields["note"] = unescape(body)
    return next_at


def _response_end(text: str, start: int) -> tuple[int, int]:
    """Where the information ends and the agent goes on; without a closing tag both are where its next tag opens."""
    again = text.find(_OPEN, start)
    limit = again if again >= 0 else len(text)
    close = text.find(_CLOSE, start, limit)
    if close >= 0:
        return close, close + len(_CLOSE)
    speaks = _SPEAKS.search(text, start, limit)
    end = speaks.start() if speaks else limit
    return end, end


def _document(body: str) -> tuple[str, str]:
    """Title and text of what follows `Doc 1(Title: `; quotes around the title are the format's, not the title's."""
    quoted = body.startswith('"')
    title, _, text = body[quoted:].partition('")' if quoted else ")")
    return unescape(title), unescape(text.removeprefix(" ").removesuffix("\n"))


def _title(title: str) -> str:
    return _NOT_IN_TITLE.sub(lambda match: f"&#{ord(match[0])};", title)
