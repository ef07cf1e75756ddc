"""What training did to a policy, and what policies and judges come to beside each other: one function a figure."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from ..bundled import bundled_json
from ..measure.agreement.statistics import Bin
from ..measure.stats import mean_ci
from .figure import DARK, PALETTE, SHARES, STYLES, Floats, Line, Panel, PathLike, canvas, draw, finish, require, save

History = Sequence[Mapping[str, Any]]
"""A trainer's `state.log_history`: dictionaries that hold `step` and metrics."""
STEP = "training step"
MOST_BANDS = 4
FEW = 3
"""Up to this many policies, bars carry their values; more would write over each other."""
_Interval = tuple[float, float, float]
"""A value with the ends of its interval."""
_ALPHA, _RATIO, _WEIGHT = "parts/alpha", "tools/ratio/", "/weight"
_LABELS: dict[str, str] = bundled_json("figure_labels.json")
_STABILITY = {
    "mean log p": ("likelihood/right",),
    "change of it": ("likelihood/moved",),
    "norm": ("grad_norm",),
    "share": ("groups/one_outcome", "frac_reward_zero_std", "behaviour/valid_format"),
}


def reward_curves(history: History, path: PathLike) -> Path:
    """Every component of the reward and the total over the steps: raw values light, their means over a tenth of the
    run strong. Below them, where there are such, alpha and the weights that a curriculum moves, each in its component's
    colour.

    Raises `DataError` when no step has a reward.
    """
    parts = [name for name in _metrics(history) if name.startswith("parts/") and name.count("/") == 1]
    colours = _coloured([name for name in parts if name not in (_ALPHA, "parts/outcome_ema")])
    rewards = _lines(history, {"reward": "#000000", **colours})
    panels = [Panel("reward", rewards, height=3, wanted="reward or parts/…")]
    if _ALPHA in parts:
        panels.append(Panel("alpha", _lines(history, {_ALPHA: PALETTE[-1]}), (-0.05, 1.05)))
    moved = {
        name + _WEIGHT: colour
        for name, colour in colours.items()
        if len(set(series_of(history, name + _WEIGHT)[1].tolist())) > 1
    }
    if moved:
        panels.append(Panel("weight", _lines(history, moved, window=1)))
    return draw(panels, path, "Rewards over training", STEP)


def tool_curves(history: History, path: PathLike) -> Path:
    """The share of calls to each tool, and below it the normalised entropy, over the steps (Proof-of-Use, figure 4);
    with a single tool, how often it is called.
    """
    tools = [name for name in _metrics(history) if name.startswith(_RATIO)]
    if len(tools) == 1:
        calls = _lines(history, _coloured(["tools/calls"]))
        return draw(
            [Panel("calls per rollout", calls, wanted="tools/calls")], path, "Use of the tool over training", STEP
        )
    shares = _lines(history, _coloured(tools))
    entropy = _lines(history, {"tools/entropy": PALETTE[-1]})
    panels = [
        Panel("share of tool calls", shares, SHARES, height=3, wanted=f"{_RATIO}…"),
        Panel("entropy (0 one tool, 1 even)", entropy, (-0.05, 1.05), height=2),
    ]
    return draw(panels, path, "Use of tools over training", STEP)


def stability_curves(history: History, path: PathLike) -> Path:
    """How likely right answers are, how large gradients, and which share of the rollouts teaches nothing.

    A panel without values is left out.
    """
    named = enumerate(_STABILITY.items())
    panels = [Panel(label, _lines(history, _coloured(names, first))) for first, (label, names) in named]
    logged = [panel for panel in panels if panel.lines] or [Panel("", [], wanted="likelihood, gradient or groups")]
    return draw(logged, path, "Stability over training", STEP)


def self_preference(history: History, path: PathLike) -> Path:
    """What a policy gives its own trajectories and what a rule gives them, and below it how far both are apart."""
    scores = _lines(history, _coloured(["self_score", "rule_score"]))
    apart = _lines(history, _coloured(["self_gap", "self_rmse"], 2))
    panels = [
        Panel("rubric score", scores, SHARES, height=3, wanted="self_score"),
        Panel("difference", apart, height=2, level=(0, "")),
    ]
    return draw(panels, path, "The policy's own scores over training", STEP)


def series_of(history: History, metric: str) -> tuple[Floats, Floats]:
    """Steps and values of a metric, rows without it left out; the last of a step logged twice (resumed) counts."""
    found = {row["step"]: row[metric] for row in history if row.get(metric) is not None and row.get("step") is not None}
    steps = sorted(found)
    return np.array(steps, dtype=np.float64), np.array([found[step] for step in steps], dtype=np.float64)


