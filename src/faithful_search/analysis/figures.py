"""What training did to a policy, and what policies and judges come to beside each other: one
function a figure.

Figures need matplotlib, imported when one is drawn. They are drawn without pyplot's global state,
so that they can be made in any thread, and are written as the file's suffix says (png, svg, pdf).
Each raises `DataError` where there is nothing to draw.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from .. import rewards
from ..errors import ConfigError, DataError
from ..measure.agreement.statistics import Bin
from ..measure.stats import Floats, mean_ci
from ..reading.files import PathLike

History = Sequence[Mapping[str, Any]]
"""A trainer's `state.log_history`: dictionaries that hold `step` and metrics."""
Numbers = Sequence[float] | Floats
Interval = tuple[float, float, float]  # a value, and the ends of its interval
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C8C8C", "#000000")
"""Okabe and Ito's colours and a grey: apart for colour-blind readers and in print."""
STYLES = ("-", "--", "-.", ":")
SHARES = (-0.03, 1.03)
"""Limits of an axis of shares: wide enough that a line at 0 or 1 is not cut in half."""
MOST_BANDS = 4  # settings: more would hide each other
FEW = 3  # policies whose bars carry their values
DARK_FROM = 0.7  # on what is darker, values are white
ROOM = 60  # characters below an axis, without what lies between its labels
SHOWN_SHARE = 0.06  # of the calls: a smaller part of a bar has no room for its number
STEP, DARK = "training step", "#444444"
_ALPHA, _RATIO, _WEIGHT = "parts/alpha", "tools/ratio/", "/weight"
_LABELS = {
    "reward": "total reward",
    "parts/exact_match": "exact match",
    "behaviour/exact_match": "exact match",
    "follow_rate": "answer follows\nchanged evidence",
    "exact_match": "exact match,\nheld-out questions",
    "exact_match_changed": "exact match,\nchanged worlds",
    "behaviour/answer_first": "answer stated before its evidence",
    "parts/alpha": "alpha (weight of R_ans)",
    "self_score": "the policy's own score",
    "rule_score": "the rule's score",
    "self_gap": "own score minus the rule's",
    "self_rmse": "root mean square difference",
    "likelihood/right": "mean of right answers' tokens",
    "likelihood/moved": "of right answers' tokens",
    "grad_norm": "gradient",
    "groups/one_outcome": "questions all right or all wrong",
    "frac_reward_zero_std": "questions without variance of rewards",
    "behaviour/valid_format": "rollouts of valid format",
    "tools/entropy": "normalised tool entropy",
    "tools/calls": "tool calls per rollout",
    "ended/answered": "share of rollouts answered",
    "ended/answered_forced": "share made to answer",
}
_LABELS |= {f"parts/{name}": label for name, label in rewards.labels().items()}
"""Labels by the names of what is logged and of an evaluation's rows; rewards have their own."""
_STABILITY = {
    "log-probability": ("likelihood/right",),
    "its change\nby the update": ("likelihood/moved",),
    "gradient norm": ("grad_norm",),
    "share": ("groups/one_outcome", "frac_reward_zero_std", "behaviour/valid_format"),
}


class Curve(NamedTuple):
    """Values over steps, or over what was varied, with the ends of their intervals and what they
    smooth; `look` are matplotlib's properties of the line.
    """

    x: Numbers
    y: Numbers
    look: dict[str, Any]
    band: tuple[Numbers, Numbers] | None = None
    raw: Numbers | None = None


class Panel(NamedTuple):
    """Lines over one axis, with a value that is marked across it and the mark's label.

    `wanted` names what it shows: without it there is nothing to draw.
    """

    label: str
    lines: Sequence[Curve]
    limits: tuple[float, float] | None = None
    height: float = 1
    wanted: str = ""
    level: tuple[float, str] | None = None
    legend: bool = True


