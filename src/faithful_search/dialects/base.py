"""What a dialect is: how an agent writes its trajectory, and how its environment answers."""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, ClassVar

import msgspec
from msgspec.structs import force_setattr

from ..formats.messages import END, HEAD, in_order, joined, read
from ..trajectory import Evidence, Issue, Span, Step, ToolCall, Trajectory
from .fence import Fence, unescape
from .segments import Segment, responses
from .turns import MOST_STEPS, Fields, Grammar, TurnReader, episode_start, skip

LAST_CALL = "This call was not run: no further call can be made. Give the final answer now."
"""What an agent reads that calls a tool in its last turn and is then made to answer."""
_LAST = Segment("controller", "", (0, 0))


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
        reader: takes apart a turn that is not as it should be.
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
        """The call of a text that `read_call` refuses and that can only be this call; noted as broken all the same."""
        return None

    @abstractmethod
    def read_body(self, body: str, fenced: bool) -> tuple[list[Evidence], str]:
        """The evidence in a tool response's inner text and the note where there is none, as they are written there.

        Evidence has no id where the text gives none.
        """

    @abstractmethod
    def write_body(self, evidence: Sequence[Evidence], escape: Callable[[str], str]) -> str:
        """The inner text of a tool response with evidence; `escape` fences what was retrieved."""

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

    def write_note(self, note: str) -> str:
        """The inner text of a tool response without evidence; `note` is fenced already."""
        return note

    def render_observation(self, evidence: Sequence[Evidence], note: str = "", fence: Fence | None = None) -> str:
        """Write a tool response; the note only when there is no evidence.

        Titles, texts and the note are fenced; `fence` (default: the class's) may forbid more strings.
        """
        escape = (fence or self.fence).escape
        body = self.write_body(evidence, escape) if evidence else self.write_note(escape(note))
        return f"{self.frame[0]}{body}{self.frame[1]}"

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

    # Reading

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
        """Read a chat, of messages as `formats.messages` knows them, prompt included or not.

        The messages' borders are trusted: what stands in a message that is not the agent's never becomes its words. A
        response inside the agent's message is its own invention, unless no message brings any. The trajectory's `text`
        is the chat written as ChatML; spans point there. `fenced` as in `parse`.

        Raises:
            DataError: when something in `messages` is not a message.
        """
        chat = in_order(list(joined(read(messages))))
        begin = next((number for number, message in enumerate(chat) if message.role == "assistant"), len(chat))
        prompt = [message for message in chat[:begin] if message.role != "tool"]
        body = chat[begin:]
        head = "".join(message.written for message in prompt)
        text = "".join([head, *(message.written for message in body)])
        others = [message for message in body if message.role != "assistant"]
        brings = any(message.role == "tool" or self.opening in message.text for message in others)
        # Where no message brings a response, the environment's stand inside the agent's messages.
        inline = not brings and (not others or any(self.opening in message.text for message in body))
        segments: list[Segment] = []
        issues = [_unread(message.role, message.unread) for message in prompt if message.unread]
        if len(prompt) < begin:
            issues.append(Issue("response_unasked", "a tool's message before the agent said anything: left out"))
        calls, at = 0, len(head)
        for message in body:
            start, at = at + len(HEAD.format(message.role)), at + len(message.written)
            end = at - len(END)
            if message.unread:
                issues.append(_unread(message.role, message.unread, (start, end)))
            if message.role == "assistant":
                calls = message.text.count("<tool_call>")
                own = Segment("agent", text, (skip(text, start, end), end))
                segments += self.split(text, start, end, fenced) if inline else [own]
            elif (
                message.role != "tool"
                and self.is_controller(message.text)
                and not message.text.lstrip().startswith(self.opening)
            ):
                segments.append(Segment("controller", text, (start, end)))
            else:
                spans = responses(message.text, self.opening, self.closing, calls if self.parallel else 1)
                segments += [Segment("tool", text, (start + a, start + b), fenced) for a, b in spans]
        if question is None:
            asked = next((message.text.strip() for message in reversed(prompt) if message.role == "user"), None)
            question = asked and self.asked_in(asked)
        return self._read(text, segments, question, tuple(issues))

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
        """The fields of a turn that is as it should be, as most are: a thought and one action, no other tags.

        Equal to what `reader` makes of it, in a fraction of the time; `None` for any other turn.
        """
        turn = self.grammar.turn.fullmatch(text, start, end)
        return self.fields_of(turn) if turn else None

    def fields_of(self, turn: re.Match[str]) -> Fields | None:
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
        """Where in an answer's block the answer itself is; `None` where it has not the form that it should have."""
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

    def _read(
        self, text: str, segments: Iterable[Segment], question: str | None, issues: tuple[Issue, ...] = ()
    ) -> Trajectory:
        """The one loop in which segments become steps."""
        steps: list[Fields] = []
        turn: list[Fields] = []
        takers: list[Fields] = []
        found = received = 0
        first = True
        for segment in chain(segments, (_LAST,)):
            if segment.who == "tool":
                if not steps:
                    begins = segment.span[0]
                    steps = turn = [{"spans": {"step": (begins, begins)}}]
                if not received:
                    # A stretch of several turns that are not parallel calls was answered at its end.
                    takers = [fields for fields in turn if "call" in fields["spans"]] if self.parallel else turn[-1:]
                    if not takers or "call" not in takers[-1]["spans"]:
                        takers = turn[-1:]
                        why = "a tool response to a turn without a call"
                        _add_issue(takers[0], "response_unasked", why, segment.span)
                # Each call gets its response, all further ones go to the last.
                taker = takers[received] if received < len(takers) else takers[-1]
                found = self._receive(taker, segment, found)
                received += 1
                continue
            if segment.who == "forged":
                if steps:
                    why = "the agent wrote a tool response itself, without a call: it is no evidence"
                    _add_issue(steps[-1], "response_forged", why, segment.span)
                continue
            if (
                segment.who == "controller"
                and segment is not _LAST
                and turn
                and "answer" in turn[-1]
                and not self.verifies
            ):
                why = "the user asked again: the answer is the last one, the question the first"
                issues = (*issues, Issue("asked_again", why, segment.span))
            if received:
                if received < len(takers):
                    _add_issue(takers[-1], "response_missing", f"{len(takers)} calls, {received} responses")
                received, first = 0, False
            if segment.who == "agent":
                start, end = segment.span
                turn = list(self.read_turns(text, start, end, first))
                steps += turn
                if len(steps) > MOST_STEPS:
                    why = f"more than {MOST_STEPS} turns; the rest is not read"
                    issues = (*issues, Issue("turns_many", why, (start, len(text))))
                    break
            elif segment.who == "prompt":
                why = "another prompt stands in the text; what follows is not read"
                issues = (*issues, Issue("another_episode", why, segment.span))
                break
        del steps[MOST_STEPS:]
        answer, ended = self.conclude(steps)
        for fields in steps:
            if "notes" in fields:  # lists so far: of many responses to one call, tuples would be copied again and again
                notes = fields.pop("notes")
                fields["evidence"] = tuple(fields["evidence"])
                fields["note"] = "\n".join(filter(None, notes))
        read = tuple([Step(**fields) for fields in steps])
        return Trajectory(read, question, answer, ended, self.name, text=text, issues=issues)

    def _receive(self, fields: Fields, segment: Segment, found: int) -> int:
        """Give a step this response too; returns how much evidence there is by now."""
        evidence, note = self.read_response(segment)
        if segment.fenced:
            note, evidence = unescape(note), [_unfenced(item) for item in evidence]
        for item in evidence:
            found += 1
            if not item.id:
                force_setattr(item, "id", f"E{found}")  # frozen, but not shared yet
        if not segment.closed:
            _add_issue(fields, "response_unclosed", "the tool response is not closed", segment.span)
        spans = fields["spans"]
        if "response" not in spans:
            fields["evidence"], fields["notes"], spans["response"] = evidence, [note], segment.span
        else:
            fields["evidence"] += evidence
            fields["notes"].append(note)
            spans["response"] = (spans["response"][0], segment.span[1])
        return found

    # For an agent that acts

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

    def controller(self, steps: Sequence[Step], verify: bool = False) -> str | None:
        """What the environment says after the last of these turns, which called no tool; `None` ends the episode.

        `verify`: an answer is to be checked by the agent before it counts. The dialect alone knows its modes: they
        follow from the turns so far.
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


def _add_issue(fields: Fields, kind: str, why: str, span: Span | None = None) -> None:
    fields["issues"] = (*fields.get("issues", ()), Issue(kind, why, span))


def _unread(role: str, kinds: Sequence[str], span: Span | None = None) -> Issue:
    return Issue("content_unread", f"content of kind {', '.join(sorted(set(kinds)))} in the {role}'s message", span)


def _unfenced(item: Evidence) -> Evidence:
    return Evidence(unescape(item.text), unescape(item.title), item.id, url=unescape(item.url))
