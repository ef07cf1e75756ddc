"""Results of tools in a cache: a repeated call is made once, and no trouble of the cache stops a call."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress

import msgspec

from ..trajectory import Evidence
from ..wire.cache import Cache
from ..wire.single_flight import once
from .base import Partial

_DECODER = msgspec.json.Decoder(list[Evidence])


def recent(cache: Cache, key: str) -> list[Evidence] | None:
    """The evidence under `key` where the cache has it in memory; never waits."""
    with suppress(msgspec.MsgspecError):
        stored = cache.recent(key)
        return None if stored is None else _DECODER.decode(stored)
    return None


async def kept(
    cache: Cache | None, key: str, ask: Callable[[], Awaitable[list[Evidence]]], wait: float
) -> list[Evidence]:
    """The evidence under `key`, or what `ask` returns, which is then kept, unless it is `Partial`.

    Concurrent calls for a key ask once and share the result or the exception, with and without a cache. After `wait`
    seconds a call goes on without the cache, or without the other call that it waits for.
    """

    def encode(found: list[Evidence]) -> bytes | None:
        return None if isinstance(found, Partial) else msgspec.json.encode(found)

    if cache is None:
        return (await once(("kept", key), ask, wait))[0]
    return (await cache.get_or_compute(key, ask, _DECODER.decode, encode, wait))[0]
