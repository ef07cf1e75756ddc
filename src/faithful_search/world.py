"""The bundled world seen through its facts: what a passage states, what a call asks for, and what only looks like it.

Every passage and every triple of the world states exactly one fact. So no judge is needed to say whether a citation
states what was asked or supports an answer, and which evidence is close to a fact without stating it.
"""

import random
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any, NamedTuple, Self, TypeVar

import msgspec

from .bundled import world_file
from .tasks import load_tasks, read_rows
from .text import NameFinder
from .trajectory import Evidence

SPLITS = ("train", "validation", "test")
Key = TypeVar("Key")


class Asked(NamedTuple):
    """A subject and the relation of it that is wanted."""

    subject: str
    relation: str


class Statement(NamedTuple):
    """A piece of evidence and the one fact it states. `source` is the id of the passage or triple in `tool`."""

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
        """The evidence as its tool returns it, without id and score."""
        return Evidence(self.text, self.title, source=self.source)

    def saying(self, found: str) -> "Statement":
        """The statement with another object, also in its text, wherever the old one stands there as a whole name."""
        own = NameFinder({self.subject: "", self.object: ""})
        text = own.sub(lambda name: found if name == self.object else name, self.text)
        return self._replace(object=found, text=text)


class Change(msgspec.Struct, frozen=True):
    """The one fact that is different in a changed world, and what the question asks for there.

    A changed question and each rollout of it have it in `meta["counterfactual"]`: what a text states depends on the
    rollout's world. `old` and `new` are the fact's object, `hop` its place in the question's chain, from 0, `asked` the
    last fact of the chain as it is walked in the changed world, `answers` the gold answers in the world as it is.
    """

    subject: str
    relation: str
    old: str
    new: str
    hop: int
    asked: Asked
    answers: tuple[str, ...] = ()

    @classmethod
    def of(cls, meta: Mapping[str, Any]) -> Self | None:
        """The change in the `meta` of a task or trajectory; `None`: the world is as it is."""
        found = meta.get("counterfactual")
        return None if found is None else msgspec.convert(found, cls)


@dataclass(
    frozen=True, eq=False
)  # told apart by identity: to hash all statements takes a millisecond
class World:
    """Statements, to be looked up by what they say; and foils (`rewards.perturbation.Foils`), sentences that differ
    from what was asked for in the fact alone.

    Example:
        >>> world = bundled_world()
        >>> world.asked("capital of Japan")
        Asked(subject='Japan', relation='capital')
        >>> world.states("capital of Japan", Evidence("The capital of Japan is Tokyo.", "Japan"))
        True
    """

    statements: tuple[Statement, ...] = field(repr=False)

    @cached_property
    def relations(self) -> tuple[str, ...]:
        """All relations, the longest first: "birth country" is asked for before "country" is."""
        return tuple(sorted(self.by_relation, key=lambda name: (-len(name), name)))

    @cached_property
    def by_fact(self) -> dict[Asked, list[Statement]]:
        """The statements of each fact, at most one of each tool."""
        return _grouped((Asked(item.subject, item.relation), item) for item in self.statements)

    @cached_property
    def by_subject(self) -> dict[str, list[Statement]]:
        return _grouped((item.subject, item) for item in self.statements)

    @cached_property
    def by_relation(self) -> dict[str, list[Statement]]:
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
        found = self.stated(item.text)
        return found is not None and self.asked(query) == (found.subject, found.relation)

    def changed(self, change: Change) -> "World":
        """The world in which that fact has its new object; texts of the old one state nothing there."""
        return _changed(self, change)

    def replace(self, query: str, item: Evidence, rng: random.Random) -> tuple[str, str] | None:
        """Title and text of another statement of the same relation or about the same subject.

        It is of the tool that `item` comes from where there is one. `None` when the query cannot be read.
        """
        asked = self.asked(query)
        if asked is None:
            return None
        about = [
            other
            for other in self.by_subject.get(asked.subject, [])
            if other.relation != asked.relation
        ]
        like = [
            other
            for other in self.by_relation.get(asked.relation, [])
            if other.subject != asked.subject
        ]
        kinds = [about, like]
        rng.shuffle(kinds)
        own = self.stated(item.text)
        for kind in kinds:
            found = [other for other in kind if other.text != item.text]
            alike = [other for other in found if own is None or other.tool == own.tool]
            if found:
                chosen = rng.choice(alike or found)
                return chosen.title, chosen.text
        return None

    def lure(self, query: str, rng: random.Random) -> tuple[str, str] | None:
        """Title and text of a sentence that answers the query wrongly, with a name of the right kind."""
        asked = self.asked(query)
        if asked is None:
            return None
        true = self.by_fact.get(asked, [])
        # a name of the same relation is of the right kind
        names = sorted(
            {item.object for item in self.by_relation[asked.relation]}
            - {item.object for item in true}
        )
        if not names:
            return None
        wrong = rng.choice(names)
        if true:
            item = rng.choice(true)
            return item.title, item.text.replace(item.object, wrong)
        return asked.subject, triple_text(*asked, wrong)


@lru_cache(maxsize=64)  # a group's rollouts, and their steps, ask for the same one
def _changed(world: World, change: Change) -> World:
    own = world.by_fact.get(Asked(change.subject, change.relation), [])
    return World(
        tuple(item.saying(change.new) if item in own else item for item in world.statements)
    )


@lru_cache
def bundled_world(splits: tuple[str, ...] = SPLITS) -> World:
    """The bundled world, or those of its statements that belong to `splits`."""
    passages = read_rows(world_file("passages.jsonl.gz"))
    triples = read_rows(world_file("triples.jsonl.gz"))
    told = [
        Statement(
            row["id"],
            "local_search",
            row["split"],
            subject,
            relation,
            found,
            row["title"],
            row["text"],
        )
        for row in passages
        for subject, relation, found in row["facts"]
    ]
    listed = [
        Statement(
            row["id"],
            "knowledge_graph",
            row["split"],
            *fact,
            title=fact[0],
            text=triple_text(*fact),
        )
        for row in triples
        for fact in [(row["subject"], row["relation"], row["object"])]
    ]
    return World(tuple(item for item in told + listed if item.split in splits))


def world_of(change: Change | None) -> World:
    """The bundled world that a rollout was in."""
    return bundled_world() if change is None else bundled_world().changed(change)


@lru_cache
def chains_of() -> dict[str, tuple[Asked, ...]]:
    """For each bundled question the facts that lead to its answer, which is the last one's object."""
    chains = {
        task.question: task.meta["chain"] for split in SPLITS for task in load_tasks("world", split)
    }
    return {
        question: tuple(Asked(fact["subject"], fact["relation"]) for fact in own)
        for question, own in chains.items()
    }


def triple_text(subject: str, relation: str, found: str) -> str:
    """A triple as `knowledge_graph` words it."""
    return f"The {relation} of {subject} is {found}."


def _grouped(pairs: Iterable[tuple[Key, Statement]]) -> dict[Key, list[Statement]]:
    groups: defaultdict[Key, list[Statement]] = defaultdict(list)
    for key, value in pairs:
        groups[key].append(value)
    return dict(groups)
