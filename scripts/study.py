"""What a method adds on the bundled world: every setting trained with every seed, measured once,
and compared.

```
python scripts/study.py pou --out outputs/study --workers 2          # resumes: what is there is not made again
python scripts/study.py pou --split validation --seeds 3 --only "Proof-of-Use" "format + answer only"
python scripts/study.py veritas --out outputs/veritas_study --workers 2 --steps 60
python scripts/study.py thoughts --out outputs/thoughts --workers 2    # where what a thought does not state is lost
python scripts/study.py credit --out outputs/credit --seeds 3    # GRPO, credit by turn, RLOO, PPO; credit_hack likewise
python scripts/study.py self_eval --out outputs/self_study; python scripts/study.py pokee --out outputs/pokee_study
python scripts/study.py hacking --out outputs/hacking --split validation --limit 200    # the phase diagram
```

Writes `study.json`, `study.md` (tables), curves of training (`entropy.png`, `training.png`),
`results.png` unless there are too many settings for it, and the study's own `diagram.png`.
"""

import argparse
import json
import re
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from study_parts import (
    CONFIGS,
    RECIPES,
    START,
    VALUES,
    Flags,
    as_flags,
    as_markdown,
    config_named,
    drawable,
    run_program,
    tables_over_seeds,
)
from tqdm.auto import tqdm

from faithful_search.analysis.figures import bars, compare, lines
from faithful_search.bundled import tiny_policy
from faithful_search.measure.evaluation import Evaluation
from faithful_search.measure.writing import write_metrics

MOST_BARS = 12
"""With more settings a figure of bars cannot be read."""


@dataclass(frozen=True)
class Setting:
    """One way to train: a recipe, its configuration, what differs from it, and with how many
    seeds.
    """

    recipe: str
    config: str
    flags: Flags = field(default_factory=dict)
    seeds: int = 3


@dataclass(frozen=True)
class Study:
    """What is compared with the cold start, and by which figures.

    Attributes:
        start: the bundled policy that every setting starts from, see `bundled.tiny_policy`.
        settings: by name.
        measure: flags of `recipes/evaluate.py`.
        metrics: columns of the tables.
        bars: those of them that are drawn.
        curves: by the figure's file name, which curves of training and of which settings.
        references: settings that all others are compared with, on the same questions.
        diagram: lines of a figure over a quantity that was varied: by label, its values with the
            setting of each.
        varied: what that quantity is.
    """

    start: str
    settings: Mapping[str, Setting]
    measure: Flags
    metrics: tuple[str, ...]
    bars: tuple[str, ...]
    curves: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]]
    references: tuple[str, ...] = (START,)
    diagram: Mapping[str, Mapping[float, str]] = field(default_factory=dict)
    varied: str = ""


SFT = {
    "loss_on": "agent",
    "habits": "{}",
    "swaps_per_episode": 0,
    "swaps_per_twin": 0,
    "verdict_token_weight": 1,
    "episodes": 3000,
    "per_device_train_batch_size": 32,
    "learning_rate": 1e-4,
    "save_dtype": "float32",
    "save_strategy": "no",
    "warmup_steps": 3,
    "model_name_or_path": tiny_policy("memory"),
}
"""Episodes on the agent's tokens and the real names, as many a step as GRPO has rollouts."""

