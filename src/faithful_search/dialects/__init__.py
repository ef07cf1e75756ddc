"""Text to `Trajectory` and back, one file per dialect; `load("pou")` finds `pou.py`.

`detection` tells in which dialect a text is written.
"""

import difflib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any, NamedTuple

import msgspec

from .. import formats, loose_json
from ..errors import DataError, DialectError
from ..formats import Chat, call_markup, chat_templates
from ..formats.base import mapping
from ..formats.chat import Message
from ..formats.messages import read
from ..trajectory import Issue, Step, Trajectory
from .base import Dialect
from .detection import (
    LOOK_AT,
    STRUCTURED_TAG,
    Detection,
    by_marks,
    chat_excerpt,
    detect,
    dialect_table,
)
from .handing_in import with_answer
from .segments import Responses

# How confident `detect` must be
_CLEARLY = 0.5  # for an issue: the text is not in the dialect that was asked for
_FAINTLY = 0.2  # for a text to be read in another dialect than the rows beside it
USUAL_OF = 64  # rows that `usual` looks at
# The dialect for a text of thought and answer alone: the thought may have been opened in the prompt
_ANY = "r1_searcher"
_PLAIN = "openai"  # the dialect for messages without any tags
# The tags of a text with calls of tools that no dialect knows
_OF_ANY_TOOL = frozenset(("think", "tool_call", "tool_response", "tools", "answer"))
# Names of tags between which agents of other dialects call tools, or read what these return
_FOREIGN = re.compile(
    r"<((?:[a-z]{1,20}_){0,2}"
    r"(?:search|query|queries|documents?|information|context|evidence|results?|observations?|obs"
    r"|external|access|browse|visit|page|python|tool|knowledge|learnings)"
    r"(?:_[a-z]{1,20}){0,2})>"
)
_MOST_FOREIGN = 50
# How tokens write a blank: SentencePiece's, and that of byte-level BPE
_BLANKS_OF_TOKENS = ("\u2581", "\u0120")
_FEW_BLANKS = 5  # of those may stand in any text

__all__ = ["Detection", "Dialect", "detect", "load", "names", "parse", "usual"]


def names() -> list[str]:
    """The names of all dialects, sorted."""
    return list(dialect_table().dialects)


def load(name: str) -> Dialect:
    """The dialect of this name.

    Raises:
        DialectError: there is none; the message lists all names, and the nearest.

    Example:
        >>> load("pou").stop
        ('</tool_call>', '</answer>')
    """
    dialects = dialect_table().dialects
    if name not in dialects:
        near = difflib.get_close_matches(name, dialects, n=1, cutoff=0.5)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise DialectError(f"unknown dialect {name!r}; there are: {', '.join(dialects)}{hint}")
    return dialects[name]


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
    text, chat = "", None
    if isinstance(content, str):
        text = _with_plain_line_ends(content)
    else:
        chat = _ReadChat.of(content, users_respond=responses == "anywhere")
    issues: list[Issue] = []
    name = dialect or (chat.stored.dialect if chat else "")
    if not name:
        name, chat = _dialect_of(text, chat, usual, issues)
    reader = load(name)
    if chat is None:
        trajectory = reader.parse(text, question=question, fenced=fenced)
        if not fenced and not _has_calls(trajectory):
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
        issues += _problems(chat)
        if not trajectory.steps:
            why = f"none of the {len(chat.messages)} messages is the agent's"
            issues.append(Issue("no_action", why))
    if dialect is not None:
        issues += _mismatch(trajectory, reader, text, chat)
    trajectory = with_answer(_without_blank_answer(trajectory), answer_tool)
    issues += _unread(trajectory, reader)
    changes = {} if chat is None else _fields_of_format(chat.stored, trajectory)
    if issues:
        changes["issues"] = (*trajectory.issues, *issues)
    return msgspec.structs.replace(trajectory, **changes) if changes else trajectory


def _has_calls(trajectory: Trajectory) -> bool:
    return any(step.call for step in trajectory.steps)


def _without_blank_answer(trajectory: Trajectory) -> Trajectory:
    """The trajectory without its answer, where that is blank: then there is none."""
    if trajectory.answer is None or trajectory.answer.strip():
        return trajectory
    return msgspec.structs.replace(trajectory, answer=None)


def _mismatch(
    trajectory: Trajectory, reader: Dialect, text: str, chat: "_ReadChat | None"
) -> list[Issue]:
    """An issue where a text is clearly in another dialect than the one that was asked for.

    To look for another dialect takes longer than reading, so it is done only where `reader` read
    nothing of its own.
    """
    if _makes_sense(trajectory, reader):
        return []
    detected = _detected(text, chat)
    if detected.dialect in (None, reader.name) or detected.confidence < _CLEARLY:
        return []
    why = f"read as {reader.name}, but the text looks like {detected.dialect}: {detected.why}"
    return [Issue("dialect_mismatch", why)]


