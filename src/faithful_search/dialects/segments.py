"""Cuts a chat into segments, each written by one party, and makes a trajectory's steps of segments.

A dialect cuts a text into segments (`Dialect.split`). The messages of a chat are segments as they
stand: nothing in a message can end it or begin another.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec
from msgspec.structs import force_setattr

from ..evidence import only_notes, sifted
from ..formats.chat import END, Message
from ..formats.cited import moved
from ..text import is_blank
from ..trajectory import Evidence, Issue, Source, Span, Step, ToolCall, Trajectory
from .cited import Sent
from .fence import unescape
from .quoting import Quoting
from .turns import ELLIPSES, MOST_ISSUES, MOST_STEPS, Fields, skip

if TYPE_CHECKING:
    from .base import Dialect


Responses = Literal["anywhere", "messages"]
"""Where tool responses may stand, see `dialects.parse`."""


class Segment(msgspec.Struct, frozen=True, gc=False):
    """A stretch of a trajectory's text that one party wrote.

    Attributes:
        who: "agent"; "tool", of a tool response; "forged", of a tool response that the agent wrote
            itself; "controller", who steers the agent; "system", who asks nothing; or "prompt",
            where another episode begins.
        span: where it stands; of a tool response the inner text.
        closed: whether a tool response has its closing tag.
        place: which of the turn's calls a response answers, from 0; `None` where that is not known.
    """

    who: Literal["agent", "tool", "forged", "controller", "system", "prompt"]
    span: Span
    closed: bool = True
    place: int | None = None


class ChatText(NamedTuple):
    """A chat written as ChatML.

    Attributes:
        question: the prompt's last user message.
        issues: what could not be read.
        quoting: restores the markup that was hidden because it is only quoted.
        inline: whether responses were looked for inside the agent's own messages.
        sent: citations that an API sent beside the messages.
    """

    text: str
    segments: list[Segment]
    question: str | None
    issues: list[Issue]
    quoting: Quoting
    inline: bool
    sent: list[Sent]


def chat_text(
    dialect: "Dialect", chat: Sequence[Message], responses: Responses = "anywhere"
) -> ChatText:
    """Write a chat as one text, cut into segments; `responses` as in `dialects.parse`."""
    roles = [message.role for message in chat]
    begin = roles.index("assistant") if "assistant" in roles else len(chat)
    prompt = [message for message in chat[:begin] if message.role != "tool"]
    body = _Body.of(dialect, chat[begin:], responses)
    issues = [_unread(message) for message in prompt if message.unread]
    if len(prompt) < begin:
        why = "a tool's message before the agent said anything: left out"
        issues.append(Issue("response_unasked", why))
    quoting = Quoting(dialect, chat)
    writer = _Writer()
    for message in prompt:
        writer.add(message, message.text)
    spans: list[Span] = []
    sent: list[Sent] = []
    for number, message in enumerate(body.messages):
        text, quoted_calls = message.text, 0
        if message.role == "assistant":
            text, quoted_calls = quoting.hide(
                message,
                responds=any(body.responds[number + 1 : number + 2]),
                # A message that holds responses is read like a text, with any code in them.
                inline=body.inline and body.holds_responses,
            )
        span = writer.add(message, text)
        spans.append(span)
        issues += _issues_of(message, span, quoted_calls)
        if message.citations:
            sent.append(Sent(span, moved(message.citations, span[0] + message.content_at)))
    whole_text = "".join(writer.parts)
    return ChatText(
        text=whole_text,
        segments=list(_segments(dialect, whole_text, body, spans)),
        question=_question(prompt),
        issues=issues,
        quoting=quoting,
        inline=body.inline,
        sent=sent,
    )


class _Body(NamedTuple):
    """What follows the prompt of a chat: the agent's messages and those to it.

    Attributes:
        messages: the first one is the agent's.
        responds: for each message whether it is a tool's response.
        others_respond: whether messages to the agent bring responses, by their role or tags.
        holds_responses: whether the content of any message has a response's tag.
        inline: whether responses are looked for inside the agent's own messages.
    """

    messages: Sequence[Message]
    responds: list[bool]
    others_respond: bool
    holds_responses: bool
    inline: bool

    @classmethod
    def of(cls, dialect: "Dialect", messages: Sequence[Message], responses: Responses) -> "_Body":
        from_others = [message for message in messages if message.role != "assistant"]
        others_respond = any(
            message.role == "tool" or dialect.opening in message.text for message in from_others
        )
        holds_responses = any(dialect.opening in message.content for message in messages)
        # Where no message brings a response, the environment's stand inside the agent's messages:
        # unless the agent is known to have written all of those itself.
        may_be_inline = responses == "anywhere" and not others_respond
        return cls(
            messages=messages,
            responds=_which_respond(dialect, messages, responses),
            others_respond=others_respond,
            holds_responses=holds_responses,
            inline=may_be_inline and (holds_responses or not from_others),
        )


class _Writer:
    """Writes messages as one text, one behind the other.

    Attributes:
        parts: the text, in parts.
        length: of all parts.
    """

    def __init__(self) -> None:
        self.parts: list[str] = []
        self.length = 0

    def add(self, message: Message, text: str) -> Span:
        """Write a message with this text, and say where the text stands."""
        start = self.length + len(message.head)
        end = start + len(text)
        self.parts += (message.head, text, END)
        self.length = end + len(END)
        return start, end


def _issues_of(message: Message, span: Span, quoted_calls: int) -> list[Issue]:
    """What is wrong with a message that stands at this span."""
    issues = [_unread(message, span)] if message.unread else []
    for problem in message.problems:
        issues.append(Issue(problem.kind, problem.why, span))
    if quoted_calls:
        why = f"{quoted_calls} calls in the agent's words are quoted, and were not read as calls"
        issues.append(Issue("call_quoted", why, span))
    return issues


def _question(prompt: Sequence[Message]) -> str | None:
    """The last words of a user's in the prompt; blanks only where there is nothing else."""
    questions = [message.text.strip() for message in prompt if message.role == "user"]
    if not questions:
        return None
    return next(filter(None, reversed(questions)), "")