MAIN = ("Proof-of-Use", "format + answer only")
ABLATIONS = {
    "R_pt without the verdict term": "pou_tiny_pt.yaml",
    "R_pt, shuffled, without the term": "pou_tiny_shuffled.yaml",
    "without R_pt": "pou_tiny_no_pt.yaml",
    "without R_pt and R_ans": "pou_tiny_no_ans.yaml",
    "without R_pt, static mix": "pou_tiny_static_mix.yaml",
    "without R_pt and the source gate": "hack_pou.yaml",
    "the paper's form, B = 2": "pou_tiny_b2.yaml",
    "source gate alone": "hack_source_gated.yaml",
    "counterfactual groups alone": "hack_counterfactual.yaml",
}
POU = Study(
    start="memory",
    settings={
        "Proof-of-Use": Setting("pou.py", "pou_tiny.yaml", seeds=5),
        "format + answer only": Setting("pou.py", "hack_answer_only.yaml", seeds=5),
        "further SFT": Setting("sft.py", "sft_tiny.yaml", SFT),
        **{name: Setting("pou.py", config) for name, config in ABLATIONS.items()},
        # Whether R_pt says something is told by its control, and seeds differ more than in others
        "the paper's form": Setting("pou.py", "pou_tiny_paper.yaml", seeds=8),
        "the paper's form, R_pt shuffled": Setting(
            "pou.py", "pou_tiny_paper_shuffled.yaml", seeds=8
        ),
    },
    measure={"turns": 8, "turn_tokens": 96, "total_tokens": 1024},
    metrics=(
        *(
            "exact_match",
            "exact_match_changed",
            "follow_rate",
            "memory_share",
            "decorated",
            "answer_first",
        ),
        *("valid_format", "citation_validity", "citation_states_fact", "answer_support_facts"),
        *("verdict_gap", "verdict_auroc", "no_on_blank", "retry_on_blank"),
        *("evidence_sensitivity", "evidence_sensitivity_unseen", "calls", "tool_entropy"),
    ),
    bars=("exact_match", "follow_rate", "answer_first", "citation_states_fact", "verdict_gap"),
    curves={
        "entropy.png": (MAIN, ("tools/entropy", "tools/ratio/local_search")),
        "training.png": (
            MAIN,
            ("behaviour/answer_first", "behaviour/exact_match", "parts/citation", "tools/calls"),
        ),
        "ablations.png": (
            ("Proof-of-Use", *ABLATIONS, "the paper's form"),
            ("behaviour/answer_first", "behaviour/exact_match", "tools/calls", "tools/entropy"),
        ),
    },
    references=(START, "format + answer only"),
)

STALE = {0.0: 3, 0.2: 3, 0.4: 1, 0.8: 1, 0.6: 1}
"""Shares of what the policy remembers that are wrong in the world it is trained in, with the seeds
of each: from 0.4 on every reward ends with a reader, so that the points below decide.
"""
REWARDED = {
    "answers alone": ("pou.py", "hack_answer_only.yaml"),
    "Proof-of-Use, as published": ("pou.py", "pou_tiny_paper.yaml"),
    "VERITAS": ("veritas.py", "hack_veritas.yaml"),
    "counterfactual groups": ("pou.py", "hack_counterfactual.yaml"),
    "source gate alone": ("pou.py", "hack_source_gated.yaml"),
    "Proof-of-Use, ours": ("pou.py", "pou_tiny.yaml"),
}


def at(reward: str, stale: float) -> str:
    """The setting's name."""
    return f"{reward}, {stale:.0%} stale"


def stale_settings() -> dict[str, Setting]:
    """Every reward in every world, by name."""
    settings: dict[str, Setting] = {}
    for stale, seeds in STALE.items():
        for reward, (recipe, config) in REWARDED.items():
            settings[at(reward, stale)] = Setting(recipe, config, {"stale": stale}, seeds)
    return settings


def settings_by_share(reward: str) -> dict[float, str]:
    """The names of a reward's settings, by the share that is stale."""
    return {stale: at(reward, stale) for stale in sorted(STALE)}


HACKING = Study(
    start="memory",
    settings=stale_settings(),
    measure=POU.measure,
    metrics=(
        "exact_match",
        "exact_match_changed",
        "follow_rate",
        "memory_share",
        "answer_first",
        "valid_format",
    ),
    bars=("follow_rate", "exact_match", "exact_match_changed"),
    curves={},
    diagram={reward: settings_by_share(reward) for reward in REWARDED},
    varied="share of remembered facts that are wrong",
)

