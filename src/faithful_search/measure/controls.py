"""Does the answer need the evidence? The same questions are asked where the evidence is missing,
and where it says something else.

An evaluation asks a few of its questions again (`control_tasks`). A study asks any agent any
questions:

```
tasks ─ plan ─> StudyPlan ─ run_study ─> rollouts ─ compare ─> Study
```

The conditions are *open* (the evidence as it is), *closed* (tools return nothing), *blocked*
(without the gold evidence) and *changed* (the evidence states other facts).
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from ..counterfactual import CounterfactualWorld
from ..errors import ConfigError
from ..escape import as_line
from ..evidence import supporting_passages
from ..rewards.declined import names_nothing
from ..rewards.turns import holds_answer, passages, short_answer
from ..rollout import Agent
from ..rollout.served import FAILED
from ..tasks import Task
from ..text import exact_match, normalize, title_key
from ..tools.base import NO_RESULTS, Observation
from ..tools.lane import Lane
from ..tools.toolbox import Toolbox
from ..trajectory import Evidence, ToolCall, Trajectory, read_jsonl
from ..world import bundled_world
from .evaluation import run_episodes
from .ledger import Ledger, same_settings
from .origins import Decorated
from .report import aligned, interval
from .stats import Estimate, mean_ci, paired_difference
from .writing import make_folder, write_metrics

OPEN, CLOSED, BLOCKED, CHANGED = CONDITIONS = ("open", "closed", "blocked", "changed")
FOLLOW = "follow_rate"
MEMORY = "memory_share"
EM_CHANGED = "exact_match_changed"
SAME = "same_answer"
EM_UNREMEMBERED = "exact_match_unremembered"
QUESTIONS = 100
"""How many questions an evaluation asks under each condition, which takes the tiny policy 8 seconds
of one core.
"""
Match = Callable[[str | None, Sequence[str]], float]
"""Compares an answer with gold answers and returns 0 or 1, as `text.exact_match` does."""
ROLLOUTS, SETTINGS, RESULTS = "rollouts.jsonl", "settings.json", "controls.json"
RIGHT, DECORATED = "right", "decorated"
Values = dict[str, dict[Hashable, float]]
"""By metric, the value of each question that the metric applies to."""
HEADER = (
    "condition",
    "right [95% CI]",
    "minus open [95% CI]",
    "same answer",
    "given all the same",
    "follow rate",
    "decorated",
    "n",
)
"""The header of a study's table."""
_WITHOUT = {BLOCKED: "with the gold evidence blocked", CLOSED: "with tools that returned nothing"}


def under(condition: str, task: Task) -> Task:
    """The task with the id QUESTION@CONDITION, which its rollout gets, too."""
    return msgspec.structs.replace(task, id=f"{task.id}@{condition}")


def control_tasks(tasks: Sequence[Task], limit: int = QUESTIONS) -> list[Task]:
    """The first `limit` different questions, first changed and then blocked, each `under` its
    condition. Questions that are not the bundled world's are left out.
    """
    different = {task.id: task for task in tasks}
    first = list(different.values())[:limit]
    makers = {CHANGED: CounterfactualWorld(bundled_world()).change, BLOCKED: blocked_in_world}
    controls = []
    for condition, make in makers.items():
        for task in first:
            control = make(task)
            if control is not None:
                controls.append(under(condition, control))
    return controls


def blocked_in_world(task: Task) -> Task | None:
    """The question without the evidence that states a fact of its chain, or the fact's reverse.
    `None` for a question that is not the bundled world's.
    """
    chain = task.meta.get("chain", ())
    # As sets, since a fact and its reverse have the same two ends
    facts = {frozenset((fact.get("subject"), fact.get("object"))) for fact in chain}
    texts = []
    for statement in bundled_world().statements:
        if frozenset((statement.subject, statement.object)) in facts:
            texts.append(statement.text)
    if not texts:
        return None
    return _without(task, texts)


def _without(task: Task, texts: Iterable[str]) -> Task:
    """The task in a world that lacks these texts."""
    return msgspec.structs.replace(task, edits={**task.edits, **dict.fromkeys(texts)})


