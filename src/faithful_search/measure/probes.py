"""What a faithful agent must react to: tools whose responses are empty of content, and passages that it never met."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from ..rollout import Engine
from ..tools.base import Observation
from ..tools.lane import ToolStats
from ..tools.session import Session
from ..tools.toolbox import Toolbox
from ..trajectory import Step, ToolCall, Trajectory
from ..wire.cache import key_of

UNSEEN_BLANKS = (
    *("content", "nothing here", "garden", "lorem ipsum dolor"),
    *("n/a", "to be announced", "see above", "stone bridge"),
)
"""What blanked responses read in evaluations. Never train on these: `coldstart.twins.TRAINING_BLANKS` are others."""

BLANK_TURNS = 3
"""Turns of an episode with blanked tools: two verdicts, which is enough to see what an agent does then."""

UNSEEN_SNIPPETS = (
    ("Candle wick", "A braided wick curls as it burns, so that its tip glows off and needs no trimming."),
    ("Umbrella", "The ribs of an umbrella slide along the shaft and lock behind a small spring."),
    ("Sourdough", "A starter that is fed twice daily doubles within hours and smells faintly of apples."),
    ("Kite", "A tail steadies a kite in gusts; a longer one costs height when the breeze is light."),
    ("Chalk", "Blackboard chalk is pressed from gypsum nowadays and breaks with a clean, dry snap."),
    ("Snail", "Snails seal their shells with dried slime and sleep through the hottest weeks."),
    ("Piano tuning", "A tuner listens for beats between two strings and turns the pin until they slow down."),
    ("Ice skates", "A hollow ground along the blade leaves two edges, which grip when the skater leans."),
    ("Tea", "Green leaves are steamed soon after picking, black ones wither and oxidise first."),
    ("Doorbell", "Pressing the button closes a circuit, and a plunger strikes two bars one after the other."),
    ("Mortar", "Lime mortar hardens slowly by taking up carbon dioxide, and forgives small movements."),
    ("Juggling", "Beginners throw too far forward; facing a wall keeps the beanbags in one plane."),
    ("Zip fastener", "The slider wedges the teeth together on the way up and parts them on the way down."),
    ("Hedgehog", "A hedgehog rolls up by drawing a ring of muscle over its back like a purse string."),
    ("Varnish", "Thin coats of varnish, each sanded lightly, give a smoother surface than a single thick one."),
    ("Pendulum", "Doubling the length of a pendulum makes each swing longer by about two fifths."),
    ("Wool", "Felting happens when wet fibres are rubbed, since their scales catch on one another."),
    ("Ladder", "A leaning ladder stands safest when its foot is a quarter of its height from the wall."),
    ("Yeast", "Dried yeast wakes up in lukewarm water with a pinch of sugar and foams after ten minutes."),
    ("Marbles", "Coloured rods are melted into clear glass and sheared off while the gob is still soft."),
    ("Lichen", "Lichens grow a few millimetres a year, so that old walls can be dated by their patches."),
    ("Knitting", "Casting on loosely keeps the first row elastic; a larger needle helps to do so."),
    ("Frost", "Clear nights let the ground radiate its warmth away, and dew freezes on the grass."),
    ("Whistle", "Air that meets the sharp edge of a whistle flutters to either side and sets up a tone."),
)
"""Passages on nothing in particular, for measuring how a policy takes replacements that no training showed it."""


class Blanked(Toolbox):
    """The same tools with nothing to read in what they return (Proof-of-Use, section 4.5.4).

    A policy that uses its evidence falls to the floor here: exact match near 0, verdicts `no`, other tools tried. One
    that answers as well as before answers from memory. Every title and text is replaced; number of passages, ids,
    sources and scores stay, and so do notes.

    `word` may be a phrase, or several, of which each response gets one, chosen by a hash of its call. A policy that was
    trained on blanked responses has learnt to distrust those very words: measure it with words that it has never seen,
    `UNSEEN_BLANKS`.
    """

    def __init__(self, inner: Toolbox, word: str | Sequence[str] = "content") -> None:
        super().__init__(list(inner.tools.values()), **inner.settings)
        self.inner, self.words = inner, (word,) if isinstance(word, str) else tuple(word)

    async def call(self, tool_call: ToolCall, session: Session) -> Observation:
        """As `Toolbox.call`, blanked."""
        return self._blank(await self.inner.call(tool_call, session), tool_call)

    def run_batch(self, calls: Sequence[ToolCall | None], sessions: Sequence[Session]) -> list[Observation]:
        """As `Toolbox.run_batch`, blanked."""
        return list(map(self._blank, self.inner.run_batch(calls, sessions), calls))

    def stats(self) -> dict[str, ToolStats]:
        """The inner toolbox's counters."""
        return self.inner.stats()

    def close(self) -> None:
        """Close the inner toolbox."""
        self.inner.close()

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "inner": self.inner, "words": self.words}

    def __repr__(self) -> str:
        return f"Blanked({self.inner!r}, word={self.words[0] if len(self.words) == 1 else self.words!r})"

    def _blank(self, observation: Observation, call: ToolCall | None) -> Observation:
        if call is None or not observation.evidence:
            return observation
        word = self.words[int(key_of(tool=call.name, arguments=call.arguments)[:8], 16) % len(self.words)]
        blank = [
            msgspec.structs.replace(item, text=word, title=item.title and word, url=item.url and word)
            for item in observation.evidence
        ]
        return msgspec.structs.replace(observation, evidence=tuple(blank))


def blank_engine(engine: Engine) -> Engine:
    """The engine with blanked tools, for episodes of at most `BLANK_TURNS` turns."""
    limits = msgspec.structs.replace(engine.limits, turns=min(BLANK_TURNS, engine.limits.turns), force_answer=False)
    toolbox = Blanked(engine.toolbox, UNSEEN_BLANKS)
    return Engine(engine.generator, toolbox, engine.dialect, limits, engine.sampling, engine.concurrency)


def no_share(trajectory: Trajectory) -> float | None:
    """The share of verdicts `no` among those on responses with evidence; `None` without such a verdict."""
    said = [step.helpful for _, step in _judged(trajectory)]
    return said.count(False) / len(said) if said else None


def retry_share(trajectory: Trajectory, tools: Sequence[str]) -> float | None:
    """The share of such no's after which the same turn calls another of the tools; `None` without a no."""
    retried = [
        step.call is not None and made is not None and step.call.name in tools and step.call.name != made
        for made, step in _judged(trajectory)
        if not step.helpful
    ]
    return sum(retried) / len(retried) if retried else None


def _judged(trajectory: Trajectory) -> list[tuple[str | None, Step]]:
    """The steps with a verdict on evidence, each with the tool that had returned it."""
    return [
        (previous.call.name if previous.call else None, step)
        for previous, step in zip(trajectory.steps, trajectory.steps[1:], strict=False)
        if previous.evidence and step.helpful is not None
    ]
