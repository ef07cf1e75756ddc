"""Questions in a world where one fact of their chain is another: an agent that answers from memory
is wrong there.

Evidence is changed where it is read (`Task.edits`), so that tools, indexes and caches stay as they
are.
"""

import random
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple, Self

import msgspec

from . import suites
from .errors import DataError
from .tasks import CHANGE, Task
from .text import NameFinder, holds, normalize, plain
from .trajectory import Evidence
from .world import Asked, Change, Statement, World, bundled_world

REASONS = (
    "it has no chain of facts",
    "its chain of facts cannot be read",
    "its chain does not end in its answer",
    "its world is changed already",
    "a fact of its chain stands in no passage or triple, or in several versions",
    "its chain goes on from another fact",
    "the question names the fact's object or the answer",
    "another text names the fact's subject and object",
    "no other object leads to another answer",
)
"""Why a question has no changed world, by how far the search for one came."""
# A changed question's chain is in `meta["chain"]`: what the file said of the old one is left out.
_ANNOTATIONS = ("evidence_triples", "decomposition", "supporting_facts")
_NAME = re.compile(r"\b[^\W\d_a-z]\w{3,}")


class Link(NamedTuple):
    """One fact of a question's chain."""

    subject: str
    relation: str
    object: str

    @property
    def asked(self) -> Asked:
        return Asked(self.subject, self.relation)


def chain_of(task: Task) -> list[Link]:
    """The facts that lead to the answer, in order.

    They are read from `meta`: `chain` (the bundled world), `evidence_triples` (2WikiMultihopQA) or
    `decomposition` (MuSiQue). A sub-question of MuSiQue's that is written `#1 >> spouse` asks for a
    relation; any other is a relation of its own, which no other question asks for. Raises
    `DataError` where there is none of them, or one that cannot be read.
    """
    meta = task.meta
    try:
        if meta.get("chain"):
            return [
                Link(fact["subject"], fact["relation"], fact["object"]) for fact in meta["chain"]
            ]
        if meta.get("evidence_triples"):
            return [Link(*triple) for triple in meta["evidence_triples"]]
        if meta.get("decomposition"):
            return _of_decomposition(meta["decomposition"])
    except (KeyError, TypeError, IndexError) as error:
        raise DataError("its chain of facts cannot be read") from error
    raise DataError("it has no chain of facts")


