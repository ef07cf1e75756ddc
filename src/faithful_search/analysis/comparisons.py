"""What settings, policies and judges come to beside each other: one function per figure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from ..measure.agreement.statistics import Bin
from ..measure.stats import mean_ci
from .figure import (
    DARK,
    FEW,
    PALETTE,
    RATIO,
    SHARES,
    STEP,
    STYLES,
    History,
    PathLike,
    finish,
    label_of,
    panels_of,
    require,
    running_mean,
    save,
    series_of,
)

MOST_BANDS = 4


def compare(
    histories: Mapping[str, Sequence[History]],
    metric: str | Sequence[str],
    path: PathLike,
    window: int = 1,
) -> Path:
    """The mean over seeds of one or more metrics for each setting, with its 95 % interval (Proof-of-Use, figure 1).

    More than four settings are drawn without intervals, which would hide each other.

    Args:
        histories: for each setting, one history a seed; steps that not all seeds have are averaged over those that do.
        metric: a logged metric such as `"tools/entropy"`; several are drawn as panels.
        path: the file to write.
        window: steps of a running mean taken of each seed first.

    Raises:
        DataError: when no history holds a metric.
    """
    metrics = [metric] if isinstance(metric, str) else list(metric)
    legend = 0.6 + 0.21 * len(histories)  # inches
    figure, axes = panels_of([1] * len(metrics), max(3.6 if len(metrics) == 1 else 2.6, legend / len(metrics)))
    shaded = len(histories) <= MOST_BANDS
    for axis, name in zip(axes, metrics, strict=True):
        for number, (label, seeds) in enumerate(histories.items()):
            series = [own for own in (series_of(seed, name) for seed in seeds) if len(own[0])]
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
        require(len(axis.lines), name, path)
        label = f"share of calls, {label_of(name)}" if name.startswith(RATIO) else label_of(name)
        finish(axis, label, legend=axis is axes[0])
    axes[0].set_title("Mean over seeds, 95 % interval" if shaded else "Mean over seeds", loc="left")
    axes[-1].set_xlabel(STEP)
    return save(figure, path)


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
    figure, (axis,) = panels_of([1], height=4.2)
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
    require(len(axis.patches), " or ".join(metrics), path)
    axis.set_xticks(range(len(metrics)), [name.replace("_", "\n") for name in metrics])
    axis.set_xlim(-0.6, len(metrics) - 0.4)
    axis.axhline(0, color=DARK, linewidth=0.8)
    axis.margins(y=0.12)
    finish(axis, "value, 95 % interval", title=title)
    axis.grid(False, axis="x")
    return save(figure, path)


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
    figure, axes = panels_of([1] * len(metrics), height=2.6)
    for axis, metric in zip(axes, metrics, strict=True):
        drawn: list[_Interval] = []
        if reference and (row := _measured(reference, metric)):
            drawn.append(row)
            axis.axhline(row[0], color=DARK, linestyle=":", linewidth=1.4, label="before training")
        for number, (label, line) in enumerate(evaluations.items()):
            kept = {place: row for place in sorted(line) if (row := _measured(line[place], metric))}
            drawn += kept.values()
            _draw_band(axis, label, number, kept, marker="o")
        require(len(axis.lines), metric, path)
        shares = all(0 <= number <= 1 for row in drawn for number in row)
        finish(axis, label_of(metric), limits=SHARES if shares else None, legend=axis is axes[0])
    axes[0].set_title("After training, 95 % interval", loc="left")
    axes[-1].set_xlabel(varied)
    return save(figure, path)


def reliability(curves: Mapping[str, Sequence[Bin]], path: PathLike) -> Path:
    """Calibration of judges: the share of pairs that is true over the mean probability, a line a judge.

    A judge whose probabilities mean what they say lies on the diagonal; above it, it is too doubtful, below it too
    sure. A point's area grows with the pairs behind it. `curves` are `Agreement.curves`.

    Raises:
        DataError: when no judge has a bin.
    """
    drawn = {judge: bins for judge, bins in curves.items() if bins}
    require(len(drawn), "a judged and labelled pair", path)
    figure, (axis,) = panels_of([1], height=4.8)
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
