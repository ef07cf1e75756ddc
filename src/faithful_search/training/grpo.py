"""GRPO for search agents: TRL's trainer with our engine as its `rollout_func`, or with its own loop
of tool calls, and one reward function.
"""

import logging
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, cast

import msgspec
from accelerate.utils import gather_object
from datasets import Dataset
from trl import GRPOTrainer

from .. import dialects
from ..bundled import bundled_policy
from ..counterfactual import CounterfactualWorld
from ..dialects.base import Dialect
from ..errors import ConfigError, DataError
from ..inference.base import Generator, Sampling
from ..inference.loading import read_tokenizer
from ..inference.transformers import TransformersGenerator
from ..rewards import AnswerLikelihoodGap, Mix, MixState, Reward
from ..rewards.evidence_sensitivity import EvidenceSensitivity
from ..rollout import Engine, Limits, SearchEnvironment
from ..tasks import Task, task_from_row
from ..tools import Toolbox, ToolStats
from ..trajectory import Tokens, Trajectory
from .advantages import ESTIMATORS, TURN_ESTIMATORS
from .arguments import SearchGRPOConfig, check_vllm
from .callbacks import QuestionOrder, TrajectoryLog, Watching
from .changed_worlds import ChangedWorlds
from .processes import check_processes, gathered, hold_head, largest_over
from .rollout_batch import RolloutBatch, ScoredRollout, take_probes
from .step_metrics import (
    Metrics,
    memory_metrics,
    reward_metrics,
    rollout_metrics,
    tool_metrics,
    without_reward,
    world_metrics,
)
from .stopping import OrderlyStop
from .trl_loop import Sampled, TRLLoop, check_alone
from .update import UpdateTrainer
from .vllm import bound_sync, check_sync, joining_server, policy_generator, sync_weights

# The key of the reward's state in the trainer's state, so that checkpoints hold both
STATE = "reward"
logger = logging.getLogger(__name__)


