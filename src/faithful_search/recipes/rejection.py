"""Rejection sampling: a policy answers its training questions several times, and is trained on the
rollouts that are right and rest on their evidence.

```
questions ─ policy ─> rollouts.jsonl ─ filter ─> accepted.jsonl ─ recipe `sft` ─> policy
```

It is the control that tells what reinforcement learning adds. Rollouts are written as they end, so
that a run which was interrupted goes on with `--resume`. Another round is the same command with the
last round's policy as `--model`. Flags behind `--` are those of `sft`.
"""

import os
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

from ..bundled import bundled_policy, shipped
from ..coldstart.filtering import reject, with_tools
from ..coldstart.plans import counted
from ..errors import ConfigError, DataError
from ..flags import check_least, flag
from ..hub.models import weights_of
from ..inference.base import Sampling
from ..measure.evaluation import run_episodes
from ..measure.ledger import same_settings
from ..measure.writing import write_metrics
from ..rollout import Engine
from ..tasks import Task, load_tasks
from ..training.refusing import check_dtype, check_files, check_folder, check_model, checked
from ..training.starting import owned, parse_recipe, run_recipe
from ..trajectory import Trajectory, write_jsonl
from ..wire.cache import key_of
from . import sft
from .evaluation_models import Models
from .evaluation_settings import PolicyArguments, as_trained

DEFAULT_CONFIG = shipped("recipes/configs") / "rejection_tiny.yaml"
TRAINING_CONFIG = "sft_rejection_tiny.yaml"
SETTINGS, ROLLOUTS, ACCEPTED, POLICY = "settings.json", "rollouts.jsonl", "accepted.jsonl", "policy"
"""What a run leaves in its folder: what the rollouts were made with, all of them, those that are
trained on, and the folder of the policy.
"""
MAY_CHANGE = (
    "out",
    "resume",
    "overwrite",
    "threads",
    "generation_batch",
    "trust_remote_code",
    "training",
    "min_episode_steps",
    "max_episode_steps",
    "per_question",
)
"""The flags on which no rollout depends."""


@dataclass
class RejectionArguments(PolicyArguments):
    """Which policy samples, what it is asked, and which rollouts it is trained on."""

    model: str = flag(
        "tiny_memory",
        "Policy to start from: the directory or Hub id of a model or an adapter, or a bundled one.",
    )
    questions: str = flag(
        "world", "Training questions: 'world' (bundled), a local file or a dataset on the Hub."
    )
    split: str = flag("train", "Split of the questions.")
    limit: int | None = flag(None, "Number of questions. By default all.")
    sample_seed: int | None = flag(
        None, "Random seed that draws the questions. By default the first ones are taken."
    )
    samples: int = flag(6, "Number of rollouts for each question.")
    temperature: float = flag(1.0, "Sampling temperature.")
    min_episode_steps: int = flag(1, "Minimum number of steps in a rollout that is trained on.")
    max_episode_steps: int = flag(10, "Maximum number of steps in a rollout that is trained on.")
    per_question: int = flag(
        0, "Maximum number of a question's rollouts that are trained on; 0 for all that pass."
    )
    training: str = flag(
        TRAINING_CONFIG, "Settings of the training: a configuration of recipes/sft.py."
    )
    out: str = flag("outputs/rejection", "Folder to write the rollouts and the policy to.")
    resume: bool = flag(False, "Go on with the run that was interrupted in --out.")
    overwrite: bool = flag(False, "Delete an earlier run in --out.")


def main(argv: Sequence[str] | None = None, recipe: str = "recipes/rejection.py") -> None:
    """Run the recipe with these arguments, by default those of the command line."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    check(arguments)
    script = parse(arguments)
    script = as_trained(script, script.model)
    out = Path(script.out)
    _, training_flags = split_flags(arguments)
    training = [*training_of(script), *training_flags]
    sft.check(training)  # before torch is imported
    with owned(out, overwrite=script.overwrite):
        rollouts, tools = sample(script)
        accepted, reasons = choose(rollouts, script)
        print(f"{len(accepted)} of {len(rollouts)} rollouts accepted; rejected: {counted(reasons)}")
        if not accepted:
            raise DataError(
                f"none of {len(rollouts)} rollouts can be trained on ({counted(reasons)}): give "
                "more --samples, or a policy that is right more often"
            )
        write_jsonl(out / ACCEPTED, (with_tools(trajectory, tools) for trajectory in accepted))
    sft.main([*training, "--trajectories", str(out / ACCEPTED)], recipe)


def split_flags(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """The recipe's own flags, and those of `sft` behind `--`."""
    if "--" not in arguments:
        return list(arguments), []
    place = list(arguments).index("--")
    return list(arguments[:place]), list(arguments[place + 1 :])


