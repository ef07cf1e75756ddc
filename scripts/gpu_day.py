"""A real model on real questions that can be guessed: the cold start, the arms
of the experiment in docs/real.md, and their measurement, in one command without
a network.

```
# one GPU, four arms at once
python scripts/gpu_day.py --weights DIR --data DIR --out outputs/real \\
    --minutes 10 --arms answers paper paper_shuffled gate --limit 100
# two CPU cores, some hours
python scripts/gpu_day.py --weights DIR --data DIR --out outputs/real \\
    --minutes 600 --arms answers paper paper_shuffled --seeds 0 1
```

It ends by itself in time: programs that still run then save what they have, and
the same command goes on from there. Writes `summary.md`, `summary.json`,
`curves.png` and `results.png` to --out, an adapter for each arm and seed to
`arms/`, and every rollout. Exit code 3: there is more to do.
"""

import argparse
import json
import os
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from real_measures import EM, MEASURES, PRIMARY, evaluation_of
from real_questions import SETS, TRAINED, corpus_of, prepare, questions_of
from study_parts import (
    RECIPES,
    START,
    VALUES,
    as_flags,
    as_markdown,
    config_named,
    drawable,
    tables_over_seeds,
)
from timed_runs import PATIENCE, Job, Outcome, ended_by_sigterm, run_until

from faithful_search.analysis.figures import bars, compare
from faithful_search.errors import ConfigError, FaithfulSearchError
from faithful_search.hub.models import adapter_config
from faithful_search.measure.controls import RESULTS, ROLLOUTS
from faithful_search.measure.evaluation import Evaluation
from faithful_search.measure.ledger import same_settings
from faithful_search.measure.writing import write_metrics
from faithful_search.tasks import load_tasks
from faithful_search.training.refusing import read_config
from faithful_search.training.run_folder import fault, folders

POU, SFT, REJECTION = "pou.py", "sft.py", "rejection.py"
UNFINISHED = 3
MEASURING = 0.3
"""The share of the time that is kept for measuring."""
SHARED_GPU, SHARED_CPU = 4, 2
"""Programs at a time on one GPU, and on a CPU, where each has a thread."""
ON_GPU, ON_CPU = 8, 2
"""Questions a step."""
ROWS_ON_GPU, ROWS_ON_CPU = 4, 1
"""Rows whose gradient is computed at once: one of 1,500 tokens takes some 4 GB."""
ROLLOUTS_A_QUESTION = 8
EPISODES_A_STEP = 8
"""Of supervised training."""
DRAWN = ("behaviour/exact_match", "behaviour/valid_format", "tools/calls", "reward")
ADAPTER = "adapter_model.safetensors"
COMMAND = "from faithful_search.cli import main; main()"


@dataclass(frozen=True)
class Arm:
    """One way to train: its name in tables, its recipe and its configuration."""

    title: str
    recipe: str
    config: str


ARMS = {
    "answers": Arm("answers + format", POU, "real_smollm2-135m_answers.yaml"),
    "paper": Arm("Proof-of-Use, as published", POU, "real_smollm2-135m_paper.yaml"),
    "paper_shuffled": Arm(
        "Proof-of-Use, R_pt shuffled", POU, "real_smollm2-135m_paper_shuffled.yaml"
    ),
    "gate": Arm("source gate", POU, "real_smollm2-135m_gate.yaml"),
    "ours": Arm("Proof-of-Use, ours", POU, "real_smollm2-135m.yaml"),
    "rejection": Arm("rejection sampling", REJECTION, "real_smollm2-135m_rejection.yaml"),
    "more_sft": Arm("further SFT", SFT, "real_smollm2-135m_more_sft.yaml"),
}
START_CONFIG = "real_smollm2-135m_sft.yaml"


@dataclass(frozen=True)
class Run:
    """An arm with a seed, in a folder of its own."""

    name: str
    seed: int
    folder: Path

    @property
    def arm(self) -> Arm:
        return ARMS[self.name]

    @property
    def label(self) -> str:
        return f"{self.name}, seed {self.seed}"

    @property
    def trained(self) -> Path:
        """Where its checkpoints and, when it has ended, its policy are."""
        return self.folder / "policy" if self.arm.recipe == REJECTION else self.folder

    @property
    def has_ended(self) -> bool:
        return (self.trained / ADAPTER).exists()


