"""GRPO for search agents: TRL's trainer with our engine as its `rollout_func` and one reward function."""

import logging
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, cast

import msgspec
from accelerate.utils import gather_object
from datasets import Dataset
from trl import GRPOTrainer

from ..bundled import bundled_policy
from ..counterfactual import CounterfactualWorld
from ..dialects.base import Dialect
from ..errors import ConfigError, DataError
from ..flags import refuse
from ..inference.base import Generator, Sampling
from ..inference.transformers import TransformersGenerator
from ..rewards import AnswerLikelihoodGap, Mix, MixState, Reward
from ..rewards.evidence_sensitivity import EvidenceSensitivity
from ..rollout import Engine, Limits
from ..tasks import Task, task_from_row
from ..tools import Toolbox, ToolStats
from ..trajectory import Tokens, Trajectory
from ..world import bundled_world
from .advantages import ESTIMATORS, TURN_ESTIMATORS
from .arguments import SearchGRPOConfig, check_vllm
from .callbacks import QuestionOrder, TrajectoryLog, Watching
from .changed_worlds import ChangedWorlds
from .endings import OrderlyStop
from .processes import check_processes, gathered, hold_head, most
from .step_metrics import (
    Scored,
    left_open,
    reward_metrics,
    rollout_metrics,
    tool_metrics,
    world_metrics,
)
from .update import UpdateTrainer
from .vllm import bound_sync, check_sync, joining_server, policy_generator, sync_weights

STATE = (
    "reward"  # under this name the trainer's state, which checkpoints keep, has that of the reward
)
logger = logging.getLogger(__name__)