def check(argv: Sequence[str]) -> None:
    """Raise `ConfigError` for mistakes in the flags that can be seen without importing torch."""
    sampling_flags, _ = split_flags(argv)
    flags = checked(RejectionArguments, sampling_flags, default=DEFAULT_CONFIG)
    script: RejectionArguments = flags.script
    check_script(script)
    check_files(questions=[script.questions], corpus=[script.corpus])
    check_model(script.model, script.dialect)
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ConfigError(
            "the rollouts are sampled in one process: sample with `python recipes/rejection.py`, "
            "and train on several with `accelerate launch recipes/sft.py --trajectories "
            f"{script.out}/{ACCEPTED}`"
        )
    out = Path(script.out)
    if (out / ROLLOUTS).exists() and not (script.resume or script.overwrite):
        raise ConfigError(
            f"{out} holds an earlier run: --resume goes on with it, --overwrite starts anew"
        )
    check_folder(script.out, script.resume, script.overwrite)


def check_script(script: RejectionArguments) -> None:
    """Raise `ConfigError` for settings without meaning."""
    check_least(script, limit=1, samples=1, threads=0, generation_batch=1, seed=0)
    check_least(script, min_episode_steps=1, per_question=0)
    check_least(script, max_episode_steps=script.min_episode_steps)
    check_dtype(script.dtype)


def parse(argv: Sequence[str]) -> RejectionArguments:
    """The values of the recipe's own flags. Raises `ConfigError` for values that are not
    allowed.
    """
    script: RejectionArguments
    sampling_flags, _ = split_flags(argv)
    [script] = parse_recipe((RejectionArguments,), sampling_flags, DEFAULT_CONFIG)
    check_script(script)
    return script


def training_of(script: RejectionArguments) -> list[str]:
    """The flags of `sft`, without the rollouts."""
    folder = Path(script.out) / POLICY
    # A run may end while it samples, or before the first checkpoint: then the training starts anew
    has_begun = any(folder.glob("checkpoint-*"))
    flags = {
        "config": script.training,
        "model_name_or_path": bundled_policy(script.model, cast(str, script.dialect)),
        "output_dir": str(folder),
        "dialect": script.dialect,
        "min_episode_steps": script.min_episode_steps,
        "max_episode_steps": script.max_episode_steps,
        "seed": script.seed,
        "threads": script.threads,
        "resume": script.resume and has_begun,
        "overwrite": script.overwrite or (script.resume and not has_begun),
    }
    return [f"--{name}={value}" for name, value in flags.items()]


def sample(script: RejectionArguments) -> tuple[list[Trajectory], list[dict[str, Any]]]:
    """The rollouts of all questions, and the schemas of the tools that they had. Those that
    `--resume` finds are not sampled again.

    Raises `ConfigError` where these were sampled with other settings.
    """
    from transformers import set_seed

    from ..inference.loading import choose_threads

    file = Path(script.out) / ROLLOUTS
    if script.overwrite:
        file.unlink(missing_ok=True)
    tasks = tasks_of(script)
    settings_file = file.with_name(SETTINGS)
    settings = settings_of_rollouts(script, tasks)
    same_settings(settings_file, settings, "--overwrite starts anew", ledger=file)
    write_metrics(settings_file, settings)
    choose_threads(script.threads)
    # Another seed after each interruption: the same draws must not come twice
    finished = len(file.read_bytes().splitlines()) if file.exists() else 0
    set_seed(script.seed + finished)
    with script.toolbox() as toolbox:
        engine = Engine(
            Models().generator(script.model, script),
            toolbox,
            cast(str, script.dialect),
            script.limits(cast(int, script.total_tokens)),
            Sampling(temperature=script.temperature),
        )
        rollouts = run_episodes(engine, tasks, "sampling", file, tokens=False)
        return rollouts, toolbox.schemas


def tasks_of(script: RejectionArguments) -> list[Task]:
    """The questions, each repeated for its samples."""
    tasks = load_tasks(script.questions, script.split, script.limit, seed=script.sample_seed)
    return [task for task in tasks for _ in range(script.samples)]


def settings_of_rollouts(script: RejectionArguments, tasks: Sequence[Task]) -> dict[str, Any]:
    """What the rollouts depend on."""
    settings = {name: value for name, value in asdict(script).items() if name not in MAY_CHANGE}
    questions = [[task.id, task.question, task.answers] for task in tasks]
    return {
        **settings,
        "questions_digest": key_of(tasks=questions)[:16],
        "weights": weights_of(script.model),
    }


def choose(
    rollouts: Iterable[Trajectory], script: RejectionArguments
) -> tuple[list[Trajectory], Counter[str]]:
    """The rollouts to train on, and counts of the others by the reason (`filtering.reject`; "more"
    are those beyond `--per_question`).
    """
    accepted: list[Trajectory] = []
    reasons: Counter[str] = Counter()
    accepted_of_question: Counter[str | None] = Counter()
    for rollout in rollouts:
        reason = reject(rollout, script.min_episode_steps, script.max_episode_steps)
        has_limit = script.per_question > 0
        is_full = has_limit and accepted_of_question[rollout.question] >= script.per_question
        if reason is None and is_full:
            reason = "more"
        if reason is not None:
            reasons[reason] += 1
            continue
        accepted_of_question[rollout.question] += 1
        accepted.append(rollout)
    return accepted, reasons


if __name__ == "__main__":
    run_recipe(main)
