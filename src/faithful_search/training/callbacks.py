"""Trainer callbacks: the reward's state across checkpoints, the log of rollouts, and one readable line per step."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from transformers import ProgressCallback, TrainerCallback
from transformers.trainer_callback import ExportableState

from ..measure.convert import WRITERS, Document
from ..rewards import MixState, Score
from ..trajectory import Trajectory, read_jsonl, write_jsonl

logger = logging.getLogger(__name__)


class RewardState(TrainerCallback, ExportableState):
    """Holds the reward's state for the trainer, and is saved with checkpoints.

    On resume it takes its values from the checkpoint's trainer state, whether or not the trainer was told to restore
    its callbacks (a restored one is found, because the trainer looks it up by type each time).
    """

    def __init__(self, start: MixState | None = None) -> None:  # Transformers restores one without arguments
        self.values: dict[str, Any] = msgspec.to_builtins(start or MixState())

    @property
    def mix(self) -> MixState:
        """The state as the reward takes it."""
        return msgspec.convert(self.values, MixState)

    @mix.setter
    def mix(self, state: MixState) -> None:
        self.values = msgspec.to_builtins(state)

    def state(self) -> dict[str, Any]:
        """What the checkpoint keeps."""
        return {"args": {}, "attributes": {"values": dict(self.values)}}

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        stored = state.stateful_callbacks.get(type(self).__name__)
        if stored:
            self.values = dict(stored["attributes"]["values"])


class QuestionOrder(TrainerCallback):
    """Has a resumed run ask what an uninterrupted one would.

    TRL's sampler draws a new order in each pass over the questions, from one generator that a resumed run begins anew.
    """

    def on_train_begin(self, args: Any, state: Any, control: Any, train_dataloader: Any = None, **kwargs: Any) -> None:
        batches = train_dataloader.batch_sampler
        batches = getattr(batches, "batch_sampler", batches)  # among several processes each has a shard of it
        for _ in range(int(state.epoch or 0)):  # one draw for each pass that is already over
            next(iter(batches.sampler))


class TrajectoryLog(TrainerCallback):
    """Appends every rollout of training, with its scores and reasons, to a JSONL file as it happens.

    On resume, rollouts made after the checkpoint are removed first: the resumed run makes them again. `latest` are
    those written last, for `RolloutTraces`.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.latest: list[Trajectory] = []

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if not state.is_world_process_zero:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        kept = []
        # A killed run may have logged steps that its last checkpoint does not have, and half a line.
        if state.global_step and self.path.exists():
            rows = read_jsonl(self.path, on_error=partial(logger.warning, "%s, line %d is dropped: %s", self.path))
            kept = [row for row in rows if row.meta.get("step", 0) < state.global_step]
        write_jsonl(self.path, kept)

    def append(self, trajectories: list[Trajectory]) -> None:
        """Write rollouts, without their token ids."""
        self.latest = [msgspec.structs.replace(item, tokens=None) for item in trajectories]
        with self.path.open("a", encoding="utf-8") as file:
            file.writelines(item.to_json() + "\n" for item in self.latest)


class RolloutTraces(TrainerCallback):
    """Logs the first four rollouts of the latest step, as conversations beside their scores, to the run that
    `--report_to trackio` has opened."""

    def __init__(self, log: TrajectoryLog) -> None:
        self.log = log

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if not state.is_world_process_zero or not self.log.latest:
            return
        import trackio  # an optional package

        traces = []
        for rollout in self.log.latest[:4]:
            meta = rollout.meta
            own = Document(meta["step"], rollout, datetime.now(UTC), meta["scores"], meta["reasons"])
            more = {"reward": meta["reward"], "step": meta["step"], "step_scores": meta["steps"]}
            traces.append(trackio.Trace(WRITERS["openai"](own)["messages"], {**own.metadata, **more}))
        self.log.latest = []  # the log at the end of training comes without new rollouts
        # trackio counts what it is told; these belong to the figures that it was told just before
        trackio.log({"rollouts": traces}, step=len(state.log_history) - 1)


