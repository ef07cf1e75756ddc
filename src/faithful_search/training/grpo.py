"""GRPO for search agents: TRL's trainer with our engine as its rollout and one reward callable.

Only TRL's public seams are used (`rollout_func`, one reward function, `compute_loss`, `log`), but for two methods.
`_generate_and_score_completions` is extended: the rows that it is given are kept for the rollout, which gets the
prompts only; in what it returns, advantages are replaced for another estimator or for uniform groups, and what the
loss's further terms need is added. `_get_per_token_logps_and_entropies` is called in passes by length, and what the
loss had from it is kept for these terms.
"""

from __future__ import annotations

import logging
import math
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, cast

import msgspec
import torch
from accelerate.utils import gather_object
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from ..counterfactual import CounterfactualWorld
from ..dialects.base import Dialect
from ..errors import ConfigError, DataError
from ..inference.base import Generator, Sampling
from ..inference.transformers import TransformersGenerator
from ..rewards import Mix, Reward, Score
from ..rewards.evidence_sensitivity import EvidenceSensitivity, Probe
from ..rollout import Engine, Limits
from ..tasks import Task, task_from_row
from ..tools import Toolbox, ToolStats
from ..trajectory import Tokens, Trajectory
from ..world import bundled_world
from .advantages import ESTIMATORS, TURN_ESTIMATORS, informative, spread, turn_numbers, turn_returns
from .callbacks import LearningWatch, QuestionOrder, RewardState, TrajectoryLog, with_scores
from .changed_worlds import ChangedWorlds, asked, by_question, met, world_figures
from .config import without_token
from .likelihood import LIKELIHOOD, LikelihoodWatch, llds
from .outage import JudgeWatch, silence, together, without_dump
from .policies import policy_source
from .processes import check_processes, gathered, hold_head, most
from .step_metrics import one_outcome, part_metrics, rights, rollout_metrics, tool_metrics
from .traces import RolloutTraces
from .trimming import FEWEST, PASSES, Columns, by_length
from .verdict_term import probe_columns, verdict_moves
from .vllm import VLLMStart, bound_sync, check_vllm, joining_server, policy_generator, sync_weights

logger = logging.getLogger(__name__)


