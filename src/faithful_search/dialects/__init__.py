"""Text to `Trajectory` and back, one file per dialect; `load("pou")` finds `pou.py`.

`detect` tells in which dialect a text is written, from the marks and signs that each dialect's file
declares.
"""

import difflib
import re
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from itertools import islice
from typing import Any, NamedTuple

import msgspec

from .. import formats, loose_json, registry
from ..errors import DataError, DialectError
from ..formats import Chat, chat_templates
from ..formats.chat import TAGLIKE, Message
from ..formats.messages import read
from ..formats.quotes import without_code
from ..trajectory import Issue, Trajectory
from .base import Dialect
from .handing_in import with_answer
from .segments import Responses

# How confident `detect` must be
_CLEARLY = 0.5  # for an issue: the text is not in the dialect that was asked for
_FAINTLY = 0.2  # for a text to be read in another dialect than the rows beside it
USUAL_OF = 64  # rows that `usual` looks at
# The dialect for a text of thought and answer alone: the thought may have been opened in the prompt
_ANY = "r1_searcher"
_PLAIN = "openai"  # the dialect for messages without any tags
_TAG = re.compile(r"<\|?/?([A-Za-z_0-9]{2,24})\|?>")
_LOOK_AT = 200_000  # characters of a text; a dialect shows itself long before
_BEGINNING = 80  # characters of a response: its beginning shows the dialect, its evidence does not
_HALF_WEIGHT = 2.0  # the score that gives a confidence of one half

__all__ = ["Detection", "Dialect", "detect", "load", "names", "parse", "usual"]


@dataclass(frozen=True)
class Detection:
    """The dialect that a text is written in.

    Attributes:
        dialect: the dialect's name; `None` where none fits.
        confidence: how certain that is, in [0, 1].
        why: the marks that decided, or why no dialect fits.
        tags: names of the tags that occur outside of evidence.
    """

    dialect: str | None
    confidence: float
    why: str
    tags: tuple[str, ...] = ()


def names() -> list[str]:
    """The names of all dialects, sorted."""
    return list(_known().dialects)


class _Known(NamedTuple):
    """All dialects, and what `detect` looks for.

    Attributes:
        tags: the names of tags that are marks of any dialect.
        blocks: the names of tags in which agents write.
        closings: the closing tags of tool responses, by the opening ones.
        any_opening: finds the opening tag of a tool response.
        signs: the patterns of each dialect's signs, with their weights.
    """

    dialects: dict[str, Dialect]
    tags: frozenset[str]
    blocks: frozenset[str]
    closings: dict[str, str]
    any_opening: re.Pattern[str]
    signs: dict[str, list[tuple[re.Pattern[str], float]]]


@cache
def _known() -> _Known:
    package = sys.modules[__name__]
    dialects = {
        name: registry.load(package, name, Dialect)() for name in registry.names(package, Dialect)
    }
    closings = {dialect.opening: dialect.closing for dialect in dialects.values()}
    signs = {
        name: [(re.compile(pattern), weight) for pattern, weight in dialect.signs.items()]
        for name, dialect in dialects.items()
    }
    return _Known(
        dialects=dialects,
        tags=frozenset().union(*(dialect.marks for dialect in dialects.values())),
        blocks=frozenset().union(*(dialect.grammar.blocks for dialect in dialects.values())),
        closings=closings,
        any_opening=re.compile("|".join(map(re.escape, closings))),
        signs=signs,
    )


def load(name: str) -> Dialect:
    """The dialect of this name.

    Raises:
        DialectError: there is none; the message lists all names, and the nearest.

    Example:
        >>> load("pou").stop
        ('</tool_call>', '</answer>')
    """
    if name not in _known().dialects:
        near = difflib.get_close_matches(name, _known().dialects, n=1, cutoff=0.5)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise DialectError(
            f"unknown dialect {name!r}; there are: {', '.join(_known().dialects)}{hint}"
        )
    return _known().dialects[name]


