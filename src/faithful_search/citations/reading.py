"""A text that may cite: what is left of it without marks, and what its sentences cite."""

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import accumulate
from typing import NamedTuple

from ..text import sentences
from ..trajectory import Citation
from .lists import WORDS, OwnList, may_have_list, own_list
from .marks import Mark, marks_of, may_have_marks
from .sources import Referent, Returned

_WORD = "|".join((*WORDS["source"], *WORDS["leading"]))
_BETWEEN = re.compile(
    r"[ \t]{0,3}(?:[,;、，；/&|·•]|\b(?:and|und|et|y|og|и)\b)?[ \t]{0,3}", re.IGNORECASE
)
_OPENS = re.compile(rf"[(（\[][ \t]{{0,3}}(?i:(?:{_WORD})\s{{0,2}}[:：]?\s{{0,2}})?\Z")
_CLOSES = re.compile(r"[ \t]{0,3}[)）\]]")
_SENTENCE_START = r"(?:\A|(?<=[.!?。！？\n])|(?<=[.!?] ))[ \t]{0,3}[*_]{0,2}"
_INTRODUCES = re.compile(  # "Source: "
    rf"{_SENTENCE_START}(?i:{'|'.join(WORDS['source'])})\s?[:：][*_]{{0,2}}\s{{0,2}}\Z"
)
_REFERS = re.compile(  # "See ", before marks that end the sentence
    rf"{_SENTENCE_START}(?i:{'|'.join(WORDS['leading'])})\s?[:：]?\s?\Z"
)
_ENDED = re.compile(r"[.!?。！？…][\"'”’»)]{0,2}\s{1,20}\Z")
_ENDS = re.compile(r"[.。](?=\s|\Z)|[ \t]{0,20}(?:\n|\Z)")
_HARMLESS = re.compile(r"[A-Za-z ,.;'\"!?&-]*+")  # as most short answers are
_LINE_START = re.compile(r"(?:\A|\n)[ \t>#*•-]{0,20}\Z")
_LINE_END = re.compile(r"[\s.。]{0,20}(?:\n|\Z)")
_LATIN = re.compile(r"[^\W\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\u0e00-\u0eff]")
_NO_SENTENCE = re.compile(r"#{1,6}\s|```|[\s|:=-]{3,}\Z")  # headings, fences, rules
_HEAD_OF_TABLE = re.compile(r"\n[ \t]{0,9}\|?[ \t]{0,9}:?-{2,}[ \t:|-]{0,999}(?:\n|\Z)")
_BLANKS = re.compile(r"\s*")
_STOPS = ".。!！?？,，;；:"
_BACK = 48  # characters in front of a mark that are looked at


class Sentence(NamedTuple):
    """A sentence of a text without marks, and the sources that it cites, each once."""

    text: str
    sources: tuple[Referent, ...]


class Cut(NamedTuple):
    """A stretch that is taken out of a text, and what stands there instead."""

    start: int
    end: int
    instead: str = ""


