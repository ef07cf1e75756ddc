"""How every figure looks: panels of lines below each other, and what is drawn in them.

Figures are drawn without pyplot's global state, so that they can be made in any thread, and are written as the file's
suffix says (png, svg, pdf).
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import ConfigError, DataError

PathLike = str | os.PathLike[str]
Floats = NDArray[np.float64]
Numbers = Sequence[float] | Floats
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C8C8C", "#000000")
"""Okabe and Ito's colours and a grey: apart for colour-blind readers and in print."""
STYLES = ("-", "--", "-.", ":")
SHARES = (-0.03, 1.03)
"""Limits of an axis of shares: wide enough that a line at 0 or 1 is not cut in half."""
DARK = "#444444"


class Line(NamedTuple):
    """Values over steps, or over what was varied; `look` are matplotlib's properties of the line.

    `band` are the ends of their intervals, `raw` what they smooth.
    """

    x: Numbers
    y: Numbers
    look: dict[str, Any]
    band: tuple[Numbers, Numbers] | None = None
    raw: Numbers | None = None


class Panel(NamedTuple):
    """Lines over one axis; `level` is a value that is marked across it, with the mark's label.

    `wanted` names what it shows: without it there is nothing to draw.
    """

    label: str
    lines: Sequence[Line]
    limits: tuple[float, float] | None = None
    height: float = 1
    wanted: str = ""
    level: tuple[float, str] | None = None
    legend: bool = True


def draw(panels: Sequence[Panel], path: PathLike, title: str, below: str, height: float = 3.0) -> Path:
    """Write panels below each other to a file; `below` is what they are drawn over.

    Raises:
        DataError: where a panel lacks what is `wanted` of it.
    """
    for panel in panels:
        require(panel.lines or not panel.wanted, panel.wanted, path)
    figure, axes = canvas([panel.height for panel in panels], height)
    for axis, panel in zip(axes, panels, strict=True):
        if panel.level is not None:
            value, told = panel.level
            axis.axhline(value, color=DARK, **({"linestyle": ":", "label": told} if told else {"linewidth": 0.8}))
        for line in panel.lines:
            if line.raw is not None:
                # points, where a line of one or two steps could not be seen
                faint = {"alpha": 0.22, "linewidth": 0.8, "marker": "." if len(line.x) < 3 else ""}
                axis.plot(line.x, line.raw, color=line.look["color"], **faint)
            axis.plot(line.x, line.y, **line.look)
            if line.band is not None:
                axis.fill_between(line.x, *line.band, color=line.look["color"], alpha=0.15, linewidth=0)
        finish(axis, panel.label, title if axis is axes[0] else "", panel.limits, panel.legend)
    axes[-1].set_xlabel(below)
    return save(figure, path)


def canvas(heights: Sequence[float], height: float) -> tuple[Any, list[Any]]:
    """A figure of axes below each other, of these relative heights."""
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
    """Labels, grid and legend of an axis."""
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


def require(found: Any, wanted: str, path: PathLike) -> None:
    """Raise `DataError` where nothing is found to draw."""
    if not found:
        raise DataError(f"nothing to draw for {path}: no row holds {wanted}")


def save(figure: Any, path: PathLike) -> Path:
    """Write the figure to a file, whose folder is made."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    return path
