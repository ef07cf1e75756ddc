"""Does the answer need the evidence? The same questions where it is missing, and where it says something else.

| condition | what the agent gets | rows |
|---|---|---|
| changed | evidence that states another fact, with another gold answer | follow_rate, exact_match_changed |
| blocked | everything but the evidence that states the facts asked for: neighbours stay | memory_share |
| closed | tools that return nothing | memory_share in `control_study` |
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from ..counterfactual import CounterfactualWorld
from ..rewards.turns import passages
from ..tasks import Task
from ..text import exact_match, normalize
from ..tools.base import NO_RESULTS, Observation
from ..tools.lane import Lane
from ..tools.toolbox import Toolbox
from ..trajectory import Evidence, Trajectory
from ..world import bundled_world
from .origins import declines, holds

OPEN, CLOSED, BLOCKED, CHANGED = CONDITIONS = ("open", "closed", "blocked", "changed")
FOLLOW, MEMORY, EM_CHANGED, SAME = "follow_rate", "memory_share", "exact_match_changed", "same_answer"
EM_UNREMEMBERED = "exact_match_unremembered"
QUESTIONS = 100  # an evaluation also asks under the conditions: with the tiny policy 8 seconds of a core each
Match = Callable[[str | None, Sequence[str]], float]
"""Compares an answer with gold answers: `text.exact_match`, `text.sub_exact_match`."""


def under(condition: str, task: Task) -> Task:
    """The task with an id of its own, QUESTION@CONDITION, which its rollout has, too."""
    return msgspec.structs.replace(task, id=f"{task.id}@{condition}")


def control_tasks(tasks: Sequence[Task], limit: int = QUESTIONS) -> list[Task]:
    """The first `limit` different questions changed and blocked, each `under` its condition, as far as they are the
    bundled world's.
    """
    first = list({task.id: task for task in tasks}.values())[:limit]
    made = {CHANGED: CounterfactualWorld(bundled_world()).change, BLOCKED: blocked_in_world}
    return [under(name, other) for name, make in made.items() for task in first if (other := make(task)) is not None]


def blocked_in_world(task: Task) -> Task | None:
    """A question of the bundled world without the evidence that states the facts of its chain, or their reverse."""
    pairs = {frozenset((fact.get("subject"), fact.get("object"))) for fact in task.meta.get("chain", ())}
    texts = [item.text for item in bundled_world().statements if frozenset((item.subject, item.object)) in pairs]
    return _without(task, texts) if texts else None


def blocked_by_passages(tasks: Sequence[Task], corpus: Iterable[Evidence]) -> dict[str, Task]:
    """By question, the task without its gold passages; those whose gold passages are not there are left out.

    They are told by `supporting_ids` or `supporting_titles` where a task has such, else they are those whose title or
    text holds a gold answer whole, for answers other than yes and no. The corpus is read once.
    """
    ids, titles, answers = defaultdict(set), defaultdict(set), {}
    for task in tasks:
        for id in task.supporting_ids:
            ids[id].add(task.id)
        for title in task.supporting_titles:
            titles[normalize(title, "pokee")].add(task.id)
        if not (task.supporting_ids or task.supporting_titles):
            # yes and no stand in most passages
            told = {normalize(answer, "pokee") for answer in task.answers} - {"", "yes", "no"}
            answers[task.id] = [f" {answer} " for answer in told]
    gold: dict[str, list[str]] = defaultdict(list)
    for item in corpus:
        title = normalize(item.title, "pokee")
        text = f" {title} {normalize(item.text, 'pokee')} " if answers else ""
        by_answer = {id for id, told in answers.items() if any(answer in text for answer in told)}
        for id in ids.get(item.source, set()) | titles.get(title, set()) | by_answer:
            gold[id].append(item.text)
    return {task.id: _without(task, gold[task.id]) for task in tasks if task.id in gold}


class Closed(Toolbox):
    """The tools of a toolbox, none of which is asked: every call that is right returns nothing (a closed book)."""

    def __init__(self, inner: Toolbox) -> None:
        # a cached result would be returned without `_run`
        super().__init__(list(inner.tools.values()), **{**inner.settings, "cache": None})

    async def _run(self, lane: Lane, arguments: dict[str, Any]) -> Observation:
        lane.count(calls=1)
        return NO_RESULTS


def recalled(rollout: Trajectory, before: Trajectory, right: Match = exact_match) -> bool:
    """Whether an answer is given all the same where the evidence for it is missing or says something else.

    It is when it is the gold answer of `before`, the rollout with the evidence as it is; or the answer that was given
    there, unless something that the agent received holds it: then it may have been read, then and now. An answer that
    declines does not count. A right guess counts. `right` compares with gold answers.
    """
    answer = rollout.answer or ""
    if declines(answer):
        return False
    again = exact_match(answer, [before.answer or ""]) and not holds(passages(rollout.evidence.values()), answer)
    return bool(right(answer, before.answers) or again)


def compared(
    condition: str, rollout: Trajectory, before: Trajectory, right: Match = exact_match
) -> dict[str, float | None]:
    """What a rollout under a condition shows beside that of the same question as it is, by row.

    ```
    exact_match_changed = |{right by the changed gold}| / |{questions asked in a changed world}|
    follow_rate         = |{right by the changed gold}| / |{right by the changed gold or given all the same}|
    memory_share        = |{given all the same without the gold evidence}| / |{questions that got an answer}|
    ```

    What "given all the same" means is in `recalled`. `follow_rate` is 1 - the memorization ratio of Longpre et al.
    (2021, "Entity-Based Knowledge Conflicts in Question Answering", section 4): an agent that only fails is not blamed
    for it, and has few questions behind its rate. `None` where a row says nothing of the question. `same_answer` is for
    studies: whether the answer is that of `before`, where there is one.
    """
    silent = declines(before.answer)
    same = None if silent else exact_match(rollout.answer, [before.answer or ""])
    given = recalled(rollout, before, right)
    if condition != CHANGED:
        return {SAME: same, MEMORY: None if silent else float(given)}
    follows = right(rollout.answer, rollout.answers)
    return {SAME: same, FOLLOW: 1.0 if follows else 0.0 if given else None, EM_CHANGED: follows}


def control_values(
    rollouts: Sequence[Trajectory], questions: Sequence[str], controls: Sequence[Trajectory]
) -> dict[str, list[float | None]]:
    """The rows that compare each rollout with those of the same question under a condition, by name; see `compared`.

    A row is there when its condition is; `None` where it says nothing, or its question was not asked.
    """
    by_id = {item.id: item for item in controls}
    rows: dict[str, list[float | None]] = {}
    for condition, names in ((CHANGED, (FOLLOW, EM_CHANGED)), (BLOCKED, (MEMORY,))):
        asked = [by_id.get(f"{question}@{condition}") for question in questions]
        both = zip(asked, rollouts, strict=True)
        found = [compared(condition, control, before) if control is not None else {} for control, before in both]
        if any(found):
            rows |= {name: [own.get(name) for own in found] for name in names}
    return rows


def unremembered(tasks: Iterable[Task]) -> frozenset[str] | None:
    """The questions on facts that the policy was never taught (`meta["remembered"]` is false); `None`: no task says."""
    told: Mapping[str, Any] = {task.id: task.meta["remembered"] for task in tasks if "remembered" in task.meta}
    return frozenset(id for id, known in told.items() if known is False) if told else None


def _without(task: Task, texts: Iterable[str]) -> Task:
    return msgspec.structs.replace(task, edits={**task.edits, **dict.fromkeys(texts)})
