"""A document's bytes to a page, by what the bytes are and what the server says they are.

Run as a module, with the bytes of memory that a document may take, it is the process that
`pages.read` asks.
"""

import codecs
import io
import re
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

import msgspec

from ...errors import ToolError
from ...wire.killable import answer_lines
from ..words import paragraphs
from .pages import Answer, Job, PageSettings, Paragraph, ParsedPage

_UNSAID = ("", "application/octet-stream", "binary/octet-stream")
_APPLICATION = "xhtml+xml pdf x-pdf json ld+json x-ndjson xml rss+xml atom+xml yaml"
READABLE = ("text/*", *(f"application/{kind}" for kind in _APPLICATION.split()), *_UNSAID[1:])
"""The content types that can be read; the last ones say nothing, and the document is looked at."""
_WHOLE_HTML = re.compile(rb"<(?:!doctype html|html|head|body)[\s>]")
_SOME_HTML = re.compile(
    rb"<(?:!--|(?:title|meta|link|script|style|p|div|h[1-6]|table|br|a|b|article|main|section)[\s>/])"
)
_MARKS = {
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
_IN_TYPE = re.compile(rb"charset\s*=\s*[\"']?([\w:.-]{1,40})", re.IGNORECASE)
_IN_PAGE = re.compile(
    rb"(?:<meta[^>]{0,200}?charset\s*=|<\?xml[^>]{0,100}?encoding\s*=)\s*[\"']?([\w:.-]{1,40})",
    re.IGNORECASE,
)
# What pages mean by these names is what browsers take them for: a larger set that contains them.
_MEANT = {"ascii": "cp1252", "us-ascii": "cp1252", "iso8859-1": "cp1252", "iso8859-9": "cp1254"}
_MEANT |= {"gb2312": "gb18030", "gbk": "gb18030", "shift_jis": "cp932", "euc_kr": "cp949"}
_NOT_ASCII = ("utf-16", "iso2022", "hz")  # sets in which letters may look like ASCII
# Bytes above ASCII: a text in a Latin script with fewer says too little to tell one set from
# another
_FEW = 64
_SPEAKS = re.compile(r"\w")  # rules, bullets and empty cells are no text
_IMAGE = re.compile(r"!\[([^\[\]\n]{0,500})\]\([^()\s]{0,2000}(?:[ \t]+\"[^\"\n]{0,200}\")?\)")
_LINK = re.compile(r"(?<!!)\[([^\[\]\n]{1,500})\]\([^()\s]{0,2000}(?:[ \t]+\"[^\"\n]{0,200}\")?\)")
_HEADING = re.compile(r"#{1,6}[ \t]")
_ALONE = re.compile(
    rf"^(?:[ \t]*{_HEADING.pattern}.*|[|: \t=-]+)$", re.MULTILINE
)  # lines: headings and rules
_OPENS = re.compile(r"^(?=[ \t]*[-*+>|0-9])", re.MULTILINE)  # items, quotes and rows of tables
_GAP = re.compile(r"\n[^\S\n]*\n")
_HYPHEN = re.compile(r"(?<=[^\W\d_])[-\u00ad\u2010]\n(?=[^\W\d_])")
_LAST_LINE = re.compile(
    r"(?m)^(.{0,60}[.!?:\u3002])[^\S\n]*$"
)  # of a paragraph: a sentence ends in a short line
_PDF_SHARE = (
    0.6  # of the time for a document: what is read of a PDF by then has to be put together and sent
)
_TITLE, _MOST = 300, 10_000
_REASONS = {
    MemoryError: "it needs too much memory to be read",
    RecursionError: "it is nested too deeply to be read",
}
_ENDINGS = {"json": "json", "xml": "xml", "csv": "lines", "values": "lines", "calendar": "lines"}
_UNWANTED = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u200b\u2060\ufeff\ud800-\udfff\ufffe\uffff]+"
)
_HEADINGS = frozenset(("head", "h1", "h2", "h3", "h4", "h5", "h6"))
_ROWS, _CELLS, _ITEMS = (
    frozenset(("row", "tr")),
    frozenset(("cell", "td", "th")),
    frozenset(("item", "li")),
)
_BORDERS = (
    _HEADINGS | _ROWS | _ITEMS | {"table"}
)  # of blocks wherever they stand; the others are not inside a row
_BLOCK_TAGS = """
p div section article main header footer aside nav ul ol dl dt dd list quote blockquote pre code tbody thead form
fieldset figure figcaption address hr br lb body html option
"""
_BLOCKS = frozenset(_BLOCK_TAGS.split())
_UNSEEN = (
    "script",
    "style",
    "noscript",
    "template",
    "head",
    "svg",
    "iframe",
    "object",
    "select",
    "button",
)
_HIDDEN = re.compile(
    r"(?:^|[;\s])(?:display\s*+:\s*+none|visibility\s*+:\s*+(?:hidden|collapse))\b", re.I
)
_TITLES = ('string(//meta[@property="og:title"]/@content)', "string(//title)", "string(//h1)")
_THIN = 200  # fewer characters of main text, with far more on the page: trafilatura has missed it


