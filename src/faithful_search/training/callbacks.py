"""Trainer callbacks: questions in order after a resume, the log of rollouts, one readable line per step, warnings."""

import logging
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any, ClassVar

import yaml
from transformers import ProgressCallback, TrainerCallback

from ..bundled import shipped
from ..measure.convert import WRITERS, Document
from ..trajectory import Trajectory, read_jsonl, write_jsonl

LIKELIHOOD = "likelihood/right"  # the mean log-probability of right answers' own tokens in a batch, as it is logged
MOVED = "likelihood/moved"  # by how much the step's update moved it, on some of the step's right answers
DROP = 0.03  # nats that one update may take from it before that is a warning
STEPS = 4  # at the beginning, with right answers, with which as many later ones are compared
ENOUGH = 32  # rollouts after which it is said that all rewards are equal
BLIND = 0.4  # the root mean square error of the best constant score, on rollouts about half of which are right
TOLERANCE = 0.1  # about the error that the paper's evaluator makes anyway (RMSE 0.12)
JUDGED = 5  # steps over which a policy's own scores are compared with a rule's
Log = Sequence[Mapping[str, Any]]
logger = logging.getLogger(__name__)


class QuestionOrder(TrainerCallback):
    """Has a resumed run ask what an uninterrupted one would: TRL's sampler draws a new order in each pass over the
    questions, from one generator that a resumed run begins anew."""

    def on_train_begin(
        self, args: Any, state: Any, control: Any, train_dataloader: Any = None, **kwargs: Any
    ) -> None:
        batches = train_dataloader.batch_sampler
        batches = getattr(
            batches, "batch_sampler", batches
        )  # among several processes each has a shard of it
        for _ in range(int(state.epoch or 0)):  # one draw for each pass that is already over
            next(iter(batches.sampler))


