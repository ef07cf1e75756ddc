"""A judge that knows every fact of the bundled world, so that no words are compared and no model is
asked.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from ..errors import DataError
from ..judges import Judge, Pair, Verdict
from ..text import normalize
from . import Asked, Change, World, chains_of, world_of


@dataclass(frozen=True)
class FactsJudge(Judge):
    """Upholds a pair when a passage of the premise states the fact that was asked for; p is 1 or 0.

    | task | what is asked for | what the passage must state |
    |---|---|---|
    | support | the last fact of the question's chain | that fact, with the hypothesis as its object |
    | states | the fact that the query in the hypothesis names | that fact |

    It abstains on questions that are not of the bundled world, and on any other task. In a changed
    world (`Pair.context`) the chain and the passages are those of that world: neither the old
    object there nor the new one in the world as it is counts as stated.
    """

    name: ClassVar[str] = "facts"

    def judge_batch(self, pairs: Sequence[Pair]) -> list[Verdict]:
        return [self._judge(pair) for pair in pairs]

    def _judge(self, pair: Pair) -> Verdict:
        try:
            change = Change.read(pair.context)
        except DataError as error:
            return Verdict(None, None, f"the pair's context cannot be read: {error}", self.name)
        world = world_of(change)
        if pair.task == "states":
            query = pair.hypothesis
            fact = world.asked(query)
            if fact is None:
                why = f"the query {query!r} asks for no fact of the world"
                return Verdict(0.0, False, why, self.name)
            return self._verdict(bool(_objects(world, pair, fact)), _named(fact))
        if pair.task == "support":
            chain = chains_of().get(pair.question)
            if chain is None:
                why = "the question is not one of the bundled world"
                return Verdict(None, None, why, self.name)
            fact = chain[-1] if change is None else change.asked
            is_stated = normalize(pair.hypothesis) in _objects(world, pair, fact)
            return self._verdict(is_stated, f"{_named(fact)} as {pair.hypothesis!r}")
        why = f"the world's facts do not say anything about {pair.task}"
        return Verdict(None, None, why, self.name)

    def _verdict(self, is_stated: bool, statement: str) -> Verdict:
        passage = "a passage" if is_stated else "no passage"
        return Verdict(float(is_stated), is_stated, f"{passage} states {statement}", self.name)


def _objects(world: World, pair: Pair, fact: Asked) -> list[str]:
    """The objects that the premise's passages give to the fact, normalized."""
    objects = []
    for passage in pair.premise.split("\n\n"):
        # a passage may have its title on a line of its own
        statement = world.stated(passage.rpartition("\n")[2])
        if statement is not None and fact == (statement.subject, statement.relation):
            objects.append(normalize(statement.object))
    return objects


def _named(fact: Asked) -> str:
    return f"the {fact.relation} of {fact.subject}"
