"""Markup in a chat that is only quoted.

What a program stored apart, such as a thought or an answer, holds no markup, whatever stands in it;
nor does what the agent shows as code, nor a call within a sentence to which nothing responds. While
a chat is parsed, the `<` of such a tag is another character, which is put back afterwards.
"""

from bisect import bisect_right
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec

from ..formats.chat import TAGLIKE, Message
from ..formats.quotes import code_of, stands_apart
from ..trajectory import Step, Trajectory
from .turns import GAP, Tag

if TYPE_CHECKING:
    from .base import Dialect

_MARKS = range(0xE000, 0xF8FF)  # private characters, which hardly any text has
_LONGEST_NAME = 24
"""The characters that are read of a tag to see whether it is a verdict's: more than the longest of
their names has, with its slash and bracket.
"""


class Quoting:
    """Hides the quoted markup of a chat in this dialect, and restores it in what was read."""

    def __init__(self, dialect: "Dialect", chat: Sequence[Message]) -> None:
        self.grammar = dialect.grammar
        texts = "".join([message.text for message in chat if "<" in message.text])
        self.mark = next((chr(code) for code in _MARKS if chr(code) not in texts), "\ufffc")
        self.hidden = False

    def hide(self, message: Message, responds: bool, inline: bool = False) -> tuple[str, int]:
        """The text of the agent's message without its quoted tags, and how many calls are quoted in
        its content.

        `responds`: a response follows. `inline`: the content holds responses, too, and is not
        looked at.
        """
        parts: list[str] = []
        calls = 0
        for piece in message.pieces:
            text = piece.text
            if "<" in text and piece.source in ("thought", "answer"):
                # A thought may hold verdicts on the evidence, whose tags are markup.
                verdicts = self.grammar.verdicts if piece.source == "thought" else ()
                text = self._without(text, _taglike(text, verdicts))
            elif "<" in text and piece.source == "content" and not inline:
                quoted = self._quoted(message, text, responds)
                text = self._without(text, [tag.start for tag in quoted])
                calls += sum(tag.name == "call" and not tag.closing for tag in quoted)
            parts.append(text)
        return "".join(parts), calls

    def restore(self, trajectory: Trajectory) -> Trajectory:
        """The trajectory with its markup as it was written."""
        if not self.hidden:
            return trajectory
        answer = trajectory.answer
        return msgspec.structs.replace(
            trajectory,
            steps=tuple([self._restored(step) for step in trajectory.steps]),
            answer=answer and answer.replace(self.mark, "<"),
            text=trajectory.text.replace(self.mark, "<"),
        )

    def _restored(self, step: Step) -> Step:
        issues = []
        for issue in step.issues:
            why = issue.why.replace(self.mark, "<")
            issues.append(msgspec.structs.replace(issue, why=why))
        return msgspec.structs.replace(
            step,
            think=step.think and step.think.replace(self.mark, "<"),
            answer=step.answer and step.answer.replace(self.mark, "<"),
            issues=tuple(issues),
        )

    def _without(self, text: str, places: Collection[int]) -> str:
        """The text with another character at these places."""
        if not places:
            return text
        self.hidden = True
        characters = list(text)
        for place in places:
            characters[place] = self.mark
        return "".join(characters)

    def _quoted(self, message: Message, content: str, responds: bool) -> list[Tag]:
        """The tags in the agent's own words that are no markup."""
        tags = self.grammar.tags(content)
        if message.calls:  # the calls are known
            sent_apart = ("call", "response", "answer") if message.answers else ("call", "response")
            return [tag for tag in tags if tag.name in sent_apart]
        if not tags:
            return []
        starts, ends = code_of(content, self.grammar.blocks)
        in_code: list[Tag] = []
        outside: list[Tag] = []
        for tag in tags:
            place = bisect_right(starts, tag.start) - 1
            quoted = place >= 0 and tag.start < ends[place]
            (in_code if quoted else outside).append(tag)
        if responds:
            # A call that was run is one, even if it stands alone in a code block.
            calls_in_code = any(tag.name == "call" for tag in in_code)
            calls_outside = any(tag.name == "call" for tag in outside)
            return [] if calls_in_code and not calls_outside else in_code
        return [*in_code, *_in_sentences(content, outside)]


def _taglike(text: str, allowed: Collection[str]) -> list[int]:
    """Where something looks like a tag that has none of these names."""
    places = []
    for match in TAGLIKE.finditer(text):
        name = text[match.end() : match.end() + _LONGEST_NAME].lstrip("/").partition(">")[0]
        if name not in allowed:
            places.append(match.start())
    return places


def _in_sentences(text: str, tags: Sequence[Tag]) -> list[Tag]:
    """The tags of calls that are words of a sentence: text stands right before or behind them."""
    quoted: list[Tag] = []
    done = 0  # the end of the stretch before
    for first, last in _stretches(tags):
        if tags[first].name == "call" and not tags[first].closing:
            apart = stands_apart(text, done, tags[first].start)
            is_cut_off = last == first  # so that nothing stands behind it
            if not apart or not (is_cut_off or _gap_behind(text, tags, last)):
                quoted += tags[first : last + 1]
        done = tags[last].end
    return quoted


def _gap_behind(text: str, tags: Sequence[Tag], number: int) -> bool:
    """Whether no words stand between this tag and the next one, or the end of the text."""
    end = tags[number + 1].start if number + 1 < len(tags) else len(text)
    return GAP.fullmatch(text, tags[number].end, end) is not None


def _stretches(tags: Sequence[Tag]) -> Iterator[tuple[int, int]]:
    """The numbers of the first and the last tag of each thought and call, with all tags between
    them. Any other tag is a stretch of its own, and so is one that nothing closes.
    """
    closings = _closings(tags)
    first = 0
    while first < len(tags):
        last = first
        if not tags[first].closing and tags[first].name in ("think", "call"):
            last = closings[first]
        yield first, last
        first = last + 1


def _closings(tags: Sequence[Tag]) -> list[int]:
    """For each tag the number of the one that closes it; its own where none does."""
    closings = list(range(len(tags)))
    nearest: dict[str, int] = {}
    for number in reversed(closings):
        tag = tags[number]
        closings[number] = nearest.get(tag.name, number)
        if tag.closing:
            nearest[tag.name] = number
    return closings
