"""What GRPO adds, on the bundled world: every setting trained, measured once on the test split, and compared.

```
python scripts/study.py --out outputs/study --workers 2        # resumes: what is there is not made again
```

Writes `study.json`, `study.md` (tables), `entropy.png` (PoU beside format + answer rewards) and `results.png`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm

from faithful_search.analysis import plots
from faithful_search.bundled import tiny_policy
from faithful_search.evaluation.report import write_metrics
from faithful_search.evaluation.stats import Estimate, paired_difference, question_means, t_quantile

RECIPES = Path(__file__).parent.parent / "recipes"
METRICS = (
    "exact_match",
    "f1",
    "valid_format",
    "citation_validity",
    "evidence_sensitivity",
    "answer_support",
    "calls",
    "tool_entropy",
)
BARS = ("exact_match", "citation_validity", "evidence_sensitivity", "tool_entropy")
GRPO = {
    "PoU": ("pou_tiny.yaml", 3),
    "format + answer only": ("pou_tiny_answer_only.yaml", 3),
    "PoU, B = 2": ("pou_tiny_b2.yaml", 1),
    "PoU without R_pt": ("pou_tiny_no_pt.yaml", 1),
    "PoU without R_ans": ("pou_tiny_no_ans.yaml", 1),
    "PoU, static mix": ("pou_tiny_static_mix.yaml", 1),
}


@dataclass(frozen=True)
class Run:
    """One training run, or none: the cold start itself."""

    setting: str
    seed: int
    folder: Path
    command: tuple[str, ...] = ()

    @property
    def policy(self) -> str:
        return str(self.folder if self.command else tiny_policy())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("outputs/study"))
    parser.add_argument("--steps", type=int, default=30, help="steps of every run")
    parser.add_argument("--split", default="test")
    parser.add_argument("--limit", type=int, default=None, help="questions of the split; all without it")
    parser.add_argument("--workers", type=int, default=2, help="runs at a time, one thread each")
    parser.add_argument("--sft_learning_rate", default="1e-4")
    args = parser.parse_args()
    runs = plan(args)
    with ThreadPoolExecutor(args.workers) as pool:
        list(tqdm(pool.map(lambda run: do(run, args), runs), total=len(runs), desc="runs"))
    summarise(runs, args.out)


def plan(args: argparse.Namespace) -> list[Run]:
    """The cold start, further SFT, GRPO with each reward; seeds side by side so that partial studies are balanced."""
    runs = [Run("cold start", 0, args.out / "cold_start")]
    for seed in range(3):
        folder = args.out / f"sft_{seed}"
        runs.append(Run("further SFT", seed, folder, sft_command(folder, seed, args)))
        for setting, (config, seeds) in GRPO.items():
            if seed < seeds:
                folder = args.out / f"{config.removesuffix('.yaml')}_{seed}"
                runs.append(Run(setting, seed, folder, grpo_command(config, folder, seed, args)))
    return runs


def sft_command(folder: Path, seed: int, args: argparse.Namespace) -> tuple[str, ...]:
    """As many steps of as many episodes as GRPO has rollouts, on the agent's tokens and the real names."""
    flags = {
        "model_name_or_path": tiny_policy(),
        "output_dir": folder,
        "loss_on": "agent",
        "swaps_per_episode": 0,
        "episodes": 3000,
        "max_steps": args.steps,
        "per_device_train_batch_size": 32,
        "learning_rate": args.sft_learning_rate,
        "seed": seed,
        "save_dtype": "float32",
        "save_strategy": "no",
        "threads": 1,
        "warmup_steps": 3,
    }
    return (str(RECIPES / "sft.py"), "--config", str(RECIPES / "configs" / "sft_tiny.yaml"), *_flags(flags))


def grpo_command(config: str, folder: Path, seed: int, args: argparse.Namespace) -> tuple[str, ...]:
    flags = {"output_dir": folder, "seed": seed, "max_steps": args.steps, "eval_limit": 0, "threads": 1}
    return (str(RECIPES / "pou.py"), "--config", str(RECIPES / "configs" / config), *_flags(flags))


def do(run: Run, args: argparse.Namespace) -> None:
    """Train where needed and measure once."""
    measured = run.folder / "test"
    if (measured / "metrics.json").exists():
        return
    run.folder.mkdir(parents=True, exist_ok=True)
    if run.command and not (run.folder / "model.safetensors").exists():
        _python(run.command, run.folder / "train.log")
    limit = ["--limit", str(args.limit)] if args.limit else []
    flags = [
        "--policy",
        run.policy,
        "--split",
        args.split,
        *limit,
        "--output_dir",
        str(measured),
        "--threads",
        "1",
        "--turns",
        "6",
        "--total_tokens",
        "768",
        "--turn_tokens",
        "96",
    ]
    _python((str(RECIPES / "evaluate.py"), *flags), run.folder / "test.log")


