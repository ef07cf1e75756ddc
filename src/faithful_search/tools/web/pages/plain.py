"""Plain text, Markdown, JSON, XML and PDF to blocks."""

from __future__ import annotations

import io
import re
import time
from collections.abc import Iterable, Iterator

import msgspec

from ....errors import ToolError
from .base import Block

_UNWANTED = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u200b\u2060\ufeff\ud800-\udfff\ufffe\uffff]+")
_SAYS = re.compile(r"\w")
_GAP = re.compile(r"\n[^\S\n]*\n")
_IMAGE = re.compile(r"!\[([^\[\]\n]{0,500})\]\([^()\s]{0,2000}(?:[ \t]+\"[^\"\n]{0,200}\")?\)")
_LINK = re.compile(r"(?<!!)\[([^\[\]\n]{1,500})\]\([^()\s]{0,2000}(?:[ \t]+\"[^\"\n]{0,200}\")?\)")
_HEADING = re.compile(r"#{1,6}[ \t]+(.*?)[ \t#]*")
_RULE = re.compile(r"[|:\s-]*--[|:\s-]*|=+")
_HYPHEN = re.compile(r"(?<=[^\W\d_])[-\u00ad\u2010]\n(?=[^\W\d_])")
_ENDS = (".", "!", "?", ":", "\u3002")


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
    blocks: list[Block] = []
    held: list[str] = []
    for line in [*map(str.strip, _LINK.sub(r"\1", _IMAGE.sub("", text)).splitlines()), ""]:
        heading = _HEADING.fullmatch(line) if line.startswith("#") else None
        rule = _RULE.fullmatch(line)
        if heading or rule or not line or line[:1] in "-*+|>" or line[:1].isdigit():
            blocks += _blocks([" ".join(held)])
            held = []
        if heading and says_something(heading[1]):
            blocks.append(Block(clean(heading[1]), heading=True))
        elif not heading and not rule:
            held.append(line)
    blocks += _blocks([" ".join(held)])
    return next((block.text for block in blocks if block.heading), ""), blocks


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


def read_pdf(body: bytes, deadline: float) -> tuple[str, list[Block], str]:
    """Title, blocks that know their page, and what was left out because the deadline (`time.monotonic`) came."""
    import pypdf

    reader = pypdf.PdfReader(io.BytesIO(body))
    if reader.is_encrypted and not reader.decrypt(""):
        raise ToolError("the PDF is locked by a password")
    pages, done, blocks = len(reader.pages), 0, []
    # what was read until the deadline is worth more than nothing
    while done < pages and (not done or time.monotonic() <= deadline):
        done += 1
        blocks += [Block(part, place=f"p. {done}") for part in _parts(reader.pages[done - 1].extract_text())]
    if not blocks:
        raise ToolError("the PDF has no text: its pages may be images")
    try:
        title = clean(str(reader.metadata.get("/Title") or "")) if reader.metadata else ""
    except Exception:  # pypdf fails on broken metadata in many ways; that is no reason to lose the document
        title = ""
    return title, blocks, f"the first {done} of its {pages} pages" if done < pages else ""


def _parts(text: str) -> Iterator[str]:
    """Lines put together again: a paragraph ends at a blank line, or where a sentence ends in a short line."""
    lines = [line.strip() for line in _HYPHEN.sub("", text).splitlines()]
    widest = max(map(len, lines), default=0)
    held: list[str] = []
    for line in [*lines, ""]:
        held.append(line)
        if not line or (line.endswith(_ENDS) and len(line) < 0.7 * widest):
            if part := clean(" ".join(held)):
                yield part
            held = []


def _blocks(pieces: Iterable[str]) -> list[Block]:
    return [Block(text) for text in map(clean, pieces) if says_something(text)]
