"""What the training recipes share: the trainer that flags describe, and a run with an evaluation
before and after.
"""

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
from transformers.utils.logging import disable_progress_bar
from trl import GRPOConfig, get_peft_config

from .. import suites
from ..bundled import BUNDLED, bundled_policy
from ..errors import DataError
from ..inference.base import Sampling
from ..inference.loading import read_tokenizer
from ..inference.once import AskedOnce
from ..judges import Judge
from ..measure.controls import control_tasks, unremembered
from ..measure.evaluating import default_rewards, evaluate_rollouts, run_conditions
from ..measure.evaluation import Evaluation, Record
from ..measure.writing import write_metrics
from ..rewards import Reward
from ..rollout import Engine
from ..tasks import Task, load_tasks
from ..tools import Toolbox
from ..tools.base import Condenser
from ..trajectory import read_jsonl, write_jsonl
from . import checkpoints
from .arguments import PPO, PPOSettings, precision_line
from .callbacks import StepLine
from .changed_worlds import counterfactual_world, with_stale
from .dry_run import Play, reached
from .grpo import SearchGRPOTrainer
from .policies import open_policy, save_policy
from .ppo import SearchPPOTrainer
from .starting import Flags, RunArguments, started, warn_of_missing_gold

BEFORE = "evaluation_before.json"
TRAINER_SETTINGS = (
    "learning_rate",
    "lr_scheduler_type",
    "max_steps",
    "num_train_epochs",
    "seed",
    "beta",
    "loss_type",
    "temperature",
    "top_p",
    "top_k",
    "num_generations",
    "num_iterations",
    "steps_per_generation",
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "world_size",
)
"""The settings of TRL that go into `metrics.json` and the card, beside our own."""
logger = logging.getLogger(__name__)


def build_trainer(flags: Flags, toolbox: Toolbox, reward: Reward) -> SearchGRPOTrainer:
    """The trainer that the flags describe. Raises as `SearchGRPOTrainer` does."""
    script, args, model_args = flags
    model = str(model_args.model_name_or_path)
    source = bundled_policy(model, script.dialect)
    if model in BUNDLED:  # read and written in no time
        disable_progress_bar()
    tasks = load_tasks(script.questions)
    warn_of_missing_gold(script, tasks)
    if script.stale:
        world = counterfactual_world(script, tasks, args.seed)
        tasks, changed = with_stale(tasks, world, script.stale)
        PartialState().print(
            f"{changed} of {len(tasks)} training questions are asked in a changed world (--stale)"
        )
    counterfactual = None
    if args.counterfactual:
        counterfactual = counterfactual_world(script, tasks, args.seed)
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
        counterfactual_world=counterfactual,
        trajectory_file=Path(cast(str, args.output_dir)) / "trajectories.jsonl",
        peft_config=get_peft_config(model_args),
    )
    for callback in (ProgressCallback, PrinterCallback):  # `StepLine` says it in a line
        trainer.remove_callback(callback)
    return trainer


class BeforeTraining(TrainerCallback):
    """Evaluates the policy when training begins, after the trainer has moved it to its device.

    The evaluation is kept in the output directory, so that a resumed run compares with the same
    one.
    """

    def __init__(
        self, trainer: SearchGRPOTrainer, script: RunArguments, metrics: Mapping[str, Reward]
    ) -> None:
        self.trainer = trainer
        self.script = script
        self.metrics = metrics
        self.path = Path(cast(str, trainer.args.output_dir)) / BEFORE
        # Read here, since a resumed run with nothing left to train does not begin to train
        self.evaluation: Evaluation | None = None
        if script.resume and PartialState().is_main_process:
            self.evaluation = read_before(self.path, script.held_out())

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step:
            return
        evaluation = evaluate(self.trainer, self.script, self.metrics, "before training")
        self.evaluation = evaluation
        if evaluation is not None:
            warning = never_valid(evaluation, self.script.dialect)
            if warning:
                logger.warning("%s", warning)
            write_metrics(self.path, evaluation.to_dict())
            rollouts = (
                msgspec.structs.replace(rollout, tokens=None) for rollout in evaluation.trajectories
            )
            write_jsonl(self.path.with_suffix(".jsonl"), rollouts)
        elif state.is_world_process_zero:
            for file in (self.path, self.path.with_suffix(".jsonl")):
                file.unlink(missing_ok=True)  # it is an earlier run's


def never_valid(evaluation: Evaluation, dialect: str) -> str:
    """A warning if no rollout has a valid format, which the first steps would show only slowly;
    else empty.
    """
    valid = evaluation.rows.get("valid_format")
    if valid is None or valid.value != 0:
        return ""
    return (
        f"no rollout of the evaluation has a valid format of dialect {dialect!r}, so most rewards "
        "will be -1 and little can be learnt: cold-start this policy first, recipes/sft.py makes "
        "one that writes the dialect"
    )