def reward_curves(history: History, path: PathLike) -> Path:
    """Every component of the reward and the total over the steps: raw values light, their means
    over a tenth of the run strong. Below them, where there are such, alpha and the weights that a
    curriculum moves, each in its component's colour.
    """
    logged = dict.fromkeys(chain.from_iterable(history))
    parts = [name for name in logged if name.startswith("parts/") and name.count("/") == 1]
    colours = _coloured([name for name in parts if name not in (_ALPHA, "parts/outcome_ema")])
    panels = [
        Panel(
            "reward",
            _lines(history, {"reward": "#000000", **colours}),
            None,
            3,
            "reward or parts/…",
        )
    ]
    if _ALPHA in parts:
        panels.append(Panel("alpha", _lines(history, {_ALPHA: PALETTE[-1]}), (-0.05, 1.05)))
    moved = {}
    for name, colour in colours.items():
        _, weights = _series(history, name + _WEIGHT)
        if len(set(weights.tolist())) > 1:
            moved[name + _WEIGHT] = colour
    if moved:
        panels.append(Panel("weight", _lines(history, moved, window=1)))
    return _draw(panels, path, "Rewards over training", STEP)


def tool_curves(history: History, path: PathLike) -> Path:
    """The share of calls to each tool, and below it the normalised entropy, over the steps
    (Proof-of-Use, figure 1); with a single tool, how often it is called.
    """
    logged = dict.fromkeys(chain.from_iterable(history))
    tools = [name for name in logged if name.startswith(_RATIO)]
    if len(tools) == 1:
        calls = Panel(
            "calls per rollout", _lines(history, _coloured(["tools/calls"])), wanted="tools/calls"
        )
        return _draw([calls], path, "Use of the tool over training", STEP)
    entropy = _lines(history, {"tools/entropy": PALETTE[-1]})
    panels = [
        Panel("share of tool calls", _lines(history, _coloured(tools)), SHARES, 3, f"{_RATIO}…"),
        Panel("entropy (0 one tool, 1 even)", entropy, (-0.05, 1.05), 2),
    ]
    return _draw(panels, path, "Use of tools over training", STEP)


def stability_curves(history: History, path: PathLike) -> Path:
    """How likely right answers are, how large gradients, and which share of the rollouts teaches
    nothing.

    A panel without values is left out.
    """
    panels = []
    for number, (label, metrics) in enumerate(_STABILITY.items()):
        lines = _lines(history, _coloured(metrics, first=number))
        if lines:
            panels.append(Panel(label, lines))
    _require(panels, "likelihood, gradient or groups", path)
    return _draw(panels, path, "Stability over training", STEP)


def self_preference(history: History, path: PathLike) -> Path:
    """What a policy gives its own trajectories and what a rule gives them, and below it how far
    both are apart.
    """
    scores = Panel(
        "rubric score",
        _lines(history, _coloured(["self_score", "rule_score"])),
        SHARES,
        3,
        "self_score",
    )
    apart = Panel(
        "difference",
        _lines(history, _coloured(["self_gap", "self_rmse"], 2)),
        height=2,
        level=(0, ""),
    )
    return _draw([scores, apart], path, "The policy's own scores over training", STEP)


