"""What a faithful agent must react to: tools whose responses are empty of content, and passages that it never met."""

from collections.abc import Sequence
from typing import Any

import msgspec

from ..bundled import bundled_json
from ..rollout import Engine
from ..tools.base import Observation
from ..tools.toolbox import Session, Toolbox
from ..trajectory import ToolCall
from ..wire.cache import key_of

UNSEEN_BLANKS = (
    *("content", "nothing here", "garden", "lorem ipsum dolor"),
    *("n/a", "to be announced", "see above", "stone bridge"),
)
"""What blanked responses read in evaluations. Never train on these: `coldstart.twins.TRAINING_BLANKS` are others."""

BLANK_TURNS = 3
"""Turns of an episode with blanked tools: two verdicts, which is enough to see what an agent does then."""

UNSEEN_SNIPPETS: tuple[tuple[str, str], ...] = tuple(
    map(tuple, bundled_json("unseen_snippets.json"))
)
"""Passages on nothing in particular, for measuring how a policy takes replacements that no training showed it."""


class Blanked(Toolbox):
    """The same tools with nothing to read in what they return (Proof-of-Use, section 4.5.4).

    A policy that uses its evidence falls to the floor here: exact match near 0, verdicts `no`, other tools tried. One
    that answers as well as before answers from memory. Every title and text is replaced; number of passages, ids,
    sources and scores stay, and so do notes.

    Of several `word`s each response gets one, by a hash of its call. A policy that was trained on blanked responses
    distrusts those very words: measure it with words that it has never seen, `UNSEEN_BLANKS`.
    """

    def __init__(self, inner: Toolbox, word: str | Sequence[str] = "content") -> None:
        super().__init__(list(inner.tools.values()), **inner.settings)
        self._inner = inner
        self._lanes, self._background = (
            inner._lanes,
            inner._background,
        )  # it runs and counts as the inner one
        self.words = (word,) if isinstance(word, str) else tuple(word)

    async def _answer(self, call: ToolCall, session: Session) -> Observation:
        observation = await super()._answer(call, session)
        word = self.words[
            int(key_of(tool=call.name, arguments=call.arguments)[:8], 16) % len(self.words)
        ]
        blank = tuple(
            msgspec.structs.replace(
                item, text=word, title=item.title and word, url=item.url and word
            )
            for item in observation.evidence
        )
        return msgspec.structs.replace(observation, evidence=blank)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._inner, self.words)


def blank_engine(engine: Engine) -> Engine:
    """The engine with blanked tools, for episodes of at most `BLANK_TURNS` turns."""
    limits = msgspec.structs.replace(
        engine.limits, turns=min(BLANK_TURNS, engine.limits.turns), force_answer=False
    )
    toolbox = Blanked(engine.toolbox, UNSEEN_BLANKS)
    return Engine(
        engine.generator, toolbox, engine.dialect, limits, engine.sampling, engine.concurrency
    )
