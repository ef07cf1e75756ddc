"""The bundled world seen through its facts: what a passage states, what a call asks for, and what
only looks like it.

Every passage and every triple of the world states exactly one fact. So no judge is needed to say
whether a citation states what was asked or supports an answer, and which evidence is close to a
fact without stating it.
"""

import random
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any, NamedTuple, Self, TypeVar

import msgspec

from ..bundled import world_file
from ..errors import DataError
from ..json_lines import read_rows
from ..tasks import CHANGE, load_tasks
from ..text import NameFinder
from ..trajectory import Evidence

SPLITS = ("train", "validation", "test", "test2")
Key = TypeVar("Key")


class Asked(NamedTuple):
    """A subject and the relation of it that is wanted."""

    subject: str
    relation: str


class Statement(NamedTuple):
    """A piece of evidence and the one fact it states. `source` is the id of the passage or triple
    in `tool`.
    """

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

    def saying(self, object: str) -> "Statement":
        """The statement with another object, also in its text, wherever the old one stands there as
        a whole name.
        """
        return self._replace(object=object, text=self._text_with(self.object, object))

    def about(self, subject: str) -> "Statement":
        """The statement with another subject, also in its title and text."""
        text = self._text_with(self.subject, subject)
        return self._replace(subject=subject, title=subject, text=text)

    def _text_with(self, old: str, new: str) -> str:
        """The text with the name `new` in the place of `old`, its subject or object."""
        names = NameFinder({self.subject: "", self.object: ""})
        return names.sub(lambda name: new if name == old else name, self.text)


class Change(msgspec.Struct, frozen=True):
    """The one fact that is different in a changed world, and what the question asks for there.

    A changed question and each rollout of it have it in `meta["counterfactual"]`: what a text
    states depends on the rollout's world. `old` and `new` are the fact's object, `hop` its place in
    the question's chain, from 0, `asked` the last fact of the chain as it is walked in the changed
    world, `answers` the gold answers in the world as it is.
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
        change = meta.get(CHANGE)
        return None if change is None else msgspec.convert(change, cls)

    @classmethod
    def read(cls, context: str) -> Self | None:
        """The change that `tasks.world_context` wrote; `None` where that is empty. Raises
        `DataError` for any other text.
        """
        try:
            return msgspec.json.decode(context, type=cls) if context else None
        except msgspec.MsgspecError as error:
            raise DataError(f"not a changed fact: {error}") from None


# compared by identity: to hash all statements takes a millisecond
@dataclass(frozen=True, eq=False)
class World:
    """Statements, to be looked up by what they say; and foils (`rewards.perturbation.Foils`),
    sentences that differ from what was asked for in the fact alone.

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
        return _grouped(
            (Asked(statement.subject, statement.relation), statement)
            for statement in self.statements
        )

    @cached_property
    def by_subject(self) -> dict[str, list[Statement]]:
        return _grouped((statement.subject, statement) for statement in self.statements)

    @cached_property
    def by_relation(self) -> dict[str, list[Statement]]:
        return _grouped((statement.relation, statement) for statement in self.statements)

    @cached_property
    def _by_text(self) -> dict[str, Statement]:
        return {statement.text: statement for statement in self.statements}

    @cached_property
    def _companions(self) -> dict[str, list[Statement]]:
        """By relation: the statements of the other relations that its subjects have."""
        beside: defaultdict[str, set[str]] = defaultdict(set)
        for statements in self.by_subject.values():
            relations = {statement.relation for statement in statements}
            for relation in relations:
                beside[relation] |= relations - {relation}
        companions: dict[str, list[Statement]] = {}
        for relation, neighbours in beside.items():
            companions[relation] = []
            for neighbour in sorted(neighbours):
                companions[relation] += self.by_relation[neighbour]
        return companions

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

    def states(self, query: str, passage: Evidence) -> bool:
        """Whether this evidence states the fact that the query asks for."""
        statement = self.stated(passage.text)
        if statement is None:
            return False
        return self.asked(query) == (statement.subject, statement.relation)

    def changed(self, change: Change) -> "World":
        """The world in which that fact has its new object; texts of the old one state nothing
        there.
        """
        return _changed(self, change)

    def in_context(self, context: str) -> "World":
        """The world that `tasks.world_context` tells of; this one where that is empty."""
        change = Change.read(context)
        return self if change is None else self.changed(change)

    def replace(self, query: str, passage: Evidence, rng: random.Random) -> tuple[str, str] | None:
        """Title and text of a sentence about the subject of `passage` that states something else
        than what the query asks for: another relation that such subjects have, in the words of a
        statement of another subject.

        It is of the tool that `passage` comes from where there is one. `None` when the query cannot
        be read, or such subjects have no other relation.
        """
        fact = self.asked(query)
        if fact is None:
            return None
        companions = self._companions.get(fact.relation, [])
        if not companions:
            return None
        statement = self.stated(passage.text)
        subject = fact.subject
        pool = companions
        if statement is not None:
            subject = statement.subject
            of_its_tool = [
                companion for companion in companions if companion.tool == statement.tool
            ]
            pool = of_its_tool or companions
        foil = rng.choice(pool).about(subject)
        return foil.title, foil.text

    def lure(self, query: str, rng: random.Random) -> tuple[str, str] | None:
        """Title and text of a sentence that answers the query wrongly, with a name of the right
        kind.
        """
        fact = self.asked(query)
        if fact is None:
            return None
        true = self.by_fact.get(fact, [])
        # a name of the same relation is of the right kind
        objects = {statement.object for statement in self.by_relation[fact.relation]}
        names = sorted(objects - {statement.object for statement in true})
        if not names:
            return None
        wrong = rng.choice(names)
        if true:
            statement = rng.choice(true)
            return statement.title, statement.text.replace(statement.object, wrong)
        return fact.subject, triple_text(*fact, wrong)


