"""The judge of the bundled world: it knows every fact, so that no words are compared and no model is asked."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from ..text import normalize
from ..world import chains_of, world_of
from .base import Pair, Verdict


@dataclass(frozen=True)
class FactsJudge:
    """Upheld when one passage of the premise states the fact that was asked for; p is 1 or 0.

    | task | what is asked for | what the passage must state |
    |---|---|---|
    | support | the last fact of the question's chain | that fact, with the hypothesis as its object |
    | states | the fact that the query in the hypothesis names | that fact |

    It abstains on questions that are not of the bundled world, and on any other task. In a changed world
    (`Pair.change`) the chain and the passages are those of that world: what states the old object there, or the new one
    in the world as it is, states nothing.
    """

    name: ClassVar[str] = "facts"

    def judge_batch(self, pairs: Sequence[Pair]) -> list[Verdict]:
        return [self._judge(pair) for pair in pairs]

    def _judge(self, pair: Pair) -> Verdict:
        world = world_of(pair.change)
        if pair.task == "states":
            asked, wanted = world.asked(pair.hypothesis), None
            if asked is None:
                return Verdict(
                    0.0,
                    False,
                    f"the query {pair.hypothesis!r} asks for no fact of the world",
                    self.name,
                )
        elif pair.task == "support":
            chain, wanted = chains_of().get(pair.question), normalize(pair.hypothesis)
            if chain is None:
                return Verdict(
                    None, None, "the question is not one of the bundled world", self.name
                )
            asked = pair.change.asked if pair.change else chain[-1]
        else:
            return Verdict(
                None, None, f"the world's facts do not say anything about {pair.task}", self.name
            )
        # a passage may have its title on a line of its own
        facts = filter(
            None,
            (world.stated(passage.rpartition("\n")[2]) for passage in pair.premise.split("\n\n")),
        )
        objects = [
            normalize(fact.object) for fact in facts if asked == (fact.subject, fact.relation)
        ]
        held = bool(objects) if wanted is None else wanted in objects
        told = f"the {asked.relation} of {asked.subject}" + (
            f" as {pair.hypothesis!r}" if wanted is not None else ""
        )
        return Verdict(
            float(held), held, f"{'a' if held else 'no'} passage states {told}", self.name
        )
