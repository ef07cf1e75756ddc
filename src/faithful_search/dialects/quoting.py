"""Markup in a chat that is only quoted.

What a program stored apart, such as a thought or an answer, holds no markup, whatever stands in it;
nor does what the agent shows as code, nor a call within a sentence to which nothing responds. While
a chat is parsed, the `<` of such a tag is another character, which is put back afterwards.
"""

from bisect import bisect_right
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

import msgspec

from ..formats.chat import TAGLIKE, Message
from ..formats.quotes import code_of, stands_apart
from ..trajectory import Step, Trajectory
from .turns import GAP, Tag

if TYPE_CHECKING:
    from .base import Dialect

_MARKS = range(0xE000, 0xF8FF)  # private characters, which hardly any text has


class Quoting:
    """Hides the quoted markup of a chat in this dialect, and restores it in what was read."""

    def __init__(self, dialect: "Dialect", chat: Sequence[Message]) -> None:
        self.grammar = dialect.grammar
        texts = "".join([message.text for message in chat if "<" in message.text])
        self.mark = next((chr(code) for code in _MARKS if chr(code) not in texts), "\ufffc")
        self.hidden = False

    def hide(self, message: Message, responds: bool, whole: bool = False) -> tuple[str, int]:
        """The text of the agent's message without its quoted tags, and how many calls are quoted in
        its content.

        `responds`: a response follows. `whole`: the content holds responses, too, and is not looked
        at.
        """
        parts: list[str] = []
        calls = 0
        for piece in message.pieces:
            text = piece.text
            if "<" in text and piece.source in ("thought", "answer"):
                verdicts = self.grammar.verdicts if piece.source == "thought" else ()
                text = self._without(text, _taglike(text, verdicts))
            elif "<" in text and piece.source == "content" and not whole:
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
            known = ("call", "response", "answer") if message.answers else ("call", "response")
            return [tag for tag in tags if tag.name in known]
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
            called = any(tag.name == "call" for tag in outside)
            return in_code if called or not any(tag.name == "call" for tag in in_code) else []
        return [*in_code, *_in_sentences(content, outside)]


def _taglike(text: str, allowed: Collection[str]) -> list[int]:
    """Where something looks like a tag that has none of these names."""
    places = []
    for match in TAGLIKE.finditer(text):
        name = text[match.end() : match.end() + 24].lstrip("/").partition(">")[0]
        if name not in allowed:
            places.append(match.start())
    return places


def _in_sentences(text: str, tags: Sequence[Tag]) -> list[Tag]:
    """The tags of calls that are words of a sentence: text stands right before or behind them."""
    closings = _closings(tags)
    quoted: list[Tag] = []
    number = done = 0
    while number < len(tags):
        tag, last = tags[number], number
        if not tag.closing and tag.name in ("think", "call"):
            last = closings[number]
        if tag.name == "call" and not tag.closing:
            end = tags[last].end if last > number else len(text)  # one that was cut off ends there
            behind = tags[last + 1].start if last + 1 < len(tags) else len(text)
            apart = stands_apart(text, done, tag.start)
            if not apart or not GAP.fullmatch(text, end, max(end, behind)):
                quoted += tags[number : last + 1]
        done = tags[last].end
        number = last + 1
    return quoted


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
