"""What the training recipes share: flags, the trainer made from them, and a run with an evaluation before and after."""

from __future__ import annotations

import json
import logging
import math
import random
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, cast

from accelerate import PartialState
from accelerate.utils import gather_object
from transformers import PrinterCallback, ProgressCallback, TrainerCallback
from trl import GRPOConfig, ModelConfig, get_peft_config

from ..counterfactual import CounterfactualWorld
from ..errors import ConfigError, DataError
from ..inference.base import Sampling
from ..inference.loading import read_tokenizer
from ..judges.arguments import JudgeArguments
from ..measure import report
from ..measure.controls import QUESTIONS, control_tasks, unremembered
from ..measure.evaluation import Evaluation
from ..measure.record import Record
from ..measure.suite import evaluate_rollouts, run_blanked, run_controlled, run_episodes
from ..rewards import Reward
from ..rollout import Engine
from ..rollout.arguments import EnvironmentArguments
from ..tasks import WORLD, Task, load_tasks
from ..tools import Toolbox
from ..world import bundled_world
from . import checkpoints
from .callbacks import StepLine
from .grpo import SearchGRPOTrainer
from .policies import open_policy, policy_source
from .precision import precision_line
from .preemption import SaveWhenTold
from .saving import check_merge, save_policy
from .starting import StartArguments

BEFORE = "evaluation_before.json"
TRAINER_SETTINGS = (
    *("learning_rate", "lr_scheduler_type", "max_steps", "num_train_epochs", "seed", "beta", "loss_type"),
    *("temperature", "top_p", "top_k", "num_generations", "num_iterations", "steps_per_generation"),
    *("per_device_train_batch_size", "gradient_accumulation_steps", "world_size"),
)
"""Settings of the trainer that go into `metrics.json` and the card."""
logger = logging.getLogger(__name__)


@dataclass
class RunArguments(EnvironmentArguments, JudgeArguments, StartArguments):
    """The flags of every training recipe: questions, tools and judge."""

    questions: str = field(
        default="world", metadata={"help": "'world' or 'world_passages' (bundled), a local file or a Hub dataset"}
    )
    eval_questions: str = field(default="world", metadata={"help": "held-out questions, likewise"})
    eval_split: str = field(default="validation", metadata={"help": "split of the held-out questions"})
    eval_limit: int = field(default=200, metadata={"help": "how many held-out questions; 0 skips the evaluations"})
    eval_sample_seed: int | None = field(
        default=None, metadata={"help": "draws the eval_limit questions at random by this seed; none: the first ones"}
    )
    eval_controls: int = field(
        default=QUESTIONS,
        metadata={"help": "held-out questions asked again without their evidence and in changed worlds; 0: none"},
    )
    max_abstained: float = field(
        default=0.5, metadata={"help": "share of a step's rollouts that a judge may leave open before the run stops"}
    )
    advantages: str = field(
        default="trl",
        metadata={"help": "'trl', 'group_relative', 'leave_one_out', or by turn: 'turns', 'turns_leave_one_out'"},
    )
    turn_gamma: float = field(default=1.0, metadata={"help": "by how much a turn discounts what later turns earn"})
    llds: float = field(
        default=0.0, metadata={"help": "weight of the term that keeps what is not worse than others likely; 0.1 (LLDS)"}
    )
    uniform_groups: str = field(
        default="keep",
        metadata={"help": "'drop': questions whose rollouts are all right or all wrong take no part in the update"},
    )
    counterfactual: float = field(
        default=0.0, metadata={"help": "share of each question's rollouts in a world in which its answer is another"}
    )
    counterfactual_groups: str = field(
        default="paired",
        metadata={"help": "'own': questions are changed as a whole, so that changed rollouts compare among themselves"},
    )
    stale: float = field(
        default=0.0,
        metadata={
            "help": "share of the training questions asked in a changed world throughout: what is known is wrong"
        },
    )
    save_merged: bool = field(
        default=False, metadata={"help": "with --use_peft: also the full model, merged, in output_dir/merged"}
    )
    dry_run: bool = field(
        default=False,
        metadata={"help": "two steps on a CPU with a random model of the same kind: are all settings accepted?"},
    )