def _segments(
    dialect: "Dialect", text: str, body: _Body, spans: Sequence[Span]
) -> Iterator[Segment]:
    """The segments of a chat's text; `spans` are where its messages stand."""
    calls = 0  # of the agent's last message
    for message, responds, span in zip(body.messages, body.responds, spans, strict=True):
        if message.role == "assistant":
            calls = len(message.requests) or text.count("<tool_call>", *span)
            yield from _turns(dialect, text, body, span)
        elif responds:
            start, _ = span
            most = calls if dialect.parallel_calls else 1
            for inner_start, inner_end in _responses(message.text, dialect, most):
                inner = (start + inner_start, start + inner_end)
                yield Segment("tool", inner, place=message.place)
        elif message.role == "system":
            yield Segment("system", span)
        else:
            yield Segment("controller", span)


def _turns(dialect: "Dialect", text: str, body: _Body, span: Span) -> Iterable[Segment]:
    """The segments of an agent's message at this span."""
    start, end = span
    turn_start = skip(text, start, end)
    if body.inline:
        return dialect.split(text, start, end)
    if body.others_respond or turn_start < end:
        # An empty message is a turn only where a response may follow it.
        return [Segment("agent", (turn_start, end))]
    return []


def _which_respond(
    dialect: "Dialect", messages: Sequence[Message], responses: Responses
) -> list[bool]:
    """For each message behind a prompt whether it is a tool's response."""
    which: list[bool] = []
    agents_message: Message | None = None
    for message in messages:
        if message.role == "assistant":
            agents_message = message
            which.append(False)
        else:
            which.append(_responds(dialect, message, agents_message, responses))
    return which


def _responds(
    dialect: "Dialect", message: Message, agents_message: Message | None, responses: Responses
) -> bool:
    """Whether this message to the agent is a tool's response; if not, it is a controller's words.

    A user's message without the response's tag may repeat what the agent said: where a policy is
    rewarded (`responses="messages"`) it is none. Words that stood beside results never are, nor are
    those of the system, or words behind an answer.

    `agents_message`: the agent's message before it.
    """
    if message.role == "tool" or message.text.lstrip().startswith(dialect.opening):
        return True
    if message.role == "system" or message.beside_results or responses != "anywhere":
        return False
    if agents_message is not None and _only_answers(dialect, agents_message):
        return False
    return not dialect.controller_pattern.search(message.text)


