"""A web server's answer: its headers read, its body unpacked within limits."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from ..errors import ToolError

# What we tell servers that we read. Others (br, zstd) are refused: they are not in the standard library, and each more
# is one more decompressor that strangers may feed.
ENCODINGS = "gzip, deflate"
_MOST_LAYERS = 2
_MOST_MEMBERS = 100
_ANY_HEADER = 47  # zlib's window bits for "gzip or zlib, as its first bytes say"


class TooLarge(Exception):
    """More bytes than allowed."""


class Undecodable(Exception):
    """An unknown or damaged encoding, or too many of them."""


@dataclass(frozen=True)
class Reply:
    """A successful answer, its body unpacked.

    `headers` are by lower-case name, repeated ones joined by commas. `url` is where it came from in the end, after
    redirects, without fragment.
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
        """The body read as JSON; raises `ToolError` when it is something else."""
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError):
            raise ToolError("the answer is not JSON") from None


def read_headers(raw: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """Headers as in `Reply.headers`."""
    headers: dict[str, str] = {}
    for name, value in raw:
        try:
            text = value.decode("utf-8")
        except UnicodeDecodeError:
            text = value.decode("latin-1")
        key = name.decode("latin-1").lower()
        headers[key] = f"{headers[key]}, {text}" if key in headers else text
    return headers


def media_type(headers: Mapping[str, str]) -> str:
    """See `Reply.media_type`."""
    return headers.get("content-type", "").partition(";")[0].strip().lower()


def unpack(body: bytes, encoding: str, most: int) -> bytes:
    """A body of at most `most` bytes without its Content-Encoding; no layer may unpack to more.

    Raises:
        TooLarge: when one does; nothing beyond the limit is unpacked, so that a small answer cannot become a huge one.
        Undecodable: when the encoding is unknown or has more than two layers, or the data is damaged or cut short.
    """
    names = [name for part in encoding.lower().split(",") if (name := part.strip()) not in ("", "identity")]
    if len(names) > _MOST_LAYERS or not set(names) <= {"gzip", "x-gzip", "deflate"}:
        raise Undecodable
    for _ in names if body else ():
        body = _inflate(body, most)
    return body


def _inflate(packed: bytes, most: int) -> bytes:
    found = b""
    for _ in range(_MOST_MEMBERS):
        for header in (_ANY_HEADER, -zlib.MAX_WBITS):  # some servers leave out the header that belongs to deflate
            inflate = zlib.decompressobj(header)
            with suppress(zlib.error):
                found += inflate.decompress(packed, most + 1 - len(found))
                break
        else:
            raise Undecodable
        if len(found) > most:
            raise TooLarge
        if not inflate.eof:
            raise Undecodable
        packed = inflate.unused_data
        if not packed.startswith(b"\x1f\x8b"):  # a gzip file may follow; what else follows is ignored, as browsers do
            return found
    raise Undecodable
