"""Asking a search service over HTTP, and telling its refusals to the one who can mend them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping
from typing import Any

from ....errors import ToolError
from ....wire.reply import Reply
from .base import unavailable


async def document_of(request: Awaitable[Reply], refusals: Mapping[int, str]) -> Mapping[str, Any]:
    """The JSON object that answers a request.

    Args:
        request: the exchange.
        refusals: by status, what is wrong with the configuration, for the log.

    Raises:
        ToolError: when there is none.
    """
    try:
        reply = await request
        # a page of results is some kilobytes, but a server may send megabytes
        document = await asyncio.to_thread(reply.json) if len(reply.body) > 100_000 else reply.json()
    except ToolError as error:
        if error.status and (reason := refusals.get(error.status)):
            raise unavailable(reason) from None
        raise error.retold(f"Web search failed: {error}.") from None
    if not isinstance(document, Mapping):
        raise ToolError("Web search failed: the search service answered with something else than results.")
    return document
