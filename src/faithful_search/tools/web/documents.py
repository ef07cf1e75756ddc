"""A document's bytes to a page: HTML, PDF, XML, JSON and plain text.

Run as a module, it is the process that `pages.read` asks; its argument is how many bytes of memory
a document may take.
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

# Content types that say nothing: the document itself is looked at.
_UNSAID = ("", "application/octet-stream", "binary/octet-stream")
READABLE = (
    "text/*",
    "application/xhtml+xml",
    "application/pdf",
    "application/x-pdf",
    "application/json",
    "application/ld+json",
    "application/x-ndjson",
    "application/xml",
    "application/rss+xml",
    "application/atom+xml",
    "application/yaml",
    "application/octet-stream",
    "binary/octet-stream",
)
"""The content types that can be read."""
# How pages begin, whatever their content type, …
_WHOLE_HTML = re.compile(rb"<(?:!doctype html|html|head|body)[\s>]")
# … and how pieces of a page do that have no content type.
_SOME_HTML = re.compile(
    rb"<(?:!--|(?:title|meta|link|script|style|p|div|h[1-6]|table|br|a|b|article|main|section)[\s>/])"
)
# Byte-order marks, and the codecs that take them off
_MARKS = {
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
# The character set as a content type declares it, and as HTML and XML do
_SET_IN_TYPE = re.compile(rb"charset\s*=\s*[\"']?([\w:.-]{1,40})", re.IGNORECASE)
_SET_IN_PAGE = re.compile(
    rb"(?:<meta[^>]{0,200}?charset\s*=|<\?xml[^>]{0,100}?encoding\s*=)\s*[\"']?([\w:.-]{1,40})",
    re.IGNORECASE,
)
# By a set's name, the larger set that pages mean by it, and that browsers take it for
_MEANT = {
    "ascii": "cp1252",
    "us-ascii": "cp1252",
    "iso8859-1": "cp1252",
    "iso8859-9": "cp1254",
    "gb2312": "gb18030",
    "gbk": "gb18030",
    "shift_jis": "cp932",
    "euc_kr": "cp949",
}
# Sets in which the bytes of ASCII letters may be other letters
_NOT_ASCII = ("utf-16", "iso2022", "hz")
_GUESSED_FROM = 65_536  # bytes of a document from which its set is guessed
# With fewer bytes above ASCII, a text in a Latin script says too little to tell one set from
# another.
_FEW = 64
_HAS_WORDS = re.compile(r"\w")  # unlike rules, bullets and empty cells
# Markdown: images, links, headings; lines that are blocks of their own (headings, rules under
# tables); and where an item of a list, a quote or a row of a table begins
_IMAGE = re.compile(r"!\[([^\[\]\n]{0,500})\]\([^()\s]{0,2000}(?:[ \t]+\"[^\"\n]{0,200}\")?\)")
_LINK = re.compile(r"(?<!!)\[([^\[\]\n]{1,500})\]\([^()\s]{0,2000}(?:[ \t]+\"[^\"\n]{0,200}\")?\)")
_HEADING = re.compile(r"#{1,6}[ \t]")
_LINE_BLOCK = re.compile(rf"^(?:[ \t]*{_HEADING.pattern}.*|[|: \t=-]+)$", re.MULTILINE)
_BLOCK_BEGINS = re.compile(r"^(?=[ \t]*[-*+>|0-9])", re.MULTILINE)
_BLANK_LINE = re.compile(r"\n[^\S\n]*\n")
# In a PDF: a word that is divided at the end of a line, and the last line of a paragraph, by its
# looks: short, and a sentence ends in it.
_HYPHEN = re.compile(r"(?<=[^\W\d_])[-\u00ad\u2010]\n(?=[^\W\d_])")
_LAST_LINE = re.compile(r"(?m)^(.{0,60}[.!?:\u3002])[^\S\n]*$")
# Of the time for a document, the share in which pages of a PDF are read: what was read by then has
# to be put together and sent.
_PDF_SHARE = 0.6
_LONGEST_TITLE = 300  # characters
_MOST_PARAGRAPHS = 10_000  # a table of a million rows would be searched paragraph by paragraph
_REASONS = {
    MemoryError: "it needs too much memory to be read",
    RecursionError: "it is nested too deeply to be read",
}
# How content types end whose kind is not "text"; see `kind_of`
_ENDINGS = {"json": "json", "xml": "xml", "csv": "lines", "values": "lines", "calendar": "lines"}
# Control characters, invisible spaces, lone surrogates and what is no character
_UNWANTED = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u200b\u2060\ufeff\ud800-\udfff\ufffe\uffff]+"
)
# Elements by their role: of HTML, and (head, row, cell, item …) of what trafilatura extracts
_HEADINGS = frozenset(("head", "h1", "h2", "h3", "h4", "h5", "h6"))
_ROWS = frozenset(("row", "tr"))
_CELLS = frozenset(("cell", "td", "th"))
_ITEMS = frozenset(("item", "li"))
# Elements that begin and end a block wherever they stand; `_BLOCKS` do so outside of rows only.
_BORDERS = _HEADINGS | _ROWS | _ITEMS | {"table"}
_BLOCK_TAGS = """
p div section article main header footer aside nav ul ol dl dt dd list quote blockquote pre code tbody thead form
fieldset figure figcaption address hr br lb body html option
"""
_BLOCKS = frozenset(_BLOCK_TAGS.split())
# Elements whose text no reader of the page sees
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
_HIDING_STYLE = re.compile(
    r"(?:^|[;\s])(?:display\s*+:\s*+none|visibility\s*+:\s*+(?:hidden|collapse))\b", re.I
)
# Where the title of a page may be, best first
_TITLES = ('string(//meta[@property="og:title"]/@content)', "string(//title)", "string(//h1)")
# With fewer characters of main text, and far more on the page, trafilatura has missed it.
_THIN_MAIN_TEXT = 200


class Block(msgspec.Struct, frozen=True):
    """What a document itself sets apart: a paragraph, a heading, an item of a list, a row of a
    table.

    Attributes:
        heading: whether it is one, which stays with the next block.
        lead: of a row, the header of its table. A paragraph that begins with this block repeats it
            at the top.
        place: where it stands; see `Paragraph`.
    """

    text: str
    heading: bool = False
    lead: str = ""
    place: str = ""


def clean(text: str) -> str:
    """A text on one line, without control characters, lone surrogates and invisible spaces."""
    return " ".join(_UNWANTED.sub("", text).split())


def parse(body: bytes, content_type: str, reading: PageSettings) -> ParsedPage:
    """Read a document in this process, which a hostile one may hang or crash.

    Raises:
        ToolError: says why it cannot be read.
    """
    deadline = time.monotonic() + _PDF_SHARE * reading.seconds
    title = cut = ""
    match kind_of(body, content_type):
        case "pdf":
            title, blocks, cut = read_pdf(body, deadline)
        case "html":
            title, blocks = read_html(decode(body, content_type))
        case "text":
            title, blocks = read_text(decode(body, content_type))
        case "xml":
            blocks = _blocks_of(read_xml(body))
        case "json":
            text = decode(body, content_type)
            with suppress(msgspec.DecodeError):  # the server may be wrong about its type
                text = msgspec.json.format(text, indent=1)
            blocks = _blocks_of(text.splitlines())
        case _:
            blocks = _blocks_of(decode(body, content_type).splitlines())
    paragraphs = list(pack(blocks, reading.shortest, reading.longest))
    if not paragraphs:
        raise ToolError("there is no text in it that could be read")
    if len(paragraphs) > _MOST_PARAGRAPHS:
        cut = f"the first {_MOST_PARAGRAPHS} of its {len(paragraphs)} paragraphs"
        paragraphs = paragraphs[:_MOST_PARAGRAPHS]
    return ParsedPage(title[:_LONGEST_TITLE], tuple(paragraphs), cut)


def _blocks_of(pieces: Iterable[str]) -> list[Block]:
    """Lines, or texts of elements, as blocks; those without a word are left out."""
    cleaned = [clean(piece) for piece in pieces]
    return [Block(text) for text in cleaned if _HAS_WORDS.search(text)]


def kind_of(body: bytes, content_type: str) -> str:
    """`html`, `pdf`, `json`, `xml`, `lines` or `text`; a `ToolError` names any other type."""
    media_type = content_type.partition(";")[0].strip().lower()
    start = body[:1024].lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    # Not only at the beginning: readers of PDF allow something before it, so servers send it.
    if b"%pdf-" in start:
        return "pdf"
    if media_type and not media_type.startswith("text/") and media_type not in READABLE:
        raise ToolError(
            f"its type, {media_type[:60]}, cannot be read: only web pages, PDFs and text can"
        )
    if media_type in ("text/html", "application/xhtml+xml"):
        return "html"
    # Servers send pages as text/plain, or without a type.
    if _WHOLE_HTML.match(start) or (media_type in _UNSAID and _SOME_HTML.match(start)):
        return "html"
    # No text has zero bytes but UTF-16, which begins with a mark.
    is_binary = b"\0" in body[:4096] and not body.startswith(tuple(_MARKS))
    if media_type.endswith("pdf") or is_binary:
        raise ToolError(
            f"its type is {media_type[:60] or 'not given'}, but what it holds is not that and "
            "cannot be read"
        )
    for ending, kind in _ENDINGS.items():
        if media_type.endswith(ending):
            return kind
    return "xml" if start.startswith(b"<?xml") else "text"


def decode(body: bytes, content_type: str = "") -> str:
    """The text of a document; what cannot be decoded becomes U+FFFD.

    A byte-order mark decides. Else it is UTF-8 where (nearly all) bytes are well-formed, whatever
    is declared; else in the first set that the page or the server declares and the bytes fit; else
    in the set that the bytes look like.
    """
    for mark, name in _MARKS.items():
        if body.startswith(mark):
            return body.decode(name, "replace")
    declared = _declared_sets(body, content_type)
    if not any(name.startswith(_NOT_ASCII) for name in declared):
        text = body.decode("utf-8", "replace")
        wrong = text.count("\ufffd")
        right = sum(character > "\x7f" for character in text) - wrong
        # A stray byte among others that are well-formed does not make a page Latin-1.
        if not wrong or 4 * wrong <= right:
            return text
    for name in declared:
        with suppress(ValueError):
            return body.decode(name)
    beginning = body[:_GUESSED_FROM]
    not_ascii = sum(byte > 0x7F for byte in beginning)
    # From few bytes a guess is worse than the commonest set.
    if not_ascii >= _FEW or 5 * not_ascii >= len(body):
        from charset_normalizer import from_bytes

        guess = from_bytes(beginning).best()
        if guess is not None:
            return body.decode(guess.encoding, "replace")
    return body.decode("cp1252", "replace")


def _declared_sets(body: bytes, content_type: str) -> list[str]:
    """The codecs of the character sets that the page and its server declare.

    The page's comes first: many servers declare Latin-1 without looking.
    """
    in_page = _SET_IN_PAGE.findall(body[:4_096])[:1]
    in_type = _SET_IN_TYPE.findall(content_type.encode())[:1]
    declared = []
    for name_bytes in in_page + in_type:
        name = name_bytes.decode("ascii", "replace")
        # It may be unknown, or name a codec of no character set, such as "hex".
        with suppress(LookupError, ValueError):
            codec = codecs.lookup(name).name
            "".encode(name)
            declared.append(_MEANT.get(codec, codec))
    return declared


def pack(blocks: Iterable[Block], shortest: int, longest: int) -> Iterator[Paragraph]:
    """Paragraphs of `shortest` to `longest` characters, as far as the blocks allow.

    A block that is too long is split at the ends of sentences; short ones are joined on lines of
    their own. A heading stays with what follows it, and no paragraph goes over a change of `place`.
    """
    lines: list[str] = []  # of the paragraph that is being put together
    size = 0  # its characters, with a line break after each line
    last = Block("")  # the block of its last line
    for block in blocks:
        is_full = size >= shortest and not last.heading
        if lines and (is_full or last.place != block.place):
            yield Paragraph("\n".join(lines), last.place)
            lines, size = [], 0
        for part in paragraphs(block.text, longest):
            if lines and size + len(part) > longest:
                yield Paragraph("\n".join(lines), last.place)
                lines, size = [], 0
            # A table that goes on in another paragraph shows its header there again.
            if not lines and block.lead and len(block.lead) + len(part) < longest:
                lines.append(block.lead)
            lines.append(part)
            size = sum(map(len, lines)) + len(lines)
            last = block
    if lines:
        yield Paragraph("\n".join(lines), last.place)


def read_html(text: str) -> tuple[str, list[Block]]:
    """Title and blocks of a page; no blocks when it has no text.

    The blocks are those of the main text, as trafilatura finds it, without the comments of readers.
    Lists, forms and tables have no main text by its measure: where it finds little, and the page
    has more than three times as much, they are those of the whole page. Raises `ImportError`
    without trafilatura.
    """
    import trafilatura
    from lxml import etree, html

    parser = html.HTMLParser(encoding="utf-8", remove_comments=True, remove_pis=True)
    try:
        tree = html.document_fromstring(text.encode("utf-8", "replace"), parser)
    except etree.ParserError:
        return "", []
    _remove_hidden(tree)
    titles = [clean(tree.xpath(path)) for path in _TITLES]
    title = next((title for title in titles if title), "")
    extracted = trafilatura.bare_extraction(tree, include_comments=False)
    body = getattr(extracted, "body", None)
    main_text = list(_walk(body)) if body is not None else []
    main_size = sum(len(block.text) for block in main_text)
    if main_size >= _THIN_MAIN_TEXT:
        return title, main_text
    etree.strip_elements(tree, *_UNSEEN, with_tail=False)
    whole_page = list(_walk(tree))
    page_size = sum(len(block.text) for block in whole_page)
    return title, whole_page if page_size > 3 * main_size else main_text


def _remove_hidden(tree: Any) -> None:
    """Take out what the page hides from its readers: nobody sees it, so it is where strangers write
    to agents.

    The root and the body stay: pages hide these until their scripts have run.
    """
    from lxml import etree

    for node in tree.xpath("//*[@hidden or @aria-hidden or @style]"):
        if node.tag in ("html", "body"):
            continue
        by_attribute = node.get("hidden") not in (None, "until-found")
        by_aria = node.get("aria-hidden", "").strip().lower() == "true"
        by_style = _HIDING_STYLE.search(node.get("style", "")) is not None
        if by_attribute or by_aria or by_style:
            node.tag = "template"  # what is inside goes with it
    etree.strip_elements(tree, "template", with_tail=False)


def _walk(root: Any) -> Iterator[Block]:
    """The blocks under `root`: the texts between two boundaries of blocks, whatever the nesting.

    A row of a table is one block, its cells divided by `|`; an item of a list begins with `-`.
    """
    from lxml import etree

    parts: list[str] = []  # the text since the last boundary
    header_cells: list[bool] = []  # for each cell of this row so far: whether it is a header
    in_row = False
    in_first_row = False  # or before it, in a table
    item_mark = ""  # of an item whose text has not come yet
    table_header = ""  # of the table that is being read
    for event, node in etree.iterwalk(root, events=("start", "end")):
        starts = event == "start"
        tag = node.tag
        if tag in _CELLS and starts:
            parts.append(" | " if header_cells else " ")
            header_cells.append(tag == "th" or node.get("role") == "head")
        elif tag in _BORDERS or (tag in _BLOCKS and not in_row):
            text = clean("".join(parts))
            parts.clear()
            ends_row = tag in _ROWS and not starts
            if _HAS_WORDS.search(text):
                yield Block(
                    text=item_mark + text,
                    heading=tag in _HEADINGS and not starts,
                    lead=table_header if ends_row else "",
                )
                item_mark = ""
                is_header = in_first_row and len(header_cells) > 1 and all(header_cells)
                if ends_row and is_header:
                    table_header = text
            if tag in _ROWS:
                in_row = starts
                if ends_row:
                    in_first_row = False
                    header_cells = []
            elif tag == "table":
                in_first_row = starts
                table_header = ""
            elif tag in _ITEMS:
                item_mark = "- " if starts else ""
        elif tag in _BLOCKS:
            parts.append(" ")
        if starts:
            parts.append(node.text or "")
        elif node is not root:
            parts.append(node.tail or "")
    text = clean("".join(parts))
    if _HAS_WORDS.search(text):
        yield Block(item_mark + text)


def read_text(text: str) -> tuple[str, list[Block]]:
    """Title and blocks of plain text or Markdown.

    The title is the first heading. Images are left out; of links and headings the text stays.
    """
    text = _IMAGE.sub("", text)
    text = _LINK.sub(r"\1", text)
    # Blank lines around blocks that need none in Markdown, so that all blocks are between two
    text = _LINE_BLOCK.sub(r"\n\g<0>\n", text)
    text = _BLOCK_BEGINS.sub("\n", text)
    title = ""
    blocks = []
    for piece in _BLANK_LINE.split(text):
        piece = piece.strip()
        is_heading = _HEADING.match(piece) is not None
        block_text = clean(piece.strip("# \t") if is_heading else piece)
        if not _HAS_WORDS.search(block_text):
            continue
        blocks.append(Block(block_text, heading=is_heading))
        if is_heading and not title:
            title = block_text
    return title, blocks


def read_xml(body: bytes) -> Iterable[str]:
    """The texts of the elements. Raises `ImportError` without lxml.

    No entity is expanded, and nothing is fetched: an entity could unpack to gigabytes, or name a
    file of this machine.
    """
    from lxml import etree

    parser = etree.XMLParser(
        resolve_entities=False, no_network=True, load_dtd=False, recover=True, huge_tree=False
    )
    root = etree.fromstring(body, parser)
    if root is None:
        return []
    etree.strip_elements(root, etree.Entity, etree.Comment, with_tail=False)
    return root.itertext()


def read_pdf(body: bytes, deadline: float) -> tuple[str, list[Block], str]:
    """Title, blocks with their pages as places, and how far it was read (`ParsedPage.cut`).

    After `deadline` (`time.monotonic`) no other page is read: some are worth more than none.
    """
    import pypdf

    reader = pypdf.PdfReader(io.BytesIO(body))
    if reader.is_encrypted and not reader.decrypt(""):
        raise ToolError("the PDF is locked by a password")
    page_count = len(reader.pages)
    pages_read = 0
    blocks = []
    for number, page in enumerate(reader.pages, start=1):
        if pages_read and time.monotonic() > deadline:
            break
        # Lines become paragraphs again: a blank line after the last of each.
        text = _HYPHEN.sub("", page.extract_text())
        text = _LAST_LINE.sub(r"\1\n", text)
        for piece in _BLANK_LINE.split(text):
            block_text = clean(piece)
            if block_text:
                blocks.append(Block(block_text, place=f"p. {number}"))
        pages_read = number
    if not blocks:
        raise ToolError("the PDF has no text: its pages may be images")
    title = ""
    # pypdf fails on broken metadata in many ways, which is no reason to lose the document.
    with suppress(Exception):
        title = clean(str(reader.metadata.get("/Title") or "")) if reader.metadata else ""
    cut = f"the first {pages_read} of its {page_count} pages" if pages_read < page_count else ""
    return title, blocks, cut


def answer_to(job: Job) -> Answer:
    """The page, or why there is none. Nothing that goes wrong in a document ends the process."""
    try:
        return parse(job.body, job.content_type, job.reading)
    except ToolError as error:
        return str(error)
    except ImportError as error:
        return f"it cannot be read here: {error.name or 'what reads it'} is not installed"
    except Exception as error:
        unknown = f"it is damaged or of an unusual form ({type(error).__name__})"
        return _REASONS.get(type(error), unknown)


def main(memory: int) -> None:
    """Answer `pages.read` until this process is no longer needed."""

    def answer(line: bytes) -> bytes:
        job = msgspec.json.decode(line, type=Job)
        return msgspec.json.encode(answer_to(job))

    answer_lines(answer, memory, imports=("trafilatura", "pypdf"))


if __name__ == "__main__":
    main(int(sys.argv[1]))