def running_mean(values: Floats, window: int) -> Floats:
    """Mean over `window` values around each one (an even window counts one more); over fewer at the ends.

    Centred, so that the curve does not lag behind what it summarises; NaN and infinities count nowhere.
    """
    half = max(1, window) // 2
    around = (values[max(0, place - half) : place + half + 1] for place in range(len(values)))
    finite = (own[np.isfinite(own)] for own in around)
    return np.array([own.mean() if len(own) else np.nan for own in finite], dtype=np.float64)


def _metrics(history: History) -> list[str]:
    return list(dict.fromkeys(name for row in history for name in row))


def _coloured(metrics: Sequence[str], first: int = 0) -> dict[str, str]:
    return {name: PALETTE[place % len(PALETTE)] for place, name in enumerate(metrics, start=first)}


def _lines(history: History, colours: Mapping[str, str], window: int | None = None) -> list[Line]:
    """Each metric that was logged: a running mean, and light behind it what it smooths."""
    lines = []
    for metric, colour in colours.items():
        steps, values = series_of(history, metric)
        if len(steps):
            mean = running_mean(values, window or max(1, len(steps) // 10))
            look = {"color": colour, "linewidth": 2.4 if metric == "reward" else 1.7, "label": _label(metric)}
            lines.append(Line(steps, mean, look, raw=values))
    return lines


def compare(
    histories: Mapping[str, Sequence[History]],
    metrics: Sequence[str],
    path: PathLike,
    window: int = 1,
) -> Path:
    """The mean over seeds of one or more metrics for each setting, with its 95 % interval (Proof-of-Use, figure 1).

    More than four settings are drawn without intervals, which would hide each other.

    Args:
        histories: for each setting, one history a seed; steps that not all seeds have are averaged over those that do.
        metrics: logged ones such as `"tools/entropy"`, a panel each.
        window: steps of a running mean taken of each seed first.

    Raises `DataError` when no history holds a metric.
    """
    shaded = len(histories) <= MOST_BANDS
    panels = []
    for name in metrics:
        lines = []
        for number, (label, seeds) in enumerate(histories.items()):
            series = [own for own in (series_of(seed, name) for seed in seeds) if len(own[0])]
            by_step: defaultdict[float, list[float]] = defaultdict(list)
            for steps, values in series:
                for step, value in zip(steps.tolist(), running_mean(values, window).tolist(), strict=True):
                    by_step[step].append(value)
            # even where all values are 0 or 1: over seeds they are numbers, not shares
            found = {step: mean_ci(by_step[step], bounds=(-np.inf, np.inf)) for step in sorted(by_step)}
            line = {step: _interval(msgspec.structs.asdict(own)) for step, own in found.items()}
            style = STYLES[(number + number // len(PALETTE)) % len(STYLES)]  # no pair of both twice in 32 settings
            told = f"{label} ({len(series)} seed{'s' if len(series) != 1 else ''})"
            lines += _banded(told, number, line, shaded, linestyle=style)
        told = f"share of calls, {_label(name)}" if name.startswith(_RATIO) else _label(name)
        panels.append(Panel(told, lines, wanted=name, legend=name == metrics[0]))
    legend = 0.6 + 0.21 * len(histories)  # inches
    height = max(3.6 if len(metrics) == 1 else 2.6, legend / len(metrics))
    return draw(panels, path, "Mean over seeds, 95 % interval" if shaded else "Mean over seeds", STEP, height)


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
        varied: what the horizontal axis is.
        reference: an evaluation before training, drawn as a dotted line through every panel.

    Raises `DataError` for a metric that none of them has.
    """
    panels = []
    for metric in metrics:
        before = _measured(reference, metric) if reference else None
        drawn, shown = [], [before] if before else []
        for number, (label, line) in enumerate(evaluations.items()):
            kept = {place: row for place in sorted(line) if (row := _measured(line[place], metric))}
            shown += kept.values()
            drawn += _banded(label, number, kept, marker="o")
        shares = all(0 <= number <= 1 for row in shown for number in row)
        level = (before[0], "before training") if before else None
        limits = SHARES if shares else None
        panels.append(Panel(_label(metric), drawn, limits, 1, metric, level, legend=metric == metrics[0]))
    return draw(panels, path, "After training, 95 % interval", varied, height=2.6)


def bars(
    evaluations: Mapping[str, Mapping[str, Any]], metrics: Sequence[str], path: PathLike, title: str = "Evaluation"
) -> Path:
    """Evaluations beside each other: a bar a metric and policy, with its 95 % interval and its value.

    `evaluations` are by label what `Evaluation.to_dict` gives (only `rows` is read). A metric that an evaluation has no
    value for leaves a gap. Raises `DataError` when none of them has any of the metrics.
    """
    figure, (axis,) = canvas([1], height=4.2)
    width = 0.8 / max(1, len(evaluations))
    for number, (label, evaluation) in enumerate(evaluations.items()):
        start = (number - (len(evaluations) - 1) / 2) * width
        kept = {place + start: row for place, name in enumerate(metrics) if (row := _measured(evaluation, name))}
        if not kept:
            continue
        values, colour = [value for value, _, _ in kept.values()], PALETTE[number % len(PALETTE)]
        axis.bar(list(kept), values, 0.92 * width, color=colour, alpha=0.85, label=label)
        for place, (value, low, high) in kept.items():
            # around the interval's own middle: the value may lie outside, where it is of percentiles
            ends = (low + high) / 2, (high - low) / 2
            axis.errorbar(place, *ends, fmt="none", ecolor="#333333", capsize=3, elinewidth=1.2)
            if len(evaluations) <= FEW:
                above = (place, max(value, high, 0.0)), (0, 3)
                axis.annotate(f"{value:.2f}", *above, textcoords="offset points", ha="center", fontsize=9)
    require(axis.patches, " or ".join(metrics), path)
    axis.set_xticks(range(len(metrics)), [name.replace("_", "\n") for name in metrics])
    axis.set_xlim(-0.6, len(metrics) - 0.4)
    axis.axhline(0, color=DARK, linewidth=0.8)
    axis.margins(y=0.12)
    finish(axis, "value, 95 % interval", title=title)
    axis.grid(False, axis="x")
    return save(figure, path)


def reliability(curves: Mapping[str, Sequence[Bin]], path: PathLike) -> Path:
    """Calibration of judges: the share of pairs that is true over the mean probability, a line a judge.

    A judge whose probabilities mean what they say lies on the diagonal; above it, it is too doubtful, below it too
    sure. A point's area grows with the pairs behind it. `curves` are `Agreement.curves`; raises `DataError` when no
    judge has a bin.
    """
    drawn = {judge: bins for judge, bins in curves.items() if bins}
    require(drawn, "a judged and labelled pair", path)
    figure, (axis,) = canvas([1], height=4.8)
    axis.plot([0, 1], [0, 1], color="#8C8C8C", linestyle=":", linewidth=1.2)
    for number, (judge, bins) in enumerate(drawn.items()):
        colour, total = PALETTE[number % len(PALETTE)], sum(own.n for own in bins)
        places, shares = [own.p for own in bins], [own.share for own in bins]
        axis.plot(places, shares, color=colour, linewidth=1.2, label=f"{judge} ({total} pairs)")
        axis.scatter(places, shares, [12 + 200 * own.n / total for own in bins], color=colour, alpha=0.6)
    finish(axis, "share of pairs labelled true", title="Calibration", limits=SHARES)
    axis.set_xlim(*SHARES)
    axis.set_xlabel("mean probability that the judge gives")
    return save(figure, path)


def _interval(row: Mapping[str, Any]) -> _Interval:
    low, high = (row["value"] if row.get(end) is None else row[end] for end in ("low", "high"))
    return row["value"], low, high


def _measured(evaluation: Mapping[str, Any], metric: str) -> _Interval | None:
    """The row of a metric that has a value."""
    row = evaluation["rows"].get(metric)
    return _interval(row) if row and row.get("value") is not None else None


def _banded(label: str, number: int, line: Mapping[float, _Interval], shaded: bool = True, **look: str) -> list[Line]:
    """A line with its interval as a band, in the colour of the setting of this number; none without a point."""
    if not line:
        return []
    values, low, high = zip(*line.values(), strict=True)
    band = (low, high) if shaded else None
    colour = PALETTE[number % len(PALETTE)]
    return [Line(list(line), values, {"color": colour, "linewidth": 1.9, "label": label, **look}, band)]


def _label(metric: str) -> str:
    if metric.endswith(_WEIGHT):
        return f"weight of {_label(metric.removesuffix(_WEIGHT))}"
    return _LABELS.get(metric, metric.removeprefix(_RATIO).removeprefix("parts/"))