class SearchGRPOTrainer(UpdateTrainer):
    """Trains a search agent on rewards that read its whole trajectory.

    `rollouts` is the batch under way: `UpdateTrainer` begins it, generation fills it, and the
    reward function scores it.

    Args:
        model: a causal LM or its name, as TRL takes it, or "tiny": the bundled policy of the
            dialect.
        args: the settings; `max_completion_length` bounds an episode when `limits` is not given.
            With Transformers' `enable_jit_checkpoint` SIGTERM ends training with a checkpoint, see
            `OrderlyStop`.
        train_dataset: tasks, or a dataset with `question` and `answers` columns (see
            `tasks.task_from_row`).
        toolbox: the tools of the episodes.
        reward: any `Reward`; a `Mix` keeps its state across processes and checkpoints.
        dialect: a dialect or its name.
        limits: bounds of an episode.
        trajectory_file: where every rollout is logged, with its scores and reasons.
        generation_batch: rows per forward pass when sampling and probing.
        counterfactual_world: makes the changes; by default to the bundled world, with the seed of
            `args`.

    Raises:
        DataError: if the dataset has no questions or answers.
        ConfigError: for a reward that does not cover the dialect or lacks what `args` ask for, for
            `push_to_hub`, and for questions without a changed world; where TRL's loop makes the
            rollouts (`rollouts: trl`), also for a dialect or limits that it cannot keep.
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
        **kwargs: Any,  # of TRL's GRPOTrainer
    ) -> None:
        if not isinstance(args, SearchGRPOConfig) or args.advantages not in self.estimators:
            raise ConfigError(
                f"{type(self).__name__} takes a SearchGRPOConfig whose advantages are one of "
                f"{', '.join(self.estimators)}"
            )
        check_vllm(args, args.device.type)
        mix = reward if isinstance(reward, Mix) else _mix_of_one(reward)
        dialect_name = dialect if isinstance(dialect, str) else dialect.name
        if limits is None:
            total_tokens = args.max_completion_length or Limits().total_tokens
            limits = Limits(total_tokens=total_tokens)
        check_reward(mix, args, dialect_name, limits)
        self.tasks = _tasks(train_dataset)
        self.worlds: ChangedWorlds | None = None
        if args.counterfactual:
            self.worlds = ChangedWorlds(
                world=counterfactual_world or CounterfactualWorld.bundled(args.seed),
                tasks=self.tasks,
                share=args.counterfactual,
                generations=cast(int, args.num_generations),
                groups=args.counterfactual_groups,
            )
        self.stop = OrderlyStop(on_sigterm=args.enable_jit_checkpoint)
        # Otherwise Transformers adds a callback of its own, which saves in the middle of a batch of
        # rollouts
        args.enable_jit_checkpoint = False
        self.rollout_log = TrajectoryLog(trajectory_file) if trajectory_file else None
        search_callbacks = [QuestionOrder(), self.stop, Watching()]
        if self.rollout_log is not None:
            search_callbacks.append(self.rollout_log)
        if isinstance(model, str):
            model = bundled_policy(model, dialect_name)
        self.loop: TRLLoop | None = None
        if args.rollouts == "trl":
            if kwargs.get("processing_class") is None:
                source = model if isinstance(model, str) else model.config._name_or_path
                kwargs["processing_class"] = read_tokenizer(source)
            loaded_dialect = dialects.load(dialect) if isinstance(dialect, str) else dialect
            self.loop = TRLLoop.of(kwargs["processing_class"], toolbox, loaded_dialect, limits)
            self.loop.bound(args)
        # TRL is given a question and its number, not the task: the chat is built, and the task
        # looked up, when the rollouts are made.
        rows: list[dict[str, Any]] = []
        for number, task in enumerate(self.tasks):
            prompt: Any = task.question
            if self.loop is not None:  # TRL's own loop takes conversations alone
                prompt = [{"role": "user", "content": task.question}]
            rows.append({"prompt": prompt, "task": number})
        with ExitStack() as contexts:
            contexts.enter_context(joining_server(args))
            if self.loop is None:
                kwargs["rollout_func"] = self._rollout
            else:
                kwargs["environment_factory"] = self.loop.environment
                # TRL's constructor sees the template of the dialect
                contexts.enter_context(self.loop.template.worn_by(self.loop.tokenizer))
            super().__init__(
                model=model,
                args=args,
                reward_funcs=[self._reward],
                train_dataset=Dataset.from_list(rows),
                callbacks=[*callbacks, *search_callbacks],
                **kwargs,
            )
        logging.getLogger("trl.trainer.grpo_trainer").addFilter(_without_dump)
        check_processes(self.accelerator)
        if self.loop is not None:
            check_alone(self.accelerator, args)
        self.policy = TransformersGenerator(
            self.accelerator.unwrap_model(self.model),
            self.processing_class,
            generation_batch,
            # All processes make as many forward passes as the one that needs most
            agree=largest_over(self.accelerator),
        )
        self.generator: Generator = policy_generator(self) if args.use_vllm else self.policy
        self.mix = mix.bind(
            policy=self.policy,
            sampler=self.generator,
            gather=gather_object,
            keep_probes=bool(args.verdict_weight),
        )
        self.toolbox = toolbox
        self.engine = Engine(
            self.generator,
            toolbox,
            dialect=dialect,
            limits=limits,
            sampling=Sampling(
                temperature=args.temperature,
                top_p=args.top_p,
                top_k=args.top_k or 0,
                logprobs=args.use_vllm,
            ),
        )
        # Whether vLLM was seen to receive the policy's weights; tested before the first sampling
        self._weights_arrive = False
        if args.use_vllm:
            bound_sync(self)

    def follow(self, script: Generator) -> None:
        """Sample from a script in the policy's place, for dry runs. What is trained and asked for
        probabilities stays the policy.
        """
        self.generator = self.engine.generator = script
        self.mix = self.mix.bind(sampler=script)

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """As `Trainer.train`. Raises `JudgeError` if the judge gave too few verdicts
        (`max_abstained`), `Terminated` if SIGTERM ended it.
        """
        outcome = super().train(*args, **kwargs)
        self.stop.check(self.args, self.state)
        return outcome

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        """Write no model card. TRL would write one with each checkpoint, which knows neither the
        base model nor what was measured.
        """

    def init_hf_repo(self, *args: Any, **kwargs: Any) -> None:
        """Raise `ConfigError`. Transformers calls this before every upload, and then uploads
        whatever is in the folder.
        """
        folder = self.args.output_dir
        raise ConfigError(
            f"push_to_hub would upload everything in {folder}, rollouts and pickled settings too; "
            "leave it out, and after training run: faithful-search push policy "
            f"{folder} YOU/NAME"
        )

    @property
    def reward_state(self) -> MixState:
        """The reward's state after the last step; before the first, the one that it starts with."""
        saved_state = cast(dict[str, Any], self.state.stateful_callbacks).get(STATE)
        if not saved_state:
            return self.mix.state0
        return msgspec.convert(saved_state, MixState)

    @contextmanager
    def generating(self) -> Iterator[None]:
        """Within the block, which every process must enter, `generator` samples the current
        policy.
        """
        if self.use_vllm:  # TRL brings the weights there for its own rollouts only
            sync_weights(self)
        with self._sampling():
            yield

    @contextmanager
    def asking(self, *rewards: Reward) -> Iterator[None]:
        """Within the block, which every process must enter, these rewards may ask the policy, or
        sample it.
        """
        samples_policy = any(reward.samples_policy for reward in rewards)
        sampling = self._sampling() if samples_policy else nullcontext()
        with self.accelerator.autocast(), sampling:
            yield

    @contextmanager
    def _sampling(self) -> Iterator[None]:
        """As `generating`, where vLLM has the current weights already."""
        if self.use_vllm:
            if not self._weights_arrive:
                self._check_sync()
            yield
            return
        # In the precision of training
        with gathered(self.model_wrapped, self.accelerator), self.accelerator.autocast():
            yield

    def _check_sync(self) -> None:
        """Raise where the policy's weights do not arrive at vLLM, see `vllm.check_sync`."""
        prompt = self.engine.chat.prompt_ids(self.tasks[0].question, self.toolbox.schemas)
        sync = partial(sync_weights, self)
        check_sync(self.policy.model, sync, self.generator, self.policy, prompt)
        self._weights_arrive = True

    def _tasks_of_batch(self) -> list[Task]:
        """The question of each row, in the world in which it is asked."""
        numbers = self.rollouts.task_numbers
        if self.worlds is None or not self._training:
            return [self.tasks[number] for number in numbers]
        # Each process has the same number of rows
        first_row = self.accelerator.process_index * len(numbers)
        return self.worlds.questions(numbers, first_row, self.state.global_step)

    def _generate(self, prompts: list[Any]) -> tuple[Any, ...]:
        """Override TRL's generation to read the rollouts of TRL's own loop as our engine's are."""
        if self.loop is None:
            return cast(tuple[Any, ...], super()._generate(prompts))
        if self.use_vllm and not self._weights_arrive:
            self._check_sync()
        tasks = self._tasks_of_batch()
        environments = cast(list[SearchEnvironment], self.environments)
        for environment, task in zip(environments, tasks, strict=True):
            environment.reset(edits=task.edits)
        prompts = [self.loop.prompt(task) for task in tasks]
        tool_stats = self.toolbox.stats()
        with self.loop.template.worn_by(self.loop.tokenizer):
            output = super()._generate(prompts)
        prompt_ids, completion_ids, mask, messages, logprobs, extra_fields, *images = output
        sampled = Sampled(
            prompt_ids=prompt_ids,
            completion_ids=completion_ids,
            mask=mask,
            messages=messages,
            logprobs=logprobs,
        )
        trajectories = self.loop.trajectories(
            tasks,
            environments,
            sampled,
            chat=self.engine.chat,
            eos_ids=self.eos_token_ids,
        )
        tokens = [cast(Tokens, trajectory.tokens) for trajectory in trajectories]
        self.rollouts = replace(self.rollouts, tool_stats=tool_stats, tokens=tokens)
        extra_fields = {**extra_fields, "trajectory": trajectories}  # for the reward function
        return prompt_ids, completion_ids, mask, messages, logprobs, extra_fields, *images

    def _rollout(self, prompts: list[str], trainer: GRPOTrainer) -> dict[str, Any]:
        """Sample an episode for each row: TRL's `rollout_func`, with the result that it asks for.

        The rows are those of `rollouts.task_numbers`, which has the same order as `prompts`.
        """
        tasks = self._tasks_of_batch()
        # Counted from here, so that the calls of an evaluation in between are not logged
        tool_stats = self.toolbox.stats()
        if self.use_vllm:
            # Only the main process knows that a server has the weights
            self.accelerator.wait_for_everyone()
        with self._sampling():
            trajectories = self.engine.run(tasks)
        tokens = [cast(Tokens, trajectory.tokens) for trajectory in trajectories]
        self.rollouts = replace(self.rollouts, tool_stats=tool_stats, tokens=tokens)
        return {
            "prompt_ids": [episode.prompt_ids for episode in tokens],
            "completion_ids": [episode.completion_ids for episode in tokens],
            "env_mask": [episode.mask for episode in tokens],
            # For TRL's correction of how vLLM's probabilities differ from the training model's
            "logprobs": [episode.logprobs for episode in tokens] if self.use_vllm else None,
            "trajectory": trajectories,
        }

    def _reward(
        self, trajectory: list[Trajectory], task: list[int], log_metric: Any, **kwargs: Any
    ) -> list[float | None]:
        """Score the rollouts, advance the reward's state by the global batch, log every part.

        This is TRL's reward function. TRL passes columns by their names, hence the singular:
        `trajectory` has the rollouts of this process, `task` the number of the question of each.
        The result has a reward for each, `None` where it has none.
        """
        step = self.state.global_step
        trajectories = self._with_ids(trajectory, task)
        # Gather the output layer now: the probes' forward passes would hide it from ZeRO-3
        hold_head(self.policy.model, self.accelerator)
        with self.asking(self.mix):
            components, probes = take_probes(self.mix.components(trajectories))
        state = self.reward_state
        if self._training:
            # Schedules go by the optimizer's steps, here the next one: with gradient accumulation,
            # `steps_per_generation` and `num_iterations` there are more or fewer calls than steps.
            # `state0.step` is where an earlier training ended.
            outcomes = gather_object(self.mix.outcomes(components))
            state = self.mix.advance(state, outcomes, self.mix.state0.step + step + 1)
            cast(dict[str, Any], self.state.stateful_callbacks)[STATE] = msgspec.to_builtins(state)
        scores = self.mix.combine(components, state)
        local: list[ScoredRollout] = []
        for rollout, score, parts in zip(trajectories, scores, components, strict=True):
            scored = ScoredRollout(
                trajectory=msgspec.structs.replace(rollout, tokens=None),
                turns=len(cast(Tokens, rollout.tokens).turns),
                score=score,
                components=parts,
            )
            local.append(scored)
        rollouts = replace(self.rollouts, local=local, gathered=gather_object(local), probes=probes)
        self.rollouts = rollouts
        self._report(rollouts, log_metric)
        return [score.value for score in scores]

    def _with_ids(
        self, trajectories: Sequence[Trajectory], task_numbers: Sequence[int]
    ) -> list[Trajectory]:
        """The rollouts of this process with ids made of the question's id, the step and the row of
        the global batch, as in `q7@120#3`.
        """
        step = self.state.global_step
        first_row = self.accelerator.process_index * len(trajectories)
        pairs = zip(trajectories, task_numbers, strict=True)
        with_ids: list[Trajectory] = []
        for row, (trajectory, number) in enumerate(pairs, start=first_row):
            rollout_id = f"{self.tasks[number].id}@{step}#{row}"
            with_ids.append(msgspec.structs.replace(trajectory, id=rollout_id))
        return with_ids

    def _report(self, rollouts: RolloutBatch, log_metric: Any) -> None:
        """Log what was scored; have training stop where a judge is silent."""
        state = self.reward_state
        step = self.state.global_step
        is_main = self.accelerator.is_main_process
        for name, value in self._metrics_of(rollouts, state).items():
            if value is not None:
                log_metric(name, value)
        warnings = without_reward(rollouts.gathered)
        if is_main:
            for warning in warnings:
                logger.warning("step %d: %s", step + 1, warning)
        if not self._training:
            return
        unjudged = sum(rollout.unjudged for rollout in rollouts.gathered)
        most_unjudged = self.args.max_abstained * len(rollouts.gathered)
        if unjudged > most_unjudged and not self.stop.judge_failure:
            # The first warning is that of the judge; an earlier step's reason stays
            self.stop.judge_failure = f"at step {step + 1} {warnings[0]}"
        if is_main and self.rollout_log is not None:
            alpha = self.mix.alpha(state)
            self.rollout_log.append([rollout.logged(step, alpha) for rollout in rollouts.gathered])

    def _metrics_of(self, rollouts: RolloutBatch, state: MixState) -> Metrics:
        """The metrics of this process's tools; on the main process also those of the rollouts of
        all processes.
        """
        stats_of_batch: dict[str, ToolStats] = {}
        for name, stats in self.toolbox.stats().items():
            stats_of_batch[name] = stats - rollouts.tool_stats.get(name, ToolStats())
        metrics = tool_metrics(stats_of_batch, len(rollouts.local))
        if not self.accelerator.is_main_process:
            return metrics
        trajectories = [rollout.trajectory for rollout in rollouts.gathered]
        metrics |= reward_metrics(self.mix, state, rollouts.gathered, self._generations)
        metrics |= memory_metrics(self.accelerator.device)
        endings = ["answered"]
        if self.engine.limits.force_answer:
            endings.append("answered_forced")
        metrics |= rollout_metrics(trajectories, self.toolbox.names, endings)
        if self.worlds is not None and self._training:
            # As `_with_ids` writes them; the rows are those of the global batch from its first on
            task_ids = [trajectory.id.rpartition("@")[0] for trajectory in trajectories]
            changed_rows = self.worlds.due(task_ids, first=0, step=self.state.global_step)
            metrics |= world_metrics(trajectories, changed_rows)
        return metrics


