"""Compressed bodies, unpacked a little at a time, so that a small answer cannot become a huge one."""

from __future__ import annotations

import contextlib
import zlib

# What we tell servers that we read. Others (br, zstd) are refused: they are not in the standard library, and each more
# is one more decompressor that strangers may feed.
ENCODINGS = "gzip, deflate"
MOST_LAYERS = 2

_STEP = 1 << 16
_MOST_MEMBERS = 1000
_ANY_HEADER = 47  # zlib's window bits for "gzip or zlib, as its first bytes say"


class TooLarge(Exception):
    """More bytes than allowed."""


class Undecodable(Exception):
    """An unknown or damaged encoding, or too many of them."""


class Body:
    """Collects a body of at most `most` bytes: as received, as unpacked, and after each layer in between.

    Args:
        encoding: the value of Content-Encoding.
        most: bytes.

    Raises:
        Undecodable: when the encoding is unknown or has more than two layers.

    Example:
        >>> body = Body("gzip", most=1000)
        >>> body.feed(zlib.compress(b"paris " * 2))
        >>> body.finish()
        b'paris paris '
        >>> Body("gzip", most=1000).feed(zlib.compress(b"0" * 1001))
        Traceback (most recent call last):
        faithful_search.wire.decoding.TooLarge
    """

    def __init__(self, encoding: str, most: int) -> None:
        names = [name for part in encoding.lower().split(",") if (name := part.strip()) not in ("", "identity")]
        if len(names) > MOST_LAYERS or not set(names) <= {"gzip", "x-gzip", "deflate"}:
            raise Undecodable
        self._layers = [_Inflate(most) for _ in names]
        self._most, self._received = most, 0
        self._parts: list[bytes] = []

    def feed(self, data: bytes) -> None:
        """Take in what came next.

        Raises:
            TooLarge: when a limit is passed; nothing beyond it is unpacked.
            Undecodable: when the data is damaged.
        """
        self._received += len(data)
        if self._received > self._most:
            raise TooLarge
        self._pass_on(data, 0)

    def finish(self) -> bytes:
        """The whole body.

        Raises:
            Undecodable: when it ended in the middle of its compressed form.
        """
        if self._received and not all(layer.complete for layer in self._layers):
            raise Undecodable
        return b"".join(self._parts)

    def _pass_on(self, data: bytes, done: int) -> None:
        if done == len(self._layers):
            self._parts.append(data)
            return
        layer = self._layers[-1 - done]  # the last one named was put on last
        while piece := layer.read(data):
            data = b""
            self._pass_on(piece, done + 1)


class _Inflate:
    """One layer of gzip or deflate: `read` gives at most 64 KiB at a time."""

    def __init__(self, most: int) -> None:
        self._inflate = zlib.decompressobj(_ANY_HEADER)
        self._left, self._waiting, self._members = most, b"", 1
        self._started, self._held_back, self.complete = False, False, False

    def read(self, data: bytes) -> bytes:
        """The next piece of what `data` and all before it unpack to; empty when more data is needed."""
        self._waiting += data
        while self._waiting or self._held_back:
            piece = self._step()
            self._left -= len(piece)
            if self._left < 0:
                raise TooLarge
            if piece:
                return piece
        return b""

    def _step(self) -> bytes:
        if self.complete and not self._next_member():
            return b""
        try:
            piece = self._inflate.decompress(self._waiting, _STEP)
        except zlib.error:
            piece = self._without_header()
        self._started, self._held_back = True, len(piece) == _STEP
        self._waiting = self._inflate.unconsumed_tail or self._inflate.unused_data
        self.complete = self._inflate.eof
        return piece

    def _next_member(self) -> bool:
        """Whether a gzip file follows the first one in the same body; what else follows is ignored, as browsers do."""
        if not self._waiting.startswith(b"\x1f\x8b"):
            self._waiting, self._held_back = b"", False
            return False
        self._members += 1
        if self._members > _MOST_MEMBERS:
            raise Undecodable
        self._inflate, self.complete = zlib.decompressobj(_ANY_HEADER), False
        return True

    def _without_header(self) -> bytes:
        """Some servers send deflate without the zlib header that belongs to it."""
        if not self._started:
            with contextlib.suppress(zlib.error):
                self._inflate = zlib.decompressobj(-zlib.MAX_WBITS)
                return self._inflate.decompress(self._waiting, _STEP)
        raise Undecodable
