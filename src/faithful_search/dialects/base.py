"""What a dialect is: how an agent writes its trajectory, and how its environment answers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import msgspec

from ..trajectory import Evidence, Span, Step, ToolCall, Trajectory
from .fence import Fence
from .messages import as_asked, flatten

Message = dict[str, Any]
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
        joins: whether several response blocks in a row are read as one turn's responses.
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
    joins: ClassVar[bool] = False
    marks: ClassVar[Mapping[str, float]] = {}
    signs: ClassVar[Mapping[str, float]] = {}

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
    def parse(self, text: str, *, question: str | None = None) -> Trajectory:
        """Read a whole trajectory, prompt included or not. Linear in the text's length; never raises."""

    def parse_messages(self, messages: Sequence[Mapping[str, Any]], *, question: str | None = None) -> Trajectory:
        """Read a chat: messages with `role` and `content`, or `from` and `value`, prompt included or not.

        The messages' borders are trusted: what stands in a message that is not the agent's never becomes its words.
        The trajectory's `text` is the chat written as ChatML, with such text guarded (`messages`); spans point there.

        Raises:
            DataError: when something in `messages` is not a message.
        """
        text, issues = flatten(messages, self)
        trajectory = self.parse(text, question=question)
        if question is None and trajectory.question:
            trajectory = msgspec.structs.replace(trajectory, question=as_asked(trajectory.question))
        return msgspec.structs.replace(trajectory, issues=(*issues, *trajectory.issues)) if issues else trajectory

    def is_controller(self, text: str) -> bool:
        """Whether a user's message between two turns is no tool response, but a word of whoever steers the agent."""
        return False

    @abstractmethod
    def parse_turn(self, text: str, *, first: bool) -> Step:
        """Read one turn of the model (`first`: no tool response came before).

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

    def response_span(self, observation: str) -> Span:
        """Where the inner text of a rendered tool response is; the whole of one without the response's tags."""
        start, end = observation.find(f"<{self.response_tag}>"), observation.rfind(f"</{self.response_tag}>")
        return (start + len(self.response_tag) + 2, end) if 0 <= start < end else (0, len(observation))

    def render(self, trajectory: Trajectory) -> str:
        """Write a whole trajectory as one text, without chat markup; `parse` reads it back."""
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
