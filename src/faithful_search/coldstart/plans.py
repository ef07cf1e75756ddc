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
from typing import Any

from ..errors import DataError
from ..tasks import Task
from ..text import plain, unqualified
from ..trajectory import Evidence

SEARCH = "local_search"
GRAPH = "knowledge_graph"
UNKNOWN = "unknown"
"""The answer of an expert that could not find the fact."""
Query = tuple[str, str]
"""A tool, and what it is asked."""


@dataclass(frozen=True)
class Hop:
    """One fact that has to be found.

    Args:
        need: what is missing, as it reads after "I need": "the director of Zodiac".
        queries: in order of preference.
        statement: the sentence that states the fact once found; empty: the expert quotes the
            evidence.
        relation: what is asked of the subject, if the annotation says so; twins are made by it.
        object: what is to be found; the evidence must contain it if it is recognised by
            `gold_titles`.
        subject: must be named by the question or by evidence before it may be queried; empty: no
            condition.
        gold_ids: `Evidence.source` of what states the fact.
        gold_titles: titles of the passages that state it, for sources without ids.
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
        """Those of `evidence` that state the fact: by source, or by title and the object being in
        the text.

        >>> hop = Hop("the director of Zodiac", (), object="David Fincher", gold_titles=frozenset({"Zodiac (film)"}))
        >>> evidence = [Evidence("Directed by David Fincher.", "Zodiac", "E1"), Evidence("A film.", "Zodiac", "E2")]
        >>> [passage.id for passage in hop.gold(evidence)]
        ['E1']
        """
        titles = {plain(title) for title in self.gold_titles}
        stating: list[Evidence] = []
        for passage in evidence:
            has_source = passage.source in self.gold_ids
            has_title = plain(passage.title) in titles
            if has_source or (has_title and contains(passage.text, self.object)):
                stating.append(passage)
        return stating

    @classmethod
    def of_relation(
        cls, subject: str, relation: str, object: str, queries: tuple[Query, ...], **gold: Any
    ) -> "Hop":
        """The hop that finds the relation of a subject; `gold` is `gold_ids` or `gold_titles`."""
        phrase = f"{relation} of {subject}"
        return cls(
            need=f"the {phrase}",
            queries=queries,
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


def plan_all(tasks: Sequence[Task], planner: Planner) -> tuple[list[Plan], Counter[str]]:
    """The plans, and how many tasks were skipped, by reason. Raises `DataError` if no task could be
    planned.
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
    """The planner of a source kind; `world` learns from `tasks` (training questions) which tool
    usually holds what.
    """
    if kind not in PLANNERS:
        raise DataError(f"unknown source kind {kind!r}; there are: {', '.join(PLANNERS)}")
    if kind == "world":
        return partial(plan_world, usual=usual_tools(tasks))
    return PLANNERS[kind]


def usual_tools(tasks: Iterable[Task]) -> dict[str, str]:
    """Which tool holds a relation's facts most often, counted over the chains of `tasks`."""
    held_by: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for task in tasks:
        for fact in _facts(task):
            tools = held_by[fact["relation"]]
            tools[SEARCH] += bool(fact.get("passage"))
            tools[GRAPH] += bool(fact.get("triple"))
    usual: dict[str, str] = {}
    for relation, tools in held_by.items():
        usual[relation] = GRAPH if tools[GRAPH] > tools[SEARCH] else SEARCH
    return usual


def plan_world(task: Task, usual: Mapping[str, str] | None = None) -> list[Hop]:
    """The hops of a question of the bundled world, by the facts it asks for; `usual`: which tool to
    try first.
    """
    hops = []
    for fact in _facts(task) or _annotation(task, "chain"):
        subject, relation, object_ = _fields(fact, "subject", "relation", "object")
        first = (usual or {}).get(relation, SEARCH)
        second = GRAPH if first == SEARCH else SEARCH
        query = f"{relation} of {subject}"
        reworded = f"{subject} {relation}"
        queries = ((first, query), (second, query), (first, reworded))
        gold_ids = frozenset(fact[key] for key in ("passage", "triple") if fact.get(key))
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
        name = plain(subject)
        about_it = [title for title in task.supporting_titles if plain(title) == name]
        titles = frozenset([subject, *about_it])
        hops.append(Hop.of_relation(subject, relation, object_, queries, gold_titles=titles))
    return hops


