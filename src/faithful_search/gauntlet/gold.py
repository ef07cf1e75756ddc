"""What the facts of a bundled question say of a trajectory: which facts lead to its answer, which
of them its passages state, and what it cites. Published rewards take them where a paper has gold
documents, or rubrics that a model wrote.
"""

from collections.abc import Iterable
from typing import NamedTuple

from ..citations import read_answer
from ..counterfactual import Link
from ..rewards.citation import Citation
from ..rewards.citation_returned import different
from ..trajectory import Evidence, Trajectory
from ..world import Asked, Change, chains_of, world_of


class CitedSource(NamedTuple):
    """A source that a trajectory cites, and the passages that a tool had returned by that name."""

    name: str
    passages: tuple[Evidence, ...]


def facts_of(trajectory: Trajectory) -> list[Link]:
    """The facts that lead to the answer, in the world that the rollout was in; none for a question
    that is not of the bundled world.

    Example:
        >>> facts_of(Trajectory(question="What money is used in Thailand?"))
        [Link(subject='Thailand', relation='currency', object='baht')]
    """
    world = world_of(Change.of(trajectory.meta))
    links: list[Link] = []
    for fact in chains_of().get(trajectory.question or "", ()):
        # In a changed world a chain goes on from the object that the fact before has there
        subject = links[-1].object if links else fact.subject
        asked_fact = Asked(subject, fact.relation)
        statement = world.by_fact[asked_fact][0]
        links.append(Link(subject, fact.relation, statement.object))
    return links


def stated_in(passages: Iterable[Evidence], trajectory: Trajectory) -> set[Asked]:
    """The facts that these passages state, in the world that the rollout was in."""
    world = world_of(Change.of(trajectory.meta))
    facts: set[Asked] = set()
    for passage in passages:
        statement = world.stated(passage.text)
        if statement:
            facts.add(Asked(statement.subject, statement.relation))
    return facts


def cited_sources(trajectory: Trajectory) -> list[CitedSource]:
    """What a trajectory cites, each source once: the ids of its verdicts in dialects that have
    verdicts, else the marks in its answer.
    """
    if not Citation().covers(trajectory.dialect):
        marked: list[CitedSource] = []
        for source in different(read_answer(trajectory)):
            passages = tuple(passage.evidence for passage in source.passages)
            marked.append(CitedSource(source.name, passages))
        return marked
    cited: dict[str, CitedSource] = {}
    returned: dict[str, Evidence] = {}
    for step in trajectory.steps:
        for ref in step.refs:
            passages = (returned[ref],) if ref in returned else ()
            cited.setdefault(ref, CitedSource(ref, passages))
        for passage in step.evidence:
            returned.setdefault(passage.id, passage)
    return list(cited.values())
