"""Our engine as the rollout worker of TRL's experimental `AsyncGRPOTrainer`.

There the trainer updates while a policy behind vLLM goes on sampling: a worker puts scored rollouts
into a queue, the trainer takes them out and sends new weights to vLLM. TRL's own worker renders the
chat anew in each turn; this one hands over the engine's tokens, exactly as sampled.
"""

import logging
import math
import queue
import threading
import time
from collections.abc import Iterator, Sequence
from itertools import count, cycle
from typing import Any

import numpy as np
import torch
from trl.experimental.async_grpo.async_rollout_worker import RolloutSample

from ..errors import ConfigError, GeneratorError
from ..rewards import Mix, Reward, Score
from ..rollout import Engine
from ..scoring import Scoring, numeric_parts
from ..tasks import Task
from ..trajectory import Step, Trajectory
from .advantages import Estimator, group_relative

_PATIENCE = 0.1  # seconds between two looks at whether the worker is to stop
logger = logging.getLogger(__name__)


class _Stopped(Exception):
    """The worker was told to stop while episodes were under way."""


class EngineRolloutWorker:
    """Implements `trl.experimental.async_grpo.RolloutWorkerProtocol` with an `Engine`.

    A thread of the trainer's main process samples a batch of questions, scores it as a whole and
    puts a `RolloutSample` for each rollout into `rollout_buffer`, which holds one batch: the next
    one is sampled meanwhile, and the worker waits where the trainer is slower. Questions come in
    their order, again and again. A resumed run begins with the first.

    Args:
        engine: samples the policy that the trainer sends its weights to, with log-probs:
            `Engine(VLLMServer(url, tokenizer), …, sampling=Sampling(logprobs=True))`.
        tasks: the questions.
        reward: as of `Scoring`: a name, or a reward that does not ask the policy.
        num_generations: rollouts of a question; at least 2.
        questions: how many are sampled at once.
        estimator: makes advantages of the rewards of a question's rollouts.

    Raises:
        ConfigError: for an engine without log-probs or with `kept_responses` (what the policy saw
            is then no single sequence), a reward that the trainer cannot give what it needs, or one
            whose weights warm up, and for numbers that are too small.

    Example:
        ```python
        worker = EngineRolloutWorker(engine, load_tasks("world"), "pou", num_generations=8)
        AsyncGRPOTrainer(model, args=args, train_dataset=rows, rollout_worker=worker).train()
        ```
    """

    def __init__(
        self,
        engine: Engine,
        tasks: Sequence[Task],
        reward: Reward | str = "pou",
        *,
        num_generations: int = 8,
        questions: int = 8,
        estimator: Estimator = group_relative,
    ) -> None:
        if not engine.sampling.logprobs:
            raise ConfigError(
                "the trainer compares log-probs with those of sampling: make the engine with "
                "sampling=Sampling(logprobs=True)"
            )
        if engine.limits.kept_responses:
            raise ConfigError("kept_responses: a rollout must be one sequence; leave it 0")
        if num_generations < 2 or questions < 1 or not tasks:
            raise ConfigError(
                "EngineRolloutWorker needs tasks, 2 or more generations of each question, and 1 or "
                f"more questions at once; got {len(tasks)}, {num_generations} and {questions}"
            )
        self.scoring = Scoring(reward, engine.dialect.name)
        rule = self.scoring.rule
        if isinstance(rule, Mix) and rule.warmup is not None:
            raise ConfigError(
                "a warm-up goes by the trainer's steps, which a worker is not told: use a mix "
                "without one"
            )
        self.engine = engine
        self.tasks = tasks
        self.num_generations = num_generations
        self.questions = questions
        self.estimator = estimator
        self.rollout_buffer: queue.Queue[RolloutSample] = queue.Queue(questions * num_generations)
        self.metrics_queue: queue.Queue[dict[str, Any]] = queue.Queue(4096)
        self.model_version = 0
        self._stop = threading.Event()
        self._error: BaseException | None = None
        self._alive_at = time.monotonic()
        self._thread: threading.Thread | None = None

    # What the trainer calls

    def start(self) -> None:
        """Begin to sample; called when the policy has its first weights."""
        if self._thread is not None:
            return
        self._stop.clear()
        self._alive_at = time.monotonic()
        self._thread = threading.Thread(target=self._work, name="engine-rollouts", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread at its next turn, or leave it behind where that takes more than 15 s."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout=15)
        self._thread = None

    def update_model_version(self, model_version: int) -> None:
        """Rollouts that begin from now on are of this version."""
        self.model_version = model_version

    def check_health(self, stale_after_s: float) -> None:
        """Raise `GeneratorError` where the worker has failed, or has not ended a turn for that
        long.
        """
        if self._error is not None:
            raise GeneratorError(f"the rollouts failed: {self._error}") from self._error
        silent = time.monotonic() - self._alive_at
        if silent > stale_after_s:
            raise GeneratorError(
                f"no turn has ended for {silent:.0f} s (more than {stale_after_s:g} s): is the "
                "server of the policy up?"
            )

    # What its thread does

    def _work(self) -> None:
        try:
            for first_group, tasks in self._batches():
                for sample in self._samples(first_group, tasks):
                    self._put(sample)
        except _Stopped:
            logger.info("rollouts were stopped")
        except BaseException as error:  # the trainer raises it when it next asks
            self._error = error

    def _batches(self) -> Iterator[tuple[int, list[Task]]]:
        """Batches of questions, each with the number of its first group."""
        waiting = cycle(self.tasks)
        for batch in count():
            yield batch * self.questions, [next(waiting) for _ in range(self.questions)]

    def _samples(self, first_group: int, tasks: Sequence[Task]) -> list[RolloutSample]:
        """The rollouts of a batch, those of a question next to each other."""
        begun, version = time.monotonic(), self.model_version
        rows = [task for task in tasks for _ in range(self.num_generations)]
        trajectories = self.engine.run(rows, on_step=self._tick)
        sampled = time.monotonic()
        scores = self.scoring.score_trajectories(trajectories)
        values = [math.nan if score.value is None else score.value for score in scores]
        advantages = self.estimator(torch.tensor(values), self.num_generations).tolist()
        self._alive_at = time.monotonic()
        self._report(trajectories, sampled - begun, self._alive_at - sampled)
        samples = []
        for number, trajectory in enumerate(trajectories):
            group = first_group + number // self.num_generations
            samples.append(
                self._sample(trajectory, scores[number], advantages[number], group, version)
            )
        return samples

    def _sample(
        self, trajectory: Trajectory, score: Score, advantage: float, group: int, version: int
    ) -> RolloutSample:
        tokens = trajectory.tokens
        if tokens is None or tokens.logprobs is None:
            raise GeneratorError("the engine's generator gave no log-probs of what it sampled")
        before = len(tokens.prompt_ids)
        name = self.scoring.name
        metrics = {"reward": math.nan if score.value is None else score.value}
        metrics |= {f"rewards/{name}/{part}": value for part, value in numeric_parts(score).items()}
        return RolloutSample(
            prompt=self.engine.dialect.prompt(
                trajectory.question or "", self.engine.toolbox.schemas
            ),
            completion=[{"role": "assistant", "content": trajectory.text}],
            input_ids=np.asarray(tokens.prompt_ids + tokens.completion_ids, dtype=np.int64),
            completion_mask=np.asarray([0] * before + tokens.mask, dtype=np.int64),
            old_log_probs=np.asarray([0.0] * before + tokens.logprobs, dtype=np.float32),
            advantage=advantage,
            model_version=version,
            group_id=group,
            metrics=metrics,
        )

    def _put(self, sample: RolloutSample) -> None:
        """Wait for room in the buffer."""
        while True:
            self._tick()
            sample.enqueued_at = time.time()
            try:
                self.rollout_buffer.put(sample, timeout=_PATIENCE)
                return
            except queue.Full:
                continue

    def _tick(self, episode_id: str = "", step: Step | None = None) -> None:
        """Called whenever a turn has ended, and while the worker waits."""
        self._alive_at = time.monotonic()
        if self._stop.is_set():
            raise _Stopped

    def _report(self, trajectories: Sequence[Trajectory], sampling: float, scoring: float) -> None:
        answered = sum(trajectory.stop_reason == "answered" for trajectory in trajectories)
        turns = sum(len(trajectory.steps) for trajectory in trajectories)
        metrics = {
            "rollout/duration_s": sampling,
            "rollout/score_s": scoring,
            "rollout/turns_mean": (float(turns), len(trajectories)),
            "rollout/answered_frac": (float(answered), len(trajectories)),
        }
        try:
            self.metrics_queue.put_nowait(metrics)
        except queue.Full:
            logger.warning("the trainer does not take metrics: those of a batch are lost")