def parse(
    source: str | Sequence[Mapping[str, Any]] | Mapping[str, Any] | Chat,
    dialect: str | None = None,
    question: str | None = None,
    *,
    fenced: bool = False,
    usual: str | None = None,
    responses: Responses = "anywhere",
    answer_tool: str | None = None,
) -> Trajectory:
    """Read what an agent wrote, in any dialect or format, as a trajectory.

    Args:
        source: a model's text, prompt included or not; chat messages or a log in any of the
            `formats`, or the JSON of one; or the JSON that `Trajectory.to_json` wrote (which names
            its own dialect).
        dialect: its name; `None` detects it.
        question: overrides the question found in the prompt.
        fenced: whether our own engine rendered it, so that escaping in its tool responses is
            undone.
        usual: the dialect of the rows beside it, for a text that shows none of its own.
        responses: where tool responses may stand. "anywhere": also inside a text, where the
            dialect's environment writes them; who wrote them cannot be told there. "messages": in
            messages of their own alone, and a text is the agent's from its first to its last
            character, whatever it looks like: for whoever rewards what a policy wrote.
        answer_tool: the tool whose last call hands in the answer; `None` knows usual names.

    A text that shows no dialect of its own gets an `Issue` of kind `dialect_assumed`; one that the
    given dialect cannot read and that is clearly another's one of kind `dialect_mismatch`. With
    `responses="messages"`, a response inside the agent's own words is an `Issue` of kind
    `response_forged`, and no evidence. `Trajectory.evidence_from` says where responses stood.

    Raises:
        DialectError: for an unknown `dialect`, or with `None` when no dialect fits.
        DataError: when `source` is neither text nor a conversation in a known format.

    Example:
        >>> parse("<think>I know that.</think><answer>Ada</answer>").answer
        'Ada'
    """
    content = _content(source, responses)
    if isinstance(content, Trajectory):
        if question is None:
            return content
        return msgspec.structs.replace(content, question=question)
    text = content if isinstance(content, str) else ""
    chat = None if isinstance(content, str) else _ReadChat.of(content, responses == "anywhere")
    issues: list[Issue] = []
    name = dialect or (chat.stored.dialect if chat else "")
    if not name:
        name, chat = _dialect_of(text, chat, usual, issues)
    reader = load(name)
    if chat is None:
        trajectory = reader.parse(text, question=question, fenced=fenced)
        if not fenced and not any(step.call for step in trajectory.steps):
            in_markup = _in_markup(text, dialect, question, answer_tool)
            if in_markup is not None:
                return in_markup
    else:
        trajectory = reader.parse_chat(
            chat.messages,
            question=question or chat.stored.question,
            fenced=fenced,
            responses=responses,
        )
        issues += _problems(chat.stored)
    # To look for another dialect takes longer than reading, so it is done only where the dialect
    # that was asked for read nothing of its own.
    if dialect is not None and not _makes_sense(trajectory, reader):
        detected = _detected(text, chat)
        if detected.dialect not in (None, dialect) and detected.confidence >= _CLEARLY:
            why = f"read as {dialect}, but the text looks like {detected.dialect}: {detected.why}"
            issues.append(Issue("dialect_mismatch", why))
    if trajectory.answer is not None and not trajectory.answer.strip():  # a blank answer is none
        trajectory = msgspec.structs.replace(trajectory, answer=None)
    trajectory = with_answer(trajectory, answer_tool)
    changes = {} if chat is None else _known_fields(chat.stored, trajectory)
    if issues:
        changes["issues"] = (*trajectory.issues, *issues)
    return msgspec.structs.replace(trajectory, **changes) if changes else trajectory


class _ReadChat(NamedTuple):
    """A conversation as it was stored, and its messages in the one form of `formats.messages`."""

    stored: Chat
    messages: list[Message]

    @classmethod
    def of(cls, chat: Chat, users_respond: bool = True) -> "_ReadChat":
        return cls(chat, read(chat.messages, users_respond))


def _content(
    source: str | Sequence[Mapping[str, Any]] | Mapping[str, Any] | Chat, responses: Responses
) -> Trajectory | Chat | str:
    """What the source holds: a trajectory, a conversation, or a text."""
    if isinstance(source, Chat):
        return source
    trusted = responses == "anywhere"
    if isinstance(source, str):
        content = formats.of_text(source) if trusted else source
    else:
        loose_json.check_nested(source)
        content = formats.content(source, as_written=not trusted).value
    if trusted or not isinstance(content, str):
        return content
    # All of the text is the agent's words, whatever JSON or markup of a chat it holds.
    return Chat([{"role": "assistant", "content": content}])


def _dialect_of(
    text: str, chat: _ReadChat | None, usual: str | None, issues: list[Issue]
) -> tuple[str, _ReadChat | None]:
    """The dialect of a text or chat that names none, and the chat.

    A text that shows no dialect may be a chat whose roles are marked: then that is returned. A
    dialect that is only assumed is added to `issues`. Raises `DialectError` where none fits.
    """
    detected = _detected(text, chat)
    if chat is None and detected.dialect is None:
        stored = formats.read(text) or chat_templates.read(text)
        if stored is not None:
            chat = _ReadChat.of(stored)
            detected = _detected(text, chat)
    faint = usual is not None and detected.confidence < _FAINTLY
    plain = chat is not None and _is_plain(detected, usual)
    name = None if faint or plain else detected.dialect
    name = name or _assumed(detected, usual, chat is not None) or detected.dialect
    if name is None:
        raise DialectError(_refusal(text, detected))
    if name != detected.dialect:
        beside = ", like the rows beside it" if name == usual else ""
        why = f"the text shows no dialect of its own; read as {name}{beside}"
        issues.append(Issue("dialect_assumed", why))
    return name, chat


