"""A document's bytes to a page, by what the bytes are and what the server says they are. Runs in a worker process."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator

from ....errors import ToolError
from ...words import paragraphs
from .base import Block, Page, Paragraph, Reading
from .charset import decode
from .markup import read_html
from .plain import read_json, read_lines, read_markdown, read_pdf, read_text, read_xml

_UNSAID = ("", "application/octet-stream", "binary/octet-stream")
_APPLICATION = "xhtml+xml pdf x-pdf json ld+json x-ndjson xml rss+xml atom+xml yaml"
READABLE = ("text/*", *(f"application/{kind}" for kind in _APPLICATION.split()), *_UNSAID[1:])
"""The content types that can be read; the last ones say nothing, and the document is looked at."""
_WHOLE_HTML = re.compile(rb"<(?:!doctype html|html|head|body)[\s>]")
_SOME_HTML = re.compile(
    rb"<(?:!--|(?:title|meta|link|script|style|p|div|h[1-6]|table|br|a|b|article|main|section)[\s>/])"
)
_PDF_SHARE = 0.6
"""Of the time for a document; what is read of a PDF by then has to be put together and sent."""
_TITLE, _MOST = 300, 10_000


def parse(body: bytes, content_type: str, reading: Reading) -> Page:
    """Read a document in this process. Hostile ones take for ever or crash: see `read`, which survives that.

    Raises:
        ToolError: for a type that is not read, a document without text, a locked PDF.
    """
    deadline = time.monotonic() + _PDF_SHARE * reading.seconds
    kind, cut = kind_of(body, content_type), ""
    text = decode(body, content_type) if kind not in ("pdf", "xml") else ""
    title, blocks = "", list[Block]()
    if kind == "pdf":
        title, blocks, cut = read_pdf(body, deadline)
    elif kind in ("html", "markdown"):
        title, blocks = (read_html if kind == "html" else read_markdown)(text)
    elif kind == "xml":
        blocks = read_xml(body)
    elif kind == "json":
        blocks = read_json(text.encode("utf-8", "replace"))
    else:
        blocks = (read_lines if kind == "lines" else read_text)(text)
    found = list(pack(blocks, reading.shortest, reading.longest))
    if not found:
        raise ToolError("there is no text in it that could be read")
    # a table of a million rows would be searched paragraph by paragraph
    if len(found) > _MOST:
        found, cut = found[:_MOST], f"the first {_MOST} of its {len(found)} paragraphs"
    return Page(title[:_TITLE], tuple(found), cut)


def kind_of(body: bytes, content_type: str) -> str:
    """`html`, `pdf`, `markdown`, `json`, `xml`, `lines` or `text`; a `ToolError` names any other type."""
    said = content_type.partition(";")[0].strip().lower()
    start = body[:1024].lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    # readers of PDF allow something before the header, so servers send it
    if b"%pdf-" in start:
        return "pdf"
    if said and not said.startswith("text/") and said not in READABLE:
        raise ToolError(f"its type, {said[:60]}, cannot be read: only web pages, PDFs and text can")
    # servers send pages as text/plain, or as nothing
    looks_like_html = _WHOLE_HTML.match(start) or (said in _UNSAID and _SOME_HTML.match(start))
    if looks_like_html or said in ("text/html", "application/xhtml+xml"):
        return "html"
    # zero bytes are in no text but UTF-16 and UTF-32, which begin with a mark
    binary = b"\0" in body[:4096] and not body.startswith((b"\xff\xfe", b"\xfe\xff", b"\0\0\xfe\xff"))
    if said.endswith("pdf") or binary:
        raise ToolError(f"its type is {said[:60] or 'not given'}, but what it holds is not that and cannot be read")
    if "markdown" in said:
        return "markdown"
    if said.endswith("json"):
        return "json"
    if said.endswith("xml") or start.startswith(b"<?xml"):
        return "xml"
    return "lines" if said in ("text/csv", "text/tab-separated-values", "text/calendar") else "text"


def pack(blocks: Iterable[Block], shortest: int, longest: int) -> Iterator[Paragraph]:
    """Paragraphs of `shortest` to `longest` characters, as far as the blocks allow.

    A block that is too long is split at the ends of sentences; short ones are joined on lines of their own. A heading
    stays with what follows it, and no paragraph goes over a change of `place`.

    Example:
        >>> [p.text for p in pack([Block("Rivers", heading=True), Block("The Seine."), Block("The Loire.")], 10, 50)]
        ['Rivers\\nThe Seine.', 'The Loire.']
    """
    held: list[str] = []
    size, last = 0, Block("")
    for block in blocks:
        if held and (last.place != block.place or (size >= shortest and not last.heading)):
            yield Paragraph("\n".join(held), last.place)
            held, size = [], 0
        for part in paragraphs(block.text, longest):
            if held and size + len(part) > longest:
                yield Paragraph("\n".join(held), last.place)
                held, size = [], 0
            # a table that goes on in another paragraph shows its header there again
            lead = not held and block.lead and len(block.lead) + len(part) < longest
            held += [block.lead, part] if lead else [part]
            size, last = sum(map(len, held)) + len(held), block
    if held:
        yield Paragraph("\n".join(held), last.place)
