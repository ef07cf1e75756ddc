"""What the training recipes share: their flags, the trainer these make, and one run from before to after."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, cast

import torch
from accelerate import PartialState
from accelerate.utils import gather_object
from transformers import AutoTokenizer, PrinterCallback, ProgressCallback, set_seed
from transformers.trainer_utils import get_last_checkpoint
from trl import GRPOConfig, ModelConfig, get_peft_config

from ..bundled import tiny_policy
from ..errors import ConfigError
from ..evaluation.record import Record
from ..evaluation.suite import Evaluation, evaluate_rollouts, run_episodes
from ..inference.base import Sampling
from ..judges.arguments import JudgeArguments
from ..rewards import Reward
from ..rollout import Engine
from ..rollout.arguments import EnvironmentArguments
from ..tasks import WORLD, load_tasks
from ..tools import Toolbox
from .callbacks import StepLine
from .config import model_init_kwargs
from .grpo import SearchGRPOTrainer


@dataclass
class RunArguments(EnvironmentArguments, JudgeArguments):
    """What is asked, with which tools, and who judges: the flags that every training recipe has."""

    questions: str = field(
        default="world", metadata={"help": "'world' or 'world_passages' (bundled), a local file or a Hub dataset"}
    )
    eval_questions: str = field(default="world", metadata={"help": "held-out questions, likewise"})
    eval_split: str = field(default="validation", metadata={"help": "split of the held-out questions"})
    eval_limit: int = field(default=200, metadata={"help": "how many held-out questions; 0 skips the evaluations"})
    max_abstained: float = field(
        default=0.5, metadata={"help": "share of a step's rollouts that a judge may leave open before the run stops"}
    )
    advantages: str = field(default="trl", metadata={"help": "'trl', 'group_relative' or 'leave_one_out'"})
    threads: int = field(default=0, metadata={"help": "CPU threads of this process; 0 leaves torch's own choice"})
    resume: bool = field(default=False, metadata={"help": "go on from the last checkpoint in output_dir"})


def check_data(script: RunArguments) -> None:
    """Raise `ConfigError` when questions about the bundled world meet another corpus, or the other way round."""
    asked = [script.questions, *([script.eval_questions] if script.eval_limit else [])]
    bundled = {name in WORLD for name in (script.corpus, *asked)}
    if len(bundled) > 1:
        raise ConfigError(
            f"questions {script.questions!r}, eval_questions {script.eval_questions!r}, corpus {script.corpus!r}: "
            "the bundled world and other data are mixed; give all three"
        )


def begin(script: RunArguments, args: GRPOConfig) -> None:
    """Threads and seed, before anything random happens."""
    if script.threads:
        torch.set_num_threads(script.threads)
    set_seed(args.seed)


def policy_source(name: str, dialect: str) -> str:
    """A directory or Hub id of a policy: `"tiny"` is the bundled one that writes the dialect.

    Raises:
        DataError: when no bundled policy writes it.
    """
    return str(tiny_policy(dialect)) if name == "tiny" else name


def build_trainer(
    script: RunArguments, args: GRPOConfig, model_args: ModelConfig, toolbox: Toolbox, reward: Reward
) -> SearchGRPOTrainer:
    """The trainer that the flags describe, its progress one line a step.

    Raises:
        ConfigError, DataError, TemplateError: as `SearchGRPOTrainer` does.
    """
    source = policy_source(str(model_args.model_name_or_path), script.dialect)
    given = cast(dict[str, Any], args.model_init_kwargs or {})
    args.model_init_kwargs = {**model_init_kwargs(model_args), **given}
    trainer = SearchGRPOTrainer(
        model=source,
        processing_class=AutoTokenizer.from_pretrained(source, revision=model_args.model_revision),
        args=args,
        train_dataset=load_tasks(script.questions),
        toolbox=toolbox,
        reward=reward,
        dialect=script.dialect,
        limits=script.limits(args.max_completion_length or 0),
        advantages=script.advantages,
        max_abstained=script.max_abstained,
        trajectory_file=Path(cast(str, args.output_dir)) / "trajectories.jsonl",
        generation_batch=script.generation_batch,
        peft_config=get_peft_config(model_args),
    )
    for callback in (ProgressCallback, PrinterCallback):
        trainer.remove_callback(callback)
    trainer.add_callback(StepLine())
    return trainer


def train(
    trainer: SearchGRPOTrainer, script: RunArguments, model_args: ModelConfig, metrics: Mapping[str, Reward]
) -> Record | None:
    """Evaluate, train, save, evaluate again.

    Args:
        trainer: from `build_trainer`.
        script, model_args: the recipe's flags.
        metrics: what the evaluations report, by row name; see `evaluation.suite.default_rewards`.

    Returns:
        What came of it; `None` on all processes but the main one.

    Raises:
        JudgeError: when the run was stopped because its judge was silent; a checkpoint is there to resume from.
    """
    before = evaluate(trainer, script, metrics)
    trainer.train(resume_from_checkpoint=get_last_checkpoint(trainer.args.output_dir) if script.resume else None)
    trainer.save_model()
    after = evaluate(trainer, script, metrics)
    if not PartialState().is_main_process:
        return None
    cast(Any, trainer.processing_class).save_pretrained(trainer.args.output_dir)
    return record(trainer, script, model_args, before, after)


def evaluate(trainer: SearchGRPOTrainer, script: RunArguments, metrics: Mapping[str, Reward]) -> Evaluation | None:
    """Greedy episodes on the held-out questions, shared out over the processes; scored by the main one."""
    if not script.eval_limit:
        return None
    state = PartialState()
    tasks = load_tasks(script.eval_questions, script.eval_split, script.eval_limit)
    own = tasks[state.process_index :: state.num_processes]
    engine = Engine(
        trainer.generator, trainer.toolbox, script.dialect, trainer.engine.limits, Sampling(temperature=0.0)
    )
    with trainer.accelerator.autocast():
        rollouts = gather_object(run_episodes(engine, own))
        if not state.is_main_process:
            return None
        order = [task.id for start in range(state.num_processes) for task in tasks[start :: state.num_processes]]
        bound = {name: reward.bind(policy=trainer.generator) for name, reward in metrics.items()}
        return evaluate_rollouts(rollouts, order, bound, trainer.toolbox.names, engine.limits.force_answer)


def record(
    trainer: SearchGRPOTrainer,
    script: RunArguments,
    model_args: ModelConfig,
    before: Evaluation | None,
    after: Evaluation | None,
) -> Record:
    """The run as a value that needs no trainer to be read."""
    args = cast(GRPOConfig, trainer.args)
    more = {name: getattr(args, name) for name in ("learning_rate", "max_steps", "seed")}
    return Record(
        folder=str(args.output_dir),
        model=str(model_args.model_name_or_path),
        dialect=script.dialect,
        tools=list(trainer.toolbox.names),
        questions=script.eval_questions,
        settings={**asdict(script), "total_tokens": args.max_completion_length, **more},
        steps=trainer.state.global_step,
        history=[{key: _finite(value) for key, value in row.items()} for row in trainer.state.log_history],
        before=before,
        after=after,
    )


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
