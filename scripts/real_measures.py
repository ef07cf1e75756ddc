"""What `faithful-search controls` recorded of a policy on real questions, as an evaluation: whether
it is right, cites the gold pages, follows changed evidence, and guesses without any.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from msgspec import structs
from real_questions import GUESSABLE, KINDS, kind_of

from faithful_search.measure.controls import (
    BLOCKED,
    CHANGED,
    EM_CHANGED,
    FOLLOW,
    OPEN,
    compared,
)
from faithful_search.measure.evaluation import Evaluation
from faithful_search.measure.gates import SHARE
from faithful_search.measure.gold_citations import CitesGold
from faithful_search.measure.origins import Decorated
from faithful_search.rewards import Correctness, Format, Reward
from faithful_search.tasks import Task
from faithful_search.trajectory import Trajectory, read_jsonl

EM = "exact_match"
BLOCKED_GUESS = "exact_match_guessable_blocked"
PRIMARY = (
    "cites_gold",
    BLOCKED_GUESS,
    FOLLOW,
    EM,
    *(f"{EM}_{kind}" for kind in KINDS),
)
"""The measures that were fixed beforehand; docs/real.md says what is expected of them."""
SECONDARY = (EM_CHANGED, "answer_first", "valid_format", "calls")
MEASURES = (*PRIMARY, *SECONDARY)
Values = Mapping[str, float | None]
"""The values of one question, by measure."""


def evaluation_of(rollouts: Path | Iterable[Trajectory], tasks: Sequence[Task]) -> Evaluation:
    """The values of the questions by measure, `None` where a measure does not apply.

    `rollouts` are those of `faithful-search controls`, whose ids are QUESTION@CONDITION; the
    conditions are open, blocked and changed. Questions that were not asked are left out.

    ```
    exact_match_KIND               of the questions of a kind, see `real_questions.kind_of`
    exact_match_guessable_blocked  without the gold pages, of questions that can be guessed
    ```
    """
    if isinstance(rollouts, Path):
        rollouts = read_jsonl(rollouts)
    by_id = {rollout.id: rollout for rollout in rollouts}
    rewards: dict[str, Reward] = {
        EM: Correctness(),
        "answer_first": Decorated("answer_first"),
        "valid_format": Format(),
        "cites_gold": CitesGold.of(tasks),
    }
    asked = [task for task in tasks if f"{task.id}@{OPEN}" in by_id]
    rows: list[Values] = []
    for task in asked:
        rollout = structs.replace(by_id[f"{task.id}@{OPEN}"], id=task.id)
        row = _open_values(rollout, rewards)
        for kind in KINDS:
            row[f"{EM}_{kind}"] = None
        row[f"{EM}_{kind_of(task)}"] = row[EM]
        rows.append(row | _control_values(task, by_id))
    columns: dict[str, list[float | None]] = {}
    for name in MEASURES:
        columns[name] = [row[name] for row in rows]
    return Evaluation(
        rows={},
        questions=[task.id for task in asked],
        values=columns,
        tool_calls={},
        bounds={name: SHARE for name in MEASURES if name != "calls"},
    )


def _open_values(rollout: Trajectory, rewards: Mapping[str, Reward]) -> dict[str, float | None]:
    values = {name: reward.score(rollout).value for name, reward in rewards.items()}
    values["calls"] = float(sum(step.call is not None for step in rollout.steps))
    return values


def _control_values(task: Task, by_id: Mapping[str, Trajectory]) -> dict[str, float | None]:
    """The values without the gold pages, and in a changed world."""
    values: dict[str, float | None] = dict.fromkeys((BLOCKED_GUESS, FOLLOW, EM_CHANGED))
    blocked = by_id.get(f"{task.id}@{BLOCKED}")
    if blocked is not None and kind_of(task) in GUESSABLE:
        values[BLOCKED_GUESS] = Correctness().score(blocked).value
    changed = by_id.get(f"{task.id}@{CHANGED}")
    if changed is not None:
        in_changed_world = compared(CHANGED, changed, by_id[f"{task.id}@{OPEN}"])
        values[FOLLOW] = in_changed_world[FOLLOW]
        values[EM_CHANGED] = in_changed_world[EM_CHANGED]
    return values