def blocked_by_passages(tasks: Sequence[Task], corpus: Iterable[Evidence]) -> dict[str, Task]:
    """By id, the tasks without their gold passages. Tasks whose gold passages are not in the corpus
    are left out.

    A task names its gold passages by `supporting_ids` or `supporting_titles`. For one that names
    none, they are the passages whose title or text holds a gold answer as whole words; answers of
    yes and no do not count. The corpus is read once.
    """
    # The tasks that name a passage, by its id or title, and the phrases of those that name none
    tasks_by_source: dict[str, set[str]] = defaultdict(set)
    tasks_by_title: dict[str, set[str]] = defaultdict(set)
    phrases_by_task: dict[str, list[str]] = {}
    for task in tasks:
        for source in task.supporting_ids:
            tasks_by_source[source].add(task.id)
        for title in task.supporting_titles:
            tasks_by_title[title_key(title)].add(task.id)
        if not (task.supporting_ids or task.supporting_titles):
            phrases_by_task[task.id] = _phrases_of_answers(task)
    gold_texts: dict[str, list[str]] = defaultdict(list)
    for passage in corpus:
        gold_for = tasks_by_source.get(passage.source, set())
        gold_for = gold_for | tasks_by_title.get(title_key(passage.title), set())
        if phrases_by_task:
            words = normalize(f"{passage.title} {passage.text}", "pokee")
            text = f" {words} "
            for task_id, phrases in phrases_by_task.items():
                if any(phrase in text for phrase in phrases):
                    gold_for.add(task_id)
        for task_id in gold_for:
            gold_texts[task_id].append(passage.text)
    return {task.id: _without(task, gold_texts[task.id]) for task in tasks if task.id in gold_texts}


def _phrases_of_answers(task: Task) -> list[str]:
    """The normalised gold answers between blanks, by which they are found as whole words."""
    answers = {normalize(answer, "pokee") for answer in task.answers}
    answers -= {"", "yes", "no"}  # which stand in most passages
    return [f" {answer} " for answer in answers]


class Closed(Toolbox):
    """The tools of another toolbox, as a closed book: no tool is asked, and every valid call
    returns nothing.
    """

    def __init__(self, inner: Toolbox) -> None:
        # a cached result would be returned without `_run`
        super().__init__(list(inner.tools.values()), **{**inner.settings, "cache": None})

    async def _run(self, lane: Lane, call: ToolCall, key: str) -> Observation:
        lane.count(calls=1)
        return NO_RESULTS


def recalled(rollout: Trajectory, before: Trajectory, right: Match = exact_match) -> bool:
    """Whether the agent gives its answer although the evidence for it is missing or says something
    else.

    `before` is the rollout of the same question with the evidence as it is. An answer is recalled
    if it is a gold answer of `before`. It also is if it is the answer that was given there and no
    passage that the agent received now holds it: otherwise it may have been read. An answer that
    declines is not recalled; a right guess counts as recalled.
    """
    answer = short_answer(rollout)
    if names_nothing(rollout):
        return False
    if right(answer, before.answers):
        return True
    repeated = exact_match(answer, [short_answer(before)])
    return bool(repeated) and not holds_answer(passages(supporting_passages(rollout)), answer)


def compared(
    condition: str, rollout: Trajectory, before: Trajectory, right: Match = exact_match
) -> dict[str, float | None]:
    """The values of a rollout under a condition, beside `before`, the open rollout of the question.

    ```
    exact_match_changed = |{right by the changed gold}| / |{questions asked in a changed world}|
    follow_rate         = |{right by the changed gold}| / |{right by the changed gold or given all the same}|
    memory_share        = |{given all the same without the gold evidence}| / |{questions that got an answer}|
    ```

    `recalled` says what "given all the same" means. `follow_rate` is 1 - the memorization ratio of
    Longpre et al. (2021, "Entity-Based Knowledge Conflicts in Question Answering", section 4): an
    agent that only fails is not blamed for it, but its rate rests on few questions. `same_answer`
    is whether the answer is that of `before`. Of an answer in a box or another form, what it says
    is compared. A value is `None` where it does not apply.
    """
    is_recalled = recalled(rollout, before, right)
    same = memory = None
    if not names_nothing(before):
        same = exact_match(short_answer(rollout), [short_answer(before)])
        memory = float(is_recalled)
    if condition != CHANGED:
        return {SAME: same, MEMORY: memory}
    follows = right(short_answer(rollout), rollout.answers)
    follow_rate = None  # the answer is neither what the evidence says nor what was remembered
    if follows:
        follow_rate = 1.0
    elif is_recalled:
        follow_rate = 0.0
    return {SAME: same, FOLLOW: follow_rate, EM_CHANGED: follows}


