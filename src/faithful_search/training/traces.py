"""Some rollouts of every step as traces in trackio, where a conversation can be read beside its scores."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from transformers import TrainerCallback

from ..measure.writers import WRITERS, Document
from ..trajectory import Trajectory
from .callbacks import TrajectoryLog


class RolloutTraces(TrainerCallback):
    """Logs the first rollouts of the latest step to the run that `--report_to trackio` has opened.

    Args:
        log: where the trainer notes its rollouts.
        many: how many of them.
    """

    def __init__(self, log: TrajectoryLog, many: int = 4) -> None:
        self.log, self.many = log, many

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if not state.is_world_process_zero or not self.log.latest:
            return
        import trackio

        traces = [trackio.Trace(*_told(rollout)) for rollout in self.log.latest[: self.many]]
        self.log.latest = []
        # trackio counts what it is told; these belong to the figures that it was told just before
        trackio.log({"rollouts": traces}, step=len(state.log_history) - 1)


def _told(rollout: Trajectory) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    meta = rollout.meta
    own = Document(meta["step"], rollout, datetime.now(UTC), meta["scores"], meta["reasons"])
    return WRITERS["openai"](own)["messages"], {
        **own.metadata,
        **{name: meta[name] for name in ("reward", "step")},
        "step_scores": meta["steps"],
    }
