"""Trainer callbacks: the order of questions after a resume (`QuestionOrder`), the log of rollouts
(`TrajectoryLog`), one readable line for each step (`StepLine`), and warnings (`Watching`).

A watch is a function of the trainer's log and the number of rollouts so far. It returns a warning,
or an empty text while nothing is wrong; `WATCHES` lists them.
"""

import logging
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from accelerate.data_loader import BatchSamplerShard
from transformers import ProgressCallback, TrainerCallback

from .. import rewards
from ..measure.convert import WRITERS
from ..measure.documents import Document
from ..rewards import Column
from ..trajectory import Trajectory, read_jsonl, write_jsonl

LIKELIHOOD = "likelihood/right"
"""The name in the log for the mean log-probability of right answers' own tokens in a batch."""
MOVED = "likelihood/moved"
"""The name in the log for how much the step's update changed `LIKELIHOOD`, measured on some of the
step's right answers.
"""
LARGEST_DROP = 0.03
"""`collapse` warns when one update takes more than this from `LIKELIHOOD`, in nats."""
COMPARED_STEPS = 4
"""`collapse` compares the last 4 steps that had a right answer with the first 4."""
ENOUGH_ROLLOUTS = 32
"""`nothing_is_learnt` warns when so many rollouts have had the same reward."""
BLIND_ERROR = 0.4
"""`blind_judge` warns above this root mean square error. The best constant score has it on rollouts
of which about half are right.
"""
LARGEST_GAP = 0.1
"""`self_preference` warns above this change. The evaluator of the paper is wrong by about as much
anyway (root mean square error 0.12).
"""
JUDGED_STEPS = 5
"""The number of steps over which `blind_judge` and `self_preference` average."""
Log = Sequence[Mapping[str, Any]]
"""The entries of the trainer's log that belong to steps, in order."""
logger = logging.getLogger(__name__)


class QuestionOrder(TrainerCallback):
    """Makes a resumed run ask the questions that an uninterrupted one would ask.

    TRL's sampler draws a new order for each pass over the questions, and a resumed run begins with
    the sampler's first draw. This callback draws the orders of the passes that are already over.
    """

    def on_train_begin(
        self, args: Any, state: Any, control: Any, train_dataloader: Any = None, **kwargs: Any
    ) -> None:
        batches = train_dataloader.batch_sampler
        if isinstance(batches, BatchSamplerShard):  # there are several processes
            batches = batches.batch_sampler
        finished_passes = int(state.epoch or 0)
        for _ in range(finished_passes):
            next(iter(batches.sampler))