@dataclass(frozen=True)
class Plan:
    """What the command's flags say, with values for those that were left open."""

    args: argparse.Namespace
    sets: tuple[str, ...]

    @property
    def out(self) -> Path:
        out: Path = self.args.out
        return out

    @property
    def data(self) -> Path:
        return self.out / "data"

    @property
    def start(self) -> Path:
        return self.out / "start"

    @property
    def runs(self) -> list[Run]:
        """Seeds side by side, so that what is there of an unfinished experiment is balanced."""
        runs = []
        for seed in self.args.seeds:
            for name in self.args.arms:
                runs.append(Run(name, seed, self.out / "arms" / f"{name}_{seed}"))
        return runs

    def machine(self, rows_a_step: int) -> dict[str, Any]:
        """The flags of a training that depend on the machine."""
        rows = ROWS_ON_GPU if self.args.gpu else ROWS_ON_CPU
        flags: dict[str, Any] = {
            "per_device_train_batch_size": rows,
            "gradient_accumulation_steps": rows_a_step // rows,
        }
        return flags if self.args.gpu else {**flags, "threads": 1, "use_cpu": "true"}


@dataclass(frozen=True)
class Measured:
    """A policy that is measured: its names in tables and in messages, its folder, and where its
    results go.
    """

    title: str
    label: str
    policy: Path
    folder: Path


def main(argv: Sequence[str] | None = None) -> None:
    args = parsed(argv)
    ends = time.monotonic() + 60 * args.minutes
    try:
        with ended_by_sigterm():
            code = run(args, ends)
    except FaithfulSearchError as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit("interrupted; the same command goes on")
    sys.exit(code)


