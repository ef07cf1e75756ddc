"""What a dialect is: how an agent writes its trajectory, and how its environment answers."""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import msgspec

from ..trajectory import Evidence, Span, Step, ToolCall, Trajectory
from .fence import Fence
from .segments import Segment, of_chat, trajectory_of
from .turns import Fields, Grammar, TurnReader, episode_start, skip

LAST_CALL = "This call was not run: no further call can be made. Give the final answer now."
"""The response to a call in the last turn of an agent that is then made to answer."""


class Dialect(ABC):
    """One way of writing trajectories. Stateless; a subclass in `dialects/<name>.py` is found by its file's name.

    Attributes:
        name: the file's name.
        system: the system message that opens an episode, or nothing. `{tools}` in it stands for the tools' schemas.
        ask: the user message, with `{question}`, and with `{tools}` where they stand here.
        stop: strings that end a turn of the model (kept in its text).
        frame: what the environment writes before and behind the inner text of a tool response. Without the blanks
            around them these are its `opening` and its `closing` tag.
        observation_role: chat role under which a tool response returns, or `None` when it is appended as raw text
            inside the same assistant turn.
        fence: makes retrieved text harmless inside this dialect, reversibly.
        grammar: the tags of a turn.
        reader: takes apart a turn that is not well formed.
        no_call: kind of the issue, and why, where `read_call` finds none.
        search_tool: name that all calls of a dialect carry which can only search; `None` where calls name a tool.
        tool_names: what a dialect's agents call our tools, where that is not the tool's own name.
        thinks: whether the protocol asks for a thought in every turn.
        parallel: whether one turn may hold several calls, each with a response block of its own.
        verifies: whether the agent can be asked to check the answer it gave (`Step.verified`).
        marks: names of tags with their weight as a sign of this dialect, negative against it (`detect` sums them).
        signs: regular expressions with their weight, for what tags cannot tell: names of tools in calls, how a tool
            response begins, words of the prompt. `detect` shows them no more than a response's beginning; anchor what
            concerns calls and responses at the opening tag. Only bounded repetition.
    """

    name: ClassVar[str]
    system: ClassVar[str] = ""
    ask: ClassVar[str] = "{question}"
    stop: ClassVar[tuple[str, ...]]
    frame: ClassVar[tuple[str, str]]
    opening: ClassVar[str]
    closing: ClassVar[str]
    observation_role: ClassVar[str | None]
    fence: ClassVar[Fence]
    grammar: ClassVar[Grammar]
    reader: ClassVar[type[TurnReader]] = TurnReader
    no_call: ClassVar[tuple[str, str]]
    search_tool: ClassVar[str | None] = None
    tool_names: ClassVar[Mapping[str, str]] = {}
    thinks: ClassVar[bool] = True
    parallel: ClassVar[bool] = False
    verifies: ClassVar[bool] = False
    marks: ClassVar[Mapping[str, float]] = {}
    signs: ClassVar[Mapping[str, float]] = {}

    def __init_subclass__(cls) -> None:
        cls.name = cls.__module__.rpartition(".")[2]
        if "frame" in vars(cls):
            cls.opening, cls.closing = (part.strip() for part in cls.frame)

    @property
    def answer_opening(self) -> str | None:
        """What opens an answer, for an environment that makes the agent give one (`force_answer`).

        `None` where an answer has no tag of its own: such an agent cannot be made to answer.
        """
        return "<answer>" if "</answer>" in self.stop else None

    @abstractmethod
    def split(self, text: str, start: int, end: int, fenced: bool) -> Iterator[Segment]:
        """Cut this stretch of a text, which the agent begins, into segments. Linear in its length; never raises."""

    @abstractmethod
    def read_call(self, raw: str) -> ToolCall | None:
        """The call that stands between the tags, or `None`."""

    def evident_call(self, raw: str) -> ToolCall | None:
        """The call of a text that `read_call` refuses and that can only be this call; its issue stays."""
        return None

    @abstractmethod
    def read_body(self, body: str, fenced: bool) -> tuple[list[Evidence], str]:
        """The evidence in a tool response's inner text, or the note, both as they are written there.

        Evidence has no id where the text gives none.
        """

    @abstractmethod
    def write_body(self, evidence: Sequence[Evidence], escape: Callable[[str], str]) -> str:
        """The inner text of a tool response with evidence; `escape` fences what was retrieved."""

    def write_note(self, note: str) -> str:
        """The inner text of a tool response without evidence; `note` is fenced already."""
        return note

    @abstractmethod
    def render_turn(self, step: Step) -> str:
        """Write one turn of the model; `parse_turn` reads it back."""

    # Writing

    def prompt(self, question: str, tools: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """The chat messages that open an episode, made of `system` and `ask`.

        `tools` are JSON schemas of functions, as `get_json_schema` gives them.
        """
        schemas = self.write_tools(tools)
        before, _, behind = (part.replace("{tools}", schemas) for part in self.ask.partition("{question}"))
        messages = [{"role": "user", "content": f"{before}{question}{behind}"}]
        if self.system:
            messages.insert(0, {"role": "system", "content": self.system.replace("{tools}", schemas)})
        return messages

    def write_tools(self, tools: Sequence[dict[str, Any]]) -> str:
        """The tools' schemas as they stand in the prompt: compact JSON, one a line."""
        return "\n".join(json.dumps(tool, ensure_ascii=False, separators=(",", ":")) for tool in tools)

    def render_observation(self, evidence: Sequence[Evidence], note: str = "", fence: Fence | None = None) -> str:
        """Write a tool response; the note only when there is no evidence.

        Titles, texts and the note are fenced; `fence` (default: the class's) may forbid more strings.
        """
        escape = (fence or self.fence).escape
        body = self.write_body(evidence, escape) if evidence else self.write_note(escape(note))
        return f"{self.frame[0]}{body}{self.frame[1]}"

    def response_span(self, observation: str) -> Span:
        """Where the inner text of a rendered tool response is; all of a text without the response's tags."""
        start, end = observation.find(self.opening), observation.rfind(self.closing)
        return (start + len(self.opening), end) if 0 <= start < end else (0, len(observation))

    def render(self, trajectory: Trajectory) -> str:
        """Write a whole trajectory as one text, without chat markup; `parse` with `fenced` reads it back."""
        parts: list[str] = []
        for number, step in enumerate(trajectory.steps, start=1):
            parts.append(self.render_turn(step))
            if step.call is not None:
                parts.append(self.render_observation(step.evidence, step.note))
            elif step.answer is None and number < len(trajectory.steps):
                parts.append(self.on_invalid(step) or "")
        return "".join(parts)

    # Reading

    def parse(self, text: str, *, question: str | None = None, fenced: bool = False) -> Trajectory:
        """Read a whole trajectory, prompt included or not. Linear in the text's length; never raises.

        Whatever stands in a tool response is data. With `fenced` the responses are our own engine's (`render`,
        `render_observation`), and escaping in them is undone; in any other text nothing is unescaped.
        """
        start, asked = self.begin(text)
        segments = self.split(text, start, len(text), fenced)
        return trajectory_of(self, text, segments, asked if question is None else question)

    def parse_messages(
        self, messages: Sequence[Mapping[str, Any]], *, question: str | None = None, fenced: bool = False
    ) -> Trajectory:
        """Read a chat, of messages as `formats.messages` knows them, prompt included or not.

        The messages' borders are trusted: what stands in a message that is not the agent's never becomes its words. A
        response inside the agent's message is its own invention, unless no message brings any. The trajectory's `text`
        is the chat written as ChatML; spans point there. `fenced` as in `parse`.

        Raises:
            DataError: when something in `messages` is not a message.
        """
        text, segments, asked, issues = of_chat(self, messages, fenced)
        if question is None:
            question = asked and self.asked_in(asked)
        return trajectory_of(self, text, segments, question, issues)

    def parse_turn(self, text: str, *, first: bool) -> Step:
        """Read one turn of the model (`first`: no tool response came before). Spans point into `text`.

        `parse` of a rendered trajectory gives equal steps.
        """
        start, end = skip(text, 0), len(text)
        plain = self.read_plain(text, start, end, first)
        return Step(**(plain or self.reader(text, start, end, self, first).read()))

    def read_turns(self, text: str, start: int, end: int, first: bool) -> Iterable[Fields]:
        """The fields of the steps that the agent wrote in this stretch, one at least."""
        plain = self.read_plain(text, start, end, first)
        return self.reader(text, start, end, self, first).turns() if plain is None else (plain,)

    def read_plain(self, text: str, start: int, end: int, first: bool) -> Fields | None:
        """The fields of a well-formed turn, as most are; `None` for any other.

        Equal to what `reader` makes of it, in a fraction of the time.
        """
        turn = self.grammar.turn.fullmatch(text, start, end)
        return self.fields_of(turn, first) if turn else None

    def fields_of(self, turn: re.Match[str], first: bool) -> Fields | None:
        """The fields of the turn that `Grammar.turn` matched; `None` where its call or answer cannot be read."""
        think, act, said = turn.group("think", "act", "said")
        spans = {"think": turn.span("think")}
        fields: Fields = {"think": think, "spans": spans}
        if act != "answer":
            call = fields["call"] = self.read_call(said)
            if call is None:
                return None
            spans["call"] = turn.span("said")
        else:
            answer = self.find_answer(turn.string, turn.span("said"))
            if answer is None:
                return None
            spans["answer"] = answer
            fields["answer"] = turn.string[slice(*answer)].strip()
        spans["step"] = turn.span("step")
        return fields

    def find_answer(self, text: str, span: Span) -> Span | None:
        """Where in an answer's block the answer itself is; `None` where it is not written as it should be."""
        return span

    def read_response(self, segment: Segment) -> tuple[list[Evidence], str]:
        """As `read_body` reads it; line breaks that belong to the `frame` are not part of the text."""
        text, (start, end) = segment.text, segment.span
        before, behind = self.frame
        if text.startswith(self.opening, start - len(self.opening)):
            if before[-1] == "\n" and text.startswith("\n", start, end):
                start += 1
            if behind[0] == "\n" and text.endswith("\n", start, end):
                end -= 1
        return self.read_body(text[start:end], segment.fenced)

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
        """Whether a user's message between two turns comes from a controller, and is not a tool response."""
        return False

    def conclude(self, steps: Sequence[Fields]) -> tuple[str | None, str | None]:
        """The trajectory's answer, here the last one given, and its `stop_reason`."""
        answer = next((step["answer"] for step in reversed(steps) if "answer" in step), None)
        return answer, "answered" if steps and "answer" in steps[-1] else None

    # For an agent that acts

    def call_form(self, tools: Sequence[str]) -> str:
        """How a call is written, for an agent whose call could not be read; empty where there is no form.

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

    def controller(self, steps: Sequence[Step], verify: bool = False) -> str | None:
        """What the environment says after the last of these turns, which called no tool; `None` ends the episode.

        `verify`: an answer is to be checked by the agent before it counts.
        """
        return None if steps[-1].answer is not None else self.on_invalid(steps[-1])

    def force_answer(self, step: Step) -> tuple[Step, str] | None:
        """Make an agent answer whose last turn gave no answer: what stands before `answer_opening`.

        Returns the step as `parse` will read it, and what the environment writes behind it: here the response to its
        call, a note that there are no more calls. `None` ends the episode: the turn called nothing, or its call is not
        closed, which a dialect with turns of the chat's own cannot answer.
        """
        if "call" not in step.spans or any(issue.kind == "call_unclosed" for issue in step.issues):
            return None
        return msgspec.structs.replace(step, note=LAST_CALL), self.render_observation((), LAST_CALL)
