"""The writer's own list of sources: a section at the end, footnotes, or references that Markdown
defines.
"""

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files
from typing import NamedTuple

from ..trajectory import Span
from .addresses import ADDRESS, ENDS, IDENTIFIER

MOST_ENTRIES = 1_000
RAISED = "\u2070\u00b9\u00b2\u00b3\u2074-\u2079"  # figures, for a class of characters
WORDS: dict[str, list[str]] = json.loads(
    (files(__package__) / "words.json").read_text(encoding="utf-8")
)
LINK = (
    r"!?\[(?P<label>(?:[^\[\]\n\\]|\\.|\[[^\[\]\n]{0,100}+\]){0,300}+)\]"
    r"\(\s{0,3}<?(?P<url>(?:[^\s()<>]|\([^\s()<>]{0,200}+\)){1,2000}+)>?"
    r"(?:\s{1,3}(?:\"[^\"\n]{0,300}+\"|'[^'\n]{0,300}+'))?\s{0,3}\)"
)
_HEADING = re.compile(
    r"[ \t>]{0,8}+(?:#{1,6}+[ \t]{0,4})?(?:\*\*|__)?(?:\d{1,2}\.[ \t]{1,2})?(?:[^\w\s]{1,3}[ \t])?"
    rf"(?i:{'|'.join(WORDS['heading'])})[ \t]?(?:\*\*|__)?[ \t]?(?P<colon>[:：])?(?:\*\*|__)?[ "
    r"\t]*+(?P<rest>[^\n]*)"
)
_KEY = (
    r"(?:\\?\[\^?(?P<square>[^\[\]\n\\]{1,40}+)\\?\](?!\()(?P<defines>[:：])?"
    r"|[【［](?P<wide>[^】］\n]{1,40}+)[】］][:：]?"
    r"|(?P<dotted>\d{1,3})[.)、:：](?=\s|[^\d\s])"
    rf"|(?P<raised>[{RAISED}]{{1,3}}+)|\^(?P<caret>\d{{1,3}})\^|<sup>(?P<sup>\d{{1,3}})</sup>)"
)
_ENTRY = re.compile(
    rf"[ \t>]{{0,12}}+(?P<bullet>[-*•–+·][ \t]{{1,4}})?(?:{_KEY})?[ \t]{{0,4}}+(?P<named>[^\n]*)"
)
_ADDRESS = re.compile(f"{LINK}|<?(?P<bare>{ADDRESS}|{IDENTIFIER})>?")
_NUMBERED = re.compile(r"(?=[\[【［]\^?\d{1,3}[\]】］](?!\())")
_SIGN = re.compile(
    rf"^[^\w\n]{{0,12}}(?:\d{{1,2}}\.[ \t])?[^\w\n]{{0,4}}(?i:{'|'.join(WORDS['heading'])})\W"
    rf"|^[ \t>*•-]{{0,8}}(?:\[|【|［|\^|<sup|[{RAISED}])",
    re.MULTILINE,
)
_LINE = re.compile(r"[^\n]*+\n?")
_TRANSLATED = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹", "0123456789")
_NOT_IN_KEY = re.compile(r"\s|[,;]")


class Entry(NamedTuple):
    """One source of the list: the key that marks name it by (`""`: it has none), and what it is."""

    key: str
    target: str
    span: Span
    addressed: bool


@dataclass(frozen=True)
class OwnList:
    """The writer's own list of sources."""

    entries: tuple[Entry, ...] = ()

    @cached_property
    def keyed(self) -> dict[str, Entry]:
        """The entries that have a key, by it."""
        return {entry.key: entry for entry in reversed(self.entries) if entry.key}

    def entry(self, key: str) -> Entry | None:
        """The entry of this key; where entries have none, the one of this place."""
        if self.keyed or not key.isdecimal():
            return self.keyed.get(key)
        if 0 < int(key) <= len(self.entries):
            return self.entries[int(key) - 1]
        return None


def key_of(label: str) -> str:
    """A key as it is compared: digits of any script as a plain number.

    Example:
        >>> key_of("０1"), key_of("²"), key_of("Smith")
        ('1', '2', 'smith')
    """
    label = label.strip().lstrip("^#").translate(_TRANSLATED)
    return str(int(label)) if label.isdecimal() else label.casefold()


def may_have_list(text: str) -> bool:
    """Whether the text has a line that a list of sources begins with; most texts have none."""
    lower = text.lower()
    signs = ("[", "^", "<sup", *WORDS["stems"])
    likely = not text.isascii() or any(sign in lower for sign in signs)
    return likely and _SIGN.search(text) is not None


def own_list(text: str, names_source: Callable[[str], bool]) -> OwnList:
    """The list of sources that the writer gave in this text.

    A section is a list where one of its entries has an address or names a source
    (`names_source`), or where marks before it use its numbers: "Sources" may also be what was
    asked for.
    """
    if not may_have_list(text):
        return OwnList()
    entries: list[Entry] = []
    section: list[Entry] | None = None  # the entries so far, where a heading opened a section
    section_start = 0  # where that heading begins
    after_blank = False  # whether a blank line stands before this one
    for match in _LINE.finditer(text):
        start, end = match.span()
        line = match[0].rstrip("\n")
        if not line.strip():
            after_blank = True
            continue
        heading = _HEADING.fullmatch(line)
        if section is not None:
            if heading is None:
                entry = _entry(line, start, end, names_source)
                if _joins(section, line, end, entry, after_blank):
                    after_blank = False
                    continue
            entries += _checked(section, text, section_start, names_source)
            section = None
        after_blank = False
        after_heading = heading["rest"].strip() if heading else ""
        if heading and (not after_heading or heading["colon"]):
            section_start = start
            section = list(_inline(after_heading, start + heading.start("rest"), names_source))
            continue
        defined = _defined(line, start, end)
        if defined is not None:
            entries.append(defined)
    if section is not None:
        entries += _checked(section, text, section_start, names_source)
    return OwnList(tuple(entries or _trailing(text))[:MOST_ENTRIES])


