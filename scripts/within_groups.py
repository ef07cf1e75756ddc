"""Which habits R_pt strengthens in training: its correlation, within the rollouts of one question,
with answering first and with being right.

```
python scripts/within_groups.py outputs/study/the_paper_s_form_*
python scripts/within_groups.py outputs/pou --steps 5
```

Each folder is a run of `recipes/pou.py` with R_pt (`evidence_sensitivity`). Only the rollouts of
its first steps are read, in which the policy still has both habits: some rollouts state their
answer before any evidence that holds it (`answer_first`), others read first. Rollouts without a
verdict that was probed are left out, since their R_pt is 0 whatever their habit.

A group is the rollouts on one question in one step. Correlations are of distances from the group's
mean, since advantages are, too. Prints the mean over runs with an interval over seeds (Student's
t).
"""

import argparse
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from faithful_search.errors import DataError
from faithful_search.measure.origins import Decorated
from faithful_search.measure.report import interval
from faithful_search.measure.stats import mean_ci
from faithful_search.rewards import Correctness, SourceGated
from faithful_search.trajectory import Trajectory, read_jsonl

R_PT = "evidence_sensitivity"
UNBOUNDED = (-np.inf, np.inf)
Column = NDArray[np.float64]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--steps", type=int, default=10, help="steps of training that are read")
    args = parser.parse_args()
    try:
        figures = [figures_of(probed_rollouts(run, args.steps), run) for run in args.runs]
    except DataError as error:
        sys.exit(f"error: {error}")
    print(f"| first {args.steps} steps, {len(figures)} runs | R_pt |\n|---|---|")
    for name in figures[0]:
        over_runs = mean_ci([run[name] for run in figures], bounds=UNBOUNDED)
        print(f"| {name} | {interval(over_runs)} |")


def probed_rollouts(run: Path, steps: int) -> list[Trajectory]:
    """The rollouts of the first steps with a verdict that was probed."""
    rollouts = []
    for rollout in read_jsonl(run / "trajectories.jsonl"):
        probe = rollout.meta["parts"].get(R_PT, {})
        if probe.get("applies") and rollout.meta["step"] < steps:
            rollouts.append(rollout)
    return rollouts


def figures_of(rollouts: Sequence[Trajectory], run: Path) -> dict[str, float]:
    """The rows of the table for a run, by name.

    Raises `DataError` for a run in which no verdict was probed, all rollouts have the same habit,
    or those of no group differ.
    """
    if not rollouts:
        raise DataError(f"{run}: in no rollout of these steps was a verdict probed ({R_PT!r})")
    r_pt = np.array([rollout.meta["scores"][R_PT] for rollout in rollouts], dtype=float)
    first = column(Decorated("answer_first"), rollouts)
    if not (np.any(first == 1) and np.any(first == 0)):
        raise DataError(f"{run}: its rollouts all answer first, or all read first")
    figures = {
        "mean of rollouts that answer first": float(r_pt[first == 1].mean()),
        "mean of rollouts that read first": float(r_pt[first == 0].mean()),
    }
    columns = {
        "answering first": first,
        "exact match": column(Correctness("em"), rollouts),
        "exact match that the cited evidence holds": column(
            SourceGated(Correctness("em")), rollouts
        ),
    }
    groups = groups_of(rollouts)
    for name, values in columns.items():
        within = correlation(r_pt, values, groups)
        if within is None:
            raise DataError(
                f"{run}: no question has rollouts that differ in R_pt, or none has rollouts that "
                f"differ in {name}, so the two cannot be compared; read more steps (--steps)"
            )
        figures[f"correlation with {name}"] = within
    return figures


def column(reward: Decorated | Correctness | SourceGated, rollouts: Sequence[Trajectory]) -> Column:
    """The reward's values, NaN where it has none."""
    values = [score.value for score in reward.score_batch(rollouts)]
    return np.array(values, dtype=np.float64)  # which makes NaN of `None`


def groups_of(rollouts: Sequence[Trajectory]) -> list[list[int]]:
    """For each group the places of its rollouts."""
    groups: dict[tuple[int, str], list[int]] = defaultdict(list)
    for place, rollout in enumerate(rollouts):
        groups[rollout.meta["step"], rollout.question or ""].append(place)
    return list(groups.values())


def correlation(values: Column, others: Column, groups: Sequence[Sequence[int]]) -> float | None:
    """Pearson's correlation of the distances from the means of the groups, without rollouts for
    which `others` has no value. `None` where the distances of either column are all 0.
    """
    distances: list[float] = []
    other_distances: list[float] = []
    for places in groups:
        valued = [place for place in places if not np.isnan(others[place])]
        if not valued:
            continue
        distances += list(values[valued] - values[valued].mean())
        other_distances += list(others[valued] - others[valued].mean())
    if np.allclose(distances, 0) or np.allclose(other_distances, 0):
        return None
    return float(np.corrcoef(distances, other_distances)[0, 1])


if __name__ == "__main__":
    main()
