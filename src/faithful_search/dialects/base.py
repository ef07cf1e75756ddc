"""What a dialect is: how an agent writes its trajectory, and how its environment answers."""

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.resources import files
from typing import Any, ClassVar

import msgspec

from ..trajectory import Evidence, Span, Step, ToolCall, Trajectory
from .fence import Fence, spelled, tags
from .segments import Segment, episode_start, of_chat, trajectory_of
from .turns import Fields, Grammar, TurnReader, skip

# The response to a call in the last turn of an agent that is then made to answer.
LAST_CALL = "This call was not run: no further call can be made. Give the final answer now."
_NEVER = re.compile("(?!)")


def prompt_file(name: str) -> str:
    """The text of `prompts/<name>.md`."""
    return (files(__package__) / "prompts" / f"{name}.md").read_text("utf-8").removesuffix("\n")


class Dialect(ABC):
    """One way of writing trajectories. Stateless; a subclass in `dialects/<name>.py` is found by its file's name."""

    name: ClassVar[str]  # the file's
    system: ClassVar[str] = (
        ""  # the message that opens an episode; `{tools}` stands for the tools' schemas
    )
    ask: ClassVar[str] = "{question}"  # the user message, with `{tools}` where they stand here
    asked: ClassVar[re.Pattern[str] | None] = (
        None  # finds the question in that message, as group 1, if it has more
    )
    bare_prompt: ClassVar[re.Pattern[str]] = (
        _NEVER  # a prompt without chat markup, with the question as group 1
    )
    stop: ClassVar[tuple[str, ...]]  # strings that end a turn of the model (kept in its text)
    grammar: ClassVar[Grammar]  # the tags of a turn
    reader: ClassVar[type[TurnReader]] = TurnReader  # takes apart a turn that is not well formed
    joint: ClassVar[str] = "\n"  # what stands between thought, call and answer
    no_call: ClassVar[tuple[str, str]]  # kind of the issue, and why, where `read_call` finds none
    # What the environment writes before and behind the inner text of a tool response. Without the blanks around them
    # these are its `opening` and its `closing` tag.
    frame: ClassVar[tuple[str, str]]
    opening: ClassVar[str]
    closing: ClassVar[str]
    # The chat role under which a tool response returns; `None`: it is appended as raw text in the same assistant turn.
    observation_role: ClassVar[str | None]
    prose: ClassVar[bool] = (
        False  # whether a response in prose is a passage, in texts that our engine did not write
    )
    fence: ClassVar[
        Fence
    ]  # keeps the grammar's tags, `<|` and what is forbidden out of retrieved text, reversibly
    forbidden: ClassVar[str] = ""  # a pattern
    search_tool: ClassVar[str | None] = None  # the name of all calls where agents can only search
    tool_names: ClassVar[
        Mapping[str, str]
    ] = {}  # what its agents call our tools, where that is another name
    thinks: ClassVar[bool] = True  # whether the protocol asks for a thought in every turn
    parallel: ClassVar[bool] = (
        False  # whether one turn may hold several calls, each with a response of its own
    )
    verifies: ClassVar[bool] = (
        False  # whether the agent can be asked to check its answer (`Step.verified`)
    )
    steers: ClassVar[re.Pattern[str]] = (
        _NEVER  # finds a controller's words in a user's message between turns
    )
    # What opens an answer, for an environment that makes the agent give one; `None`: it has no tag, and nobody can.
    answer_opening: ClassVar[str | None] = "<answer>"
    invalid: ClassVar[str | None] = (
        None  # what is said to a turn with neither call nor answer; `None` ends the episode
    )
    # Signs of this dialect with their weights, negative against it; `detect` sums those that occur. `marks` are names
    # of tags; `signs` are patterns for what tags cannot tell: names of tools in calls, how a tool response begins (all
    # that is shown of one), words of the prompt. Anchor them at the opening tag, and bound all repetition.
    marks: ClassVar[Mapping[str, float]] = {}
    signs: ClassVar[Mapping[str, float]] = {}

    def __init_subclass__(cls) -> None:
        cls.name = cls.__module__.rpartition(".")[2]
        if "frame" in vars(cls):
            cls.opening, cls.closing = (part.strip() for part in cls.frame)
        if hasattr(cls, "grammar"):
            names = dict.fromkeys((*cls.grammar.names, "answer"))
            cls.fence = Fence("|".join(filter(None, (tags(*names), r"<\|", cls.forbidden))))

    # What each dialect or its family says

    @abstractmethod
    def split(self, text: str, start: int, end: int) -> Iterator[Segment]:
        """Cut this stretch of a text, which the agent begins, into segments. Linear in its length; never raises."""

    @abstractmethod
    def read_call(self, raw: str) -> ToolCall | None:
        """The call that stands between the tags, or `None`."""

    @abstractmethod
    def write_call(self, call: ToolCall) -> str:
        """What stands between the tags of a call."""

    @abstractmethod
    def call_form(self, tools: Sequence[str]) -> str:
        """How a call is written, for an agent whose call could not be read; without tags, which would be fenced."""

    @abstractmethod
    def read_body(self, body: str) -> tuple[list[Evidence], str]:
        """The evidence in a tool response's inner text, without ids where it gives none, or the note; as written."""

    @abstractmethod
    def write_body(self, evidence: Sequence[Evidence]) -> str:
        """The inner text of a tool response with evidence, which is `fenced`."""

    def write_note(self, note: str) -> str:
        """The inner text of a tool response without evidence; `note` is fenced already."""
        return note

    def fenced(self, item: Evidence, escape: Callable[[str], str]) -> Evidence:
        """Evidence as `write_body` gets it."""
        return Evidence(escape(item.text), escape(item.title), item.id, url=escape(item.url))

    def find_answer(self, text: str, span: Span) -> Span | None:
        """Where in an answer's block the answer itself is; `None` where it is not written as it should be."""
        return span

    def write_answer(self, answer: str) -> str:
        """How a turn ends that answers."""
        return f"<answer>{answer}</answer>"

    def write_think(self, step: Step) -> str:
        """What stands between the tags of a thought."""
        return step.think or ""

    def evident_call(self, raw: str) -> ToolCall | None:
        """The call of a text that `read_call` refuses and that can only be this call; its issue stays."""
        return None

    def repair_call(self, raw: str) -> ToolCall | None:
        """The call that a text, which `parse_turn` could not read as one, was evidently meant to be, if any.

        For an agent that acts; what is read later, to judge it, is never repaired. Never raises, and is always fast.
        """
        return None

    def conclude(self, steps: Sequence[Fields]) -> tuple[str | None, str | None]:
        """The trajectory's answer, here the last one given, and its `stop_reason`."""
        answer = next((step["answer"] for step in reversed(steps) if "answer" in step), None)
        return answer, "answered" if steps and "answer" in steps[-1] else None

    def controller(self, steps: Sequence[Step], verify: bool = False) -> str | None:
        """What the environment says after the last of these turns, which called no tool; `None` ends the episode.

        `verify`: an answer is to be checked by the agent before it counts.
        """
        return None if steps[-1].answer is not None else self.invalid

    def force_answer(self, step: Step) -> tuple[Step, str] | None:
        """Make an agent answer whose last turn gave no answer.

        Returns the step as `parse` will read it, and what the environment writes between it and `answer_opening`: here
        a response to its call. `None` ends the episode: the turn called nothing, or its call is not closed.
        """
        if "call" not in step.spans or any(issue.kind == "call_unclosed" for issue in step.issues):
            return None
        return msgspec.structs.replace(step, note=LAST_CALL), self.render_observation((), LAST_CALL)

    # Writing

    def prompt(self, question: str, tools: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """The chat messages that open an episode; `tools` are JSON schemas of functions, as `get_json_schema` gives."""
        schemas = self.write_tools(tools)
        before, _, behind = (
            part.replace("{tools}", schemas) for part in self.ask.partition("{question}")
        )
        system = (
            [{"role": "system", "content": self.system.replace("{tools}", schemas)}]
            if self.system
            else []
        )
        return [*system, {"role": "user", "content": f"{before}{question}{behind}"}]

    def write_tools(self, tools: Sequence[dict[str, Any]]) -> str:
        """The tools' schemas as they stand in the prompt: compact JSON, one a line."""
        return "\n".join(
            json.dumps(tool, ensure_ascii=False, separators=(",", ":")) for tool in tools
        )

    def render(self, trajectory: Trajectory) -> str:
        """Write a whole trajectory as one text, without chat markup; `parse` with `fenced` reads it back."""
        parts: list[str] = []
        turns = trajectory.turns if self.parallel else [(step,) for step in trajectory.steps]
        for number, turn in enumerate(turns, start=1):
            parts += [self.render_turn(step) for step in turn]
            parts += [
                self.render_observation(step.evidence, step.note)
                for step in turn
                if step.call is not None
            ]
            if (
                self.invalid
                and number < len(turns)
                and turn[-1].call is None
                and turn[-1].answer is None
            ):
                parts.append(self.invalid)
        # What joins the parts of a turn joins the messages of a chat, too; raw text brings its own line breaks.
        return (self.joint if self.observation_role else "").join(parts)

    def render_turn(self, step: Step) -> str:
        """Write one turn of the model, or a further call of one; `parse_turn` reads it back."""
        parts = (
            [] if self.parallel and step.same_turn else [f"<think>{self.write_think(step)}</think>"]
        )
        if (call := step.call) is not None:  # as the agent wrote it where that is known
            parts.append(
                f"<{self.grammar.call}>{call.raw or self.write_call(call)}</{self.grammar.call}>"
            )
        if step.answer is not None:
            parts.append(self.write_answer(step.answer))
        return self.joint.join(parts)

    def render_observation(
        self, evidence: Sequence[Evidence], note: str = "", fence: Fence | None = None
    ) -> str:
        """Write a tool response, the note only when there is no evidence; all text in it is fenced (`fence`: by it)."""

        def written(escape: Callable[[str], str]) -> str:
            fenced = [self.fenced(item, escape) for item in evidence]
            body = self.write_body(fenced) if fenced else self.write_note(escape(note))
            return f"{self.frame[0]}{body}{self.frame[1]}"

        fence = fence or self.fence
        shown = written(fence.escape)
        # Texts may make markup with what stands around them, to some readers: then they are written as entities.
        return shown if fence.reads_as_written(shown) else written(spelled)

    def response_span(self, observation: str) -> Span:
        """Where the inner text of a rendered tool response is."""
        return len(self.frame[0].rstrip()), len(observation) - len(self.frame[1].lstrip())

    # Reading

    def parse(self, text: str, *, question: str | None = None, fenced: bool = False) -> Trajectory:
        """Read a whole trajectory, prompt included or not. Linear in the text's length; never raises.

        With `fenced` the tool responses are our own engine's (`render`, `render_observation`), and escaping in them is
        undone; in any other text nothing is unescaped.
        """
        start, message = episode_start(text, self.opening)
        asked = message and self.question_in(message)
        if not start and message is None and (found := self.bare_prompt.match(text)):
            start, asked = found.end(), found[1] and " ".join(found[1].split())
        segments = self.split(text, start, len(text))
        return trajectory_of(
            self, text, segments, asked if question is None else question, fenced, []
        )

    def parse_messages(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        question: str | None = None,
        fenced: bool = False,
    ) -> Trajectory:
        """Read a chat, of messages as `formats.messages` knows them, prompt included or not; `fenced` as in `parse`.

        The messages' borders are trusted. A response inside the agent's message is its own invention, unless no message
        brings any. The trajectory's `text` is the chat written as ChatML; spans point there. Raises `DataError` when
        something is not a message.
        """
        text, segments, asked, issues = of_chat(self, messages)
        if question is None:
            question = asked and self.question_in(asked)
        return trajectory_of(self, text, segments, question, fenced, issues)

    def parse_turn(self, text: str, *, first: bool) -> Step:
        """Read one turn of the model (`first`: no tool response came before). Spans point into `text`."""
        return Step(**self.read_turns(text, skip(text, 0), len(text), first, alone=True)[0])

    def read_turns(
        self, text: str, start: int, end: int, first: bool, alone: bool = False
    ) -> list[Fields]:
        """The fields of the steps that the agent wrote in this stretch, one at least; `alone`: it is one turn."""
        # A well-formed turn, as most are, is read at once: with the same result in a fraction of the time.
        turn = self.grammar.turn.fullmatch(text, start, end)
        fields = self.fields_of(turn, first) if turn else None
        return [fields] if fields else self.reader(self, text, start, end, first).read(alone)

    def fields_of(self, turn: re.Match[str], first: bool) -> Fields | None:
        """The fields of the turn that `Grammar.turn` matched; `None` where its call or answer cannot be read."""
        think, act, said = turn.group("think", "act", "said")
        if act == "answer":
            kind, span = "answer", self.find_answer(turn.string, turn.span("said"))
            value: Any = span and turn.string[slice(*span)].strip()
        else:
            kind, span, value = "call", turn.span("said"), self.read_call(said)
        if value is None:
            return None
        spans = {"think": turn.span("think"), kind: span, "step": turn.span("step")}
        return {"think": think, kind: value, "spans": spans}

    def read_response(self, text: str, start: int, end: int) -> tuple[list[Evidence], str]:
        """As `read_body` reads it; line breaks that belong to the `frame` are not part of the text."""
        before, behind = self.frame
        if text.startswith(self.opening, start - len(self.opening)):
            if before[-1] == "\n" and text.startswith("\n", start, end):
                start += 1
            if behind[0] == "\n" and text.endswith("\n", start, end):
                end -= 1
        return self.read_body(text[start:end])

    def question_in(self, message: str) -> str:
        """The question in the prompt's user message."""
        found = self.asked.search(message) if self.asked else None
        return found[1].strip() if found else message
