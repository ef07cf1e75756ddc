"""The chain of facts in a question's annotation, and the world that a file's annotations make together."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from .errors import DataError
from .names import holds
from .tasks import Task
from .trajectory import Evidence
from .world import Asked, Statement, World


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

    They are read from `meta`: `chain` (the bundled world), `evidence_triples` (2WikiMultihopQA) or `decomposition`
    (MuSiQue). A sub-question of MuSiQue's that is written `#1 >> spouse` asks for a relation; any other is a relation
    of its own, which no other question asks for.

    Raises:
        DataError: when the question has none of them, or one that cannot be read.

    Example:
        >>> triples = [["Good People", "director", "Henrik Ruben Genz"]]
        >>> chain_of(Task("q", "Who?", meta={"evidence_triples": triples}))[0].asked
        Asked(subject='Good People', relation='director')
    """
    meta = task.meta
    try:
        if meta.get("chain"):
            return [Link(fact["subject"], fact["relation"], fact["object"]) for fact in meta["chain"]]
        if meta.get("evidence_triples"):
            return [Link(*triple) for triple in meta["evidence_triples"]]
        if meta.get("decomposition"):
            answers = [row["answer"] for row in meta["decomposition"]]
            return [
                _sub_question(row["question"], answers[:at], answers[at])
                for at, row in enumerate(meta["decomposition"])
            ]
    except (KeyError, TypeError, IndexError) as error:
        raise DataError("its chain of facts cannot be read") from error
    raise DataError("it has no chain of facts")


def annotated_world(tasks: Sequence[Task], passages: Iterable[Evidence]) -> World:
    """The facts that a file's questions are annotated with, each with the passages that state it by name.

    A passage states a fact when it holds the object as a whole name and is the annotated one: that of the sub-question
    (MuSiQue), or the one whose title is the subject, brackets aside (2WikiMultihopQA). Unlike in the bundled world,
    such a passage says much else, and facts that no question asks for are not known.

    Raises:
        DataError: when no question has annotations that a passage states.
    """
    by_title: defaultdict[str, list[Evidence]] = defaultdict(list)
    for item in passages:
        by_title[_plain(item.title)].append(item)
    statements: dict[tuple[Link, str], Statement] = {}
    for task in tasks:
        try:
            chain = chain_of(task)
        except DataError:
            continue
        rows = task.meta.get("decomposition", [])
        for at, link in enumerate(chain):
            row = rows[at] if len(rows) == len(chain) else {}
            for item in by_title[_plain(row.get("title", link.subject))]:
                told = Statement(item.source, "local_search", "", *link, title=item.title, text=item.text)
                named = holds(item.text, link.object) and holds(link.subject, link.subject)
                if named and item.text == row.get("text", item.text):
                    statements[link, item.text] = told
    if not statements:
        raise DataError(
            f"none of {len(tasks)} questions is annotated with facts that a passage states by name; questions need "
            "evidence_triples (2WikiMultihopQA) or a decomposition (MuSiQue), and the corpus their passages"
        )
    return World(tuple(statements.values()))


def _sub_question(question: str, answers: Sequence[str], found: str) -> Link:
    asked = re.sub(r"#(\d+)", lambda match: answers[int(match[1]) - 1], question)
    subject, arrow, relation = (part.strip() for part in asked.partition(">>"))
    return Link(subject, relation, found) if arrow else Link(asked.strip(), question.strip(), found)


def _plain(title: str) -> str:
    """Case-folded, without a bracketed qualifier at the end: an annotation names a page with or without it."""
    return " ".join(re.sub(r"\s*\([^()]*\)\s*$", "", title).casefold().split())
