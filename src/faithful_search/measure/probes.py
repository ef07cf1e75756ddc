"""Probes that a faithful agent must react to: tools whose responses have no content (`Blanked`),
and passages that no training has shown (`UNSEEN_SNIPPETS`).
"""

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
    "content",
    "nothing here",
    "garden",
    "lorem ipsum dolor",
    "n/a",
    "to be announced",
    "see above",
    "stone bridge",
)
"""The texts of blanked responses in evaluations. Never train on them: training uses
`coldstart.twins.TRAINING_BLANKS`.
"""

BLANK_TURNS = 3
"""The number of turns in an episode with blanked tools. It has two verdicts then, which are enough
to see what an agent does.
"""

UNSEEN_SNIPPETS: tuple[tuple[str, str], ...] = tuple(
    map(tuple, bundled_json("unseen_snippets.json"))
)
"""Passages on nothing in particular. They measure how a policy reacts to replacements that no
training has shown it.
"""


class Blanked(Toolbox):
    """The same tools, but with no content in what they return (Proof-of-Use, section 4.5.4).

    A policy that uses its evidence fails here: its exact match is near 0, its verdicts are `no`,
    and it tries other tools. A policy that answers as well as before answers from memory. Every
    title and text is replaced. The number of passages, ids, addresses, sources, scores and notes
    stay, since a response without addresses would show by its form that it is blank.

    If there are several words, a hash of the call chooses one for each response. A policy that was
    trained on blanked responses distrusts the words of its training: measure it with words that it
    has never seen (`UNSEEN_BLANKS`).
    """

    def __init__(self, inner: Toolbox, word: str | Sequence[str] = "content") -> None:
        super().__init__(list(inner.tools.values()), **inner.settings)
        self._inner = inner
        # Shared, so that it runs and counts as the inner toolbox does
        self._lanes = inner._lanes
        self._background = inner._background
        self.words = (word,) if isinstance(word, str) else tuple(word)

    async def _answer(self, call: ToolCall, session: Session) -> Observation:
        observation = await super()._answer(call, session)
        number = int(key_of(tool=call.name, arguments=call.arguments)[:8], 16)
        word = self.words[number % len(self.words)]
        blank = tuple(
            msgspec.structs.replace(passage, text=word, title=passage.title and word)
            for passage in observation.evidence
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
