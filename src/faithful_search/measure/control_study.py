"""Any agent on any questions: as it is, with a closed book, without its gold evidence, and in changed worlds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import msgspec

from ..errors import ConfigError
from ..rewards import Reward
from ..rollout.served import FAILED
from ..tasks import Task
from ..text import exact_match
from ..trajectory import Evidence, Trajectory, read_jsonl
from . import controls
from .controls import BLOCKED, CHANGED, CLOSED, CONDITIONS, FOLLOW, MEMORY, OPEN, Changes, Match
from .decoration import Decorated, declines
from .ledger import Ledger, same_as_written
from .report import aligned, interval
from .stats import Estimate, mean_ci, paired_difference
from .workers import progress_bar
from .writing import results_folder, write_result

ROLLOUTS, SETTINGS, RESULTS = "rollouts.jsonl", "settings.json", "controls.json"
RIGHT, SAME = "right", "same_answer"
_WITHOUT = {BLOCKED: "with the gold evidence blocked", CLOSED: "with tools that returned nothing"}


class Agent(Protocol):
    """Whatever runs episodes: `rollout.Engine`, `rollout.ServedAgent`."""

    def run(self, tasks: Iterable[Task], on_end: Callable[[Trajectory], Any] | None = None) -> list[Trajectory]:
        """One episode per task, in the tasks' order; `on_end` sees each as soon as it ends."""
        ...


class Plan(NamedTuple):
    """What will be asked, by condition and question, and why some questions or conditions are left out."""

    asked: dict[str, dict[str, Task]]
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
        """The table, a row a condition, and the sentence."""
        header = "condition|right [95% CI]|minus open [95% CI]|same answer|given all the same|follow rate|decorated|n"
        cells = [header.split("|")]
        for condition, row in self.rows.items():
            shown = [interval(row.get(name)) for name in (SAME, MEMORY, FOLLOW, "decorated")]
            change = interval(self.differences.get(condition, {}).get(RIGHT), sign=True)
            cells.append([condition, interval(row[RIGHT]), change, *shown, str(row[RIGHT].n)])
        notes = [f"{condition}: {why}" for condition, why in self.left_out.items()]
        return "\n".join([aligned(cells), "", self.sentence, *notes])


def plan(
    tasks: Sequence[Task],
    conditions: Sequence[str] = CONDITIONS,
    corpus: Callable[[], Iterable[Evidence]] | None = None,
    changes: Changes | None = None,
) -> Plan:
    """What the conditions ask of these questions, the open one always.

    `corpus` opens the passages that the tools search, to block those that are gold; it is not called where the
    questions are the bundled world's.

    Raises:
        ConfigError: for an unknown condition, no question, or a repeated id.
    """
    unknown = [name for name in conditions if name not in CONDITIONS]
    if unknown:
        raise ConfigError(f"unknown condition {', '.join(unknown)}; there are: {', '.join(CONDITIONS)}")
    if not tasks:
        raise ConfigError("no questions to ask")
    if repeated := [f"{id}" for id, count in Counter(task.id for task in tasks).items() if count > 1]:
        raise ConfigError(f"questions are told apart by their ids, and these are repeated: {', '.join(repeated)}")
    reasons = {BLOCKED: "whose gold evidence is not known", CHANGED: "whose facts cannot be changed"}
    asked = {OPEN: {task.id: task for task in tasks}}
    if CLOSED in conditions:
        asked[CLOSED] = dict(asked[OPEN])
    if BLOCKED in conditions:
        asked[BLOCKED] = {task.id: other for task in tasks if (other := controls.blocked_in_world(task)) is not None}
        others = [task for task in tasks if task.id not in asked[BLOCKED]]
        try:
            if others and corpus is not None:
                asked[BLOCKED] |= controls.blocked_by_passages(others, corpus())
        except ConfigError as error:  # a server's passages cannot be read
            reasons[BLOCKED] = f"since {error}"
    if CHANGED in conditions:
        found = {task.id: changes.change(task) for task in tasks} if changes is not None else {}
        asked[CHANGED] = {id: task for id, task in found.items() if task is not None}
    gaps = {name: len(tasks) - len(own) for name, own in asked.items()}
    left_out = {name: f"{gap} of {len(tasks)} questions left out, {reasons[name]}" for name, gap in gaps.items() if gap}
    return Plan({name: own for name, own in asked.items() if own}, left_out)


def kept(folder: Path, settings: Mapping[str, Any]) -> dict[tuple[str, str], Trajectory]:
    """The rollouts that an earlier run left in the folder, by condition and question.

    Raises:
        ConfigError: when it had other settings, or the rollouts there are not a study's.
    """
    rollouts, instead = folder / ROLLOUTS, "give another --out, or --overwrite"
    if not rollouts.exists() or not rollouts.stat().st_size:
        return {}
    if not (folder / SETTINGS).exists():
        raise ConfigError(f"{folder} holds rollouts, but no {SETTINGS} that says how they were made: {instead}")
    same_as_written(folder / SETTINGS, "rollouts", settings, instead)
    try:
        lines = read_jsonl(rollouts, on_error=lambda number, error: None)
        found = {(item.meta["condition"], item.meta["question"]): item for item in lines}
    except KeyError as error:
        raise ConfigError(f"{rollouts} holds rollouts of something else: {instead}") from error
    if not found and b"\n" in rollouts.read_bytes():  # half a line alone is of a run killed at its first rollout
        raise ConfigError(f"{rollouts} holds no rollout of a study: {instead}")
    return found