def _only_answers(dialect: "Dialect", message: Message) -> bool:
    """Whether the agent's message has an answer between tags, and no call that a response may
    follow: where responses stand inside messages, none behind the answer.
    """
    text = message.text
    answered = text.rfind("</answer>")
    if dialect.answer_opening is None or answered < 0 or message.requests:
        return False
    start = answered if dialect.observation_role is None else 0
    return not dialect.grammar.calls(text, start, len(text))


def _unread(message: Message, span: Span | None = None) -> Issue:
    kinds = ", ".join(sorted(set(message.unread)))
    return Issue("content_unread", f"content of kind {kinds} in the {message.role}'s message", span)


def _responses(text: str, dialect: "Dialect", most: int) -> list[Span]:
    """Where the inner texts of a message's responses stand, `most` at most.

    Without the response's tag the whole message is one.
    """
    opening, closing = dialect.opening, dialect.closing
    start = len(text) - len(text.lstrip())
    if not text.startswith(opening, start):
        return [(0, len(text))]
    start += len(opening)
    end = max(start, len(text.rstrip()))
    if text.endswith(closing, start, end):
        end -= len(closing)
    between = re.compile(rf"{re.escape(closing)}\s*+{re.escape(opening)}")
    spans: list[Span] = []
    while len(spans) < most - 1:
        border = between.search(text, start, end)
        if border is None:
            break
        spans.append((start, border.start()))
        start = border.end()
    spans.append((start, end))
    return spans


def trajectory_of(
    dialect: "Dialect",
    text: str,
    segments: Iterable[Segment],
    question: str | None,
    fenced: bool,
    issues: list[Issue],
    source: Source,
) -> Trajectory:
    """Make a trajectory of the segments of its text. Never raises.

    Args:
        fenced: our own engine wrote the tool responses, and escaping in them is undone.
        issues: what is known to be wrong with the text; more are added.
        source: where the tool responses stand, if there are any.
    """
    steps = _Steps(dialect, text, fenced, issues)
    for segment in segments:
        if not steps.add(segment):
            break
    steps.give_responses()
    fields_of_steps = steps.steps[:MOST_STEPS]
    answer, stop_reason = dialect.conclude(fields_of_steps)
    _close_responses(fields_of_steps)
    return Trajectory(
        steps=tuple([Step(**fields) for fields in fields_of_steps]),
        question=question,
        answer=answer,
        stop_reason=stop_reason,
        dialect=dialect.name,
        text=text,
        issues=tuple(issues),
        evidence_from=source if steps.responded else "",
    )


