"""What training did to the rewards, to the use of tools and to the policy: one function per figure of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .figure import (
    ALPHA,
    DARK,
    PALETTE,
    RATIO,
    SHARES,
    STEP,
    STYLES,
    WEIGHT,
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

Histories = History | Mapping[str, History]
STABILITY = {
    "mean log p": ("likelihood/right",),
    "change of it": ("likelihood/moved",),
    "norm": ("grad_norm",),
    "share": ("groups/one_outcome", "frac_reward_zero_std", "behaviour/valid_format"),
}


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
        if any(len(set(series_of(own, name + WEIGHT)[1].tolist())) > 1 for own in runs.values())
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
        _Panel("share of tool calls", _coloured(tools), SHARES, 3, window),
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
        _Panel("rubric score", _coloured(["self_score", "rule_score"]), SHARES, 3, window),
        _Panel("difference", _coloured(["self_gap", "self_rmse"], 2), None, 2, window, zero=True),
    ]
    return _draw(_by_label(history), path, "The policy's own scores over training", panels, "self_score")


def _by_label(history: Histories) -> dict[str, History]:
    return dict(history) if isinstance(history, Mapping) else {"": history}


def _metrics(runs: Mapping[str, History]) -> list[str]:
    return list(dict.fromkeys(name for history in runs.values() for row in history for name in row))


def _coloured(metrics: Sequence[str], first: int = 0) -> dict[str, str]:
    return {name: PALETTE[place % len(PALETTE)] for place, name in enumerate(metrics, start=first)}


def _draw(runs: Mapping[str, History], path: PathLike, title: str, panels: Sequence[_Panel], wanted: str) -> Path:
    """Panels below each other, of which the first has to have a line; `wanted` names what it shows."""
    require(len(panels), wanted, path)
    figure, axes = panels_of([panel.height for panel in panels])
    for axis, panel in zip(axes, panels, strict=True):
        for style, (label, history) in zip(STYLES * len(runs), runs.items(), strict=False):
            for metric, colour in panel.colours.items():
                steps, values = series_of(history, metric)
                if not len(steps):
                    continue
                mean = running_mean(values, panel.window or max(1, len(steps) // 10))
                told = f"{label}: {label_of(metric)}" if label else label_of(metric)
                width = 2.4 if metric == "reward" else 1.7
                # points, where a line of one or two steps could not be seen
                axis.plot(steps, values, color=colour, alpha=0.22, linewidth=0.8, marker="." if len(steps) < 3 else "")
                axis.plot(steps, mean, color=colour, linestyle=style, linewidth=width, label=told)
        if panel.zero:
            axis.axhline(0, color=DARK, linewidth=0.8)
        finish(axis, panel.label, title=title if axis is axes[0] else "", limits=panel.limits)
    require(len(axes[0].lines), wanted, path)
    axes[-1].set_xlabel(STEP)
    return save(figure, path)