@dataclass(frozen=True)
class Reading:
    """A text that may cite.

    Attributes:
        text: as it was written; the spans of the citations are in it.
        plain: the text without marks and without its list of sources. A text of nothing but marks
            is content, and cites nothing.
        citations: in the order of the text; those that an API sent come last.
        listed: the writer's own list of sources.
        returned: what the citations are resolved against.
    """

    text: str
    plain: str
    returned: Returned
    citations: tuple[Citation, ...] = ()
    listed: OwnList = field(default_factory=OwnList)
    cuts: tuple[Cut, ...] = ()

    @cached_property
    def sources(self) -> tuple[Referent, ...]:
        """What each citation refers to."""
        return tuple(self.returned.source_of(source, self.listed) for source in self.citations)

    @cached_property
    def sentences(self) -> tuple[Sentence, ...]:
        """The sentences of `plain` that say something; headings do not."""
        stretches = list(self._stretches())
        starts = [start for start, _ in stretches]
        cited: list[dict[str, Referent]] = [{} for _ in stretches]  # of each, by the sources' keys
        for citation, source in zip(self.citations, self.sources, strict=True):
            for number in self._cited_in(citation, starts):
                cited[number].setdefault(source.key, source)
        with_sources: list[Sentence] = []
        for (start, stretch), sources in zip(stretches, cited, strict=True):
            if not self._heads(start, start + len(stretch)):
                with_sources.append(Sentence(stretch, tuple(sources.values())))
        return tuple(with_sources)

    def _stretches(self) -> Iterator[tuple[int, str]]:
        """The sentences and headings of `plain` that have a letter or digit, each after the place
        where it starts.
        """
        at = 0
        for stretch in sentences(self.plain):
            start = self.plain.index(stretch, at)
            at = start + len(stretch)
            if any(map(str.isalnum, stretch)):
                yield start, stretch

    def _heads(self, start: int, end: int) -> bool:
        """Whether this stretch of `plain` is a heading, a rule or the head of a table."""
        head = _NO_SENTENCE.match(self.plain, start, end)
        return bool(head or _HEAD_OF_TABLE.match(self.plain, end))

    def _cited_in(self, citation: Citation, starts: Sequence[int]) -> Iterable[int]:
        """The numbers of the sentences that have this citation: those that it covers, the one
        before which it begins a line, or the one that it stands in or after. `starts` are the
        places where the sentences start.
        """
        start, end = citation.span
        has_no_place = citation.how == "list" or (citation.how == "api" and end == 0)
        if has_no_place or not starts:
            return ()
        start = self._after_blanks(start, end)
        plain_start = self._place(start)
        plain_end = self._place(end)
        if plain_start < plain_end:
            first = _last_at(starts, plain_start)
            last = _last_at(starts, plain_end - 1)
            return range(first, last + 1)
        if self._leads(start) and not _LINE_END.match(self.text, end):
            next_words = self._after_blanks(end, len(self.text))
            return [_last_at(starts, self._place(next_words))]
        return [_last_at(starts, plain_start - 1)]

    def _after_blanks(self, start: int, end: int) -> int:
        """The first place in this stretch of the text that holds no blank; `end` where none is."""
        blanks = _BLANKS.match(self.text, start, end)
        return start if blanks is None else blanks.end()

    def _leads(self, start: int) -> bool:
        """Whether a mark that starts here may stand in front of the sentence that it belongs to."""
        before = self.text[max(0, start - _BACK) : start]
        if _LINE_START.search(before):
            return True
        return self._marks_lead and _ENDED.search(before) is not None

    @cached_property
    def _marks_lead(self) -> bool:
        """Whether the writer puts marks in front of sentences, as the first one shows."""
        return bool(self.citations) and not self.text[: self.citations[0].span[0]].strip(" \t#*-")

    @cached_property
    def _gone(self) -> list[int]:
        """How many characters fewer `plain` has behind each cut."""
        return list(accumulate(cut.end - cut.start - len(cut.instead) for cut in self.cuts))

    def _place(self, at: int) -> int:
        """Where a place in the text is in `plain`."""
        number = bisect_right(self.cuts, at, key=lambda cut: cut.start) - 1
        if number < 0:
            return at
        cut = self.cuts[number]
        if at < cut.end:  # in what was taken out
            return cut.start - (self._gone[number - 1] if number else 0)
        return at - self._gone[number]


def _last_at(starts: Sequence[int], at: int) -> int:
    """The number of the last sentence that starts at this place or before it; 0 where none does."""
    return max(0, bisect_right(starts, at) - 1)


def may_cite(text: str) -> bool:
    """Whether the text has anything that a mark or a list of sources begins with; most have
    not.
    """
    if _HARMLESS.fullmatch(text) and "www." not in text:
        return False
    return may_have_marks(text) or may_have_list(text)