class _Steps:
    """The steps of a text, made of one segment after the other.

    Attributes:
        steps: the fields of all steps.
        turn: those of the agent's last segment.
        responses: the responses to that segment, until they are given to its steps.
        responded: whether any response came.
        is_first: whether no response came before the agent's next segment.
        others_spoke: whether others spoke since the agent's last segment.
    """

    def __init__(self, dialect: "Dialect", text: str, fenced: bool, issues: list[Issue]) -> None:
        self.dialect = dialect
        self.text = text
        self.fenced = fenced
        self.issues = issues
        self.steps: list[Fields] = []
        self.turn: list[Fields] = []
        self.responses: list[Segment] = []
        self.responded = False
        self.is_first = True
        self.others_spoke = False

    def add(self, segment: Segment) -> bool:
        """Add the next segment; `False` where those behind it are not read."""
        if segment.who == "tool":
            self._add_response(segment)
            return True
        self.give_responses()
        if segment.who == "agent":
            return self._add_turn(segment.span)
        if segment.who == "prompt":
            why = "another prompt stands in the text; what follows is not read"
            self.issues.append(Issue("another_episode", why, segment.span))
            return False
        if segment.who == "forged" and self.steps:
            why = "the agent wrote a tool response itself, without a call: it is no evidence"
            note_issue(self.steps[-1], "response_forged", why, segment.span)
        elif segment.who != "forged" and _says(self.text, segment):
            self._add_words(segment)
        return True

    def give_responses(self) -> None:
        """Give the responses that came to the steps of the agent's last segment."""
        if self.responses:
            _respond(self.dialect, self.text, self.turn, self.responses, self.fenced)
            self.responses = []
            self.is_first = False

    def _add_response(self, segment: Segment) -> None:
        self.responded = True
        if not self.steps:  # the agent's turn before it is missing
            start, _ = segment.span
            self.steps = self.turn = [{"spans": {"step": (start, start)}}]
        self.responses.append(segment)

    def _add_turn(self, span: Span) -> bool:
        if self.others_spoke and _lacks_response(self.turn, self.issues):
            why = "others spoke behind the call, and not as a response to it"
            note_issue(self.turn[-1], "response_missing", why)
        self.others_spoke = False
        self.turn = self.dialect.read_turns(self.text, *span, self.is_first)
        self.steps += self.turn
        if len(self.steps) <= MOST_STEPS:
            return True
        why = f"more than {MOST_STEPS} turns; the rest is not read"
        self.issues.append(Issue("turns_many", why, (span[0], len(self.text))))
        return False

    def _add_words(self, segment: Segment) -> None:
        """Add words of a controller or the system."""
        # Elsewhere the environment tells an agent so what was wrong with its call
        self.others_spoke = self.dialect.takes_any_words
        asks = segment.who == "controller" and not self.dialect.can_verify
        if asks and self.turn and "answer" in self.turn[-1]:
            why = "the user asked again: the answer is the last one, the question the first"
            self.issues.append(Issue("asked_again", why, segment.span))


def _lacks_response(turn: Sequence[Fields], issues: Iterable[Issue]) -> bool:
    """Whether the agent's turn ends with a call that has no response, which is no issue yet."""
    if not turn or "call" not in turn[-1]["spans"] or "response" in turn[-1]["spans"]:
        return False
    start, _ = turn[-1]["spans"]["step"]
    for issue in issues:
        if issue.kind == "response_missing" and issue.span and start in range(*issue.span):
            return False
    return True


def _says(text: str, segment: Segment) -> bool:
    return bool(text[slice(*segment.span)].strip())


def _respond(
    dialect: "Dialect", text: str, turn: list[Fields], responses: Sequence[Segment], fenced: bool
) -> None:
    """Give the responses to an agent's segment to its steps, `turn`.

    In a dialect with parallel calls each call gets one. Elsewhere a segment of several turns was
    answered at its end.
    """
    takers = turn[-1:]
    if dialect.parallel_calls:
        takers = [fields for fields in turn if "call" in fields["spans"]]
    if not takers or "call" not in takers[-1]["spans"]:
        takers = turn[-1:]
        why = "a tool response to a turn without a call"
        note_issue(takers[0], "response_unasked", why, responses[0].span)
    for segment, fields in zip(responses, _takers_of(responses, takers), strict=True):
        call = fields.get("call")
        if call is None and not fenced:
            call = _cut_call(dialect, text, fields)
        evidence, note = _read_response(dialect, text, segment.span, fenced, call)
        if call is not None and evidence:
            fields["call"] = call
        if not segment.closed:
            note_issue(fields, "response_unclosed", "the tool response is not closed", segment.span)
        spans = fields["spans"]
        # `evidence` and `notes` are lists until `_close_responses`: tuples would be copied for each
        # of many responses to one call.
        if "response" not in spans:
            fields["evidence"], fields["notes"] = evidence, [note]
            spans["response"] = segment.span
        else:
            fields["evidence"] += evidence
            fields["notes"].append(note)
            spans["response"] = (spans["response"][0], segment.span[1])
    if len(takers) > 1:
        missing = sum("response" not in fields["spans"] for fields in takers)
        if missing:
            why = f"{len(takers)} calls, {len(takers) - missing} responses"
            note_issue(takers[-1], "response_missing", why)


