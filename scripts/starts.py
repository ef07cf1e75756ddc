"""Starts whose habit is weaker or stronger, and what training gains from each of them.

```
python scripts/starts.py make --out outputs/starts      # three seeds of each strength; resumes
python scripts/starts.py train --out outputs/starts     # every start by every arm; makes what is missing
python scripts/starts.py table --out outputs/starts     # of what has been measured
```

A start is the bundled reader that also learns 200 answers by heart and the habit of stating one
before it has searched (`scripts/policies/sft_tiny_memory.yaml`). The strength of the habit follows
from how much of what it sees has it (`STRENGTHS`). All starts know the questions of
`world_remembered`, which the arms train on; a seed decides the order of the training and the names
that it swaps. `--reader` names another reader to begin with, with a `{seed}` in it where each seed
has its own.

`starts.md` has, for each strength and for all starts together, the share of the answers that are
stated first (s), the share of right answers among the others (r), and by how much each arm changes
them; `starts.png` draws what becomes of them by the start's s. Intervals are for new seeds and new
questions; a change is paired with the start that it began from.
"""

import argparse
import json
import math
import shutil
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import yaml
from study import POU, SFT
from study_parts import CONFIGS, RECIPES, Flags, as_flags, drawable, run_program
from tqdm.auto import tqdm

from faithful_search.analysis.figures import lines
from faithful_search.bundled import tiny_policy
from faithful_search.measure.evaluation import Evaluation
from faithful_search.measure.ledger import same_settings
from faithful_search.measure.report import interval
from faithful_search.measure.seeds import change_over_seeds, over_seeds
from faithful_search.measure.stats import Estimate
from faithful_search.measure.writing import write_metrics

MEMORY = Path(__file__).parent / "policies" / "sft_tiny_memory.yaml"
SETTINGS = "settings.json"
STRENGTHS: dict[str, Flags] = {
    "weak": {"recitals": 16, "readings": 52, "guesses": 1, "swaps_per_episode": 3},
    "bundled": {"recitals": 40, "readings": 28, "guesses": 1, "swaps_per_episode": 1},
    "habitual": {"recitals": 62, "readings": 6, "guesses": 4, "swaps_per_episode": 1},
}
"""By the strength of the habit, how often a start sees each known question answered from memory and
begun as a reader does, and of each other question the guess and the reader's episode. "bundled" is
what `tiny_memory` was made with. Between 28 readings and 22 the share of answers that come first
rises from an eighth to nine tenths.
"""
SHIPPED = "shipped"
"""The strength of `tiny_memory` itself, which was made with an earlier version of these commands."""
FAMILY = ("weak", "bundled", SHIPPED, "habitual")
FIRST, RIGHT, RIGHT_WHERE_READ = "answer_first", "exact_match", "right_where_read"
METRICS = {FIRST: "s", RIGHT_WHERE_READ: "r", RIGHT: "exact match"}
"""By their columns in the table."""
ALL = "all"


@dataclass(frozen=True)
class Arm:
    """A way to train a start: a recipe, and the settings that differ from its defaults."""

    recipe: str
    flags: Flags


ON_ROLLOUTS: Flags = {"eval_limit": 0, "max_steps": 40}
ARMS = {
    "Proof-of-Use": Arm("pou.py", {"config": CONFIGS / "pou_tiny.yaml", **ON_ROLLOUTS}),
    "answers alone": Arm("pou.py", {"config": CONFIGS / "hack_answer_only.yaml", **ON_ROLLOUTS}),
    "further SFT": Arm("sft.py", {"config": CONFIGS / "sft_tiny.yaml", **SFT, "max_steps": 40}),
    "rejection sampling": Arm(
        "rejection.py",
        {"config": CONFIGS / "rejection_tiny.yaml", "questions": "world_remembered"},
    ),
}
"""By their names in the tables."""


