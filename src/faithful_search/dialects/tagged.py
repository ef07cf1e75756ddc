"""What dialects share that append the tool response as raw text inside one assistant message."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Sequence
from functools import cached_property
from itertools import islice
from typing import Any, ClassVar

import msgspec

from ..trajectory import Evidence, Issue, Span, Step, ToolCall, Trajectory
from .base import Dialect
from .turns import MOST_STEPS, Grammar, TurnReader, episode_start, skip, too_many_turns


class SearchReader(TurnReader):
    """A turn whose call is the words of a query."""

    def read_call(self, raw: str, span: Span) -> ToolCall | None:
        """`search(query=…)`, or an issue when there are no words."""
        query = raw.strip()
        if not query:
            self.issue("call_empty", "the query is empty", span)
            return None
        return ToolCall("search", {"query": query}, raw)


class Tagged(Dialect):
    """Thought, query or answer in tags, and the tool response between `opening` and `closing` behind the query.

    Whatever stands in a tool response is data. Its closing tag may be missing: then it ends where the agent's next tag
    (`speaks`) opens. The text holds no ids: evidence is numbered `E1`, `E2`, … through the trajectory as it comes.

    Attributes:
        grammar: the tags.
        reader: reads the agent's own text.
        opening, closing: what encloses a tool response.
        speaks: what the agent's text begins with.
        pause: where the agent's text ends: at `opening`, at the environment's words to the agent, or where another
            episode follows (a group `over`).
    """

    observation_role: ClassVar[str | None] = None
    search_tool: ClassVar[str | None] = "search"
    grammar: ClassVar[Grammar]
    reader: ClassVar[type[TurnReader]] = SearchReader
    opening: ClassVar[str]
    closing: ClassVar[str]
    speaks: ClassVar[re.Pattern[str]]
    pause: ClassVar[re.Pattern[str]]

    @cached_property
    def border(self) -> re.Pattern[str]:
        """Finds where a tool response ends at the latest: its closing tag, or the opening one of another."""
        return re.compile(f"{re.escape(self.opening)}|{re.escape(self.closing)}")

    @abstractmethod
    def documents(self, body: str) -> list[tuple[str, str]] | str:
        """Titles and texts of what a tool response holds; its text as a note where there are none."""

    def begin(self, text: str) -> tuple[int, str | None]:
        """Where the agent's first turn begins, and the question of the prompt before it."""
        return episode_start(text, self.opening)

    def parse(self, text: str, *, question: str | None = None) -> Trajectory:
        """Read a trajectory, prompt included or not. The last answer of all is the trajectory's."""
        at, asked = self.begin(text)
        turns: list[dict[str, Any]] = []
        issues: tuple[Issue, ...] = ()
        found = 0
        while (at := skip(text, at)) < len(text) and not issues:
            pause = self.pause.search(text, at)
            end = pause.start() if pause else len(text)
            turns += islice(self.reader(text, at, end, self.grammar).turns(), MOST_STEPS + 1 - len(turns))
            at = pause.end() if pause else end
            if pause and pause[0] == self.opening:
                at = self._response(text, at, turns[-1], found)
                found += len(turns[-1].get("evidence", ()))
            issues = _the_end(turns, pause)
        steps = tuple(Step(**fields) for fields in _after_answer(turns[:MOST_STEPS]))
        answer = next((step.answer for step in reversed(steps) if step.answer is not None), None)
        ended = "answered" if steps and steps[-1].answer is not None else None
        asked = asked if question is None else question
        return Trajectory(steps, asked, answer, ended, self.name, text=text, issues=issues)

    def parse_turn(self, text: str, *, first: bool) -> Step:
        """Read one turn; `first` makes no difference here. Spans point into `text`."""
        return Step(**self.reader(text, skip(text, 0), len(text), self.grammar).read())

    def render_turn(self, step: Step) -> str:
        """Write one turn."""
        parts = [f"<think>{step.think or ''}</think>"]
        if step.call is not None:
            parts.append(f"<{self.grammar.call}>{query(step.call)}</{self.grammar.call}>")
        if step.answer is not None:
            parts.append(f"<answer>{self.answer_text(step.answer)}</answer>")
        return "\n".join(parts)

    def answer_text(self, answer: str) -> str:
        """What stands between the answer's tags."""
        return answer

    def call_form(self, tools: Sequence[str]) -> str:
        """The words of a query; there is one tool, and nothing else to write."""
        return f"a query between an opening and a closing {self.grammar.call} tag"

    def force_answer(self, step: Step) -> tuple[Step, str] | None:
        """A blank line behind a call, which stays without response; behind any other turn what `on_invalid` says.

        So the answer is a turn of its own to `parse`. `None` where a turn without a call gets no second chance.
        """
        if "call" in step.spans and not any(issue.kind == "call_unclosed" for issue in step.issues):
            return _without_response(step), "\n\n"
        said = self.on_invalid(step)
        return None if said is None else (step, said)

    def _response(self, text: str, start: int, fields: dict[str, Any], found: int) -> int:
        """Put the tool response that begins at `start` into the step's fields; returns where it ends."""
        end, next_at = self._response_end(text, start)
        issues = list(fields["issues"])
        if end == next_at:
            issues.append(Issue("response_unclosed", "the tool response is cut off", (start, end)))
        if "call" not in fields["spans"]:
            issues.append(Issue("response_unasked", "a tool response to a turn that did not search", (start, end)))
        fields["issues"] = tuple(issues)
        fields["spans"]["response"] = (start, end)
        documents = self.documents(text[start:end])
        if isinstance(documents, str):
            fields["note"] = documents
        else:
            numbered = enumerate(documents, start=found + 1)
            fields["evidence"] = tuple([Evidence(body, title, f"E{k}") for k, (title, body) in numbered])
        return next_at

    def _response_end(self, text: str, start: int) -> tuple[int, int]:
        """Where the response ends and the agent goes on; without a closing tag both are where its next tag opens."""
        border = self.border.search(text, start)
        if border is not None and border[0] == self.closing:
            return border.span()
        limit = border.start() if border is not None else len(text)
        speaks = self.speaks.search(text, start, limit)
        end = speaks.start() if speaks else limit
        return end, end