def _problems(chat: Chat) -> list[Issue]:
    """Issues for what of a conversation could not be read, or is uncertain."""
    issues = []
    for kind, count in chat.left_out.items():
        if count:
            issues.append(Issue("content_unread", f"left out: {count} {kind}"))
    issues += [Issue(problem.kind, problem.why) for problem in chat.problems]
    return issues


def _known_fields(chat: Chat, trajectory: Trajectory) -> dict[str, Any]:
    """The fields of the trajectory that the conversation's format knows better."""
    fields: dict[str, Any] = {}
    if chat.of_text and trajectory.evidence_from:
        fields["evidence_from"] = "text"
    if chat.id or chat.answers:
        answers = chat.answers if isinstance(chat.answers, list | tuple) else [chat.answers]
        fields["id"] = chat.id
        fields["answers"] = tuple(answer for answer in answers if isinstance(answer, str))
    return fields


def _in_markup(
    text: str, dialect: str | None, question: str | None, answer_tool: str | None
) -> Trajectory | None:
    """Read a text without a call of its dialect as a chat in its model's own markup.

    `None`: no such markup stands before the first response, or it holds no call either.
    """
    response = _known().any_opening.search(text)
    if not chat_templates.is_marked(text[: response.start()] if response else text):
        return None
    chat = chat_templates.read(text)
    if chat is None:
        return None
    trajectory = parse(chat, dialect, question, answer_tool=answer_tool)
    calls = any(step.call for step in trajectory.steps)
    return trajectory if chat.format or calls else None


def usual(rows: Iterable[Any]) -> str | None:
    """The dialect of most of the first 64 rows, for `parse` to read other rows with.

    Rows that are no trajectory, or whose dialect was assumed, do not count. `None`: no row does.
    """
    counts: Counter[str] = Counter()
    for row in islice(rows, USUAL_OF):
        if not isinstance(row, Trajectory) or not row.dialect:
            continue
        if all(issue.kind != "dialect_assumed" for issue in row.issues):
            counts[row.dialect] += 1
    return counts.most_common(1)[0][0] if counts else None


def _assumed(detected: Detection, usual: str | None, chat: bool) -> str | None:
    """The dialect in which to read a text or chat that shows none of its own."""
    if chat and _is_plain(detected, usual):
        return _PLAIN
    tags = set(detected.tags)
    only_answers = "answer" in tags and tags & _known().tags <= {"think", "answer"}
    if usual is not None and tags & set(load(usual).marks):
        # A dialect whose answers have no tag would not read this one's.
        untagged = usual != _PLAIN and load(usual).answer_opening is None
        if not (only_answers and untagged):
            return usual
    return _ANY if only_answers else None


def _is_plain(detected: Detection, usual: str | None) -> bool:
    """Whether a chat has no tag of any dialect: a box around its answer is no dialect."""
    # A tool's message is marked in the chat's own way, not the agent's.
    dialect_tags = _known().tags - {"think", "tool_response"}
    return usual in (None, _PLAIN) and not set(detected.tags) & dialect_tags


def _refusal(text: str, detected: Detection) -> str:
    """Why no dialect fits, and what to do."""
    reason = f"no dialect fits this text ({detected.why})"
    if text.lstrip()[:1] in ("{", "["):
        with suppress(DataError):
            return f"{reason}: {formats.refusal(loose_json.decode(text))}"
        return f"{reason}: it begins like JSON, but is none"
    if not detected.tags:
        return (
            f"{reason}: it is plain text without a thought, a call or an answer between tags; is "
            "it the right column?"
        )
    dialects = ", ".join(name for name in _known().dialects if name != _PLAIN)
    return f"{reason}; if you know which it is, name it, one of: {dialects}"


def _makes_sense(trajectory: Trajectory, dialect: Dialect) -> bool:
    """Whether the dialect that was asked for has read something of its own."""
    if trajectory.answer is None or "</" in trajectory.answer:
        return False
    if any(step.call and step.evidence for step in trajectory.steps):
        return True
    # An agent that did not search shows only an answer. Where an answer has no tag, any text looks
    # like one.
    searched = any(step.call for step in trajectory.steps)
    return dialect.answer_opening is not None and not searched and not trajectory.all_issues()


