"""What a faithful agent must react to: tools whose responses are empty of content."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from ..tools.base import Observation
from ..tools.meter import ToolStats
from ..tools.session import Session
from ..tools.toolbox import Toolbox
from ..trajectory import Evidence, ToolCall


class Blanked(Toolbox):
    """A toolbox that asks another one and returns its responses with every title and text replaced by `word`.

    Number of passages, ids, sources and scores stay, and so do notes: only what could be read is gone.
    """

    def __init__(self, inner: Toolbox, word: str) -> None:
        super().__init__(list(inner.tools.values()), **inner.settings)
        self.inner, self.word = inner, word

    async def call(self, tool_call: ToolCall, session: Session) -> Observation:
        """As `Toolbox.call`, blanked."""
        return self._blank(await self.inner.call(tool_call, session))

    def run_batch(self, calls: Sequence[ToolCall | None], sessions: Sequence[Session]) -> list[Observation]:
        """As `Toolbox.run_batch`, blanked."""
        return [self._blank(observation) for observation in self.inner.run_batch(calls, sessions)]

    def stats(self) -> dict[str, ToolStats]:
        """The inner toolbox's counters."""
        return self.inner.stats()

    def close(self) -> None:
        """Close the inner toolbox."""
        self.inner.close()

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "inner": self.inner, "word": self.word}

    def __repr__(self) -> str:
        return f"Blanked({self.inner!r}, word={self.word!r})"

    def _blank(self, observation: Observation) -> Observation:
        blank = tuple(self._blank_item(item) for item in observation.evidence)
        return msgspec.structs.replace(observation, evidence=blank)

    def _blank_item(self, item: Evidence) -> Evidence:
        def word(text: str) -> str:
            return self.word if text else ""

        return msgspec.structs.replace(item, text=self.word, title=word(item.title), url=word(item.url))


def blanked(toolbox: Toolbox, word: str = "content") -> Toolbox:
    """The same tools with nothing to read in what they return (Proof-of-Use, section 4.5.4).

    A policy that uses its evidence falls to the floor here: exact match near 0, verdicts `no`, other tools tried. One
    that answers as well as before answers from memory.

    `word` may be several words. A policy that was trained on blanked responses has learnt to distrust that very word,
    and falls to the floor without reading anything else: measure it with a word it has never seen (the bundled tiny
    policy was trained on "content").

    Example:
        ```python
        before = evaluate_policy(engine, tasks)
        blind = evaluate_policy(Engine(generator, blanked(toolbox)), tasks)
        ```
    """
    return Blanked(toolbox, word)
