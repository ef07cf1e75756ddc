"""Results of tools in a cache: a repeated call is made once, and no trouble of the cache stops a call."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress

import msgspec

from ..errors import DataError
from ..trajectory import Evidence
from ..wire.cache import Cache
from ..wire.single_flight import once
from .base import Partial

Ask = Callable[[], Awaitable[list[Evidence]]]
_DECODER = msgspec.json.Decoder(list[Evidence])
_log = logging.getLogger(__name__)


def recent(cache: Cache, key: str) -> list[Evidence] | None:
    """The evidence under `key` where the cache has it in memory; never waits."""
    with suppress(msgspec.MsgspecError):
        stored = cache.recent(key)
        return None if stored is None else _DECODER.decode(stored)
    return None


async def kept(cache: Cache, key: str, ask: Ask, wait: float) -> list[Evidence]:
    """The evidence under `key`, or what `ask` returns, which is then kept.

    Concurrent calls for a key ask once and share the result or the exception. After `wait` seconds a call goes on
    without the cache, or without the other call that it waits for; so it does where the cache cannot be used.
    Exceptions and `Partial` results are never kept.
    """

    async def find_or_ask() -> list[Evidence]:
        try:
            async with asyncio.timeout(wait):
                stored = await asyncio.to_thread(cache.get, key)
            if stored is not None:
                return _DECODER.decode(stored)
        except (TimeoutError, DataError, msgspec.MsgspecError) as error:
            _log.warning("asked without the cache: %s", str(error) or f"it did not answer within {wait:g} s")
        found = await ask()
        if not isinstance(found, Partial):
            with suppress(TimeoutError):  # the call has its result, kept or not
                async with asyncio.timeout(wait):
                    await asyncio.to_thread(cache.keep, key, msgspec.json.encode(found))
        return found

    found, _ = await once((cache.path, key), find_or_ask, wait)
    return found
