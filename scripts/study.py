"""What a method adds on the bundled world: every setting trained with every seed, measured once, and compared.

```
python scripts/study.py pou --out outputs/study --workers 2          # resumes: what is there is not made again
python scripts/study.py veritas --out outputs/veritas_study --workers 2 --steps 60
```

Writes `study.json`, `study.md` (tables), curves of training (`entropy.png`, `training.png`) and `results.png`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm

from faithful_search.analysis import plots
from faithful_search.bundled import tiny_policy
from faithful_search.evaluation.report import write_metrics
from faithful_search.evaluation.stats import Estimate, paired_difference, question_means, t_quantile

RECIPES = Path(__file__).parent.parent / "recipes"
CONFIGS = RECIPES / "configs"
LIMITS = {"turns": 6, "turn_tokens": 96}
Flags = Mapping[str, Any]


@dataclass(frozen=True)
class Setting:
    """One way to train: a recipe, its configuration, what differs from it, and with how many seeds."""

    recipe: str
    config: str
    flags: Flags = field(default_factory=dict)
    seeds: int = 3


@dataclass(frozen=True)
class Study:
    """What is compared with the cold start, and by which figures.

    Attributes:
        dialect: of the policies.
        settings: by name.
        measure: flags of `recipes/evaluate.py`.
        metrics: columns of the tables.
        bars: those of them that are drawn.
        curves: by the figure's file name, which curves of training and of which settings.
    """

    dialect: str
    settings: Mapping[str, Setting]
    measure: Flags
    metrics: tuple[str, ...]
    bars: tuple[str, ...]
    curves: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]]


SFT = {
    "loss_on": "agent",
    "swaps_per_episode": 0,
    "episodes": 3000,
    "per_device_train_batch_size": 32,
    "learning_rate": 1e-4,
    "save_dtype": "float32",
    "save_strategy": "no",
    "warmup_steps": 3,
    "model_name_or_path": tiny_policy(),
}
"""As many steps of as many episodes as GRPO has rollouts, on the agent's tokens and the real names."""

POU = Study(
    dialect="pou",
    settings={
        "further SFT": Setting("sft.py", "sft_tiny.yaml", SFT),
        "PoU": Setting("pou.py", "pou_tiny.yaml"),
        "format + answer only": Setting("pou.py", "pou_tiny_answer_only.yaml"),
        "PoU, B = 2": Setting("pou.py", "pou_tiny_b2.yaml", seeds=1),
        "PoU without R_pt": Setting("pou.py", "pou_tiny_no_pt.yaml", seeds=1),
        "PoU without R_ans": Setting("pou.py", "pou_tiny_no_ans.yaml", seeds=1),
        "PoU, static mix": Setting("pou.py", "pou_tiny_static_mix.yaml", seeds=1),
    },
    measure={"total_tokens": 768, **LIMITS},
    metrics=(
        *("exact_match", "f1", "valid_format", "citation_validity", "evidence_sensitivity", "answer_support"),
        *("calls", "tool_entropy"),
    ),
    bars=("exact_match", "citation_validity", "evidence_sensitivity", "tool_entropy"),
    curves={
        "entropy.png": (("PoU", "format + answer only"), ("tools/entropy", "tools/ratio/local_search")),
        "training.png": (
            ("PoU", "format + answer only"),
            ("parts/correctness", "parts/citation", "tools/calls"),
        ),
    },
)

FAITHFULNESS = ("info_think_lexical", "think_search_lexical", "think_answer_sub_em")
VERITAS = Study(
    dialect="search_r1",
    settings={
        "EM": Setting("veritas.py", "veritas_tiny_em_only.yaml"),
        "EM + info-think": Setting("veritas.py", "veritas_tiny_info_think.yaml"),
        "EM + info-think, no curriculum": Setting(
            "veritas.py", "veritas_tiny_info_think.yaml", {"curriculum_start": 0, "curriculum_end": 0}
        ),
        "EM + info-think + think-answer": Setting("veritas.py", "veritas_tiny.yaml"),
    },
    measure={"config": CONFIGS / "eval_veritas_tiny.yaml"},
    metrics=("exact_match", "f1", *FAITHFULNESS, "valid_format", "calls"),
    bars=("exact_match", *FAITHFULNESS),
    curves={
        "training.png": (
            ("EM", "EM + info-think", "EM + info-think, no curriculum", "EM + info-think + think-answer"),
            ("parts/exact_match", "parts/info_think", "parts/think_answer", "tools/calls"),
        )
    },
)
STUDIES = {"pou": POU, "veritas": VERITAS}