@dataclass(frozen=True)
class CounterfactualWorld:
    """Gives a question its changed worlds, in which one fact of its chain has another object of the
    same relation.

    The fact may be at any hop; from there the chain is walked again, and its end is the new gold
    answer. The changed question has the same id and wording, the new answer and chain, `edits` for
    every passage and triple that states the fact, and what was changed in `meta["counterfactual"]`:
    a `world.Change` as a mapping.

    A change is made only where it is valid:

    - The new object and every fact after it are of the split of the question's own facts, and no
      other split states the changed fact: a training question never says anything about held-out
      facts.
    - No other text names both the fact's subject and its old object, and the question names neither
      the old object nor the old answer, so that what was true cannot be derived.
    - Every text that states the fact names its subject after the edit, so that the query that found
      it still asks for it, and nothing of the old object is left in it or its title.
    - The new answer is not an exact match of an old one.

    Args:
        world: the facts: `bundled_world()`, whole, or see `annotated`.
        seed: of all draws: the same seed makes the same changes to the byte, in any process.
        others: more texts that the tools may return, searched for what gives the old object away.

    Example:
        >>> from faithful_search.tasks import load_tasks
        >>> from faithful_search.world import bundled_world
        >>> task = load_tasks("world", limit=1)[0]
        >>> CounterfactualWorld(bundled_world(), seed=0).change(task).edits["The category of Thallium is poor metal."]
        'The category of Thallium is transition metal.'
    """

    world: World
    seed: int = 0
    others: tuple[Evidence, ...] = ()

    @classmethod
    def bundled(cls, seed: int = 0) -> Self:
        """The changes of the bundled questions."""
        return cls(bundled_world(), seed)

    @classmethod
    def of_source(
        cls,
        source: str,
        tasks: Sequence[Task],
        passages: Callable[[], Iterable[Evidence]],
        seed: int = 0,
    ) -> Self:
        """The changes of questions that `load_tasks` has from this source: the bundled ones, or
        those of a file whose annotations, and `passages`, say its facts (see `annotated`).
        """
        if suites.facts_are_known(source):
            return cls.bundled(seed)
        return cls.annotated(tasks, passages(), seed)

    @classmethod
    def annotated(cls, tasks: Sequence[Task], passages: Iterable[Evidence], seed: int = 0) -> Self:
        """The world that the annotations of a 2WikiMultihopQA or MuSiQue file make together.

        A passage states a fact when it holds the object as a whole name and is the annotated one:
        that of the sub-question (MuSiQue), or the one whose title is the subject, brackets aside
        (2WikiMultihopQA). Such a passage says much else, and facts that no question asks for are
        not known: mostly only the last hop can be changed, since the chain can be walked on from a
        new object only where another question was asked about it.

        `tasks` are all questions of one split, `passages` the corpus, with texts as the tools
        return them. Raises `DataError` when no question has annotations that a passage states.
        """
        others = tuple(passages)
        by_title: defaultdict[str, list[Evidence]] = defaultdict(list)
        for passage in others:
            by_title[plain(passage.title)].append(passage)
        statements: dict[tuple[Link, str], Statement] = {}
        for task in tasks:
            for link, passage in _stated_links(task, by_title):
                statements[link, passage.text] = Statement(
                    passage.source,
                    "local_search",
                    "",
                    *link,
                    title=passage.title,
                    text=passage.text,
                )
        if not statements:
            raise DataError(
                f"none of {len(tasks)} questions is annotated with facts that a passage states by "
                "name; questions need "
                "evidence_triples (2WikiMultihopQA) or a decomposition (MuSiQue), and the corpus "
                "their passages"
            )
        return cls(World(tuple(statements.values())), seed, others)

    def change(self, task: Task, turn: int = 0) -> Task | None:
        """The question in a changed world; `None` where there is no valid change.

        Every `turn` draws another change, as far as there are several.
        """
        try:
            return self.changed(task, turn)
        except DataError:
            return None

    def change_all(self, tasks: Iterable[Task]) -> tuple[list[Task], Counter[str]]:
        """Every question that has a valid change, in its changed world; and how many have none, by
        reason.
        """
        changed: list[Task] = []
        dropped: Counter[str] = Counter()
        for task in tasks:
            try:
                changed.append(self.changed(task))
            except DataError as error:
                dropped[str(error)] += 1
        return changed, dropped

    def changed(self, task: Task, turn: int = 0) -> Task:
        """As `change`; where none is valid raises `DataError`, the one of `REASONS` of the hop that
        came closest.
        """
        chain = chain_of(task)
        if normalize(chain[-1].object) not in map(normalize, task.answers):
            raise DataError("its chain does not end in its answer")
        if task.edits:
            raise DataError("its world is changed already")
        # Seeded by a string, which is the same in every process, unlike a hash.
        rng = random.Random(f"{self.seed}:{turn}:{task.id}:{task.question}")
        reasons = []
        for hop in rng.sample(range(len(chain)), len(chain)):
            reason = self._refused(task, chain, hop)
            walked = None if reason else self._walked(task, chain, hop, rng)
            if walked is not None:
                return self._task(task, chain, hop, walked)
            reasons.append(reason or REASONS[-1])
        raise DataError(max(reasons, key=REASONS.index))

    def _refused(self, task: Task, chain: Sequence[Link], hop: int) -> str:
        """Why the fact at that hop cannot be changed, whatever by; empty: it can."""
        fact = chain[hop].asked
        old = chain[hop].object
        stated = [self.world.by_fact.get(link.asked, []) for link in chain]
        for statements, link in zip(stated, chain, strict=True):
            if {statement.object for statement in statements} != {link.object}:
                return "a fact of its chain stands in no passage or triple, or in several versions"
        for link, following in pairwise(chain[hop:]):
            if following.subject != link.object:
                return "its chain goes on from another fact"
        if any(holds(task.question, name) for name in (old, *task.answers)):
            return "the question names the fact's object or the answer"
        # From another text that names both, the old fact could be derived.
        texts = {statement.text for statement in stated[hop]}
        naming_both = self._naming.get(fact.subject, texts) & self._naming.get(old, texts)
        if not naming_both <= texts:
            return "another text names the fact's subject and object"
        return ""

    def _walked(
        self, task: Task, chain: Sequence[Link], hop: int, rng: random.Random
    ) -> list[Link] | None:
        """The chain from that hop on, with another object and to another answer."""
        statements = self.world.by_fact[chain[hop].asked]
        answers = set(map(normalize, task.answers))
        relations = [link.relation for link in chain[hop + 1 :]]
        split = statements[0].split
        of_subject = self.world.by_subject[statements[0].subject]
        held_out = {statement.object for statement in of_subject if statement.split != split}
        pool = self._objects_of[chain[hop].relation, split]
        for new in rng.sample(pool, len(pool)):
            readable = all(_readable(statement, new) for statement in statements)
            if new in held_out or not readable:
                continue
            links = self._walk(chain[hop]._replace(object=new), relations, statements)
            if links is not None and normalize(links[-1].object) not in answers:
                return links
        return None

    def _walk(
        self, start: Link, relations: Sequence[str], changed: Sequence[Statement]
    ) -> list[Link] | None:
        """From a changed fact on over facts of its split that are as they were; `None` where one is
        not known.
        """
        links = [start]
        split = changed[0].split
        edited = {statement.text for statement in changed}
        for relation in relations:
            subject = links[-1].object
            objects = {
                statement.object
                for statement in self.world.by_fact.get(Asked(subject, relation), [])
                if statement.split == split and statement.text not in edited
            }
            if len(objects) != 1:
                return None
            links.append(Link(subject, relation, *objects))
        return links

    def _task(self, task: Task, chain: Sequence[Link], hop: int, walked: Sequence[Link]) -> Task:
        """The question in the world in which the chain is `walked` from that hop on."""
        old = chain[hop]
        new = walked[0]
        links = [*chain[:hop], *walked]
        titles: dict[str, None] = {}
        sources: dict[str, None] = {}
        facts = []  # as the bundled questions have them
        for link in links:
            by_tool: dict[str, str] = {}
            for statement in self.world.by_fact[link.asked]:
                titles[statement.title] = None
                sources[statement.source] = None
                by_tool[statement.tool] = statement.source
            fact = {
                **link._asdict(),
                "passage": by_tool.get("local_search"),
                "triple": by_tool.get("knowledge_graph"),
            }
            facts.append(fact)
        change = Change(
            subject=new.subject,
            relation=new.relation,
            old=old.object,
            new=new.object,
            hop=hop,
            asked=walked[-1].asked,
            answers=task.answers,
        )
        meta = {key: value for key, value in task.meta.items() if key not in _ANNOTATIONS}
        meta["chain"] = facts
        meta[CHANGE] = msgspec.json.decode(msgspec.json.encode(change))
        edits: dict[str, str] = {}
        for statement in self.world.by_fact[old.asked]:
            edits[statement.text] = statement.saying(new.object).text
        return msgspec.structs.replace(
            task,
            answers=(walked[-1].object,),
            supporting_ids=tuple(sources) if task.supporting_ids else (),
            supporting_titles=tuple(titles) if task.supporting_titles else (),
            meta=meta,
            edits=edits,
        )

    @cached_property
    def _objects_of(self) -> dict[tuple[str, str], list[str]]:
        """The objects of each relation in each split, sorted."""
        objects: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
        for statement in self.world.statements:
            objects[statement.relation, statement.split].add(statement.object)
        return {key: sorted(names) for key, names in objects.items()}

    @cached_property
    def _naming(self) -> dict[str, set[str]]:
        """The texts that name each subject and object, in their titles, too; those of `others`
        included.
        """
        names: dict[str, str] = {}
        passages: set[tuple[str, str]] = {(passage.title, passage.text) for passage in self.others}
        for statement in self.world.statements:
            names |= {statement.subject: "", statement.object: ""}
            passages.add((statement.title, statement.text))
        finder = NameFinder(names)
        naming: defaultdict[str, set[str]] = defaultdict(set)
        for title, text in passages:
            for name in finder.find(f"{title}\n{text}"):
                naming[name].add(text)
        return dict(naming)