def check_data(script: RunArguments) -> None:
    """Raise `ConfigError` if the bundled world is mixed with other data, or changed worlds with tools without them."""
    asked = [script.questions, *([script.eval_questions] if script.eval_limit else [])]
    bundled = {name in WORLD for name in (script.corpus, *asked)}
    if len(bundled) > 1:
        raise ConfigError(
            f"questions {script.questions!r}, eval_questions {script.eval_questions!r}, corpus {script.corpus!r}: "
            "the bundled world and other data are mixed; give all three"
        )
    changed = {"corpus", "negative_tool"} | ({"triples"} if script.corpus == script.triples == "world" else set())
    others = [f"--{name} {getattr(script, name)}" for name in script.given_tools if name not in changed]
    if not 0 <= script.stale <= 1:
        raise ConfigError(f"--stale is a share of the questions, in [0, 1], not {script.stale}")
    if (script.counterfactual or script.stale) and others:
        raise ConfigError(
            "--counterfactual and --stale change facts of the corpus and of the bundled world's triples; "
            f"{' and '.join(others)} would still say what was: give none"
        )


def counterfactual_world(script: RunArguments, tasks: list[Task], seed: int) -> CounterfactualWorld:
    """Changes the questions' world: the bundled one, or the facts that the questions of a file are annotated with."""
    if script.questions in WORLD:
        return CounterfactualWorld(bundled_world(), seed)
    return CounterfactualWorld.annotated(tasks, script.corpus_passages(), seed)


def with_stale(tasks: list[Task], world: CounterfactualWorld, share: float) -> tuple[list[Task], int]:
    """The questions with a share of them in a changed world, drawn with the world's seed; and the number of these."""
    order = random.Random(world.seed).sample(range(len(tasks)), len(tasks))
    changed: dict[int, Task] = {}
    for number in order:
        if len(changed) < round(share * len(tasks)) and (found := world.change(tasks[number])) is not None:
            changed[number] = found
    return [changed.get(number, task) for number, task in enumerate(tasks)], len(changed)


def build_trainer(
    script: RunArguments,
    args: GRPOConfig,
    model_args: ModelConfig,
    toolbox: Toolbox,
    reward: Reward,
    verdict_weight: float = 0.0,
    kind: type[SearchGRPOTrainer] = SearchGRPOTrainer,
    **own: Any,
) -> SearchGRPOTrainer:
    """The trainer that the flags describe; `verdict_weight` is λ of the verdict term, `own` what another `kind` of
    trainer takes beside.

    With Transformers' `--enable_jit_checkpoint true`, SIGTERM ends training with a checkpoint: `SaveWhenTold` replaces
    Transformers' own callback, which saves in the middle of a batch of rollouts.

    Raises:
        ConfigError, DataError, TemplateError: as `SearchGRPOTrainer` does.
    """
    source = policy_source(str(model_args.model_name_or_path), script.dialect)
    tasks = load_tasks(script.questions)
    if script.stale:
        tasks, changed = with_stale(tasks, counterfactual_world(script, tasks, args.seed), script.stale)
        PartialState().print(f"{changed} of {len(tasks)} training questions are asked in a changed world (--stale)")
    saves, args.enable_jit_checkpoint = args.enable_jit_checkpoint, False
    trainer = kind(
        model=open_policy(source, model_args, args),
        processing_class=read_tokenizer(
            source, revision=model_args.model_revision, trust_remote_code=args.trust_remote_code
        ),
        args=args,
        train_dataset=tasks,
        toolbox=toolbox,
        reward=reward,
        dialect=script.dialect,
        limits=script.limits(args.max_completion_length or 0),
        advantages=script.advantages,
        turn_gamma=script.turn_gamma,
        llds=script.llds,
        verdict_weight=verdict_weight,
        uniform_groups=script.uniform_groups,
        max_abstained=script.max_abstained,
        counterfactual=script.counterfactual,
        counterfactual_groups=script.counterfactual_groups,
        counterfactual_world=counterfactual_world(script, tasks, args.seed) if script.counterfactual else None,
        trajectory_file=Path(cast(str, args.output_dir)) / "trajectories.jsonl",
        generation_batch=script.generation_batch,
        peft_config=get_peft_config(model_args),
        callbacks=[SaveWhenTold()] if saves else [],
        **own,
    )
    for callback in (ProgressCallback, PrinterCallback):
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
        self.found: Evaluation | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step:
            self.found = read_before(self.path, held_out(self.script)) if state.is_world_process_zero else None
            return
        self.found = evaluate(self.trainer, self.script, self.metrics)
        if self.found is not None:
            report.write_metrics(self.path, self.found.to_dict())
        elif state.is_world_process_zero:
            self.path.unlink(missing_ok=True)  # it would be an earlier run's