def with_scores(
    trajectory: Trajectory, score: Score, components: dict[str, Score], step: int, **more: Any
) -> Trajectory:
    """The trajectory with its reward, each component's value, steps, reason and details, in `meta`."""
    meta = {
        **trajectory.meta,
        "step": step,
        "reward": score.value,
        "why": score.why,
        "scores": {name: part.value for name, part in components.items()},
        "steps": {name: part.steps for name, part in components.items() if part.steps},
        "reasons": {name: part.why for name, part in components.items() if part.why},
        "parts": {name: part.parts for name, part in components.items() if part.parts},
        **more,
    }
    return msgspec.structs.replace(trajectory, meta=meta)


class LearningWatch:
    """Reports once, after some rollouts, that nothing is learnt from them because all rewards are equal."""

    ENOUGH = 32

    def __init__(self) -> None:
        self.rows: list[tuple[float | None, float | None]] = []

    @property
    def open(self) -> bool:
        """Whether there are still too few rollouts to report, all with the same reward."""
        return len(self.rows) < self.ENOUGH and len({reward for reward, _ in self.rows}) < 2

    def note(self, rows: Sequence[tuple[float | None, float | None]]) -> str:
        """Add the rewards of a global batch, each with its format gate's value.

        Returns:
            What is wrong; empty if nothing is, too little is known, or a judge's abstaining is the reason.
        """
        self.rows += rows
        many, reward = len(self.rows), self.rows[0][0]
        if many < self.ENOUGH or reward is None or any(other != reward for other, _ in self.rows):
            return ""
        if all(gate is not None and gate < 1 for _, gate in self.rows):
            return (
                f"0 of {many} rollouts have a valid format, so every reward is {reward:g} and nothing is learnt: is "
                "this policy cold-started? recipes/sft.py makes one that writes the dialect"
            )
        return (
            f"all {many} rollouts so far have the reward {reward:g}, so nothing is learnt: are the questions too hard "
            "for this policy, or is the limit of turns or tokens too small?"
        )


class StepLine(ProgressCallback):
    """A progress bar, and one readable line for each log instead of a dictionary."""

    COLUMNS = (
        ("reward", "reward"),
        ("parts/format", "format"),
        ("parts/citation", "cite"),
        ("parts/evidence_sensitivity", "pt"),
        ("verdict_term", "Δq"),
        ("llds", "llds"),
        ("value/explained", "V explains"),
        ("likelihood/right", "log p"),
        ("parts/answer_likelihood_gap", "gap"),
        ("parts/answer_support", "ans"),
        ("parts/correctness", "anc"),
        ("parts/source_gated", "gated"),
        ("parts/alpha", "α"),
        ("parts/exact_match", "EM"),
        ("counterfactual/original", "EM as is"),
        ("counterfactual/exact_match", "EM changed"),
        ("parts/info_think", "i-t"),
        ("parts/info_think/weight", "w i-t"),
        ("parts/think_search", "t-s"),
        ("parts/think_answer", "t-a"),
        ("parts/self_correctness", "R_a"),
        ("parts/self_rubric", "R_t"),
        ("parts/step_format", "R_f/0.2"),
        ("self_gap", "self-rule"),
        ("tools/calls", "calls"),
        ("tools/entropy", "H"),
        ("ended/answered_forced", "forced"),
        ("loss", "loss"),
    )

    def __init__(self) -> None:
        super().__init__()
        self.last = time.perf_counter()

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        super().on_train_begin(args, state, control, **kwargs)
        self.last = time.perf_counter()  # again: the evaluation before training is not the first step's time

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        if not state.is_world_process_zero or self.training_bar is None or "train_runtime" in (logs or {}):
            return
        now = time.perf_counter()
        shown = [f"{name} {float(logs[key]):.3f}" for key, name in self.COLUMNS if logs.get(key) is not None]
        silent = {name: logs.get(f"{key}/abstained") for key, name in self.COLUMNS}
        if logs.get("counterfactual/unchanged"):
            shown.append(f"no changed world {logs['counterfactual/unchanged']:.0%}")
        if logs.get("tools/errors"):
            shown.append(f"tool errors {logs['tools/errors']:.0%}")
        shown += [f"{name} abstained {share:.0%}" for name, share in silent.items() if share]
        if logs.get("judge/abstained"):
            shown.append(f"no reward {logs['judge/abstained']:.0%}")
        self.training_bar.write(
            f"step {state.global_step:>4}/{state.max_steps}  {'  '.join(shown)}  {now - self.last:.1f}s"
        )
        self.last = now