@dataclass(frozen=True)
class Start:
    """A policy with a habit of some strength."""

    strength: str
    seed: int
    folder: Path


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["make", "train", "table"])
    parser.add_argument("--out", type=Path, default=Path("outputs/starts"))
    parser.add_argument("--strengths", nargs="+", choices=FAMILY, default=FAMILY)
    parser.add_argument("--arms", nargs="+", choices=list(ARMS), default=list(ARMS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--reader", default=None, help="policy to begin with, or the bundled one")
    parser.add_argument("--split", default="test", help="split that all policies are measured on")
    parser.add_argument("--limit", type=int, default=None, help="questions of the split")
    parser.add_argument("--workers", type=int, default=2, help="runs at a time, one thread each")
    parser.add_argument("--steps", type=int, default=None, help="steps of each training")
    args = parser.parse_args()
    if args.what != "table":
        check_settings(args)
    starts = []
    for seed in args.seeds:
        for strength in args.strengths:
            starts.append(Start(strength, seed, args.out / f"{strength}_{seed}"))
    if args.what != "table":
        in_parallel(partial(make, args=args), starts, args.workers, "starts")
    if args.what == "train":
        pairs = [(start, arm) for start in starts for arm in args.arms]
        in_parallel(partial(train, args=args), pairs, args.workers, "arms")
    summarise(starts, args.arms, args.out)


def check_settings(args: argparse.Namespace) -> None:
    """Refuse to go on with starts that were made or measured with other settings."""
    args.out.mkdir(parents=True, exist_ok=True)
    path = args.out / SETTINGS
    settings = {name: getattr(args, name) for name in ("reader", "split", "limit", "steps")}
    settings["strengths"] = STRENGTHS
    same_settings(path, settings, "give another --out")
    write_metrics(path, settings)


def make(start: Start, args: argparse.Namespace) -> None:
    """Make the start where it is missing, and measure it."""
    if start.strength == SHIPPED:
        shutil.copytree(tiny_policy("memory"), start.folder, dirs_exist_ok=True)
    if not (start.folder / "model.safetensors").exists():
        memory = yaml.safe_load(MEMORY.read_text(encoding="utf-8"))["memory"]
        of_strength = dict(STRENGTHS[start.strength])
        swaps = of_strength.pop("swaps_per_episode")
        memory |= of_strength
        flags: dict[str, Any] = {
            "config": MEMORY,
            "memory": json.dumps(memory),
            "swaps_per_episode": swaps,
            "seed": start.seed,
            "output_dir": start.folder,
            "threads": 1,
            "overwrite": "true",
        }
        if args.reader:
            flags["model_name_or_path"] = args.reader.format(seed=start.seed)
        if args.steps:
            flags["max_steps"] = args.steps
        run("sft.py", flags, log_of(start.folder))
    measure(start.folder, start.folder, args)


def train(pair: tuple[Start, str], args: argparse.Namespace) -> None:
    """Train a start by an arm where that is missing, and measure what comes of it."""
    start, name = pair
    arm, folder = ARMS[name], folder_of(start, name)
    flags = {**arm.flags, "seed": start.seed, "threads": 1, "overwrite": "true"}
    steps: Flags = {"max_steps": args.steps} if args.steps else {}
    policy = folder
    training: tuple[str, ...] = ()
    if arm.recipe == "rejection.py":
        flags |= {"model": start.folder, "out": folder}
        policy = folder / "policy"
        training = ("--", *as_flags(steps)) if steps else ()
    else:
        flags |= {"model_name_or_path": start.folder, "output_dir": folder, **steps}
    if not (policy / "model.safetensors").exists():
        run(arm.recipe, flags, log_of(folder), training)
    measure(policy, folder, args)


def folder_of(start: Start, arm: str) -> Path:
    """Where an arm's run of a start is."""
    return start.folder.with_name(f"{start.folder.name}_{arm.replace(' ', '_').lower()}")


def measure(policy: Path, folder: Path, args: argparse.Namespace) -> None:
    """Evaluate a policy once; the results are in `folder`/test."""
    measured = folder / "test"
    if (measured / "metrics.json").exists():
        return
    flags = {
        **POU.measure,
        "model": policy,
        "split": args.split,
        "out": measured,
        "threads": 1,
        "resume": "true",
    }
    if args.limit:
        flags["limit"] = args.limit
    run("evaluate.py", flags, folder.with_name(f"{folder.name}.test.log"))


def evaluation_of(folder: Path) -> Evaluation | None:
    """What was measured in a folder, with the result `RIGHT_WHERE_READ`: exact match of the rollouts
    that do not answer first.
    """
    path = folder / "test" / "metrics.json"
    if not path.exists():
        return None
    metrics = json.loads(path.read_text(encoding="utf-8"))
    measured = next(value for key, value in metrics.items() if key != "script")
    evaluation = Evaluation.from_dict(measured)
    right: list[float | None] = []
    pairs = zip(evaluation.values[RIGHT], evaluation.values[FIRST], strict=True)
    for exact_match, answered_first in pairs:
        right.append(exact_match if answered_first == 0 else None)
    values = {**evaluation.values, RIGHT_WHERE_READ: right}
    return msgspec.structs.replace(evaluation, values=values)


def summarise(starts: Sequence[Start], arms: Sequence[str], out: Path) -> None:
    """Write, draw and print what has been measured."""
    titles = [f"{label}{change}" for change in ("", ", change") for label in METRICS.values()]
    rows = [f"| habit | arm | starts | {' | '.join(titles)} |", "|---" * (len(titles) + 3) + "|"]
    results: dict[str, dict[str, Any]] = {}
    drawn: dict[str, dict[float, Any]] = {}
    for strength in (*dict.fromkeys(start.strength for start in starts), ALL):
        same = [start for start in starts if strength in (start.strength, ALL)]
        measured = [start for start in same if evaluation_of(start.folder)]
        if not measured:
            continue
        before = values_of([start.folder for start in measured])
        results[strength] = {"before": before}
        rows.append(row(strength, "before", len(measured), before, {}))
        if strength != ALL:
            add_point(drawn.setdefault("before", {}), before[FIRST].value, before)
        for arm in arms:
            trained = [start for start in measured if evaluation_of(folder_of(start, arm))]
            if not trained:
                continue
            after = values_of([folder_of(start, arm) for start in trained])
            changes = changes_of(trained, arm)
            results[strength][arm] = {"after": after, "change": changes}
            rows.append(row(strength, arm, len(trained), after, changes))
            if strength != ALL:
                add_point(drawn.setdefault(arm, {}), before[FIRST].value, after)
    text = "\n".join(rows) + "\n"
    (out / "starts.md").write_text(text, encoding="utf-8")
    write_metrics(out / "starts.json", results)
    if drawn:
        tables = {arm: drawable(by_share) for arm, by_share in drawn.items()}
        lines(tables, list(METRICS), out / "starts.png", "answers first, before training")
    print(text)


def add_point(curve: dict[float, Any], share: float | None, values: Mapping[str, Estimate]) -> None:
    """Add what became of starts that answer first in this share of the questions."""
    if share is None:
        return
    while share in curve:  # strengths with the same share are both drawn
        share = math.nextafter(share, math.inf)
    curve[share] = values


def values_of(folders: Sequence[Path]) -> dict[str, Estimate]:
    """The results of these policies, over their seeds."""
    runs = evaluations_of(folders)
    return {metric: over_seeds(runs, metric) for metric in METRICS}


def changes_of(starts: Sequence[Start], arm: str) -> dict[str, Estimate]:
    """How an arm changes the results of these starts."""
    before = evaluations_of([start.folder for start in starts])
    after = evaluations_of([folder_of(start, arm) for start in starts])
    return {metric: change_over_seeds(before, after, metric) for metric in METRICS}


def evaluations_of(folders: Sequence[Path]) -> list[Evaluation]:
    """What was measured in these folders, without those where nothing was."""
    evaluations = [evaluation_of(folder) for folder in folders]
    return [evaluation for evaluation in evaluations if evaluation is not None]


def row(
    strength: str,
    arm: str,
    starts: int,
    values: Mapping[str, Estimate],
    changes: Mapping[str, Estimate],
) -> str:
    """A row of `starts.md`."""
    cells = [interval(values[metric]) for metric in METRICS]
    cells += [interval(changes[metric]) if changes else "" for metric in METRICS]
    return f"| {strength} | {arm} | {starts} | {' | '.join(cells)} |"


def log_of(folder: Path) -> Path:
    """Beside the folder of a run, which the run itself empties."""
    return folder.with_name(f"{folder.name}.log")


def in_parallel(work: Any, items: Sequence[Any], workers: int, description: str) -> None:
    """Do the work for all items, some at a time, with a bar."""
    with ThreadPoolExecutor(workers) as pool:
        list(tqdm(pool.map(work, items), total=len(items), desc=description))


def run(recipe: str, flags: Flags, log: Path, further: tuple[str, ...] = ()) -> None:
    """Run a recipe, and end with where to look if it fails."""
    log.parent.mkdir(parents=True, exist_ok=True)
    run_program((str(RECIPES / recipe), *as_flags(flags), *further), log)


if __name__ == "__main__":
    main()
