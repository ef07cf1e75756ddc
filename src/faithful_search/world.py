"""The bundled world seen through its facts: what a passage states, what a call asks for, and what only looks like it.

Every passage and every triple of the world states exactly one fact. That makes exact what elsewhere takes a judge:
whether a citation states what was asked, whether it supports an answer, and which evidence is as close as can be to a
fact without stating it.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple, TypeVar

from .bundled import world_file
from .tasks import load_tasks, read_rows
from .trajectory import Evidence

SPLITS = ("train", "validation", "test")
Key = TypeVar("Key")


class Asked(NamedTuple):
    """A subject and the relation of it that is wanted."""

    subject: str
    relation: str


class Statement(NamedTuple):
    """A piece of evidence and the one fact it states. `source` is the id of the passage or triple, `tool` holds it."""

    source: str
    tool: str
    split: str
    subject: str
    relation: str
    object: str
    title: str
    text: str

    @property
    def evidence(self) -> Evidence:
        """As its tool returns it, but for id and score."""
        return Evidence(self.text, self.title, source=self.source)


@dataclass(frozen=True)
class World:
    """Some of the world's statements, to be looked up by what they say.

    Example:
        >>> world = bundled_world()
        >>> world.asked("capital of Japan")
        Asked(subject='Japan', relation='capital')
        >>> world.states("capital of Japan", Evidence("The capital of Japan is Tokyo.", "Japan"))
        True
    """

    statements: tuple[Statement, ...]

    @cached_property
    def relations(self) -> tuple[str, ...]:
        """All relations, the longest first: "birth country" is asked for before "country" is."""
        return tuple(sorted({item.relation for item in self.statements}, key=lambda name: (-len(name), name)))

    @cached_property
    def by_fact(self) -> dict[Asked, list[Statement]]:
        """The statements of each fact; the world has at most one of either tool."""
        return _grouped((Asked(item.subject, item.relation), item) for item in self.statements)

    @cached_property
    def by_subject(self) -> dict[str, list[Statement]]:
        """The statements about each subject."""
        return _grouped((item.subject, item) for item in self.statements)

    @cached_property
    def by_relation(self) -> dict[str, list[Statement]]:
        """The statements of each relation."""
        return _grouped((item.relation, item) for item in self.statements)

    @cached_property
    def _by_text(self) -> dict[str, Statement]:
        return {item.text: item for item in self.statements}

    def stated(self, text: str) -> Statement | None:
        """The statement whose text this is."""
        return self._by_text.get(text)

    def asked(self, query: str) -> Asked | None:
        """What a query asks for, when it is written as `capital of Japan` or `Japan capital`."""
        query = query.strip()
        for relation in self.relations:
            if query.startswith(f"{relation} of "):
                return Asked(query[len(relation) + 4 :], relation)
            if query.endswith(f" {relation}"):
                return Asked(query[: -len(relation) - 1], relation)
        return None

    def states(self, query: str, item: Evidence) -> bool:
        """Whether a piece of evidence states what the query asks for."""
        found = self.stated(item.text)
        return found is not None and self.asked(query) == (found.subject, found.relation)


@lru_cache
def bundled_world(splits: tuple[str, ...] = SPLITS) -> World:
    """The bundled world, or those of its statements that belong to `splits`."""
    passages = read_rows(world_file("passages.jsonl.gz"))
    triples = read_rows(world_file("triples.jsonl.gz"))
    told = [
        Statement(row["id"], "local_search", row["split"], subject, relation, found, row["title"], row["text"])
        for row in passages
        for subject, relation, found in row["facts"]
    ]
    listed = [
        Statement(row["id"], "knowledge_graph", row["split"], *fact, title=fact[0], text=triple_text(*fact))
        for row in triples
        for fact in [(row["subject"], row["relation"], row["object"])]
    ]
    return World(tuple(item for item in told + listed if item.split in splits))


@lru_cache
def questions_of(splits: tuple[str, ...] = SPLITS) -> dict[str, Asked]:
    """For each bundled question the fact that its answer is: the last of its chain."""
    tasks = (task for split in splits for task in load_tasks("world", split))
    last = ((task.question, task.meta["chain"][-1]) for task in tasks)
    return {question: Asked(fact["subject"], fact["relation"]) for question, fact in last}


def triple_text(subject: str, relation: str, found: str) -> str:
    """A triple as `knowledge_graph` words it."""
    return f"The {relation} of {subject} is {found}."


@dataclass(frozen=True)
class WorldFoils:
    """Evidence that differs from what was asked for in the fact alone, in the world's own sentences.

    Example:
        >>> foils, rng = WorldFoils.bundled(), random.Random(0)
        >>> title, text = foils.lure("capital of Algeria", rng)
        >>> title, "Algeria" in text, "Algiers" in text
        ('Algeria', True, False)
    """

    world: World

    @classmethod
    def bundled(cls, splits: tuple[str, ...] = ("train",)) -> WorldFoils:
        """Foils made of those splits' facts only."""
        return cls(bundled_world(splits))

    def states(self, query: str, item: Evidence) -> bool:
        """Whether a piece of evidence states what the query asks for."""
        return self.world.states(query, item)

    def replace(self, query: str, item: Evidence, rng: random.Random) -> tuple[str, str] | None:
        """Title and text of a statement of the same relation about another subject, or of another relation of the same
        subject; of the tool that `item` comes from where there is one. `None` when the query cannot be read."""
        asked = self.world.asked(query)
        if asked is None:
            return None
        kinds = [self.same_subject(asked), self.same_relation(asked)]
        rng.shuffle(kinds)
        own = self.world.stated(item.text)
        for found in kinds:
            found = [other for other in found if other.text != item.text]
            alike = [other for other in found if own is None or other.tool == own.tool]
            if found:
                chosen = rng.choice(alike or found)
                return chosen.title, chosen.text
        return None

    def lure(self, query: str, rng: random.Random) -> tuple[str, str] | None:
        """Title and text of a sentence that answers the query wrongly, with a name of the right kind."""
        asked = self.world.asked(query)
        if asked is None:
            return None
        true = self.world.by_fact.get(asked, [])
        known = {item.object for item in self.world.by_relation[asked.relation]}
        names = sorted(known - {item.object for item in true})
        if not names:
            return None
        wrong = rng.choice(names)
        if true:
            item = rng.choice(true)
            return item.title, item.text.replace(item.object, wrong)
        return asked.subject, triple_text(*asked, wrong)

    def same_subject(self, asked: Asked) -> list[Statement]:
        """Statements about the subject that are of another relation."""
        return [item for item in self.world.by_subject.get(asked.subject, []) if item.relation != asked.relation]

    def same_relation(self, asked: Asked) -> list[Statement]:
        """Statements of the relation about other subjects."""
        return [item for item in self.world.by_relation.get(asked.relation, []) if item.subject != asked.subject]


def _grouped(pairs: Iterable[tuple[Key, Statement]]) -> dict[Key, list[Statement]]:
    groups: defaultdict[Key, list[Statement]] = defaultdict(list)
    for key, value in pairs:
        groups[key].append(value)
    return dict(groups)
