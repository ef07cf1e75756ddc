"""Where what a query names comes from: the question, evidence, or only the agent's own thought."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from ..errors import ConfigError
from ..judges.grounding import terms
from ..rewards import Reward, Score
from ..rewards.turns import call_words, passages
from ..trajectory import Trajectory
from .decoration import names_in

Source = Literal["question", "evidence", "thought"]
SOURCES: tuple[Source, ...] = ("question", "evidence", "thought")


@dataclass(frozen=True)
class QueryProvenance(Reward):
    """The share of what queries name that was first seen in the question, in evidence, or in the agent's own words.

    ```
    share(s) = mean over the calls that name something of |{names of the call first seen in s}| / |{its names}|
    ```

    The three shares of a trajectory sum to 1. After LiveBrowseComp (arXiv 2605.28721), where more than half of the
    queries of strong agents are seeded by their own hypotheses: such an agent confirms what it remembers.

    What a call names are the names and numbers in it: words that are capitalised inside a sentence anywhere in the
    trajectory, so that `capital of france` names France; where it has none, all its words that say something. Words are
    compared whole, but for case, accents and a final s. A word's source is where it stood first: a name that a thought
    brings up and evidence confirms later remains the agent's own, and parallel calls do not know of each other.

    No value without the question, or without a call that names something. `parts` holds the words by source.

    How to hack it: repeat the question as the query.

    Limits: words, not meaning: a synonym of the question's word is the agent's own where the query has no name.
    """

    source: Source = "thought"

    name: ClassVar[str] = "query_provenance"

    def __post_init__(self) -> None:
        if self.source not in SOURCES:
            raise ConfigError(f"QueryProvenance: {self.source!r} is not one of {', '.join(map(repr, SOURCES))}")

    def score(self, trajectory: Trajectory) -> Score:
        if not (trajectory.question or "").strip():
            return Score(None, "the question is not known")
        calls = _sources(trajectory)
        if not calls:
            return Score(None, "no call names anything")
        found = {
            source: sorted({word for call in calls for word, of in call.items() if of == source}) for source in SOURCES
        }
        value = sum(list(call.values()).count(self.source) / len(call) for call in calls) / len(calls)
        own = found["thought"]
        why = f"first in the agent's own words: {', '.join(map(repr, own[:3]))}" if own else ""
        return Score(value, why, {"calls": len(calls), "words": found})


def _sources(trajectory: Trajectory) -> list[dict[str, str]]:
    """For each call that names something, what it names with the source of it."""
    named = names_in(trajectory)
    first = dict.fromkeys(terms(trajectory.question or ""), "question")
    found = []
    for turn in trajectory.turns:
        queries = [terms(call_words(step.call)) for step in turn if step.call is not None]
        for words in (*queries, *(terms(step.think or "") for step in turn)):
            for word in words:
                first.setdefault(word, "thought")
        # where a query has no name, all its words are taken
        found += [{word: first[word] for word in words & named or words} for words in queries if words]
        # after all calls of the turn: parallel ones do not know of each other's results
        for word in terms("\n".join(passages(step.evidence) or step.note for step in turn)):
            first.setdefault(word, "evidence")
    return found