def _joins(
    section: list[Entry], line: str, end: int, entry: Entry | None, after_blank: bool
) -> bool:
    """Add a line to a section, as an entry or as the rest of the last one. Returns whether it is
    either.

    Args:
        end: where the line ends in the text.
        entry: the line as an entry, where it looks like one.
        after_blank: a blank line stands before it.
    """
    is_next = bool(section) and not after_blank
    is_indented_rest = is_next and not section[-1].addressed and line[0] in " \t"
    if entry is not None and (entry.key or not is_indented_rest):
        section.append(entry)
        return True
    if is_next and not line.startswith("#"):
        section[-1] = _continued(section[-1], line, end)
        return True
    return False


def _entry(
    line: str, start: int, end: int, names_source: Callable[[str], bool], listed: bool = True
) -> Entry | None:
    """The entry that this line is; `None` for a line that is none. `listed`: an item of a list is
    one.
    """
    match = _ENTRY.fullmatch(line)
    if match is None:
        return None
    keys = filter(None, match.group("square", "wide", "dotted", "raised", "caret", "sup"))
    key = next(keys, "")
    named = match["named"]
    address = _ADDRESS.search(named if key else line)
    if address and address["label"] and not key:
        label = address["label"].strip("[]\\ ")
        if key_of(label).isdecimal():
            key = label  # [1](https://…): the number is the link's text
    if _NOT_IN_KEY.search(key):
        key = ""
    is_item = bool(key) or (listed and bool(match["bullet"]))
    if address is None and not is_item and not names_source(line):
        return None
    target = _target(address) if address else named.strip(" \t*_")
    return Entry(key_of(key), target, (start, end), address is not None)


def _target(address: re.Match[str]) -> str:
    return address["url"] or address["bare"].rstrip(ENDS)


def _continued(entry: Entry, line: str, end: int) -> Entry:
    """The entry, which goes on in this line."""
    longer = entry._replace(span=(entry.span[0], end))
    if entry.addressed:
        return longer
    address = _ADDRESS.search(line)
    if address is None:
        return longer
    return longer._replace(target=_target(address), addressed=True)


def _inline(text: str, start: int, names_source: Callable[[str], bool]) -> Iterator[Entry]:
    """The entries that stand after the heading, in its line; `start` is where they begin."""
    at = start
    for piece in filter(None, _NUMBERED.split(text)):
        entry = _entry(piece, at, at + len(piece), names_source, listed=False)
        addresses = list(_ADDRESS.finditer(piece))
        if entry is not None and (entry.key or len(addresses) < 2):
            yield entry
        else:
            for address in addresses:
                yield Entry("", _target(address), (at, at + len(piece)), True)
        at += len(piece)


def _checked(
    section: list[Entry], text: str, heading_start: int, names_source: Callable[[str], bool]
) -> list[Entry]:
    """The section's entries, from its heading on; none where it is no list of sources."""
    before = text[:heading_start]
    if not section or not any(map(str.isalnum, before[:2_000])):
        return []
    are_sources = any(entry.addressed or names_source(entry.target) for entry in section)
    marks: list[str] = []
    for entry in section:
        if entry.key:
            marks += [f"[{entry.key}]", f"[^{entry.key}]"]
    if not are_sources and not any(mark in before for mark in marks):
        return []
    first = section[0]._replace(span=(heading_start, section[0].span[1]))
    return [first, *section[1:]]


def _defined(line: str, start: int, end: int) -> Entry | None:
    """A footnote, `[^1]: …`, or a reference, `[1]: https://…`, that this line defines."""
    match = _ENTRY.fullmatch(line)
    if match is None or not match["defines"] or match["bullet"]:
        return None
    address = _ADDRESS.search(match["named"])
    is_footnote = line.lstrip().startswith("[^")
    if not is_footnote and (address is None or address.start() > 1):
        return None
    target = _target(address) if address else match["named"].strip()
    return Entry(key_of(match["square"]), target, (start, end), address is not None)


def _trailing(text: str) -> list[Entry]:
    """Lines with a number and an address at the text's end, which no heading announces."""
    entries: list[Entry] = []
    end = len(text)
    while end > 0 and len(entries) < MOST_ENTRIES:
        start = text.rfind("\n", 0, end - 1) + 1
        line = text[start:end].rstrip("\n")
        if line.strip():
            entry = _entry(line, start, end, lambda line: False, listed=False)
            is_marked = line.lstrip()[:1] not in "0123456789"  # "1. …" lists anything
            if entry is None or start == 0:
                break
            if not (entry.key and entry.addressed and is_marked):
                break
            entries.append(entry)
        end = start
    return entries[::-1]