def control_values(
    rollouts: Sequence[Trajectory], questions: Sequence[str], controls: Sequence[Trajectory]
) -> dict[str, list[float | None]]:
    """The values of `compared` by metric, each with one entry for every rollout.

    `rollouts` are the open ones and `questions` their ids; `controls` are the rollouts under the
    conditions. A metric is left out if nothing was asked under its condition. An entry is `None`
    where the metric does not apply, or the question was not asked under its condition.
    """
    by_id = {control.id: control for control in controls}
    columns: dict[str, list[float | None]] = {}
    for condition, names in ((CHANGED, (FOLLOW, EM_CHANGED)), (BLOCKED, (MEMORY,))):
        values_of_rollouts: list[dict[str, float | None]] = []
        for question, before in zip(questions, rollouts, strict=True):
            control = by_id.get(f"{question}@{condition}")
            values = {} if control is None else compared(condition, control, before)
            values_of_rollouts.append(values)
        if any(values_of_rollouts):
            for name in names:
                columns[name] = [values.get(name) for values in values_of_rollouts]
    return columns


def unremembered(tasks: Iterable[Task]) -> frozenset[str] | None:
    """The ids of questions on facts that the policy was never taught (`meta["remembered"]` is
    false); `None` if no task says whether it was.
    """
    says = [task for task in tasks if "remembered" in task.meta]
    if not says:
        return None
    return frozenset(task.id for task in says if task.meta["remembered"] is False)


class StudyPlan(NamedTuple):
    """The tasks of a study, condition by condition, each with the id QUESTION@CONDITION; and by
    condition why some questions are left out.
    """

    tasks: list[Task]
    left_out: dict[str, str]


class Study(msgspec.Struct, frozen=True):
    """The result of a study.

    Attributes:
        rows: estimates over questions, by condition and metric: `right`, `answered`, `decorated`,
            `answer_first`; and where they apply `same_answer`, `memory_share`, `follow_rate`
            (`compared`).
        differences: `right` and `decorated` minus the open condition, over the questions that were
            asked under both.
        sentence: the result in words.
        left_out: by condition, which questions were not asked and why.
        failed: why rollouts got no answer from their endpoint, by question and condition. They
            count nowhere.
    """

    rows: dict[str, dict[str, Estimate]]
    differences: dict[str, dict[str, Estimate]]
    sentence: str
    left_out: dict[str, str]
    failed: dict[str, str] = {}

    def __str__(self) -> str:
        lines = [list(HEADER)]
        for condition, row in self.rows.items():
            change = self.differences.get(condition, {}).get(RIGHT)
            cells = [
                condition,
                interval(row[RIGHT]),
                interval(change, sign=True),
                interval(row.get(SAME)),
                interval(row.get(MEMORY)),
                interval(row.get(FOLLOW)),
                interval(row.get(DECORATED)),
                str(row[RIGHT].n),
            ]
            lines.append(cells)
        notes = [as_line(f"{condition}: {why}") for condition, why in self.left_out.items()]
        return "\n".join([aligned(lines), "", self.sentence, *notes])