def parsed(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--weights", type=Path, required=True, help="folder of the model")
    parser.add_argument("--data", type=Path, required=True, help=f"folder with {', '.join(SETS)}")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, required=True, help="when this call ends")
    parser.add_argument(
        "--arms",
        nargs="+",
        metavar="ARM",
        choices=list(ARMS),
        default=list(ARMS),
        help=f"by default all: {', '.join(ARMS)}",
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--start", type=Path, help="adapter to start from; by default it is made")
    parser.add_argument(
        "--split",
        choices=["validation", "test"],
        default="validation",
        help="questions to measure on; test ones when all is chosen",
    )
    parser.add_argument("--limit", type=int, default=200, help="at most so many of each set")
    parser.add_argument(
        "--measured",
        nargs="+",
        metavar="SET",
        choices=list(SETS),
        default=[TRAINED],
        help=f"sets to measure on: {', '.join(SETS)}",
    )
    parser.add_argument("--steps", type=int, default=40, help="of each arm")
    parser.add_argument(
        "--start-steps", type=int, help="of the cold start; by default three epochs"
    )
    parser.add_argument("--learning-rate", type=float, help="of the arms, in place of their own")
    parser.add_argument(
        "--questions-a-step",
        type=int,
        help=f"{ROLLOUTS_A_QUESTION} rollouts each; by default {ON_GPU} on a GPU, {ON_CPU} on a "
        "CPU",
    )
    parser.add_argument(
        "--workers",
        type=int,
        help=f"programs at a time; by default {SHARED_GPU} on a GPU, {SHARED_CPU} on a CPU",
    )
    args = parser.parse_args(argv)
    args.gpu = torch.cuda.is_available()
    args.weights = args.weights.resolve()
    args.workers = args.workers or (SHARED_GPU if args.gpu else SHARED_CPU)
    args.questions_a_step = args.questions_a_step or (ON_GPU if args.gpu else ON_CPU)
    # Nothing is asked of the Hub, whose absence would cost each program half a minute
    os.environ["HF_HUB_OFFLINE"] = "1"
    if not args.gpu:
        os.environ.setdefault("OMP_NUM_THREADS", "1")  # programs share the cores
    return args


def run(args: argparse.Namespace, ends: float) -> int:
    """Go on with the experiment until it is done or the time is over; the exit code."""
    if not (args.weights / "config.json").exists():
        raise ConfigError(f"--weights {args.weights} is no folder of a model: no config.json")
    args.out.mkdir(parents=True, exist_ok=True)
    settings = {
        "weights": args.weights.name,
        "steps": args.steps,
        "questions_a_step": args.questions_a_step,
        "learning_rate": args.learning_rate,
        "start": None if args.start is None else args.start.name,
        "start_steps": args.start_steps,
    }
    same_settings(args.out / "settings.json", settings, "give another --out")
    write_metrics(args.out / "settings.json", settings)
    plan = Plan(args, tuple(prepare(args.data, args.out / "data")))
    until = ends - 60 * args.minutes * MEASURING
    patience = max(PATIENCE, 60 * args.minutes * MEASURING / 4)
    if make_start(plan, until, patience).failed:
        return 1
    if not (plan.start / ADAPTER).exists():
        steps = last_step(plan.start)
        print(
            f"the time was over before the cold start was made ({steps} steps are saved): the same "
            "command goes on; no arm has begun"
        )
        return UNFINISHED
    jobs = [training_job(plan, arm) for arm in plan.runs if not arm.has_ended]
    trained = run_until(jobs, args.workers, until, patience)
    common, measured = what_is_measured(plan)
    jobs = [job for subject in measured for job in measuring_jobs(plan, subject)]
    # They take less memory than trainings
    at_once = 2 * args.workers if args.gpu else args.workers
    asked = run_until(jobs, at_once, ends, patience=5)
    left = notes(plan, common, asked)
    summarise(plan, measured, left)
    failed = [*trained.failed, *asked.failed]
    if failed:
        print(f"failed: {', '.join(failed)}")
        return 1
    return UNFINISHED if left else 0


# --- the cold start


def make_start(plan: Plan, until: float, patience: float) -> Outcome:
    """Take the prepared adapter, or train one until the time is over."""
    given: Path | None = plan.args.start
    if (plan.start / ADAPTER).exists():
        return Outcome()
    if given is not None:
        take_start(given, plan.start, plan.args.weights)
        return Outcome()
    flags = {
        "config": config_named(START_CONFIG),
        "model_name_or_path": plan.args.weights,
        "output_dir": plan.start,
        **resumed(plan.start),
        **plan.machine(EPISODES_A_STEP),
    }
    if not plan.args.gpu:
        flags["threads"] = plan.args.workers  # no other program runs yet
    if plan.args.start_steps:
        flags["max_steps"] = plan.args.start_steps
    lists = {
        "questions": [questions_of(plan.data, name, "train") for name in plan.sets],
        "source_kind": [SETS[name] for name in plan.sets],
        "corpus": [corpus_of(plan.data, name) for name in plan.sets],
    }
    arguments = [str(RECIPES / SFT), *as_flags(flags)]
    for name, values in lists.items():
        arguments += [f"--{name}", *map(str, values)]
    job = Job(START, tuple(arguments), plan.out / "start.log")
    return run_until([job], 1, until, patience)


def take_start(adapter: Path, folder: Path, weights: Path) -> None:
    """Copy a prepared adapter, which may have been made on another machine, and have it name the
    weights that are here. Raises `ConfigError` for a folder without an adapter.
    """
    config = adapter_config(adapter)
    if config is None:
        raise ConfigError(
            f"--start {adapter} holds no adapter_config.json: give the folder of an adapter, or "
            "leave it out to train one"
        )
    partial = folder.with_name(f".{folder.name}.partial")  # renamed when it is whole
    shutil.rmtree(partial, ignore_errors=True)
    shutil.copytree(adapter, partial, ignore=shutil.ignore_patterns("checkpoint-*", "_*"))
    config["base_model_name_or_path"] = str(weights)
    text = json.dumps(config, indent=1)
    (partial / "adapter_config.json").write_text(text, encoding="utf-8")
    partial.rename(folder)


# --- the arms


def training_job(plan: Plan, run: Run) -> Job:
    """The program that trains an arm, or goes on with it."""
    args = plan.args
    files = {
        "questions": questions_of(plan.data, TRAINED, "train"),
        "corpus": corpus_of(plan.data, TRAINED),
    }
    common = {"config": config_named(run.arm.config), "seed": run.seed, **files}
    if run.arm.recipe == REJECTION:
        arguments = rejection_flags(plan, run, common)
    else:
        flags = {
            **common,
            "model_name_or_path": plan.start,
            "output_dir": run.folder,
            "max_steps": args.steps,
            **rate_of(plan),
            **resumed(run.folder),
        }
        if run.arm.recipe == SFT:
            flags |= plan.machine(EPISODES_A_STEP)
        else:
            flags |= {
                **plan.machine(args.questions_a_step * ROLLOUTS_A_QUESTION),
                "eval_questions": questions_of(plan.data, TRAINED, "validation"),
                "eval_limit": 0,  # measured here, for all alike
                # SIGTERM leaves a checkpoint
                "enable_jit_checkpoint": "true",
            }
        arguments = as_flags(flags)
    log = run.folder.with_name(f"{run.folder.name}.log")
    return Job(run.label, (str(RECIPES / run.arm.recipe), *arguments), log)


def rejection_flags(plan: Plan, run: Run, common: Mapping[str, Any]) -> list[str]:
    """As many questions and rollouts as the arms of reinforcement learning have in all steps."""
    sampling = {
        **common,
        "model": plan.start,
        "out": run.folder,
        "limit": plan.args.steps * plan.args.questions_a_step,
        "samples": ROLLOUTS_A_QUESTION,
        "sample_seed": run.seed,
        "training": config_named("real_smollm2-135m_more_sft.yaml"),
        "resume": "true",
    }
    if not plan.args.gpu:
        sampling["threads"] = 1
    training = {
        **plan.machine(EPISODES_A_STEP),
        **rate_of(plan),
        "max_steps": plan.args.steps,
    }
    return [*as_flags(sampling), "--", *as_flags(training)]


def rate_of(plan: Plan) -> dict[str, Any]:
    rate = plan.args.learning_rate
    return {} if rate is None else {"learning_rate": rate}


def resumed(folder: Path) -> dict[str, str]:
    """The flag by which a training goes on from its last checkpoint, or begins anew without one."""
    name = "resume" if last_step(folder) else "overwrite"
    return {name: "true"}


def saved_steps(folder: Path) -> list[int]:
    """The steps of a run's complete checkpoints, in order."""
    there = [path for path in folders(folder) if not fault(path)]
    return [int(path.name.rpartition("-")[2]) for path in there]


def last_step(folder: Path) -> int:
    """The step of the last complete checkpoint; 0 where there is none."""
    return max(saved_steps(folder), default=0)


# --- measuring


def what_is_measured(plan: Plan) -> tuple[int, list[Measured]]:
    """The start and each arm's policy. Arms of reinforcement learning are compared at the last step
    that all of them have saved, which comes first: 0 where there is none. The others are measured
    when they have ended.
    """
    learning = [run for run in plan.runs if run.arm.recipe == POU]
    steps = [set(saved_steps(run.trained)) for run in learning]
    common = max(set.intersection(*steps), default=0) if steps else 0
    folder = plan.out / "measured"
    measured = [Measured(START, START, plan.start, folder / "start")]
    for run in plan.runs:
        name = run.folder.name
        if run.arm.recipe == POU and common:
            policy = run.folder / f"checkpoint-{common}"
            place = folder / f"{name}_step_{common}"
            measured.append(Measured(run.arm.title, run.label, policy, place))
        elif run.arm.recipe != POU and run.has_ended:
            measured.append(Measured(run.arm.title, run.label, run.trained, folder / name))
    return common, measured


def measuring_jobs(plan: Plan, measured: Measured) -> list[Job]:
    """The programs that ask a policy the questions of each set, as they are, without the gold pages
    and in changed worlds; none for results that are there.
    """
    settings = read_config(config_named("real_smollm2-135m.yaml"))
    jobs = []
    for name in plan.args.measured:
        folder = results_of(plan, measured, name)
        if (folder / RESULTS).exists():
            continue
        flags = {
            "questions": measured_questions(plan, name),
            "limit": plan.args.limit,
            "corpus": corpus_of(plan.data, name),
            "conditions": "blocked,changed",
            "dialect": "pou",
            "search-top-k": settings["search_top_k"],
            "turns": settings["turns"],
            "turn-tokens": settings["turn_tokens"],
            "total-tokens": settings["max_completion_length"],
            "out": folder,
        }
        arguments = ("-c", COMMAND, "controls", str(measured.policy), *as_flags(flags))
        label = f"measuring {measured.label} on {name}"
        jobs.append(Job(label, arguments, folder.with_suffix(".log")))
    return jobs


def results_of(plan: Plan, measured: Measured, name: str) -> Path:
    """The folder for a policy's results on a set of questions. It names the limit, so that results
    on more or fewer questions are not compared with these.
    """
    return measured.folder / f"{name}_{plan.args.split}_limit_{plan.args.limit}"


def measured_questions(plan: Plan, name: str) -> Path:
    """The file of the questions that are measured. Test questions lie where they were given."""
    if plan.args.split == "test":
        test: Path = plan.args.data / name / "test.jsonl.gz"
        return test
    return questions_of(plan.data, name, plan.args.split)


# --- the summary


def notes(plan: Plan, common: int, asked: Outcome) -> list[str]:
    """What is not done yet, in sentences: of the arms, which are compared at the step `common`, and
    of what they were asked.
    """
    lines = []
    without = []
    fewer = []
    for run in plan.runs:
        if run.has_ended:
            continue
        steps = last_step(run.trained)
        if steps:
            fewer.append(f"{run.label} ({steps})")
        else:
            without.append(run.label)
    if without:
        lines.append(f"Without a saved step, since the time was over: {', '.join(without)}.")
    if fewer:
        lines.append(f"Not all of {plan.args.steps} steps are made: {', '.join(fewer)}.")
    learning = [run for run in plan.runs if run.arm.recipe == POU]
    if learning and not common:
        lines.append("The arms have no saved step in common, so none of them is measured.")
    elif learning and common < plan.args.steps:
        lines.append(f"Arms of reinforcement learning are compared at step {common}.")
    unfinished = [*asked.stopped, *asked.waiting]
    if unfinished:
        lines.append(f"Not finished, since the time was over: {', '.join(unfinished)}.")
    return lines


def summarise(plan: Plan, measured: Sequence[Measured], left: Sequence[str]) -> None:
    """Write and print the tables of what is there, and draw it."""
    parts = [opening(plan), *left]
    written: dict[str, Any] = {}
    for name in plan.args.measured:
        evaluations = evaluations_on(plan, measured, name)
        if not evaluations:
            parts.append(f"Nothing is measured on {name} yet.")
            continue
        references = [START, ARMS["answers"].title, ARMS["paper_shuffled"].title]
        tables = tables_over_seeds(evaluations, MEASURES, references)
        written[name] = tables
        parts += [f"# {name}", as_markdown(tables, evaluations, MEASURES)]
        if name == TRAINED:
            shown = [measure for measure in PRIMARY if has_value(tables[VALUES], measure)]
            bars(drawable(tables[VALUES]), shown or [EM], plan.out / "results.png")
    histories = {run: history_of(run) for run in plan.runs if run.arm.recipe == POU}
    parts += ["# Arms of reinforcement learning", speeds(plan, histories)]
    curves: dict[str, list[list[dict[str, Any]]]] = {}
    for run, history in histories.items():
        if history:
            curves.setdefault(run.arm.title, []).append(history)
    if curves:
        compare(curves, DRAWN, plan.out / "curves.png", window=5)
    if left:
        parts.append("The same command goes on.")
    write_metrics(plan.out / "summary.json", written)
    text = "\n\n".join(parts)
    (plan.out / "summary.md").write_text(text + "\n", encoding="utf-8")
    print(text)


def opening(plan: Plan) -> str:
    device = torch.cuda.get_device_name() if plan.args.gpu else "CPU"
    return (
        f"{plan.args.weights.name} on {device}, at most {plan.args.limit} {plan.args.split} "
        "questions of each set, greedy, intervals over questions and seeds; "
        f"{plan.args.questions_a_step} questions x {ROLLOUTS_A_QUESTION} rollouts a step."
    )


def has_value(table: Mapping[str, Mapping[str, Any]], measure: str) -> bool:
    return any(row[measure].value is not None for row in table.values())


def evaluations_on(
    plan: Plan, measured: Sequence[Measured], name: str
) -> dict[str, list[Evaluation]]:
    """The evaluations on a set of questions by the arm's title, one a seed."""
    tasks = load_tasks(measured_questions(plan, name))
    evaluations: dict[str, list[Evaluation]] = {}
    for subject in measured:
        folder = results_of(plan, subject, name)
        if (folder / RESULTS).exists():
            evaluation = evaluation_of(folder / ROLLOUTS, tasks)
            evaluations.setdefault(subject.title, []).append(evaluation)
    return evaluations


def history_of(run: Run) -> list[dict[str, Any]]:
    """What a training has logged up to its last checkpoint, an entry a step."""
    there = [path for path in folders(run.trained) if not fault(path)]
    if not there:
        return []
    state = json.loads((there[-1] / "trainer_state.json").read_text(encoding="utf-8"))
    return [row for row in state["log_history"] if "loss" in row]


def speeds(plan: Plan, histories: Mapping[Run, Sequence[Mapping[str, Any]]]) -> str:
    """A table of how fast the arms were trained, with what TRL and torch logged of it."""
    lines = [
        "Tokens are those of rollouts with their prompts. A GPU's memory is what torch allocated, "
        "a CPU's the whole program. Programs run beside each other.",
        "",
        "| arm | steps | seconds a step | rollouts a second | tokens a second | peak memory, GB |",
        "|---|---|---|---|---|---|",
    ]
    for run, history in histories.items():
        if not history:
            lines.append(f"| {run.label} | 0 | - | - | - | - |")
            continue
        seconds = sum(row["step_time"] for row in history)
        rollouts = len(history) * plan.args.questions_a_step * ROLLOUTS_A_QUESTION
        tokens = history[-1]["num_tokens"]
        peak = max((row.get("memory/peak_gb", 0.0) for row in history), default=0.0)
        lines.append(
            f"| {run.label} | {len(history)} | {seconds / len(history):.1f} | "
            f"{rollouts / seconds:.2f} | {tokens / seconds:.0f} | {peak:.2f} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