class SearchGRPOTrainer(GRPOTrainer):
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
        turn_gamma: by how much a turn discounts what later turns earn.
        llds: the weight of the likelihood-preserving term, see `training.likelihood.llds`; 0 is without. Where a batch
            is used for several updates it is applied to that batch, else to the one before, in a further pass.
        verdict_weight: λ of the verdict term, see `training.verdict_term`; the probes are those of the reward's
            `EvidenceSensitivity`. 0 is the papers' loss. The mean of s(q' - q) is logged as `verdict_term`.
        uniform_groups: "drop" sets advantages to 0 in groups whose answers are all right or all equally wrong, unless
            some rollouts passed the format gate and some did not. The adaptive part's outcome, or the only
            `Correctness`, says what is right. "keep" lets their other rewards count. The verdict term stays.
        trajectory_file: where every rollout is logged, with its scores and reasons.
        generation_batch: rows per forward pass when sampling and probing.
        max_abstained: the share of a global batch's rollouts that a judge may leave without reward. Beyond it the
            steps of that batch are still made and a checkpoint is saved; then `train` raises `JudgeError`. Rollouts
            without reward train nothing; a batch with some gives a warning and the metric `judge/abstained`.
        counterfactual: the share of each question's rollouts that are run in a changed world of the question, scored by
            the gold answers of that world; never in evaluations. Their `meta["counterfactual"]` is the `world.Change`.
            A question without a valid change stays as it is. See `training.changed_worlds` for this and the next, and
            `world_figures` there for the metrics `counterfactual/…`.
        counterfactual_groups: "paired": the share is one of every group. "own": one of the questions, so that changed
            rollouts are only compared with each other; the same information without pairing, as a baseline.
        counterfactual_world: makes the changes; by default to the bundled world, with the seed of `args`.

    Raises:
        DataError: if the dataset has no questions or answers.
        ConfigError: for unknown names or shares out of range, a verdict term without a reward that probes, uniform
            groups to drop without a reward for answers, `push_to_hub`, or if no question has a changed world.
        TemplateError: if the tokenizer has no usable chat template.

    Example:
        ```python
        trainer = SearchGRPOTrainer(
            path, GRPOConfig("outputs/pou"), load_tasks("world"), toolbox=toolbox, reward=pou_mix()
        )
        trainer.train()
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
        names = {**ESTIMATORS, **TURN_ESTIMATORS}
        if advantages not in names:
            raise ConfigError(f"unknown advantages {advantages!r}; there are: {', '.join(names)}")
        if not 0 <= turn_gamma <= 1 or llds < 0:
            raise ConfigError(f"turn_gamma is in [0, 1] and llds 0 or more, not {turn_gamma:g} and {llds:g}")
        _check_settings(args)
        mix = as_mix(reward)
        name = dialect if isinstance(dialect, str) else dialect.name
        if not mix.covers(name):
            raise ConfigError(
                f"a part of the reward does not cover dialect {name!r}, so that no row would have a value"
            )
        _check_update(mix, verdict_weight, uniform_groups)
        tasks = as_tasks(train_dataset)
        self.worlds: ChangedWorlds | None = None
        if counterfactual:
            world = counterfactual_world or CounterfactualWorld(bundled_world(), args.seed)
            generations = cast(int, args.num_generations)
            self.worlds = ChangedWorlds.of(world, tasks, counterfactual, generations, counterfactual_groups)
        self._tasks = by_question([*tasks, *as_tasks(eval_dataset or ())])
        self._rows: list[dict[str, Any]] = []
        self.estimator, self.turn_estimator = ESTIMATORS.get(advantages), TURN_ESTIMATORS.get(advantages)
        self.turn_gamma = turn_gamma
        self.llds = llds
        self.verdict_weight = verdict_weight
        self.uniform_groups = uniform_groups
        self._probes: list[list[Probe]] = []
        self._terms: dict[str, list[float]] = defaultdict(list)
        self._likelihood: list[torch.Tensor] = []
        self._passed: tuple[Columns, ...] = ()
        self._earlier: deque[dict[str, Any]] = deque()
        self.rollout_log = TrajectoryLog(trajectory_file) if trajectory_file else None
        self.judge_watch = JudgeWatch(max_abstained)
        self._learning = LearningWatch()
        shown = [RolloutTraces(self.rollout_log)] if self.rollout_log and "trackio" in (args.report_to or ()) else []
        own = [
            *(RewardState(mix.state0), self.judge_watch, LikelihoodWatch(), QuestionOrder()),
            *([self.rollout_log] if self.rollout_log else []),
            *shown,
        ]
        with joining_server(args):
            super().__init__(
                model=policy_source(model, name) if isinstance(model, str) else model,
                args=without_token(args),
                reward_funcs=[self._reward],
                rollout_func=self._rollout,
                train_dataset=prompt_dataset(tasks),
                eval_dataset=None if eval_dataset is None else prompt_dataset(eval_dataset),
                callbacks=[*callbacks, *own],
                **kwargs,
            )
        self.toolbox = toolbox
        self._counted: dict[str, ToolStats] = {}
        check_processes(self.accelerator)
        self.policy = TransformersGenerator(
            self.accelerator.unwrap_model(self.model),
            self.processing_class,
            generation_batch,
            agree=most(self.accelerator),
        )
        self.generator: Generator = policy_generator(self) if args.use_vllm else self.policy
        self.mix = mix.bind(policy=self.policy, sampler=self.generator, gather=gather_object, sink=self._keep_probes)
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
        if self.use_vllm:
            sync_weights(self)
        with self._sampling():
            yield

    @contextmanager
    def asking(self, *rewards: Reward) -> Iterator[None]:
        """While it lasts, rewards may ask the policy: one that samples it needs the whole of it in each process.

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

    @property
    def _training(self) -> bool:
        return bool(self.model is not None and self.model.training)

    def _rollout(self, prompts: list[str], trainer: GRPOTrainer) -> dict[str, Any]:
        """TRL's `rollout_func`: one episode per prompt."""
        tasks = asked(self._rows, self._tasks)
        if self.worlds is not None and self._training:
            first = self.accelerator.process_index * len(prompts)
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
        """TRL's reward function: score the rollouts, advance the reward's state by the global batch, log every part.

        Schedules go by the optimizer's steps, here the next one; with gradient accumulation, `steps_per_generation` and
        `num_iterations` there can be more or fewer calls than steps.
        """
        step, training = self.state.global_step, self._training
        first = self.accelerator.process_index * len(trajectory)
        rollouts = [
            msgspec.structs.replace(item, id=f"{name}@{step}#{first + number}", answers=item.answers or tuple(gold))
            for number, (item, name, gold) in enumerate(zip(trajectory, id, answers, strict=True))
        ]
        hold_head(self.policy.model, self.accelerator)
        with self.asking(self.mix):
            components = self.mix.components(rollouts)
        holder = self.reward_state
        if training:
            outcomes = gather_object(self.mix.outcomes(components))
            holder.mix = self.mix.advance(holder.mix, outcomes, self.mix.state0.step + step + 1)
        scores = self.mix.combine(components, holder.mix)
        endings = ("answered", "answered_forced") if self.engine.limits.force_answer else ("answered",)
        metrics = part_metrics(self.mix, holder.mix, components)
        metrics |= rollout_metrics(rollouts, self.toolbox.names, endings)
        metrics |= tool_metrics(self._used_tools(), len(rollouts))
        for name, value in metrics.items():
            if value is not None:
                log_metric(name, value)
        if self.worlds is not None and training:
            rows = met(rollouts, self.worlds.due(id, first, step))
            for name, share in world_figures(gather_object(rows)).items():
                log_metric(f"counterfactual/{name}", share)
        self._watch(components, scores, log_metric)
        self.last_scores, self.last_rewards = scores, [score.value for score in scores]
        self.last_components = components
        self._right = rights(self.mix, components, rollouts)
        log_metric("groups/one_outcome", one_outcome(gather_object(self._right), self._generations))
        if training and self.rollout_log is not None:
            alpha = self.mix.alpha(holder.mix)
            scored = [
                with_scores(item, score, parts, step, alpha=alpha)
                for item, score, parts in zip(rollouts, scores, components, strict=True)
            ]
            every = gather_object(scored)
            if self.accelerator.is_main_process:
                self.rollout_log.append(every)
        return self.last_rewards

    def _watch(self, components: list[Any], scores: list[Score], log_metric: Any) -> None:
        found = together(gather_object([silence(components, scores)]))
        log_metric("judge/abstained", found.share)
        main = self.accelerator.is_main_process
        self.judge_watch.note(found, self.state.global_step + 1, self._training, main)
        if self._training and self._learning.open:
            gate = self.mix.gate
            passed = [1.0 if gate is None else row[gate.name].value for row in components]
            rows = [(score.value, value) for score, value in zip(scores, passed, strict=True)]
            trouble = self._learning.note(gather_object(rows))
            if trouble and main:
                logger.warning("step %d: %s", self.state.global_step + 1, trouble)

    def _used_tools(self) -> dict[str, ToolStats]:
        """What was counted of the tools since the last call."""
        before, self._counted = self._counted, self.toolbox.stats()
        return {name: stats - before.get(name, ToolStats()) for name, stats in self._counted.items()}

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        self._rows = inputs
        with without_dump():
            output = super()._generate_and_score_completions(inputs)
        own = output["advantages"]
        output["turn_numbers"] = turn_numbers(self._tokens, output["completion_ids"].shape[1]).to(own.device)
        output["right"] = torch.tensor(self._right, device=own.device)
        self._estimate(output, own)
        if self._training and self.uniform_groups == "drop":
            told = self._informative(own)
            output["advantages"] = output["advantages"] * (told if output["advantages"].dim() == 1 else told[:, None])
        if self._training and self.verdict_weight:
            output |= probe_columns(self._probes, own.device)
        return output

    def _keep_probes(self, probes: list[list[Probe]]) -> None:
        self._probes = probes

    def _get_per_token_logps_and_entropies(
        self, model: Any, input_ids: torch.Tensor, attention_mask: torch.Tensor, logits_to_keep: int, **given: Any
    ) -> Any:
        """TRL's, in passes over rollouts of like length: more than half of a batch of rollouts would be padding."""
        forward = partial(self._pass, super()._get_per_token_logps_and_entropies, model)
        self._passed = by_length(forward, input_ids, attention_mask, logits_to_keep, **given)
        return self._passed[:3]

    def _pass(self, forward: Any, *args: Any, **given: Any) -> tuple[Columns, ...]:
        """One pass of TRL's `forward`; a trainer that needs more of each token than its log-probability adds it."""
        return cast(tuple[Columns, ...], forward(*args, **given))

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> torch.Tensor:
        """TRL's loss, and the terms that have a weight: see `training.verdict_term` and `training.likelihood`."""
        loss = cast(torch.Tensor, super().compute_loss(model, inputs, return_outputs, num_items_in_batch))
        if not self._training:
            return loss
        passed, self._passed = self._passed, ()
        # Gradients are averaged over processes and summed over the equal batches of an optimizer step.
        return loss + self._further(model, inputs, passed) / self.current_gradient_accumulation_steps

    def _further(self, model: Any, inputs: dict[str, Any], passed: Sequence[Columns]) -> torch.Tensor | float:
        """What a batch adds to TRL's loss, given what `_pass` gave for it."""
        logps = cast(torch.Tensor, passed[0])
        total: torch.Tensor | float = 0.0
        self._likelihood.append(_sums(logps.detach(), (inputs["turn_numbers"] > 0) & inputs["right"][:, None]))
        if self.verdict_weight:
            total = total - self.verdict_weight * self._verdict_term(model, inputs)
        if self.llds:
            total = total + self.llds * self._preserved(model, inputs, logps)
        return total

    def _verdict_term(self, model: Any, inputs: dict[str, Any]) -> torch.Tensor:
        # Two contexts a probe: passes no larger than those of `by_length`.
        at_once = max(2 * len(inputs["advantages"]) // PASSES, FEWEST)
        with self.accelerator.autocast():
            moves = verdict_moves(model, inputs, at_once, most(self.accelerator))
        self._note("verdict_term", moves.mean())
        return moves.mean()

    def _preserved(self, model: Any, inputs: dict[str, Any], logps: torch.Tensor) -> torch.Tensor:
        args = cast(GRPOConfig, self.args)
        if args.num_iterations == 1 and cast(int, args.steps_per_generation) <= args.gradient_accumulation_steps:
            # Nothing has fallen yet since this batch was sampled: what the last update did is seen on the one before.
            self._earlier.append(inputs | {"old_per_token_logps": logps.detach()})
            if len(self._earlier) <= self.current_gradient_accumulation_steps:
                return 0.0 * logps.sum()
            inputs = self._earlier.popleft()
            logps = self._logps(model, inputs)
        term, share = llds(logps, inputs["old_per_token_logps"], inputs["turn_numbers"], inputs["advantages"])
        self._note("llds", term)
        self._note("likelihood/falling", share)
        return term

    def _logps(self, model: Any, inputs: dict[str, Any], **given: Any) -> torch.Tensor:
        """Log-probabilities of a batch's completions."""
        ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
        mask = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
        found = self._get_per_token_logps_and_entropies(model, ids, mask, inputs["completion_ids"].shape[1], **given)
        return cast(torch.Tensor, found[0])

    def _note(self, name: str, value: torch.Tensor) -> None:
        """Keep the processes' mean of a term for the log."""
        self._terms[name].append(float(self.accelerator.gather(value.detach()).mean()))

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """As TRL's, with the means of the loss's terms since the last call, and how likely right answers' tokens
        were."""
        if self._training:
            logs |= {name: sum(values) / len(values) for name, values in self._terms.items()}
            self._terms.clear()
            if self._likelihood:
                total, many = self.accelerator.reduce(torch.stack(self._likelihood).sum(0), reduction="sum").tolist()
                logs |= {LIKELIHOOD: total / many} if many else {}
                self._likelihood.clear()
        super().log(logs, *args, **kwargs)

    def _informative(self, own: torch.Tensor) -> torch.Tensor:
        outcome, gate = cast(str, self.mix.outcome), self.mix.gate
        rows = [(row[outcome].value, gate is None or row[gate.name].value) for row in self.last_components]
        every = [(_nan(value), valid is None or valid >= 1) for value, valid in gather_object(rows)]
        outcomes, valid = (torch.tensor(column, device=own.device) for column in zip(*every, strict=True))
        return self._share(informative(outcomes, valid, self._generations), own)

    def _estimate(self, output: dict[str, Any], own: torch.Tensor) -> None:
        """Replace TRL's advantages, unless they are asked for."""
        if self.estimator is not None:
            rewards = torch.tensor([_nan(value) for value in gather_object(self.last_rewards)], device=own.device)
            output["advantages"] = self._share(self.estimator(rewards, self._generations), own)
        if self.turn_estimator is not None:
            pairs = zip(self.last_scores, self._tokens, strict=True)
            returns = [turn_returns(score, len(tokens.turns), self.turn_gamma) for score, tokens in pairs]
            by_turn = self._share(self.turn_estimator(gather_object(returns), self._generations), own)
            output["advantages"] = spread(by_turn, output["turn_numbers"])

    @property
    def _generations(self) -> int:
        """Rollouts of a question."""
        return int((self.num_generations if self._training else self.num_generations_eval) or 1)

    def _share(self, every: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
        """This process's rows of a global batch."""
        first = self.accelerator.process_index * len(own)
        return every[first : first + len(own)].to(own)


def _check_update(mix: Mix, verdict_weight: float, uniform_groups: str) -> None:
    if uniform_groups not in ("keep", "drop"):
        raise ConfigError(f"unknown uniform_groups {uniform_groups!r}; there are: keep, drop")
    if uniform_groups == "drop" and mix.outcome is None:
        raise ConfigError("uniform_groups='drop' needs one reward that says whether an answer is right")
    if verdict_weight < 0:
        raise ConfigError(f"verdict_weight must be 0 (no verdict term) or more, not {verdict_weight}")
    probing = (getattr(part, "reward", part) for part in mix.parts.values())  # `Shuffled` holds another reward
    if verdict_weight and not any(isinstance(part, EvidenceSensitivity) for part in probing):
        raise ConfigError("verdict_weight needs a reward that probes the policy: EvidenceSensitivity")


def _check_settings(args: GRPOConfig) -> None:
    """Refuse what the engine would ignore."""
    check_vllm(args, args.device.type)
    ignored = [name for name in ("min_p", "generation_kwargs") if getattr(args, name)]
    ignored += ["repetition_penalty"] if args.repetition_penalty != 1.0 else []
    if ignored:
        raise ConfigError(
            f"not supported by the search engine's generator: {', '.join(ignored)}; leave them at their defaults"
        )
    cycle = (args.steps_per_generation or 1) * args.num_iterations
    if args.save_strategy == "steps" and args.save_steps * args.gradient_accumulation_steps % cycle:
        raise ConfigError(
            f"save_steps={args.save_steps:g} would save in the middle of a generation's {cycle} batches, and a resumed "
            f"run would differ; make save_steps x gradient_accumulation_steps a multiple of {cycle}"
        )


def steps_per_epoch(args: GRPOConfig, questions: int) -> int:
    """Optimizer steps of one pass over that many questions, without a last incomplete batch; for `Warmup.parse`.

    `args` must be the trainer's own, in the process that it runs in.
    """
    batch = cast(int, args.generation_batch_size) // cast(int, args.num_generations)
    cycle = (args.steps_per_generation or 1) * args.num_iterations
    return max(1, math.ceil(questions // batch * cycle / args.gradient_accumulation_steps))


def as_mix(reward: Reward) -> Mix:
    """A single reward as a mix of one part without gate; a mix as it is."""
    return (
        reward if isinstance(reward, Mix) else Mix(parts={reward.name: reward}, gate=None, weights={reward.name: 1.0})
    )


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


def _sums(values: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    """The sum of the chosen values, and their number."""
    return torch.stack([torch.where(chosen, values, 0.0).sum(), chosen.sum().to(values)])


def _nan(value: float | None) -> float:
    return float("nan") if value is None else value
