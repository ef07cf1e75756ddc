"""What the training recipes share: the trainer that flags describe, and a run with an evaluation before and after."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import msgspec
from accelerate import PartialState
from accelerate.utils import gather_object
from transformers import PrinterCallback, ProgressCallback, TrainerCallback
from trl import GRPOConfig, ModelConfig, get_peft_config

from ..errors import ConfigError, DataError
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
from ..tools.condenser import Condenser
from ..trajectory import read_jsonl, write_jsonl
from . import checkpoints
from .callbacks import StepLine
from .endings import SaveWhenTold
from .flags import RunArguments, counterfactual_world, held_out, settings_of, with_stale
from .grpo import SearchGRPOTrainer
from .policies import open_policy, policy_source
from .ppo import PPO, SearchPPOTrainer
from .precision import precision_line
from .saving import check_merge, save_policy
from .starting import started

BEFORE = "evaluation_before.json"
TRAINER_SETTINGS = (
    *("learning_rate", "lr_scheduler_type", "max_steps", "num_train_epochs", "seed", "beta", "loss_type"),
    *("temperature", "top_p", "top_k", "num_generations", "num_iterations", "steps_per_generation"),
    *("per_device_train_batch_size", "gradient_accumulation_steps", "world_size"),
)
"""Settings of the trainer that go into `metrics.json` and the card."""
logger = logging.getLogger(__name__)


def build_trainer(
    script: RunArguments,
    args: GRPOConfig,
    model_args: ModelConfig,
    toolbox: Toolbox,
    reward: Reward,
    **own: Any,
) -> SearchGRPOTrainer:
    """The trainer that the flags describe; `own` are further arguments of its kind.

    With Transformers' `--enable_jit_checkpoint true`, SIGTERM ends training with a checkpoint, see `SaveWhenTold`.

    Raises:
        ConfigError, DataError, TemplateError: as `SearchGRPOTrainer` does; for one rollout without a value.
    """
    source = policy_source(str(model_args.model_name_or_path), script.dialect)
    tasks = load_tasks(script.questions)
    if script.stale:
        tasks, changed = with_stale(tasks, counterfactual_world(script, tasks, args.seed), script.stale)
        PartialState().print(f"{changed} of {len(tasks)} training questions are asked in a changed world (--stale)")
    # Transformers would add its own callback for it, which saves in the middle of a batch of rollouts.
    saves, args.enable_jit_checkpoint = args.enable_jit_checkpoint, False
    revision, trusted = model_args.model_revision, args.trust_remote_code
    same = (
        *("dialect", "advantages", "turn_gamma", "llds", "uniform_groups", "max_abstained", "generation_batch"),
        *("counterfactual", "counterfactual_groups"),
    )
    kind: Any = SearchGRPOTrainer
    if script.advantages == PPO:
        kind, own["ppo"] = SearchPPOTrainer, script
    elif args.num_generations == 1:
        raise ConfigError("num_generations 1 is for --advantages ppo: all others compare the rollouts of a question")
    trainer: SearchGRPOTrainer = kind(
        model=open_policy(source, model_args, args),
        processing_class=read_tokenizer(source, revision=revision, trust_remote_code=trusted),
        args=args,
        train_dataset=tasks,
        toolbox=toolbox,
        reward=reward,
        limits=script.limits(args.max_completion_length or 0),
        counterfactual_world=counterfactual_world(script, tasks, args.seed) if script.counterfactual else None,
        trajectory_file=Path(cast(str, args.output_dir)) / "trajectories.jsonl",
        peft_config=get_peft_config(model_args),
        callbacks=[SaveWhenTold()] if saves else [],
        **{name: getattr(script, name) for name in same},
        **own,
    )
    for callback in (ProgressCallback, PrinterCallback):  # `StepLine` says it in a line
        trainer.remove_callback(callback)
    check_merge(trainer, script.save_merged)
    return trainer


class BeforeTraining(TrainerCallback):
    """Evaluates the policy when training begins, after the trainer has prepared it and moved it to its device.

    The result is kept in the output directory, so that a resumed run compares with the true beginning.
    """

    def __init__(self, trainer: SearchGRPOTrainer, script: RunArguments, metrics: Mapping[str, Reward]) -> None:
        self.trainer, self.script, self.metrics = trainer, script, metrics
        self.path = Path(cast(str, trainer.args.output_dir)) / BEFORE
        # Read here: a resumed run that has nothing left to train never begins
        goes_on = script.resume and PartialState().is_main_process
        self.found: Evaluation | None = read_before(self.path, held_out(script)) if goes_on else None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step:
            return
        self.found = evaluate(self.trainer, self.script, self.metrics)
        rollouts = self.path.with_suffix(".jsonl")
        if self.found is not None:
            write_metrics(self.path, self.found.to_dict())
            write_jsonl(rollouts, (msgspec.structs.replace(own, tokens=None) for own in self.found.trajectories))
        elif state.is_world_process_zero:
            for file in (self.path, rollouts):
                file.unlink(missing_ok=True)  # it would be an earlier run's


def read_before(path: Path, tasks: list[Task]) -> Evaluation | None:
    """The evaluation that a run made when it began; `None`, with a warning, if none of these questions can be read."""
    if not tasks:
        return None
    try:
        found = Evaluation.from_dict(json.loads(path.read_text(encoding="utf-8")))
        rollouts = path.with_suffix(".jsonl")
        if rollouts.exists():  # earlier versions wrote none
            found = msgspec.structs.replace(found, trajectories=list(read_jsonl(rollouts)))
    except (OSError, ValueError, DataError) as error:
        logger.warning("no evaluation of before training to compare with: %s", error)
        return None
    if {*found.questions} != {task.id for task in tasks}:
        logger.warning("%s is of other questions than this run's evaluation and is not used", path)
        return None
    return found


@contextmanager
def trained(
    flags: tuple[RunArguments, GRPOConfig, ModelConfig],
    reward: Callable[[Judge | None], Reward],
    metrics: Mapping[str, Reward] | None = None,
    watches: Sequence[Callable[[SearchGRPOTrainer], TrainerCallback]] = (),
    condenser: Callable[[], Condenser | None] = lambda: None,
    **own: Any,
) -> Iterator[Record | None]:
    """A recipe's run: evaluate, train, save, evaluate again. Within the block it keeps the output directory and tools.

    A resumed run starts from the last complete checkpoint, and keeps the evaluation that it made when it began.

    Args:
        flags: the recipe's parsed flags.
        reward: makes the reward, given the judge.
        metrics: what evaluations report beside `measure.suite.default_rewards`.
        watches: callbacks, made from the trainer.
        condenser: makes what shortens the tools' responses, see `EnvironmentArguments.toolbox`.
        own: further arguments of `build_trainer`.

    Yields:
        The run's record; `None` on all processes but the main one.

    Raises:
        ConfigError: as `started` and `build_trainer`; if it is to resume and there is no complete checkpoint.
        JudgeError: if the run was stopped because its judge abstained; it can be resumed from a checkpoint.
        Terminated: if it was told to end, see `SaveWhenTold`.
    """
    script, args, model_args = flags
    with started(script, args), script.toolbox(condenser()) as toolbox:
        judge = script.load_judge()
        trainer = build_trainer(script, args, model_args, toolbox, reward(judge), **own)
        measured = {**default_rewards(script.dialect, judge, script.eval_questions in WORLD), **(metrics or {})}
        before = BeforeTraining(trainer, script, measured)
        # In this order, so that the first step's time excludes the evaluation
        for callback in (*(watch(trainer) for watch in watches), before, StepLine()):
            trainer.add_callback(callback)
        checkpoints.train(trainer, script.resume)
        SaveWhenTold.check(trainer)
        save_policy(trainer, merged=script.save_merged)
        after = evaluate(trainer, script, measured)
        yield record_of(trainer, flags, before.found, after) if PartialState().is_main_process else None


def record_of(
    trainer: SearchGRPOTrainer,
    flags: tuple[RunArguments, GRPOConfig, ModelConfig],
    before: Evaluation | None,
    after: Evaluation | None,
) -> Record:
    """What a run was and what came of it."""
    script, _, model_args = flags
    args = cast(GRPOConfig, trainer.args)
    settings = {name: getattr(args, name) for name in TRAINER_SETTINGS} | {"precision": precision_line(args)}
    # JSON has no NaN
    history = [
        {key: None if isinstance(value, float) and not math.isfinite(value) else value for key, value in row.items()}
        for row in trainer.state.log_history
    ]
    return Record(
        folder=str(args.output_dir),
        model=str(model_args.model_name_or_path),
        dialect=script.dialect,
        tools=list(trainer.toolbox.names),
        questions=script.eval_questions,
        settings={**settings_of(script), "total_tokens": args.max_completion_length, **settings},
        steps=trainer.state.global_step,
        history=history,
        before=before,
        after=after,
    )


def evaluate(trainer: SearchGRPOTrainer, script: RunArguments, metrics: Mapping[str, Reward]) -> Evaluation | None:
    """Greedy episodes on the held-out questions, with tools as they are, blanked and under the conditions of
    `measure.controls`, shared out over the processes.

    The main process scores them and returns the result. Rewards that ask the policy are scored by all processes
    together: if its weights are sharded, no process can ask it alone.
    """
    tasks = held_out(script)
    if not tasks:
        return None
    state = PartialState()
    share = slice(state.process_index, None, state.num_processes)
    own, asked = tasks[share], control_tasks(tasks, script.eval_controls)[share]
    engine = Engine(
        trainer.generator, trainer.toolbox, script.dialect, trainer.engine.limits, Sampling(temperature=0.0)
    )
    # Every process must enter both blocks, also one that has fewer questions: weights are gathered there.
    with trainer.generating():
        found = run_suite(engine, own, asked)
    rollouts, blind, controls = map(gather_object, found)
    order = [task.id for start in range(state.num_processes) for task in tasks[start :: state.num_processes]]
    policy, sampler = trainer.policy, trainer.generator
    bound = {name: reward.bind(policy=policy, sampler=sampler) for name, reward in metrics.items()}
    with trainer.asking(*bound.values()):
        if state.is_main_process:
            forced = engine.limits.force_answer
            names, fresh = trainer.toolbox.names, unremembered(tasks)
            return evaluate_rollouts(rollouts, order, bound, names, forced, blind, controls, fresh)
        for reward in bound.values():
            if reward.needs_policy:
                reward.score_batch(rollouts)
    return None
