"""One function per figure: what training did to the rewards, to the use of tools, and what it bought.

A *history* is a trainer's `state.log_history`: a list of dictionaries that hold `step` and metrics. Figures are drawn
without pyplot's global state, so that they can be made in any thread, and are written as the file's suffix says (png,
svg, pdf).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

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
    "norm": ("grad_norm",),
    "share": ("groups/one_outcome", "frac_reward_zero_std", "behaviour/valid_format"),
}
_STEP = "training step"
_WIDE, _DPI = 9.0, 120


def reward_curves(history: Histories, path: PathLike, window: int | None = None) -> Path:
    """Every component of the reward and the total over the steps: raw values light, running means strong.

    Below them, where there are such, alpha and the weights that a curriculum moves, each in its component's colour.

    Args:
        history: one, or several by label (told apart by line style).
        path: the file to write; its folder is made.
        window: steps of the running mean; default a tenth of the run.

    Raises:
        DataError: when no step has a reward.
    """
    runs = _by_label(history)
    parts = [name for name in _metrics(runs) if name.startswith("parts/") and name.count("/") == 1]
    drawn = ["reward", *(name for name in parts if name not in (ALPHA, "parts/outcome_ema"))]
    moved = [name for name in drawn if _moves(runs, name + WEIGHT)]
    rows = 1 + (ALPHA in parts) + bool(moved)
    figure, (upper, *below) = _figure(rows, (3, 1, 1)[:rows])
    found = _draw_metrics(upper, runs, drawn, window)
    _require(found, "reward or parts/…", path)
    _finish(upper, "reward", title="Rewards over training")
    if ALPHA in parts:
        _draw_metrics(below[0], runs, [ALPHA], window, first=len(PALETTE) - 1)
        _finish(below[0], "alpha", limits=(-0.05, 1.05))
    for name in moved:
        _draw_metrics(below[-1], runs, [name + WEIGHT], 1, first=drawn.index(name) - 1)
    if moved:
        _finish(below[-1], "weight")
    figure.axes[-1].set_xlabel(_STEP)
    return _save(figure, path)


def tool_curves(history: Histories, path: PathLike, window: int | None = None) -> Path:
    """The share of calls to each tool, and below it the normalised entropy, over the steps (Proof-of-Use, figure 4).

    With a single tool, how often it is called. Arguments and errors as for `reward_curves`.
    """
    runs = _by_label(history)
    tools = [name for name in _metrics(runs) if name.startswith(RATIO)]
    if len(tools) == 1:
        return _call_curve(runs, path, window)
    figure, (upper, lower) = _figure(2, (3, 2))
    _require(_draw_metrics(upper, runs, tools, window), f"{RATIO}…", path)
    _draw_metrics(lower, runs, ["tools/entropy"], window, first=len(PALETTE) - 1)
    _finish(upper, "share of tool calls", title="Use of tools over training", limits=(-0.03, 1.03))
    _finish(lower, "entropy (0 one tool, 1 even)", limits=(-0.05, 1.05))
    lower.set_xlabel(_STEP)
    return _save(figure, path)


def stability_curves(history: Histories, path: PathLike, window: int | None = None) -> Path:
    """How likely right answers are, how large gradients, and which share of the rollouts teaches nothing.

    Arguments and errors as for `reward_curves`; a panel without values is left out.
    """
    runs = _by_label(history)
    logged = set(_metrics(runs))
    panels = {label: names for label, names in STABILITY.items() if logged.intersection(names)}
    _require(len(panels), "likelihood, gradient or groups", path)
    figure, axes = _figure(len(panels), (1,) * len(panels))
    for number, (axis, (label, names)) in enumerate(zip(axes, panels.items(), strict=True)):
        _draw_metrics(axis, runs, names, window, first=number)
        _finish(axis, label, title="" if number else "Stability over training")
    axes[-1].set_xlabel(_STEP)
    return _save(figure, path)


def self_preference(history: Histories, path: PathLike, window: int | None = None) -> Path:
    """What a policy gives its own trajectories and what a rule gives them, and below it how far both are apart.

    Arguments and errors as for `reward_curves`.
    """
    runs = _by_label(history)
    figure, (upper, lower) = _figure(2, (3, 2))
    _require(_draw_metrics(upper, runs, ["self_score", "rule_score"], window), "self_score", path)
    _draw_metrics(lower, runs, ["self_gap", "self_rmse"], window, first=2)
    lower.axhline(0, color="#444444", linewidth=0.8)
    _finish(upper, "rubric score", title="The policy's own scores over training", limits=(-0.03, 1.03))
    _finish(lower, "difference")
    lower.set_xlabel(_STEP)
    return _save(figure, path)


def compare(
    histories: Mapping[str, Sequence[History]],
    metric: str | Sequence[str],
    path: PathLike,
    band: str = "ci",
    window: int = 1,
) -> Path:
    """The mean over seeds of one or more metrics for each setting, with a band (Proof-of-Use, figure 1).

    More than eight settings are drawn without bands, which would hide each other.

    Args:
        histories: for each setting, one history a seed; steps that not all seeds have are averaged over those that do.
        metric: a logged metric such as `"tools/entropy"`; several are drawn as panels.
        path: the file to write.
        band: "ci" for the 95 % interval of the mean over seeds, "se" for ± one standard error.
        window: steps of a running mean taken of each seed first.

    Raises:
        DataError: for another `band`, or when no history holds a metric.
    """
    if band not in ("ci", "se"):
        raise DataError(f"band {band!r} is neither 'ci' nor 'se'")
    metrics = [metric] if isinstance(metric, str) else list(metric)
    figure, axes = _figure(len(metrics), (1,) * len(metrics), height=3.6 if len(metrics) == 1 else 2.6)
    shaded = len(histories) <= len(PALETTE)
    for axis, name in zip(axes, metrics, strict=True):
        for number, (label, seeds) in enumerate(histories.items()):
            smoothed = [_smoothed(*_series(seed, name), window) for seed in seeds]
            _draw_band(axis, label, smoothed, number, band, shaded)
        _require(len(axis.lines), name, path)
        label = f"share of calls, {_name(name)}" if name.startswith(RATIO) else _name(name)
        _finish(axis, label, legend=axis is axes[0])
    what = "95 % interval" if band == "ci" else "± 1 standard error"
    axes[0].set_title(f"Mean over seeds, {what}" if shaded else "Mean over seeds", loc="left")
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
        title: above the bars.

    Raises:
        DataError: when none of the evaluations has any of the metrics.
    """
    figure, (axis,) = _figure(1, (1,), height=4.2)
    width = 0.8 / max(1, len(evaluations))
    for number, (label, evaluation) in enumerate(evaluations.items()):
        rows = [evaluation["rows"].get(name) or {} for name in metrics]
        places = np.arange(len(metrics)) + (number - (len(evaluations) - 1) / 2) * width
        kept = [(place, row) for place, row in zip(places, rows, strict=True) if row.get("value") is not None]
        _draw_bars(axis, label, kept, width, PALETTE[number % len(PALETTE)], valued=len(evaluations) <= FEW)
    _require(len(axis.patches), " or ".join(metrics), path)
    axis.set_xticks(range(len(metrics)), [name.replace("_", "\n") for name in metrics])
    axis.set_xlim(-0.6, len(metrics) - 0.4)
    axis.axhline(0, color="#444444", linewidth=0.8)
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
        evaluations: by label, by the value of what was varied, what `Evaluation.to_dict` gives (only `rows` is read).
        metrics: rows to draw, one panel each.
        path: the file to write.
        varied: what the horizontal axis is.
        reference: an evaluation that is drawn as a dotted line through every panel: before training, say.

    Raises:
        DataError: when none of the evaluations has any of the metrics.
    """
    figure, axes = _figure(len(metrics), (1,) * len(metrics), height=2.6)
    for axis, metric in zip(axes, metrics, strict=True):
        if reference and (row := reference["rows"].get(metric)) and row["value"] is not None:
            axis.axhline(row["value"], color="#444444", linestyle=":", linewidth=1.4, label="before training")
        for number, (label, line) in enumerate(evaluations.items()):
            kept = {
                place: row
                for place in sorted(line)
                if (row := line[place]["rows"].get(metric) or {}).get("value") is not None
            }
            places, colour = list(kept), PALETTE[number % len(PALETTE)]
            low, high = (
                [row["value"] if row.get(end) is None else row[end] for row in kept.values()] for end in ("low", "high")
            )
            axis.plot(
                places, [row["value"] for row in kept.values()], color=colour, marker="o", linewidth=1.9, label=label
            )
            axis.fill_between(places, low, high, color=colour, alpha=0.13, linewidth=0)
        _require(len(axis.lines), metric, path)
        _finish(axis, _name(metric), limits=(-0.03, 1.03), legend=axis is axes[0])
    axes[0].set_title("After training, 95 % interval", loc="left")
    axes[-1].set_xlabel(varied)
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


def reliability(curves: Mapping[str, Sequence[Bin]], path: PathLike) -> Path:
    """Calibration of judges: the share of pairs that is true over the mean probability, a line a judge.

    A judge whose probabilities mean what they say lies on the diagonal; above it, it is too doubtful, below it too
    sure. A point's area grows with the pairs behind it.

    Args:
        curves: by judge, its bins (`Agreement.curves`); a judge without bins is left out.
        path: the file to write.

    Raises:
        DataError: when no judge has a bin.
    """
    drawn = {judge: bins for judge, bins in curves.items() if bins}
    _require(len(drawn), "a judged and labelled pair", path)
    figure, (axis,) = _figure(1, (1,), height=4.8)
    axis.plot([0, 1], [0, 1], color="#8C8C8C", linestyle=":", linewidth=1.2)
    for number, (judge, bins) in enumerate(drawn.items()):
        colour, total = PALETTE[number % len(PALETTE)], sum(own.n for own in bins)
        places, shares = [own.p for own in bins], [own.share for own in bins]
        axis.plot(places, shares, color=colour, linewidth=1.2, label=f"{judge} ({total} pairs)")
        axis.scatter(places, shares, [12 + 200 * own.n / total for own in bins], color=colour, alpha=0.6)
    _finish(axis, "share of pairs labelled true", title="Calibration", limits=(-0.03, 1.03))
    axis.set_xlim(-0.03, 1.03)
    axis.set_xlabel("mean probability that the judge gives")
    return _save(figure, path)


def _by_label(history: Histories) -> dict[str, History]:
    return dict(history) if isinstance(history, Mapping) else {"": history}


def _metrics(runs: Mapping[str, History]) -> list[str]:
    return list(dict.fromkeys(name for history in runs.values() for row in history for name in row))


def _series(history: History, metric: str) -> tuple[Floats, Floats]:
    """Steps and values of a metric, rows without it left out; the last of a step logged twice (resumed) counts."""
    found = {row["step"]: row[metric] for row in history if row.get(metric) is not None and row.get("step") is not None}
    steps = sorted(found)
    return np.array(steps, dtype=np.float64), np.array([found[step] for step in steps], dtype=np.float64)


def _smoothed(steps: Floats, values: Floats, window: int) -> tuple[Floats, Floats]:
    return steps, running_mean(values, window)


def _call_curve(runs: Mapping[str, History], path: PathLike, window: int | None) -> Path:
    figure, (axis,) = _figure(1, (1,), height=3.6)
    _require(_draw_metrics(axis, runs, ["tools/calls"], window), "tools/calls", path)
    _finish(axis, "calls per rollout", title="Use of the tool over training")
    axis.set_xlabel(_STEP)
    return _save(figure, path)


def _moves(runs: Mapping[str, History], metric: str) -> bool:
    return any(len(set(_series(history, metric)[1].tolist())) > 1 for history in runs.values())


def _name(metric: str) -> str:
    if metric.endswith(WEIGHT):
        return f"weight of {_name(metric.removesuffix(WEIGHT))}"
    return LABELS.get(metric, metric.removeprefix(RATIO).removeprefix("parts/"))


def _figure(rows: int, heights: Sequence[float], height: float = 3.0) -> tuple[Any, list[Any]]:
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError("figures need matplotlib: pip install matplotlib") from error
    figure = Figure(figsize=(_WIDE, 0.6 + height * rows if rows > 1 else height), dpi=_DPI, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(rows, 1, sharex=True, squeeze=False, gridspec_kw={"height_ratios": list(heights)})
    return figure, list(axes[:, 0])


def _draw_metrics(
    axis: Any, runs: Mapping[str, History], metrics: Sequence[str], window: int | None, first: int = 0
) -> int:
    drawn = 0
    for number, (label, history) in enumerate(runs.items()):
        for place, metric in enumerate(metrics, start=first):
            steps, values = _series(history, metric)
            if not len(steps):
                continue
            colour = "#000000" if metric == "reward" else PALETTE[(place - (metrics[0] == "reward")) % len(PALETTE)]
            name = f"{label}: {_name(metric)}" if label else _name(metric)
            span = window or max(1, len(steps) // 10)
            axis.plot(steps, values, color=colour, alpha=0.22, linewidth=0.8, marker="." if len(steps) < 3 else "")
            axis.plot(
                steps,
                running_mean(values, span),
                color=colour,
                linestyle=STYLES[number % len(STYLES)],
                linewidth=2.4 if metric == "reward" else 1.7,
                label=name,
            )
            drawn += 1
    return drawn


def _draw_band(
    axis: Any, label: str, seeds: Sequence[tuple[Floats, Floats]], number: int, band: str, shaded: bool
) -> None:
    by_step: dict[float, list[float]] = {}
    for steps, values in seeds:
        for step, value in zip(steps, values, strict=True):
            by_step.setdefault(float(step), []).append(float(value))
    if not by_step:
        return
    ordered = sorted(by_step)
    estimates = [mean_ci(by_step[step], bounds=(-np.inf, np.inf)) for step in ordered]
    middle = np.array([estimate.value for estimate in estimates], dtype=np.float64)
    half = np.array([_half(estimate, band) for estimate in estimates])
    colour = PALETTE[number % len(PALETTE)]
    style = STYLES[(number + number // len(PALETTE)) % len(STYLES)]  # no pair of both comes twice in 32 settings
    count = sum(len(steps) > 0 for steps, _ in seeds)
    name = f"{label} ({count} seed{'s' if count != 1 else ''})"
    axis.plot(ordered, middle, color=colour, linestyle=style, linewidth=1.9, label=name)
    if shaded:
        axis.fill_between(ordered, middle - half, middle + half, color=colour, alpha=0.18, linewidth=0)


def _half(estimate: Any, band: str) -> float:
    if estimate.stderr is None:
        return 0.0
    return float(estimate.stderr if band == "se" else estimate.high - estimate.value)


def _draw_bars(
    axis: Any,
    label: str,
    kept: Sequence[tuple[float, Mapping[str, Any]]],
    width: float,
    colour: str,
    valued: bool,
) -> None:
    if not kept:
        return
    places, values = [place for place, _ in kept], [row["value"] for _, row in kept]
    axis.bar(places, values, 0.92 * width, color=colour, alpha=0.85, label=label)
    for place, row in kept:
        low, high = (row["value"] if row.get(end) is None else row[end] for end in ("low", "high"))
        reach = [[row["value"] - low], [high - row["value"]]]
        axis.errorbar(place, row["value"], reach, color="#333333", capsize=3, linewidth=1.2)
        top = max(high, 0.0)
        if valued:
            text = f"{row['value']:.2f}"
            axis.annotate(text, (place, top), (0, 3), textcoords="offset points", ha="center", fontsize=9)


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