def detect(text: str | Sequence[Mapping[str, Any]]) -> Detection:
    """Find out in which dialect a text is written, by the tags that occur in it.

    A dialect's score is the sum of the weights of its `marks` and `signs` that occur in the first
    200,000 characters; of a tool response only the beginning counts, so that evidence does not
    decide. confidence = (best - second best) / (best + 2). Where two dialects fit equally well none
    is named, and `why` says which they are.

    Args:
        text: what an agent and its environment wrote, or chat messages, or the JSON of these.

    Raises:
        DataError: for messages of which one is not a message.

    Example:
        >>> detect("<think>a</think><search>b</search><information>Doc 1(Title: c) d</information>").dialect
        'search_r1'
    """
    return _by_marks(_excerpt(text))


def _detected(text: str, chat: _ReadChat | None) -> Detection:
    """As `detect`, of a text or of a chat that has been read."""
    return _by_marks(text[:_LOOK_AT] if chat is None else _chat_excerpt(chat.messages))


def _by_marks(text: str) -> Detection:
    """The dialect whose marks and signs have the greatest weight in a text."""
    skeleton = _skeleton(text)
    tags = tuple(dict.fromkeys(_TAG.findall(skeleton)))
    weights: dict[str, dict[str, float]] = {}  # by dialect, of what occurs
    for name, dialect in _known().dialects.items():
        weights[name] = {f"<{tag}>": weight for tag, weight in dialect.marks.items() if tag in tags}
        for sign, weight in _known().signs[name]:
            match = sign.search(skeleton)
            if match:
                weights[name][repr(" ".join(match[0].split())[:60])] = weight
    scores = {name: sum(occurring.values()) for name, occurring in weights.items()}
    first, second, *_ = sorted(scores, key=lambda name: scores[name], reverse=True)
    best, next_best = scores[first], max(0.0, scores[second])
    # One thing must speak for it that is worth more than the marks which all dialects have.
    if best <= 0 or max(weights[first].values()) < 1.0:
        why = f"no dialect's marks among its tags: {', '.join(tags[:8]) or 'it has none'}"
        return Detection(None, 0.0, why, tags)
    if next_best == best:
        *others, last = [name for name in scores if scores[name] == best]
        return Detection(None, 0.0, f"{', '.join(others)} and {last} fit equally well", tags)
    why = f"it has {', '.join(mark for mark, weight in weights[first].items() if weight > 0)}"
    if next_best > 0:
        why += f"; next would be {second}"
    return Detection(first, (best - next_best) / (best + _HALF_WEIGHT), why, tags)


def _excerpt(source: str | Sequence[Mapping[str, Any]]) -> str:
    """What `detect` looks at, of a text or of messages."""
    if isinstance(source, str):
        chat = formats.decode(source)
        return source[:_LOOK_AT] if chat is None else _chat_excerpt(read(chat.messages))
    chat = formats.read(source)
    return _chat_excerpt(read(source if chat is None else chat.messages))


def _chat_excerpt(chat: Sequence[Message]) -> str:
    """What `detect` looks at of a chat: of what follows the agent's first message, the agent's
    words, and only the beginning of a tool response.
    """
    roles = [message.role for message in chat]
    begin = roles.index("assistant") if "assistant" in roles else len(chat)
    blocks, openings = _known().blocks, _known().closings
    excerpt = ["<|structured_calls|>" if any(message.calls for message in chat) else ""]
    for number, message in enumerate(chat):
        text = message.text
        if message.role == "assistant" and not any(opening in text for opening in openings):
            text = without_code(text, blocks)
        if number > begin and message.role != "assistant":
            text = text.lstrip()
            tag = _TAG.match(text)
            opening = "<tool_response>" if message.role == "tool" else ""
            if tag:
                opening = tag[0]
            text = opening + _beginning(text.removeprefix(opening))
        excerpt.append(text)
    return "\n".join(excerpt)[:_LOOK_AT]


def _skeleton(text: str) -> str:
    """The text with only the beginning of each closed tool response, in which no tag counts."""
    closings, any_opening = _known().closings, _known().any_opening
    parts: list[str] = []
    done = 0
    unclosed: set[str] = set()  # closing tags that do not come: to look again takes quadratic time
    while match := any_opening.search(text, done):
        closing = closings[match[0]]
        end = -1 if closing in unclosed else text.find(closing, match.end())
        parts.append(text[done : match.end()])
        done = match.end()
        if end < 0:
            unclosed.add(closing)
        else:
            parts.append(_beginning(text[done:end]))
            done = end
    return "".join([*parts, text[done:]])


def _beginning(response: str) -> str:
    """The beginning of a tool response, with its tags spelled out, so that none counts."""
    return TAGLIKE.sub("&lt;", response[:_BEGINNING])
