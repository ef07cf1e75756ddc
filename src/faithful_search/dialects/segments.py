"""Segments of a trajectory's text, each written by one party, and the one loop that makes steps of them.

A dialect cuts a text into segments (`Dialect.split`). The messages of a chat are segments as they stand: nothing in a
message can end it or begin another.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import msgspec
from msgspec.structs import force_setattr

from ..formats.messages import END, HEAD, Message, read
from ..trajectory import Evidence, Issue, Span, Step, Trajectory
from .fence import unescape
from .turns import ELLIPSES, MOST_STEPS, Fields, skip

if TYPE_CHECKING:
    from .base import Dialect


class Segment(msgspec.Struct, frozen=True, gc=False):
    """A stretch of a trajectory's text that one party wrote; of a tool response the inner text, `closed` or not.

    "forged" is a tool response that the agent wrote itself, "controller" who steers the agent, "prompt" what begins
    another episode.
    """

    who: Literal["agent", "tool", "forged", "controller", "prompt"]
    span: Span
    closed: bool = True


def _opens(roles: str) -> str:
    """A pattern of the markup that opens a message of these roles, in ChatML, Llama's, Gemma's and Phi's templates."""
    forms = (
        r"<\|im_start\|>{}\n?",
        r"<\|start_header_id\|>{}<\|end_header_id\|>\s*",
        "<start_of_turn>{}\n",
        r"<\|{}\|>\n?",
    )
    return "|".join(form.format(f"(?:{roles})") for form in forms)


_ASSISTANT, _USER = (
    re.compile(_opens("assistant|model")),
    re.compile(rf"(?:{_opens('user|tool|ipython')})\s*+"),
)
_PROLOGUE = re.compile(
    r"\s*+(?:(?:<\|(?:begin_of_text|startoftext|endoftext)\|>|<s>|<bos>)\s*+)*+"
    r"(?:<\|im_start\|>|<\|start_header_id\|>|<start_of_turn>|<\|(?:system|tools|user|assistant)\|>)"
)
_BARE_PROLOGUE = re.compile(r"\s*+(?=(?:system|user)\n)")
_END_OF_MESSAGE = re.compile(r"<\|(?:im_end|eot_id|end)\|>|<end_of_turn>")


def episode_start(text: str, response: str) -> tuple[int, str | None]:
    """Where the agent's first turn begins, and the last user message when a prompt stands before it.

    Only a text that begins with chat markup has a prompt: markup further inside may be evidence. A chat whose first
    message is a tool response (opening tag `response`) has none: the agent had already spoken.
    """
    if bare := _BARE_PROLOGUE.match(
        text
    ):  # decoded without special tokens: roles are lines of their own
        end = text.find("\nassistant\n", bare.end())
        if end < 0:
            return 0, None
        start = end + len("\nassistant\n")
        user = (
            bare.end()
            if text.startswith("user\n", bare.end())
            else text.rfind("\nuser\n", bare.end(), end) + 1
        )
        asked = user + len("user\n") if text.startswith("user\n", user) else -1
    else:
        marker = _ASSISTANT.search(text) if _PROLOGUE.match(text) else None
        if marker is None:
            return 0, None
        start, end, asked = marker.end(), marker.start(), -1
        for match in _USER.finditer(text, 0, end):
            asked = match.end()
    if asked < 0:
        return start, None
    if text.startswith(response, asked):
        return 0, None
    message = text[asked:end]
    return start, (message if bare else _END_OF_MESSAGE.split(message, maxsplit=1)[0]).strip()


def of_chat(
    dialect: "Dialect", messages: Sequence[Mapping[str, Any]]
) -> tuple[str, list[Segment], str | None, list[Issue]]:
    """A chat written as ChatML, its segments there, the prompt's user message, and what could not be read.

    Raises `DataError` when something in `messages` is not a message.
    """
    chat = read(messages)
    begin = next(
        (number for number, message in enumerate(chat) if message.role == "assistant"), len(chat)
    )
    prompt = [message for message in chat[:begin] if message.role != "tool"]
    body = chat[begin:]
    text = "".join(message.written for message in (*prompt, *body))
    others = [message for message in body if message.role != "assistant"]
    brings = any(message.role == "tool" or dialect.opening in message.text for message in others)
    # Where no message brings a response, the environment's stand inside the agent's messages.
    inline = not brings and (not others or any(dialect.opening in message.text for message in body))
    segments: list[Segment] = []
    issues = [_unread(message) for message in prompt if message.unread]
    if len(prompt) < begin:
        issues.append(
            Issue("response_unasked", "a tool's message before the agent said anything: left out")
        )
    calls, at = 0, sum(len(message.written) for message in prompt)
    for message in body:
        start, at = at + len(HEAD.format(message.role)), at + len(message.written)
        end = at - len(END)
        if message.unread:
            issues.append(_unread(message, (start, end)))
        responds = message.role == "tool" or message.text.lstrip().startswith(dialect.opening)
        if message.role == "assistant":
            calls = message.text.count("<tool_call>")
            own = Segment("agent", (skip(text, start, end), end))
            segments += dialect.split(text, start, end) if inline else [own]
        elif not responds and dialect.steers.search(message.text):
            segments.append(Segment("controller", (start, end)))
        else:
            spans = _responses(message.text, dialect, calls if dialect.parallel else 1)
            segments += [Segment("tool", (start + a, start + b)) for a, b in spans]
    asked = next(
        (message.text.strip() for message in reversed(prompt) if message.role == "user"), None
    )
    return text, segments, asked, issues


