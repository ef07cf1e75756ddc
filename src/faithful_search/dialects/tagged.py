"""What dialects share that append the tool response as raw text inside one assistant message."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import ClassVar, Literal

import msgspec

from ..trajectory import Issue, Step, ToolCall
from .base import Dialect
from .segments import Segment, note_issue
from .turns import Fields, Grammar, skip

MARKS = {
    "search": 2.0, "information": -4.0, "result": -4.0, "search_results": -4.0, "think": 0.5, "answer": 0.5,
    "helpful": -3.0, "ref": -3.0, "tool_call": -3.0, "tool_response": -3.0,
}  # fmt: skip
"""The marks that most of these dialects share; each has the tag of its responses instead."""


def search_grammar(response: str) -> Grammar:
    """Thought, query, response and answer in tags of their own."""
    return Grammar(("think", "search", response, "answer"), "search", response, last_answer_counts=True)


class Tagged(Dialect):
    """Thought, query or answer in tags, and the tool response between `opening` and `closing` behind the query.

    Whatever stands in a tool response is data. Its closing tag may be missing: then it ends where the agent's next tag
    (`speaks`) opens. The text holds no ids: evidence is numbered `E1`, `E2`, … through the trajectory as it comes.

    Attributes:
        speaks: what the agent's text begins with.
        pause: where the agent's text ends: at `opening` (all by default), at the environment's words to the agent, or
            where another episode follows (a group `over`).
        border: where a tool response ends at the latest: its closing tag, or the opening one of another.
        base_prompt: how a prompt without chat markup begins, and what stands in it before and behind the question.
    """

    stop: ClassVar[tuple[str, ...]] = ("</search>", "</answer>")
    observation_role = None
    search_tool: ClassVar[str | None] = "search"
    no_call = ("call_empty", "the query is empty")
    speaks: ClassVar[re.Pattern[str]] = re.compile(r"<(?:think|search|answer)>")
    pause: ClassVar[re.Pattern[str]]
    border: ClassVar[re.Pattern[str]]
    base_prompt: ClassVar[tuple[str, str, str] | None] = None

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "pause" not in vars(cls):
            cls.pause = re.compile(re.escape(cls.opening))
        cls.border = re.compile(f"{re.escape(cls.opening)}|{re.escape(cls.closing)}")

    def split(self, text: str, start: int, end: int, fenced: bool) -> Iterator[Segment]:
        """The agent's text up to `pause`, then the response.

        Where the agent has spoken, and has not searched since, no environment responds: it wrote that itself.
        """
        spoke = False
        while (start := skip(text, start, end)) < end:
            pause = self.pause.search(text, start, end)
            until = pause.start() if pause else end
            responds = pause is not None and pause[0] == self.opening
            forged = responds and (spoke or start < until) and not self._searches(text, start, until)
            if start < until or not forged:
                yield Segment("agent", text, (start, until))
            spoke = True
            start = pause.end() if pause else end
            if responds:
                who: Literal["tool", "forged"] = "forged" if forged else "tool"
                border = self.border.search(text, start, end)
                if border and border[0] == self.closing:
                    yield Segment(who, text, (start, border.start()), fenced)
                    start = border.end()
                else:
                    limit = border.start() if border else end
                    speaks = self.speaks.search(text, start, limit)
                    start, at = speaks.start() if speaks else limit, start
                    yield Segment(who, text, (at, start), fenced, closed=False)
            elif pause and pause.lastgroup == "over":
                yield Segment("prompt", text, pause.span())

    def _searches(self, text: str, start: int, end: int) -> bool:
        """Whether the agent wrote a query in this stretch, closed or not, or a call in another dialect."""
        tags = self.grammar.tag.finditer(text, start, end)
        return any(tag[2] == self.grammar.call for tag in tags) or text.find("<tool_", start, end) >= 0

    def begin_plain(self, text: str) -> tuple[int, str | None]:
        """After the prompt of base checkpoints, whose examples are not the agent's words.

        In a prompt that breaks off the agent has said nothing.
        """
        if self.base_prompt is None or not text.lstrip().startswith(self.base_prompt[0]):
            return 0, None
        _, user, assistant = self.base_prompt
        asked = text.find(user)
        end = text.find(assistant, asked + len(user)) if asked >= 0 else -1
        return (end + len(assistant), text[asked + len(user) : end].strip()) if end >= 0 else (len(text), None)

    def read_call(self, raw: str) -> ToolCall | None:
        """`search(query=…)`: a call is the words of a query."""
        query = raw.strip()
        return ToolCall("search", {"query": query}, raw) if query else None

    def conclude(self, steps: Sequence[Fields]) -> tuple[str | None, str | None]:
        """The last answer of all; turns that come after one are noted."""
        answers = [number for number, fields in enumerate(steps) if "answer" in fields]
        for fields in steps[answers[0] + 1 :] if answers else ():
            note_issue(fields, "after_answer", "the agent went on after it had answered", fields["spans"]["step"])
        return super().conclude(steps)

    def render_turn(self, step: Step) -> str:
        parts = [f"<think>{step.think or ''}</think>"]
        if step.call is not None:
            parts.append(f"<{self.grammar.call}>{query(step.call)}</{self.grammar.call}>")
        if step.answer is not None:
            parts.append(f"<answer>{self.write_answer(step.answer)}</answer>")
        return "\n".join(parts)

    def write_answer(self, answer: str) -> str:
        """What stands between the answer's tags."""
        return answer

    def call_form(self, tools: Sequence[str]) -> str:
        return f"a query between an opening and a closing {self.grammar.call} tag"

    def force_answer(self, step: Step) -> tuple[Step, str] | None:
        """A blank line behind a call, which stays without response; behind any other turn what `on_invalid` says.

        So the answer is a turn of its own to `parse`. `None` where a turn without a call gets no second chance.
        """
        if "call" in step.spans and not any(issue.kind == "call_unclosed" for issue in step.issues):
            missing = Issue("response_missing", "no tool response follows the call", step.spans["call"])
            placed = sum(issue.span is not None for issue in step.issues)  # what the whole turn lacks is noted last
            issues = (*step.issues[:placed], missing, *step.issues[placed:])
            return msgspec.structs.replace(step, issues=issues), "\n\n"
        said = self.on_invalid(step)
        return None if said is None else (step, said)


def query(call: ToolCall) -> str:
    """A call as the words of its query."""
    return call.raw or str(call.arguments.get("query", ""))
