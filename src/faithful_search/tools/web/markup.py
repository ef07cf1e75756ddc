"""HTML to a title and blocks: the main text as trafilatura finds it, else all the text there is."""

import re
from collections.abc import Iterator
from typing import Any

import msgspec

_UNWANTED = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u200b\u2060\ufeff\ud800-\udfff\ufffe\uffff]+")
_SAYS = re.compile(r"\w")
_HEADINGS = frozenset(("head", "h1", "h2", "h3", "h4", "h5", "h6"))
_ROWS, _CELLS, _ITEMS = frozenset(("row", "tr")), frozenset(("cell", "td", "th")), frozenset(("item", "li"))
_BORDERS = _HEADINGS | _ROWS | _ITEMS | {"table"}  # of blocks wherever they stand; the others are not inside a row
_BLOCK_TAGS = """
p div section article main header footer aside nav ul ol dl dt dd list quote blockquote pre code tbody thead form
fieldset figure figcaption address hr br lb body html option
"""
_BLOCKS = frozenset(_BLOCK_TAGS.split())
_UNSEEN = ("script", "style", "noscript", "template", "head", "svg", "iframe", "object", "select", "button")
_TITLES = ('string(//meta[@property="og:title"]/@content)', "string(//title)", "string(//h1)")
_THIN = 200
"""Fewer characters of main text than this, with far more on the page: trafilatura has missed it."""


class Block(msgspec.Struct, frozen=True):
    """What a document itself sets apart: a paragraph, a heading, an item of a list, a row of a table.

    `lead` is repeated at the top of a paragraph that begins with this block: the header of a row's table.
    """

    text: str
    heading: bool = False
    lead: str = ""
    place: str = ""


def clean(text: str) -> str:
    """One line: white space collapsed; control characters, lone surrogates and invisible spaces gone."""
    return " ".join(_UNWANTED.sub("", text).split())


def says_something(text: str) -> bool:
    """Whether there is a letter or digit in it: rules, bullets and empty cells are no text."""
    return _SAYS.search(text) is not None


def read_html(text: str) -> tuple[str, list[Block]]:
    """Title and blocks of a page; no blocks when it has no text. Raises `ImportError` without trafilatura."""
    import trafilatura
    from lxml import etree, html

    parser = html.HTMLParser(encoding="utf-8", remove_comments=True, remove_pis=True)
    try:
        tree = html.document_fromstring(text.encode("utf-8", "replace"), parser)
    except etree.ParserError:
        return "", []
    titles = [title for path in _TITLES if (title := clean(tree.xpath(path)))]
    # comments are what strangers wrote under the page
    found = trafilatura.bare_extraction(tree, include_comments=False)
    body = getattr(found, "body", None)
    main = list(_walk(body)) if body is not None else []
    # lists, forms and tables have no main text by its measure
    if (size := sum(len(block.text) for block in main)) < _THIN:
        etree.strip_elements(tree, *_UNSEEN, with_tail=False)
        whole = list(_walk(tree))
        main = whole if sum(len(block.text) for block in whole) > 3 * size else main
    return titles[0] if titles else "", main


def _walk(root: Any) -> Iterator[Block]:
    """The blocks under `root`, in one pass whatever the nesting: text between two block boundaries is a block."""
    from lxml import etree

    parts: list[str] = []  # the text since the last boundary
    heads: list[bool] = []  # of the cells of this row: whether each is a header
    in_row = first_row = False
    mark = lead = ""
    for event, node in etree.iterwalk(root, events=("start", "end")):
        starts, tag = event == "start", node.tag
        if tag in _CELLS and starts:
            parts.append(" | " if heads else " ")
            heads.append(tag == "th" or node.get("role") == "head")
        elif tag in _BORDERS or (tag in _BLOCKS and not in_row):
            ends_row = tag in _ROWS and not starts
            header = ends_row and first_row and len(heads) > 1 and all(heads)
            if says_something(text := clean("".join(parts))):
                yield Block(mark + text, not starts and tag in _HEADINGS, lead if ends_row else "")
                mark, lead = "", text if header else lead
            parts.clear()
            if tag in _ROWS:
                in_row, first_row, heads = starts, first_row and starts, heads if starts else []
            elif tag == "table":
                first_row, lead = starts, ""
            elif tag in _ITEMS:
                mark = "- " if starts else ""
        elif tag in _BLOCKS:
            parts.append(" ")
        parts.append((node.text if starts else node.tail if node is not root else "") or "")
    if says_something(text := clean("".join(parts))):
        yield Block(mark + text)
