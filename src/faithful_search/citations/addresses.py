"""Addresses in text, and when two of them are the same page."""

import re
from urllib.parse import unquote

# One level of parentheses belongs to an address, as in Wikipedia's.
_CHARACTER = r"[^\s<>()\[\]{}\"`|\\^（）［］【】「」『』，。、；：！？“”‘’»«\ue200-\ue2ff]"
ADDRESS = rf"(?:https?://|(?<![\w.@/])www\.)(?:{_CHARACTER}|\({_CHARACTER}{{0,200}}+\)){{1,2000}}+"
IDENTIFIER = (
    r"(?i:\bdoi:\s?|(?<![\w/.])(?=10\.\d{4}))10\.\d{4,9}/[^\s<>\"\])}，。；]{1,200}+"
    r"|(?i:\barxiv:\s?)\d{4}\.\d{4,5}(?:v\d)?"
)
ENDS = ".,;:!?*_~'"  # punctuation that is the sentence's, not the address's

_ADDRESS = re.compile(ADDRESS)
_SCHEME = re.compile(r"(?:https?:)?//(?:www\.)?|www\.", re.IGNORECASE)
_TRACKING = re.compile(
    r"(?:utm_\w{1,40}|gclid|fbclid|msclkid|mc_[ce]id|igshid)(?:=|\Z)", re.IGNORECASE
)
_DOI = re.compile(r"(?:doi:\s?|(?:dx\.)?doi\.org/)?(10\.\d{4,9}/.+)", re.IGNORECASE | re.DOTALL)
_ARXIV = re.compile(
    r"(?:arxiv:\s?|arxiv\.org/(?:abs|pdf|html)/)(\d{4}\.\d{4,5})(?:v\d)?(?:\.pdf)?", re.IGNORECASE
)
_ALONE = re.compile(
    rf"{ADDRESS}|{IDENTIFIER}|(?://)?[\w-]{{1,60}}+(?:\.[\w-]{{1,60}}+){{1,6}}+/\S{{0,2000}}+"
)


def pages_in(text: str) -> set[str]:
    """The pages (`page_of`) whose addresses stand in a text.

    Example:
        >>> sorted(pages_in("See https://www.ex.org/ada/ and (http://ex.org/b)."))
        ['ex.org/ada', 'ex.org/b']
    """
    return {page_of(match[0].rstrip(ENDS)) for match in _ADDRESS.finditer(text)}


def is_address(text: str) -> bool:
    """Whether the text is an address, with or without its scheme.

    Example:
        >>> is_address("https://ex.org/ada"), is_address("ex.org/ada"), is_address("doc_7")
        (True, True, False)
    """
    return _ALONE.fullmatch(text) is not None


def page_of(address: str) -> str:
    """What all addresses of one page have in common: no scheme, no `www.`, no parameters that
    track, no fragment, no last slash.

    Example:
        >>> page_of("https://www.Ex.org/Ada/?utm_source=chat#born")
        'ex.org/Ada'
        >>> page_of("doi:10.1000/182"), page_of("https://doi.org/10.1000/182")
        ('doi.org/10.1000/182', 'doi.org/10.1000/182')
    """
    address = _SCHEME.sub("", address.strip().strip("<>"), count=1)
    if article := _DOI.fullmatch(address):
        return f"doi.org/{article[1].lower()}"
    if preprint := _ARXIV.fullmatch(address):
        return f"arxiv.org/abs/{preprint[1]}"
    address, _, query = address.partition("#")[0].partition("?")
    host, slash, path = address.partition("/")
    page = (host.lower() + slash + unquote(path)).rstrip("/")
    parts = [part for part in query.split("&") if part and not _TRACKING.match(part)]
    return f"{page}?{'&'.join(parts)}" if parts else page
