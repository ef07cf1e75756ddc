"""From an annotated question to a `Plan`: what has to be found hop by hop, where to look, and how
to recognise it.

Each source has a planner. A task that cannot be planned raises `DataError` with a short reason;
`plan_all` counts them.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

from ..errors import DataError
from ..tasks import Task
from ..text import plain, unqualified
from ..trajectory import Evidence

# The tools of a plan
SEARCH = "local_search"
GRAPH = "knowledge_graph"
UNKNOWN = "unknown"  # the answer of an expert that could not find the fact
Query = tuple[str, str]
"""A tool, and the query that it is asked."""


@dataclass(frozen=True)
class Hop:
    """One fact that has to be found.

    Args:
        need: what is missing, as it reads after "I need": "the director of Zodiac".
        queries: in order of preference.
        statement: the sentence with which the expert states the fact once it is found; empty where
            it quotes the evidence.
        relation: what is asked of the subject, such as "director"; empty where the annotation does
            not say. Twins are made by it.
        object: what is to be found, such as "David Fincher".
        subject: must be named by the question or by evidence before it may be queried; empty for no
            such condition.
        gold_ids: the `Evidence.source` of passages and triples that state the fact.
        gold_titles: the titles of passages that state it, for sources without ids. The text must
            contain the object, too.
    """

    need: str
    queries: tuple[Query, ...]
    statement: str = ""
    relation: str = ""
    object: str = ""
    subject: str = ""
    gold_ids: frozenset[str] = frozenset()
    gold_titles: frozenset[str] = frozenset()

    def gold(self, evidence: Iterable[Evidence]) -> list[Evidence]:
        """The evidence that states the fact: by its source, or by its title and the object in its
        text.

        >>> titles = frozenset({"Zodiac (film)"})
        >>> hop = Hop("the director of Zodiac", (), object="David Fincher", gold_titles=titles)
        >>> first = Evidence("Directed by David Fincher.", "Zodiac", "E1")
        >>> second = Evidence("A film.", "Zodiac", "E2")
        >>> [passage.id for passage in hop.gold([first, second])]
        ['E1']
        """
        titles = {plain(title) for title in self.gold_titles}
        gold = []
        for passage in evidence:
            by_source = passage.source in self.gold_ids
            if by_source or (
                plain(passage.title) in titles and contains(passage.text, self.object)
            ):
                gold.append(passage)
        return gold

    @classmethod
    def of_relation(
        cls, subject: str, relation: str, object: str, queries: Sequence[Query], **gold: Any
    ) -> "Hop":
        """The hop that finds the `relation` of `subject`; `gold` is `gold_ids` or `gold_titles`."""
        phrase = f"{relation} of {subject}"
        return cls(
            need=f"the {phrase}",
            queries=tuple(queries),
            statement=f"The {phrase} is {object}.",
            relation=relation,
            object=object,
            subject=subject,
            **gold,
        )


@dataclass(frozen=True)
class Plan:
    """The hops that answer a question, in order; `answers[0]` is what the expert says."""

    id: str
    question: str
    answers: tuple[str, ...]
    hops: tuple[Hop, ...]


Planner = Callable[[Task], list[Hop]]
"""Gives the hops of an annotated question. Raises `DataError` where it cannot be planned."""


def plan_all(tasks: Sequence[Task], planner: Planner) -> tuple[list[Plan], Counter[str]]:
    """The plans, and how many tasks were skipped, by reason.

    Raises:
        DataError: no task could be planned.
    """
    plans: list[Plan] = []
    skipped: Counter[str] = Counter()
    for task in tasks:
        try:
            hops = planner(task)
            if not task.answers or not task.answers[0].strip():
                raise DataError("no answer")
            plans.append(Plan(task.id, task.question, task.answers, tuple(hops)))
        except DataError as error:
            skipped[str(error)] += 1
    if not plans:
        raise DataError(
            f"none of {len(tasks)} questions can be planned: {counted(skipped)}; is the source "
            "kind right?"
        )
    return plans, skipped


def planner_for(kind: str, tasks: Sequence[Task] = ()) -> Planner:
    """The planner for a kind of source.

    Args:
        tasks: training questions, from which that of `world` learns which tool usually has what.
    """
    if kind not in PLANNERS:
        raise DataError(f"unknown source kind {kind!r}; there are: {', '.join(PLANNERS)}")
    if kind == "world":
        return partial(plan_world, usual=usual_tools(tasks))
    return PLANNERS[kind]


def usual_tools(tasks: Iterable[Task]) -> dict[str, str]:
    """For each relation the tool that has most of its facts, counted over the chains of `tasks`."""
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for task in tasks:
        for fact in _facts(task):
            has_fact = {SEARCH: bool(fact.get("passage")), GRAPH: bool(fact.get("triple"))}
            counts[fact["relation"]].update(has_fact)
    usual = {}
    for relation, count in counts.items():
        [(tool, _)] = count.most_common(1)
        usual[relation] = tool
    return usual


def plan_world(task: Task, usual: Mapping[str, str] | None = None) -> list[Hop]:
    """The hops of a question of the bundled world, by the facts it asks for.

    Args:
        usual: by relation, the tool to try first.
    """
    hops = []
    for fact in _facts(task) or _annotation(task, "chain"):
        subject, relation, object_ = _fields(fact, "subject", "relation", "object")
        first_tool = (usual or {}).get(relation, SEARCH)
        second_tool = GRAPH if first_tool == SEARCH else SEARCH
        query = f"{relation} of {subject}"
        reworded = f"{subject} {relation}"
        queries = ((first_tool, query), (second_tool, query), (first_tool, reworded))
        sources = (fact.get("passage"), fact.get("triple"))
        gold_ids = frozenset(source for source in sources if source)
        hops.append(Hop.of_relation(subject, relation, object_, queries, gold_ids=gold_ids))
    return hops


def plan_2wiki(task: Task) -> list[Hop]:
    """The hops of a 2WikiMultihopQA question, by `evidence_triples` (subject, relation, object)."""
    hops = []
    for triple in _annotation(task, "evidence_triples"):
        if len(triple) != 3:
            raise DataError("an evidence triple without three parts")
        subject, relation, object_ = triple
        query = f"{relation} of {subject}"
        queries = (
            (SEARCH, query),
            (GRAPH, query),
            (SEARCH, f"{subject} {relation}"),
            (SEARCH, subject),
        )
        titles_of_subject = []
        for title in task.supporting_titles:
            if plain(title) == plain(subject):
                titles_of_subject.append(title)
        titles = frozenset([subject, *titles_of_subject])
        hops.append(Hop.of_relation(subject, relation, object_, queries, gold_titles=titles))
    return hops


def plan_musique(task: Task) -> list[Hop]:
    """The hops of a MuSiQue question, by its `decomposition` into sub-questions, in which `#k` is
    the k-th answer.

    A sub-question is either `subject >> relation` or a sentence.
    """
    hops = []
    answers: list[str] = []
    for row in _annotation(task, "decomposition"):
        answer, question, title = _fields(row, "answer", "question", "title")
        for number in re.findall(r"#(\d+)", question):
            if not 1 <= int(number) <= len(answers):
                raise DataError("a sub-question refers to a later one")
        resolved = re.sub(r"#(\d+)", lambda match: answers[int(match[1]) - 1], question).strip()
        answers.append(answer)
        subject, arrow, relation = (part.strip() for part in resolved.partition(">>"))
        if arrow:
            query = f"{relation} of {subject}"
            reworded = f"{subject} {relation}"
            need = f"the {query}"
            statement = f"The {query} is {answer}."
        else:
            query = f"{resolved[:1].upper()}{resolved[1:].rstrip(' ?')}?"
            reworded = query.rstrip("?")
            need = f'to know "{query}"'
            statement = f"{query} {answer}."
        # The last attempt is names and numbers alone: the question's other words may mislead BM25.
        names = [word for word in reworded.split()[1:] if word[:1].isupper() or word[:1].isdigit()]
        queries = ((SEARCH, query), (SEARCH, reworded), (SEARCH, " ".join(names) or reworded))
        hop = Hop(
            need=need,
            queries=queries,
            statement=statement,
            relation=relation,
            object=answer,
            gold_titles=frozenset({title}),
        )
        hops.append(hop)
    return hops


def plan_hotpotqa(task: Task) -> list[Hop]:
    """The hops of a HotpotQA question: one for each supporting title, those named in the question
    first, since what it names can be asked for at once.
    """
    if not task.supporting_titles:
        raise DataError("no supporting_titles")
    titles = dict.fromkeys(task.supporting_titles)
    named_first = sorted(titles, key=lambda title: not contains(task.question, plain(title)))
    hops = []
    for title in named_first:
        name = unqualified(title)
        hop = Hop(
            need=f"to read about {name}",
            queries=((SEARCH, name), (SEARCH, f"What is known about {name}?")),
            subject=title,
            gold_titles=frozenset({title}),
        )
        hops.append(hop)
    return hops


PLANNERS: dict[str, Planner] = {
    "world": plan_world,
    "musique": plan_musique,
    "2wiki": plan_2wiki,
    "hotpotqa": plan_hotpotqa,
}


def contains(text: str, part: str) -> bool:
    """Whether `part` stands in `text` as whole words, case and spacing aside; an empty `part`
    always does.

    >>> contains("He saw Parisians.", "Paris"), contains("in  PARIS.", "Paris")
    (False, True)
    """
    words = r"\s+".join(map(re.escape, part.casefold().split()))
    return re.search(rf"(?<!\w){words}(?!\w)", text.casefold()) is not None


def counted(reasons: Mapping[str, int] | Iterable[str]) -> str:
    """Reasons, or their counts, in words, the most frequent first: "3 no answer, 1 no chain"."""
    counts = Counter(reasons).most_common()
    return ", ".join(f"{count} {reason}" for reason, count in counts) or "none"


def _facts(task: Task) -> list[Any]:
    """The facts that a question of the bundled world asks for; of two questions in one, those of
    both.
    """
    return [*task.meta.get("chain", ()), *chain(*task.meta.get("chains", ()))]


def _annotation(task: Task, column: str) -> list[Any]:
    """A column of the question's row. Raises `DataError` where it is missing."""
    if not task.meta.get(column):
        raise DataError(f"no {column}")
    return task.meta[column]


def _fields(row: Mapping[str, Any], *names: str) -> list[str]:
    """Texts of an annotation. Raises `DataError` where one is missing."""
    missing = [name for name in names if not isinstance(row.get(name), str)]
    if missing:
        raise DataError(f"an annotation without {' and '.join(missing)}")
    return [row[name] for name in names]
