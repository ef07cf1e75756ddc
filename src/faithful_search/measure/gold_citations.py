"""Are the pages that an agent cites those that annotators found to support the answer? This needs
no judge, only questions whose supporting titles are known.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import ClassVar, Self

from ..evidence import supporting
from ..rewards import Citation, Result, Reward, Score
from ..rollout.episode import task_id
from ..tasks import Task
from ..text import plain
from ..trajectory import Step, Trajectory


@dataclass(frozen=True)
class CitesGold(Reward):
    """The share of the citations in yes-steps that name a supporting page (ours).

    ```
    |{(t, id) : step t says yes and cites id, and a passage returned before t with this id
                has a supporting title}| / |{(t, id) : step t says yes and cites id}|
    ```

    An id that no tool returned before counts as a citation of no supporting page; whether it is of
    the last response is what `Citation` asks. Titles are compared without case and without a
    qualifier in brackets; empty ones are none. There is no value for questions without supporting
    titles, for rollouts without a citation, and for dialects without verdicts.

    Args:
        supporting_titles: those of each question, by the id of its task, as `plain` writes them;
            `CitesGold.of` takes them from tasks. All samples of a task are scored by it.

    Example:
        >>> from faithful_search.trajectory import Evidence, Step, ToolCall
        >>> task = Task("q1", "The capital of Peru?", ("Lima",), supporting_titles=("Peru",))
        >>> gold = Evidence("Its capital is Lima.", "Peru", "E1")
        >>> other = Evidence("A bean.", "Lima bean", "E2")
        >>> search = Step(call=ToolCall("local_search"), evidence=(gold, other))
        >>> answer = Step(helpful=True, refs=("E1", "E2"), answer="Lima")
        >>> CitesGold.of([task]).score(Trajectory((search, answer), id="q1", dialect="pou")).value
        0.5

    How to hack it: cite one passage that is surely right, and say no to all others.
    """

    supporting_titles: Mapping[str, Collection[str]] = field(default_factory=dict, repr=False)

    name: ClassVar[str] = "cites_gold"
    results: ClassVar[Mapping[str, Result]] = {
        "cites_gold": Result(
            asks="which share of the citations names a page that supports the answer?",
            good="citations name pages that annotators found to support the answer",
        ),
    }

    @classmethod
    def of(cls, tasks: Iterable[Task]) -> Self:
        """The reward for these questions. Those without supporting titles are left out."""
        supporting_titles = {}
        for task in tasks:
            titles = frozenset(filter(None, map(plain, task.supporting_titles)))
            if titles:
                supporting_titles[task.id] = titles
        return cls(supporting_titles)

    def covers(self, dialect: str) -> bool:
        return Citation().covers(dialect)

    def score(self, trajectory: Trajectory) -> Score:
        if not self.covers(trajectory.dialect):
            return Score(None, f"dialect {trajectory.dialect!r} has no verdicts that cite")
        gold_titles = self._gold_titles(trajectory.id)
        if not gold_titles:
            return Score(None, "the question's supporting titles are not known")
        citations = 0
        others: list[str] = []
        titles_by_id: dict[str, set[str]] = {}
        for number, (previous, step) in enumerate(pairwise(trajectory.steps), start=2):
            _unite_titles(titles_by_id, previous)
            for ref in dict.fromkeys(step.refs if step.helpful else ()):
                citations += 1
                if ref not in titles_by_id:
                    others.append(f"step {number} cites {ref}, which was not returned")
                elif titles_by_id[ref].isdisjoint(gold_titles):
                    others.append(f"step {number} cites {ref}, which is no gold page")
        if not citations:
            return Score(None, "no step says yes and cites")
        return Score(1 - len(others) / citations, others[0] if others else "")

    def _gold_titles(self, rollout_id: str) -> Collection[str]:
        """Those of the task that the rollout is a sample of."""
        if rollout_id in self.supporting_titles:
            return self.supporting_titles[rollout_id]
        return self.supporting_titles.get(task_id(rollout_id), ())


def _unite_titles(titles_by_id: dict[str, set[str]], step: Step) -> None:
    """Add the titles of what the step returned; a note was returned, but no title of it supports."""
    for passage in step.evidence:
        titles_by_id.setdefault(passage.id, set())
    for passage in supporting(step):
        title = plain(passage.title)
        if title:
            titles_by_id[passage.id].add(title)