def summarise(runs: list[Run], out: Path) -> None:
    """Tables and figures of what has been measured."""
    evaluations: dict[str, list[dict[str, Any]]] = {}
    histories: dict[str, list[Any]] = {}
    for run in runs:
        metrics = json.loads((run.folder / "test" / "metrics.json").read_text())
        evaluations.setdefault(run.setting, []).append(next(value for key, value in metrics.items() if key != "script"))
        if (run.folder / "history.json").exists():
            histories.setdefault(run.setting, []).append(json.loads((run.folder / "history.json").read_text()))
    rows = {
        setting: {metric: over_seeds(found, metric) for metric in METRICS} for setting, found in evaluations.items()
    }
    gains = {
        setting: {metric: gain(evaluations["cold start"][0], found, metric) for metric in METRICS[:-1]}
        for setting, found in evaluations.items()
        if setting != "cold start"
    }
    write_metrics(out / "study.json", {"values": rows, "differences_to_cold_start": gains})
    tables = {"Values": markdown(rows, METRICS), "Paired differences to the cold start": markdown(gains, METRICS[:-1])}
    text = "\n\n".join(f"## {title}\n\n{table}" for title, table in tables.items())
    (out / "study.md").write_text(text + "\n", encoding="utf-8")
    shown = {name: histories[name] for name in ("PoU", "format + answer only")}
    plots.compare(shown, ["tools/entropy", "tools/ratio/local_search"], out / "entropy.png", window=5)
    plots.compare(shown, ["parts/correctness", "parts/citation", "tools/calls"], out / "training.png", window=5)
    plots.bars({name: {"rows": row} for name, row in _plain(rows).items()}, BARS, out / "results.png")
    print(text)


def over_seeds(found: list[dict[str, Any]], metric: str) -> Estimate:
    """One run: its own interval over questions. Several: the mean over seeds with a t interval over seeds."""
    values = [item["rows"][metric]["value"] for item in found]
    if len(values) == 1:
        row = found[0]["rows"][metric]
        return Estimate(row["value"], row["low"], row["high"], row["n"], row["stderr"])
    mean = sum(values) / len(values)
    stderr = (sum((value - mean) ** 2 for value in values) / (len(values) - 1) / len(values)) ** 0.5
    half = t_quantile(0.975, len(values) - 1) * stderr
    return Estimate(mean, mean - half, mean + half, len(values), stderr)


def gain(cold: dict[str, Any], found: list[dict[str, Any]], metric: str) -> Estimate:
    """Difference over the same questions, each question's value averaged over seeds; bootstrap over questions."""
    ours = [
        (question, value)
        for item in found
        for question, value in zip(item["questions"], item["values"][metric], strict=True)
    ]
    before = question_means(cold["questions"], cold["values"][metric])
    return paired_difference(before, question_means(*map(list, zip(*ours, strict=True))))


def markdown(rows: dict[str, dict[str, Estimate]], metrics: Iterable[str]) -> str:
    metrics = list(metrics)
    lines = [f"| setting | {' | '.join(metrics)} | n |", "|---" * (len(metrics) + 2) + "|"]
    for setting, row in rows.items():
        cells = [
            f"{item.value:.3f} [{item.low:.3f}, {item.high:.3f}]" if item.low is not None else f"{item.value}"
            for item in row.values()
        ]
        lines.append(f"| {setting} | {' | '.join(cells)} | {next(iter(row.values())).n} |")
    return "\n".join(lines)


def _plain(rows: dict[str, dict[str, Estimate]]) -> dict[str, dict[str, dict[str, Any]]]:
    return {
        setting: {metric: {"value": item.value, "low": item.low, "high": item.high} for metric, item in row.items()}
        for setting, row in rows.items()
    }


def _flags(values: dict[str, Any]) -> list[str]:
    return [part for name, value in values.items() for part in (f"--{name}", str(value))]


def _python(command: tuple[str, ...], log: Path) -> None:
    with log.open("w") as file:
        done = subprocess.run(
            [sys.executable, *command], stdout=file, stderr=subprocess.STDOUT, env=os.environ, check=False
        )
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed; see {log}")


if __name__ == "__main__":
    main()