def _unread(trajectory: Trajectory, reader: Dialect) -> list[Issue]:
    """Issues for what looks as if it meant something in a form that nothing here reads."""
    issues: list[Issue] = []
    if trajectory.answer is not None and call_markup.ends_like_a_call(trajectory.answer):
        why = "the answer ends like a call of a tool, in a form that is not read as one"
        issues.append(Issue("call_unread", why))
    text = trajectory.text
    for blank in _BLANKS_OF_TOKENS:
        if _FEW_BLANKS < text.count(blank) > text.count(" "):
            why = f"words are divided by {blank!r}: the tokens were written down, not their text"
            issues.append(Issue("text_undecoded", why))
    has_evidence = any(step.evidence for step in trajectory.steps)
    foreign = [] if has_evidence else _foreign_tags(trajectory, reader)
    if foreign:
        tags = ", ".join(f"<{name}>" for name in foreign)
        why = f"no evidence was read, but {reader.name} does not know what stands in {tags}"
        issues.append(Issue("tags_unread", why))
    return issues


def _foreign_tags(trajectory: Trajectory, reader: Dialect) -> list[str]:
    """The names of the tags in the agent's words, opened and closed, between which another
    dialect's calls or responses may stand. No more than `_MOST_FOREIGN` names are looked for, those
    that the reader knows among them.
    """
    is_closed: dict[str, bool] = dict.fromkeys(reader.grammar.names, False)
    for words in _words_of_turns(trajectory):
        for tag in _FOREIGN.finditer(words):
            name = tag[1]
            if name in is_closed:
                continue
            if len(is_closed) >= _MOST_FOREIGN:
                break
            is_closed[name] = f"</{name}>" in words
    return [name for name, closed in is_closed.items() if closed]


def _words_of_turns(trajectory: Trajectory) -> Iterator[str]:
    """The beginning of each turn's text; several steps may be of one turn."""
    spans = [step.spans.get("step", (0, 0)) for step in trajectory.steps]
    for start, end in dict.fromkeys(spans):
        yield trajectory.text[start : min(end, start + LOOK_AT)]


class _ReadChat(NamedTuple):
    """A conversation as it was stored, and its messages in the one form of `formats.messages`."""

    stored: Chat
    messages: list[Message]

    @classmethod
    def of(cls, chat: Chat, users_respond: bool = True) -> "_ReadChat":
        return cls(chat, read(chat.messages, users_respond))


def _with_plain_line_ends(text: str) -> str:
    """The text of a file that was saved on Windows as others save it."""
    saved_there = "\r\n" in text and text.count("\r\n") == text.count("\n")
    return text.replace("\r\n", "\n") if saved_there else text


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
        if not trusted:
            source = _with_flat_calls(source)
        loose_json.check_nested(source)
        content = formats.content(source, as_written=not trusted).value
    if trusted or not isinstance(content, str):
        return content
    # All of the text is the agent's words, whatever JSON or markup of a chat it holds.
    return Chat([{"role": "assistant", "content": content}])


def _with_flat_calls(
    source: Sequence[Mapping[str, Any]] | Mapping[str, Any],
) -> Sequence[Mapping[str, Any]] | Mapping[str, Any]:
    """The messages with the agent's calls that are nested too deeply as texts, so that they cannot
    be read as calls: a policy must not get rid of a low score, nor end a training, by such a call.
    """
    if not isinstance(source, list | tuple):
        return source
    messages = []
    for message in source:
        calls = message.get("tool_calls") if isinstance(message, Mapping) else None
        if isinstance(calls, list | tuple):
            message = {**message, "tool_calls": [_flat(call) for call in calls]}
        messages.append(message)
    return messages


def _flat(call: Any) -> Any:
    """The call; where it is nested too deeply, its name and id with the reason as arguments."""
    try:
        loose_json.check_nested(call)
    except DataError as error:
        fields = mapping(call)
        function = fields.get("function")
        name = mapping(function if isinstance(function, Mapping) else fields).get("name", "")
        return {"id": fields.get("id"), "function": {"name": name, "arguments": str(error)}}
    return call


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
    if chat is not None and usual in (None, _PLAIN) and _answers_in_words(chat, detected):
        why = f"read as {_PLAIN}: it ends in words, but {detected.dialect} answers between tags"
        issues.append(Issue("dialect_assumed", why))
        return _PLAIN, chat
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


