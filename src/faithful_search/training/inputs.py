"""What a search trainer is given, in the form that TRL takes, and what of it is refused."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import cast

from datasets import Dataset
from trl import GRPOConfig

from ..errors import ConfigError, DataError
from ..rewards import AnswerLikelihoodGap, Mix
from ..rewards.evidence_sensitivity import EvidenceSensitivity
from ..tasks import Task, task_from_row
from .vllm import check_vllm


def as_tasks(rows: Sequence[Task] | Dataset) -> list[Task]:
    """Tasks, or rows of any known source, as tasks."""
    return [
        row if isinstance(row, Task) else task_from_row(row, number, "dataset row") for number, row in enumerate(rows)
    ]


def prompt_dataset(tasks: Sequence[Task] | Dataset) -> Dataset:
    """The trainer's columns: `prompt` (the question; the engine builds the chat), `id`, `answers`."""
    rows = as_tasks(tasks)
    if not rows:
        raise DataError("the dataset has no rows")
    return Dataset.from_list([{"prompt": row.question, "id": row.id, "answers": list(row.answers)} for row in rows])


def steps_per_epoch(args: GRPOConfig, questions: int) -> int:
    """Optimizer steps of one pass over that many questions, without a last incomplete batch; for `Warmup.parse`.

    `args` must be the trainer's own, in the process that it runs in.
    """
    batch = cast(int, args.generation_batch_size) // cast(int, args.num_generations)
    cycle = (args.steps_per_generation or 1) * args.num_iterations
    return max(1, math.ceil(questions // batch * cycle / args.gradient_accumulation_steps))


def check_reward(mix: Mix, dialect: str, verdict_weight: float, uniform_groups: str, kept_responses: int) -> None:
    """Refuse a reward that the dialect cannot have, or that the update needs more of."""
    if not mix.covers(dialect):
        raise ConfigError(f"a part of the reward does not cover dialect {dialect!r}, so that no row would have a value")
    if uniform_groups not in ("keep", "drop"):
        raise ConfigError(f"unknown uniform_groups {uniform_groups!r}; there are: keep, drop")
    if uniform_groups == "drop" and mix.outcome is None:
        raise ConfigError("uniform_groups='drop' needs one reward that says whether an answer is right")
    if kept_responses and any(isinstance(reward, AnswerLikelihoodGap) for reward in mix.within()):
        raise ConfigError("the likelihood gap reads a rollout as one context, which kept_responses makes several of")
    if verdict_weight < 0:
        raise ConfigError(f"verdict_weight must be 0 (no verdict term) or more, not {verdict_weight}")
    if verdict_weight and not any(isinstance(reward, EvidenceSensitivity) for reward in mix.within()):
        raise ConfigError("verdict_weight needs a reward that probes the policy: EvidenceSensitivity")


def check_settings(args: GRPOConfig) -> None:
    """Refuse settings that the engine would ignore, and checkpoints that a run could not resume from unchanged."""
    check_vllm(args, args.device.type)
    ignored = [name for name in ("min_p", "generation_kwargs") if getattr(args, name)]
    ignored += ["repetition_penalty"] if args.repetition_penalty != 1.0 else []
    if ignored:
        raise ConfigError(
            f"not supported by the search engine's generator: {', '.join(ignored)}; leave them at their defaults"
        )
    if args.temperature <= 0:
        raise ConfigError(
            f"temperature must be above 0, not {args.temperature:g}: rollouts that are all alike teach nothing"
        )
    if args.save_strategy == "steps" and args.save_steps < 1:
        raise ConfigError(
            f"save_steps is a whole number of steps, 1 or more, not {args.save_steps:g}; save_strategy 'no' saves no "
            "checkpoint"
        )
    cycle = (args.steps_per_generation or 1) * args.num_iterations
    if args.save_strategy == "steps" and args.save_steps * args.gradient_accumulation_steps % cycle:
        raise ConfigError(
            f"save_steps={args.save_steps:g} would save in the middle of a generation's {cycle} batches, and a resumed "
            f"run would differ; make save_steps x gradient_accumulation_steps a multiple of {cycle}"
        )