FAITHFULNESS = ("info_think_facts", "think_search_facts", "think_answer_facts")
BY_WORDS = ("info_think_lexical", "think_search_lexical", "think_answer_sub_em")
VERITAS = Study(
    start="search_r1",
    settings={
        "EM": Setting("veritas.py", "veritas_tiny_em_only.yaml"),
        "EM + info-think": Setting("veritas.py", "veritas_tiny_info_think.yaml"),
        "EM + info-think, no curriculum": Setting(
            "veritas.py",
            "veritas_tiny_info_think.yaml",
            {"curriculum_start": 0, "curriculum_end": 0},
        ),
        "EM + info-think + think-answer": Setting("veritas.py", "veritas_tiny.yaml"),
    },
    measure={"config": CONFIGS / "eval_veritas_tiny.yaml"},
    metrics=("exact_match", "f1", *FAITHFULNESS, *BY_WORDS, "valid_format", "calls"),
    bars=("exact_match", *FAITHFULNESS),
    curves={
        "training.png": (
            (
                "EM",
                "EM + info-think",
                "EM + info-think, no curriculum",
                "EM + info-think + think-answer",
            ),
            ("parts/exact_match", "parts/info_think", "parts/think_answer", "tools/calls"),
        )
    },
)
SILENT = {"w_info_think": 0, "w_think_answer": 0}
RLOO: Flags = {"advantages": "leave_one_out", "loss_type": "dr_grpo"}
PARTS: dict[str, Flags] = {
    "EM": SILENT,
    "EM + info-think": {"w_think_answer": 0},
    "EM + info-think, curriculum": {
        "w_think_answer": 0,
        "curriculum_start": 15,
        "curriculum_end": 25,
    },
    "EM + info-think + think-answer": {},
    "EM + think-answer": {"w_info_think": 0, "w_think_answer": 0.05},
    "EM + info-think, weight 0.3": {"w_info_think": 0.3, "w_think_answer": 0},
    "EM, RLOO": SILENT | RLOO,
    "EM + info-think, RLOO": {"w_think_answer": 0} | RLOO,
    "EM, KL 0.001": SILENT | {"beta": 1e-3},
    "EM + info-think, KL 0.001": {"w_think_answer": 0, "beta": 1e-3},
}
THOUGHTS = Study(
    start="pairs",
    settings={
        name: Setting("veritas.py", "veritas_pairs.yaml", flags) for name, flags in PARTS.items()
    },
    measure={"config": CONFIGS / "eval_veritas_pairs.yaml"},
    metrics=VERITAS.metrics,
    bars=VERITAS.bars,
    curves={
        "training.png": (
            tuple(PARTS),
            ("parts/exact_match", "parts/info_think", "parts/think_answer", "entropy"),
        ),
        "kl.png": (
            ("EM, KL 0.001", "EM + info-think, KL 0.001"),
            ("kl", "parts/exact_match", "parts/info_think"),
        ),
    },
    references=(START, "EM"),
    diagram={
        "EM + info-think": {
            0.0: "EM",
            0.05: "EM + info-think",
            0.3: "EM + info-think, weight 0.3",
        }
    },
    varied="weight of information-think",
)
"""VERITAS's parts where what a thought does not state is lost, and its weight (figure 4)."""
ESTIMATORS: dict[str, Flags] = {
    "GRPO": {},
    "GRPO, credit by turn": {"advantages": "turns"},
    "GRPO, not divided": {"scale_rewards": "none"},
    "RLOO": RLOO,
    "GRPO with LLDS": {"llds": 0.1},
}
RATES = {
    "GRPO": 2.5e-5,
    "GRPO, credit by turn": 5e-5,
    "GRPO, not divided": 5e-5,
    "RLOO": 5e-5,
    "GRPO with LLDS": 5e-5,
}
"""Chosen on validation questions by the reward, see docs/log.md; likewise PPO's below."""
NO_CURRICULUM: Flags = {"curriculum_start": 0, "curriculum_end": 0}
CREDIT = Study(
    start="search_r1",
    settings={
        **{
            name: Setting(
                "veritas.py",
                "veritas_tiny_no_curriculum.yaml",
                flags | {"learning_rate": RATES[name]},
            )
            for name, flags in ESTIMATORS.items()
        },
        "PPO": Setting("ppo.py", "ppo_tiny.yaml", NO_CURRICULUM | {"learning_rate": 1.25e-5}),
        "PPO over turns": Setting(
            *("ppo.py", "ppo_tiny.yaml"),
            NO_CURRICULUM
            | {"gae_over_turns": "true", "step_rewards": "true", "learning_rate": 1e-4},
        ),
        "PPO, weights 0.5 and 0.3": Setting(
            *("ppo.py", "ppo_tiny.yaml"),
            NO_CURRICULUM | {"w_info_think": 0.5, "w_think_answer": 0.3},
        ),
    },
    measure=VERITAS.measure,
    metrics=VERITAS.metrics,
    bars=VERITAS.bars,
    curves={
        "training.png": (
            (*ESTIMATORS, "PPO", "PPO over turns"),
            ("parts/exact_match", "parts/info_think", "likelihood/right", "grad_norm"),
        )
    },
    references=(START, "GRPO"),
)
"""One reward, VERITAS's without curriculum, under each way to make advantages of it; PPO with
larger weights, too.
"""
ON_GROUPS: Flags = {"advantages": "ppo", "value_learning_rate": 1e-3, "lam": 0.95}
HACK_ESTIMATORS = ESTIMATORS | {
    "RLOO, rate 2e-4": RLOO | {"learning_rate": 2e-4},
    "PPO": ON_GROUPS,
    "PPO, rate 5e-5": ON_GROUPS | {"learning_rate": 5e-5},
}
CREDIT_HACK = Study(
    start="memory",
    settings={
        name: Setting("pou.py", "pou_tiny.yaml", flags) for name, flags in HACK_ESTIMATORS.items()
    },
    measure=POU.measure,
    metrics=HACKING.metrics,
    bars=HACKING.bars,
    curves={
        "training.png": (
            tuple(HACK_ESTIMATORS),
            ("behaviour/answer_first", "behaviour/exact_match", "likelihood/right"),
        )
    },
    references=(START, "GRPO"),
)
"""Proof-of-Use's rewards on the policy that can hack, likewise."""
UNSCALED: Flags = {"scale_rewards": "none"}
"""Advantages as they are: divided by their group's deviation, own scores of whatever weight count
in full where all answers of a group are right, or all are wrong.
"""
SELF_EVAL = Study(
    start="self_eval",
    settings={
        "EM": Setting("self_eval.py", "self_eval_tiny.yaml"),
        "EM + own score": Setting("self_eval.py", "self_eval_tiny_trajectory.yaml"),
        "own verdict + own score (paper)": Setting("self_eval.py", "self_eval_tiny_paper.yaml"),
        "EM, unscaled": Setting("self_eval.py", "self_eval_tiny.yaml", UNSCALED),
        "EM + own score, unscaled": Setting(
            "self_eval.py", "self_eval_tiny_trajectory.yaml", UNSCALED
        ),
    },
    measure={
        **{"dialect": "self_eval", "triples": "none", "questions": "world_passages"},
        **{"turns": 6, "turn_tokens": 96, "total_tokens": 768},
    },
    metrics=("exact_match", "f1", "valid_format", "calls"),
    bars=("exact_match", "valid_format"),
    curves={
        "training.png": (
            ("EM", "EM + own score", "own verdict + own score (paper)"),
            ("parts/self_rubric", "self_gap"),
        )
    },
    references=(START, "EM"),
)
POKEE = Study(
    start="pokee",
    settings={
        "RLOO": Setting("pokee.py", "pokee_tiny.yaml"),
        "RLOO, rate 3e-4": Setting("pokee.py", "pokee_tiny.yaml", {"learning_rate": 3e-4}),
        "RLOO, F1": Setting("pokee.py", "pokee_tiny.yaml", {"correctness": "f1"}),
    },
    measure={
        "dialect": "pokee",
        "verify": "true",
        "turns": 10,
        "turn_tokens": 96,
        "total_tokens": 1024,
    },
    metrics=("exact_match", "f1", *FAITHFULNESS, *BY_WORDS, "valid_format", "calls"),
    bars=("exact_match", "info_think_facts"),
    curves={"training.png": (("RLOO", "RLOO, rate 3e-4", "RLOO, F1"), ("reward", "tools/calls"))},
)
STUDIES = {
    "pou": POU,
    "hacking": HACKING,
    "veritas": VERITAS,
    "thoughts": THOUGHTS,
    "self_eval": SELF_EVAL,
    "pokee": POKEE,
    "credit": CREDIT,
    "credit_hack": CREDIT_HACK,
}


