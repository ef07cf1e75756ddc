"""Reading what a service sent: anything else than what was promised is skipped, never raised."""

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
    if not isinstance(value, (str, int, float)) or isinstance(value, bool):
        return ""
    # cut before it is read: it may be megabytes of blanks
    text = str(value)[: 4 * size] if isinstance(value, str) else f"{value:.15g}"
    return shortened(" ".join(well_formed(text).split()), size)


def rows(document: Any, key: str) -> Iterator[Mapping[str, Any]]:
    """The objects in the list `document[key]`; a row of another form is not worth losing the others
    for.
    """
    value = document.get(key) if isinstance(document, Mapping) else None
    yield from (
        row for row in (value if isinstance(value, list) else ()) if isinstance(row, Mapping)
    )


def section(document: Any, key: str) -> Mapping[str, Any]:
    """The object `document[key]`, empty when there is none."""
    value = document.get(key) if isinstance(document, Mapping) else None
    return value if isinstance(value, Mapping) else {}


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
    """Raise `ConfigError` for what is no http(s) address of a service, such as `like`, or has a
    user or password in it, which would end up in logs; these belong into the environment, as
    `keys`.
    """
    if is_page(url) and "@" not in urlsplit(url).netloc:
        return
    where = f": these go into {keys}" if keys else ""
    got = "" if "@" in url else f"; got {url.partition('?')[0]!r}"
    raise ConfigError(f"an address must look like {like}, without a user or password{where}{got}")