def check_reward(mix: Mix, args: SearchGRPOConfig, dialect: str, limits: Limits) -> None:
    """Raise `ConfigError` for a reward that does not cover the dialect, lacks what the settings
    ask for, or cannot read rollouts with these limits.
    """
    kinds = [type(reward) for reward in mix.within()]
    if not mix.covers(dialect):
        raise ConfigError(
            f"a part of the reward does not cover dialect {dialect!r}, so no row has a value"
        )
    if args.uniform_groups == "drop" and mix.outcome_name is None:
        raise ConfigError(
            "uniform_groups='drop' needs one reward that says whether an answer is right"
        )
    if limits.kept_responses and AnswerLikelihoodGap in kinds:
        raise ConfigError(
            "the likelihood gap reads a rollout as one context, which kept_responses makes several "
            "of"
        )
    if args.verdict_weight and EvidenceSensitivity not in kinds:
        raise ConfigError(
            "verdict_weight needs a reward that probes the policy: EvidenceSensitivity"
        )


def _mix_of_one(reward: Reward) -> Mix:
    """A single reward as a mix of one part, without a gate."""
    return Mix(parts={reward.name: reward}, gate=None, weights={reward.name: 1.0})


def _tasks(rows: Sequence[Task] | Dataset) -> list[Task]:
    """The tasks themselves, or those in the rows of a dataset. Raises `DataError` for none, and for
    a row without question or answers.
    """
    tasks = [
        row if isinstance(row, Task) else task_from_row(row, number, "dataset row")
        for number, row in enumerate(rows)
    ]
    if not tasks:
        raise DataError("the dataset has no rows")
    return tasks


def _without_dump(record: logging.LogRecord) -> bool:
    """A filter of TRL's log. It drops the warning about a rollout without reward, which prints all
    tokens of the rollout: `without_reward` warns of it in a line.
    """
    # The message begins with the process's rank. What comes after its first words may be a text of
    # any length, and is not looked at
    beginning = str(record.msg)[:100]
    return "All reward functions returned None" not in beginning
