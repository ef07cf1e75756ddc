"""Bytes to text where the declared character set is missing or wrong."""

from __future__ import annotations

import codecs
import re

# UTF-32's little-endian mark begins with that of UTF-16, so it comes first
_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_IN_TYPE = re.compile(r"charset\s*=\s*[\"']?([\w:.-]{1,40})", re.IGNORECASE)
_IN_PAGE = re.compile(
    rb"<meta[^>]{0,200}?charset\s*=\s*[\"']?([\w:.-]{1,40})|<\?xml[^>]{0,100}?encoding\s*=\s*[\"']([\w:.-]{1,40})",
    re.IGNORECASE,
)
# What pages mean by these names is what browsers take them for: a larger set that contains them.
_MEANT = {"ascii": "cp1252", "us-ascii": "cp1252", "iso8859-1": "cp1252", "iso8859-9": "cp1254"}
_MEANT |= {"gb2312": "gb18030", "gbk": "gb18030", "shift_jis": "cp932", "euc_kr": "cp949"}
_HEAD, _SAMPLE = 4_096, 65_536
_FEW = 64
"""With fewer bytes above ASCII than this, a text in a Latin script says too little to tell one set from another."""


def decode(body: bytes, content_type: str = "") -> str:
    """The text of a document. Never fails: what cannot be decoded becomes U+FFFD.

    A byte-order mark decides; then bytes that are well-formed UTF-8 are UTF-8, whatever is declared; then the sets that
    the page and the server declare, if the bytes fit; then what the bytes look like.

    Example:
        >>> decode("Zürich".encode("latin-1"), "text/html; charset=utf-8")
        'Zürich'
    """
    for mark, name in _MARKS:
        if body.startswith(mark):
            return body.decode(name, "replace").removeprefix("\ufeff")
    in_type, in_page = _IN_TYPE.search(content_type), _IN_PAGE.search(body[:_HEAD])
    server = _codec(in_type[1]) if in_type else ""
    page = _codec((in_page[1] or in_page[2]).decode("ascii", "replace")) if in_page else ""
    # many servers declare Latin-1 without looking
    declared = [name for name in ([page, server] if server == "cp1252" else [server, page]) if name]
    if not any(name.startswith(("utf-16", "utf-32", "iso2022", "hz")) for name in declared):
        text = body.decode("utf-8", "replace")
        wrong = text.count("\ufffd")
        # one stray byte does not make a page Latin-1
        if not wrong or wrong * 4 <= sum(character > "\x7f" for character in text) - wrong:
            return text
    for name in declared:
        try:
            return body.decode(name)
        except (UnicodeError, ValueError):
            continue
    # from few bytes a guess is worse than the commonest set
    foreign = sum(byte > 0x7F for byte in body[:_SAMPLE])
    if foreign < _FEW and 5 * foreign < len(body):
        return body.decode("cp1252", "replace")
    from charset_normalizer import from_bytes  # comes with trafilatura

    best = from_bytes(body[:_SAMPLE]).best()
    return body.decode(best.encoding if best else "cp1252", "replace")


def _codec(name: str) -> str:
    try:
        found = codecs.lookup(name)
        "".encode(name)  # refuses codecs that are not character sets, such as "hex"
    except (LookupError, ValueError):
        return ""
    return _MEANT.get(found.name, found.name)
