"""A served or local model that shortens, for a tool, what passages say about a query."""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import JudgeError, ToolError
from ..escape import as_line
from ..wire.cache import key_of
from ..wire.redact import redact
from . import prompting
from .base import Request, Writer

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Condensing:
    """A `tools.base.Condenser` on a `Writer`, such as an `EndpointJudge`:
    `Browse(condenser=Condensing(judge))`.

    Args:
        writer: writes the text; asked on a thread of its own, because it blocks.
        longest: characters of all passages together; those that come later are left out.
    """

    writer: Writer
    longest: int = 16_000

    @property
    def name(self) -> str:
        """The writer, the prompt's version, and a digest of all else that a summary depends on."""
        prompt = prompting.load("condense")
        settings = key_of(settings=self.writer.writing, longest=self.longest, prompt=prompt.digest)
        return f"{self.writer.name} {prompt.id} {settings[:12]}"

    async def condense(self, query: str, passages: Sequence[str]) -> str:
        request = Request(
            "condense", {"query": query, "passages": "\n\n".join(passages)[: self.longest]}
        )
        try:
            [text] = await asyncio.to_thread(self.writer.write_batch, [request])
        except JudgeError as error:
            _log.warning("no summary could be written: %s", as_line(redact(str(error))))
            raise ToolError("no summary could be written") from error
        if text is None:
            raise ToolError("no summary could be written", transient=True)
        return "" if text.strip().rstrip(".").lower() in ("", "nothing") else text.strip()
