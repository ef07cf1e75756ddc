"""What the training recipes share: the trainer that flags describe, and a run with an evaluation before and after."""

import json
import logging
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, cast

import msgspec
from accelerate import PartialState
from accelerate.utils import gather_object
from transformers import PrinterCallback, ProgressCallback, TrainerCallback
from trl import GRPOConfig, get_peft_config

from ..bundled import bundled_policy
from ..errors import DataError
from ..inference.base import Sampling
from ..inference.loading import read_tokenizer
from ..judges import Judge
from ..measure.controls import control_tasks, unremembered
from ..measure.evaluation import Evaluation, Record
from ..measure.suite import default_rewards, evaluate_rollouts, run_suite
from ..measure.writing import write_metrics
from ..rewards import Reward
from ..rollout import Engine
from ..tasks import WORLD, Task, load_tasks
from ..tools import Toolbox
from ..tools.base import Condenser
from ..trajectory import read_jsonl, write_jsonl
from . import checkpoints
from .arguments import PPO, PPOSettings, precision_line
from .callbacks import StepLine
from .changed_worlds import counterfactual_world, with_stale
from .grpo import SearchGRPOTrainer
from .policies import open_policy, save_policy
from .ppo import SearchPPOTrainer
from .starting import Flags, RunArguments, started

BEFORE = "evaluation_before.json"
TRAINER_SETTINGS = (
    *(
        "learning_rate",
        "lr_scheduler_type",
        "max_steps",
        "num_train_epochs",
        "seed",
        "beta",
        "loss_type",
    ),
    *("temperature", "top_p", "top_k", "num_generations", "num_iterations", "steps_per_generation"),
    *("per_device_train_batch_size", "gradient_accumulation_steps", "world_size"),
)
"""TRL's that go into `metrics.json` and the card, beside our own."""
logger = logging.getLogger(__name__)


def build_trainer(flags: Flags, toolbox: Toolbox, reward: Reward) -> SearchGRPOTrainer:
    """The trainer that the flags describe; errors as of `SearchGRPOTrainer`."""
    script, args, model_args = flags
    source = bundled_policy(str(model_args.model_name_or_path), script.dialect)
    tasks = load_tasks(script.questions)
    if script.stale:
        tasks, changed = with_stale(
            tasks, counterfactual_world(script, tasks, args.seed), script.stale
        )
        PartialState().print(
            f"{changed} of {len(tasks)} training questions are asked in a changed world (--stale)"
        )
    where = {"revision": model_args.model_revision, "trust_remote_code": args.trust_remote_code}
    kind = SearchPPOTrainer if args.advantages == PPO else SearchGRPOTrainer
    trainer = kind(
        model=open_policy(source, model_args, args, script.save_merged),
        processing_class=read_tokenizer(source, **where),
        args=args,
        train_dataset=tasks,
        toolbox=toolbox,
        reward=reward,
        dialect=script.dialect,
        limits=script.limits(args.max_completion_length or 0),
        generation_batch=script.generation_batch,
        counterfactual_world=counterfactual_world(script, tasks, args.seed)
        if args.counterfactual
        else None,
        trajectory_file=Path(cast(str, args.output_dir)) / "trajectories.jsonl",
        peft_config=get_peft_config(model_args),
    )
    for callback in (ProgressCallback, PrinterCallback):  # `StepLine` says it in a line
        trainer.remove_callback(callback)
    return trainer


class BeforeTraining(TrainerCallback):
    """Evaluates the policy when training begins, after the trainer has moved it to its device. The result is kept in
    the output directory, so that a resumed run compares with the true beginning."""

    def __init__(
        self, trainer: SearchGRPOTrainer, script: RunArguments, metrics: Mapping[str, Reward]
    ) -> None:
        self.trainer, self.script, self.metrics = trainer, script, metrics
        self.path = Path(cast(str, trainer.args.output_dir)) / BEFORE
        # Read here: a resumed run that has nothing left to train never begins
        goes_on = script.resume and PartialState().is_main_process
        self.found: Evaluation | None = (
            read_before(self.path, script.held_out()) if goes_on else None
        )

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step:
            return
        self.found = evaluate(self.trainer, self.script, self.metrics)
        if self.found is not None:
            write_metrics(self.path, self.found.to_dict())
            rollouts = (
                msgspec.structs.replace(own, tokens=None) for own in self.found.trajectories
            )
            write_jsonl(self.path.with_suffix(".jsonl"), rollouts)
        elif state.is_world_process_zero:
            for file in (self.path, self.path.with_suffix(".jsonl")):
                file.unlink(missing_ok=True)  # it would be an earlier run's