@lru_cache(maxsize=64)  # a group's rollouts, and their steps, ask for the same one
def _changed(world: World, change: Change) -> World:
    stating = world.by_fact.get(Asked(change.subject, change.relation), [])
    statements: list[Statement] = []
    for statement in world.statements:
        if statement in stating:
            statements.append(statement.saying(change.new))
        else:
            statements.append(statement)
    return World(tuple(statements))


@lru_cache
def bundled_world(splits: tuple[str, ...] = SPLITS) -> World:
    """The bundled world, or those of its statements that belong to `splits`."""
    statements: list[Statement] = []
    for row in read_rows(world_file("passages.jsonl.gz")):
        for subject, relation, object_ in row["facts"]:
            statement = Statement(
                source=row["id"],
                tool="local_search",
                split=row["split"],
                subject=subject,
                relation=relation,
                object=object_,
                title=row["title"],
                text=row["text"],
            )
            statements.append(statement)
    for row in read_rows(world_file("triples.jsonl.gz")):
        fact = (row["subject"], row["relation"], row["object"])
        statement = Statement(
            row["id"],
            "knowledge_graph",
            row["split"],
            *fact,
            title=row["subject"],
            text=triple_text(*fact),
        )
        statements.append(statement)
    return World(tuple(statement for statement in statements if statement.split in splits))


def world_of(change: Change | None) -> World:
    """The bundled world that a rollout was in."""
    return bundled_world() if change is None else bundled_world().changed(change)


@lru_cache
def chains_of() -> dict[str, tuple[Asked, ...]]:
    """For each bundled question the facts that lead to its answer, which is the last one's
    object.
    """
    chains: dict[str, tuple[Asked, ...]] = {}
    for split in SPLITS:
        for task in load_tasks("world", split):
            facts = task.meta["chain"]
            asked = (Asked(fact["subject"], fact["relation"]) for fact in facts)
            chains[task.question] = tuple(asked)
    return chains


def triple_text(subject: str, relation: str, object: str) -> str:
    """A triple as `knowledge_graph` words it."""
    return f"The {relation} of {subject} is {object}."


def _grouped(pairs: Iterable[tuple[Key, Statement]]) -> dict[Key, list[Statement]]:
    groups: defaultdict[Key, list[Statement]] = defaultdict(list)
    for key, value in pairs:
        groups[key].append(value)
    return dict(groups)
