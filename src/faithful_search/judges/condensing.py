"""A served or local model that shortens, for a tool, what passages say about a query."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import JudgeError, ToolError
from ..wire.redact import redact
from . import prompting
from .base import Request, Writer

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Condensing:
    """A `tools.condenser.Condenser` on a `Writer`, such as an `EndpointJudge`: `Browse(condenser=Condensing(judge))`.

    Args:
        writer: writes the text; asked on a thread of its own, because it blocks.
        longest: characters of all passages together; those that come later are left out.
    """

    writer: Writer
    longest: int = 16_000

    @property
    def name(self) -> str:
        """The writer and the prompt's version."""
        return f"{getattr(self.writer, 'name', type(self.writer).__name__)} {prompting.load('condense').id}"

    async def condense(self, query: str, passages: Sequence[str]) -> str:
        """What the passages say about the query, in some sentences; empty when they say nothing about it.

        Raises:
            ToolError: when no text could be had.
        """
        request = Request("condense", {"query": query, "passages": "\n\n".join(passages)[: self.longest]})
        try:
            [text] = await asyncio.to_thread(self.writer.write_batch, [request])
        except JudgeError as error:
            _log.warning("no summary could be written: %s", redact(str(error)))
            raise ToolError("no summary could be written") from error
        if text is None:
            raise ToolError("no summary could be written", passing=True)
        return "" if text.strip().rstrip(".").lower() in ("", "nothing") else text.strip()