@dataclass(frozen=True)
class Run:
    """One training run, or none: the cold start itself."""

    setting: str
    folder: Path
    policy: Path
    command: tuple[str, ...] = ()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("study", choices=list(STUDIES))
    parser.add_argument("--out", type=Path, default=Path("outputs/study"))
    parser.add_argument("--steps", type=int, default=40, help="steps of every run")
    parser.add_argument("--split", default="test")
    parser.add_argument(
        "--limit", type=int, default=None, help="questions of the split; all without it"
    )
    parser.add_argument("--workers", type=int, default=2, help="runs at a time, one thread each")
    parser.add_argument(
        "--only",
        nargs="+",
        metavar="SETTING",
        help="these settings alone, by their names in the tables",
    )
    parser.add_argument("--seeds", type=int, default=None, help="at most so many of each setting")
    parser.add_argument(
        "--first_seed", type=int, default=0, help="leave out the seeds before this one"
    )
    parser.add_argument(
        "--measured", action="store_true", help="train nothing: tables and figures of what is there"
    )
    args = parser.parse_args()
    study = narrowed(STUDIES[args.study], args.only, args.seeds)
    runs = plan(study, args)
    if args.measured:
        runs = [run for run in runs if (run.folder / "test" / "metrics.json").exists()]
        return summarise(study, runs, args.out)

    def train_and_measure(run: Run) -> None:
        do(run, study.measure, args)

    with ThreadPoolExecutor(args.workers) as pool:
        ended = pool.map(train_and_measure, runs)
        for _ in tqdm(ended, total=len(runs), desc="runs"):
            pass
    summarise(study, runs, args.out)