def read_before(path: Path, tasks: list[Task]) -> Evaluation | None:
    """The evaluation that a run made when it began; `None`, with a warning, if there is none of these questions."""
    if not tasks:
        return None
    try:
        found = Evaluation.from_dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, DataError) as error:
        logger.warning("no evaluation of before training to compare with: %s", error)
        return None
    if {*found.questions} != {task.id for task in tasks}:
        logger.warning("%s is of other questions than this run's evaluation and is not used", path)
        return None
    return found


def train(
    trainer: SearchGRPOTrainer, script: RunArguments, model_args: ModelConfig, metrics: Mapping[str, Reward]
) -> Record | None:
    """Evaluate, train, save, evaluate again; progress is one line a step.

    A resumed run starts from the last complete checkpoint, and keeps the evaluation that it made when it began.

    Args:
        trainer: from `build_trainer`.
        script, model_args: the recipe's flags.
        metrics: what the evaluations report, by row name; see `measure.suite.default_rewards`.

    Returns:
        The run's record; `None` on all processes but the main one.

    Raises:
        ConfigError: if it is to resume and there is no complete checkpoint.
        JudgeError: if the run was stopped because its judge abstained; it can be resumed from a checkpoint.
        Terminated: if it was told to end, see `SaveWhenTold`.
    """
    before = BeforeTraining(trainer, script, metrics)
    for callback in (before, StepLine()):  # in this order, so that the first step's time excludes the evaluation
        trainer.add_callback(callback)
    checkpoints.train(trainer, script.resume)
    SaveWhenTold.check(trainer)
    save_policy(trainer, merged=script.save_merged)
    after = evaluate(trainer, script, metrics)
    return record(trainer, script, model_args, before.found, after) if PartialState().is_main_process else None


def held_out(script: RunArguments) -> list[Task]:
    """The questions of the evaluations; none without `eval_limit`."""
    many, seed = script.eval_limit, script.eval_sample_seed
    return load_tasks(script.eval_questions, script.eval_split, many, seed=seed) if many else []


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
    own, asked = tasks[share], control_tasks(tasks, limit=script.eval_controls)[share]
    engine = Engine(
        trainer.generator, trainer.toolbox, script.dialect, trainer.engine.limits, Sampling(temperature=0.0)
    )
    with trainer.generating():
        episodes, blanked = run_episodes(engine, own), run_blanked(engine, own)
        controlled = run_controlled(engine, asked)
    rollouts, blind, controls = gather_object(episodes), gather_object(blanked), gather_object(controlled)
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


def record(
    trainer: SearchGRPOTrainer,
    script: RunArguments,
    model_args: ModelConfig,
    before: Evaluation | None,
    after: Evaluation | None,
) -> Record:
    def finite(value: Any) -> Any:
        return None if isinstance(value, float) and not math.isfinite(value) else value  # JSON has no NaN

    args = cast(GRPOConfig, trainer.args)
    more = {name: getattr(args, name) for name in TRAINER_SETTINGS} | {"precision": precision_line(args)}
    return Record(
        folder=str(args.output_dir),
        model=str(model_args.model_name_or_path),
        dialect=script.dialect,
        tools=list(trainer.toolbox.names),
        questions=script.eval_questions,
        settings={**asdict(script), "total_tokens": args.max_completion_length, **more},
        steps=trainer.state.global_step,
        history=[{key: finite(value) for key, value in row.items()} for row in trainer.state.log_history],
        before=before,
        after=after,
    )