class TrajectoryLog(TrainerCallback):
    """Appends every rollout of training, with its scores and reasons, to a JSONL file.

    When a run is resumed, the rollouts that were made after its checkpoint are removed first. With
    `--report_to trackio` the first four rollouts of each step are logged there, too, as
    conversations beside their scores.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.latest: Sequence[Trajectory] = ()

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if not state.is_world_process_zero:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        before_checkpoint: list[Trajectory] = []
        # A killed run may have logged steps after its last checkpoint, and half a line
        if state.global_step and self.path.exists():
            drop_line = partial(logger.warning, "%s, line %d is dropped: %s", self.path)
            for rollout in read_jsonl(self.path, on_error=drop_line):
                if rollout.meta.get("step", 0) < state.global_step:
                    before_checkpoint.append(rollout)
        write_jsonl(self.path, before_checkpoint)

    def append(self, rollouts: Sequence[Trajectory]) -> None:
        self.latest = rollouts
        with self.path.open("a", encoding="utf-8") as file:
            file.writelines(rollout.to_json() + "\n" for rollout in rollouts)

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if not self.latest or "trackio" not in (args.report_to or ()):
            return
        import trackio  # an optional package

        traces = []
        for rollout in self.latest[:4]:
            meta = rollout.meta
            document = Document(
                row=meta["step"],
                trajectory=rollout,
                now=datetime.now(UTC),
                scores=meta["scores"],
                reasons=meta["reasons"],
            )
            step = {"reward": meta["reward"], "step": meta["step"], "step_scores": meta["steps"]}
            messages = WRITERS["openai"](document)["messages"]
            traces.append(trackio.Trace(messages, {**document.metadata, **step}))
        self.latest = ()  # there is also a log at the end of training, without new rollouts
        # trackio counts its logs; the rollouts belong to the figures that were logged just before
        trackio.log({"rollouts": traces}, step=len(state.log_history) - 1)


REWARD = Column("reward", "mean of the rollouts")
PARTS = {f"parts/{name}": column for name, column in rewards.columns().items()}
"""The columns that rewards say they have, by the metric's name."""
TRAINING = {
    "parts/alpha": Column("α", "weight of ans"),
    "parts/info_think/weight": Column("w i-t", "weight of i-t"),
    "verdict_term": Column("Δq", "how far verdicts moved with the evidence"),
    "llds": Column("llds", "likelihood-preserving term"),
    "value/explained": Column(
        "V explains", "share of the returns' variance that the value explains"
    ),
    LIKELIHOOD: Column("log p", "mean log-probability of right answers"),
    "counterfactual/original": Column("EM as is", "exact match in the world as it is"),
    "counterfactual/exact_match": Column("EM changed", "exact match in changed worlds"),
    "self_gap": Column("self-rule", "its scores above a rule's"),
    "tools/calls": Column("calls", "tool calls of a rollout"),
    "tools/entropy": Column("H", "how evenly tools are used, 1 is even"),
    "ended/answered_forced": Column("forced", "share made to answer"),
    "loss": Column("loss", "of the update"),
}
"""The columns of what training itself measures. See recipes/README.md."""
SHARES = {
    "counterfactual/unchanged": "no changed world",
    "tools/errors": "tool errors",
    "judge/abstained": "no reward",
}
"""Shares that are printed where they are not 0, as is that of a part whose judge abstained."""