@dataclass(frozen=True)
class Run:
    """One training run, or none: the cold start itself."""

    setting: str
    folder: Path
    policy: Path
    command: tuple[str, ...] = ()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", choices=list(STUDIES))
    parser.add_argument("--out", type=Path, default=Path("outputs/study"))
    parser.add_argument("--steps", type=int, default=40, help="steps of every run")
    parser.add_argument("--split", default="test")
    parser.add_argument("--limit", type=int, default=None, help="questions of the split; all without it")
    parser.add_argument("--workers", type=int, default=2, help="runs at a time, one thread each")
    args = parser.parse_args()
    study = STUDIES[args.study]
    runs = plan(study, args)
    with ThreadPoolExecutor(args.workers) as pool:
        list(tqdm(pool.map(lambda run: do(run, study.measure, args), runs), total=len(runs), desc="runs"))
    summarise(study, runs, args.out)


def plan(study: Study, args: argparse.Namespace) -> list[Run]:
    """The cold start and every setting; seeds side by side, so that what is there of a partial study is balanced."""
    runs = [Run("cold start", args.out / "cold_start", tiny_policy(study.dialect))]
    for seed in range(max(setting.seeds for setting in study.settings.values())):
        for name, setting in study.settings.items():
            if seed < setting.seeds:
                folder = args.out / f"{''.join(c if c.isalnum() else '_' for c in name)}_{seed}"
                runs.append(Run(name, folder, folder, command(setting, folder, seed, args.steps)))
    return runs


def command(setting: Setting, folder: Path, seed: int, steps: int) -> tuple[str, ...]:
    trained = {} if setting.recipe == "sft.py" else {"eval_limit": 0}
    own = {"config": CONFIGS / setting.config, "output_dir": folder, "seed": seed, "max_steps": steps, "threads": 1}
    return (str(RECIPES / setting.recipe), *_flags({**own, **trained, **setting.flags}))


def do(run: Run, measure: Flags, args: argparse.Namespace) -> None:
    """Train where needed and measure once."""
    measured = run.folder / "test"
    if (measured / "metrics.json").exists():
        return
    run.folder.mkdir(parents=True, exist_ok=True)
    if run.command and not (run.folder / "model.safetensors").exists():
        _python(run.command, run.folder / "train.log")
    flags = {**measure, "policy": run.policy, "split": args.split, "output_dir": measured, "threads": 1}
    limit = {"limit": args.limit} if args.limit else {}
    _python((str(RECIPES / "evaluate.py"), *_flags({**flags, **limit})), run.folder / "test.log")


def summarise(study: Study, runs: list[Run], out: Path) -> None:
    """Tables and figures of what has been measured."""
    evaluations: dict[str, list[dict[str, Any]]] = {}
    histories: dict[str, list[Any]] = {}
    for run in runs:
        metrics = json.loads((run.folder / "test" / "metrics.json").read_text())
        evaluations.setdefault(run.setting, []).append(next(value for key, value in metrics.items() if key != "script"))
        if (run.folder / "history.json").exists():
            histories.setdefault(run.setting, []).append(json.loads((run.folder / "history.json").read_text()))
    paired = [metric for metric in study.metrics if metric != "tool_entropy"]  # that one is of the corpus, not of rows
    rows = {
        setting: {metric: over_seeds(found, metric) for metric in study.metrics}
        for setting, found in evaluations.items()
    }
    gains = {
        setting: {metric: gain(evaluations["cold start"][0], found, metric) for metric in paired}
        for setting, found in evaluations.items()
        if setting != "cold start"
    }
    write_metrics(out / "study.json", {"values": rows, "differences_to_cold_start": gains})
    tables = {"Values": markdown(rows, study.metrics), "Paired differences to the cold start": markdown(gains, paired)}
    text = "\n\n".join(f"## {title}\n\n{table}" for title, table in tables.items())
    (out / "study.md").write_text(text + "\n", encoding="utf-8")
    for file, (settings, curves) in study.curves.items():
        plots.compare({name: histories[name] for name in settings}, list(curves), out / file, window=5)
    plots.bars({name: {"rows": row} for name, row in _plain(rows).items()}, study.bars, out / "results.png")
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
