"""The passages that tools returned, and which of them a citation refers to."""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property

import msgspec

from ..text import holds, plain
from ..trajectory import Citation, Evidence
from .addresses import ADDRESS, ENDS, is_address, page_of
from .lists import RAISED, WORDS, OwnList, key_of

_HIGHEST_NUMBER = 999  # a higher number in brackets is a year, unless a passage has one like it
_FIRST_HEAD = 300  # a text of several results prints its first number within so many characters
_CITING = 3  # a passage with so many different numbers in brackets cites sources of its own
_ASKED_LENGTH = 20_000  # characters of question and gold answers that are searched
_MOST_TITLES = 200  # titles that are looked for within a longer text
# Shorter titles and names of sites stand in many texts that do not mean them.
_SHORTEST_NAME = 4
_LONGEST_WORD = 40  # characters that are read of the word before a mark
_LONGEST_GAP = 4  # characters between that word and the mark
# How a result prints its number in front of itself: "[3]", "> 【3】", "Source 3:"
_PRINTED = re.compile(
    r"^[ \t>#*-]{0,8}(?:[\[【［](?P<square>\d{1,6})[\]】］]"
    rf"|(?i:{'|'.join(WORDS['source'])})\s?[\[#]?(?P<word>\d{{1,4}})(?:\][:：]?|[:：.)]|(?=\s?[(\n])))",
    re.MULTILINE,
)
# As a list is numbered: "3. " or "3) "
_DOTTED = re.compile(r"^[ \t]{0,4}(?P<square>\d{1,3})[.)][ \t]", re.MULTILINE)
_BRACKETED = re.compile(r"[\[［]\s{0,2}\d[\d\s,;–-]{0,60}[\]］]")
_EXPONENT = re.compile(rf"[{RAISED}]{{1,3}}+")
_ADDRESS = re.compile(ADDRESS)
_TOKEN = re.compile(r"[^\W\d_][\w:.-]{1,80}")
# As works are cited: "Mirov (2020)", "Mirov, A. and Lind, 2020a", "Mirov et al., 2020"
_AUTHORS = re.compile(
    r"([^\W\d_a-zß-öø-ÿ][\w'’-]{1,40})(?:,? (?:[A-Z]\.[ -]?){1,4})?"
    r"(?:,? (?:and|&|und|et|y) ([^\W\d_a-zß-öø-ÿ][\w'’-]{1,40})(?:,? (?:[A-Z]\.[ -]?){1,4})?| et "
    r"al\.?)?"
    r",? ?[(（]?((?:1[5-9]|20)\d\d)[a-z]?(?=[)）;.,:]|\Z)"
)
_BLANKS = re.compile(r"[\s\\]+")
_LAST_WORD = re.compile(rf"(\w{{1,{_LONGEST_WORD}}})(\W{{0,{_LONGEST_GAP}}})\Z")
# What an id has in front of its own part: "doc_" of "doc_7", "hit" of "hit12"
_STEM = re.compile(r"(.{1,60}[_:#/.-])[^_:#/.\s-]{1,40}|([^\W\d_]{1,40})\d{1,12}")
# Both count from 0. "turn0search1" is the second passage of the first step that returned any.
_TURN = re.compile(r"turn(\d{1,4})[a-z]{1,20}(\d{1,4})")
# "4:0", as OpenAI's assistants count: a number of the message, and the passage among all returned
_IN_RESPONSE = re.compile(r"\d{1,4}:(\d{1,4})")
_NARROW = str.maketrans("［］【】〔〕", "[][][]")
_DIGITS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹", "0123456789")


class Passage(msgspec.Struct, frozen=True):
    """A passage that was returned, or a part of it that has a number of its own.

    Attributes:
        evidence: the whole passage.
        step: the number of the step that returned it, from 1.
        place: the place of the whole passage in the step's response, from 1.
        text: the text of the passage, or of the part.
    """

    evidence: Evidence
    step: int
    place: int
    text: str


