"""What a training run was and what came of it, as a value."""

from __future__ import annotations

from typing import Any

import msgspec

from .evaluation import Evaluation, differences

MERGED = "merged"
"""Where in a run's folder its adapter lies as a full model, when it was asked to be merged."""


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """One run: `folder` is where the policy was saved, `model` what training started from.

    `settings` are every flag of the recipe, and the trainer's that matter most; `history` is the trainer's log, a
    dictionary a step, without infinities; `before` and `after` are evaluations on the held-out `questions`.
    """

    folder: str
    model: str
    dialect: str
    tools: list[str]
    questions: str
    settings: dict[str, Any]
    steps: int
    history: list[dict[str, Any]]
    before: Evaluation | None = None
    after: Evaluation | None = None

    @property
    def results(self) -> dict[str, dict[str, Any]]:
        """The evaluations, as plain JSON types."""
        found = {"before": self.before, "after": self.after}
        return {name: evaluation.to_dict() for name, evaluation in found.items() if evaluation is not None}

    def metrics(self) -> dict[str, Any]:
        """What `metrics.json` holds: results, paired differences of rows that both have, settings, model, steps."""
        found: dict[str, Any] = dict(self.results)
        if self.before is not None and self.after is not None:
            found["differences"] = differences(self.before, self.after)
        return {**found, "settings": self.settings, "model": self.model, "steps": self.steps}