def _unread(message: Message, span: Span | None = None) -> Issue:
    kinds = ", ".join(sorted(set(message.unread)))
    return Issue("content_unread", f"content of kind {kinds} in the {message.role}'s message", span)


def _responses(text: str, dialect: "Dialect", most: int) -> list[Span]:
    """Where the inner texts of a message's responses are, `most` at most; without tags, the whole message."""
    opening, closing = dialect.opening, dialect.closing
    start = len(text) - len(text.lstrip())
    if not text.startswith(opening, start):
        return [(0, len(text))]
    start += len(opening)
    end = max(start, len(text.rstrip()))
    if text.endswith(closing, start, end):
        end -= len(closing)
    between = re.compile(rf"{re.escape(closing)}\s*+{re.escape(opening)}")
    found: list[Span] = []
    while len(found) < most - 1 and (border := between.search(text, start, end)):
        found.append((start, border.start()))
        start = border.end()
    return [*found, (start, end)]


def trajectory_of(
    dialect: "Dialect",
    text: str,
    segments: Iterable[Segment],
    question: str | None,
    fenced: bool,
    issues: list[Issue],
) -> Trajectory:
    """The trajectory whose segments these are; `fenced`: escaping in its tool responses is undone. Never raises."""
    steps: list[Fields] = []
    turn: list[Fields] = []  # the steps of the agent's last stretch
    responses: list[Segment] = []  # to that stretch
    first = True
    for segment in segments:
        if segment.who == "tool":
            if not steps:
                steps = turn = [{"spans": {"step": (segment.span[0], segment.span[0])}}]
            responses.append(segment)
            continue
        if responses:
            _respond(dialect, text, turn, responses, fenced)
            responses, first = [], False
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
        elif turn and "answer" in turn[-1] and not dialect.verifies:
            why = "the user asked again: the answer is the last one, the question the first"
            issues.append(Issue("asked_again", why, segment.span))
    if responses:
        _respond(dialect, text, turn, responses, fenced)
    del steps[MOST_STEPS:]
    answer, ended = dialect.conclude(steps)
    found = 0
    for fields in steps:
        if "notes" not in fields:
            continue
        for item in fields["evidence"]:
            found += 1
            if not item.id:
                force_setattr(item, "id", f"E{found}")  # frozen, but not shared yet
        fields["evidence"] = tuple(fields["evidence"])
        notes = fields.pop("notes")
        fields["note"] = notes[0] if len(notes) == 1 else "\n".join(filter(None, notes))
    read = tuple([Step(**fields) for fields in steps])
    return Trajectory(read, question, answer, ended, dialect.name, text=text, issues=tuple(issues))


def _respond(
    dialect: "Dialect", text: str, turn: list[Fields], responses: Sequence[Segment], fenced: bool
) -> None:
    """Give the steps of a turn their responses."""
    # A stretch of several turns that are not parallel calls was answered at its end.
    takers = [one for one in turn if "call" in one["spans"]] if dialect.parallel else turn[-1:]
    if not takers or "call" not in takers[-1]["spans"]:
        takers = turn[-1:]
        note_issue(
            takers[0],
            "response_unasked",
            "a tool response to a turn without a call",
            responses[0].span,
        )
    for number, segment in enumerate(responses):
        # Each call gets its response, all further ones go to the last.
        fields = takers[number] if number < len(takers) else takers[-1]
        evidence, note = dialect.read_response(text, *segment.span)
        if fenced:
            note = unescape(note)
            evidence = [
                Evidence(unescape(item.text), unescape(item.title), item.id, url=unescape(item.url))
                for item in evidence
            ]
        elif dialect.prose and not evidence and (prose := note.strip()) and prose not in ELLIPSES:
            evidence, note = [Evidence(prose)], ""
        if not segment.closed:
            note_issue(fields, "response_unclosed", "the tool response is not closed", segment.span)
        spans = fields["spans"]
        if "response" not in spans:
            # Lists at first: with many responses to one call, tuples would be copied again and again.
            fields["evidence"], fields["notes"], spans["response"] = evidence, [note], segment.span
        else:
            fields["evidence"] += evidence
            fields["notes"].append(note)
            spans["response"] = (spans["response"][0], segment.span[1])
    if len(responses) < len(takers):
        note_issue(
            takers[-1], "response_missing", f"{len(takers)} calls, {len(responses)} responses"
        )


def note_issue(fields: Fields, kind: str, why: str, span: Span | None = None) -> None:
    fields["issues"] = (*fields.get("issues", ()), Issue(kind, why, span))
