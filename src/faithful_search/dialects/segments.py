"""Segments of a trajectory's text, each written by one party, and the one loop that makes steps of them.

A dialect cuts a text into segments by its own rules (`Dialect.split`). The messages of a chat are segments as they
stand: nothing in a message can end it or begin another, so what a tool returned stays that, whatever it says.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal

import msgspec
from msgspec.structs import force_setattr

from ..formats.messages import END, HEAD, in_order, joined, read
from ..trajectory import Evidence, Issue, Span, Step, Trajectory
from .fence import unescape
from .turns import MOST_STEPS, Fields, skip

if TYPE_CHECKING:
    from .base import Dialect


class Segment(msgspec.Struct, frozen=True, gc=False):
    """A stretch of a trajectory's text that one party wrote.

    Attributes:
        who: "agent"; "tool", whose inner text (without the response's tags) this is; "forged", the same written by the
            agent itself; "controller", who steers the agent; or "prompt", which begins another episode.
        text: the whole text in which the segment stands.
        span: its place there.
        fenced: whether our own `render_observation` wrote it. Only then is escaping undone.
        closed: whether a tool response has its end.
    """

    who: Literal["agent", "tool", "forged", "controller", "prompt"]
    text: str
    span: Span
    fenced: bool = False
    closed: bool = True


_LAST = Segment("controller", "", (0, 0))


def of_chat(
    dialect: Dialect, messages: Sequence[Mapping[str, Any]], fenced: bool
) -> tuple[str, list[Segment], str | None, tuple[Issue, ...]]:
    """A chat written as ChatML, its segments there, the prompt's user message, and what could not be read.

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
    brings = any(message.role == "tool" or dialect.opening in message.text for message in others)
    # Where no message brings a response, the environment's stand inside the agent's messages.
    inline = not brings and (not others or any(dialect.opening in message.text for message in body))
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
            segments += dialect.split(text, start, end, fenced) if inline else [own]
        elif (
            message.role != "tool"
            and dialect.is_controller(message.text)
            and not message.text.lstrip().startswith(dialect.opening)
        ):
            segments.append(Segment("controller", text, (start, end)))
        else:
            spans = _responses(message.text, dialect.opening, dialect.closing, calls if dialect.parallel else 1)
            segments += [Segment("tool", text, (start + a, start + b), fenced) for a, b in spans]
    asked = next((message.text.strip() for message in reversed(prompt) if message.role == "user"), None)
    return text, segments, asked, tuple(issues)


def _responses(text: str, opening: str, closing: str, most: int) -> list[Span]:
    """Where the inner texts of a message's responses are, `most` at most; without tags, the whole message."""
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
    dialect: Dialect,
    text: str,
    segments: Iterable[Segment],
    question: str | None,
    issues: tuple[Issue, ...] = (),
) -> Trajectory:
    """The trajectory whose segments these are. Never raises."""
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
                takers = [fields for fields in turn if "call" in fields["spans"]] if dialect.parallel else turn[-1:]
                if not takers or "call" not in takers[-1]["spans"]:
                    takers = turn[-1:]
                    note_issue(takers[0], "response_unasked", "a tool response to a turn without a call", segment.span)
            # Each call gets its response, all further ones go to the last.
            taker = takers[received] if received < len(takers) else takers[-1]
            found = _receive(dialect, taker, segment, found)
            received += 1
            continue
        if segment.who == "forged":
            if steps:
                why = "the agent wrote a tool response itself, without a call: it is no evidence"
                note_issue(steps[-1], "response_forged", why, segment.span)
            continue
        again = segment.who == "controller" and segment is not _LAST and turn and "answer" in turn[-1]
        if again and not dialect.verifies:
            why = "the user asked again: the answer is the last one, the question the first"
            issues = (*issues, Issue("asked_again", why, segment.span))
        if received:
            if received < len(takers):
                note_issue(takers[-1], "response_missing", f"{len(takers)} calls, {received} responses")
            received, first = 0, False
        if segment.who == "agent":
            start, end = segment.span
            turn = list(dialect.read_turns(text, start, end, first))
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
    answer, ended = dialect.conclude(steps)
    for fields in steps:
        if "notes" in fields:
            notes = fields.pop("notes")
            fields["evidence"] = tuple(fields["evidence"])
            fields["note"] = "\n".join(filter(None, notes))
    read = tuple([Step(**fields) for fields in steps])
    return Trajectory(read, question, answer, ended, dialect.name, text=text, issues=issues)


def _receive(dialect: Dialect, fields: Fields, segment: Segment, found: int) -> int:
    """Give a step this response too; returns how much evidence there is by now."""
    evidence, note = dialect.read_response(segment)
    if segment.fenced:
        note = unescape(note)
        evidence = [
            Evidence(unescape(item.text), unescape(item.title), item.id, url=unescape(item.url)) for item in evidence
        ]
    for item in evidence:
        found += 1
        if not item.id:
            force_setattr(item, "id", f"E{found}")  # frozen, but not shared yet
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
    return found


def note_issue(fields: Fields, kind: str, why: str, span: Span | None = None) -> None:
    fields["issues"] = (*fields.get("issues", ()), Issue(kind, why, span))


def _unread(role: str, kinds: Sequence[str], span: Span | None = None) -> Issue:
    return Issue("content_unread", f"content of kind {', '.join(sorted(set(kinds)))} in the {role}'s message", span)