def _cut_call(dialect: "Dialect", text: str, fields: Fields) -> ToolCall | None:
    """The call of a step that a response follows although it is not closed: the sampler stopped at
    its end, and left that out.
    """
    span = fields["spans"].get("call")
    is_cut = any(issue.kind == "call_unclosed" for issue in fields.get("issues", ()))
    return dialect.read_call(text[slice(*span)]) if span and is_cut else None


def _takers_of(responses: Sequence[Segment], takers: Sequence[Fields]) -> Iterator[Fields]:
    """For each response the step whose call it answers: where that is not known, the next one that
    no other response answers; the last one gets the rest.
    """
    answered = {segment.place for segment in responses}
    for place, fields in enumerate(takers):
        if "response" in fields["spans"]:
            answered.add(place)
    unanswered = (place for place in range(len(takers)) if place not in answered)
    last = len(takers) - 1
    for segment in responses:
        place = next(unanswered, last) if segment.place is None else segment.place
        yield takers[min(place, last)]


def _read_response(
    dialect: "Dialect", text: str, span: Span, fenced: bool, call: ToolCall | None
) -> tuple[list[Evidence], str]:
    """The evidence and the note of one tool response to `call`."""
    evidence, note = dialect.read_response(text, *span)
    if fenced:
        # Our engine's toolbox has told notes apart already.
        return [_unescaped(passage) for passage in evidence], unescape(note)
    prose = note.strip()
    # A body that the dialect takes for a note as a whole has a form that it does not know.
    unknown_form = prose == text[slice(*span)].strip()
    if not evidence and (dialect.prose_is_evidence or unknown_form):
        if prose and prose not in ELLIPSES:
            evidence, note = [Evidence(prose)], ""
    elif dialect.numbers_passages:
        for number, passage in enumerate(evidence, start=1):
            force_setattr(passage, "label", str(number))  # frozen, but not shared yet
    for passage in evidence:
        if is_blank(passage.text):
            force_setattr(passage, "text", "")  # as above
    # A note among passages stays in its place, by which it may be cited.
    if only_notes(evidence, call):
        evidence, notes = sifted(evidence, call)
        note = "\n".join(filter(None, (note, *notes)))
        note = note or text[slice(*span)].strip()  # the passages hold no words
    return evidence, note


def _unescaped(passage: Evidence) -> Evidence:
    return Evidence(
        unescape(passage.text), unescape(passage.title), passage.id, url=unescape(passage.url)
    )


def _close_responses(steps: Sequence[Fields]) -> None:
    """Number the passages that have no id, note ids that two passages have, and make tuples."""
    number = 0
    passages: dict[str, Evidence] = {}  # by the ids that they have in the text
    for fields in steps:
        if "notes" not in fields:
            continue
        evidence = fields["evidence"]
        repeated: str | None = None
        for passage in evidence:
            number += 1
            if not passage.id:
                force_setattr(passage, "id", f"E{number}")  # frozen, but not shared yet
                continue
            earlier = passages.setdefault(passage.id, passage)
            if earlier is not passage and not repeated and _differ(earlier, passage):
                here = any(candidate is earlier for candidate in evidence)
                repeated = _repeated(passage.id, here)
        if repeated:
            note_issue(fields, "evidence_id_repeated", repeated)
        fields["evidence"] = tuple(evidence)
        notes = fields.pop("notes")
        fields["note"] = notes[0] if len(notes) == 1 else "\n".join(filter(None, notes))


def _differ(passage: Evidence, another: Evidence) -> bool:
    return (passage.title, passage.text) != (another.title, another.text)


def _repeated(name: str, here: bool) -> str:
    """Why an id that two passages have is a problem, and which of them a citation means."""
    if here:
        return f"two passages of this response have the id {name}: a citation means the first"
    return f"the id {name} was another passage's before: a citation means the response before it"


def note_issue(fields: Fields, kind: str, why: str, span: Span | None = None) -> None:
    """Add an issue to a step; `MOST_ISSUES` at most, since the tuple is copied for each."""
    issues = fields.get("issues", ())
    if len(issues) < MOST_ISSUES:
        fields["issues"] = (*issues, Issue(kind, why, span))
