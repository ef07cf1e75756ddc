"""What a thought about the bundled world says: the facts that it states, and those that it says are
missing.

The agents of the bundled world write their thoughts in a few sentences (`coldstart/experts.py`),
and policies that learnt from them go on doing so. These sentences can be read without a model.
"""

import re
from functools import lru_cache
from typing import NamedTuple

from . import Asked, World

_END = (
    r"(?<!\b[A-Z])\.(?=\s|$)"  # of a sentence; the names of the world have initials (W. B. Yeats)
)
_NAME = rf"\S(?:(?!{_END}).){{0,80}}?"  # a subject or an object, which ends within its sentence


class StatedFact(NamedTuple):
    """A fact as a thought states it, which may be wrong: what is `asked`, a relation of a subject,
    and the object that the thought gives.
    """

    asked: Asked
    object: str


class Thought(NamedTuple):
    """What a thought says.

    Attributes:
        states: the facts that it states, in their order.
        misses: the facts of which it says that the evidence does not have them.
        needs: the facts that it says are needed next.
        answer: what it says the answer is; empty where it does not say so.
        rest: what is left of it without these sentences.
    """

    states: tuple[StatedFact, ...]
    misses: tuple[Asked, ...]
    needs: tuple[Asked, ...]
    answer: str
    rest: str


def read_thought(text: str, world: World) -> Thought:
    """Read the sentences of a thought that are written as the bundled agents write them.

    Sentences of any other form are the `rest`.

    Example:
        >>> from faithful_search.world import bundled_world
        >>> thought = "The capital of Japan is Tokyo. I need the river of Tokyo."
        >>> read_thought(thought, bundled_world()).states
        (StatedFact(asked=Asked(subject='Japan', relation='capital'), object='Tokyo'),)
        >>> read_thought("Nothing on the capital of Japan. I search again.", bundled_world()).misses
        (Asked(subject='Japan', relation='capital'),)
    """
    text = " ".join(text.split())
    sentences = _sentences(world.relations)
    states = [
        StatedFact(Asked(match["subject"], match["relation"]), match["object"])
        for match in sentences.finding.finditer(text)
    ]
    conclusion = sentences.concluding.search(text)
    answer = "" if conclusion is None else conclusion["answer"]
    unread = text
    for pattern in sentences:
        unread = pattern.sub("", unread)
    return Thought(
        states=tuple(states),
        misses=_facts(sentences.missing, text),
        needs=_facts(sentences.needing, text),
        answer=answer,
        rest=unread.strip(),
    )


def _facts(sentence: re.Pattern[str], text: str) -> tuple[Asked, ...]:
    """The facts that sentences of this form name."""
    return tuple(Asked(match["subject"], match["relation"]) for match in sentence.finditer(text))


class _Sentences(NamedTuple):
    """Patterns of the sentences that state a fact, that miss one, that say what the answer is, and
    that say which fact is needed.
    """

    finding: re.Pattern[str]
    missing: re.Pattern[str]
    concluding: re.Pattern[str]
    needing: re.Pattern[str]


@lru_cache
def _sentences(relations: tuple[str, ...]) -> _Sentences:
    relation = "|".join(map(re.escape, relations))
    fact = rf"[Tt]he (?P<relation>{relation}) of (?P<subject>{_NAME})"
    patterns = {
        "finding": rf"{fact} is (?P<object>{_NAME})",
        "missing": rf"(?:Nothing on|This does not give|No tool gives) {fact}",
        "concluding": rf"So the answer is (?P<answer>{_NAME})",
        "needing": rf"I need {fact}",
    }
    compiled = {name: re.compile(rf"{pattern}{_END}") for name, pattern in patterns.items()}
    return _Sentences(**compiled)