def run_study(
    agents: Mapping[str, Agent],
    found: Plan,
    folder: Path,
    settings: Mapping[str, Any],
    right: Match = exact_match,
    anew: bool = False,
) -> Study:
    """Ask what is not there yet, and compare.

    `rollouts.jsonl` is written as rollouts end, `controls.json` at the end. `settings` are what the rollouts depend on:
    a folder holds those of one kind; `anew` throws away what it holds.

    Raises:
        ConfigError: as `kept`; when no question was answered by the endpoint.
    """
    failed: dict[str, str] = {}
    with Ledger(results_folder(folder) / ROLLOUTS, "study") as ledger:  # first, since another run may own the folder
        done = {} if anew else kept(folder, settings)
        if anew:
            ledger.clear()
        ledger.cut()  # the line that an interrupted run wrote half
        write_result(folder / SETTINGS, settings)
        for condition, tasks in found.asked.items():
            missing = [task for id, task in tasks.items() if (condition, id) not in done]
            if not missing:
                continue
            with progress_bar(total=len(missing), desc=condition, unit="rollout") as bar:

                def keep(rollout: Trajectory, condition: str = condition, bar: Any = bar) -> None:
                    about = {**rollout.meta, "condition": condition, "question": rollout.id}
                    # without token ids, which no metric here reads and which are most of a rollout's bytes
                    done[condition, rollout.id] = rollout = msgspec.structs.replace(rollout, tokens=None, meta=about)
                    ledger.append([f"{rollout.to_json()}\n".encode()])
                    bar.update(1)

                ended = agents[condition].run(missing, keep)
            failed |= {f"{own.id} ({condition})": own.meta["why"] for own in ended if own.stop_reason == FAILED}
    result = compare(found, done, right, failed)
    write_result(folder / RESULTS, {**msgspec.to_builtins(result), "settings": dict(settings)})
    return result


def compare(
    found: Plan,
    done: Mapping[tuple[str, str], Trajectory],
    right: Match = exact_match,
    failed: Mapping[str, str] | None = None,
) -> Study:
    """The study of rollouts that exist already, by condition and question. Errors as those of `run_study`."""
    values = {condition: _values(condition, list(tasks), done, right) for condition, tasks in found.asked.items()}
    if not values[OPEN][RIGHT]:
        why = next(iter((failed or {}).values()), "")
        raise ConfigError(f"no question could be asked: {why}; the same command tries again")
    rows, differences = {}, {}
    for name, of in values.items():
        rows[name] = {metric: mean_ci([*own.values()], bounds=(0.0, 1.0)) for metric, own in of.items()}
        if name != OPEN:
            metrics = (RIGHT, "decorated")
            differences[name] = {metric: paired_difference(values[OPEN][metric], of[metric]) for metric in metrics}
    return Study(rows, differences, _sentence(values), found.left_out, dict(failed or {}))


def _values(
    condition: str, questions: Iterable[str], done: Mapping[tuple[str, str], Trajectory], right: Match
) -> dict[str, dict[Any, float]]:
    """Each metric's value for each question that it says something about."""
    shown: dict[str, Reward] = {"decorated": Decorated(), "answer_first": Decorated("answer_first")}
    beside = () if condition == OPEN else (SAME, FOLLOW if condition == CHANGED else MEMORY)
    found: dict[str, dict[Any, float | None]] = {name: {} for name in (RIGHT, "answered", *shown, *beside)}
    for id in questions:
        rollout, before = done.get((condition, id)), done.get((OPEN, id))
        if rollout is None:
            continue
        found[RIGHT][id] = right(rollout.answer, rollout.answers)
        found["answered"][id] = float(not declines(rollout.answer))
        for name, reward in shown.items():
            found[name][id] = reward.measure(reward.score(rollout))
        if beside and before is not None:
            same = None if declines(before.answer) else float(controls.same_answer(rollout, before))
            own = {SAME: same, **controls.compared(condition, rollout, before, right)}
            for name in beside:
                found[name][id] = own[name]
    return {name: {id: value for id, value in own.items() if value is not None} for name, own in found.items()}


def _sentence(values: Mapping[str, Mapping[str, Mapping[Any, float]]]) -> str:
    parts = []
    right = values[OPEN][RIGHT]
    for condition in [name for name in (BLOCKED, CLOSED) if name in values][:1]:
        here = values[condition][RIGHT]
        known = [here[id] for id, value in right.items() if value == 1 and id in here]
        given = known.count(1)
        parts.append(
            f"{given / len(known):.0%} of the right answers were given without the evidence too: {given} of "
            f"{len(known)} were right {_WITHOUT[condition]}."
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