def narrowed(study: Study, only: Sequence[str] | None, seeds: int | None) -> Study:
    """Some of the settings, with fewer seeds."""
    names = only or list(study.settings)
    unknown = [name for name in names if name not in study.settings]
    if unknown:
        sys.exit(f"no setting {', '.join(unknown)}; there are: {', '.join(study.settings)}")
    settings: dict[str, Setting] = {}
    for name in names:
        setting = study.settings[name]
        most = min(seeds or setting.seeds, setting.seeds)
        settings[name] = replace(setting, seeds=most)
    curves: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {}
    for file, (settings_of_file, drawn) in study.curves.items():
        shown = tuple(name for name in settings_of_file if name in settings)
        if shown:
            curves[file] = (shown, drawn)
    references = tuple(name for name in study.references if name in (START, *settings))
    return replace(study, settings=settings, curves=curves, references=references)


def plan(study: Study, args: argparse.Namespace) -> list[Run]:
    """The cold start and every setting; seeds side by side, so that what is there of a partial
    study is balanced.
    """
    runs = [Run(START, args.out / "cold_start", tiny_policy(study.start))]
    most_seeds = max(setting.seeds for setting in study.settings.values())
    for seed in range(args.first_seed, most_seeds):
        for name, setting in study.settings.items():
            if seed < setting.seeds:
                folder = args.out / f"{as_file_name(name)}_{seed}"
                program = command(setting, folder, seed, args.steps)
                runs.append(Run(name, folder, folder, program))
    if len(runs) == 1:
        sys.exit(f"no setting has a seed from {args.first_seed} on: give a smaller --first_seed")
    return runs