def plan_musique(task: Task) -> list[Hop]:
    """The hops of a MuSiQue question, by `decomposition`: sub-questions, with `#k` replaced by the
    k-th answer.
    """
    hops = []
    answers: list[str] = []
    for row in _annotation(task, "decomposition"):
        answer, question, title = _fields(row, "answer", "question", "title")
        hops.append(_sub_question_hop(_resolved(question, answers), answer, title))
        answers.append(answer)
    return hops


def _resolved(question: str, answers: Sequence[str]) -> str:
    """A sub-question with each `#k` replaced by the k-th of the answers before it."""

    def answer_to(reference: re.Match[str]) -> str:
        number = int(reference[1])
        if not 1 <= number <= len(answers):
            raise DataError("a sub-question refers to a later one")
        return answers[number - 1]

    return re.sub(r"#(\d+)", answer_to, question).strip()


def _sub_question_hop(question: str, answer: str, title: str) -> Hop:
    """The hop of a sub-question, which is a sentence or of the form "subject >> relation"."""
    subject, arrow, relation = (part.strip() for part in question.partition(">>"))
    if arrow:
        query = f"{relation} of {subject}"
        reworded = f"{subject} {relation}"
        need = f"the {query}"
        statement = f"The {query} is {answer}."
    else:
        query = f"{question[:1].upper()}{question[1:].rstrip(' ?')}?"
        reworded = query.rstrip("?")
        need = f'to know "{query}"'
        statement = f"{query} {answer}."
    # The last attempt is names and numbers alone: BM25 may be misled by the question's other words.
    names = [word for word in reworded.split()[1:] if word[:1].isupper() or word[:1].isdigit()]
    last_attempt = " ".join(names) or reworded
    return Hop(
        need=need,
        queries=((SEARCH, query), (SEARCH, reworded), (SEARCH, last_attempt)),
        statement=statement,
        relation=relation,
        object=answer,
        gold_titles=frozenset({title}),
    )


def plan_hotpotqa(task: Task) -> list[Hop]:
    """The hops of a HotpotQA question: one per supporting title, those named in the question
    first.
    """
    if not task.supporting_titles:
        raise DataError("no supporting_titles")

    def is_unnamed(title: str) -> bool:
        return not contains(task.question, plain(title))

    hops = []
    # What the question names can be asked for at once; the others become known on the way.
    for title in sorted(dict.fromkeys(task.supporting_titles), key=is_unnamed):
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
    """Reasons, or their counts, in words: how often each was given, most frequent first."""
    counts = Counter(reasons).most_common()
    return ", ".join(f"{count} {reason}" for reason, count in counts) or "none"


def _facts(task: Task) -> list[Any]:
    """The annotated facts of a question of the bundled world, which asks along one chain of facts
    (`chain`) or along two (`chains`).
    """
    facts = list(task.meta.get("chain", ()))
    for chain in task.meta.get("chains", ()):
        facts += chain
    return facts


def _annotation(task: Task, column: str) -> list[Any]:
    """What a column of the question's row holds. Raises `DataError` where that is nothing."""
    if not task.meta.get(column):
        raise DataError(f"no {column}")
    return task.meta[column]


def _fields(row: Mapping[str, Any], *names: str) -> list[str]:
    """The texts in these fields of an annotation. Raises `DataError` where one is not there."""
    missing = [name for name in names if not isinstance(row.get(name), str)]
    if missing:
        raise DataError(f"an annotation without {' and '.join(missing)}")
    return [row[name] for name in names]
