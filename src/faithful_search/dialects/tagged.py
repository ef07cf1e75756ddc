"""The base of the dialects that append tool responses as raw text inside one assistant message."""

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
"""The marks that most of these dialects share. Each adds the tag of its own responses."""


class Tagged(Dialect):
    """Thought, query or answer in tags, and the tool response between `opening` and `closing` after
    the query.

    A call is `search(query=…)`. Evidence is numbered `E1`, `E2`, … through the trajectory.
    """

    stop: ClassVar[tuple[str, ...]] = ("</search>", "</answer>")
    observation_role: ClassVar[str | None] = None
    search_tool: ClassVar[str | None] = "search"
    unreadable_call = ("call_empty", "the query is empty")
    # Matches where the agent's text begins. A tool response without its closing tag ends there.
    agent_begins: ClassVar[re.Pattern[str]] = re.compile(r"<(?:think|search|answer)>")
    # Matches where the agent's text ends: at `opening` (by default nothing else), at the
    # environment's words to the agent, or where another episode follows (with the group `over`).
    agent_ends: ClassVar[re.Pattern[str]]
    # Matches where a tool response ends, by default its own tags.
    response_ends: ClassVar[re.Pattern[str]]

    # Matches the end of a block that none of the dialect's tags closes.
    ends_foreign_block: ClassVar[re.Pattern[str]]

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        of_dialect = "|".join(map(re.escape, cls.grammar.names))
        cls.ends_foreign_block = re.compile(
            rf"</(?!(?:{of_dialect})>)[a-z]\w{{1,24}}>\s{{0,20}}+\Z"
        )
        if "agent_ends" not in vars(cls):
            cls.agent_ends = re.compile(re.escape(cls.opening))
        if "response_ends" not in vars(cls):
            cls.response_ends = re.compile(f"{re.escape(cls.opening)}|{re.escape(cls.closing)}")

    def split(self, text: str, start: int, end: int) -> Iterator[Segment]:
        """The agent's text up to where it ends, then the response, and so on.

        A response is forged where the agent has written something and has not called a tool since:
        no environment responds there. A block that the dialect does not know may be a call.
        """
        spoke = False
        while (start := skip(text, start, end)) < end:
            pause = self.agent_ends.search(text, start, end)
            until = pause.start() if pause else end
            responds = pause is not None and pause[0] == self.opening
            forged = (
                responds
                and (spoke or start < until)
                and not self.grammar.calls(text, start, until)
                and text.find("<tool_", start, until) < 0  # a call in another dialect counts, too
                and not self.ends_foreign_block.search(text, max(start, until - 50), until)
            )
            if start < until or not forged:
                yield Segment("agent", (start, until))
            spoke = True
            start = pause.end() if pause else end
            if responds:
                border = self.response_ends.search(text, start, end)
                closed = border is not None and border[0] == self.closing
                until = border.start() if border else end
                begin = None if closed else self.agent_begins.search(text, start, until)
                if begin:
                    until = begin.start()
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
        answered = False
        for fields in steps:
            if answered:
                why = "the agent went on after it had answered"
                note_issue(fields, "after_answer", why, fields["spans"]["step"])
            answered = answered or "answer" in fields
        return super().conclude(steps)

    def force_answer(self, step: Step) -> tuple[Step, str] | None:
        """Write a blank line after a call, which stays without response; after a turn without an
        action, the reply to such turns.
        """
        if "call" not in step.spans or any(issue.kind == "call_unclosed" for issue in step.issues):
            return (step, self.no_action_reply) if self.no_action_reply else None
        missing = Issue("response_missing", "no tool response follows the call", step.spans["call"])
        # Issues without a place, of what the whole turn lacks, stand last.
        placed = sum(issue.span is not None for issue in step.issues)
        issues = (*step.issues[:placed], missing, *step.issues[placed:])
        return msgspec.structs.replace(step, issues=issues), "\n\n"