def compare(
    histories: Mapping[str, Sequence[History]],
    metrics: Sequence[str],
    path: PathLike,
    window: int = 1,
) -> Path:
    """The mean over seeds of one or more metrics for each setting, with its 95 % interval
    (Proof-of-Use, figure 1).

    `histories` are by setting, one a seed; steps that not all seeds have are averaged over those
    that do. `metrics` are logged ones such as `"tools/entropy"`, a panel each; `window` is that of
    a running mean taken of each seed first. More than four settings are drawn without intervals,
    which would hide each other.
    """
    shaded = len(histories) <= MOST_BANDS
    panels = []
    for name in metrics:
        lines = []
        for number, (label, seeds) in enumerate(histories.items()):
            means, count = _means_over_seeds(seeds, name, window)
            # shifted by one after each round of colours: no pair of both twice in 32 settings
            style = STYLES[(number + number // len(PALETTE)) % len(STYLES)]
            noun = "seed" if count == 1 else "seeds"
            lines += _banded(f"{label} ({count} {noun})", number, means, shaded, linestyle=style)
        axis_label = _label(name)
        if name.startswith(_RATIO):
            axis_label = f"share of calls, {axis_label}"
        panels.append(Panel(axis_label, lines, wanted=name, legend=name == metrics[0]))
    title = "Mean over seeds, 95 % interval" if shaded else "Mean over seeds"
    legend_height = 0.6 + 0.21 * len(histories)  # inches
    panel_height = 3.6 if len(metrics) == 1 else 2.6
    height = max(panel_height, legend_height / len(metrics))
    return _draw(panels, path, title, STEP, height)


def _means_over_seeds(
    seeds: Sequence[History], metric: str, window: int
) -> tuple[dict[float, Interval], int]:
    """The mean over seeds of a metric at each step, with its interval, and the number of seeds that
    logged it. A running mean is taken of each seed first.
    """
    values_by_step: defaultdict[float, list[float]] = defaultdict(list)
    count = 0
    for history in seeds:
        steps, values = _series(history, metric)
        if not len(steps):
            continue
        count += 1
        smooth = running_mean(values, window)
        for step, value in zip(steps.tolist(), smooth.tolist(), strict=True):
            values_by_step[step].append(value)
    means = {}
    for step in sorted(values_by_step):
        # even where all values are 0 or 1: over seeds they are numbers, not shares
        estimate = mean_ci(values_by_step[step], bounds=(-np.inf, np.inf))
        means[step] = _interval(msgspec.structs.asdict(estimate))
    return means, count


def lines(
    evaluations: Mapping[str, Mapping[float, Mapping[str, Any]]],
    metrics: Sequence[str],
    path: PathLike,
    varied: str,
    reference: Mapping[str, Any] | None = None,
) -> Path:
    """What became of settings as one quantity is varied: a panel for each metric, a line with its
    95 % band a setting.

    `evaluations` are by label and by the value of what was varied, as for `bars`; `varied` names
    it. `reference`, an evaluation before training, is a dotted line through every panel.
    """
    panels = []
    for metric in metrics:
        before = _measured(reference, metric) if reference else None
        curves: list[Curve] = []
        intervals = [before] if before else []
        for number, (label, line) in enumerate(evaluations.items()):
            points = {}
            for place in sorted(line):
                interval = _measured(line[place], metric)
                if interval:
                    points[place] = interval
            intervals += points.values()
            curves += _banded(label, number, points, marker="o")
        are_shares = all(0 <= bound <= 1 for bound in chain.from_iterable(intervals))
        panel = Panel(
            _label(metric),
            curves,
            limits=SHARES if are_shares else None,
            height=1,
            wanted=metric,
            level=(before[0], "before training") if before else None,
            legend=metric == metrics[0],
        )
        panels.append(panel)
    return _draw(panels, path, "After training, 95 % interval", varied, height=2.6)


def bars(
    evaluations: Mapping[str, Mapping[str, Any]],
    metrics: Sequence[str],
    path: PathLike,
    title: str = "Evaluation",
) -> Path:
    """Evaluations beside each other: a bar a metric and policy, with its 95 % interval and its
    value.

    `evaluations` are by label what `Evaluation.to_dict` gives (only `rows` is read). A metric that
    an evaluation has no value for leaves a gap.
    """
    figure, (axis,) = _canvas([1], height=4.2)
    width = 0.8 / max(1, len(evaluations))
    for number, (label, evaluation) in enumerate(evaluations.items()):
        # The bars of a metric stand beside each other, around the metric's place
        offset = (number - (len(evaluations) - 1) / 2) * width
        points = {}
        for place, metric in enumerate(metrics):
            interval = _measured(evaluation, metric)
            if interval:
                points[place + offset] = interval
        if not points:
            continue
        values = [value for value, _, _ in points.values()]
        colour = PALETTE[number % len(PALETTE)]
        axis.bar(list(points), values, 0.92 * width, color=colour, alpha=0.85, label=label)
        for bar_place, interval in points.items():
            _mark(axis, bar_place, interval, colour, with_value=len(evaluations) <= FEW)
    _require(axis.patches, " or ".join(metrics), path)
    labels = [name.replace("_", "\n") for name in metrics]
    # Side by side as many characters have room
    widths = [max(map(len, label.split("\n"))) for label in labels]
    aslant = {"rotation": 20, "ha": "right"} if sum(widths) > ROOM else {}
    axis.set_xticks(range(len(metrics)), labels, **aslant)
    axis.set_xlim(-0.6, len(metrics) - 0.4)
    axis.axhline(0, color=DARK, linewidth=0.8)
    axis.margins(y=0.12)
    _finish(axis, "value, 95 % interval", title)
    axis.grid(False, axis="x")
    return _save(figure, path)


def _mark(axis: Any, place: float, interval: Interval, colour: str, with_value: bool) -> None:
    """Draw the whisker and the point of a bar, and its value above them."""
    value, low, high = interval
    # around the interval's own middle: the value may lie outside, where it is of percentiles
    middle = (low + high) / 2
    half = (high - low) / 2
    axis.errorbar(place, middle, half, fmt="none", ecolor="#333333", capsize=3, elinewidth=1.2)
    # a bar of 0 has no height: its point says whose whisker it is
    axis.plot(
        [place],
        [value],
        marker="o",
        markersize=6,
        color=colour,
        markeredgecolor="#333333",
        clip_on=False,
        zorder=3,
    )
    if with_value:
        axis.annotate(
            f"{value:.2f}",
            (place, max(value, high, 0.0)),
            (0, 3),
            textcoords="offset points",
            ha="center",
            fontsize=9,
        )


def tool_ratios(calls: Mapping[str, Mapping[str, int]], path: PathLike) -> Path:
    """Which share of the calls went to each tool: a bar for each policy and set of questions, split
    by tool (Proof-of-Use, figure 4). Shares below 6 % carry no number, as there.

    `calls` are the numbers of calls by tool, by the bar's label. Bars without a call are left out.
    """
    used = {label: counts for label, counts in calls.items() if sum(counts.values())}
    _require(used, "a call of a tool", path)
    tools = list(dict.fromkeys(chain.from_iterable(used.values())))
    figure, (axis,) = _canvas([1], height=1.4 + 0.34 * len(used))
    totals = np.array([sum(counts.values()) for counts in used.values()])
    places = np.arange(len(used))
    starts = np.zeros(len(used))  # where the next tool's part of each bar begins
    for tool, colour in _coloured(tools).items():
        shares = np.array([counts.get(tool, 0) for counts in used.values()]) / totals
        axis.barh(places, shares, 0.8, left=starts, color=colour, label=tool)
        for place, share in enumerate(shares):
            if share >= SHOWN_SHARE:
                middle = starts[place] + share / 2
                percent = f"{share:.0%}"
                axis.text(
                    middle, place, percent, ha="center", va="center", color="white", fontsize=8
                )
        starts += shares
    axis.set_yticks(places, list(used))
    axis.invert_yaxis()
    _finish(axis, "", "Share of the calls by tool")
    axis.set_xlim(0, 1)
    axis.grid(False, axis="y")
    return _save(figure, path)


def heat_map(
    values: Sequence[Sequence[float | None]],
    names: tuple[Sequence[str], Sequence[str]],
    path: PathLike,
    title: str,
    label: str,
) -> Path:
    """A table of colours from 0 to 1, with each value in its cell; `names` are those of the rows
    and of the columns. Values beyond 1 have the colour of 1, a missing one has none.
    """
    rows, columns = names
    _require(rows and columns, "a value", path)
    cells = np.array(values, dtype=np.float64)  # `None` becomes NaN
    # names stand aslant below the columns, and beside the rows
    longest = max(map(len, [*rows, *columns]))
    figure, (axis,) = _canvas([1], height=1.2 + 0.08 * longest + 0.24 * len(rows))
    figure.set_figwidth(2.5 + 0.1 * longest + 0.62 * len(columns))
    image = axis.imshow(cells, cmap="YlOrRd", vmin=0, vmax=1, aspect="auto")
    for (row, column), value in np.ndenumerate(cells):
        if np.isnan(value):
            continue
        colour = "white" if value > DARK_FROM else "black"
        axis.text(column, row, f"{value:.2f}", ha="center", va="center", color=colour, fontsize=7)
    axis.set_xticks(range(len(columns)), columns, rotation=60, ha="right", fontsize=8)
    axis.set_yticks(range(len(rows)), rows, fontsize=8)
    axis.set_title(title, loc="left", fontweight="bold")
    figure.colorbar(image, ax=axis, label=label)
    return _save(figure, path)


def reliability(curves: Mapping[str, Sequence[Bin]], path: PathLike) -> Path:
    """Calibration of judges: the share of pairs that is true over the mean probability, a line a
    judge.

    A judge whose probabilities mean what they say lies on the diagonal; above it, it is too
    doubtful, below it too sure. A point's area grows with the pairs behind it. `curves` are
    `Agreement.curves`.
    """
    bins_by_judge = {judge: bins for judge, bins in curves.items() if bins}
    _require(bins_by_judge, "a judged and labelled pair", path)
    figure, (axis,) = _canvas([1], height=4.8)
    axis.plot([0, 1], [0, 1], color="#8C8C8C", linestyle=":", linewidth=1.2)
    for number, (judge, bins) in enumerate(bins_by_judge.items()):
        colour = PALETTE[number % len(PALETTE)]
        total = sum(bin_.n for bin_ in bins)
        means = [bin_.p for bin_ in bins]
        shares = [bin_.share for bin_ in bins]
        areas = [12 + 200 * bin_.n / total for bin_ in bins]
        axis.plot(means, shares, color=colour, linewidth=1.2, label=f"{judge} ({total} pairs)")
        axis.scatter(means, shares, areas, color=colour, alpha=0.6)
    _finish(axis, "share of pairs labelled true", "Calibration", SHARES)
    axis.set_xlim(*SHARES)
    axis.set_xlabel("mean probability that the judge gives")
    return _save(figure, path)


def running_mean(values: Floats, window: int) -> Floats:
    """Mean over `window` values around each one (an even window counts one more); over fewer at the
    ends.

    Centred, so that the curve does not lag behind what it summarises; NaN and infinities count
    nowhere.
    """
    half = max(1, window) // 2
    means = np.full(len(values), np.nan)
    for place in range(len(values)):
        around = values[max(0, place - half) : place + half + 1]
        finite = around[np.isfinite(around)]
        if len(finite):
            means[place] = finite.mean()
    return means


def _series(history: History, metric: str) -> tuple[Floats, Floats]:
    """Steps and values of a metric, rows without it left out; the last of a step logged twice
    (resumed) counts.
    """
    value_of_step = {}
    for row in history:
        if row.get(metric) is not None and row.get("step") is not None:
            value_of_step[row["step"]] = row[metric]
    steps = sorted(value_of_step)
    values = [value_of_step[step] for step in steps]
    return np.array(steps, dtype=np.float64), np.array(values, dtype=np.float64)


def _coloured(metrics: Sequence[str], first: int = 0) -> dict[str, str]:
    return {name: PALETTE[place % len(PALETTE)] for place, name in enumerate(metrics, start=first)}


def _lines(history: History, colours: Mapping[str, str], window: int | None = None) -> list[Curve]:
    """Each metric that was logged: a running mean, and light behind it what it smooths."""
    lines = []
    for metric, colour in colours.items():
        steps, values = _series(history, metric)
        if len(steps):
            mean = running_mean(values, window or max(1, len(steps) // 10))
            look = {
                "color": colour,
                "linewidth": 2.4 if metric == "reward" else 1.7,
                "label": _label(metric),
            }
            lines.append(Curve(steps, mean, look, raw=values))
    return lines


def _interval(row: Mapping[str, Any]) -> Interval:
    """A row's value and interval; without an interval its ends are the value."""
    value = row["value"]
    low = value if row.get("low") is None else row["low"]
    high = value if row.get("high") is None else row["high"]
    return value, low, high


def _measured(evaluation: Mapping[str, Any], metric: str) -> Interval | None:
    """The value of a metric with its interval; `None` where the evaluation has none."""
    row = evaluation["rows"].get(metric)
    if not row or row.get("value") is None:
        return None
    return _interval(row)


def _banded(
    label: str, number: int, line: Mapping[float, Interval], shaded: bool = True, **look: str
) -> list[Curve]:
    """A line with its interval as a band, in the colour of the setting of this number; none without
    a point.
    """
    if not line:
        return []
    values, low, high = zip(*line.values(), strict=True)
    style = {"color": PALETTE[number % len(PALETTE)], "label": label, "linewidth": 1.9, **look}
    band = (low, high) if shaded else None
    return [Curve(list(line), values, style, band)]


def _label(metric: str) -> str:
    if metric.endswith(_WEIGHT):
        return f"weight of {_label(metric.removesuffix(_WEIGHT))}"
    return _LABELS.get(metric, metric.removeprefix(_RATIO).removeprefix("parts/"))


def _draw(
    panels: Sequence[Panel], path: PathLike, title: str, below: str, height: float = 3.0
) -> Path:
    """Write panels below each other to a file; `below` is what they are drawn over."""
    for panel in panels:
        _require(panel.lines or not panel.wanted, panel.wanted, path)
    figure, axes = _canvas([panel.height for panel in panels], height)
    for axis, panel in zip(axes, panels, strict=True):
        if panel.level is not None:
            value, level_label = panel.level
            if level_label:
                axis.axhline(value, color=DARK, linestyle=":", label=level_label)
            else:
                axis.axhline(value, color=DARK, linewidth=0.8)
        for curve in panel.lines:
            _draw_curve(axis, curve)
        title_here = title if axis is axes[0] else ""
        _finish(axis, panel.label, title_here, panel.limits, panel.legend)
    axes[-1].set_xlabel(below)
    axes[-1].locator_params(axis="x", integer=below == STEP)  # there is no half step
    return _save(figure, path)


def _draw_curve(axis: Any, curve: Curve) -> None:
    """Draw a line over its band, and light behind it what it smooths."""
    colour = curve.look["color"]
    if curve.raw is not None:
        # points, where a line of one or two steps could not be seen
        marker = "." if len(curve.x) < 3 else ""
        axis.plot(curve.x, curve.raw, color=colour, alpha=0.22, linewidth=0.8, marker=marker)
    axis.plot(curve.x, curve.y, **curve.look)
    if curve.band is not None:
        low, high = curve.band
        axis.fill_between(curve.x, low, high, color=colour, alpha=0.15, linewidth=0)


def _canvas(heights: Sequence[float], height: float) -> tuple[Any, list[Any]]:
    """A figure of axes below each other, of these relative heights."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError("figures need matplotlib: pip install matplotlib") from error
    rows = len(heights)
    total_height = height if rows == 1 else 0.6 + height * rows
    figure = Figure(figsize=(9.0, total_height), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)  # pyplot would keep every figure, and is not safe in threads
    axes = figure.subplots(
        rows, 1, sharex=True, squeeze=False, gridspec_kw={"height_ratios": list(heights)}
    )
    return figure, list(axes[:, 0])


def _finish(
    axis: Any,
    ylabel: str,
    title: str,
    limits: tuple[float, float] | None = None,
    legend: bool = True,
) -> None:
    """Labels, grid and legend of an axis."""
    axis.set_ylabel(ylabel)
    axis.grid(True, color="#dddddd", linewidth=0.7)
    axis.set_axisbelow(True)
    axis.spines[["top", "right"]].set_visible(False)
    axis.set_title(title, loc="left", fontweight="bold")
    axis.set_ylim(*(limits or (None, None)))
    if legend and axis.get_legend_handles_labels()[0]:
        axis.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False, fontsize=9)


def _require(drawn: Any, requirement: str, path: PathLike) -> None:
    if not drawn:
        raise DataError(f"nothing to draw for {path}: no row holds {requirement}")


def _save(figure: Any, path: PathLike) -> Path:
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    return path