def read_before(path: Path, tasks: list[Task]) -> Evaluation | None:
    """The evaluation that a run made when it began; `None`, with a warning, if none of these questions can be read."""
    try:
        found = Evaluation.from_dict(json.loads(path.read_text(encoding="utf-8")))
        if {*found.questions} != {task.id for task in tasks}:
            raise DataError(f"{path} is of other questions than this run's evaluation")
        return msgspec.structs.replace(
            found, trajectories=list(read_jsonl(path.with_suffix(".jsonl")))
        )
    except (OSError, ValueError, DataError) as error:
        if tasks:
            logger.warning("no evaluation of before training to compare with: %s", error)
        return None


@contextmanager
def trained(
    flags: Flags,
    reward: Callable[[Judge | None], Reward],
    metrics: Mapping[str, Reward] | None = None,
    condenser: Callable[[], Condenser | None] = lambda: None,
) -> Iterator[Record | None]:
    """A recipe's run: evaluate, train, save, evaluate again. Within the block it keeps the output directory and tools.

    Args:
        reward: makes the reward, given the judge.
        metrics: what evaluations report beside `measure.suite.default_rewards`.
        condenser: makes what shortens the tools' responses, see `EnvironmentArguments.toolbox`.

    Yields:
        The run's record; `None` on all processes but the main one.

    Raises:
        ConfigError: as `started` and `build_trainer`; if it is to resume and there is no complete checkpoint.
        JudgeError, Terminated: if the run was stopped with a checkpoint, see `SearchGRPOTrainer.train`.
    """
    script, args, _ = flags
    with started(script, args), script.toolbox(condenser()) as toolbox:
        judge = script.load_judge()
        trainer = build_trainer(flags, toolbox, reward(judge))
        measured = {
            **default_rewards(script.dialect, judge, script.eval_questions in WORLD),
            **(metrics or {}),
        }
        before = BeforeTraining(trainer, script, measured)
        trainer.add_callback(before)
        trainer.add_callback(
            StepLine()
        )  # after it, so that the first step's time excludes the evaluation
        checkpoints.train(trainer, script.resume)
        save_policy(trainer, merged=script.save_merged)
        after = evaluate(trainer, script, measured)
        yield (
            record_of(trainer, flags, before.found, after)
            if PartialState().is_main_process
            else None
        )


def record_of(
    trainer: SearchGRPOTrainer, flags: Flags, before: Evaluation | None, after: Evaluation | None
) -> Record:
    script, args, model_args = flags
    told = {field.name for field in fields(args)} - {field.name for field in fields(GRPOConfig)}
    unused = () if args.advantages == PPO else PPOSettings.__dataclass_fields__
    settings = {
        name: getattr(args, name) for name in (*sorted(told.difference(unused)), *TRAINER_SETTINGS)
    }
    # JSON has no NaN
    history = [
        {
            key: None if isinstance(value, float) and not math.isfinite(value) else value
            for key, value in row.items()
        }
        for row in trainer.state.log_history
    ]
    return Record(
        folder=str(args.output_dir),
        model=str(model_args.model_name_or_path),
        dialect=script.dialect,
        tools=list(trainer.toolbox.names),
        questions=script.eval_questions,
        settings={
            **asdict(script),
            **settings,
            "total_tokens": args.max_completion_length,
            "precision": precision_line(args),
        },
        steps=trainer.state.global_step,
        history=history,
        before=before,
        after=after,
    )


def evaluate(
    trainer: SearchGRPOTrainer, script: RunArguments, metrics: Mapping[str, Reward]
) -> Evaluation | None:
    """Greedy episodes on the held-out questions, with tools as they are, blanked and under the conditions of
    `measure.controls`, shared out over the processes. The main process scores them and returns the result; rewards that
    ask the policy are scored by all together: if its weights are sharded, no process can ask it alone."""
    tasks = script.held_out()
    if not tasks:
        return None
    state = PartialState()
    share = slice(state.process_index, None, state.num_processes)
    own, asked = tasks[share], control_tasks(tasks, script.eval_controls)[share]
    limits, greedy = trainer.engine.limits, Sampling(temperature=0.0)
    engine = Engine(trainer.generator, trainer.toolbox, script.dialect, limits, greedy)
    # Every process must enter both blocks, also one that has fewer questions: weights are gathered there.
    with trainer.generating():
        found = run_suite(engine, own, asked)
    rollouts, blind, controls = map(gather_object, found)
    order = [
        task.id
        for start in range(state.num_processes)
        for task in tasks[start :: state.num_processes]
    ]
    resources = {"policy": trainer.policy, "sampler": trainer.generator}
    bound = {name: reward.bind(**resources) for name, reward in metrics.items()}
    with trainer.asking(*bound.values()):
        if state.is_main_process:
            names, fresh = trainer.toolbox.names, unremembered(tasks)
            return evaluate_rollouts(
                rollouts, order, bound, names, limits.force_answer, blind, controls, fresh
            )
        for reward in bound.values():
            if reward.needs_policy:
                reward.score_batch(rollouts)
    return None