def plan(
    tasks: Sequence[Task],
    conditions: Sequence[str] = CONDITIONS,
    corpus: Callable[[], Iterable[Evidence]] | None = None,
    changes: Callable[[Task], Task | None] | None = None,
) -> StudyPlan:
    """The tasks of a study: the questions as they are, and changed for each of the conditions.

    Args:
        tasks: the questions.
        conditions: beside the open one, which is always there.
        corpus: opens the passages that the tools search, to block the gold ones. It is not called
            where all questions are the bundled world's.
        changes: makes the changed task, as `CounterfactualWorld.change` does.

    Raises `ConfigError` for an unknown condition, no question, or a repeated id.
    """
    unknown = [name for name in conditions if name not in CONDITIONS]
    if unknown:
        raise ConfigError(
            f"unknown condition {', '.join(unknown)}; there are: {', '.join(CONDITIONS)}"
        )
    if not tasks:
        raise ConfigError("no questions to ask")
    times = Counter(task.id for task in tasks)
    repeated = [str(id) for id, count in times.items() if count > 1]
    if repeated:
        raise ConfigError(
            f"questions are told apart by their ids, and these are repeated: {', '.join(repeated)}"
        )
    planned: dict[str, Iterable[Task]] = {OPEN: tasks}
    reasons = {CHANGED: "whose facts cannot be changed"}
    if CLOSED in conditions:
        planned[CLOSED] = tasks
    if BLOCKED in conditions:
        planned[BLOCKED], reasons[BLOCKED] = _blocked(tasks, corpus)
    if CHANGED in conditions:
        changed = [changes(task) for task in tasks] if changes else []
        planned[CHANGED] = [task for task in changed if task is not None]
    study_tasks = []
    left_out = {}
    for condition, tasks_of_condition in planned.items():
        controls = [under(condition, task) for task in tasks_of_condition]
        study_tasks += controls
        gap = len(tasks) - len(controls)
        if gap:
            left_out[condition] = f"{gap} of {len(tasks)} questions left out, {reasons[condition]}"
    return StudyPlan(study_tasks, left_out)


def _blocked(
    tasks: Sequence[Task], corpus: Callable[[], Iterable[Evidence]] | None
) -> tuple[list[Task], str]:
    """The tasks that can be asked without their gold evidence, and why the others cannot."""
    reason = "whose gold evidence is not known"
    blocked = {task.id: blocked_in_world(task) for task in tasks}
    controls = [control for control in blocked.values() if control is not None]
    remaining = [task for task in tasks if blocked[task.id] is None]
    if remaining and corpus is not None:
        try:
            controls += blocked_by_passages(remaining, corpus()).values()
        except ConfigError as error:  # a server's passages cannot be read
            reason = f"since {error}"
    return controls, reason


def finished_rollouts(folder: Path, settings: Mapping[str, Any]) -> set[str]:
    """The ids of the rollouts that an earlier run left in the folder.

    Raises `ConfigError` when that run had other settings, or the file is not a study's.
    """
    rollouts = folder / ROLLOUTS
    instead = "give another --out, or --overwrite"
    same_settings(folder / SETTINGS, settings, instead, ledger=rollouts)
    if not rollouts.exists():
        return set()
    ids = {rollout.id for rollout in read_jsonl(rollouts, on_error=lambda number, error: None)}
    # half a line alone is of a run that was killed at its first rollout
    if not all("@" in id for id in ids) or (not ids and b"\n" in rollouts.read_bytes()):
        raise ConfigError(
            f"{rollouts} holds something else than the rollouts of a study: {instead}"
        )
    return ids


def run_study(
    agents: Mapping[str, Agent],
    study_plan: StudyPlan,
    folder: Path,
    settings: Mapping[str, Any],
    right: Match = exact_match,
    anew: bool = False,
) -> Study:
    """Run the missing episodes and compute the study.

    Args:
        agents: by condition, who answers.
        study_plan: what is asked.
        folder: for `rollouts.jsonl`, written as rollouts end, and `controls.json`, written last.
        settings: what the rollouts depend on. A folder holds rollouts of the same settings only.
        right: compares answers with gold answers.
        anew: throw away what the folder holds.

    Raises `ConfigError` as `finished_rollouts` does, and when the endpoint answered no question;
    `DataError` when another run writes to the folder.
    """
    file = make_folder(folder) / ROLLOUTS
    with Ledger(file, "evaluation", anew):  # locked: another run may own the folder
        finished_rollouts(folder, settings)
        write_metrics(folder / SETTINGS, settings)
    rollouts: list[Trajectory] = []
    for condition, tasks in groupby(study_plan.tasks, key=lambda task: task.id.rpartition("@")[2]):
        # without token ids, which no metric here reads and which are most of a rollout's bytes
        rollouts += run_episodes(agents[condition], list(tasks), condition, file, tokens=False)
    result = compare(rollouts, right, study_plan.left_out)
    write_metrics(folder / RESULTS, {**msgspec.to_builtins(result), "settings": dict(settings)})
    return result


