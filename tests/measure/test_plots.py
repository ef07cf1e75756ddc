"""Figures: written, labelled, and showing the numbers they were given."""

import sys
import threading
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from faithful_search.analysis import bars, compare, lines, reliability, reward_curves, stability_curves, tool_curves
from faithful_search.analysis.figures import running_mean
from faithful_search.errors import DataError
from faithful_search.measure.agreement.statistics import Bin


def history(steps=40, slope=1.0):
    rows = [
        {
            "step": step,
            "reward": slope * step / steps,
            "parts/citation": 0.5,
            "parts/citation/abstained": 0.0,
            "parts/alpha": 0.9,
            "tools/ratio/local_search": 0.75,
            "tools/ratio/knowledge_graph": 0.25,
            "tools/entropy": 0.81,
        }
        for step in range(1, steps + 1)
    ]
    return [*rows, {"step": steps, "train_runtime": 1.0}]


@pytest.fixture
def figures(monkeypatch):
    """The figures drawn, kept so that their content can be read."""
    kept = []
    save = Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda figure, path: (kept.append(figure), save(figure, path))[1])
    return kept


def legend(axis):
    return [text.get_text() for text in axis.get_legend().get_texts()]


def test_reward_curves_show_every_component_the_total_and_alpha(tmp_path, figures):
    resumed = [{"step": 40, "reward": 9.0}, *history()]  # a step that was logged twice counts once
    path = reward_curves(resumed, tmp_path / "new" / "rewards.png")
    upper, lower = figures[0].axes
    assert Image.open(path).size[0] >= 900
    assert legend(upper) == ["total reward", "citation, R_cite"]
    assert upper.lines[0].get_ydata().tolist() == [step / 40 for step in range(1, 41)]
    assert lower.lines[0].get_ydata().tolist() == [0.9] * 40
    assert upper.get_ylabel() and lower.get_xlabel() == "training step"


def test_tool_curves_show_shares_and_entropy(tmp_path, figures):
    tool_curves(history(), tmp_path / "tools.png")
    upper, lower = figures[0].axes
    assert legend(upper) == ["local_search", "knowledge_graph"] and len(lower.lines) == 2
    assert upper.lines[0].get_color() == upper.lines[1].get_color() != upper.lines[3].get_color()


def test_stability_has_a_panel_for_what_was_logged(tmp_path, figures):
    rows = [{"step": step, "likelihood/right": -0.1 * step, "frac_reward_zero_std": 0.5} for step in (1, 2, 3)]
    stability_curves(rows, tmp_path / "stability.png")
    upper, lower = figures[0].axes
    assert legend(upper) == ["right answers' own tokens"] and legend(lower) == ["questions without variance of rewards"]
    assert upper.lines[0].get_ydata().tolist() == pytest.approx([-0.1, -0.2, -0.3])


def test_compare_draws_the_mean_over_seeds_and_its_interval(tmp_path, figures):
    runs = {"PoU": [history(slope=1.0), history(slope=3.0)], "one seed": [history()]}
    compare(runs, ["reward"], tmp_path / "compare.svg")
    (axis,) = figures[0].axes
    assert axis.lines[0].get_ydata()[-1] == pytest.approx(2.0)
    top = max(y for x, y in axis.collections[0].get_paths()[0].vertices if x == 40)
    assert top == pytest.approx(2.0 + 12.706, rel=1e-3)  # of 1 and 3: s/√2 = 1, t of one degree of freedom
    assert legend(axis) == ["PoU (2 seeds)", "one seed (1 seed)"]
    compare(runs, ["reward", "tools/entropy"], tmp_path / "panels.png")
    assert len(figures[1].axes) == 2


@pytest.mark.parametrize(("many", "bands"), [(4, 4), (5, 0), (32, 0)])
def test_many_settings_are_told_apart_and_have_bands_up_to_four(tmp_path, monkeypatch, many, bands):
    drawn = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, path: drawn.append(figure))
    compare({str(number): [history(2)] * 2 for number in range(many)}, ["reward"], tmp_path / "many.png")
    (axis,) = drawn[0].axes
    drawn[0].draw_without_rendering()
    told = axis.get_legend().get_window_extent()
    assert told.y0 >= 0 and told.y1 <= drawn[0].bbox.height
    assert len({(line.get_color(), line.get_linestyle()) for line in axis.lines}) == len(axis.lines) == many
    assert len(axis.collections) == bands and ("interval" in axis.get_title(loc="left")) == bool(bands)


def test_bars_have_the_heights_and_intervals_given(tmp_path, figures):
    row = {"value": 0.5, "low": 0.25, "high": 0.625}
    evaluations = {"before": {"rows": {"f1": row}}, "after": {"rows": {"f1": row, "exact_match": {"value": None}}}}
    bars(evaluations, ["f1", "exact_match"], tmp_path / "bars.png")
    (axis,) = figures[0].axes
    assert [patch.get_height() for patch in axis.patches] == [0.5, 0.5]
    error = axis.containers[1].lines[2][0].get_segments()[0]
    assert error[:, 1].tolist() == [0.25, 0.625]
    assert [tick.get_text() for tick in axis.get_xticklabels()] == ["f1", "exact\nmatch"]


def test_a_value_outside_its_interval_is_drawn(tmp_path, figures):
    bars({"a": {"rows": {"f1": {"value": 1.0, "low": 0.5, "high": 0.75}}}}, ["f1"], tmp_path / "bars.png")
    error = figures[0].axes[0].containers[1].lines[2][0].get_segments()[0]
    assert error[:, 1].tolist() == [0.5, 0.75]


