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
            itself; "controller", who steers the agent; or "prompt", where another episode begins.
        span: where it stands; of a tool response the inner text.
        closed: whether a tool response has its closing tag.
        place: which of the turn's calls a response answers, from 0; `None` where that is not known.
    """

    who: Literal["agent", "tool", "forged", "controller", "prompt"]
    span: Span
    closed: bool = True
    place: int | None = None


def _opens(roles: str) -> str:
    """A pattern of what opens a message of these roles in the chat templates of ChatML, Llama,
    Gemma and Phi.
    """
    forms = (
        r"<\|im_start\|>{}\n?",
        r"<\|start_header_id\|>{}<\|end_header_id\|>\s*+",
        "<start_of_turn>{}\n",
        r"<\|{}\|>\n?",
    )
    return "|".join(form.format(f"(?:{roles})") for form in forms)


_ASSISTANT = re.compile(_opens("assistant|model"))
_USER = re.compile(rf"(?:{_opens('user|tool|ipython')})\s*+")
_PROLOGUE = re.compile(
    r"\A\s*+(?:(?:<\|(?:begin_of_text|startoftext|endoftext)\|>|<s>|<bos>|\[gMASK\]|<sop>)\s*+)*+"
    r"(?:<\|im_start\|>|<\|start_header_id\|>|<start_of_turn>|<\|(?:system|tools|user|assistant)\|>)"
)
_BARE_PROLOGUE = re.compile(r"\A\s*+(?=(?:system|user)\n)")
_END_OF_MESSAGE = re.compile(r"<\|(?:im_end|eot_id|end)\|>|<end_of_turn>")


def episode_start(text: str, response: str) -> tuple[int, str | None]:
    """Where the agent's first turn begins, and the last user message of the prompt before it.

    Only a text that begins with chat markup has a prompt: markup further inside may be evidence. A
    chat whose first message is a tool response has none either, as the agent had already spoken;
    `response` is the tag that opens one. Without a prompt the result is `(0, None)`.
    """
    bare = _BARE_PROLOGUE.match(text)
    if bare:
        return _after_bare_roles(text, bare.end(), response)
    marker = _ASSISTANT.search(text) if _PROLOGUE.match(text) else None
    if marker is None:
        return 0, None
    message_start = -1
    for match in _USER.finditer(text, 0, marker.start()):
        message_start = match.end()
    if message_start < 0:
        return marker.end(), None
    if text.startswith(response, message_start):
        return 0, None
    message = _END_OF_MESSAGE.split(text[message_start : marker.start()], maxsplit=1)[0]
    return marker.end(), message.strip()


def _after_bare_roles(text: str, start: int, response: str) -> tuple[int, str | None]:
    """As `episode_start`, for a text that was decoded without special tokens: each role is a line
    of its own. `start` is where the first role stands.
    """
    end = text.find("\nassistant\n", start)
    if end < 0:
        return 0, None
    turn_start = end + len("\nassistant\n")
    user = start
    if not text.startswith("user\n", start):
        user = text.rfind("\nuser\n", start, end) + 1
        if not text.startswith("user\n", user):
            return turn_start, None
    message_start = user + len("user\n")
    if text.startswith(response, message_start):
        return 0, None
    return turn_start, text[message_start:end].strip()


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
    body = chat[begin:]
    from_others = [message for message in body if message.role != "assistant"]
    others_respond = any(
        message.role == "tool" or dialect.opening in message.text for message in from_others
    )
    # Where no message brings a response, the environment's stand inside the agent's messages:
    # unless the agent is known to have written all of those itself.
    holds_responses = any(dialect.opening in message.content for message in body)
    inline = responses == "anywhere" and not others_respond and (not from_others or holds_responses)

    issues = [_unread(message) for message in prompt if message.unread]
    if len(prompt) < begin:
        why = "a tool's message before the agent said anything: left out"
        issues.append(Issue("response_unasked", why))
    quoting = Quoting(dialect, chat)
    parts = [part for message in prompt for part in (message.head, message.text, END)]
    offset = sum(map(len, parts))
    spans: list[Span] = []
    sent: list[Sent] = []
    for number, message in enumerate(body):
        text, quoted_calls = message.text, 0
        if message.role == "assistant":
            follower = body[number + 1] if number + 1 < len(body) else None
            text, quoted_calls = quoting.hide(
                message,
                responds=_responds(dialect, follower, responses),
                # A message that holds responses is read like a text, with any code in them.
                whole=inline and holds_responses,
            )
        parts += (message.head, text, END)
        start = offset + len(message.head)
        span = (start, start + len(text))
        offset = span[1] + len(END)
        spans.append(span)
        if message.citations:
            sent.append(Sent(span, moved(message.citations, start + message.content_at)))
        if message.unread:
            issues.append(_unread(message, span))
        issues += [Issue(problem.kind, problem.why, span) for problem in message.problems]
        if quoted_calls:
            why = (
                f"{quoted_calls} calls in the agent's words are quoted, and were not read as calls"
            )
            issues.append(Issue("call_quoted", why, span))

    text = "".join(parts)
    segments: list[Segment] = []
    calls = 0  # of the agent's last message
    for message, (start, end) in zip(body, spans, strict=True):
        if message.role == "assistant":
            calls = len(message.requests) or text.count("<tool_call>", start, end)
            turn_start = skip(text, start, end)
            if inline:
                segments += dialect.split(text, start, end)
            elif others_respond or turn_start < end:
                # An empty message is a turn only where a response may follow it.
                segments.append(Segment("agent", (turn_start, end)))
        elif not _responds(dialect, message, responses):
            segments.append(Segment("controller", (start, end)))
        else:
            most = calls if dialect.parallel_calls else 1
            for inner_start, inner_end in _responses(message.text, dialect, most):
                inner = (start + inner_start, start + inner_end)
                segments.append(Segment("tool", inner, place=message.place))
    questions = [message.text.strip() for message in prompt if message.role == "user"]
    questions = [question for question in questions if question] or questions
    return ChatText(
        text=text,
        segments=segments,
        question=questions[-1] if questions else None,
        issues=issues,
        quoting=quoting,
        inline=inline,
        sent=sent,
    )


def _responds(dialect: "Dialect", message: Message | None, responses: Responses) -> bool:
    """Whether this message is a tool's response; if not, it is a controller's words.

    A user's message without the response's tag may repeat what the agent said: where a policy is
    rewarded (`responses="messages"`) it is none. Words that stood beside results never are.
    """
    if message is None or message.role == "assistant":
        return False
    if message.role == "tool" or message.text.lstrip().startswith(dialect.opening):
        return True
    if message.beside_results or responses != "anywhere":
        return False
    return not dialect.controller_pattern.search(message.text)


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
    steps: list[Fields] = []
    turn: list[Fields] = []  # the steps of the agent's last segment
    responses: list[Segment] = []  # those to that segment
    first = True  # no response came before
    responded = False
    for segment in segments:
        if segment.who == "tool":
            responded = True
            if not steps:  # the agent's turn before it is missing
                steps = turn = [{"spans": {"step": (segment.span[0], segment.span[0])}}]
            responses.append(segment)
            continue
        if responses:
            _respond(dialect, text, turn, responses, fenced)
            responses = []
            first = False
        if segment.who == "agent":
            turn = dialect.read_turns(text, *segment.span, first)
            steps += turn
            if len(steps) > MOST_STEPS:
                why = f"more than {MOST_STEPS} turns; the rest is not read"
                issues.append(Issue("turns_many", why, (segment.span[0], len(text))))
                break
        elif segment.who == "forged":
            if steps:
                why = "the agent wrote a tool response itself, without a call: it is no evidence"
                note_issue(steps[-1], "response_forged", why, segment.span)
        elif segment.who == "prompt":
            why = "another prompt stands in the text; what follows is not read"
            issues.append(Issue("another_episode", why, segment.span))
            break
        elif turn and "answer" in turn[-1] and not dialect.can_verify and _says(text, segment):
            why = "the user asked again: the answer is the last one, the question the first"
            issues.append(Issue("asked_again", why, segment.span))
    if responses:
        _respond(dialect, text, turn, responses, fenced)
    del steps[MOST_STEPS:]
    answer, stop_reason = dialect.conclude(steps)
    _close_responses(steps)
    return Trajectory(
        steps=tuple([Step(**fields) for fields in steps]),
        question=question,
        answer=answer,
        stop_reason=stop_reason,
        dialect=dialect.name,
        text=text,
        issues=tuple(issues),
        evidence_from=source if responded else "",
    )


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
        evidence, note = _read_response(dialect, text, segment.span, fenced, fields.get("call"))
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


def _takers_of(responses: Sequence[Segment], takers: Sequence[Fields]) -> Iterator[Fields]:
    """For each response the step whose call it answers: where that is not known, the next one that
    no other response answers; the last one gets the rest.
    """
    answered = {segment.place for segment in responses}
    for place, fields in enumerate(takers):
        if "response" in fields["spans"]:
            answered.add(place)
    others = (place for place in range(len(takers)) if place not in answered)
    last = len(takers) - 1
    for segment in responses:
        place = next(others, last) if segment.place is None else segment.place
        yield takers[min(place, last)]


def _read_response(
    dialect: "Dialect", text: str, span: Span, fenced: bool, call: ToolCall | None
) -> tuple[list[Evidence], str]:
    """The evidence and the note of one tool response to `call`."""
    evidence, note = dialect.read_response(text, *span)
    if fenced:
        # Our engine's toolbox has told notes apart already.
        return [_unescaped(passage) for passage in evidence], unescape(note)
    if dialect.prose_is_evidence and not evidence:
        prose = note.strip()
        if prose and prose not in ELLIPSES:
            evidence, note = [Evidence(prose)], ""
    elif dialect.numbers_passages:
        for number, passage in enumerate(evidence, start=1):
            force_setattr(passage, "label", str(number))  # frozen, but not shared yet
    # A note among passages stays in its place, by which it may be cited.
    if only_notes(evidence, call):
        evidence, notes = sifted(evidence, call)
        note = "\n".join(filter(None, (note, *notes)))
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


def _differ(passage: Evidence, other: Evidence) -> bool:
    return (passage.title, passage.text) != (other.title, other.text)


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