class TrajectoryLog(TrainerCallback):
    """Appends every rollout of training, with its scores and reasons, to a JSONL file as it happens. On resume,
    rollouts made after the checkpoint are removed first. With `--report_to trackio` the first four of each step are
    logged there, too, as conversations beside their scores."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.latest: Sequence[Trajectory] = ()

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if not state.is_world_process_zero:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        kept = []
        # A killed run may have logged steps that its last checkpoint does not have, and half a line.
        if state.global_step and self.path.exists():
            rows = read_jsonl(
                self.path, on_error=partial(logger.warning, "%s, line %d is dropped: %s", self.path)
            )
            kept = [row for row in rows if row.meta.get("step", 0) < state.global_step]
        write_jsonl(self.path, kept)

    def append(self, rollouts: Sequence[Trajectory]) -> None:
        self.latest = rollouts
        with self.path.open("a", encoding="utf-8") as file:
            file.writelines(item.to_json() + "\n" for item in rollouts)

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if not self.latest or "trackio" not in (args.report_to or ()):
            return
        import trackio  # an optional package

        traces = []
        for rollout in self.latest[:4]:
            meta = rollout.meta
            own = Document(
                meta["step"], rollout, datetime.now(UTC), meta["scores"], meta["reasons"]
            )
            more = {"reward": meta["reward"], "step": meta["step"], "step_scores": meta["steps"]}
            traces.append(
                trackio.Trace(WRITERS["openai"](own)["messages"], {**own.metadata, **more})
            )
        self.latest = ()  # the log at the end of training comes without new rollouts
        # trackio counts what it is told; these belong to the figures that it was told just before
        trackio.log({"rollouts": traces}, step=len(state.log_history) - 1)


class StepLine(ProgressCallback):
    """A progress bar, and one readable line for each log instead of a dictionary."""

    shown: ClassVar[dict[str, dict[str, str]]] = yaml.safe_load(
        (shipped("data") / "step_line.yaml").read_text("utf-8")
    )

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        super().on_train_begin(args, state, control, **kwargs)
        self.last = (
            time.perf_counter()
        )  # now: the evaluation before training is not the first step's time

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        if (
            not state.is_world_process_zero
            or self.training_bar is None
            or "train_runtime" in (logs or {})
        ):
            return
        columns, now = self.shown["columns"], time.perf_counter()
        abstained = {f"{key}/abstained": f"{name} abstained" for key, name in columns.items()}
        shown = [
            f"{name} {float(logs[key]):.3f}"
            for key, name in columns.items()
            if logs.get(key) is not None
        ]
        shares = {**abstained, **self.shown["shares"]}.items()
        shown += [f"{name} {logs[key]:.0%}" for key, name in shares if logs.get(key)] + [
            f"{now - self.last:.1f}s"
        ]
        self.training_bar.write(
            f"step {state.global_step:>4}/{state.max_steps}  {'  '.join(shown)}"
        )
        self.last = now


class Watching(TrainerCallback):
    def __init__(self) -> None:
        self.watches = list(WATCHES)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        if not state.is_world_process_zero or "loss" not in (
            logs or {}
        ):  # an evaluation's, or the end of training
            return
        history = [row for row in state.log_history if "loss" in row]
        for watch in list(self.watches):
            if trouble := watch(history, args.rollouts_after(state.global_step)):
                self.watches.remove(watch)
                logger.warning("step %d: %s", state.global_step, trouble)


def nothing_is_learnt(log: Log, rollouts: int) -> str:
    """All rewards have been equal since the beginning."""
    rewards = {row.get("reward") for row in log}
    if (
        rollouts < ENOUGH
        or len(rewards) > 1
        or None in rewards
        or any(row.get("reward_std") for row in log)
    ):
        return ""
    [reward] = rewards
    if all(row.get("behaviour/valid_format") == 0 for row in log):
        said = f"0 of {rollouts} rollouts have a valid format, so every reward is {reward:g}"
        return (
            f"{said}: is this policy cold-started? recipes/sft.py makes one that writes the dialect"
        )
    return f"all {rollouts} rollouts so far have the reward {reward:g}: are questions too hard, or limits too small?"


def collapse(log: Log, rollouts: int) -> str:
    """Right answers become less likely ("lazy likelihood displacement", arXiv 2512.04220). Either one update leaves the
    step's own right answers less likely (`MOVED`): it went too far. Or, slowly, their log-probability and the
    gradients' norm become one and a half times what they were at first."""
    advice = "runs collapse like this. Lower --learning_rate, or give --llds 0.1"
    moved = log[-1].get(MOVED, 0.0)  # none without a right answer
    if moved < -DROP:
        return f"one update took {-moved:.3f} from the mean log-probability of right answers' tokens: {advice}"
    # what is normal differs from policy to policy: it is measured first
    pairs = [
        (row[LIKELIHOOD], row["grad_norm"])
        for row in log
        if {LIKELIHOOD, "grad_norm"} <= row.keys()
    ]
    if len(pairs) < 2 * STEPS:
        return ""
    (before, norm_before), (now, norm) = (
        map(fmean, zip(*own, strict=True)) for own in (pairs[:STEPS], pairs[-STEPS:])
    )
    if now >= 1.5 * before or norm <= 1.5 * norm_before:
        return ""
    return (
        f"right answers become less likely (mean log-probability of their tokens {now:.3f}, at first {before:.3f}) "
        f"while gradients grow (norm {norm:.3g}, at first {norm_before:.3g}): {advice}"
    )


def blind_judge(log: Log, rollouts: int) -> str:
    """A policy that scores itself is wrong as often as a constant would be, in the first steps."""
    errors = [row["self_rmse"] for row in log if "self_rmse" in row]
    if len(errors) != JUDGED or fmean(errors) <= BLIND:
        return ""
    said = f"the policy's own scores are wrong by {fmean(errors):.2f} (root mean square), no better than a constant"
    return f"{said}: teach it on scored rollouts of its own (recipes/sft.py --rubric_files), or use another judge"


def self_preference(log: Log, rollouts: int) -> str:
    """A policy that scores itself has come to like, or to dislike, itself: its scores have parted from a rule's."""
    gaps = [row["self_gap"] for row in log if "self_gap" in row]
    grown = fmean(gaps[-JUDGED:]) - fmean(gaps[:JUDGED]) if len(gaps) >= 2 * JUDGED else 0.0
    if abs(grown) <= TOLERANCE + 1e-9:  # of rounding
        return ""
    way = "above" if grown > 0 else "below"
    said = (
        f"the policy's own scores have moved {abs(grown):.2f} {way} the rule's since training began"
    )
    return f"{said}: take an earlier checkpoint, a smaller learning rate, or a judge that is not trained"


WATCHES = (nothing_is_learnt, collapse, blind_judge, self_preference)
