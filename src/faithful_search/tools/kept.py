"""Evidence kept in a cache: what is asked twice is fetched once, and no trouble of the cache stops a call."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from ..errors import DataError
from ..trajectory import Evidence
from ..wire.cache import Cache, Partial

Ask = Callable[[], Awaitable[list[Evidence]]]

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(list[Evidence]).decode
_log = logging.getLogger(__name__)


def recent(cache: Cache, key: str) -> list[Evidence] | None:
    """The evidence under `key` where the cache has it in memory; never waits."""
    stored = cache.recent(key)
    return None if stored is None else _read(stored)


class _Unkept(Exception):
    """Carries a result to all who wait for it, past the file."""

    def __init__(self, found: Partial) -> None:
        super().__init__("a partial result")
        self.found = found


async def kept(cache: Cache, key: str, ask: Ask, wait: float) -> list[Evidence]:
    """The evidence under `key`, or what `ask` returns, which is then kept.

    Calls for the same key at the same time ask once. One that has waited `wait` seconds for the file, or for another's
    answer, asks by itself; one whose cache cannot be used asks too. What `ask` raises is raised, to all who waited for
    it, and never kept; nor is a `Partial` result.
    """
    loop = asyncio.get_running_loop()
    asking: asyncio.Future[Any] = loop.create_future()
    found: asyncio.Future[Any] = loop.create_future()

    async def compute() -> bytes:
        asking.set_result(None)
        own = await ask()
        found.set_result(own)
        if isinstance(own, Partial):
            raise _Unkept(own)
        return _encode(own)

    flight: asyncio.Future[Any] = asyncio.ensure_future(cache.get_or_compute(key, compute))
    landed = await _landed(flight, asking, found, wait)
    failure = flight.exception() if landed else None
    if isinstance(failure, _Unkept):
        return failure.found
    if found.done():
        own: list[Evidence] = found.result()
        return own
    if failure is not None and (asking.done() or not isinstance(failure, DataError)):
        raise failure
    there = _read(flight.result()[0]) if landed and failure is None else None
    if there is None:
        _log.warning("asked without the cache: %s", failure or f"nothing that can be read within {wait:g} s")
        return await ask()
    return there


async def _landed(
    flight: asyncio.Future[Any], asking: asyncio.Future[Any], found: asyncio.Future[Any], wait: float
) -> bool:
    """Whether the file, or another's answer, came in time; what is asked here is waited for as long as it takes."""
    try:
        await asyncio.wait({flight, asking}, timeout=wait, return_when=asyncio.FIRST_COMPLETED)
        if asking.done():
            await asyncio.wait({flight, found}, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait({flight}, timeout=wait)  # for the file to take it
        return flight.done()
    finally:
        flight.cancel()


def _read(stored: bytes) -> list[Evidence] | None:
    try:
        return _decode(stored)
    except msgspec.MsgspecError:
        return None
