"""What is evidence, and what is a note: the rules, for what tools return here and in logs of
others.

Evidence is what a source says. A note is what a tool says itself: that it failed, that it found
nothing, that a page could not be seen, or what it was asked. Notes support nothing, and neither do
the words that a response holds only in a copy of the call: they are the agent's own.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import msgspec

from .. import loose_json
from ..text import is_blank
from ..trajectory import Evidence, Step, ToolCall, Trajectory
from .copies import any_copy, marked, texts_of, unframed
from .phrases import (
    COPY,
    LONGEST,
    Kind,
    is_a_word_for_nothing,
    kind_of,
    may_begin_a_note,
    only_confirms,
)
from .services import tells_how_it_went, without_request

__all__ = [
    "REPORTING",
    "Kind",
    "Sifted",
    "failure_of",
    "is_marked_failed",
    "note_kind",
    "notes_of",
    "only_notes",
    "own_words",
    "sifted",
    "supported_by",
    "supporting",
    "supporting_passages",
]

_SNIPPET = 400  # characters of a passage with a title that may be a note
_OF_A_PAGE = 0.7  # of a page's words must stand in a note's sentences: it may quote such notes
_ELLIPSIS = "\u2026"
_LONGEST_ECHO, _DEEPEST = 20_000, 20
_NOTHING = re.compile(r"\[\s?\]|\{\s?\}")
_EMPTY_TAGS = re.compile(r"(?:\s|</?\w{1,40}\s?/?>)*+")
_FAILED = frozenset(("error", "failed", "failure", "timeout"))
_STATUS = ("status", "status_code", "statusCode", "http_status", "code")
_NAMES = ("title", "name", "url", "link")
_SAYS_WHY = ("error", "errors", "exception", "error_message", "errorMessage", "error message")
_MESSAGE = ("message", "detail", "reason", "text", "content", "output", "result", "data")
# Fields for all that a call returned, beside those for a message
_RETURNED = frozenset(
    (
        *("", *_MESSAGE, "results", "answer", "response", "value", "stdout", "note", "observation"),
        *("documents", "matches", "items", "hits", "found", "search_result", "search_results"),
        *("snippet", "body", "summary", "warning", "suggestion", "spelling", "next_page"),
    )
)
REPORTING = frozenset((*_STATUS, *_SAYS_WHY, "isError", "is_error", "success", "ok"))
"""Fields that may say that a call failed."""
# Fields that say how a call went, not what was found.
_REPORTS = frozenset((*_STATUS, "type", "ok", "success", "object", "id", "model", "role"))
# Fields in which a tool returns a single value
_VALUES = frozenset(("", "result", "value", "output", "answer", "response", "return_value"))


class _Leaf(NamedTuple):
    """A value in JSON that holds no others, and the name of the field that it stands in."""

    name: str
    value: Any

    @property
    def is_blank(self) -> bool:
        return self.value is None or is_blank(str(self.value))

    @property
    def is_zero(self) -> bool:
        """Whether it is 0 or `False`."""
        return isinstance(self.value, int | float) and self.value == 0


class Sifted(NamedTuple):
    """What a response holds: evidence, and the words of notes."""

    evidence: list[Evidence]
    notes: list[str]


def sifted(evidence: Iterable[Evidence], call: ToolCall | None) -> Sifted:
    """Part what a call returned into evidence and notes."""
    parted = Sifted([], [])
    texts: tuple[str, ...] | None = None
    for passage in evidence:
        kind = None
        if _may_be_a_note(passage):
            texts = texts_of(call) if texts is None else texts
            kind = note_kind(passage, texts)
        if kind is None:
            parted.evidence.append(passage)
        else:
            words = filter(None, (passage.title, passage.text))
            parted.notes.append("\n".join(words))
    return parted


def only_notes(evidence: Sequence[Evidence], call: ToolCall | None) -> bool:
    """Whether all that a call returned is notes. Quick, since the first passage mostly decides."""
    if not evidence or not _may_be_a_note(evidence[0]):
        return False
    texts = texts_of(call)
    return all(note_kind(passage, texts) is not None for passage in evidence)


def note_kind(passage: Evidence, texts: Sequence[str] = ()) -> Kind | None:
    """Which kind of note a passage is, where it is one; `texts` are those of the call.

    Example:
        >>> note_kind(Evidence("No results found for 'Rome'."), ["Rome"])
        'empty'
        >>> note_kind(Evidence("Noted: it must be Rome."), ["it must be Rome"])
        'echo'
    """
    if not _may_be_a_note(passage):
        return None
    if _is_raw(passage):
        return _kind_of_response(passage.text, texts)
    if is_a_word_for_nothing(passage.text):  # a thing may be called "Nothing"
        return None
    text = passage.text
    if len(text) <= LONGEST:
        text = marked(text, texts)
    return kind_of(text, share=_OF_A_PAGE, first=1) if passage.title else kind_of(text)


def _kind_of_response(response: str, texts: Sequence[str]) -> Kind | None:
    """The kind of a text as the tool wrote it; of JSON, where all its fields are notes."""
    if _EMPTY_TAGS.fullmatch(response) or is_blank(response):
        return "empty"
    leaves = _leaves_in(response)
    holds_nothing = _NOTHING.search(response) is not None
    kinds = [_kind_of(text, texts) for text in _texts_in(leaves, holds_nothing)]
    if None in kinds or (_are_echoes(kinds) and _states_zero(leaves, holds_nothing)):
        return None
    if not kinds:
        return "empty"
    # {"query": "Rome", "results": []} repeats the call, and says that there is nothing
    if kinds[0] == "echo" and holds_nothing:
        return "empty"
    return kinds[0]


def _are_echoes(kinds: Iterable[Kind | None]) -> bool:
    return all(kind == "echo" for kind in kinds)


def _only_repeats(response: str, texts: Sequence[str]) -> bool:
    """Whether all texts in a response in JSON are echoes of the call."""
    leaves = _leaves_in(response)
    return _are_echoes(_kind_of(text, texts) for text in _texts_in(leaves, holds_nothing=False))


def supporting(step: Step) -> tuple[Evidence, ...]:
    """The step's evidence as far as it can support something: without notes, and with an ellipsis
    for each copy of the call.
    """
    return tuple(supported_by(step.evidence, step.call))


def supported_by(evidence: Sequence[Evidence], call: ToolCall | None) -> list[Evidence]:
    """The same of some passages that this call returned."""
    if not evidence:
        return []
    texts = texts_of(call)
    return [
        _without_copies(passage, texts) for passage in evidence if note_kind(passage, texts) is None
    ]


def supporting_passages(trajectory: Trajectory) -> list[Evidence]:
    """The evidence of all steps, as far as it can support something."""
    return [passage for step in trajectory.steps for passage in supporting(step)]


def notes_of(trajectory: Trajectory) -> dict[str, int]:
    """How many responses and passages are notes, by their kinds; "other" for a note that a dialect
    or a program marks as one.
    """
    counts: Counter[str] = Counter()
    for step in trajectory.steps:
        texts = texts_of(step.call)
        if step.call is not None and step.note.strip():
            counts[note_kind(Evidence(step.note), texts) or "other"] += 1
        kinds = [note_kind(passage, texts) for passage in step.evidence]
        counts.update(kind for kind in kinds if kind is not None)
    return dict(counts)


def own_words(note: str, call: ToolCall | None) -> str:
    """A note with an ellipsis for what it repeats of the call: what was written there, and the name
    of the tool where that is more than a word.
    """
    if not note or call is None:
        return note
    names = [call.name] if len(call.name.split()) > 1 else []
    return marked(note, [*names, *texts_of(call)]).replace(COPY, _ELLIPSIS)


def failure_of(fields: Mapping[str, Any]) -> str | None:
    """What an object says of a call that failed, as tools, MCP and services mark it; `None` where
    it does not say that it failed.

    Example:
        >>> failure_of({"isError": True, "content": [{"type": "text", "text": "quota"}]})
        'quota'
        >>> failure_of({"error": None, "results": []})
    """
    if REPORTING.isdisjoint(fields):
        return None
    why = _first_filled(fields, _SAYS_WHY)
    if isinstance(why, float):  # how far off a number is
        why = None
    if why is None and not is_marked_failed(fields):
        return None
    if why in (None, True):  # that it failed, and no more
        why = _first_filled(fields, _MESSAGE)
    words = [str(leaf.value) for leaf in _leaves(why) if not (leaf.is_blank or leaf.is_zero)]
    return " ".join(words) or "failed"


def _first_filled(fields: Mapping[str, Any], names: Sequence[str]) -> Any:
    """The value of the first of these fields that holds something; `None`: none does."""
    return next((fields[name] for name in names if fields.get(name)), None)


def is_marked_failed(fields: Mapping[str, Any]) -> bool:
    """Whether a switch or a status says that the call failed, so that nothing was found. The status
    of what has a name, such as a patent, is another one.
    """
    if fields.get("isError") is True or fields.get("is_error") is True:
        return True
    if any(fields.get(name) for name in _NAMES):
        return False
    if fields.get("success") is False or fields.get("ok") is False:
        return True
    return any(_says_failed(fields.get(name)) for name in _STATUS)


def _says_failed(status: Any) -> bool:
    if isinstance(status, str) and status.isdecimal():
        status = int(status[:9])  # Python reads no number of thousands of digits
    if isinstance(status, str):
        return status.lower() in _FAILED
    return isinstance(status, int) and not isinstance(status, bool) and 400 <= status < 600


def _may_be_a_note(passage: Evidence) -> bool:
    """Whether a look at the words is worth while. A quick one: most passages say something."""
    length = len(passage.text)
    if passage.title:
        return length <= _SNIPPET and may_begin_a_note(passage.text)
    return length <= (LONGEST if passage.url else _LONGEST_ECHO)


def _is_raw(passage: Evidence) -> bool:
    """Whether it is a text as the tool wrote it, and no passage of a page or document."""
    return not passage.title and not passage.url


def _kind_of(text: str, texts: Sequence[str]) -> Kind | None:
    """The kind of a text that a tool wrote."""
    text = marked(text, texts)
    if COPY in text and only_confirms(text):
        return "echo"
    return kind_of(text)


def _without_copies(passage: Evidence, texts: Sequence[str]) -> Evidence:
    if not any_copy(f"{passage.title}\n{passage.text}", texts):
        return passage
    is_raw = _is_raw(passage)
    if is_raw and len(passage.text) <= _LONGEST_ECHO and _only_repeats(passage.text, texts):
        # A number stands beside what the agent wrote, whatever the fields are called
        text = marked(passage.text, texts)
    else:
        text = unframed(passage.text, texts, alone=is_raw)
    title = unframed(passage.title, texts, alone=False)
    if text == passage.text and title == passage.title:
        return passage
    return msgspec.structs.replace(
        passage,
        text=text.replace(COPY, _ELLIPSIS),
        title=title.replace(COPY, _ELLIPSIS),
    )


def _leaves_in(text: str) -> list[_Leaf]:
    """What the fields of a response in JSON hold; any other response as a whole."""
    if text.lstrip()[:1] in ("{", "["):
        value = loose_json.printed(text)
        with suppress(ValueError, RecursionError):
            value = json.loads(text) if value is None else value
            if isinstance(value, dict):
                value = without_request(value)
            return list(_leaves(value))
    return [_Leaf("", text)]


def _texts_in(leaves: Iterable[_Leaf], holds_nothing: bool) -> list[str]:
    """The texts in a response; 0 and `False` are none. A thing that is called "Nothing" stands
    behind the name of its field.
    """
    texts: list[str] = []
    for leaf in leaves:
        if leaf.is_blank or leaf.is_zero:
            continue
        text = str(leaf.value)
        may_name_a_thing = leaf.name not in _RETURNED and not holds_nothing
        names_a_thing = may_name_a_thing and is_a_word_for_nothing(text)
        texts.append(f"{leaf.name}: {text}" if names_a_thing else text)
    return texts


def _states_zero(leaves: Sequence[_Leaf], holds_nothing: bool) -> bool:
    """Whether a response that says nothing else states 0 or `False`: as the value that was
    returned, or in a field of any other name where no field is empty. Beside an empty one it says
    how the call went, as `{"text": "", "length": 0}` does.
    """
    names = [leaf.name for leaf in leaves if leaf.is_zero]
    if not _VALUES.isdisjoint(names):
        return True
    is_empty = any(leaf.is_blank and leaf.name not in _SAYS_WHY for leaf in leaves)
    if is_empty or holds_nothing:
        return False
    return any(name not in REPORTING and not tells_how_it_went(name) for name in names)


def _leaves(value: Any, name: str = "", depth: int = 0) -> Iterator[_Leaf]:
    """The values in JSON that hold no others, without those that say how a call went."""
    if isinstance(value, Mapping) and depth < _DEEPEST:
        for key, entry in value.items():
            yield from _leaves(entry, str(key), depth + 1)
    elif isinstance(value, list | tuple) and depth < _DEEPEST:
        for entry in value:
            yield from _leaves(entry, name, depth + 1)
    elif name not in _REPORTS:
        yield _Leaf(name, value)
