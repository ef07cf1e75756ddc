"""Bodies of web servers unpacked within limits: a small answer cannot become a huge one."""

from __future__ import annotations

import zlib
from contextlib import suppress

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


def unpack(body: bytes, encoding: str, most: int) -> bytes:
    """A body of at most `most` bytes without its Content-Encoding.

    Raises:
        TooLarge: when a layer would unpack to more; nothing beyond the limit is unpacked.
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
