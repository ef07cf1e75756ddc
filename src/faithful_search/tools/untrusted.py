"""Reading what a service sent: what has another form than it should is skipped, and raises
nothing.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

from ..errors import ConfigError
from ..text import shortened, well_formed

_LONGEST_URL = 2_000
_NOT_IN_A_URL = re.compile(r"[\s\x00-\x1f\x7f<>\"\ud800-\udfff]")


def line(value: Any, size: int) -> str:
    """A text or number as one line of at most `size` characters; empty for anything else.

    Example:
        >>> line(" a \\n b\\ud800", 9), line(None, 9), line("abcdef", 4)
        ('a b?', '', 'abc…')
    """
    if isinstance(value, str):
        text = value[: 4 * size]  # cut first, since it may be megabytes of blanks
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        text = f"{value:.15g}"
    else:
        return ""
    one_line = " ".join(well_formed(text).split())
    return shortened(one_line, size)


def rows(document: Any, key: str) -> Iterator[Mapping[str, Any]]:
    """The objects in the list `document[key]`, without what is no object; none where there is no
    such list.
    """
    value = _value(document, key)
    if not isinstance(value, list):
        return
    for row in value:
        if isinstance(row, Mapping):
            yield row


def section(document: Any, key: str) -> Mapping[str, Any]:
    """The object `document[key]`, empty when there is none."""
    value = _value(document, key)
    return value if isinstance(value, Mapping) else {}


def _value(document: Any, key: str) -> Any:
    """`document[key]`; `None` where there is none, or the document is no object."""
    return document.get(key) if isinstance(document, Mapping) else None


def is_page(url: Any) -> bool:
    """Whether `url` is the http(s) address of a host.

    Example:
        >>> is_page("https://tea.example/a?b#c"), is_page("javascript:alert()"), is_page("http://[")
        (True, False, False)
    """
    if not isinstance(url, str) or len(url) > _LONGEST_URL or _NOT_IN_A_URL.search(url):
        return False
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname)
    except ValueError:
        return False


def check_address(url: str, like: str, keys: str = "") -> None:
    """Raise `ConfigError` for what is no http(s) address of a service, or has a user or password in
    it, which would end up in logs.

    Args:
        like: an example of an address.
        keys: the environment variables in which user and password belong.
    """
    if is_page(url) and "@" not in urlsplit(url).netloc:
        return
    where = f": these go into {keys}" if keys else ""
    # Neither a password nor a query, which may hold a key, is repeated.
    got = "" if "@" in url else f"; got {url.partition('?')[0]!r}"
    raise ConfigError(f"an address must look like {like}, without a user or password{where}{got}")
