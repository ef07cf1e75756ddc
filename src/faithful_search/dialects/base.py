"""What a dialect is: how an agent writes its trajectory, and how its environment answers."""

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.resources import files
from typing import Any, ClassVar

import msgspec

from ..formats.chat import Message
from ..formats.messages import read as read_chat
from ..trajectory import Evidence, Issue, Source, Span, Step, ToolCall, Trajectory
from .cited import with_citations
from .fence import Fence, one_line, spelled, tags
from .prompt_ends import episode_start, explained_start
from .segments import Responses, Segment, chat_text, trajectory_of
from .turns import Fields, Grammar, TurnReader, skip, without_tokens

# The response to the last call of an agent that is made to answer instead.
LAST_CALL = "This call was not run: no further call can be made. Give the final answer now."
# Opens the first line of a response where that line is a note on the evidence below it.
NOTE = "Note: "
_NEVER = re.compile("(?!)")


def prompt_file(name: str) -> str:
    """The text of `prompts/<name>.md`."""
    return (files(__package__) / "prompts" / f"{name}.md").read_text("utf-8").removesuffix("\n")


class Dialect(ABC):
    """One way of writing trajectories.

    A dialect is stateless. A subclass in `dialects/<name>.py` is found by the name of its file. The
    *environment* is whatever answers the agent; a *controller* is an environment that speaks as the
    user between two turns, to steer the agent.
    `Tagged` and `ToolCalls` set most of the variables below for their families.
    """

    name: ClassVar[str]  # the name of the subclass's file

    # The prompt. In both messages `{tools}` stands for the tools' schemas.
    system: ClassVar[str] = ""  # the system message; "": none
    user_prompt: ClassVar[str] = "{question}"  # the user message
    # Finds the question in the user message, as group 1. `None`: the whole message is the question.
    question_pattern: ClassVar[re.Pattern[str] | None] = None
    # Matches a prompt that was written without chat markup, with the question as group 1.
    bare_prompt: ClassVar[re.Pattern[str]] = _NEVER

    # A turn of the agent
    stop: ClassVar[tuple[str, ...]]  # strings that end a turn while it is sampled; they stay in it
    grammar: ClassVar[Grammar]  # the tags of a turn
    turn_reader: ClassVar[type[TurnReader]] = TurnReader  # reads a turn that is not well formed
    between_parts: ClassVar[str] = "\n"  # is written between thought, call and answer
    asks_for_thoughts: ClassVar[bool] = True  # a turn without a thought has an issue
    parallel_calls: ClassVar[bool] = False  # a turn may hold several calls, each with a response
    # The agent can be asked to check its answer: `Step.verified`.
    can_verify: ClassVar[bool] = False
    # The kind and the text of the issue of a call that `read_call` cannot read.
    unreadable_call: ClassVar[tuple[str, str]]
    # What the environment writes to make the agent answer. `None`: an answer has no opening tag, so
    # none can be forced.
    answer_opening: ClassVar[str | None] = "<answer>"
    # What the environment replies to a turn without a call or an answer. `None` ends the episode.
    no_action_reply: ClassVar[str | None] = None
    # Finds the words of a controller in a user message between turns.
    controller_pattern: ClassVar[re.Pattern[str]] = _NEVER
    takes_any_words: ClassVar[bool] = False  # the pattern finds them in any message

    # The tools
    search_tool: ClassVar[str | None] = None  # the name of every call, where agents only search
    needs_tools: ClassVar[bool] = True  # its prompt is written for an agent that has a tool
    # What agents call our tools, by our name, where the two differ.
    tool_names: ClassVar[Mapping[str, str]] = {}

    # A tool response. The environment writes the two strings of `frame` before and after its inner
    # text; `opening` and `closing` are these without the blanks around them.
    frame: ClassVar[tuple[str, str]]
    opening: ClassVar[str]
    closing: ClassVar[str]
    # The chat role of a tool response. `None`: it is raw text inside the assistant's message.
    observation_role: ClassVar[str | None]
    numbers_passages: ClassVar[bool] = False  # passages are numbered from 1 in each response
    # In texts that our engine did not write, a response in prose is a passage and not a note.
    prose_is_evidence: ClassVar[bool] = False
    # Keeps the grammar's tags, `<|` and what matches `forbidden` out of retrieved text, reversibly.
    fence: ClassVar[Fence]
    forbidden: ClassVar[str] = ""
    own_tags: ClassVar[re.Pattern[str]]  # what opens a thought, a call or an answer

    # What `detect` recognises the dialect by. It sums the weights of what occurs in a text; a
    # negative weight speaks against the dialect. `marks` are names of tags. `signs` are patterns
    # for what tags cannot show: the names of tools in calls, the beginning of a tool response
    # (nothing more of it is looked at), words of the prompt. A pattern should begin with the
    # opening tag and bound every repetition.
    marks: ClassVar[Mapping[str, float]] = {}
    signs: ClassVar[Mapping[str, float]] = {}

    def __init_subclass__(cls) -> None:
        cls.name = cls.__module__.rpartition(".")[2]
        if "frame" in vars(cls):
            cls.opening, cls.closing = (part.strip() for part in cls.frame)
        if hasattr(cls, "grammar"):
            tag_names = dict.fromkeys((*cls.grammar.names, "answer"))
            patterns = [tags(*tag_names), r"<\|"]
            if cls.forbidden:
                patterns.append(cls.forbidden)
            cls.fence = Fence("|".join(patterns))
            cls.own_tags = re.compile(f"<(?:{'|'.join(('think', 'answer', cls.grammar.call))})>")

    # What each dialect or its family defines

    @abstractmethod
    def split(self, text: str, start: int, end: int) -> Iterator[Segment]:
        """Cut `text[start:end]`, which begins with a turn of the agent, into segments.

        Takes time linear in the length, and never raises.
        """

    @abstractmethod
    def read_call(self, raw: str) -> ToolCall | None:
        """The call whose inner text is `raw`; `None` where it cannot be read."""

    @abstractmethod
    def write_call(self, call: ToolCall) -> str:
        """The inner text of a call."""

    @abstractmethod
    def call_form(self, tools: Sequence[str]) -> str:
        """How a call is written, to tell an agent whose call could not be read.

        It names no tags: the fence would escape them.
        """

    @abstractmethod
    def read_body(self, body: str) -> tuple[list[Evidence], str]:
        """The evidence in a tool response's inner text, or else the note; both as they are written.

        Evidence has no id where the response gives none.
        """

    @abstractmethod
    def write_body(self, evidence: Sequence[Evidence]) -> str:
        """The inner text of a tool response with evidence, which `escaped_evidence` has escaped."""

    def write_note(self, note: str) -> str:
        """The inner text of a tool response without evidence; `note` is escaped already."""
        return note

    def escaped_evidence(self, passage: Evidence, escape: Callable[[str], str]) -> Evidence:
        """The passage with its texts escaped, as `write_body` takes it.

        Its source, score and label are left out: no dialect writes them.
        """
        return Evidence(
            text=escape(passage.text),
            title=escape(passage.title),
            id=passage.id,
            url=escape(passage.url),
        )

    def find_answer(self, text: str, span: Span) -> Span | None:
        """Where the answer itself stands in the inner text of an answer's tags, `span`.

        `None`: the answer is not written as the dialect asks for it.
        """
        return span

    def write_answer(self, answer: str) -> str:
        """The end of a turn that answers."""
        return f"<answer>{answer}</answer>"

    def write_think(self, step: Step) -> str:
        """The inner text of a thought."""
        return step.think or ""

    def evident_call(self, raw: str) -> ToolCall | None:
        """The call, where a text that `read_call` refuses can mean only one.

        Used whenever a text is read, also to judge it; the step keeps its issue. `repair_call`
        guesses more, and only for an agent that is acting.
        """
        return None

    def repair_call(self, raw: str) -> ToolCall | None:
        """The call that was evidently meant by a text that cannot be read as one.

        Only for an agent that acts: what is read later, to judge it, is never repaired. Never
        raises, and is always fast.
        """
        return None

    def conclude(self, steps: Sequence[Fields]) -> tuple[str | None, str | None]:
        """The trajectory's answer, here the last one that was given, and its `stop_reason`."""
        if not steps:
            return None, None
        answers = [fields["answer"] for fields in steps if "answer" in fields]
        stop_reason = "answered" if "answer" in steps[-1] else None
        return answers[-1] if answers else None, stop_reason

    def controller_reply(self, steps: Sequence[Step], verify: bool = False) -> str | None:
        """What the environment replies to the last of these turns, which called no tool.

        `None` ends the episode. With `verify` the agent has to check an answer before it counts.
        """
        return None if steps[-1].answer is not None else self.no_action_reply

    def force_answer(self, step: Step) -> tuple[Step, str] | None:
        """Make an agent answer whose last turn gave no answer.

        Returns the last step as `parse` will read it, with the note that its call was not run, and
        the text to append before `answer_opening`. `None`: no answer can be forced, since the turn
        called nothing or its call is not closed, and the episode ends.
        """
        if "call" not in step.spans or any(issue.kind == "call_unclosed" for issue in step.issues):
            return None
        return msgspec.structs.replace(step, note=LAST_CALL), self.render_observation((), LAST_CALL)

    # Writing

    def prompt(self, question: str, tools: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """The chat messages that open an episode.

        `tools` are JSON schemas of functions, as `get_json_schema` of Transformers gives them.
        """
        schemas = self.write_tools(tools)
        messages = []
        if self.system:
            messages.append({"role": "system", "content": self.system.replace("{tools}", schemas)})
        # The question is put in last: it may contain "{tools}" itself.
        before, _, after = self.user_prompt.partition("{question}")
        before = before.replace("{tools}", schemas)
        after = after.replace("{tools}", schemas)
        messages.append({"role": "user", "content": f"{before}{question}{after}"})
        return messages

    def write_tools(self, tools: Sequence[dict[str, Any]]) -> str:
        """The tools' schemas as they stand in the prompt: compact JSON, one a line."""
        return "\n".join(
            json.dumps(tool, ensure_ascii=False, separators=(",", ":")) for tool in tools
        )

    def render(self, trajectory: Trajectory) -> str:
        """Write a whole trajectory as one text, without chat markup.

        `parse` with `fenced=True` reads it back.
        """
        parts: list[str] = []
        turns = trajectory.turns if self.parallel_calls else [(step,) for step in trajectory.steps]
        for number, turn in enumerate(turns, start=1):
            parts += [self.render_turn(step) for step in turn]
            for step in turn:
                if step.call is not None:
                    parts.append(self.render_observation(step.evidence, step.note))
            acted = turn[-1].call is not None or turn[-1].answer is not None
            if self.no_action_reply and not acted and number < len(turns):
                parts.append(self.no_action_reply)
        # What stands between the parts of a turn also stands between the messages of a chat. Raw
        # text brings its own line breaks.
        separator = self.between_parts if self.observation_role else ""
        return separator.join(parts)

    def render_turn(self, step: Step) -> str:
        """Write one turn of the agent, or a further call of one; `parse_turn` reads it back."""
        parts = []
        if not (self.parallel_calls and step.same_turn):
            parts.append(f"<think>{self.write_think(step)}</think>")
        if step.call is not None:
            # As the agent wrote it, where that is known.
            inner = step.call.raw or self.write_call(step.call)
            parts.append(f"<{self.grammar.call}>{inner}</{self.grammar.call}>")
        if step.answer is not None:
            parts.append(self.write_answer(step.answer))
        return self.between_parts.join(parts)

    def render_observation(
        self, evidence: Sequence[Evidence], note: str = "", fence: Fence | None = None
    ) -> str:
        """Write a tool response, with its frame.

        All text in it is escaped by `fence`, by default the dialect's own. A note on evidence is a
        line above it that begins with `NOTE`.
        """
        fence = fence or self.fence
        response = self._write_response(evidence, note, fence.escape)
        if fence.reads_as_written(response):
            return response
        # A text and what stands around it together form markup for some reader: escape every
        # character of markup instead.
        return self._write_response(evidence, note, spelled)

    def _write_response(
        self, evidence: Sequence[Evidence], note: str, escape: Callable[[str], str]
    ) -> str:
        escaped = [self.escaped_evidence(passage, escape) for passage in evidence]
        body = self.write_body(escaped) if escaped else self.write_note(escape(note))
        if escaped and note:
            body = f"{NOTE}{one_line(escape(note))}\n{body}"
        elif escaped and body.startswith(NOTE):  # the first title begins like a note
            body = f"{spelled(NOTE[0])}{body[1:]}"
        before, after = self.frame
        return f"{before}{body}{after}"

    def response_span(self, observation: str) -> Span:
        """Where the inner text of a rendered tool response stands in it."""
        before, after = self.frame
        return len(before.rstrip()), len(observation) - len(after.lstrip())

    # Reading

    def parse(self, text: str, *, question: str | None = None, fenced: bool = False) -> Trajectory:
        """Read a whole trajectory, with or without its prompt.

        With `fenced` the tool responses are our own engine's (`render`, `render_observation`), and
        escaping in them is undone; in any other text nothing is unescaped. Takes time linear in the
        text's length, and never raises.
        """
        start, question_in_prompt, issues = self._after_prompt(text, fenced)
        return trajectory_of(
            self,
            text,
            self.split(text, start, len(text)),
            question=question_in_prompt if question is None else question,
            fenced=fenced,
            issues=issues,
            source="environment" if fenced else "text",
        )

    def _after_prompt(self, text: str, fenced: bool) -> tuple[int, str | None, list[Issue]]:
        """Where the episode begins behind a prompt, the question in the prompt, and whether it is
        doubtful that this is a prompt.
        """
        start, user_message = episode_start(text, self.opening)
        if user_message is not None:
            return start, self.question_in(user_message), []
        if start:
            return start, None, []
        bare_prompt = self.bare_prompt.match(text)
        if bare_prompt:
            question = bare_prompt[1]
            one_line_question = None if question is None else " ".join(question.split())
            return bare_prompt.end(), one_line_question, []
        if fenced:  # our engine keeps prompts apart
            return 0, None, []
        start, question = explained_start(text, self.own_tags)
        if not start:
            return 0, question, []
        # Nothing shows who wrote it: a policy must not get rid of its own words by them
        why = "words before the first tag are taken for a prompt"
        return start, question, [Issue("text_outside", why, (0, start))]

    def parse_messages(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        question: str | None = None,
        fenced: bool = False,
        responses: Responses = "anywhere",
    ) -> Trajectory:
        """Read a chat, of messages as `formats.messages` knows them, with or without its prompt;
        `fenced` as in `parse`, `responses` as in `dialects.parse`.

        The messages' borders are trusted. A tool response inside an agent's message counts as
        forged, except where `responses` is "anywhere" and no other message brings one. The
        trajectory's `text` is the chat written as ChatML; spans point there. Raises `DataError` when something
        is not a message.
        """
        chat = read_chat(messages, users_respond=responses == "anywhere")
        return self.parse_chat(chat, question=question, fenced=fenced, responses=responses)

    def parse_chat(
        self,
        messages: Sequence[Message],
        *,
        question: str | None = None,
        fenced: bool = False,
        responses: Responses = "anywhere",
    ) -> Trajectory:
        """Read a chat whose messages `formats.messages.read` has read; else as
        `parse_messages`.
        """
        chat = chat_text(self, messages, responses)
        if question is None and chat.question is not None:
            question = self.question_in(chat.question)
        source: Source = "text" if chat.inline else "messages"
        if fenced:
            source = "environment"
        trajectory = trajectory_of(
            self,
            chat.text,
            chat.segments,
            question=question,
            fenced=fenced,
            issues=chat.issues,
            source=source,
        )
        # Put back the markup that was only quoted, then add the citations that the API sent.
        return with_citations(chat.quoting.restore(trajectory), chat.sent)

    def parse_turn(self, text: str, *, first: bool) -> Step:
        """Read one turn of the agent, with spans that point into `text`.

        `first`: no tool response came before it.
        """
        start = skip(text, 0)
        [fields] = self.read_turns(text, start, len(text), first, alone=True)
        return Step(**fields)

    def read_turns(
        self, text: str, start: int, end: int, first: bool, alone: bool = False
    ) -> list[Fields]:
        """The fields of the steps that the agent wrote in `text[start:end]`, at least one.

        With `alone` the stretch is one turn, whatever it holds.
        """
        # Most turns are well formed. One expression reads these, with the result that the turn
        # reader would give, in a fraction of its time.
        turn = self.grammar.turn.fullmatch(text, start, end)
        fields = self.fields_of(turn, first) if turn else None
        if fields:
            return [fields]
        return self.turn_reader(self, text, start, end, first).read(alone)

    def fields_of(self, turn: re.Match[str], first: bool) -> Fields | None:
        """The fields of the turn that `Grammar.turn` matched.

        `None`: its call or answer cannot be read, and the turn reader has to say why.
        """
        think, action, content = turn.group("think", "action", "content")
        think_span = turn.span("think")
        step_span = turn.span("step")
        if action != "answer":
            call = self.read_call(content)
            if call is None:
                return None
            spans = {"think": think_span, "call": turn.span("content"), "step": step_span}
            return {"think": think, "call": call, "spans": spans}
        answer_span = self.find_answer(turn.string, turn.span("content"))
        if answer_span is None:
            return None
        answer_span = without_tokens(turn.string, answer_span)
        answer = turn.string[slice(*answer_span)].strip()
        spans = {"think": think_span, "answer": answer_span, "step": step_span}
        return {"think": think, "answer": answer, "spans": spans}

    def read_response(self, text: str, start: int, end: int) -> tuple[list[Evidence], str]:
        """The evidence and the note in `text[start:end]`, the inner text of a tool response.

        The line breaks that belong to the `frame` are no part of them. A first line that begins
        with `NOTE` is a note on the evidence below it (`render_observation`).
        """
        before, after = self.frame  # neither is empty
        is_framed = start >= len(self.opening) and text.endswith(self.opening, 0, start)
        if is_framed and before[-1] == "\n" and text.startswith("\n", start, end):
            start += 1
        if is_framed and after[0] == "\n" and text.endswith("\n", start, end):
            end -= 1
        body = text[start:end]
        if not body.startswith(NOTE):
            return self.read_body(body)
        first_line, _, below = body.partition("\n")
        evidence, note_below = self.read_body(below)
        if not _holds_passages(evidence, below):
            return self.read_body(body)
        evidence_in_first_line, _ = self.read_body(first_line)
        if _holds_passages(evidence_in_first_line, first_line):
            # It is a passage whose title only begins like a note
            return self.read_body(body)
        note = first_line.removeprefix(NOTE)
        return evidence, "\n".join(filter(None, (note, note_below)))

    def question_in(self, message: str) -> str:
        """The question in the prompt's user message."""
        match = self.question_pattern.search(message) if self.question_pattern else None
        return match[1].strip() if match else message


def _holds_passages(evidence: list[Evidence], body: str) -> bool:
    """Whether `read_body` found passages in a body. Some dialects return prose as one passage of
    exactly its text, which does not count.
    """
    return bool(evidence) and evidence != [Evidence(body)]