def read_before(path: Path, tasks: list[Task]) -> Evaluation | None:
    """The evaluation that a run made when it began. `None`, with a warning, if there is none of
    these questions that can be read.
    """
    try:
        evaluation = Evaluation.from_dict(json.loads(path.read_text(encoding="utf-8")))
        if {*evaluation.questions} != {task.id for task in tasks}:
            raise DataError(f"{path} is of other questions than this run's evaluation")
        rollouts = list(read_jsonl(path.with_suffix(".jsonl")))
        return msgspec.structs.replace(evaluation, trajectories=rollouts)
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
    play: Play | None = None,
) -> Iterator[Record | None]:
    """The run of a recipe: evaluate, train, save, evaluate again. It owns the output directory and
    the tools until the block ends.

    Args:
        flags: the values of the recipe's flags.
        reward: makes the reward from the judge.
        metrics: rewards that evaluations measure beside `measure.evaluating.default_rewards`.
        condenser: makes what shortens the responses of tools, see `EnvironmentArguments.toolbox`.
        play: makes what is sampled in a dry run, in place of the policy.

    Yields:
        The record of the run; `None` in all processes but the main one.

    Raises:
        ConfigError: as `started` and `build_trainer` do, and if the run is to be resumed but has no
            complete checkpoint.
        JudgeError, Terminated: if the run was stopped with a checkpoint, see
            `SearchGRPOTrainer.train`.
    """
    script, args, _ = flags
    with started(script, args), script.toolbox(condenser()) as toolbox:
        judge = script.load_judge()
        trainer = build_trainer(flags, toolbox, reward(judge))
        player = None
        if script.dry_run and play is not None:
            questions = [*trainer.tasks, *script.held_out()]
            player = play(trainer.policy, questions, toolbox, trainer.engine.dialect)
            trainer.follow(player)
        facts = suites.facts_are_known(script.eval_questions)
        rewards = default_rewards(script.dialect, judge, facts, tasks=script.held_out())
        measured = {**rewards, **(metrics or {})}
        before = BeforeTraining(trainer, script, measured)
        trainer.add_callback(before)
        # Added after it, so that the time of the first step does not include the evaluation
        trainer.add_callback(StepLine())
        checkpoints.train(trainer, script.resume)
        save_policy(trainer, merged=script.save_merged)
        after = evaluate(trainer, script, measured, "after training")
        if player is not None and PartialState().is_main_process:
            print("\n".join(reached(Path(cast(str, args.output_dir)), player.turns)))
        record = None
        if PartialState().is_main_process:
            record = record_of(trainer, flags, before.evaluation, after)
        yield record


def record_of(
    trainer: SearchGRPOTrainer, flags: Flags, before: Evaluation | None, after: Evaluation | None
) -> Record:
    """The record of a run, with the two evaluations."""
    script, args, model_args = flags
    ours = {field.name for field in fields(args)} - {field.name for field in fields(GRPOConfig)}
    if args.advantages != PPO:
        ours.difference_update(PPOSettings.__dataclass_fields__)
    settings = {name: getattr(args, name) for name in (*sorted(ours), *TRAINER_SETTINGS)}
    history = [_without_nan(row) for row in trainer.state.log_history]
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


def _without_nan(row: Mapping[str, Any]) -> dict[str, Any]:
    """A line of the log with `None` for numbers that JSON has no form for."""
    writable = dict(row)
    for key, value in row.items():
        if isinstance(value, float) and not math.isfinite(value):
            writable[key] = None
    return writable


def evaluate(
    trainer: SearchGRPOTrainer, script: RunArguments, metrics: Mapping[str, Reward], when: str
) -> Evaluation | None:
    """Measure the policy on the held-out questions; `None` without questions, and in all processes
    but the main one.

    The processes share the greedy episodes: with the tools as they are, with blanked tools, and
    under the conditions of `measure.controls`. The main process scores them. Rewards that ask the
    policy are scored by all processes together, since none can ask it alone if its weights are
    sharded. `when` is for the message that is printed.
    """
    tasks = script.held_out()
    if not tasks:
        return None
    state = PartialState()
    share = slice(state.process_index, None, state.num_processes)
    controls = control_tasks(tasks, script.eval_controls)
    state.print(
        f"evaluating {len(tasks)} questions {when} (--eval_limit), "
        f"and {len(controls)} controls (two for each of --eval_controls)"
    )
    limits, greedy = trainer.engine.limits, Sampling(temperature=0.0)
    engine = Engine(trainer.generator, trainer.toolbox, script.dialect, limits, greedy)
    # Every process must enter both blocks, in which weights are gathered
    with trainer.generating():
        results = run_conditions(engine, tasks[share], controls[share])
    rollouts, blind, controlled = map(gather_object, results)
    order = [
        task.id
        for start in range(state.num_processes)
        for task in tasks[start :: state.num_processes]
    ]
    resources = {"policy": AskedOnce(trainer.policy), "sampler": trainer.generator}
    bound = {name: reward.bind(**resources) for name, reward in metrics.items()}
    with trainer.asking(*bound.values()):
        if state.is_main_process:
            return evaluate_rollouts(
                rollouts,
                questions=order,
                rewards=bound,
                tools=trainer.toolbox.names,
                forced=limits.force_answer,
                blind=blind,
                controls=controlled,
                unremembered=unremembered(tasks),
            )
        for reward in bound.values():
            if reward.needs_policy:
                reward.score_batch(rollouts)
    return None