def _readable(statement: Statement, new: str) -> bool:
    """Whether the edited text says the new fact and nothing else: it names the subject, and nothing
    of the old object.

    A part of a name ("Fincher") gives it away, too, unless the subject or the new object have the
    same part.
    """
    before = f"{statement.title}\n{statement.text}"
    after = f"{statement.title}\n{statement.saying(new).text}"
    if holds(before, new) or holds(after, statement.object):
        return False
    shared = set(_NAME.findall(f"{statement.subject} {new}"))
    parts = set(_NAME.findall(statement.object)) - shared
    gives_away = parts & set(_NAME.findall(after))
    return not gives_away and holds(after, statement.subject)


def _stated_links(
    task: Task, by_title: Mapping[str, Sequence[Evidence]]
) -> Iterator[tuple[Link, Evidence]]:
    """The facts of the question's annotated chain, each with a passage that states it."""
    try:
        chain = chain_of(task)
    except DataError:
        return
    rows = task.meta.get("decomposition", [])
    for hop, link in enumerate(chain):
        row = rows[hop] if len(rows) == len(chain) else {}
        if not holds(link.subject, link.subject):
            continue  # a subject without a letter or digit is named by no text
        title = plain(row.get("title", link.subject))
        for passage in by_title.get(title, ()):
            is_annotated = passage.text == row.get("text", passage.text)
            if is_annotated and holds(passage.text, link.object):
                yield link, passage


def _of_decomposition(rows: Iterable[Mapping[str, str]]) -> list[Link]:
    """The chain of MuSiQue's sub-questions, in which `#1` stands for the first answer. Each is a
    sentence or of the form "subject >> relation".
    """
    links: list[Link] = []

    def answer_to(reference: re.Match[str]) -> str:
        return links[int(reference[1]) - 1].object

    for row in rows:
        question = row["question"]
        resolved = re.sub(r"#(\d+)", answer_to, question).strip()
        subject, arrow, relation = (part.strip() for part in resolved.partition(">>"))
        if arrow:
            links.append(Link(subject, relation, row["answer"]))
        else:
            links.append(Link(resolved, question.strip(), row["answer"]))
    return links
