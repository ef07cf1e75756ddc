"""GRPO for search agents: TRL's trainer with our engine as its rollout and one reward callable.

Here are TRL's public seams, `rollout_func` and one reward function; `update` makes advantages and the loss.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, cast

import msgspec
from accelerate.utils import gather_object
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from ..counterfactual import CounterfactualWorld
from ..dialects.base import Dialect
from ..errors import ConfigError
from ..inference.base import Generator, Sampling
from ..inference.transformers import TransformersGenerator
from ..rewards import Mix, Reward
from ..rollout import Engine, Limits
from ..tasks import Task
from ..tools import Toolbox, ToolStats
from ..trajectory import Tokens, Trajectory
from ..world import bundled_world
from .callbacks import LearningWatch, QuestionOrder, RewardState, RolloutTraces, TrajectoryLog, with_scores
from .changed_worlds import ChangedWorlds, asked, by_question, met, world_figures
from .config import without_token
from .inputs import as_tasks, check_reward, check_settings, prompt_dataset
from .likelihood import LikelihoodWatch
from .outage import JudgeWatch, unscored
from .policies import policy_source
from .processes import check_processes, gathered, hold_head, most
from .step_metrics import one_outcome, part_metrics, rights, rollout_metrics, tool_metrics
from .update import UpdateTrainer
from .vllm import VLLMStart, bound_sync, joining_server, policy_generator, sync_weights

logger = logging.getLogger(__name__)


class SearchGRPOTrainer(UpdateTrainer):
    """Trains a search agent on rewards that read its whole trajectory.

    Args:
        model: a causal LM or its name, as TRL takes it, or "tiny": the bundled policy of the dialect.
        args: TRL's `GRPOConfig`; `max_completion_length` bounds an episode when `limits` is not given.
        train_dataset: tasks, or a dataset with `question` and `answers` columns (see `tasks.task_from_row`).
        toolbox: the tools of the episodes.
        reward: any `Reward`; a `Mix` keeps its state across processes and checkpoints.
        dialect: a dialect or its name.
        limits: bounds of an episode.
        advantages: "trl", "group_relative" or "leave_one_out"; "turns" or "turns_leave_one_out" give each turn its own,
            from what `Score.steps` says of it and of those after it. See `training.advantages`.
        turn_gamma: the discount of what later turns earn.
        llds: weight of the likelihood-preserving term, see `training.likelihood.llds`; 0 is without. It is applied to
            the batch before, in a further pass, unless each batch is used for several updates.
        verdict_weight: λ of the verdict term, see `training.verdict_term`; its probes are those of the reward's
            `EvidenceSensitivity`. 0 is the papers' loss. The mean of s(q' - q) is logged as `verdict_term`.
        uniform_groups: "drop" sets advantages to 0 in groups whose answers are all right or all equally wrong, unless
            only some of their rollouts passed the format gate. The adaptive part's outcome, or the only `Correctness`,
            says what is right. "keep" lets their other rewards count. The verdict term stays.
        trajectory_file: where every rollout is logged, with its scores and reasons.
        generation_batch: rows per forward pass when sampling and probing.
        max_abstained: the share of a global batch's rollouts that a judge may leave without reward. Beyond it the
            steps of that batch are still made and a checkpoint is saved; then `train` raises `JudgeError`. Rollouts
            without reward train nothing; their share is logged as `judge/abstained`.
        counterfactual: the share of each question's rollouts that are run in a changed world of the question, scored by
            the gold answers of that world; never in evaluations. Their `meta["counterfactual"]` is the `world.Change`.
            See `training.changed_worlds` for this and the next.
        counterfactual_groups: "paired": the share is one of every group. "own": one of the questions, so that changed
            rollouts are only compared with each other.
        counterfactual_world: makes the changes; by default to the bundled world, with the seed of `args`.

    Raises:
        DataError: if the dataset has no questions or answers.
        ConfigError: for unknown names or shares out of range, a verdict term without a reward that probes, uniform
            groups to drop without a reward for answers, `push_to_hub`, or if no question has a changed world.
        TemplateError: if the tokenizer has no usable chat template.

    Example:
        ```python
        args = GRPOConfig("outputs/pou")
        SearchGRPOTrainer("tiny", args, load_tasks("world"), toolbox=toolbox, reward=pou_mix()).train()
        ```
    """

    def __init__(
        self,
        model: Any,
        args: GRPOConfig,
        train_dataset: Sequence[Task] | Dataset,
        *,
        toolbox: Toolbox,
        reward: Reward,
        dialect: Dialect | str = "pou",
        limits: Limits | None = None,
        eval_dataset: Sequence[Task] | Dataset | None = None,
        advantages: str = "trl",
        turn_gamma: float = 1.0,
        llds: float = 0.0,
        verdict_weight: float = 0.0,
        uniform_groups: str = "keep",
        trajectory_file: str | Path | None = None,
        generation_batch: int = 64,
        max_abstained: float = 0.5,
        counterfactual: float = 0.0,
        counterfactual_groups: str = "paired",
        counterfactual_world: CounterfactualWorld | None = None,
        callbacks: Sequence[Any] = (),
        **kwargs: Any,
    ) -> None:
        check_settings(args)
        single = {reward.name: reward}  # a single reward is a mix of one part without gate
        mix = reward if isinstance(reward, Mix) else Mix(parts=single, gate=None, weights={reward.name: 1.0})
        name = dialect if isinstance(dialect, str) else dialect.name
        kept_responses = limits.kept_responses if limits else 0
        check_reward(mix, name, verdict_weight, uniform_groups, kept_responses)
        tasks = as_tasks(train_dataset)
        self.worlds: ChangedWorlds | None = None
        if counterfactual:
            world = counterfactual_world or CounterfactualWorld(bundled_world(), args.seed)
            generations = cast(int, args.num_generations)
            self.worlds = ChangedWorlds(world, by_question(tasks), counterfactual, generations, counterfactual_groups)
        # TRL's columns hold ids and questions only; edits and annotations are looked up by them.
        self._tasks = by_question([*tasks, *as_tasks(eval_dataset or ())])
        self.judge_watch, self._learning = JudgeWatch(max_abstained), LearningWatch()
        own = [RewardState(mix.state0), QuestionOrder(), self.judge_watch, LikelihoodWatch()]
        self.rollout_log = TrajectoryLog(trajectory_file) if trajectory_file else None
        if self.rollout_log:
            own += [
                self.rollout_log,
                *([RolloutTraces(self.rollout_log)] if "trackio" in (args.report_to or ()) else []),
            ]
        # A dataset and a reward function are all that TRL sees of tasks and rewards.
        with joining_server(args):
            super().__init__(
                model=policy_source(model, name) if isinstance(model, str) else model,
                args=without_token(args),
                reward_funcs=[self._reward],
                rollout_func=self._rollout,
                train_dataset=prompt_dataset(tasks),
                eval_dataset=None if eval_dataset is None else prompt_dataset(eval_dataset),
                callbacks=[*callbacks, *own],
                advantages=advantages,
                turn_gamma=turn_gamma,
                llds=llds,
                verdict_weight=verdict_weight,
                uniform_groups=uniform_groups,
                kept_responses=kept_responses,
                **kwargs,
            )
        self.toolbox = toolbox
        self._counted: dict[str, ToolStats] = {}
        check_processes(self.accelerator)
        model, agree = self.accelerator.unwrap_model(self.model), most(self.accelerator)
        self.policy = TransformersGenerator(model, self.processing_class, generation_batch, agree=agree)
        self.generator: Generator = policy_generator(self) if args.use_vllm else self.policy
        self.mix = mix.bind(
            policy=self.policy, sampler=self.generator, gather=gather_object, sink=partial(setattr, self, "_probes")
        )
        self.engine = Engine(
            self.generator,
            toolbox,
            dialect,
            limits or Limits(total_tokens=args.max_completion_length or Limits().total_tokens),
            Sampling(args.temperature, args.top_p, args.top_k or 0, logprobs=args.use_vllm),
        )
        if args.use_vllm:
            bound_sync(self)
            self.add_callback(VLLMStart(self))

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """As `Trainer.train`. Raises `JudgeError` if the judge gave too few verdicts, see `max_abstained`."""
        outcome = super().train(*args, **kwargs)
        self.judge_watch.check(cast(str, self.args.output_dir), self.state.global_step)
        return outcome

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        """Writes none: TRL's, made with each checkpoint, knows neither the base model nor what was measured."""

    def init_hf_repo(self, *args: Any, **kwargs: Any) -> None:
        """Refused: Transformers calls it before every upload, and uploads whatever is in the folder."""
        raise ConfigError(
            f"push_to_hub would upload everything in {self.args.output_dir}, rollouts and pickled settings too; leave "
            f"it out, and after training run: faithful-search push policy {self.args.output_dir} YOU/NAME"
        )

    @property
    def reward_state(self) -> RewardState:
        """The live holder of the reward's state."""
        return next(item for item in self.callback_handler.callbacks if isinstance(item, RewardState))

    @contextmanager
    def generating(self) -> Iterator[None]:
        """Within the block `generator` samples the current policy, in each process as often as that one likes.

        Every process must enter it.
        """
        if self.use_vllm:  # TRL brings the weights there for its own rollouts only
            sync_weights(self)
        with self._sampling():
            yield

    @contextmanager
    def asking(self, *rewards: Reward) -> Iterator[None]:
        """Within the block rewards may ask the policy; one that samples it needs the whole of it in each process.

        Every process must enter it.
        """
        with self.accelerator.autocast(), ExitStack() as stack:
            if any(reward.samples_policy for reward in rewards):
                stack.enter_context(self._sampling())
            yield

    @contextmanager
    def _sampling(self) -> Iterator[None]:
        if self.use_vllm:
            yield
            return
        with gathered(self.model_wrapped, self.accelerator), self.accelerator.autocast():  # the precision of training
            yield

    def _rollout(self, prompts: list[str], trainer: GRPOTrainer) -> dict[str, Any]:
        """TRL's `rollout_func`: one episode per prompt."""
        tasks = asked(self._rows, self._tasks)
        if self.worlds is not None and self._training:
            first = self.accelerator.process_index * len(prompts)  # each process has as many
            tasks = self.worlds.tasks_of(self._rows, first, self.state.global_step)
        self._counted = self.toolbox.stats()  # so that an evaluation's calls in between are not logged
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
        self,
        prompts: list[str],
        trajectory: list[Trajectory],
        id: list[str],
        answers: list[list[str]],
        log_metric: Any,
        **columns: Any,
    ) -> list[float | None]:
        """TRL's reward function: score the rollouts, advance the reward's state by the global batch, log every part."""
        step, training = self.state.global_step, self._training
        first = self.accelerator.process_index * len(trajectory)
        # A rollout in a changed world has gold answers of its own.
        rollouts = [
            msgspec.structs.replace(item, id=f"{name}@{step}#{first + number}", answers=item.answers or tuple(gold))
            for number, (item, name, gold) in enumerate(zip(trajectory, id, answers, strict=True))
        ]
        hold_head(self.policy.model, self.accelerator)  # before the probes' passes, which hide it from ZeRO-3
        with self.asking(self.mix):
            components = self.mix.components(rollouts)
        holder = self.reward_state
        if training:
            # Schedules go by the optimizer's steps, here the next one: with gradient accumulation,
            # `steps_per_generation` and `num_iterations` there are more or fewer calls than steps.
            outcomes = gather_object(self.mix.outcomes(components))
            holder.mix = self.mix.advance(holder.mix, outcomes, self.mix.state0.step + step + 1)
        self.last_components = components
        self.last_scores = scores = self.mix.combine(components, holder.mix)
        self.last_rewards = [score.value for score in scores]
        self._right = rights(self.mix, components, rollouts)
        self._report(rollouts, id, log_metric)
        return self.last_rewards

    def _report(self, rollouts: list[Trajectory], id: list[str], log_metric: Any) -> None:
        """Log what was scored last, and say what is wrong with it: a silent judge, or rewards that are all equal."""
        components, scores, state = self.last_components, self.last_scores, self.reward_state.mix
        step, training, main = self.state.global_step, self._training, self.accelerator.is_main_process
        endings = ("answered", "answered_forced") if self.engine.limits.force_answer else ("answered",)
        metrics = part_metrics(self.mix, state, components)
        metrics |= rollout_metrics(rollouts, self.toolbox.names, endings) | tool_metrics(
            self._used_tools(), len(rollouts)
        )
        metrics["groups/one_outcome"] = one_outcome(gather_object(self._right), self._generations)
        if self.worlds is not None and training:
            due = self.worlds.due(id, self.accelerator.process_index * len(id), step)
            figures = world_figures(gather_object(met(rollouts, due)))
            metrics |= {f"counterfactual/{name}": share for name, share in figures.items()}
        open_rows = unscored(components, scores)
        metrics["judge/abstained"] = self.judge_watch.note(open_rows, step + 1, training, main)
        for name, value in metrics.items():
            if value is not None:
                log_metric(name, value)
        if training and self._learning.open:
            gate = self.mix.gate
            passed = [1.0 if gate is None else row[gate.name].value for row in components]
            trouble = self._learning.note(gather_object(list(zip(self.last_rewards, passed, strict=True))))
            if trouble and main:
                logger.warning("step %d: %s", step + 1, trouble)
        if training and self.rollout_log is not None:
            rows, alpha = zip(rollouts, scores, components, strict=True), self.mix.alpha(state)
            every = gather_object([with_scores(*row, step, alpha=alpha) for row in rows])
            if main:
                self.rollout_log.append(every)

    def _used_tools(self) -> dict[str, ToolStats]:
        """What was counted of the tools since the last call."""
        before, self._counted = self._counted, self.toolbox.stats()
        return {name: stats - before.get(name, ToolStats()) for name, stats in self._counted.items()}