class Block(msgspec.Struct, frozen=True):
    """What a document itself sets apart: a paragraph, a heading, an item of a list, a row of a
    table.

    A paragraph that begins with this block repeats `lead` at its top: the header of a row's table.
    """

    text: str
    heading: bool = False
    lead: str = ""
    place: str = ""


def clean(text: str) -> str:
    """One line: white space collapsed; control characters, lone surrogates and invisible spaces
    gone.
    """
    return " ".join(_UNWANTED.sub("", text).split())


def parse(body: bytes, content_type: str, reading: PageSettings) -> ParsedPage:
    """Read a document in this process, which a hostile one may hang or crash. Raises `ToolError`
    with the reason.
    """
    deadline = time.monotonic() + _PDF_SHARE * reading.seconds
    kind, title, cut = kind_of(body, content_type), "", ""
    text = decode(body, content_type) if kind not in ("pdf", "xml") else ""
    if kind == "pdf":
        title, blocks, cut = read_pdf(body, deadline)
    elif kind in ("html", "text"):
        title, blocks = (read_html if kind == "html" else read_text)(text)
    else:
        with suppress(msgspec.DecodeError):  # text may only claim to be JSON
            text = msgspec.json.format(text, indent=1) if kind == "json" else text
        pieces = read_xml(body) if kind == "xml" else text.splitlines()
        blocks = [Block(piece) for piece in map(clean, pieces) if _SPEAKS.search(piece)]
    paragraphs = list(pack(blocks, reading.shortest, reading.longest))
    if not paragraphs:
        raise ToolError("there is no text in it that could be read")
    # a table of a million rows would be searched paragraph by paragraph
    if len(paragraphs) > _MOST:
        paragraphs, cut = (
            paragraphs[:_MOST],
            f"the first {_MOST} of its {len(paragraphs)} paragraphs",
        )
    return ParsedPage(title[:_TITLE], tuple(paragraphs), cut)


def kind_of(body: bytes, content_type: str) -> str:
    """`html`, `pdf`, `json`, `xml`, `lines` or `text`; a `ToolError` names any other type."""
    media_type = content_type.partition(";")[0].strip().lower()
    start = body[:1024].lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    # readers of PDF allow something before the header, so servers send it
    if b"%pdf-" in start:
        return "pdf"
    if media_type and not media_type.startswith("text/") and media_type not in READABLE:
        raise ToolError(
            f"its type, {media_type[:60]}, cannot be read: only web pages, PDFs and text can"
        )
    # servers send pages as text/plain, or as nothing
    looks_like_html = _WHOLE_HTML.match(start) or (
        media_type in _UNSAID and _SOME_HTML.match(start)
    )
    if looks_like_html or media_type in ("text/html", "application/xhtml+xml"):
        return "html"
    # zero bytes are in no text but UTF-16, which begins with a mark
    binary = b"\0" in body[:4096] and not body.startswith(tuple(_MARKS))
    if media_type.endswith("pdf") or binary:
        raise ToolError(
            f"its type is {media_type[:60] or 'not given'}, but what it holds is not that and "
            "cannot be read"
        )
    by_ending = next(
        (kind for ending, kind in _ENDINGS.items() if media_type.endswith(ending)), "text"
    )
    return "xml" if start.startswith(b"<?xml") and by_ending == "text" else by_ending