def _answers_in_words(chat: _ReadChat, detected: Detection) -> bool:
    """Whether a chat ends with words of its agent's, where the detected dialect has its answers
    between tags, and nothing in the chat speaks of such tags.
    """
    if detected.dialect is None or "answer" in detected.tags or not chat.messages:
        return False
    last = chat.messages[-1]
    if last.role != "assistant" or last.calls:
        return False
    reader = load(detected.dialect)
    if reader.observation_role is None or "answer" not in reader.grammar.names:
        return False
    words = last.content.rpartition("</think>")[2].strip()
    return bool(words) and not set(by_marks(words).tags) & dialect_table().tags


def _problems(chat: _ReadChat) -> list[Issue]:
    """Issues for what of a conversation could not be read, or is uncertain."""
    issues = []
    for kind, count in chat.stored.left_out.items():
        if count:
            issues.append(Issue("content_unread", f"left out: {count} {kind}"))
    for problem in chat.stored.problems:
        issues.append(Issue(problem.kind, problem.why))
    return issues


def _fields_of_format(chat: Chat, trajectory: Trajectory) -> dict[str, Any]:
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
    response = dialect_table().any_opening.search(text)
    before_response = text[: response.start()] if response else text
    if not chat_templates.is_marked(before_response):
        return None
    chat = chat_templates.read(text)
    if chat is None:
        return None
    trajectory = parse(chat, dialect, question, answer_tool=answer_tool)
    return trajectory if chat.format or _has_calls(trajectory) else None


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
    if STRUCTURED_TAG in tags and (usual is None or not load(usual).observation_role):
        return _PLAIN
    familiar = tags & dialect_table().tags
    only_answers = "answer" in tags and familiar <= {"think", "answer"}
    only_calls = "tool_call" in tags and familiar <= _OF_ANY_TOOL
    if usual is not None and only_calls and load(usual).marks.get("tool_call", 0.0) < 0:
        return _PLAIN  # the other rows' dialect writes no such calls
    if usual is not None and tags & set(load(usual).marks):
        # A dialect whose answers have no tag would not read this one's.
        untagged = usual != _PLAIN and load(usual).answer_opening is None
        if not (only_answers and untagged):
            return usual
    if only_calls:
        return _PLAIN
    return _ANY if only_answers else None


def _is_plain(detected: Detection, usual: str | None) -> bool:
    """Whether a chat has no tag of any dialect: a box around its answer is no dialect."""
    # A tool's message is marked in the chat's own way, not the agent's.
    dialect_tags = dialect_table().tags - {"think", "tool_response"}
    return usual in (None, _PLAIN) and not set(detected.tags) & dialect_tags


def _refusal(text: str, detected: Detection) -> str:
    """Why no dialect fits, and what to do."""
    if not detected.tags and not text.lstrip().startswith(("{", "[")):
        return (
            "no dialect fits this text: it is plain text, without a thought, a call or an answer "
            "between tags. If it is an answer alone, give what was retrieved for it in a column "
            "'contexts'; else name the column of the whole rollout (--text_column)"
        )
    reason = f"no dialect fits this text ({detected.why})"
    if text.lstrip()[:1] in ("{", "["):
        with suppress(DataError):
            return f"{reason}: {formats.refusal(loose_json.decode(text))}"
        return f"{reason}: it begins like JSON, but is none"
    dialects = ", ".join(name for name in dialect_table().dialects if name != _PLAIN)
    return f"{reason}; if you know which it is, name it, one of: {dialects}"


def _makes_sense(trajectory: Trajectory, dialect: Dialect) -> bool:
    """Whether the dialect that was asked for has read something of its own."""
    if trajectory.answer is None or "</" in trajectory.answer:
        return False
    if any(_in_its_form(trajectory, step, dialect) for step in trajectory.steps):
        return True
    # An agent that did not search shows only an answer. Where an answer has no tag, any text looks
    # like one.
    if dialect.answer_opening is None or _has_calls(trajectory):
        return False
    return not trajectory.all_issues()


def _in_its_form(trajectory: Trajectory, step: Step, dialect: Dialect) -> bool:
    """Whether a call of this step returned evidence in a form that the dialect knows: what it does
    not know is evidence as a whole.
    """
    if step.call is None or not step.evidence:
        return False
    span = step.spans.get("response", (0, 0))
    body = trajectory.text[slice(*span)].strip()
    if any(passage.text.strip() != body for passage in step.evidence):
        return True
    return bool(dialect.read_response(trajectory.text, *span)[0])


def _detected(text: str, chat: _ReadChat | None) -> Detection:
    """As `detect`, of a text or of a chat that has been read."""
    return by_marks(text[:LOOK_AT] if chat is None else chat_excerpt(chat.messages))
