"""Any agent on any questions: as it is, with a closed book, without its gold evidence, and in changed worlds."""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from ..errors import ConfigError
from ..rollout import Engine, ServedAgent
from ..rollout.served import FAILED
from ..tasks import Task
from ..text import exact_match
from ..trajectory import Evidence, Trajectory, read_jsonl
from . import controls
from .controls import BLOCKED, CHANGED, CLOSED, CONDITIONS, EM_CHANGED, FOLLOW, MEMORY, OPEN, SAME, Match, under
from .ledger import Ledger, same_settings
from .origins import Decorated, declines
from .report import aligned, interval
from .stats import Estimate, mean_ci, paired_difference
from .suite import run_episodes
from .writing import results_folder, write_metrics

ROLLOUTS, SETTINGS, RESULTS = "rollouts.jsonl", "settings.json", "controls.json"
RIGHT, DECORATED = "right", "decorated"
Values = dict[str, dict[Hashable, float]]  # each metric's value for each question that it says something about
_WITHOUT = {BLOCKED: "with the gold evidence blocked", CLOSED: "with tools that returned nothing"}


class Plan(NamedTuple):
    """What will be asked, each task named QUESTION@CONDITION; and by condition why some questions are left out."""

    asked: list[Task]
    left_out: dict[str, str]


class Study(msgspec.Struct, frozen=True):
    """The result of a study.

    Attributes:
        rows: by condition, estimates over questions: `right`, `answered`, `decorated`, `answer_first`; and where they
            apply `same_answer` (as in the open condition), `memory_share`, `follow_rate`.
        differences: of `right` and `decorated` to the open condition, over the questions of both.
        left_out: by condition, what was not asked and why.
        failed: rollouts that got no answer from their endpoint; they count nowhere.
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
        raise ConfigError(f"unknown condition {', '.join(unknown)}; there are: {', '.join(CONDITIONS)}")
    if not tasks:
        raise ConfigError("no questions to ask")
    if repeated := [f"{id}" for id, count in Counter(task.id for task in tasks).items() if count > 1]:
        raise ConfigError(f"questions are told apart by their ids, and these are repeated: {', '.join(repeated)}")
    reasons = {BLOCKED: "whose gold evidence is not known", CHANGED: "whose facts cannot be changed"}
    asked = {name: {task.id: task for task in tasks} for name in (OPEN, CLOSED) if name in (OPEN, *conditions)}
    if BLOCKED in conditions:
        asked[BLOCKED] = {task.id: other for task in tasks if (other := controls.blocked_in_world(task)) is not None}
        others = [task for task in tasks if task.id not in asked[BLOCKED]]
        try:
            if others and corpus is not None:
                asked[BLOCKED] |= controls.blocked_by_passages(others, corpus())
        except ConfigError as error:  # a server's passages cannot be read
            reasons[BLOCKED] = f"since {error}"
    if CHANGED in conditions:
        asked[CHANGED] = {task.id: other for task in tasks if changes and (other := changes(task)) is not None}
    gaps = {name: len(tasks) - len(own) for name, own in asked.items()}
    left_out = {name: f"{gap} of {len(tasks)} questions left out, {reasons[name]}" for name, gap in gaps.items() if gap}
    return Plan([under(name, task) for name, own in asked.items() for task in own.values()], left_out)


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
        raise ConfigError(f"{rollouts} holds something else than the rollouts of a study: {instead}")
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

    `rollouts.jsonl` is written as rollouts end, `controls.json` at the end. `settings` are what the rollouts depend on:
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
    rollouts: Iterable[Trajectory], right: Match = exact_match, left_out: Mapping[str, str] | None = None
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
            own |= controls.compared(condition, rollout, before, right)
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
        rows[condition] = {metric: mean_ci([*own.values()], bounds=(0.0, 1.0)) for metric, own in columns.items()}
        if condition != OPEN:
            pairs = {metric: (values[OPEN][metric], columns[metric]) for metric in (RIGHT, DECORATED)}
            differences[condition] = {metric: paired_difference(*pair) for metric, pair in pairs.items()}
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
