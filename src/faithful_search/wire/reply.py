"""A web server's answer, and what its headers say."""

from __future__ import annotations

import datetime
import email.utils
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import ToolError


@dataclass(frozen=True)
class Reply:
    """A successful answer.

    Attributes:
        status: 200 to 299.
        headers: by lower-case name; repeated ones joined by commas.
        body: unpacked.
        url: where it came from in the end, after redirects, without fragment.

    Example:
        >>> reply = Reply(200, {"content-type": "Application/JSON; charset=utf-8"}, b'{"capital": "Paris"}', "")
        >>> reply.media_type, reply.json()
        ('application/json', {'capital': 'Paris'})
    """

    status: int
    headers: Mapping[str, str]
    body: bytes
    url: str

    @property
    def media_type(self) -> str:
        """The media type without parameters, in lower case; empty when none was sent."""
        return media_type(self.headers)

    def json(self) -> Any:
        """The body read as JSON.

        Raises:
            ToolError: when it is not JSON.
        """
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError):
            raise ToolError("the answer is not JSON") from None


def read_headers(raw: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """Headers by lower-case name; those named several times are joined by commas."""
    headers: dict[str, str] = {}
    for name, value in raw:
        key, text = name.decode("latin-1").lower(), _text(value)
        headers[key] = f"{headers[key]}, {text}" if key in headers else text
    return headers


def _text(value: bytes) -> str:
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        return value.decode("latin-1")


def media_type(headers: Mapping[str, str]) -> str:
    """What kind of body the headers announce: `text/html`; empty when they do not say."""
    return headers.get("content-type", "").partition(";")[0].strip().lower()


def accepts(accept: tuple[str, ...], kind: str) -> bool:
    """Whether a media type is among those wanted.

    Example:
        >>> accepts(("text/*", "application/pdf"), "text/html"), accepts(("text/*",), "image/png"), accepts((), "a/b")
        (True, False, True)
    """
    return not accept or kind in accept or f"{kind.partition('/')[0]}/*" in accept or "*/*" in accept


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds that the server asks to wait, whether it wrote a number or a date; `None` when it did not ask.

    Example:
        >>> retry_after({"retry-after": "7"}), retry_after({"retry-after": "soon"})
        (7.0, None)
        >>> retry_after({"retry-after": "Wed, 01 Jan 2020 00:00:00 GMT"})
        0.0
    """
    written = headers.get("retry-after", "").strip()
    try:
        seconds = float(written) if written.isascii() else math.nan
    except ValueError:
        seconds = _seconds_until(written)
    return max(0.0, seconds) if math.isfinite(seconds) else None


def _seconds_until(date: str) -> float:
    try:
        then = email.utils.parsedate_to_datetime(date)
        return (then - datetime.datetime.now(then.tzinfo)).total_seconds()
    except (ValueError, TypeError, OverflowError):
        return math.nan