def query(call: ToolCall) -> str:
    """A call as the words of its query."""
    return call.raw or str(call.arguments.get("query", ""))


def _without_response(step: Step) -> Step:
    """The step with the issue that `TurnReader.turns` notes when the agent goes on, where it notes it."""
    missing = Issue("response_missing", "no tool response follows the call", step.spans["call"])
    placed = sum(issue.span is not None for issue in step.issues)  # what the whole turn lacks is noted at its end
    return msgspec.structs.replace(step, issues=(*step.issues[:placed], missing, *step.issues[placed:]))


def plain_prompt(text: str, user: str, assistant: str) -> tuple[int, str | None]:
    """Where the agent begins behind a prompt that is no chat: after `assistant`; before it, after `user`, the question.

    A prompt that breaks off holds nothing of the agent's.
    """
    asked = text.find(user)
    end = text.find(assistant, asked + len(user)) if asked >= 0 else -1
    return (end + len(assistant), text[asked + len(user) : end].strip()) if end >= 0 else (len(text), None)


def _the_end(turns: list[dict[str, Any]], pause: re.Match[str] | None) -> tuple[Issue, ...]:
    """Why the rest of the text is not read, if so."""
    if len(turns) > MOST_STEPS:
        return (too_many_turns(),)
    if pause and pause.lastgroup == "over":
        return (Issue("another_episode", "another prompt stands in the text; what follows is not read", pause.span()),)
    return ()


def _after_answer(turns: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The turns, those marked that come after an answer."""
    answered = False
    for fields in turns:
        if answered:
            why = "the agent went on after it had answered"
            fields["issues"] = (*fields["issues"], Issue("after_answer", why, fields["spans"]["step"]))
        answered = answered or "answer" in fields
    return turns