class StepLine(ProgressCallback):
    """Shows a progress bar, and for each step one readable line instead of a dictionary."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        super().on_train_begin(args, state, control, **kwargs)
        # Started here, since the first step's time does not include the evaluation before training
        self.step_began = time.perf_counter()
        self.has_legend = False

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        logs = logs or {}
        if not state.is_world_process_zero or self.training_bar is None:
            return
        if "train_runtime" in logs:  # the summary at the end of training
            return
        if not self.has_legend:
            self.training_bar.write(legend(logs))
            self.has_legend = True
        columns = columns_of(logs)
        cells = [f"{column.head} {float(logs[key]):.3f}" for key, column in columns.items()]
        shares = {f"{key}/abstained": f"{column.head} abstained" for key, column in PARTS.items()}
        shares |= SHARES
        cells += [f"{head} {logs[key]:.0%}" for key, head in shares.items() if logs.get(key)]
        now = time.perf_counter()
        cells.append(f"{now - self.step_began:.1f}s")
        line = "  ".join(cells)
        self.training_bar.write(f"step {state.global_step:>4}/{state.max_steps}  {line}")
        self.step_began = now


def columns_of(logs: Mapping[str, Any]) -> dict[str, Column]:
    """The columns of a log by the metric's name: the reward, its parts in the mix's order, and
    what training itself measures.
    """
    parts = {key: PARTS[key] for key in logs if key in PARTS}
    columns = {"reward": REWARD, **parts, **TRAINING}
    return {key: column for key, column in columns.items() if logs.get(key) is not None}


def legend(logs: Mapping[str, Any]) -> str:
    """A line that says what the columns of a step's line mean.

    >>> legend({"reward": 0.5})
    'columns: reward (mean of the rollouts); recipes/README.md#the-step-line'
    """
    columns = columns_of(logs).values()
    explained = ", ".join(f"{column.head} ({column.meaning})" for column in columns)
    return f"columns: {explained}; recipes/README.md#the-step-line"


class Watching(TrainerCallback):
    """Logs the warnings of the `WATCHES`, each at most once."""

    def __init__(self) -> None:
        self.watches = list(WATCHES)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        is_step = "loss" in (logs or {})  # other logs are of evaluations and the end of training
        if not state.is_world_process_zero or not is_step:
            return
        history = [row for row in state.log_history if "loss" in row]
        for watch in list(self.watches):
            warning = watch(history, args.rollouts_after(state.global_step))
            if warning:
                self.watches.remove(watch)
                logger.warning("step %d: %s", state.global_step, warning)


def nothing_is_learnt(log: Log, rollouts: int) -> str:
    """Warns that all rewards have been equal since the beginning."""
    rewards = {row.get("reward") for row in log}
    differ = len(rewards) > 1 or any(row.get("reward_std") for row in log)
    if rollouts < ENOUGH_ROLLOUTS or differ or None in rewards:
        return ""
    [reward] = rewards
    if all(row.get("behaviour/valid_format") == 0 for row in log):
        return (
            f"0 of {rollouts} rollouts have a valid format, so every reward is {reward:g}: is this "
            "policy cold-started? recipes/sft.py makes one that writes the dialect"
        )
    return (
        f"all {rollouts} rollouts so far have the reward {reward:g}: are questions too hard, or "
        "limits too small?"
    )


def collapse(log: Log, rollouts: int) -> str:
    """Warns that right answers become less likely ("lazy likelihood displacement", arXiv
    2512.04220).

    It happens at once: one update makes the step's own right answers less likely (`MOVED`). Or it
    happens slowly: both the log-probability of right answers and the norm of the gradients have
    become one and a half times what they were in the first steps.
    """
    advice = "runs collapse like this. Lower --learning_rate, or give --llds 0.1"
    moved = log[-1].get(MOVED, 0.0)  # a step without a right answer has no value
    if moved < -LARGEST_DROP:
        return (
            f"one update took {-moved:.3f} from the mean log-probability of right answers' tokens: "
            f"{advice}"
        )
    # Compared with the run's own first steps, since what is normal depends on the policy
    steps = [row for row in log if LIKELIHOOD in row and "grad_norm" in row]
    if len(steps) < 2 * COMPARED_STEPS:
        return ""
    logps = [row[LIKELIHOOD] for row in steps]
    norms = [row["grad_norm"] for row in steps]
    logp_first = fmean(logps[:COMPARED_STEPS])
    logp_last = fmean(logps[-COMPARED_STEPS:])
    norm_first = fmean(norms[:COMPARED_STEPS])
    norm_last = fmean(norms[-COMPARED_STEPS:])
    less_likely = logp_last < 1.5 * logp_first  # both are negative
    if not less_likely or norm_last <= 1.5 * norm_first:
        return ""
    return (
        f"right answers become less likely (mean log-probability of their tokens {logp_last:.3f}, "
        f"at first {logp_first:.3f}) while gradients grow (norm {norm_last:.3g}, at first "
        f"{norm_first:.3g}): {advice}"
    )


def blind_judge(log: Log, rollouts: int) -> str:
    """Warns that a policy that scores itself is, in the first steps, no better than a constant
    score.
    """
    errors = [row["self_rmse"] for row in log if "self_rmse" in row]
    if len(errors) != JUDGED_STEPS or fmean(errors) <= BLIND_ERROR:
        return ""
    return (
        f"the policy's own scores are wrong by {fmean(errors):.2f} (root mean square), no better "
        "than a constant: teach it on scored rollouts of its own (recipes/sft.py --rubric_files), "
        "or use another judge"
    )


def self_preference(log: Log, rollouts: int) -> str:
    """Warns that the scores that a policy gives itself have moved away from a rule's."""
    gaps = [row["self_gap"] for row in log if "self_gap" in row]
    if len(gaps) < 2 * JUDGED_STEPS:
        return ""
    change = fmean(gaps[-JUDGED_STEPS:]) - fmean(gaps[:JUDGED_STEPS])
    rounding = 1e-9
    if abs(change) <= LARGEST_GAP + rounding:
        return ""
    side = "above" if change > 0 else "below"
    return (
        f"the policy's own scores have moved {abs(change):.2f} {side} the rule's since training "
        "began: take an earlier checkpoint, a smaller learning rate, or a judge that is not trained"
    )


WATCHES = (nothing_is_learnt, collapse, blind_judge, self_preference)
