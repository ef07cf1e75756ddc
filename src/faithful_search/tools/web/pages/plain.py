"""Plain text, Markdown, JSON and XML to blocks."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import msgspec

from .base import Block

_UNWANTED = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u200b\u2060\ufeff\ud800-\udfff\ufffe\uffff]+")
_SAYS = re.compile(r"\w")
_GAP = re.compile(r"\n[^\S\n]*\n")
_IMAGE = re.compile(r"!\[([^\[\]\n]{0,500})\]\([^()\s]{0,2000}(?:[ \t]+\"[^\"\n]{0,200}\")?\)")
_LINK = re.compile(r"(?<!!)\[([^\[\]\n]{1,500})\]\([^()\s]{0,2000}(?:[ \t]+\"[^\"\n]{0,200}\")?\)")
_HEADING = re.compile(r"#{1,6}[ \t]+(.*?)[ \t#]*")
_RULE = re.compile(r"[|:\s-]*--[|:\s-]*|=+")


def clean(text: str) -> str:
    """One line: white space collapsed; control characters, lone surrogates and invisible spaces gone."""
    return " ".join(_UNWANTED.sub("", text).split())


def says_something(text: str) -> bool:
    """Whether there is a letter or digit in it: rules, bullets and empty cells are no text."""
    return _SAYS.search(text) is not None


def read_text(text: str) -> list[Block]:
    """Blocks set apart by blank lines."""
    return _blocks(_GAP.split(text.replace("\r\n", "\n").replace("\r", "\n")))


def read_lines(text: str) -> list[Block]:
    """A block for each line."""
    return _blocks(text.splitlines())


def read_markdown(text: str) -> tuple[str, list[Block]]:
    """The first heading as title, and blocks without the marks of links, images and headings."""
    blocks = list(_markdown(_LINK.sub(r"\1", _IMAGE.sub("", text))))
    title = next((block.text for block in blocks if block.heading), "")
    return title, blocks


def _markdown(text: str) -> Iterator[Block]:
    held: list[str] = []
    for line in [*map(str.strip, text.splitlines()), ""]:
        heading = _HEADING.fullmatch(line) if line.startswith("#") else None
        alone = heading or not line or line[:1] in "-*+|>" or line[:1].isdigit() or _RULE.fullmatch(line)
        if alone and held:
            yield from _blocks([" ".join(held)])
            held = []
        if heading and says_something(heading[1]):
            yield Block(clean(heading[1]), heading=True)
        elif not heading and not _RULE.fullmatch(line):
            held.append(line)
    yield from _blocks([" ".join(held)])


def read_json(body: bytes) -> list[Block]:
    """Indented JSON, a block for each line; text that only claims to be JSON as it is."""
    try:
        return read_lines(msgspec.json.format(body, indent=1).decode("utf-8", "replace"))
    except msgspec.DecodeError:
        return read_lines(body.decode("utf-8", "replace"))


def read_xml(body: bytes) -> list[Block]:
    """The text of each element; no entity is expanded and nothing is fetched. Raises `ImportError` without lxml."""
    from lxml import etree

    # an entity could unpack to gigabytes, or name a file of this machine
    parser = etree.XMLParser(resolve_entities=False, no_network=True, load_dtd=False, recover=True, huge_tree=False)
    root = etree.fromstring(body, parser)
    if root is None:
        return []
    etree.strip_elements(root, etree.Entity, etree.Comment, with_tail=False)
    return _blocks(root.itertext())


def _blocks(pieces: Iterable[str]) -> list[Block]:
    return [Block(text) for text in map(clean, pieces) if says_something(text)]