@pytest.mark.parametrize(
    ("draw", "lacking"),
    [
        (partial(reward_curves, [{"step": 1, "loss": 0.5}]), "reward"),
        (partial(tool_curves, [{"step": 1, "loss": 0.5}]), "tools/ratio"),
        (partial(compare, {"a": [history()]}, ["kl"]), "kl"),
        (partial(bars, {"a": {"rows": {}}}, ["f1"]), "f1"),
        (partial(reliability, {"silent": ()}), "a judged and labelled pair"),
    ],
)
def test_nothing_to_draw_is_said(tmp_path, draw, lacking):
    with pytest.raises(DataError, match=f"nothing to draw for .*: no row holds {lacking}"):
        draw(tmp_path / "none.png")
    assert not (tmp_path / "none.png").exists()


def test_figures_leave_pyplot_alone_and_work_in_a_thread(tmp_path):
    before = "matplotlib.pyplot" in sys.modules
    thread = threading.Thread(target=tool_curves, args=(history(), tmp_path / "thread.png"))
    thread.start()
    thread.join()
    assert Path(tmp_path / "thread.png").stat().st_size > 10_000
    assert ("matplotlib.pyplot" in sys.modules) == before


def moved(weight):
    rows = {"reward": 1.0, "parts/exact_match": 1.0, "parts/exact_match/weight": 1.0, "parts/info_think": 0.5}
    return [{"step": step, **rows, "parts/info_think/weight": weight(step)} for step in (1, 2, 3)]


def test_weights_that_a_curriculum_moves_are_drawn_in_their_parts_colours(tmp_path, figures):
    reward_curves(moved(lambda step: 0.01 * step), tmp_path / "curriculum.png")
    upper, lower = figures[0].axes
    assert legend(upper) == ["total reward", "exact match", "information-think"]
    assert legend(lower) == ["weight of information-think"]
    assert lower.lines[1].get_ydata().tolist() == pytest.approx([0.01, 0.02, 0.03])
    assert lower.lines[0].get_color() == upper.lines[-1].get_color() != upper.lines[2].get_color()
    assert lower.get_xlabel() == "training step" and not upper.get_xlabel()


def test_weights_that_stay_are_not_drawn_and_alpha_has_its_own_panel(tmp_path, figures):
    reward_curves(moved(lambda step: 0.05), tmp_path / "constant.png")
    adaptive = [{**row, "parts/alpha": 0.5} for row in moved(lambda step: 0.01 * step)]
    reward_curves(adaptive, tmp_path / "both.png")
    assert len(figures[0].axes) == 1 and figures[0].axes[0].get_xlabel() == "training step"
    assert [axis.get_ylabel() for axis in figures[1].axes] == ["reward", "alpha", "weight"]


def test_a_single_tool_is_shown_by_how_often_it_is_called(tmp_path, figures):
    rows = [{"step": step, "tools/ratio/search": 1.0, "tools/calls": float(step)} for step in (1, 2, 3)]
    tool_curves(rows, tmp_path / "tools.png")
    (axis,) = figures[0].axes
    assert axis.lines[0].get_ydata().tolist() == [1.0, 2.0, 3.0] and axis.get_ylabel() == "calls per rollout"


def test_lines_have_a_panel_for_each_metric_and_leave_out_what_was_not_measured(tmp_path, figures):
    row = {"follow_rate": {"value": 0.4, "low": 0.3, "high": 0.5}, "exact_match": {"value": None}}
    better = {"follow_rate": {"value": 0.8, "low": None, "high": None}, "exact_match": {"value": 0.6}}
    evaluations = {"ours": {0.4: {"rows": better}, 0.0: {"rows": row}}}
    lines(evaluations, ["follow_rate", "exact_match"], tmp_path / "lines.png", "stale", {"rows": row})
    upper, lower = figures[-1].axes
    assert [list(line.get_ydata()) for line in upper.lines] == [[0.4, 0.4], [0.4, 0.8]]
    assert [list(line.get_xdata()) for line in lower.lines] == [[0.4]]
    assert lower.get_xlabel() == "stale"


@pytest.mark.parametrize(("low", "high", "whole"), [(0.3, 0.5, True), (-0.5, -0.3, False), (3.5, 4.5, False)])
def test_lines_stay_in_their_panel(tmp_path, figures, low, high, whole):
    rows = {"rows": {"calls": {"value": (low + high) / 2, "low": low, "high": high}}}
    lines({"ours": {0.1: rows, 0.5: rows}}, ["calls"], tmp_path / "lines.png", "stale")
    bottom, top = figures[0].axes[0].get_ylim()
    assert bottom < low and high < top and ((bottom, top) == (-0.03, 1.03)) == whole


def test_what_is_not_finite_leaves_the_rest_of_a_running_mean_as_it_is():
    values = np.array([1.0, np.nan, 1e20, 1.0, 2.0, 3.0])
    assert running_mean(values, 1)[[0, 2, 3, 4, 5]].tolist() == [1.0, 1e20, 1.0, 2.0, 3.0]
    assert running_mean(values, 3)[[0, 4, 5]].tolist() == [1.0, 2.0, 2.5]
    assert np.isnan(running_mean(values, 1)[1]) and running_mean(np.array([]), 3).tolist() == []


def test_the_calibration_plot_shows_the_bins(tmp_path, figures):
    curves = {"judge": (Bin(0.2, 0.1, 30), Bin(0.8, 0.6, 10)), "silent": ()}
    assert reliability(curves, tmp_path / "reliability.png").stat().st_size > 1000
    (axis,) = figures[0].axes
    assert list(axis.lines[1].get_ydata()) == [0.1, 0.6] and legend(axis) == ["judge (40 pairs)"]
