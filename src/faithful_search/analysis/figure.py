"""How every figure looks, and what all of them need: a canvas, labels, a finish, a file.

Figures are drawn without pyplot's global state, so that they can be made in any thread, and are written as the file's
suffix says (png, svg, pdf).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import ConfigError, DataError

History = Sequence[Mapping[str, Any]]
"""A trainer's `state.log_history`: dictionaries that hold `step` and metrics."""
PathLike = str | os.PathLike[str]
Floats = NDArray[np.float64]

PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C8C8C", "#000000")
"""Okabe and Ito's colours and a grey: apart for colour-blind readers and in print."""
DARK = "#444444"
FEW = 3
"""Up to this many policies, bars carry their values; more would write over each other."""
STYLES = ("-", "--", "-.", ":")
RATIO = "tools/ratio/"
ALPHA = "parts/alpha"
WEIGHT = "/weight"
LABELS = {
    "reward": "total reward",
    "parts/format": "valid format",
    "parts/citation": "citation, R_cite",
    "parts/evidence_sensitivity": "evidence sensitivity, R_pt",
    "parts/answer_likelihood_gap": "likelihood gap of the answer",
    "parts/answer_support": "answer support, R_ans",
    "parts/correctness": "answer correctness, R_anc",
    "parts/source_gated": "correct and in the evidence, R_anc",
    "parts/exact_match": "exact match",
    "behaviour/exact_match": "exact match",
    "follow_rate": "answer follows\nchanged evidence",
    "exact_match": "exact match,\nheld-out questions",
    "exact_match_changed": "exact match,\nchanged worlds",
    "behaviour/answer_first": "answer stated before its evidence",
    "parts/info_think": "information-think",
    "parts/think_search": "think-search",
    "parts/think_answer": "think-answer",
    "parts/alpha": "alpha (weight of R_ans)",
    "parts/self_correctness": "right, says the policy, R_a",
    "parts/self_rubric": "the policy's rubric score, R_t",
    "parts/step_format": "well-formed steps, R_f / 0.2",
    "parts/world_rubric": "rubric score by the world's facts",
    "self_score": "the policy's own score",
    "rule_score": "the rule's score",
    "self_gap": "own score minus the rule's",
    "self_rmse": "root mean square difference",
    "likelihood/right": "right answers' own tokens",
    "likelihood/moved": "right answers' own tokens, by the update",
    "grad_norm": "gradient",
    "groups/one_outcome": "questions all right or all wrong",
    "frac_reward_zero_std": "questions without variance of rewards",
    "behaviour/valid_format": "rollouts of valid format",
    "tools/entropy": "normalised tool entropy",
    "tools/calls": "tool calls per rollout",
    "ended/answered": "share of rollouts answered",
    "ended/answered_forced": "share made to answer",
}
STEP = "training step"
SHARES = (-0.03, 1.03)
"""Limits of an axis of shares: wide enough that a line at 0 or 1 is not cut in half."""


def series_of(history: History, metric: str) -> tuple[Floats, Floats]:
    """Steps and values of a metric, rows without it left out; the last of a step logged twice (resumed) counts."""
    found = {row["step"]: row[metric] for row in history if row.get(metric) is not None and row.get("step") is not None}
    steps = sorted(found)
    return np.array(steps, dtype=np.float64), np.array([found[step] for step in steps], dtype=np.float64)


def running_mean(values: Floats, window: int) -> Floats:
    """Mean over `window` values around each one (an even window counts one more); over fewer at the ends.

    Centred, so that the curve does not lag behind what it summarises; NaN and infinities count nowhere.

    Example:
        >>> running_mean(np.array([1.0, 2.0, 3.0, 7.0]), 3).tolist()
        [1.5, 2.0, 4.0, 5.0]
    """
    half = max(1, window) // 2
    around = (values[max(0, place - half) : place + half + 1] for place in range(len(values)))
    finite = (own[np.isfinite(own)] for own in around)
    return np.array([own.mean() if len(own) else np.nan for own in finite], dtype=np.float64)


def label_of(metric: str) -> str:
    if metric.endswith(WEIGHT):
        return f"weight of {label_of(metric.removesuffix(WEIGHT))}"
    return LABELS.get(metric, metric.removeprefix(RATIO).removeprefix("parts/"))


def panels_of(heights: Sequence[float], height: float = 3.0) -> tuple[Any, list[Any]]:
    """A figure of panels below each other, of these relative heights."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError("figures need matplotlib: pip install matplotlib") from error
    rows = len(heights)
    figure = Figure(figsize=(9.0, 0.6 + height * rows if rows > 1 else height), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)  # pyplot would keep every figure, and is not safe in threads
    axes = figure.subplots(rows, 1, sharex=True, squeeze=False, gridspec_kw={"height_ratios": list(heights)})
    return figure, list(axes[:, 0])


def finish(
    axis: Any, ylabel: str, title: str = "", limits: tuple[float, float] | None = None, legend: bool = True
) -> None:
    axis.set_ylabel(ylabel)
    axis.grid(True, color="#dddddd", linewidth=0.7)
    axis.set_axisbelow(True)
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)
    if title:
        axis.set_title(title, loc="left", fontweight="bold")
    if limits:
        axis.set_ylim(*limits)
    if legend and axis.get_legend_handles_labels()[0]:
        axis.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False, fontsize=9)


def require(found: int, wanted: str, path: PathLike) -> None:
    if not found:
        raise DataError(f"nothing to draw for {path}: no row holds {wanted}")


def save(figure: Any, path: PathLike) -> Path:
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    return path
