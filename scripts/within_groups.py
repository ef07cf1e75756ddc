"""What R_pt pays a policy's own rollouts in training, where rollouts of one question are compared.

```
python scripts/within_groups.py outputs/study/the_paper_s_form_*
python scripts/within_groups.py outputs/pou --steps 5
```

Each folder is a run of `recipes/pou.py` with R_pt, of which the rollouts of the first steps are
read, while the policy still has both habits. A rollout answers first where it states its answer
before any evidence that holds it (`answer_first`). Correlations are within the groups of rollouts
of one question in one step, as an advantage is. Several runs give their mean with an interval over
seeds (Student's t).
"""

import argparse
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
    figures = [figures_of(rollouts_of(run, args.steps), run) for run in args.runs]
    print(f"| first {args.steps} steps, {len(figures)} runs | R_pt |\n|---|---|")
    for name in figures[0]:
        over_runs = mean_ci([run[name] for run in figures], bounds=UNBOUNDED)
        print(f"| {name} | {interval(over_runs)} |")


def rollouts_of(run: Path, steps: int) -> list[Trajectory]:
    """The rollouts of the first steps that have an R_pt."""
    rollouts = []
    for rollout in read_jsonl(run / "trajectories.jsonl"):
        probed = rollout.meta["scores"].get(R_PT) is not None
        if probed and rollout.meta["step"] < steps:
            rollouts.append(rollout)
    return rollouts


def figures_of(rollouts: Sequence[Trajectory], run: Path) -> dict[str, float]:
    """The rows of the table. Raises `DataError` for a run without R_pt, or with one habit only."""
    if not rollouts:
        raise DataError(f"{run}: no rollout of these steps has a score {R_PT!r}")
    r_pt = np.array([rollout.meta["scores"][R_PT] for rollout in rollouts], dtype=float)
    first = column(Decorated("answer_first"), rollouts)
    right = column(Correctness("em"), rollouts)
    gated = column(SourceGated(Correctness("em")), rollouts)
    if not (np.any(first == 1) and np.any(first == 0)):
        raise DataError(f"{run}: its rollouts all answer first, or all read first")
    groups = groups_of(rollouts)
    return {
        "mean of rollouts that answer first": float(r_pt[first == 1].mean()),
        "mean of rollouts that read first": float(r_pt[first == 0].mean()),
        "correlation with answering first": correlation(r_pt, first, groups),
        "correlation with exact match": correlation(r_pt, right, groups),
        "correlation with exact match that the cited evidence holds": correlation(
            r_pt, gated, groups
        ),
    }


def column(reward: Decorated | Correctness | SourceGated, rollouts: Sequence[Trajectory]) -> Column:
    """The reward's values, NaN where it has none."""
    values = [score.value for score in reward.score_batch(rollouts)]
    return np.array([np.nan if value is None else value for value in values])


def groups_of(rollouts: Sequence[Trajectory]) -> list[list[int]]:
    """The places of the rollouts of each question in each step."""
    groups: dict[tuple[int, str], list[int]] = defaultdict(list)
    for place, rollout in enumerate(rollouts):
        groups[rollout.meta["step"], rollout.question or ""].append(place)
    return list(groups.values())


def correlation(values: Column, others: Column, groups: Sequence[Sequence[int]]) -> float:
    """Pearson's correlation of the distances from the group's means."""
    left: list[float] = []
    right: list[float] = []
    for places in groups:
        known = [place for place in places if not np.isnan(others[place])]
        left += list(values[known] - values[known].mean()) if known else []
        right += list(others[known] - others[known].mean()) if known else []
    return float(np.corrcoef(left, right)[0, 1])


if __name__ == "__main__":
    main()