def decode(body: bytes, content_type: str = "") -> str:
    """The text of a document; what cannot be decoded becomes U+FFFD.

    A byte-order mark decides; then bytes that are well-formed UTF-8 are UTF-8, whatever is
    declared; then the sets that the page and the server declare, if the bytes fit; then what the
    bytes look like.
    """
    for mark, name in _MARKS.items():
        if body.startswith(mark):
            return body.decode(name, "replace")
    # the page first: many servers declare Latin-1 without looking
    named = _IN_PAGE.findall(body[:4_096])[:1] + _IN_TYPE.findall(content_type.encode())[:1]
    declared = []
    for name in (each.decode("ascii", "replace") for each in named):
        with suppress(
            LookupError, ValueError
        ):  # it is unknown, or a codec of no character set, such as "hex"
            codec = codecs.lookup(name).name
            "".encode(name)
            declared.append(_MEANT.get(codec, codec))
    if not any(name.startswith(_NOT_ASCII) for name in declared):
        text = body.decode("utf-8", "replace")
        wrong = text.count("\ufffd")
        # one stray byte does not make a page Latin-1
        if not wrong or wrong * 4 <= sum(character > "\x7f" for character in text) - wrong:
            return text
    for name in declared:
        with suppress(ValueError):
            return body.decode(name)
    foreign, guessed = sum(byte > 0x7F for byte in body[:65_536]), None
    # from few bytes a guess is worse than the commonest set
    if foreign >= _FEW or 5 * foreign >= len(body):
        from charset_normalizer import from_bytes

        guessed = from_bytes(body[:65_536]).best()
    return body.decode(guessed.encoding if guessed else "cp1252", "replace")