class Referent(msgspec.Struct, frozen=True):
    """What a citation refers to.

    Attributes:
        name: what a reader knows it by, as the citation or the writer's list of sources has it.
        passages: the passages of this source that were returned; none where it was never returned.
        by: what they were found by: "address", "label", "place", "id", "title" or "author"; may be
            empty where there are none.
    """

    name: str
    passages: tuple[Passage, ...] = ()
    by: str = ""

    @property
    def key(self) -> str:
        """The same text for all citations of one source."""
        if not self.passages:
            name = page_of(self.name) if is_address(self.name) else self.name.casefold()
            return f"absent {name}"
        first = self.passages[0]
        if first.evidence.url:
            return page_of(first.evidence.url)
        return f"{first.evidence.title}\n{first.text}"


class ReturnedStep(msgspec.Struct, frozen=True):
    """What one step returned, and the addresses in its call's arguments (of a page it opens)."""

    evidence: tuple[Evidence, ...]
    addresses: tuple[str, ...] = ()


PassagesBy = dict[str, list[Passage]]
"""Passages by something that a citation may give: a number, an id, a page, a title, …"""


class Returned:
    """The passages that a trajectory's tools returned before its answer, to look up what is cited.

    It also implements `marks.Citable`, by which `marks_of` tells citation marks from content. The
    tables that look-ups need are made when they are first used, in time linear in the length of the
    texts.

    Args:
        asked: question and gold answers; what stands in them is content and no mark.
        steps: what was returned, in the order of the trajectory.
        counted: whether the number n may mean the n-th passage that was returned, where no passage
            printed that number.
    """

    def __init__(
        self, asked: Sequence[str], steps: Sequence[ReturnedStep], counted: bool = True
    ) -> None:
        self.asked = "\n".join(asked)[:_ASKED_LENGTH]
        self.steps = steps
        self.counted = counted
        self.passages: list[Passage] = []
        for number, step in enumerate(steps, start=1):
            for place, evidence in enumerate(step.evidence, start=1):
                passage = Passage(evidence, step=number, place=place, text=evidence.text)
                self.passages.append(passage)

    # What is a mark: the methods of `marks.Citable`

    def is_content(self, written: str, before: str) -> bool:
        """Whether question, gold answers or evidence have this in the same form, in brackets or as
        raised figures.

        Args:
            written: the possible mark.
            before: the characters in front of it, `""` at the beginning of the text.
        """
        if written in self.asked:
            return True
        last = _LAST_WORD.search(before)
        word = last[1].casefold() if last else ""
        compact = _BLANKS.sub("", written).translate(_NARROW)
        if compact.startswith("["):
            words_before = self._in_brackets.get(compact, set())
            return "" in words_before or word in words_before
        digits = "".join(filter(str.isdigit, compact.translate(_DIGITS)))
        attached = last is not None and not last[2]
        return attached and f"{word}^{digits}" in self._exponents

    def is_id(self, token: str, strict: bool) -> bool:
        """Whether this is the id or label of a passage or, unless `strict`, begins as one does:
        `doc_9` where `doc_7` was returned.
        """
        token = token.casefold()
        if token in self._labels or token in self._ids:
            return True
        return not strict and _stem(token) in self._stems

    def is_number(self, number: str) -> bool:
        """Whether a passage can be cited by this number."""
        return int(number) <= _HIGHEST_NUMBER or self._has_higher_label

    def is_author(self, name: str, year: str) -> bool:
        """Whether a passage cites or is a work of this author and year (`_AUTHORS`)."""
        return f"{name} {year}".casefold() in self._authors

    def names_source(self, text: str) -> bool:
        """Whether the text names a passage, by its title, its site or its label."""
        return bool(self._named(text).passages)

    # What a citation refers to

    def source_of(self, citation: Citation, listed: OwnList) -> Referent:
        """The source of a citation; `listed` is the writer's own list of sources.

        A number or key means the entry that the list gives it. A number that a list leaves out
        refers to nothing: a writer with a list does not count the passages. Cursors are an
        exception, since a tool gave their numbers.
        """
        target = citation.target
        key = key_of(target)
        if is_address(target) or citation.how in ("list", "api"):
            return self._named(target)
        entry = listed.entry(key)
        if entry is not None:
            return self._named(entry.target)
        if not key.isdecimal():
            # A footnote's name is the writer's own: without its definition it names no source.
            return Referent(f"[^{target}]") if citation.how == "footnote" else self._named(target)
        if listed.entries and citation.how != "cursor":
            return Referent(f"[{key}]")
        return self._numbered(key)

    def _numbered(self, key: str) -> Referent:
        """The passages that printed this number or, where the results were not numbered throughout,
        the passage of this place and all others of its page.
        """
        name = f"[{key}]"
        if not self.counted:
            return Referent(name)
        if key in self._labels:
            return Referent(name, tuple(self._labels[key]), "label")
        first = self._labels.get("1") or self._labels.get("0") or []
        # Where every step numbers its results from 1 anew, a higher number counts all passages.
        restarts = len({passage.step for passage in first}) > 1
        numbered_throughout = bool(first) and not restarts
        if numbered_throughout or not 0 < int(key) <= len(self.passages):
            return Referent(name)
        passage = self.passages[int(key) - 1]
        passages = [passage]
        if passage.evidence.url:
            same_page = self._pages.get(page_of(passage.evidence.url), [])
            passages += [neighbour for neighbour in same_page if neighbour is not passage]
        return Referent(name, tuple(passages), "place")

    def _named(self, target: str) -> Referent:
        """The source with this address or, in this order, this label, id, turn, word of a text,
        author and year, title or site.
        """
        key = key_of(target)
        if is_address(target):
            return Referent(target, tuple(self._pages.get(page_of(target), ())), "address")
        for by, passages in (
            ("label", self._labels.get(key)),
            ("id", self._ids.get(key)),
            ("place", self._at_turn(key)),
            ("id", self._tokens.get(key)),
            ("author", self._authors.get(key)),
            ("title", self._by_title(target)),
        ):
            if passages:
                return Referent(target, tuple(passages), by)
        return Referent(target)

    def _at_turn(self, key: str) -> list[Passage]:
        """The passage that `turn0search1` or `4:0` names, alone; see `_TURN` and `_IN_RESPONSE`."""
        response = _IN_RESPONSE.fullmatch(key)
        if response is not None:
            place = int(response[1])
            return self.passages[place : place + 1]
        turn = _TURN.fullmatch(key)
        if turn is None:
            return []
        number = int(turn[1])
        place = int(turn[2])
        steps_with_passages = [passages for passages in self._by_step.values() if passages]
        if number >= len(steps_with_passages):
            return []
        return steps_with_passages[number][place : place + 1]

    def _by_title(self, text: str) -> list[Passage]:
        """The passages whose title or site the text is, or the longest title that it holds."""
        compared = plain(text[:500])
        passages = self._titles.get(compared) or self._sites.get(compared)
        if passages:
            return passages
        titles = list(self._titles)[:_MOST_TITLES]
        for title in sorted(titles, key=len, reverse=True):
            if len(title) >= _SHORTEST_NAME and holds(compared, title):
                return self._titles[title]
        return []

    # The tables of look-ups, each made once

    @cached_property
    def _by_step(self) -> dict[int, list[Passage]]:
        """By the number of the step; steps without passages have empty lists."""
        by_step: dict[int, list[Passage]] = {number: [] for number in range(1, len(self.steps) + 1)}
        for passage in self.passages:
            by_step[passage.step].append(passage)
        return by_step

    @cached_property
    def _pages(self) -> PassagesBy:
        """By page: the passages that were read there, else those whose text names the page."""
        read_there: PassagesBy = defaultdict(list)
        mentioned: PassagesBy = defaultdict(list)
        for passage in self.passages:
            evidence = passage.evidence
            addresses = list(filter(is_address, (evidence.url, evidence.source)))
            # A passage without an address is of the page that the call opened.
            for address in addresses or self.steps[passage.step - 1].addresses:
                read_there[page_of(address)].append(passage)
            if addresses:
                continue
            in_text = [match[0].rstrip(ENDS) for match in _ADDRESS.finditer(evidence.text)]
            for page in dict.fromkeys(map(page_of, in_text)):  # each once, in the text's order
                mentioned[page].append(passage)
        return mentioned | read_there

    @cached_property
    def _ids(self) -> PassagesBy:
        """By the id that the toolbox or the recorded rollout gave, such as `e1`."""
        return _grouped((passage.evidence.id.casefold(), passage) for passage in self.passages)

    @cached_property
    def _labels(self) -> PassagesBy:
        """By the number or id that the result has as a field (`Evidence.label`, these come first)
        or prints in its text.
        """
        labelled: list[tuple[str, Passage]] = []
        printed: list[tuple[str, Passage]] = []
        for passage in self.passages:
            if passage.evidence.label:
                labelled.append((key_of(passage.evidence.label), passage))
            printed += self._printed(passage)
        return _grouped([*labelled, *printed])

    @cached_property
    def _has_higher_label(self) -> bool:
        """Whether a passage has a number as label that is over `_HIGHEST_NUMBER`."""
        numbers = [int(label) for label in self._labels if label.isdecimal()]
        return any(number > _HIGHEST_NUMBER for number in numbers)

    def _printed(self, passage: Passage) -> Iterator[tuple[str, Passage]]:
        """The numbers that the passage prints in front of itself or, where it is one text of
        several results, in front of each part, with the passage or the part.
        """
        evidence = passage.evidence
        if evidence.title or evidence.url:
            head = _PRINTED.match(evidence.title) or _PRINTED.match(evidence.text)
            if head:
                yield key_of(head["square"] or head["word"]), passage
            return
        heads = list(_PRINTED.finditer(evidence.text))
        if not heads and len(self._by_step[passage.step]) == 1:
            heads = _dotted_heads(evidence.text)
        if not heads or heads[0].start() > _FIRST_HEAD:
            return
        starts = [head.start() for head in heads]
        ends = [*starts[1:], len(evidence.text)]
        for head, start, end in zip(heads, starts, ends, strict=True):
            part = msgspec.structs.replace(passage, text=evidence.text[start:end])
            # `_DOTTED` has no group "word", and always has "square".
            yield key_of(head["square"] or head["word"]), part

    @cached_property
    def _stems(self) -> frozenset[str]:
        """What ids and labels begin with, so that an invented id is recognised as an id, too."""
        ids = [name for name in (*self._labels, *self._ids) if not name.isdecimal()]
        return frozenset(map(_stem, ids)) - {""}

    @cached_property
    def _titles(self) -> PassagesBy:
        """By title, in the form of `plain`."""
        return _grouped((plain(passage.evidence.title), passage) for passage in self.passages)

    @cached_property
    def _sites(self) -> PassagesBy:
        """By site, `en.wikipedia.org`, and by its name, `wikipedia`."""
        hosts: list[tuple[str, Passage]] = []
        site_names: list[tuple[str, Passage]] = []
        for passage in self.passages:
            host = page_of(passage.evidence.url).partition("/")[0]
            hosts.append((host, passage))
            labels = host.split(".")
            if len(labels) > 1 and len(labels[-2]) >= _SHORTEST_NAME:
                site_names.append((labels[-2], passage))
        return _grouped([*hosts, *site_names])

    @cached_property
    def _tokens(self) -> PassagesBy:
        """By each word with a digit or a sign in it. It may be the id of a result within a text
        that was not parsed into results, so passages with a title or a URL are left out.
        """
        by_token: PassagesBy = defaultdict(list)
        for passage in self.passages:
            if passage.evidence.title or passage.evidence.url:
                continue
            tokens = {token.casefold() for token in _TOKEN.findall(passage.text)}
            for token in tokens:
                if not token.isalpha():
                    by_token[token.rstrip(".:-")].append(passage)
        return by_token

    @cached_property
    def _authors(self) -> PassagesBy:
        """By each author that a work is cited by, with its year: `mirov 2020`."""
        by_author: PassagesBy = defaultdict(list)
        for passage in self.passages:
            keys: set[str] = set()
            text = f"{passage.evidence.title}\n{passage.text}"
            for *names, year in _AUTHORS.findall(text):
                keys.update(f"{name} {year}".casefold() for name in names)
            for key in keys:
                by_author[key].append(passage)
        return by_author

    @cached_property
    def _in_brackets(self) -> dict[str, set[str]]:
        """By numbers in brackets that evidence holds, the words in front of them there.

        An answer that has the same numbers after the same word has copied content. The word `""`
        says that the numbers are content after any word. Numbers that are attached to a word, or
        are some of many different ones (`_CITING`), may be a citation in the passage itself and are
        content only after the same word; `" "`, which is no word, stands for those that no word
        precedes. A number at the beginning of a line is that of a result, and left out.
        """
        words_before: defaultdict[str, set[str]] = defaultdict(set)
        for passage in self.passages:
            text = passage.text
            marks = list(_BRACKETED.finditer(text))
            compact_marks = [_BLANKS.sub("", mark[0]).translate(_NARROW) for mark in marks]
            numbers = {compact for compact in compact_marks if compact[1:-1].isdecimal()}
            cites = len(numbers) >= _CITING
            for mark, compact in zip(marks, compact_marks, strict=True):
                if compact in numbers and _begins_line(text, mark.start()):
                    continue
                before = text[max(0, mark.start() - _LONGEST_WORD - _LONGEST_GAP) : mark.start()]
                word = _LAST_WORD.search(before)
                attached = before[-1:].isalnum() or before[-1:] in '.,;:!?)"”’»]。，'
                if attached or cites:
                    words_before[compact].add(word[1].casefold() if word else " ")
                else:
                    words_before[compact].add("")
        return dict(words_before)

    @cached_property
    def _exponents(self) -> frozenset[str]:
        """The words with raised figures attached to them in question, gold answers or evidence, as
        `m^2`.
        """
        texts = [self.asked, *(passage.text for passage in self.passages)]
        exponents = set()
        for text in texts:
            for raised in _EXPONENT.finditer(text):
                before = text[max(0, raised.start() - _LONGEST_WORD) : raised.start()]
                word = _LAST_WORD.search(before)
                if word and not word[2]:
                    exponents.add(f"{word[1].casefold()}^{raised[0].translate(_DIGITS)}")
        return frozenset(exponents)


