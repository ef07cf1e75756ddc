"""A judge that knows every fact of the bundled world, so that no words are compared and no model is
asked.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from ..errors import DataError
from ..judges import Judge, Pair, Verdict
from ..text import holds, normalize
from . import Asked, Change, World, chains_of, world_of
from .thoughts import read_thought


@dataclass(frozen=True)
class FactsJudge(Judge):
    """Upholds a pair when a passage of the premise states the fact that was asked for; p is 1 or 0.

    | task | what is asked for | what the passage must state |
    |---|---|---|
    | support | the last fact of the question's chain | that fact, with the hypothesis as its object |
    | states | the fact that the query in the hypothesis names | that fact |

    Thoughts are judged by what they state (`thoughts.read_thought`):

    | task | upheld when the thought |
    |---|---|
    | info_think | states a fact that a passage states, and nothing wrong; or misses one rightly |
    | think_search | says that the fact is needed, or missing, that the call asks for |
    | think_answer | gives the answer to what is asked for last, or says that it is the answer |

    It abstains where support is asked for on questions that are not of the bundled world, on
    thoughts that name what matters in sentences of another form, on calls that cannot be read, and
    on any other task. In a changed world (`Pair.context`) the chain and the passages are those of
    that world: a passage with a fact's old object states nothing there, and one with the new object
    states nothing in the world as it is.

    Example:
        >>> passage = "Oslo is a city in Norway, and the maps of that land show its name."
        >>> right = Pair(passage, "The country of Oslo is Norway.", task="info_think")
        >>> wrong = Pair(passage, "The country of Oslo is Sweden.", task="info_think")
        >>> [verdict.label for verdict in FactsJudge().judge_batch([right, wrong])]
        [True, False]
    """

    name: ClassVar[str] = "facts"

    def judge_batch(self, pairs: Sequence[Pair]) -> list[Verdict]:
        return [self._judge(pair) for pair in pairs]

    def _judge(self, pair: Pair) -> Verdict:
        try:
            change = Change.read(pair.context)
        except DataError as error:
            return self._abstention(f"the pair's context cannot be read: {error}")
        world = world_of(change)
        if pair.task == "states":
            return self._states(pair, world)
        if pair.task == "info_think":
            return self._considers(pair, world)
        if pair.task == "think_search":
            return self._follows(pair, world)
        if pair.task not in ("support", "think_answer"):
            return self._abstention(f"the world's facts do not say anything about {pair.task}")
        chain = chains_of().get(pair.question)
        fact = None
        if chain is not None:
            # In a changed world the question may lead to another subject, so to another fact
            fact = chain[-1] if change is None else change.asked
        if pair.task == "think_answer":
            return self._concludes(pair, world, fact)
        if fact is None:
            return self._abstention("the question is not one of the bundled world")
        is_stated = normalize(pair.hypothesis) in _facts(world, pair).get(fact, [])
        return self._verdict(is_stated, f"{_named(fact)} as {pair.hypothesis!r}")

    def _states(self, pair: Pair, world: World) -> Verdict:
        """Whether a passage states what the query, the hypothesis, asks for."""
        fact = world.asked(pair.hypothesis)
        if fact is None:
            why = f"the query {pair.hypothesis!r} asks for no fact of the world"
            return self._no(why)
        return self._verdict(fact in _facts(world, pair), _named(fact))

    def _considers(self, pair: Pair, world: World) -> Verdict:
        """Whether the thought, the hypothesis, says what the passages before it state."""
        thought = read_thought(pair.hypothesis, world)
        returned = _facts(world, pair)
        for fact in thought.misses:
            if fact in returned:
                return self._no(f"a passage states {_named(fact)}, which the thought misses")
        is_borne_out = False
        for fact, object in thought.states:
            if normalize(object) in returned.get(fact, []):
                is_borne_out = True
            # what an earlier passage stated may be repeated
            elif not _is_true(world, fact, object):
                return self._no(f"no passage states {_named(fact)} as {object!r}")
        if is_borne_out:
            return Verdict(1.0, True, "a passage states what the thought does", self.name)
        if thought.states:
            return self._no("the thought states nothing that was just returned")
        if thought.misses:
            why = f"no passage states {_named(thought.misses[0])}"
            return Verdict(1.0, True, why, self.name)
        for objects in returned.values():
            if any(holds(normalize(thought.rest), object) for object in objects):
                return self._abstention("the thought is not in sentences that can be read here")
        return self._no("the thought says nothing of what was returned")

    def _follows(self, pair: Pair, world: World) -> Verdict:
        """Whether the call, the hypothesis, asks for what the thought, the premise, looks for."""
        asked = world.asked(pair.hypothesis)
        if asked is None:
            return self._abstention(f"the call {pair.hypothesis!r} asks for no fact of the world")
        thought = read_thought(pair.premise, world)
        if asked in (*thought.needs, *thought.misses):
            return Verdict(1.0, True, f"the thought looks for {_named(asked)}", self.name)
        if holds(normalize(thought.rest), normalize(asked.subject)):
            return self._abstention("the thought is not in sentences that can be read here")
        return self._no(f"the thought does not look for {_named(asked)}")

    def _concludes(self, pair: Pair, world: World, asked: Asked | None) -> Verdict:
        """Whether the answer, the hypothesis, is what the thought, the premise, arrives at.

        The thought may be wrong, also about whom the question asks: an answer follows from it all
        the same. `asked` is the fact that the question asks for last, `None` for a question that
        joins two: then only an answer that the thought names as such counts.
        """
        thought = read_thought(pair.premise, world)
        answer = normalize(pair.hypothesis)
        conclusions = [normalize(thought.answer)] if thought.answer else []
        for fact, object in thought.states:
            if asked is not None and fact.relation == asked.relation:
                conclusions.append(normalize(object))
        if answer in conclusions:
            return Verdict(1.0, True, f"the thought arrives at {pair.hypothesis!r}", self.name)
        if not conclusions and holds(normalize(thought.rest), answer):
            return self._abstention("the thought is not in sentences that can be read here")
        return self._no(f"the thought does not arrive at {pair.hypothesis!r}")

    def _no(self, why: str) -> Verdict:
        return Verdict(0.0, False, why, self.name)

    def _abstention(self, why: str) -> Verdict:
        return Verdict(None, None, why, self.name)

    def _verdict(self, is_stated: bool, statement: str) -> Verdict:
        passage = "a passage" if is_stated else "no passage"
        return Verdict(float(is_stated), is_stated, f"{passage} states {statement}", self.name)


def _facts(world: World, pair: Pair) -> dict[Asked, list[str]]:
    """The facts that the premise's passages state, with their objects, normalized."""
    objects: dict[Asked, list[str]] = {}
    for passage in pair.premise.split("\n\n"):
        # a passage may have its title on a line of its own
        statement = world.stated(passage.rpartition("\n")[2])
        if statement is not None:
            fact = Asked(statement.subject, statement.relation)
            objects.setdefault(fact, []).append(normalize(statement.object))
    return objects


def _is_true(world: World, fact: Asked, object: str) -> bool:
    """Whether the world has this fact with this object."""
    objects = [normalize(statement.object) for statement in world.by_fact.get(fact, [])]
    return normalize(object) in objects


def _named(fact: Asked) -> str:
    return f"the {fact.relation} of {fact.subject}"