def as_file_name(name: str) -> str:
    """The name with an underscore for each character that is no letter or digit."""
    return re.sub(r"[\W_]", "_", name)


def command(setting: Setting, folder: Path, seed: int, steps: int) -> tuple[str, ...]:
    flags: dict[str, Any] = {
        "config": config_named(setting.config),
        "output_dir": folder,
        "seed": seed,
        "max_steps": steps,
        "threads": 1,
        # of what was stopped; what is finished is not trained again
        "overwrite": "true",
    }
    if setting.recipe != "sft.py":
        flags["eval_limit"] = 0
    return (str(RECIPES / setting.recipe), *as_flags({**flags, **setting.flags}))


def do(run: Run, measure: Flags, args: argparse.Namespace) -> None:
    """Train where needed and measure once."""
    measured = run.folder / "test"
    if (measured / "metrics.json").exists():
        return
    run.folder.mkdir(parents=True, exist_ok=True)
    if run.command and not (run.folder / "model.safetensors").exists():
        run_program(run.command, run.folder / "train.log")
    flags = {
        **measure,
        "model": run.policy,
        "split": args.split,
        "out": measured,
        "threads": 1,
        "resume": "true",
    }
    if args.limit:
        flags["limit"] = args.limit
    run_program((str(RECIPES / "evaluate.py"), *as_flags(flags)), run.folder / "test.log")


def summarise(study: Study, runs: list[Run], out: Path) -> None:
    """Tables and figures of what has been measured."""
    evaluations: dict[str, list[Evaluation]] = {}
    histories: dict[str, list[Any]] = {}
    for run in runs:
        metrics = json.loads((run.folder / "test" / "metrics.json").read_text())
        measured = next(value for key, value in metrics.items() if key != "script")
        evaluations.setdefault(run.setting, []).append(Evaluation.from_dict(measured))
        history = run.folder / "history.json"
        if history.exists():
            histories.setdefault(run.setting, []).append(json.loads(history.read_text()))
    tables = tables_over_seeds(evaluations, study.metrics, study.references)
    write_metrics(out / "study.json", tables)
    text = as_markdown(tables, evaluations, study.metrics)
    (out / "study.md").write_text(text + "\n", encoding="utf-8")
    for file, (settings, curves) in study.curves.items():
        drawn = {name: histories[name] for name in settings if name in histories}
        logged = logged_in(drawn)
        there = [curve for curve in curves if curve in logged]
        if there:
            compare(drawn, there, out / file, window=5)
    rows = drawable(tables[VALUES])
    if study.diagram:
        varied = {label: _measured(line, rows) for label, line in study.diagram.items()}
        if any(varied.values()):  # `--only` may leave none of its settings
            lines(varied, study.bars, out / "diagram.png", study.varied, rows.get(START))
    if len(rows) <= MOST_BARS:
        bars(rows, study.bars, out / "results.png")
    print(text)


def logged_in(histories: Mapping[str, Sequence[Sequence[Mapping[str, Any]]]]) -> set[str]:
    """What the runs logged. A part of a reward that no setting has is in none of them."""
    names: set[str] = set()
    for runs in histories.values():
        for history in runs:
            for row in history:
                names.update(row)
    return names


def _measured(line: Mapping[float, str], rows: Mapping[str, Any]) -> dict[float, Any]:
    return {place: rows[name] for place, name in line.items() if name in rows}


if __name__ == "__main__":
    main()