def pack(blocks: Iterable[Block], shortest: int, longest: int) -> Iterator[Paragraph]:
    """Paragraphs of `shortest` to `longest` characters, as far as the blocks allow.

    A block that is too long is split at the ends of sentences; short ones are joined on lines of
    their own. A heading stays with what follows it, and no paragraph goes over a change of `place`.
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


def read_html(text: str) -> tuple[str, list[Block]]:
    """Title and blocks of a page; no blocks when it has no text. Raises `ImportError` without
    trafilatura.
    """
    import trafilatura
    from lxml import etree, html

    parser = html.HTMLParser(encoding="utf-8", remove_comments=True, remove_pis=True)
    try:
        tree = html.document_fromstring(text.encode("utf-8", "replace"), parser)
    except etree.ParserError:
        return "", []
    _take_out_hidden(tree)
    title = next(filter(None, (clean(tree.xpath(path)) for path in _TITLES)), "")
    # comments are what strangers wrote under the page
    extracted = trafilatura.bare_extraction(tree, include_comments=False)
    body = getattr(extracted, "body", None)
    main = list(_walk(body)) if body is not None else []
    # lists, forms and tables have no main text by its measure
    if (size := sum(len(block.text) for block in main)) < _THIN:
        etree.strip_elements(tree, *_UNSEEN, with_tail=False)
        blocks_of_page = list(_walk(tree))
        main = (
            blocks_of_page if sum(len(block.text) for block in blocks_of_page) > 3 * size else main
        )
    return title, main


def _take_out_hidden(tree: Any) -> None:
    """Take out what the page itself keeps from its readers: nobody sees it, so it is where
    strangers write to agents.

    The page's own root and body stay: scripts show them when they have run.
    """
    from lxml import etree

    for node in tree.xpath("//*[@hidden or @aria-hidden or @style]"):
        hidden = node.get("hidden") not in (None, "until-found")
        hidden = hidden or node.get("aria-hidden", "").strip().lower() == "true"
        hidden = hidden or _HIDDEN.search(node.get("style", "")) is not None
        if hidden and node.tag not in ("html", "body"):
            node.tag = "template"
    etree.strip_elements(tree, "template", with_tail=False)


def _walk(root: Any) -> Iterator[Block]:
    """The blocks under `root`, in one pass whatever the nesting: text between two block boundaries
    is a block.
    """
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
            if _SPEAKS.search(text := clean("".join(parts))):
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
    if _SPEAKS.search(text := clean("".join(parts))):
        yield Block(mark + text)


def read_text(text: str) -> tuple[str, list[Block]]:
    """The first heading of Markdown as title, and blocks without the marks of links, images and
    headings.
    """
    text = _ALONE.sub(r"\n\g<0>\n", _LINK.sub(r"\1", _IMAGE.sub("", text)))
    blocks = []
    for piece in map(str.strip, _GAP.split(_OPENS.sub("\n", text))):
        heading = _HEADING.match(piece) is not None
        if _SPEAKS.search(words := clean(piece.strip("# \t") if heading else piece)):
            blocks.append(Block(words, heading))
    return next((block.text for block in blocks if block.heading), ""), blocks


def read_xml(body: bytes) -> Iterable[str]:
    """The text of each element; no entity is expanded and nothing is fetched. Raises `ImportError`
    without lxml.
    """
    from lxml import etree

    # an entity could unpack to gigabytes, or name a file of this machine
    parser = etree.XMLParser(
        resolve_entities=False, no_network=True, load_dtd=False, recover=True, huge_tree=False
    )
    root = etree.fromstring(body, parser)
    if root is None:
        return []
    etree.strip_elements(root, etree.Entity, etree.Comment, with_tail=False)
    return root.itertext()


def read_pdf(body: bytes, deadline: float) -> tuple[str, list[Block], str]:
    """Title, blocks that know their page, and what was left out because the deadline
    (`time.monotonic`) came.
    """
    import pypdf

    reader = pypdf.PdfReader(io.BytesIO(body))
    if reader.is_encrypted and not reader.decrypt(""):
        raise ToolError("the PDF is locked by a password")
    pages, done, blocks = len(reader.pages), 0, []
    # what was read until the deadline is worth more than nothing
    while done < pages and (not done or time.monotonic() <= deadline):
        done += 1
        # lines put together again
        text = _LAST_LINE.sub(r"\1\n", _HYPHEN.sub("", reader.pages[done - 1].extract_text()))
        blocks += [Block(part, place=f"p. {done}") for part in map(clean, _GAP.split(text)) if part]
    if not blocks:
        raise ToolError("the PDF has no text: its pages may be images")
    title = ""
    with suppress(
        Exception
    ):  # pypdf fails on broken metadata in many ways; that is no reason to lose the document
        title = clean(str(reader.metadata.get("/Title") or "")) if reader.metadata else ""
    return title, blocks, f"the first {done} of its {pages} pages" if done < pages else ""


def answer_to(job: Job) -> Answer:
    """The page or why there is none; nothing that goes wrong in a document ends the process."""
    try:
        return parse(job.body, job.content_type, job.reading)
    except ToolError as error:
        return str(error)
    except ImportError as error:
        return f"it cannot be read here: {error.name or 'what reads it'} is not installed"
    except Exception as error:
        return (
            _REASONS.get(type(error))
            or f"it is damaged or of an unusual form ({type(error).__name__})"
        )


def main(memory: int) -> None:
    """Answer `pages.read`."""
    answer_lines(
        lambda line: msgspec.json.encode(answer_to(msgspec.json.decode(line, type=Job))),
        memory,
        ("trafilatura", "pypdf"),
    )


if __name__ == "__main__":
    main(int(sys.argv[1]))
