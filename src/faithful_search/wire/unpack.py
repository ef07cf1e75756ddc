"""Bodies of web servers unpacked within limits: a small answer cannot become a huge one."""

from __future__ import annotations

import zlib
from contextlib import suppress

# What we tell servers that we read. Others (br, zstd) are refused: they are not in the standard library, and each more
# is one more decompressor that strangers may feed.
ENCODINGS = "gzip, deflate"
_MOST_LAYERS = 2
_GZIP = b"\x1f\x8b"
_ANY_HEADER = 47  # zlib's window bits for "gzip or zlib, as its first bytes say"


class TooLarge(Exception):
    """More bytes than allowed."""


class Undecodable(Exception):
    """An unknown or damaged encoding, or too many of them."""


def unpack(body: bytes, encoding: str, most: int) -> bytes:
    """A body of at most `most` bytes without its Content-Encoding.

    Raises:
        TooLarge: when a layer would unpack to more; nothing beyond the limit is unpacked.
        Undecodable: when the encoding is unknown or has more than two layers, or the data is damaged, cut short or more
            than one file.
    """
    names = [name for part in encoding.lower().split(",") if (name := part.strip()) not in ("", "identity")]
    if len(names) > _MOST_LAYERS or not set(names) <= {"gzip", "x-gzip", "deflate"}:
        raise Undecodable
    for _ in names if body else ():
        body = _inflate(body, most)
    return body


def _inflate(packed: bytes, most: int) -> bytes:
    for header in (_ANY_HEADER, -zlib.MAX_WBITS):  # some servers leave out the header that belongs to deflate
        inflate = zlib.decompressobj(header)
        with suppress(zlib.error):
            found = inflate.decompress(packed, most + 1)
            if len(found) > most:
                raise TooLarge
            # a second gzip file behind the first is not read, and not left out in silence either
            if inflate.eof and not inflate.unused_data.startswith(_GZIP):
                return found
    raise Undecodable
