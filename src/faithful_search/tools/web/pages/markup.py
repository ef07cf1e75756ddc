"""HTML to a title and blocks: the main text as trafilatura finds it, else all the text there is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .base import Block
from .plain import clean, says_something

_HEADINGS = frozenset(("head", "h1", "h2", "h3", "h4", "h5", "h6"))
_ROWS, _CELLS, _ITEMS = frozenset(("row", "tr")), frozenset(("cell", "td", "th")), frozenset(("item", "li"))
_BLOCK_TAGS = """
p div section article main header footer aside nav ul ol dl dt dd list quote blockquote pre code table tbody thead form
fieldset figure figcaption address hr br lb body html option
"""
_BLOCKS = frozenset(_BLOCK_TAGS.split())
_UNSEEN = frozenset(("script", "style", "noscript", "template", "head", "svg", "iframe", "object", "select", "button"))
_TITLES = ('string(//meta[@property="og:title"]/@content)', "string(//title)", "string(//h1)")
_THIN = 200
"""Fewer characters of main text than this, with far more on the page: trafilatura has missed it."""


def read_html(text: str) -> tuple[str, list[Block]]:
    """Title and blocks of a page; no blocks when it has no text. Raises `ImportError` without trafilatura."""
    import trafilatura
    from lxml import etree, html

    parser = html.HTMLParser(encoding="utf-8", remove_comments=True, remove_pis=True)
    try:
        tree = html.document_fromstring(text.encode("utf-8", "replace"), parser)
    except etree.ParserError:
        return "", []
    # comments are what strangers wrote under the page
    found = trafilatura.bare_extraction(tree, include_comments=False)
    body = getattr(found, "body", None)
    main = list(_walk(body)) if body is not None else []
    # lists, forms and tables have no main text by its measure
    if (size := sum(len(block.text) for block in main)) < _THIN:
        whole = list(_walk(tree, unseen=_UNSEEN))
        main = whole if sum(len(block.text) for block in whole) > 3 * size else main
    titles = (clean(tree.xpath(path)) for path in _TITLES)
    return next((title for title in titles if title), ""), main


def _walk(root: Any, unseen: frozenset[str] = frozenset()) -> Iterator[Block]:
    """The blocks under `root`, in one pass whatever the nesting: text between two block boundaries is a block."""
    from lxml import etree

    line = _Line()
    walk = etree.iterwalk(root, events=("start", "end"))
    for event, node in walk:
        yield from line.cross(event == "start", node)
        if event == "end":
            line.write(node.tail if node is not root else "")
        elif node.tag in unseen:
            walk.skip_subtree()
        else:
            line.write(node.text)
    yield from line.flush()


class _Line:
    """The text since the last boundary, and what is known of the table it may stand in."""

    def __init__(self) -> None:
        self.parts: list[str] = []
        self.heads: list[bool] = []
        self.in_row, self.first_row, self.mark, self.lead = False, False, "", ""

    def write(self, text: str | None) -> None:
        if text:
            self.parts.append(text)

    def cross(self, starts: bool, node: Any) -> Iterator[Block]:
        """The blocks that end where an element starts or ends."""
        tag = node.tag
        if tag in _CELLS:
            if starts:
                self.write(" | " if self.heads else " ")
                self.heads.append(tag == "th" or node.get("role") == "head")
        elif tag in _ROWS:
            header = not starts and self.first_row and len(self.heads) > 1 and all(self.heads)
            for row in self.flush(lead="" if starts else self.lead):
                self.lead = row.text if header else self.lead
                yield row
            if not starts:
                self.first_row, self.heads = False, []
            self.in_row = starts
        elif tag == "table":
            yield from self.flush()
            self.first_row, self.lead = starts, ""
        elif tag in _HEADINGS:
            yield from self.flush(heading=not starts)
        elif tag in _ITEMS:
            yield from self.flush()
            self.mark = "- " if starts else ""
        elif tag in _BLOCKS and self.in_row:
            self.write(" ")
        elif tag in _BLOCKS:
            yield from self.flush()

    def flush(self, heading: bool = False, lead: str = "") -> Iterator[Block]:
        text = clean("".join(self.parts))
        self.parts.clear()
        if says_something(text):
            yield Block(self.mark + text, heading, lead)
            self.mark = ""