@lru_cache(maxsize=512)
def read(text: str, returned: Returned, sent: tuple[Citation, ...] = ()) -> Reading:
    """What a text cites; `sent` are citations that an API sent beside it."""
    listed = own_list(text, returned.names_source)
    body = _without_list(text, listed)
    marks = marks_of(body, returned)
    cuts = _cuts(body, marks)
    cuts += [Cut(*entry.span) for entry in listed.entries]
    cuts.sort()
    plain = _taken_out(text, cuts) if cuts else text
    if cuts and not any(map(str.isalnum, plain)):
        return Reading(text, text, returned, sent)
    cited: list[Citation] = []
    for mark in marks:
        for target in dict.fromkeys(mark.targets):  # "[1, 1]" cites once
            cited.append(Citation(mark.span, target, mark.how))
    for entry in listed.entries:
        cited.append(Citation(entry.span, entry.target, "list"))
    return Reading(
        text=text,
        plain=plain,
        returned=returned,
        citations=(*cited, *sent),
        listed=listed,
        cuts=tuple(cuts),
    )


def _without_list(text: str, listed: OwnList) -> str:
    """The text with nothing but line breaks where the list of sources stands."""
    parts = []
    at = 0
    for entry in listed.entries:
        start, end = entry.span
        parts += [text[at:start], "\n" * (end - start)]
        at = end
    return "".join([*parts, text[at:]])


def _taken_out(text: str, cuts: Sequence[Cut]) -> str:
    """The text after these cuts, which come in its order."""
    parts = []
    at = 0
    for cut in cuts:
        parts += [text[at : cut.start], cut.instead]
        at = cut.end
    return "".join([*parts, text[at:]]).rstrip()


def _cuts(text: str, marks: Sequence[Mark]) -> list[Cut]:
    """What is taken out: marks, what separates them, parentheses and words around them alone."""
    runs: list[list[Mark]] = []  # marks that follow one another
    for mark in marks:
        if runs and _BETWEEN.fullmatch(text, runs[-1][-1].span[1], mark.span[0]):
            runs[-1].append(mark)
        else:
            runs.append([mark])
    cuts: list[Cut] = []
    for run in runs:
        cuts += _cuts_of_run(text, run)
    return cuts


def _cuts_of_run(text: str, run: Sequence[Mark]) -> list[Cut]:
    """What is taken out for marks that follow one another."""
    start = run[0].span[0]
    end = run[-1].span[1]
    before_start = max(0, start - _BACK)
    before = text[before_start:start]
    opens = _OPENS.search(before)
    closes = _CLOSES.match(text, end)
    if opens and closes:
        return [_tidied(text, before_start + opens.start(), closes.end())]
    ends_sentence = _ENDS.match(text, end) is not None
    introduction = _INTRODUCES.search(before)
    if introduction is None and ends_sentence:
        introduction = _REFERS.search(before)
    # links that are a sentence of their own name sources; others are words of their sentence
    if introduction is not None:
        return [_tidied(text, before_start + introduction.start(), end)]
    if ends_sentence and _ENDED.search(before):
        return [_tidied(text, start, end)]
    cuts: list[Cut] = []
    silent: list[Mark] = []  # marks in a row that leave nothing
    for mark in run:
        if mark.kept is None:
            silent.append(mark)
            continue
        if silent:
            cuts.append(_tidied(text, silent[0].span[0], silent[-1].span[1]))
            silent = []
        cuts += [Cut(mark.span[0], mark.kept[0]), Cut(mark.kept[1], mark.span[1])]
    if silent:
        cuts.append(_tidied(text, silent[0].span[0], silent[-1].span[1]))
    return cuts


def _tidied(text: str, start: int, end: int) -> Cut:
    """The cut with the blanks and the doubled stop that would be left."""
    after = text[end : end + 1]
    if start == 0 or text[start - 1] == "\n":
        while text[end : end + 1] in (" ", "\t"):
            end += 1
        return Cut(start, end)
    if not after.isalnum():
        while start and text[start - 1] in " \t":
            start -= 1
    before = text[start - 1 : start]
    if after and after == before and after in _STOPS:
        end += 1
    joined = _LATIN.match(before) and _LATIN.match(after)
    return Cut(start, end, " " if joined else "")
