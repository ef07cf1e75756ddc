"""One function per figure: what training did to the rewards, to the use of tools, and what it bought.

A *history* is a trainer's `state.log_history`: a list of dictionaries that hold `step` and metrics. Figures are drawn
without pyplot's global state, so that they can be made in any thread, and are written as the file's suffix says (png,
svg, pdf).
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from ..errors import ConfigError, DataError
from ..measure.agreement.statistics import Bin
from ..measure.stats import mean_ci

History = Sequence[Mapping[str, Any]]
Histories = History | Mapping[str, History]
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
STABILITY = {
    "mean log p": ("likelihood/right",),
    "change of it": ("likelihood/moved",),
    "norm": ("grad_norm",),
    "share": ("groups/one_outcome", "frac_reward_zero_std", "behaviour/valid_format"),
}
_STEP = "training step"
_SHARE = (-0.03, 1.03)
"""Limits of an axis of shares: wide enough that a line at 0 or 1 is not cut in half."""


@dataclass(frozen=True)
class _Panel:
    """Metrics that are drawn together, each with its colour, over an axis of this label."""

    label: str
    colours: Mapping[str, str]
    limits: tuple[float, float] | None = None
    height: int = 1
    window: int | None = None
    zero: bool = False


def reward_curves(history: Histories, path: PathLike, window: int | None = None) -> Path:
    """Every component of the reward and the total over the steps: raw values light, running means strong.

    Below them, where there are such, alpha and the weights that a curriculum moves, each in its component's colour.

    Args:
        history: one, or several by label (told apart by line style).
        path: the file to write.
        window: steps of the running mean; default a tenth of the run.

    Raises:
        DataError: when no step has a reward.
    """
    runs = _by_label(history)
    parts = [name for name in _metrics(runs) if name.startswith("parts/") and name.count("/") == 1]
    colours = _coloured([name for name in parts if name not in (ALPHA, "parts/outcome_ema")])
    panels = [_Panel("reward", {"reward": "#000000", **colours}, height=3, window=window)]
    if ALPHA in parts:
        panels.append(_Panel("alpha", {ALPHA: PALETTE[-1]}, (-0.05, 1.05), window=window))
    moved = {
        name + WEIGHT: colour
        for name, colour in colours.items()
        if any(len(set(_series(own, name + WEIGHT)[1].tolist())) > 1 for own in runs.values())
    }
    if moved:
        panels.append(_Panel("weight", moved, window=1))
    return _draw(runs, path, "Rewards over training", panels, "reward or parts/…")


def tool_curves(history: Histories, path: PathLike, window: int | None = None) -> Path:
    """The share of calls to each tool, and below it the normalised entropy, over the steps (Proof-of-Use, figure 4).

    With a single tool, how often it is called. Arguments and errors as for `reward_curves`.
    """
    runs = _by_label(history)
    tools = [name for name in _metrics(runs) if name.startswith(RATIO)]
    if len(tools) == 1:
        calls = _Panel("calls per rollout", _coloured(["tools/calls"]), window=window)
        return _draw(runs, path, "Use of the tool over training", [calls], "tools/calls")
    entropy = {"tools/entropy": PALETTE[-1]}
    panels = [
        _Panel("share of tool calls", _coloured(tools), _SHARE, 3, window),
        _Panel("entropy (0 one tool, 1 even)", entropy, (-0.05, 1.05), 2, window),
    ]
    return _draw(runs, path, "Use of tools over training", panels, f"{RATIO}…")


def stability_curves(history: Histories, path: PathLike, window: int | None = None) -> Path:
    """How likely right answers are, how large gradients, and which share of the rollouts teaches nothing.

    Arguments and errors as for `reward_curves`; a panel without values is left out.
    """
    runs = _by_label(history)
    logged = set(_metrics(runs))
    shown = {label: names for label, names in STABILITY.items() if logged.intersection(names)}
    panels = [
        _Panel(label, _coloured(names, first), window=window) for first, (label, names) in enumerate(shown.items())
    ]
    return _draw(runs, path, "Stability over training", panels, "likelihood, gradient or groups")


def self_preference(history: Histories, path: PathLike, window: int | None = None) -> Path:
    """What a policy gives its own trajectories and what a rule gives them, and below it how far both are apart.

    Arguments and errors as for `reward_curves`.
    """
    panels = [
        _Panel("rubric score", _coloured(["self_score", "rule_score"]), _SHARE, 3, window),
        _Panel("difference", _coloured(["self_gap", "self_rmse"], 2), None, 2, window, zero=True),
    ]
    return _draw(_by_label(history), path, "The policy's own scores over training", panels, "self_score")


def compare(
    histories: Mapping[str, Sequence[History]],
    metric: str | Sequence[str],
    path: PathLike,
    window: int = 1,
) -> Path:
    """The mean over seeds of one or more metrics for each setting, with its 95 % interval (Proof-of-Use, figure 1).

    More than eight settings are drawn without intervals, which would hide each other.

    Args:
        histories: for each setting, one history a seed; steps that not all seeds have are averaged over those that do.
        metric: a logged metric such as `"tools/entropy"`; several are drawn as panels.
        path: the file to write.
        window: steps of a running mean taken of each seed first.

    Raises:
        DataError: when no history holds a metric.
    """
    metrics = [metric] if isinstance(metric, str) else list(metric)
    figure, axes = _figure([1] * len(metrics), height=3.6 if len(metrics) == 1 else 2.6)
    shaded = len(histories) <= len(PALETTE)
    for axis, name in zip(axes, metrics, strict=True):
        for number, (label, seeds) in enumerate(histories.items()):
            series = [own for own in (_series(seed, name) for seed in seeds) if len(own[0])]
            by_step: defaultdict[float, list[float]] = defaultdict(list)
            for steps, values in series:
                for step, value in zip(steps.tolist(), running_mean(values, window).tolist(), strict=True):
                    by_step[step].append(value)
            # even where all values are 0 or 1: over seeds they are numbers, not shares
            found = {step: mean_ci(by_step[step], bounds=(-np.inf, np.inf)) for step in sorted(by_step)}
            style = STYLES[(number + number // len(PALETTE)) % len(STYLES)]  # no pair of both twice in 32 settings
            told = f"{label} ({len(series)} seed{'s' if len(series) != 1 else ''})"
            line = {step: _interval(msgspec.to_builtins(own)) for step, own in found.items()}
            _draw_band(axis, told, number, line, shaded, linestyle=style)
        _require(len(axis.lines), name, path)
        label = f"share of calls, {_name(name)}" if name.startswith(RATIO) else _name(name)
        _finish(axis, label, legend=axis is axes[0])
    axes[0].set_title("Mean over seeds, 95 % interval" if shaded else "Mean over seeds", loc="left")
    axes[-1].set_xlabel(_STEP)
    return _save(figure, path)


def bars(
    evaluations: Mapping[str, Mapping[str, Any]], metrics: Sequence[str], path: PathLike, title: str = "Evaluation"
) -> Path:
    """Evaluations beside each other: a bar a metric and policy, with its 95 % interval and its value.

    Args:
        evaluations: by label, what `Evaluation.to_dict` gives (only `rows` is read).
        metrics: rows to draw; one that an evaluation has no value for leaves a gap.
        path: the file to write.

    Raises:
        DataError: when none of the evaluations has any of the metrics.
    """
    figure, (axis,) = _figure([1], height=4.2)
    width = 0.8 / max(1, len(evaluations))
    for number, (label, evaluation) in enumerate(evaluations.items()):
        start = (number - (len(evaluations) - 1) / 2) * width
        kept = {place + start: row for place, name in enumerate(metrics) if (row := _measured(evaluation, name))}
        if not kept:
            continue
        values, colour = [value for value, _, _ in kept.values()], PALETTE[number % len(PALETTE)]
        axis.bar(list(kept), values, 0.92 * width, color=colour, alpha=0.85, label=label)
        for place, (value, low, high) in kept.items():
            axis.errorbar(place, value, [[value - low], [high - value]], color="#333333", capsize=3, linewidth=1.2)
            if len(evaluations) <= FEW:
                above = (place, max(high, 0.0)), (0, 3)
                axis.annotate(f"{value:.2f}", *above, textcoords="offset points", ha="center", fontsize=9)
    _require(len(axis.patches), " or ".join(metrics), path)
    axis.set_xticks(range(len(metrics)), [name.replace("_", "\n") for name in metrics])
    axis.set_xlim(-0.6, len(metrics) - 0.4)
    axis.axhline(0, color=DARK, linewidth=0.8)
    axis.margins(y=0.12)
    _finish(axis, "value, 95 % interval", title=title)
    axis.grid(False, axis="x")
    return _save(figure, path)


def lines(
    evaluations: Mapping[str, Mapping[float, Mapping[str, Any]]],
    metrics: Sequence[str],
    path: PathLike,
    varied: str,
    reference: Mapping[str, Any] | None = None,
) -> Path:
    """What became of settings as one quantity is varied: a panel for each metric, a line with its 95 % band a setting.

    Args:
        evaluations: by label and by the value of what was varied, as for `bars`.
        metrics: rows to draw, one panel each.
        path: the file to write.
        varied: what the horizontal axis is.
        reference: an evaluation before training, drawn as a dotted line through every panel.

    Raises:
        DataError: when none of the evaluations has any of the metrics.
    """
    figure, axes = _figure([1] * len(metrics), height=2.6)
    for axis, metric in zip(axes, metrics, strict=True):
        if reference and (row := _measured(reference, metric)):
            axis.axhline(row[0], color=DARK, linestyle=":", linewidth=1.4, label="before training")
        for number, (label, line) in enumerate(evaluations.items()):
            kept = {place: row for place in sorted(line) if (row := _measured(line[place], metric))}
            _draw_band(axis, label, number, kept, marker="o")
        _require(len(axis.lines), metric, path)
        _finish(axis, _name(metric), limits=_SHARE, legend=axis is axes[0])
    axes[0].set_title("After training, 95 % interval", loc="left")
    axes[-1].set_xlabel(varied)
    return _save(figure, path)


def reliability(curves: Mapping[str, Sequence[Bin]], path: PathLike) -> Path:
    """Calibration of judges: the share of pairs that is true over the mean probability, a line a judge.

    A judge whose probabilities mean what they say lies on the diagonal; above it, it is too doubtful, below it too
    sure. A point's area grows with the pairs behind it. `curves` are `Agreement.curves`.

    Raises:
        DataError: when no judge has a bin.
    """
    drawn = {judge: bins for judge, bins in curves.items() if bins}
    _require(len(drawn), "a judged and labelled pair", path)
    figure, (axis,) = _figure([1], height=4.8)
    axis.plot([0, 1], [0, 1], color="#8C8C8C", linestyle=":", linewidth=1.2)
    for number, (judge, bins) in enumerate(drawn.items()):
        colour, total = PALETTE[number % len(PALETTE)], sum(own.n for own in bins)
        places, shares = [own.p for own in bins], [own.share for own in bins]
        axis.plot(places, shares, color=colour, linewidth=1.2, label=f"{judge} ({total} pairs)")
        axis.scatter(places, shares, [12 + 200 * own.n / total for own in bins], color=colour, alpha=0.6)
    _finish(axis, "share of pairs labelled true", title="Calibration", limits=_SHARE)
    axis.set_xlim(*_SHARE)
    axis.set_xlabel("mean probability that the judge gives")
    return _save(figure, path)


def running_mean(values: Floats, window: int) -> Floats:
    """Mean over `window` values around each one (an even window counts one more); over fewer at the ends.

    Centred, so that the curve does not lag behind what it summarises.

    Example:
        >>> running_mean(np.array([1.0, 2.0, 3.0, 7.0]), 3).tolist()
        [1.5, 2.0, 4.0, 5.0]
    """
    sums = np.concatenate([[0.0], np.cumsum(values)])
    places, half = np.arange(len(values)), max(1, window) // 2
    starts, ends = np.maximum(0, places - half), np.minimum(len(values), places + half + 1)
    return (sums[ends] - sums[starts]) / (ends - starts)


def _by_label(history: Histories) -> dict[str, History]:
    return dict(history) if isinstance(history, Mapping) else {"": history}


def _metrics(runs: Mapping[str, History]) -> list[str]:
    return list(dict.fromkeys(name for history in runs.values() for row in history for name in row))


def _coloured(metrics: Sequence[str], first: int = 0) -> dict[str, str]:
    return {name: PALETTE[place % len(PALETTE)] for place, name in enumerate(metrics, start=first)}


def _series(history: History, metric: str) -> tuple[Floats, Floats]:
    """Steps and values of a metric, rows without it left out; the last of a step logged twice (resumed) counts."""
    found = {row["step"]: row[metric] for row in history if row.get(metric) is not None and row.get("step") is not None}
    steps = sorted(found)
    return np.array(steps, dtype=np.float64), np.array([found[step] for step in steps], dtype=np.float64)


_Interval = tuple[float, float, float]
"""A value with the ends of its interval."""


def _interval(row: Mapping[str, Any]) -> _Interval:
    low, high = (row["value"] if row.get(end) is None else row[end] for end in ("low", "high"))
    return row["value"], low, high


def _measured(evaluation: Mapping[str, Any], metric: str) -> _Interval | None:
    """The row of a metric that has a value."""
    row = evaluation["rows"].get(metric)
    return _interval(row) if row and row.get("value") is not None else None


def _draw_band(
    axis: Any, label: str, number: int, line: Mapping[float, _Interval], shaded: bool = True, **style: Any
) -> None:
    """A line with its interval as a band, in the colour of the setting of this number; nothing without a point."""
    if not line:
        return
    values, low, high = zip(*line.values(), strict=True)
    colour = PALETTE[number % len(PALETTE)]
    axis.plot(list(line), values, color=colour, linewidth=1.9, label=label, **style)
    if shaded:
        axis.fill_between(list(line), low, high, color=colour, alpha=0.15, linewidth=0)


def _name(metric: str) -> str:
    if metric.endswith(WEIGHT):
        return f"weight of {_name(metric.removesuffix(WEIGHT))}"
    return LABELS.get(metric, metric.removeprefix(RATIO).removeprefix("parts/"))


def _draw(runs: Mapping[str, History], path: PathLike, title: str, panels: Sequence[_Panel], wanted: str) -> Path:
    """Panels below each other, of which the first has to have a line; `wanted` names what it shows."""
    _require(len(panels), wanted, path)
    figure, axes = _figure([panel.height for panel in panels])
    for axis, panel in zip(axes, panels, strict=True):
        for style, (label, history) in zip(STYLES * len(runs), runs.items(), strict=False):
            for metric, colour in panel.colours.items():
                steps, values = _series(history, metric)
                if not len(steps):
                    continue
                mean = running_mean(values, panel.window or max(1, len(steps) // 10))
                told = f"{label}: {_name(metric)}" if label else _name(metric)
                width = 2.4 if metric == "reward" else 1.7
                # points, where a line of one or two steps could not be seen
                axis.plot(steps, values, color=colour, alpha=0.22, linewidth=0.8, marker="." if len(steps) < 3 else "")
                axis.plot(steps, mean, color=colour, linestyle=style, linewidth=width, label=told)
        if panel.zero:
            axis.axhline(0, color=DARK, linewidth=0.8)
        _finish(axis, panel.label, title=title if axis is axes[0] else "", limits=panel.limits)
    _require(len(axes[0].lines), wanted, path)
    axes[-1].set_xlabel(_STEP)
    return _save(figure, path)


def _figure(heights: Sequence[float], height: float = 3.0) -> tuple[Any, list[Any]]:
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


def _finish(
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


def _require(found: int, wanted: str, path: PathLike) -> None:
    if not found:
        raise DataError(f"nothing to draw for {path}: no row holds {wanted}")


def _save(figure: Any, path: PathLike) -> Path:
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    return path