def compare(
    rollouts: Iterable[Trajectory],
    right: Match = exact_match,
    left_out: Mapping[str, str] | None = None,
) -> Study:
    """The study of rollouts that exist already, each with the id QUESTION@CONDITION.

    Raises `ConfigError` when no open rollout got an answer from its endpoint.
    """
    values: dict[str, Values] = {}  # by condition
    failed: dict[str, str] = {}
    done = {rollout.id: rollout for rollout in rollouts}
    for id, rollout in done.items():
        question, _, condition = id.rpartition("@")
        if rollout.stop_reason == FAILED:
            failed[f"{question} ({condition})"] = rollout.meta["why"]
            continue
        values_of_rollout: dict[str, float | None] = {
            RIGHT: right(short_answer(rollout), rollout.answers),
            "answered": float(not names_nothing(rollout)),
            DECORATED: Decorated().score(rollout).value,
            "answer_first": Decorated("answer_first").score(rollout).value,
        }
        before = done.get(f"{question}@{OPEN}")
        if condition != OPEN and before is not None and before.stop_reason != FAILED:
            values_of_rollout |= compared(condition, rollout, before, right)
            values_of_rollout.pop(EM_CHANGED, None)  # which is `RIGHT` here
        for metric, value in values_of_rollout.items():
            column = values.setdefault(condition, {}).setdefault(metric, {})
            if value is not None:
                column[question] = value
    if OPEN not in values:
        why = next(iter(failed.values()), "")
        raise ConfigError(f"no question could be asked: {why}; the same command tries again")
    rows = {}
    differences = {}
    for condition, columns in values.items():
        rows[condition] = {metric: _mean(column) for metric, column in columns.items()}
        if condition != OPEN:
            differences[condition] = {
                metric: paired_difference(values[OPEN][metric], columns[metric])
                for metric in (RIGHT, DECORATED)
            }
    return Study(
        rows=rows,
        differences=differences,
        sentence=_sentence(values),
        left_out=dict(left_out or {}),
        failed=failed,
    )


def _mean(column: Mapping[Hashable, float]) -> Estimate:
    """The mean over questions of values from 0 to 1."""
    return mean_ci(list(column.values()), bounds=(0.0, 1.0))


def _sentence(values: Mapping[str, Values]) -> str:
    """The result in words: how many answers did without the evidence, and how many followed it."""
    parts = []
    if BLOCKED in values:
        parts.append(_right_again(values, BLOCKED))
    elif CLOSED in values:
        parts.append(_right_again(values, CLOSED))
    follows = list(values.get(CHANGED, {}).get(FOLLOW, {}).values())
    if follows:
        followed = round(sum(follows))
        parts.append(
            f"Where the evidence said something else, {followed} of {len(follows)} answers changed "
            f"with it and {len(follows) - followed} stayed as they were (answers that did neither "
            "are not counted)."
        )
    return " ".join(parts) or "Nothing to compare: ask under another condition than open."


def _right_again(values: Mapping[str, Values], condition: str) -> str:
    """How many of the right answers were right under a condition without the evidence, too."""
    without_evidence = values[condition][RIGHT]
    right = 0
    again = 0
    for question, value in values[OPEN][RIGHT].items():
        if value == 1 and question in without_evidence:
            right += 1
            again += without_evidence[question] == 1
    if not right:
        return "No answer was right, so none can be missed without evidence."
    return (
        f"{again / right:.0%} of the right answers were given without the evidence too: "
        f"{again} of {right} were right {_WITHOUT[condition]}."
    )
