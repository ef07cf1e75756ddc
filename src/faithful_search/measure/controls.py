"""Does the answer need the evidence? The same questions where it is missing, and where it says something else.

Evaluations ask a few of their questions again (`control_tasks`); a `Study` asks any agent any questions.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from ..counterfactual import CounterfactualWorld
from ..errors import ConfigError
from ..rewards.turns import passages
from ..rollout import Engine, ServedAgent
from ..rollout.served import FAILED
from ..tasks import Task
from ..text import exact_match, normalize
from ..tools.base import NO_RESULTS, Observation
from ..tools.lane import Lane
from ..tools.toolbox import Toolbox
from ..trajectory import Evidence, Trajectory, read_jsonl
from ..world import bundled_world
from .evaluation import run_episodes
from .ledger import Ledger, same_settings
from .origins import Decorated, declines, holds
from .report import aligned, interval
from .stats import Estimate, mean_ci, paired_difference
from .writing import results_folder, write_metrics

OPEN, CLOSED, BLOCKED, CHANGED = CONDITIONS = ("open", "closed", "blocked", "changed")
FOLLOW, MEMORY, EM_CHANGED, SAME = (
    "follow_rate",
    "memory_share",
    "exact_match_changed",
    "same_answer",
)
EM_UNREMEMBERED = "exact_match_unremembered"
QUESTIONS = 100  # an evaluation also asks under the conditions: with the tiny policy 8 seconds of a core each
Match = Callable[[str | None, Sequence[str]], float]
"""Compares an answer with gold answers: `text.exact_match`, `text.sub_exact_match`."""
ROLLOUTS, SETTINGS, RESULTS = "rollouts.jsonl", "settings.json", "controls.json"
RIGHT, DECORATED = "right", "decorated"
Values = dict[
    str, dict[Hashable, float]
]  # each metric's value for each question that it says something about
_WITHOUT = {BLOCKED: "with the gold evidence blocked", CLOSED: "with tools that returned nothing"}


def under(condition: str, task: Task) -> Task:
    """The task with an id of its own, QUESTION@CONDITION, which its rollout has, too."""
    return msgspec.structs.replace(task, id=f"{task.id}@{condition}")


def control_tasks(tasks: Sequence[Task], limit: int = QUESTIONS) -> list[Task]:
    """The first `limit` different questions changed and blocked, each `under` its condition, as far as they are the
    bundled world's.
    """
    first = list({task.id: task for task in tasks}.values())[:limit]
    made = {CHANGED: CounterfactualWorld(bundled_world()).change, BLOCKED: blocked_in_world}
    return [
        under(name, other)
        for name, make in made.items()
        for task in first
        if (other := make(task)) is not None
    ]


def blocked_in_world(task: Task) -> Task | None:
    """A question of the bundled world without the evidence that states the facts of its chain, or their reverse."""
    pairs = {
        frozenset((fact.get("subject"), fact.get("object"))) for fact in task.meta.get("chain", ())
    }
    texts = [
        item.text
        for item in bundled_world().statements
        if frozenset((item.subject, item.object)) in pairs
    ]
    return _without(task, texts) if texts else None


def _without(task: Task, texts: Iterable[str]) -> Task:
    return msgspec.structs.replace(task, edits={**task.edits, **dict.fromkeys(texts)})


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

    async def _run(self, lane: Lane, arguments: dict[str, Any], key: str) -> Observation:
        lane.count(calls=1)
        return NO_RESULTS


def recalled(rollout: Trajectory, before: Trajectory, right: Match = exact_match) -> bool:
    """Whether an answer is given all the same where the evidence for it is missing or says something else.

    It is when it is the gold answer of `before`, the rollout with the evidence as it is; or the answer that was given
    there, unless something that the agent received holds it: then it may have been read, then and now. An answer that
    declines does not count. A right guess counts.
    """
    answer = rollout.answer or ""
    if declines(answer):
        return False
    again = exact_match(answer, [before.answer or ""]) and not holds(
        passages(rollout.evidence.values()), answer
    )
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
    for it, and has few questions behind its rate. `None` where a row says nothing of the question. `same_answer` is
    whether the answer is that of `before`.
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
        found = [
            compared(condition, control, before) if control is not None else {}
            for control, before in both
        ]
        if any(found):
            rows |= {name: [own.get(name) for own in found] for name in names}
    return rows


def unremembered(tasks: Iterable[Task]) -> frozenset[str] | None:
    """The questions on facts that the policy was never taught (`meta["remembered"]` is false); `None`: no task says."""
    told: Mapping[str, Any] = {
        task.id: task.meta["remembered"] for task in tasks if "remembered" in task.meta
    }
    return frozenset(id for id, known in told.items() if known is False) if told else None


class Plan(NamedTuple):
    """What will be asked, each task named QUESTION@CONDITION; and by condition why some questions are left out."""

    asked: list[Task]
    left_out: dict[str, str]


class Study(msgspec.Struct, frozen=True):
    """The result of a study.

    `rows` are by condition, estimates over questions: `right`, `answered`, `decorated`, `answer_first`; and where they
    apply `same_answer` (as in the open condition), `memory_share`, `follow_rate`. `differences` are those of `right`
    and `decorated` to the open condition, over the questions of both; `left_out` says by condition what was not asked
    and why, `failed` which rollouts got no answer from their endpoint: they count nowhere.
    """

    rows: dict[str, dict[str, Estimate]]
    differences: dict[str, dict[str, Estimate]]
    sentence: str
    left_out: dict[str, str]
    failed: dict[str, str] = {}

    def __str__(self) -> str:
        header = "condition|right [95% CI]|minus open [95% CI]|same answer|given all the same|follow rate|decorated|n"
        cells = [header.split("|")]
        for condition, row in self.rows.items():
            shown = [interval(row.get(name)) for name in (SAME, MEMORY, FOLLOW, DECORATED)]
            change = interval(self.differences.get(condition, {}).get(RIGHT), sign=True)
            cells.append([condition, interval(row[RIGHT]), change, *shown, str(row[RIGHT].n)])
        notes = [f"{condition}: {why}" for condition, why in self.left_out.items()]
        return "\n".join([aligned(cells), "", self.sentence, *notes])


def plan(
    tasks: Sequence[Task],
    conditions: Sequence[str] = CONDITIONS,
    corpus: Callable[[], Iterable[Evidence]] | None = None,
    changes: Callable[[Task], Task | None] | None = None,
) -> Plan:
    """What the conditions ask of these questions, the open one always.

    `corpus` opens the passages that the tools search, to block those that are gold; it is not called where the
    questions are the bundled world's. `changes` is as `CounterfactualWorld.change`. Raises `ConfigError` for an unknown
    condition, no question, or a repeated id.
    """
    if unknown := [name for name in conditions if name not in CONDITIONS]:
        raise ConfigError(
            f"unknown condition {', '.join(unknown)}; there are: {', '.join(CONDITIONS)}"
        )
    if not tasks:
        raise ConfigError("no questions to ask")
    if repeated := [
        f"{id}" for id, count in Counter(task.id for task in tasks).items() if count > 1
    ]:
        raise ConfigError(
            f"questions are told apart by their ids, and these are repeated: {', '.join(repeated)}"
        )
    reasons = {
        BLOCKED: "whose gold evidence is not known",
        CHANGED: "whose facts cannot be changed",
    }
    asked = {
        name: {task.id: task for task in tasks}
        for name in (OPEN, CLOSED)
        if name in (OPEN, *conditions)
    }
    if BLOCKED in conditions:
        asked[BLOCKED] = {
            task.id: other for task in tasks if (other := blocked_in_world(task)) is not None
        }
        others = [task for task in tasks if task.id not in asked[BLOCKED]]
        try:
            if others and corpus is not None:
                asked[BLOCKED] |= blocked_by_passages(others, corpus())
        except ConfigError as error:  # a server's passages cannot be read
            reasons[BLOCKED] = f"since {error}"
    if CHANGED in conditions:
        asked[CHANGED] = {
            task.id: other for task in tasks if changes and (other := changes(task)) is not None
        }
    gaps = {name: len(tasks) - len(own) for name, own in asked.items()}
    left_out = {
        name: f"{gap} of {len(tasks)} questions left out, {reasons[name]}"
        for name, gap in gaps.items()
        if gap
    }
    return Plan(
        [under(name, task) for name, own in asked.items() for task in own.values()], left_out
    )


def kept(folder: Path, settings: Mapping[str, Any]) -> set[str]:
    """The ids of the rollouts that an earlier run left in the folder.

    Raises `ConfigError` when it had other settings, or when they are not a study's.
    """
    rollouts, instead = folder / ROLLOUTS, "give another --out, or --overwrite"
    same_settings(folder / SETTINGS, settings, instead, ledger=rollouts)
    if not rollouts.exists():
        return set()
    found = {item.id for item in read_jsonl(rollouts, on_error=lambda number, error: None)}
    # half a line alone is of a run that was killed at its first rollout
    if not all("@" in id for id in found) or (not found and b"\n" in rollouts.read_bytes()):
        raise ConfigError(
            f"{rollouts} holds something else than the rollouts of a study: {instead}"
        )
    return found


def run_study(
    agents: Mapping[str, Engine | ServedAgent],
    found: Plan,
    folder: Path,
    settings: Mapping[str, Any],
    right: Match = exact_match,
    anew: bool = False,
) -> Study:
    """Ask what is not there yet, and compare.

    `rollouts.jsonl` is written as rollouts end, `json` at the end. `settings` are what the rollouts depend on:
    a folder holds those of one kind; `anew` throws away what it holds. Raises `ConfigError` as `kept`, and when no
    question was answered by the endpoint, `DataError` when another run writes there.
    """
    file = results_folder(folder) / ROLLOUTS
    with Ledger(file, "evaluation", anew):  # locked: another run may own the folder
        kept(folder, settings)
        write_metrics(folder / SETTINGS, settings)
    rollouts: list[Trajectory] = []
    for condition, tasks in groupby(found.asked, key=lambda task: task.id.rpartition("@")[2]):
        # without token ids, which no metric here reads and which are most of a rollout's bytes
        rollouts += run_episodes(agents[condition], list(tasks), condition, file, tokens=False)
    result = compare(rollouts, right, found.left_out)
    write_metrics(folder / RESULTS, {**msgspec.to_builtins(result), "settings": dict(settings)})
    return result


def compare(
    rollouts: Iterable[Trajectory],
    right: Match = exact_match,
    left_out: Mapping[str, str] | None = None,
) -> Study:
    """The study of rollouts that exist already, each of the id QUESTION@CONDITION. Errors as those of `run_study`."""
    values: dict[str, Values] = {}
    failed: dict[str, str] = {}
    done = {rollout.id: rollout for rollout in rollouts}
    for id, rollout in done.items():
        question, _, condition = id.rpartition("@")
        if rollout.stop_reason == FAILED:
            failed[f"{question} ({condition})"] = rollout.meta["why"]
            continue
        own: dict[str, float | None] = {
            RIGHT: right(rollout.answer, rollout.answers),
            "answered": float(not declines(rollout.answer)),
            DECORATED: Decorated().score(rollout).value,
            "answer_first": Decorated("answer_first").score(rollout).value,
        }
        before = done.get(f"{question}@{OPEN}")
        if condition != OPEN and before is not None and before.stop_reason != FAILED:
            own |= compared(condition, rollout, before, right)
            own.pop(EM_CHANGED, None)  # which is `RIGHT` here
        for metric, value in own.items():
            column = values.setdefault(condition, {}).setdefault(metric, {})
            if value is not None:
                column[question] = value
    if OPEN not in values:
        why = next(iter(failed.values()), "")
        raise ConfigError(f"no question could be asked: {why}; the same command tries again")
    rows, differences = {}, {}
    for condition, columns in values.items():
        rows[condition] = {
            metric: mean_ci([*own.values()], bounds=(0.0, 1.0)) for metric, own in columns.items()
        }
        if condition != OPEN:
            pairs = {
                metric: (values[OPEN][metric], columns[metric]) for metric in (RIGHT, DECORATED)
            }
            differences[condition] = {
                metric: paired_difference(*pair) for metric, pair in pairs.items()
            }
    return Study(rows, differences, _sentence(values), dict(left_out or {}), failed)


def _sentence(values: Mapping[str, Values]) -> str:
    parts = []
    if without := next((name for name in (BLOCKED, CLOSED) if name in values), None):
        here = values[without][RIGHT]
        known = [here[id] for id, value in values[OPEN][RIGHT].items() if value == 1 and id in here]
        given = known.count(1)
        parts.append(
            f"{given / len(known):.0%} of the right answers were given without the evidence too: {given} of "
            f"{len(known)} were right {_WITHOUT[without]}."
            if known
            else "No answer was right, so none can be missed without evidence."
        )
    told = list(values.get(CHANGED, {}).get(FOLLOW, {}).values())
    if told:
        parts.append(
            f"Where the evidence said something else, {sum(told) / len(told):.0%} of the answers changed with it, the "
            f"others were given all the same (of {len(told)} that did one or the other)."
        )
    return " ".join(parts) or "Nothing to compare: ask under another condition than open."
