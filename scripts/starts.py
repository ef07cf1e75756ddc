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

`starts.md` has two tables, for each strength and for all starts together: the share of the answers
that are stated first (s), the share of right answers among the others (r), exact match, how often
answers follow changed evidence, and the verdict gap; then by how much each arm changes them, and
the exact match of the first arm minus that of each other. `starts.png` draws what becomes of them
by the start's s. Intervals are for new seeds and new questions; a change is paired with the start
that it began from.

`measured.jsonl.gz` in --out keeps the results of each question. What stands there is not trained
again, so that a copy of `scripts/studies/starts` can be gone on with by other seeds:

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
METRICS = {
    FIRST: "s",
    RIGHT_WHERE_READ: "r",
    RIGHT: "exact match",
    FOLLOW: "follows changed evidence",
    GAP: "verdict gap",
}
"""By their columns in the tables."""
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


class Results:
    """What has been measured: in the folders of policies, and in the file that earlier runs kept.

    Args:
        file: a row for each policy, with the results of each question.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._kept: dict[str, Evaluation] = {}
        for row in read_rows(file) if file.exists() else ():
            self._kept[row.pop("policy")] = Evaluation.from_dict(row)

    def of(self, folder: Path) -> Evaluation | None:
        """What was measured of the policy of a folder, with the result `RIGHT_WHERE_READ`: exact
        match of the rollouts that do not answer first.
        """
        evaluation = measured_in(folder) or self._kept.get(folder.name)
        if evaluation is None:
            return None
        right: list[float | None] = []
        pairs = zip(evaluation.values[RIGHT], evaluation.values[FIRST], strict=True)
        for exact_match, answered_first in pairs:
            right.append(exact_match if answered_first == 0 else None)
        values = {**evaluation.values, RIGHT_WHERE_READ: right}
        return msgspec.structs.replace(evaluation, values=values)

    def of_all(self, folders: Sequence[Path]) -> list[Evaluation]:
        """What was measured in these folders, without those where nothing was."""
        evaluations = [self.of(folder) for folder in folders]
        return [evaluation for evaluation in evaluations if evaluation is not None]

    def have(self, start: Start, arms: Sequence[str]) -> bool:
        """Whether a start and what these arms make of it have been measured."""
        folders = [start.folder, *(folder_of(start, arm) for arm in arms)]
        return len(self.of_all(folders)) == len(folders)

    def keep(self, starts: Sequence[Start]) -> None:
        """Write the file, with what is in the folders of these starts and their arms."""
        for start in starts:
            for folder in (start.folder, *(folder_of(start, arm) for arm in ARMS)):
                evaluation = measured_in(folder)
                if evaluation is not None:
                    self._kept[folder.name] = abridged(evaluation)
        rows = []
        for policy, evaluation in sorted(self._kept.items()):
            rows.append(json.dumps({"policy": policy, **evaluation.to_dict()}) + "\n")
        write_whole(self._file, gzip.compress("".join(rows).encode(), mtime=0))


def measured_in(folder: Path) -> Evaluation | None:
    """What an evaluation has written to the folder of a policy."""
    path = folder / "test" / "metrics.json"
    if not path.exists():
        return None
    metrics = json.loads(path.read_text(encoding="utf-8"))
    measured = next(value for key, value in metrics.items() if key != "script")
    return Evaluation.from_dict(measured)


def abridged(evaluation: Evaluation) -> Evaluation:
    """What the tables are made of; p(yes) with four digits."""
    verdicts = []
    for of_rollout in evaluation.verdicts:
        shorter = [msgspec.structs.replace(seen, q=round(seen.q, 4)) for seen in of_rollout]
        verdicts.append(shorter)
    values = {name: evaluation.values[name] for name in KEPT if name in evaluation.values}
    return Evaluation({}, evaluation.questions, values, {}, verdicts, bounds=evaluation.bounds)


def summarise(starts: Sequence[Start], arms: Sequence[str], out: Path, results: Results) -> None:
    """Write, draw and print what has been measured."""
    first = arms[0]
    values = table_head(["start", "", "starts", *METRICS.values()])
    changes = table_head(
        ["start", "", "starts", *METRICS.values(), f"exact match, {first} minus it"]
    )
    written: dict[str, dict[str, Any]] = {}
    drawn: dict[str, dict[float, Any]] = {}
    for strength in (*dict.fromkeys(start.strength for start in starts), ALL):
        same = [start for start in starts if strength in (start.strength, ALL)]
        measured = [start for start in same if results.of(start.folder)]
        if not measured:
            continue
        before = values_of(results.of_all([start.folder for start in measured]))
        written[strength] = {"before": before}
        values.append(row(strength, "before", len(measured), before))
        if strength != ALL:
            add_point(drawn.setdefault("before", {}), before[FIRST].value, before)
        for arm in arms:
            trained = [start for start in measured if results.of(folder_of(start, arm))]
            if not trained:
                continue
            started = results.of_all([start.folder for start in trained])
            ended = results.of_all([folder_of(start, arm) for start in trained])
            ahead = results.of_all([folder_of(start, first) for start in trained])
            after, change = values_of(ended), changes_of(started, ended)
            behind = NOTHING  # unless all of these starts were trained by both arms
            if arm != first and len(ahead) == len(ended):
                behind = change_over_seeds(ended, ahead, RIGHT)
            written[strength][arm] = {"after": after, "change": change, "behind": behind}
            values.append(row(strength, arm, len(trained), after))
            further = {**change, "behind": behind}
            changes.append(row(strength, arm, len(trained), further, sign=True))
            if strength != ALL:
                add_point(drawn.setdefault(arm, {}), before[FIRST].value, after)
    text = "\n".join([*values, "", "Changes:", "", *changes]) + "\n"
    (out / "starts.md").write_text(text, encoding="utf-8")
    write_metrics(out / "starts.json", written)
    if drawn:
        tables = {arm: drawable(by_share) for arm, by_share in drawn.items()}
        lines(tables, list(DRAWN), out / "starts.png", "answers first, before training")
    print(text)


def table_head(columns: Sequence[str]) -> list[str]:
    """The first two lines of a table."""
    return [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]


def add_point(curve: dict[float, Any], share: float | None, values: Mapping[str, Estimate]) -> None:
    """Add what became of starts that answer first in this share of the questions."""
    if share is None:
        return
    while share in curve:  # strengths with the same share are both drawn
        share = math.nextafter(share, math.inf)
    curve[share] = values


def values_of(policies: Sequence[Evaluation]) -> dict[str, Estimate]:
    """The results of these policies, over their seeds."""
    return {metric: over_seeds(policies, metric) for metric in METRICS}


def changes_of(before: Sequence[Evaluation], after: Sequence[Evaluation]) -> dict[str, Estimate]:
    """How training changed the results, each policy's beside those of its start."""
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
