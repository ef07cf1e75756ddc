"""How the habit of answering from memory changes what training gains: policies that have the habit
more or less often ("starts"), each trained in several ways ("arms").

```
python scripts/starts.py make --out outputs/starts      # make and measure the starts, three seeds each
python scripts/starts.py train --out outputs/starts     # train every start by every arm, too
python scripts/starts.py table --out outputs/starts     # only print what has been measured
```

The commands do only what is missing in --out, so that an interrupted one can be run again.

A start is the bundled reader, trained further to know 200 answers by heart and to state them before
it has searched (`scripts/policies/sft_tiny_memory.yaml`). How often it does depends on the share of
its training examples that do (`STRENGTHS`). All starts remember the questions of
`world_remembered`, which the arms train on. A seed decides the order of the examples and which
names are swapped in them. `--reader` names another policy to begin with; a `{seed}` in the name is
replaced by the seed.

`starts.md` has two tables, with rows for each strength and for all starts together. The first has
the share of answers that are stated before their evidence (s), the share of right answers among the
others (r), exact match, how often answers follow changed evidence, and the verdict gap. The second
has the changes of these by each arm, paired with the start that was trained, and the exact match of
the first arm minus that of each other arm. Intervals are for new seeds and new questions.
`starts.png` draws the first three by the s of the start.

`measured.jsonl.gz` in --out keeps the results of each question. What is in it is not trained again,
so that other seeds can be added to a copy of `scripts/studies/starts`:

```
cp -r scripts/studies/starts outputs/starts
python scripts/starts.py train --out outputs/starts --seeds 0 1 2 3
```
"""

import argparse
import gzip
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
from faithful_search.json_lines import read_rows
from faithful_search.measure.controls import FOLLOW
from faithful_search.measure.evaluation import Evaluation
from faithful_search.measure.ledger import same_settings
from faithful_search.measure.report import interval
from faithful_search.measure.seeds import change_over_seeds, over_seeds
from faithful_search.measure.stats import NOTHING, Estimate
from faithful_search.measure.verdicts import GAP
from faithful_search.measure.writing import write_metrics, write_whole

MEMORY = Path(__file__).parent / "policies" / "sft_tiny_memory.yaml"
SETTINGS, MEASURED = "settings.json", "measured.jsonl.gz"
STRENGTHS: dict[str, Flags] = {
    "weak": {"recitals": 16, "readings": 52, "guesses": 1, "swaps_per_episode": 3},
    "bundled": {"recitals": 40, "readings": 28, "guesses": 1, "swaps_per_episode": 1},
    "even": {"recitals": 40, "readings": 24, "guesses": 1, "swaps_per_episode": 1},
    "habitual": {"recitals": 62, "readings": 6, "guesses": 4, "swaps_per_episode": 1},
}
"""The training examples of a start, by the strength of its habit, see `sft_tiny_memory.yaml`.

For each remembered question, `recitals` examples answer it from memory and `readings` begin as a
reader does. For each other question there are `guesses` and a reader's episodes. "bundled" has the
settings of `tiny_memory`. Between 28 readings and 22 the share of answers that are stated first
rises from an eighth to nine tenths, and the seed decides much of it: "even" has 0.76 with one seed
and 0.10 with another.
"""
SHIPPED = "shipped"
"""The strength of `tiny_memory` itself, which was made with an earlier version of these commands."""
FAMILY = ("weak", "bundled", SHIPPED, "even", "habitual")
FIRST, RIGHT, RIGHT_WHERE_READ = "answer_first", "exact_match", "right_where_read"
METRICS = {
    FIRST: "s",
    RIGHT_WHERE_READ: "r",
    RIGHT: "exact match",
    FOLLOW: "follows changed evidence",
    GAP: "verdict gap",
}
"""The results of the tables, with the headings of their columns."""
DRAWN = (FIRST, RIGHT_WHERE_READ, RIGHT)
KEPT = (FIRST, RIGHT, FOLLOW)
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
"""The arms by their names in the tables."""


@dataclass(frozen=True)
class Start:
    """A policy whose habit has this strength, made with this seed."""

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
    parser.add_argument(
        "--reader", default=None, help="policy to begin with; by default the bundled one"
    )
    parser.add_argument("--split", default="test", help="split that all policies are measured on")
    parser.add_argument(
        "--limit", type=int, default=None, help="number of questions of the split; by default all"
    )
    parser.add_argument("--workers", type=int, default=2, help="runs at a time, one thread each")
    parser.add_argument(
        "--steps", type=int, default=None, help="steps of each training; by default the recipe's"
    )
    args = parser.parse_args()
    if args.what != "table":
        check_settings(args)
    starts = []
    for seed in args.seeds:
        for strength in args.strengths:
            starts.append(Start(strength, seed, args.out / f"{strength}_{seed}"))
    results = Results(args.out / MEASURED)
    arms = args.arms if args.what == "train" else []
    if args.what != "table":
        needed = [start for start in starts if not results.have(start, arms)]
        in_parallel(partial(make, args=args), needed, args.workers, "starts")
    pairs = []
    for start in starts:
        for arm in arms:
            if results.of(folder_of(start, arm)) is None:
                pairs.append((start, arm))
    if pairs:
        in_parallel(partial(train, args=args), pairs, args.workers, "arms")
    results.keep(starts)
    summarise(starts, args.arms, args.out, results)


