"""What a dialect is: how an agent writes its trajectory, and how its environment answers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, ClassVar

import msgspec
from msgspec.structs import force_setattr

from ..trajectory import Evidence, Issue, Span, Step, ToolCall, Trajectory
from .fence import Fence, unescape
from .segments import Borders, Segment, read_chat
from .turns import MOST_STEPS, episode_start, skip

Message = dict[str, Any]
Fields = dict[str, Any]
"""The fields of a step while it is read; it has `spans`."""
LAST_CALL = "This call was not run: no further call can be made. Give the final answer now."
"""What an agent reads that calls a tool in its last turn and is then made to answer."""


class Dialect(ABC):
    """One way of writing trajectories. Stateless; a subclass in `dialects/<name>.py` is found by its file's name.

    Attributes:
        name: the file's name.
        stop: strings that end a turn of the model (kept in its text).
        observation_role: chat role under which a tool response returns, or `None` when it is appended as raw text
            inside the same assistant turn.
        response_tag: name of the tag that encloses a tool response.
        fence: makes retrieved text harmless inside this dialect, reversibly.
        search_tool: name that all calls of a dialect carry which can only search; `None` where calls name a tool.
        tool_names: what a dialect's agents call our tools, where that is not the tool's own name.
        thinks: whether the protocol asks for a thought in every turn.
        parallel: whether one turn may hold several calls, each with a response block of its own.
        marks: names of tags with their weight as a sign of this dialect, negative against it (`detect` sums them).
        signs: regular expressions with their weight, for what tags cannot tell: names of tools in calls, how a tool
            response begins, words of the prompt. `detect` shows them no more than a response's beginning; anchor what
            concerns calls and responses at the opening tag. Only bounded repetition.
    """

    name: ClassVar[str]
    stop: ClassVar[tuple[str, ...]]
    observation_role: ClassVar[str | None]
    response_tag: ClassVar[str]
    fence: ClassVar[Fence]
    search_tool: ClassVar[str | None] = None
    tool_names: ClassVar[Mapping[str, str]] = {}
    thinks: ClassVar[bool] = True
    parallel: ClassVar[bool] = False
    marks: ClassVar[Mapping[str, float]] = {}
    signs: ClassVar[Mapping[str, float]] = {}

    @property
    def opening(self) -> str:
        """What opens a tool response."""
        return f"<{self.response_tag}>"

    @property
    def closing(self) -> str:
        """What closes a tool response."""
        return f"</{self.response_tag}>"

    @property
    def answer_opening(self) -> str | None:
        """What opens an answer, for an environment that makes the agent give one (`force_answer`).

        `None` where an answer has no tag of its own: such an agent cannot be made to answer.
        """
        return "<answer>" if "</answer>" in self.stop else None

    @abstractmethod
    def prompt(self, question: str, tools: Sequence[dict[str, Any]]) -> list[Message]:
        """The chat messages that open an episode.

        `tools` are JSON schemas of functions, as `get_json_schema` gives them.
        """

    @abstractmethod
    def split(self, text: str, start: int, end: int, fenced: bool) -> Iterator[Segment]:
        """Cut this stretch of a text, which the agent begins, into segments. Linear in its length; never raises."""

    @abstractmethod
    def read_turns(self, text: str, start: int, end: int, first: bool) -> Iterable[Fields]:
        """The fields of the steps that the agent wrote in this stretch, one at least.

        `first`: no tool response came before.
        """

    @abstractmethod
    def read_response(self, segment: Segment) -> tuple[list[Evidence], str]:
        """The evidence in a tool response and the note where there is none, as they are written there.

        Evidence has no id where the text gives none.
        """

    @abstractmethod
    def parse_turn(self, text: str, *, first: bool) -> Step:
        """Read one turn of the model (`first`: no tool response came before). Spans point into `text`.

        `parse` of a rendered trajectory gives equal steps.
        """

    @abstractmethod
    def render_turn(self, step: Step) -> str:
        """Write one turn of the model; `parse_turn` reads it back."""

    @abstractmethod
    def render_observation(self, evidence: Sequence[Evidence], note: str = "", fence: Fence | None = None) -> str:
        """Write a tool response.

        Titles, texts and the note are fenced; `fence` (default: the class's) may forbid more strings.
        """

    def parse(self, text: str, *, question: str | None = None, fenced: bool = False) -> Trajectory:
        """Read a whole trajectory, prompt included or not. Linear in the text's length; never raises.

        Whatever stands in a tool response is data. With `fenced` the responses are our own engine's (`render`,
        `render_observation`), and what was escaped in them is given back; of any other text nothing is unescaped.
        """
        start, asked = self.begin(text)
        return self._read(text, self.split(text, start, len(text), fenced), asked if question is None else question)

    def parse_messages(
        self, messages: Sequence[Mapping[str, Any]], *, question: str | None = None, fenced: bool = False
    ) -> Trajectory:
        """Read a chat: messages with `role` and `content`, or `from` and `value`, prompt included or not.

        The messages' borders are trusted: what stands in a message that is not the agent's never becomes its words. A
        response inside the agent's message is its own invention, unless no message brings any. The trajectory's `text`
        is the chat written as ChatML; spans point there. `fenced` as in `parse`.

        Raises:
            DataError: when something in `messages` is not a message.
        """
        borders = Borders(self.opening, self.closing, self.parallel)
        chat = read_chat(messages, borders, self.is_controller, fenced)
        segments: list[Segment] = []
        for segment in chat.segments:
            start, end = segment.span
            if segment.who != "agent":
                segments.append(segment)
            elif chat.inline:
                segments += self.split(chat.text, start, end, fenced)
            else:
                segments.append(segment._replace(span=(skip(chat.text, start, end), end)))
        if question is None and chat.asked is not None:
            question = self.asked_in(chat.asked)
        return self._read(chat.text, segments, question, chat.issues)

    def begin(self, text: str) -> tuple[int, str | None]:
        """Where the agent's first turn begins, and the question of the prompt before it."""
        at, message = episode_start(text, self.opening)
        if at or message is not None:
            return at, message and self.asked_in(message)
        return self.begin_plain(text)

    def begin_plain(self, text: str) -> tuple[int, str | None]:
        """The same where no prompt in chat markup precedes the agent's text."""
        return 0, None

    def asked_in(self, message: str) -> str:
        """The question in the prompt's user message."""
        return message

    def is_controller(self, text: str) -> bool:
        """Whether a user's message between two turns is no tool response, but a word of whoever steers the agent."""
        return False

    def conclude(self, steps: Sequence[Fields]) -> tuple[str | None, str | None]:
        """The trajectory's answer, here the last one given, and its `stop_reason`."""
        answer = next((step["answer"] for step in reversed(steps) if "answer" in step), None)
        return answer, "answered" if steps and "answer" in steps[-1] else None

    def _read(
        self, text: str, segments: Iterable[Segment], question: str | None, issues: tuple[Issue, ...] = ()
    ) -> Trajectory:
        """The one loop in which segments become steps."""
        steps: list[Fields] = []
        turn: list[Fields] = []
        received: list[Segment] = []
        found, first = 0, True
        for segment in segments:
            if segment.who == "tool":
                if not steps:
                    begins = segment.span[0]
                    steps = turn = [{"spans": {"step": (begins, begins)}}]
                received.append(segment)
                continue
            if received:
                found = self._receive(turn, received, found)
                received, first = [], False
            if segment.who == "prompt":
                why = "another prompt stands in the text; what follows is not read"
                issues = (*issues, Issue("another_episode", why, segment.span))
                break
            if segment.who == "agent":
                start, end = segment.span
                turn = list(islice(self.read_turns(text, start, end, first), MOST_STEPS + 1 - len(steps)))
                steps += turn
                if len(steps) > MOST_STEPS:
                    why = f"more than {MOST_STEPS} turns; the rest is not read"
                    issues = (*issues, Issue("turns_many", why, (start, len(text))))
                    break
        if received:
            self._receive(turn, received, found)
        del steps[MOST_STEPS:]
        answer, ended = self.conclude(steps)
        read = tuple([Step(**fields) for fields in steps])
        return Trajectory(read, question, answer, ended, self.name, text=text, issues=issues)

    def _receive(self, turn: list[Fields], received: list[Segment], found: int) -> int:
        """Give each call its response, all further ones to the last; returns how much evidence there is by now.

        A stretch of several turns that are not parallel calls was answered at its end.
        """
        asks = [fields for fields in (turn if self.parallel else turn[-1:]) if "call" in fields["spans"]]
        if not asks:
            _add_issue(turn[-1], "response_unasked", "a tool response to a turn without a call", received[0].span)
        if len(received) < len(asks):
            _add_issue(asks[-1], "response_missing", f"{len(asks)} calls, {len(received)} responses")
        takers = asks or turn[-1:]
        for place, fields in enumerate(takers[: len(received)], start=1):
            own = received[place - 1 : place] if place < len(takers) else received[place - 1 :]
            evidence: list[Evidence] = []
            notes: list[str] = []
            for segment in own:
                items, note = self.read_response(segment)
                if segment.fenced:
                    note = unescape(note)
                    items = [_unfenced(item) for item in items]
                evidence += items
                if note:
                    notes.append(note)
                if not segment.closed:
                    _add_issue(fields, "response_unclosed", "the tool response is not closed", segment.span)
            for item in evidence:
                found += 1
                if not item.id:
                    force_setattr(item, "id", f"E{found}")  # frozen, but nobody has seen it yet
            fields["evidence"] = tuple(evidence)
            fields["note"] = "\n".join(notes)
            fields["spans"]["response"] = (own[0].span[0], own[-1].span[1])
        return found

    def response_span(self, observation: str) -> Span:
        """Where the inner text of a rendered tool response is; the whole of one without the response's tags."""
        start, end = observation.find(self.opening), observation.rfind(self.closing)
        return (start + len(self.opening), end) if 0 <= start < end else (0, len(observation))

    def render(self, trajectory: Trajectory) -> str:
        """Write a whole trajectory as one text, without chat markup; `parse` with `fenced` reads it back."""
        parts: list[str] = []
        for step in trajectory.steps:
            parts.append(self.render_turn(step))
            if step.call is not None:
                parts.append(self.render_observation(step.evidence, step.note))
        return "".join(parts)

    def call_form(self, tools: Sequence[str]) -> str:
        """How a call is written, in words for an agent whose call could not be read; empty where there is no form.

        Without tags: in a tool response they would be fenced.
        """
        return ""

    def repair_call(self, raw: str) -> ToolCall | None:
        """The call that this text, which `parse_turn` could not read as one, was evidently meant to be.

        For an agent that acts; what is read later, to judge it, is never repaired. Never raises, and fast whatever the
        text. `None` where nothing is evident, and in dialects whose calls have no form to miss.
        """
        return None

    def on_invalid(self, step: Step) -> str | None:
        """What the environment says to a turn with neither call nor answer; `None` ends the episode."""
        return None

    def force_answer(self, step: Step) -> tuple[Step, str] | None:
        """Make an agent answer whose last turn gave no answer: what stands before `answer_opening`.

        Returns the step as `parse` will read it, and what the environment writes behind it: here the response to its
        call, a note that there are no more calls. `None` ends the episode: the turn called nothing, or its call is not
        closed, which a dialect with turns of the chat's own cannot answer.
        """
        if "call" not in step.spans or any(issue.kind == "call_unclosed" for issue in step.issues):
            return None
        return msgspec.structs.replace(step, note=LAST_CALL), self.render_observation((), LAST_CALL)


def _add_issue(fields: Fields, kind: str, why: str, span: Span | None = None) -> None:
    fields["issues"] = (*fields.get("issues", ()), Issue(kind, why, span))


def _unfenced(item: Evidence) -> Evidence:
    return Evidence(unescape(item.text), unescape(item.title), item.id, url=unescape(item.url))