class SearchGRPOTrainer(UpdateTrainer):
    """Trains a search agent on rewards that read its whole trajectory.

    Args:
        model: a causal LM or its name, as TRL takes it, or "tiny": the bundled policy of the dialect.
        args: the settings; `max_completion_length` bounds an episode when `limits` is not given. With Transformers'
            `enable_jit_checkpoint` SIGTERM ends training with a checkpoint, see `OrderlyStop`.
        train_dataset: tasks, or a dataset with `question` and `answers` columns (see `tasks.task_from_row`).
        toolbox: the tools of the episodes.
        reward: any `Reward`; a `Mix` keeps its state across processes and checkpoints.
        dialect: a dialect or its name.
        limits: bounds of an episode.
        trajectory_file: where every rollout is logged, with its scores and reasons.
        generation_batch: rows per forward pass when sampling and probing.
        counterfactual_world: makes the changes; by default to the bundled world, with the seed of `args`.

    Raises:
        DataError: if the dataset has no questions or answers.
        ConfigError: for a reward that the dialect cannot have or that lacks what `args` ask for, `push_to_hub`, or
            questions without a changed world.
        TemplateError: if the tokenizer has no usable chat template.

    Example:
        ```python
        args = SearchGRPOConfig("outputs/pou")
        SearchGRPOTrainer("tiny", args, load_tasks("world"), toolbox=toolbox, reward=pou_mix()).train()
        ```
    """

    estimators: ClassVar[Sequence[str]] = (*ESTIMATORS, *TURN_ESTIMATORS)

    def __init__(
        self,
        model: Any,
        args: SearchGRPOConfig,
        train_dataset: Sequence[Task] | Dataset,
        *,
        toolbox: Toolbox,
        reward: Reward,
        dialect: Dialect | str = "pou",
        limits: Limits | None = None,
        trajectory_file: str | Path | None = None,
        generation_batch: int = 64,
        counterfactual_world: CounterfactualWorld | None = None,
        callbacks: Sequence[Any] = (),
        **kwargs: Any,
    ) -> None:
        other = not isinstance(args, SearchGRPOConfig) or args.advantages not in self.estimators
        takes = f"takes a SearchGRPOConfig whose advantages are one of {', '.join(self.estimators)}"
        refuse([(other, f"{type(self).__name__} {takes}")])
        check_vllm(args, args.device.type)
        single = {reward.name: reward}  # a single reward is a mix of one part without gate
        mix = (
            reward
            if isinstance(reward, Mix)
            else Mix(parts=single, gate=None, weights={reward.name: 1.0})
        )
        name = dialect if isinstance(dialect, str) else dialect.name
        limits = limits or Limits(total_tokens=args.max_completion_length or Limits().total_tokens)
        check_reward(mix, args, name, limits)
        numbered = enumerate(train_dataset)
        self.tasks = [
            row if isinstance(row, Task) else task_from_row(row, n, "dataset row")
            for n, row in numbered
        ]
        if not self.tasks:
            raise DataError("the dataset has no rows")
        self.worlds: ChangedWorlds | None = None
        if args.counterfactual:
            world = counterfactual_world or CounterfactualWorld(bundled_world(), args.seed)
            generations, groups = cast(int, args.num_generations), args.counterfactual_groups
            self.worlds = ChangedWorlds(world, self.tasks, args.counterfactual, generations, groups)
        # Transformers would add a callback of its own, which saves in the middle of a batch of rollouts
        self.stop, args.enable_jit_checkpoint = OrderlyStop(args.enable_jit_checkpoint), False
        self._earlier = deque()
        self.rollout_log = TrajectoryLog(trajectory_file) if trajectory_file else None
        own = [
            QuestionOrder(),
            self.stop,
            Watching(),
            *([self.rollout_log] if self.rollout_log else []),
        ]
        # Questions, of which the engine builds the chat, and a reward function are all that TRL sees.
        columns = [
            {"prompt": task.question, "task": number} for number, task in enumerate(self.tasks)
        ]
        with joining_server(args):
            super().__init__(
                model=bundled_policy(model, name) if isinstance(model, str) else model,
                args=args,
                reward_funcs=[self._reward],
                rollout_func=self._rollout,
                train_dataset=Dataset.from_list(columns),
                callbacks=[*callbacks, *own],
                **kwargs,
            )
        logging.getLogger("trl.trainer.grpo_trainer").addFilter(_no_dump)
        check_processes(self.accelerator)
        policy, agree = self.accelerator.unwrap_model(self.model), most(self.accelerator)
        self.policy = TransformersGenerator(
            policy, self.processing_class, generation_batch, agree=agree
        )
        self.generator: Generator = policy_generator(self) if args.use_vllm else self.policy
        sink = partial(setattr, self, "_probes")
        self.mix = mix.bind(
            policy=self.policy, sampler=self.generator, gather=gather_object, sink=sink
        )
        sampling = Sampling(args.temperature, args.top_p, args.top_k or 0, logprobs=args.use_vllm)
        self.toolbox, self.engine = (
            toolbox,
            Engine(self.generator, toolbox, dialect, limits, sampling),
        )
        self._followed = False
        if args.use_vllm:
            bound_sync(self)

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """As `Trainer.train`. Raises `JudgeError` if the judge gave too few verdicts (`max_abstained`), `Terminated`
        if SIGTERM ended it."""
        outcome = super().train(*args, **kwargs)
        self.stop.check(self.args, self.state)
        return outcome

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        """Writes none: TRL's, made with each checkpoint, knows neither the base model nor what was measured."""

    def init_hf_repo(self, *args: Any, **kwargs: Any) -> None:
        """Refused: Transformers calls it before every upload, and uploads whatever is in the folder."""
        out = self.args.output_dir
        advice = f"leave it out, and after training run: faithful-search push policy {out} YOU/NAME"
        raise ConfigError(
            f"push_to_hub would upload everything in {out}, rollouts and pickled settings too; {advice}"
        )

    @property
    def reward_state(self) -> MixState:
        kept = cast(dict[str, Any], self.state.stateful_callbacks).get(STATE)
        return msgspec.convert(kept, MixState) if kept else self.mix.state0

    @contextmanager
    def generating(self) -> Iterator[None]:
        """Within the block, which every process must enter, `generator` samples the current policy."""
        if self.use_vllm:  # TRL brings the weights there for its own rollouts only
            sync_weights(self)
        with self._sampling():
            yield

    @contextmanager
    def asking(self, *rewards: Reward) -> Iterator[None]:
        """Within the block, which every process must enter, these rewards may ask the policy, or sample it."""
        samples = any(reward.samples_policy for reward in rewards)
        with self.accelerator.autocast(), self._sampling() if samples else nullcontext():
            yield

    @contextmanager
    def _sampling(self) -> Iterator[None]:
        if self.use_vllm:
            if not self._followed:  # before anything is sampled: do weights arrive there?
                prompt = self.engine.chat.prompt_ids(self.tasks[0].question, self.toolbox.schemas)
                check_sync(
                    self.policy.model,
                    partial(sync_weights, self),
                    self.generator,
                    self.policy,
                    prompt,
                )
                self._followed = True
            yield
            return
        with (
            gathered(self.model_wrapped, self.accelerator),
            self.accelerator.autocast(),
        ):  # the precision of training
            yield

    def _rollout(self, prompts: list[str], trainer: GRPOTrainer) -> dict[str, Any]:
        numbers = [row["task"] for row in self._rows]
        tasks = [self.tasks[number] for number in numbers]
        if self.worlds is not None and self._training:
            first = self.accelerator.process_index * len(numbers)  # each process has as many
            tasks = self.worlds.asked(numbers, first, self.state.global_step)
        self._counted = (
            self.toolbox.stats()
        )  # so that an evaluation's calls in between are not logged
        if self.use_vllm:
            self.accelerator.wait_for_everyone()  # only the main process knows that a server has the weights
        with self._sampling():
            trajectories = self.engine.run(tasks)
        self._tokens = tokens = [cast(Tokens, trajectory.tokens) for trajectory in trajectories]
        return {
            "prompt_ids": [item.prompt_ids for item in tokens],
            "completion_ids": [item.completion_ids for item in tokens],
            "env_mask": [item.mask for item in tokens],
            # for TRL's correction of how vLLM's probabilities differ from the training model's
            "logprobs": [item.logprobs for item in tokens] if self.use_vllm else None,
            "trajectory": trajectories,
        }

    def _reward(
        self, trajectory: list[Trajectory], task: list[int], log_metric: Any, **given: Any
    ) -> list[float | None]:
        """TRL's reward function: score the rollouts, advance the reward's state by the global batch, log every part."""
        step, first = self.state.global_step, self.accelerator.process_index * len(trajectory)
        rollouts = [
            msgspec.structs.replace(item, id=f"{self.tasks[number].id}@{step}#{first + row}")
            for row, (item, number) in enumerate(zip(trajectory, task, strict=True))
        ]
        hold_head(
            self.policy.model, self.accelerator
        )  # before the probes' passes, which hide it from ZeRO-3
        with self.asking(self.mix):
            components = self.mix.components(rollouts)
        state = self.reward_state
        if self._training:
            # Schedules go by the optimizer's steps, here the next one: with gradient accumulation,
            # `steps_per_generation` and `num_iterations` there are more or fewer calls than steps.
            outcomes = gather_object(self.mix.outcomes(components))
            state = self.mix.advance(state, outcomes, self.mix.state0.step + step + 1)
            cast(dict[str, Any], self.state.stateful_callbacks)[STATE] = msgspec.to_builtins(state)
        self.own = [
            Scored(
                msgspec.structs.replace(item, tokens=None),
                len(cast(Tokens, item.tokens).turns),
                score,
                parts,
            )
            for item, score, parts in zip(
                rollouts, self.mix.combine(components, state), components, strict=True
            )
        ]
        self.batch = gather_object(self.own)
        self._report(log_metric)
        return [row.score.value for row in self.own]

    def _report(self, log_metric: Any) -> None:
        """Log what was scored last; have training stop where a judge is silent."""
        batch, state, main = self.batch, self.reward_state, self.accelerator.is_main_process
        step, rollouts = self.state.global_step, [row.trajectory for row in batch]
        endings = (
            ("answered", "answered_forced") if self.engine.limits.force_answer else ("answered",)
        )
        used = {
            name: now - self._counted.get(name, ToolStats())
            for name, now in self.toolbox.stats().items()
        }
        metrics = tool_metrics(used, len(self.own))
        if main:  # all others are of all processes' rollouts
            metrics |= reward_metrics(self.mix, state, batch, self._generations)
            metrics |= rollout_metrics(rollouts, self.toolbox.names, endings)
            if self.worlds is not None and self._training:
                due = self.worlds.due([item.id.rpartition("@")[0] for item in rollouts], 0, step)
                metrics |= world_metrics(rollouts, due)
        for name, value in metrics.items():
            if value is not None:
                log_metric(name, value)
        said = left_open(batch)
        for line in said if main else ():
            logger.warning("step %d: %s", step + 1, line)
        if not self._training:
            return
        if (
            sum(row.silent for row in batch) > self.args.max_abstained * len(batch)
            and not self.stop.silence
        ):
            self.stop.silence = f"at step {step + 1} {said[0]}"
        if main and self.rollout_log is not None:
            alpha = self.mix.alpha(state)
            self.rollout_log.append([row.told(step, alpha) for row in batch])


def check_reward(mix: Mix, args: SearchGRPOConfig, dialect: str, limits: Limits) -> None:
    kinds = [type(reward) for reward in mix.within()]
    unprobed = args.verdict_weight and EvidenceSensitivity not in kinds
    blind = args.uniform_groups == "drop" and mix.outcome is None
    in_one = limits.kept_responses and AnswerLikelihoodGap in kinds
    uncovered = f"a part of the reward does not cover dialect {dialect!r}, so no row has a value"
    refuse(
        [
            (not mix.covers(dialect), uncovered),
            (blind, "uniform_groups='drop' needs one reward that says whether an answer is right"),
            (
                in_one,
                "the likelihood gap reads a rollout as one context, which kept_responses makes several of",
            ),
            (unprobed, "verdict_weight needs a reward that probes the policy: EvidenceSensitivity"),
        ]
    )


def _no_dump(record: logging.LogRecord) -> bool:
    """Not TRL's warning about a rollout without reward, which holds all its tokens; `left_open` needs a line."""
    return (
        "All reward functions returned None" not in str(record.msg)[:100]
    )  # the process's rank comes first