def check_settings(args: argparse.Namespace) -> None:
    """Refuse to continue in a folder whose starts were made or measured with other settings."""
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
        examples = dict(STRENGTHS[start.strength])
        swaps = examples.pop("swaps_per_episode")
        memory |= examples
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
    """Train a start by this arm, unless that was done before, and measure the result."""
    start, name = pair
    arm = ARMS[name]
    folder = folder_of(start, name)
    flags = {**arm.flags, "seed": start.seed, "threads": 1, "overwrite": "true"}
    steps: Flags = {"max_steps": args.steps} if args.steps else {}
    policy = folder
    sft_flags: tuple[str, ...] = ()
    if arm.recipe == "rejection.py":  # it samples, then runs sft.py with the flags after `--`
        flags |= {"model": start.folder, "out": folder}
        policy = folder / "policy"
        if steps:
            sft_flags = ("--", *as_flags(steps))
    else:
        flags |= {"model_name_or_path": start.folder, "output_dir": folder, **steps}
    if not (policy / "model.safetensors").exists():
        run(arm.recipe, flags, log_of(folder), sft_flags)
    measure(policy, folder, args)


def folder_of(start: Start, arm: str) -> Path:
    """The folder of a start that was trained by this arm."""
    return start.folder.with_name(f"{start.folder.name}_{arm.replace(' ', '_').lower()}")


def measure(policy: Path, folder: Path, args: argparse.Namespace) -> None:
    """Evaluate a policy into `folder`/test, unless its results are there."""
    out = folder / "test"
    if (out / "metrics.json").exists():
        return
    flags = {
        **POU.measure,
        "model": policy,
        "split": args.split,
        "out": out,
        "threads": 1,
        "resume": "true",
    }
    if args.limit:
        flags["limit"] = args.limit
    run("evaluate.py", flags, folder.with_name(f"{folder.name}.test.log"))


