"""The judge of the bundled world: it knows every fact, so that no words are compared and no model is asked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from ..text import normalize
from ..world import Asked, World, questions_of, world_of
from .base import Pair, Verdict


@dataclass(frozen=True)
class FactsJudge:
    """Upheld when one passage of the premise states the fact that was asked for; p is 1 or 0.

    | task | what is asked for | what the passage must state |
    |---|---|---|
    | support | the last fact of the question's chain | that fact, with the hypothesis as its object |
    | states | the fact that the query in the hypothesis names | that fact |

    A question that is not of the bundled world, and any other task, is not this judge's: it abstains. In a changed
    world (`Pair.change`) the chain and the passages are those of that world: what states the old object there, or the
    new one in the world as it is, states nothing.

    Example:
        >>> premise = "Japan\\nThe capital of Japan is Tokyo."
        >>> FactsJudge().judge_batch([Pair(premise, "capital of Japan", task="states")])[0].label
        True
    """

    name: ClassVar[str] = "facts"

    def judge_batch(self, pairs: Sequence[Pair]) -> list[Verdict]:
        """One verdict a pair, in order. Never fails."""
        return [self._judge(pair) for pair in pairs]

    def _judge(self, pair: Pair) -> Verdict:
        world = world_of(pair.change)
        if pair.task == "states":
            asked, wanted = world.asked(pair.hypothesis), None
            if asked is None:
                return self._verdict(False, f"the query {pair.hypothesis!r} asks for no fact of the world")
        elif pair.task == "support":
            asked, wanted = questions_of().get(pair.question), normalize(pair.hypothesis)
            if asked is None:
                return Verdict(None, None, "the question is not one of the bundled world", self.name)
            asked = pair.change.asked if pair.change else asked
        else:
            return Verdict(None, None, f"the world's facts do not say anything about {pair.task}", self.name)
        held = any(_states(world, passage, asked, wanted) for passage in pair.premise.split("\n\n"))
        told = f"the {asked.relation} of {asked.subject}" + (f" as {pair.hypothesis!r}" if wanted is not None else "")
        return self._verdict(held, f"{'a' if held else 'no'} passage states {told}")

    def _verdict(self, label: bool, why: str) -> Verdict:
        return Verdict(float(label), label, why, self.name)


def _states(world: World, passage: str, asked: Asked, wanted: str | None) -> bool:
    """Whether a passage, with its title on a line of its own or without, states what was asked (as `wanted`)."""
    found = world.stated(passage.rpartition("\n")[2])
    return found is not None and asked == (found.subject, found.relation) and wanted in (None, normalize(found.object))
