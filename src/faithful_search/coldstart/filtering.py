"""Which episodes are fit to train on: Proof-of-Use's two-stage filter (section 3.4)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from ..rewards import Citation, Correctness, Format, cited_evidence, step_validity
from ..trajectory import Trajectory
from .plans import contains

UNKNOWN = "unknown"
"""The answer of an expert that could not find the fact."""


def reject(trajectory: Trajectory, min_steps: int = 3, max_steps: int = 10) -> str | None:
    """Why an episode is not fit to train on, or `None`.

    Stage 1: the format is valid; each verdict parses, agrees with its references, and these exist; (ours:) the answer
    is right and occurs, whole or part by part, in cited evidence or in the question (a yes or no need not), or it is
    "unknown" in a blinded episode. In a dialect without verdicts all evidence counts as cited. Stage 2: `min_steps` ≤ T
    ≤ `max_steps`.
    """
    if trajectory.stop_reason in ("not_found", "not_named"):
        return trajectory.stop_reason
    if Format().score(trajectory).value != 1.0:
        return "format"
    cites = Citation().covers(trajectory.dialect)
    if cites and not all(step_validity(trajectory)):
        return "citation"
    blind, answer = trajectory.meta.get("blind"), trajectory.answer or ""
    if answer != UNKNOWN if blind else Correctness().score(trajectory).value != 1.0:
        return "wrong_answer"
    if answer.casefold() not in ("yes", "no", UNKNOWN):
        evidence = cited_evidence(trajectory) if cites else trajectory.evidence.values()
        texts = [trajectory.question or "", *(text for item in evidence for text in (item.title, item.text))]
        parts = answer.split(" and ")  # of a question that asks for several things
        if not all(any(contains(text, part) or contains(text, answer) for text in texts) for part in parts):
            return "ungrounded"
    if len(trajectory.steps) < min_steps:
        return "too_short"
    return "too_long" if len(trajectory.steps) > max_steps else None


def accept(
    trajectories: Iterable[Trajectory], min_steps: int = 3, max_steps: int = 10
) -> tuple[list[Trajectory], Counter[str]]:
    """The episodes that `reject` lets pass, and counts of the others by reason."""
    judged = [(trajectory, reject(trajectory, min_steps, max_steps)) for trajectory in trajectories]
    kept = [trajectory for trajectory, reason in judged if reason is None]
    return kept, Counter(reason for _, reason in judged if reason is not None)