class Results:
    """The evaluations of policies, from their folders and from a file that earlier runs wrote.

    Args:
        file: JSON lines, a policy each, with the results of each question.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._kept: dict[str, Evaluation] = {}
        for row in read_rows(file) if file.exists() else ():
            self._kept[row.pop("policy")] = Evaluation.from_dict(row)

    def of(self, folder: Path) -> Evaluation | None:
        """The evaluation of the policy in a folder, `None` if there is none. It also has the result
        `RIGHT_WHERE_READ`: exact match of the rollouts that do not answer first.
        """
        evaluation = measured_in(folder) or self._kept.get(folder.name)
        if evaluation is None:
            return None
        right: list[float | None] = []
        pairs = zip(evaluation.values[RIGHT], evaluation.values[FIRST], strict=True)
        for exact_match, answered_first in pairs:
            right.append(exact_match if answered_first == 0 else None)
        values = {**evaluation.values, RIGHT_WHERE_READ: right}
        bounds = dict(evaluation.bounds)
        if RIGHT in bounds:  # an evaluation of an earlier version has none
            bounds[RIGHT_WHERE_READ] = bounds[RIGHT]
        return msgspec.structs.replace(evaluation, values=values, bounds=bounds)

    def of_all(self, folders: Sequence[Path]) -> list[Evaluation]:
        """The evaluations of the policies in these folders that have one."""
        evaluations = [self.of(folder) for folder in folders]
        return [evaluation for evaluation in evaluations if evaluation is not None]

    def have(self, start: Start, arms: Sequence[str]) -> bool:
        """Whether a start has been measured, before training and after that by each arm."""
        folders = [start.folder, *(folder_of(start, arm) for arm in arms)]
        return len(self.of_all(folders)) == len(folders)

    def keep(self, starts: Sequence[Start]) -> None:
        """Write the file, with the evaluations in the folders of these starts and their arms."""
        for start in starts:
            folders = [start.folder, *(folder_of(start, arm) for arm in ARMS)]
            for folder in folders:
                evaluation = measured_in(folder)
                if evaluation is not None:
                    self._kept[folder.name] = abridged(evaluation)
        rows = []
        for policy, evaluation in sorted(self._kept.items()):
            rows.append(json.dumps({"policy": policy, **evaluation.to_dict()}) + "\n")
        write_whole(self._file, gzip.compress("".join(rows).encode(), mtime=0))


def measured_in(folder: Path) -> Evaluation | None:
    """The evaluation that `measure` wrote into this folder; `None` if there is none."""
    path = folder / "test" / "metrics.json"
    if not path.exists():
        return None
    metrics = json.loads(path.read_text(encoding="utf-8"))
    # Beside the settings of the script the file has one evaluation
    content = next(value for key, value in metrics.items() if key != "script")
    return Evaluation.from_dict(content)


def abridged(evaluation: Evaluation) -> Evaluation:
    """The parts of an evaluation that the tables are made of, with four digits of p(yes)."""
    verdicts = []
    for of_rollout in evaluation.verdicts:
        rounded = [
            msgspec.structs.replace(verdict, q=round(verdict.q, 4)) for verdict in of_rollout
        ]
        verdicts.append(rounded)
    values = {name: evaluation.values[name] for name in KEPT if name in evaluation.values}
    return Evaluation({}, evaluation.questions, values, {}, verdicts, bounds=evaluation.bounds)


def summarise(starts: Sequence[Start], arms: Sequence[str], out: Path, results: Results) -> None:
    """Write the tables (`starts.md`, `starts.json`) and the figure (`starts.png`); print the
    tables.
    """
    first_arm = arms[0]
    values = table_head(["start", "", "starts", *METRICS.values()])
    changes = table_head(
        ["start", "", "starts", *METRICS.values(), f"exact match, {first_arm} minus it"]
    )
    summary: dict[str, dict[str, Any]] = {}
    curves: dict[str, dict[float, Any]] = {}
    for strength in (*dict.fromkeys(start.strength for start in starts), ALL):
        of_strength = [start for start in starts if strength in (start.strength, ALL)]
        measured = [start for start in of_strength if results.of(start.folder)]
        if not measured:
            continue
        before = values_of(results.of_all([start.folder for start in measured]))
        summary[strength] = {"before": before}
        values.append(row(strength, "before", len(measured), before))
        if strength != ALL:
            add_point(curves.setdefault("before", {}), before[FIRST].value, before)
        for arm in arms:
            trained = [start for start in measured if results.of(folder_of(start, arm))]
            if not trained:
                continue
            runs_before = results.of_all([start.folder for start in trained])
            runs_after = results.of_all([folder_of(start, arm) for start in trained])
            after = values_of(runs_after)
            change = changes_of(runs_before, runs_after)
            behind = NOTHING  # unless all of these starts were trained by both arms
            runs_of_first = results.of_all([folder_of(start, first_arm) for start in trained])
            if arm != first_arm and len(runs_of_first) == len(runs_after):
                behind = change_over_seeds(runs_after, runs_of_first, RIGHT)
            summary[strength][arm] = {"after": after, "change": change, "behind": behind}
            values.append(row(strength, arm, len(trained), after))
            cells = {**change, "behind": behind}
            changes.append(row(strength, arm, len(trained), cells, sign=True))
            if strength != ALL:
                add_point(curves.setdefault(arm, {}), before[FIRST].value, after)
    text = "\n".join([*values, "", "Changes:", "", *changes]) + "\n"
    (out / "starts.md").write_text(text, encoding="utf-8")
    write_metrics(out / "starts.json", summary)
    if curves:
        tables = {arm: drawable(curve) for arm, curve in curves.items()}
        lines(tables, list(DRAWN), out / "starts.png", "answers first, before training")
    print(text)


def table_head(columns: Sequence[str]) -> list[str]:
    """The first two lines of a table."""
    return [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]


def add_point(curve: dict[float, Any], share: float | None, values: Mapping[str, Estimate]) -> None:
    """Add a point at this share: the values of starts that answer so many questions first, or of
    what they became by training.
    """
    if share is None:
        return
    while share in curve:  # strengths with the same share are both drawn
        share = math.nextafter(share, math.inf)
    curve[share] = values


def values_of(policies: Sequence[Evaluation]) -> dict[str, Estimate]:
    """The means of the `METRICS` over these policies."""
    return {metric: over_seeds(policies, metric) for metric in METRICS}


def changes_of(before: Sequence[Evaluation], after: Sequence[Evaluation]) -> dict[str, Estimate]:
    """The changes of the `METRICS` by training, each policy paired with its start."""
    return {metric: change_over_seeds(before, after, metric) for metric in METRICS}


def row(
    strength: str,
    arm: str,
    starts: int,
    values: Mapping[str, Estimate],
    sign: bool = False,
) -> str:
    """A row of a table of `starts.md`."""
    cells = [interval(value, sign) for value in values.values()]
    return f"| {strength} | {arm} | {starts} | {' | '.join(cells)} |"


def log_of(folder: Path) -> Path:
    """The log of a run, beside its folder, which the run empties."""
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