def _grouped(pairs: Iterable[tuple[str, Passage]]) -> PassagesBy:
    """The passages by the names they are paired with; pairs without a name are left out."""
    groups: PassagesBy = {}
    for name, passage in pairs:
        if name:
            groups.setdefault(name, []).append(passage)
    return groups


def _begins_line(text: str, start: int) -> bool:
    """Whether a line begins at this place, apart from signs before it: up to eight may precede the
    number of a result, as in `_PRINTED`.
    """
    before = text[max(0, start - 8) : start]
    is_in_first_line = start < 8
    _, line_break, indent = before.rpartition("\n")
    return not indent.strip(" \t>#*-") and (is_in_first_line or line_break != "")


def _dotted_heads(text: str) -> list[re.Match[str]]:
    """The numbers `1.`, `2.` in front of the parts of a text; none where they are not a list's,
    which numbers its parts one after the other, from 0 or 1.
    """
    heads = list(_DOTTED.finditer(text))
    numbers = [int(head["square"]) for head in heads]
    from_zero = list(range(len(numbers)))
    from_one = list(range(1, len(numbers) + 1))
    return heads if numbers in (from_zero, from_one) else []


def _stem(token: str) -> str:
    """What ids made like this one begin with (`_STEM`); empty for what is not made like an id."""
    match = _STEM.fullmatch(token)
    if match is None or "://" in token:
        return ""
    return match[1] or match[2]
