"""What dialects share that append the tool response as raw text inside one assistant message."""

import re
from collections.abc import Iterator, Sequence
from typing import ClassVar

import msgspec

from ..trajectory import Issue, Step, ToolCall
from .base import Dialect
from .segments import Segment, note_issue
from .turns import Fields, skip

MARKS = {
    "search": 2.0, "information": -4.0, "result": -4.0, "search_results": -4.0, "think": 0.5, "answer": 0.5,
    "helpful": -3.0, "ref": -3.0, "tool_call": -3.0, "tool_response": -3.0,
}  # fmt: skip
"""The marks that most of these dialects share; each has the tag of its responses instead."""


class Tagged(Dialect):
    """Thought, query or answer in tags, and the tool response between `opening` and `closing` behind the query.

    A call is `search(query=…)`. Evidence is numbered `E1`, `E2`, … through the trajectory as it comes.
    """

    stop: ClassVar[tuple[str, ...]] = ("</search>", "</answer>")
    observation_role = None
    search_tool: ClassVar[str | None] = "search"
    no_call = ("call_empty", "the query is empty")
    # What the agent's text begins with: there a tool response ends whose closing tag is missing.
    speaks: ClassVar[re.Pattern[str]] = re.compile(r"<(?:think|search|answer)>")
    # Where the agent's text ends: at `opening` (all by default), at the environment's words to the agent, or where
    # another episode follows (a group `over`).
    pause: ClassVar[re.Pattern[str]]
    border: ClassVar[re.Pattern[str]]  # where a tool response ends at the latest

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "pause" not in vars(cls):
            cls.pause = re.compile(re.escape(cls.opening))
        cls.border = re.compile(f"{re.escape(cls.opening)}|{re.escape(cls.closing)}")

    def split(self, text: str, start: int, end: int) -> Iterator[Segment]:
        """The agent's text up to `pause`, then the response.

        Where the agent has spoken, and has not searched since, no environment responds: it wrote that itself.
        """
        spoke = False
        while (start := skip(text, start, end)) < end:
            pause = self.pause.search(text, start, end)
            until = pause.start() if pause else end
            responds = pause is not None and pause[0] == self.opening
            tags = self.grammar.tag.finditer(text, start, until)
            calls = (
                tag[2] == self.grammar.call for tag in tags
            )  # a call in another dialect counts, too
            forged = (
                responds
                and (spoke or start < until)
                and not any(calls)
                and "<tool_" not in text[start:until]
            )
            if start < until or not forged:
                yield Segment("agent", (start, until))
            spoke = True
            start = pause.end() if pause else end
            if responds:
                border = self.border.search(text, start, end)
                closed = border is not None and border[0] == self.closing
                until = border.start() if border else end
                if not closed and (speaks := self.speaks.search(text, start, until)):
                    until = speaks.start()
                yield Segment("forged" if forged else "tool", (start, until), closed)
                start = border.end() if border and closed else until
            elif pause and pause.lastgroup == "over":
                yield Segment("prompt", pause.span())

    def read_call(self, raw: str) -> ToolCall | None:
        query = raw.strip()
        return ToolCall("search", {"query": query}, raw) if query else None

    def write_call(self, call: ToolCall) -> str:
        return str(call.arguments.get("query", ""))

    def call_form(self, tools: Sequence[str]) -> str:
        return f"a query between an opening and a closing {self.grammar.call} tag"

    def conclude(self, steps: Sequence[Fields]) -> tuple[str | None, str | None]:
        answers = [number for number, fields in enumerate(steps) if "answer" in fields]
        for fields in steps[answers[0] + 1 :] if answers else ():
            note_issue(
                fields,
                "after_answer",
                "the agent went on after it had answered",
                fields["spans"]["step"],
            )
        return super().conclude(steps)

    def force_answer(self, step: Step) -> tuple[Step, str] | None:
        """A blank line behind a call, which stays without response; else what is said to invalid turns."""
        if "call" not in step.spans or any(issue.kind == "call_unclosed" for issue in step.issues):
            return (step, self.invalid) if self.invalid else None
        missing = Issue("response_missing", "no tool response follows the call", step.spans["call"])
        placed = sum(
            issue.span is not None for issue in step.issues
        )  # what the whole turn lacks is noted last
        issues = (*step.issues[:placed], missing, *step.issues[placed:])
        return msgspec.structs.replace(step, issues=issues), "\n\n"
