"""Figures: written, labelled, and showing the numbers they were given."""

import sys
import threading
from functools import partial

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from faithful_search.analysis.figures import (
    bars,
    compare,
    lines,
    reliability,
    reward_curves,
    running_mean,
    stability_curves,
    tool_curves,
)
from faithful_search.errors import DataError
from faithful_search.measure.agreement.statistics import Bin


def history(steps=40, slope=1.0, **more):
    logged = {"parts/citation": 0.5, "parts/citation/abstained": 0.0, "parts/alpha": 0.9, "tools/entropy": 0.81}
    logged |= {"tools/ratio/local_search": 0.75, "tools/ratio/knowledge_graph": 0.25, **more}
    rows = [{"step": step, "reward": slope * step / steps, **logged} for step in range(1, steps + 1)]
    return [*rows, {"step": steps, "train_runtime": 1.0}]


@pytest.fixture
def drawn(monkeypatch):
    """The axes of the figures drawn, kept so that their content can be read."""
    kept, save = [], Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda figure, path: (kept.append(figure.axes), save(figure, path))[1])
    return kept


def legend(axis):
    return [text.get_text() for text in axis.get_legend().get_texts()]


def values(axis, number=0):
    return axis.lines[number].get_ydata().tolist()


def test_reward_curves_show_every_component_the_total_and_alpha(tmp_path, drawn):
    resumed = [{"step": 40, "reward": 9.0}, *history()]  # a step that was logged twice counts once
    path = reward_curves(resumed, tmp_path / "new" / "rewards.png")
    [(upper, lower)] = drawn
    assert Image.open(path).size[0] >= 900 and legend(upper) == ["total reward", "citation, R_cite"]
    assert values(upper) == [step / 40 for step in range(1, 41)] and values(lower) == [0.9] * 40
    assert upper.get_ylabel() and lower.get_xlabel() == "training step"


def test_weights_are_drawn_in_their_parts_colours_where_a_curriculum_moves_them(tmp_path, drawn):
    rows = {"reward": 1.0, "parts/exact_match": 1.0, "parts/exact_match/weight": 1.0, "parts/info_think": 0.5}
    moved, constant = (
        [{"step": step, **rows, "parts/info_think/weight": weight(step)} for step in (1, 2, 3)]
        for weight in (lambda step: 0.01 * step, lambda step: 0.05)
    )
    both = [{**row, "parts/alpha": 0.5} for row in moved]
    for run in (moved, constant, both):
        reward_curves(run, tmp_path / "rewards.png")
    (upper, lower), alone, three = drawn
    assert legend(upper) == ["total reward", "exact match", "information-think"]
    assert legend(lower) == ["weight of information-think"] and values(lower, 1) == pytest.approx([0.01, 0.02, 0.03])
    assert lower.lines[0].get_color() == upper.lines[-1].get_color() != upper.lines[2].get_color()
    assert len(alone) == 1 and [axis.get_ylabel() for axis in three] == ["reward", "alpha", "weight"]


def test_tool_curves_show_shares_and_entropy_or_how_often_a_single_tool_is_called(tmp_path, drawn):
    tool_curves(history(), tmp_path / "tools.png")
    single = [{"step": step, "tools/ratio/search": 1.0, "tools/calls": float(step)} for step in (1, 2, 3)]
    tool_curves(single, tmp_path / "tools.png")
    (upper, lower), (axis,) = drawn
    assert legend(upper) == ["local_search", "knowledge_graph"] and len(lower.lines) == 2
    assert upper.lines[0].get_color() == upper.lines[1].get_color() != upper.lines[3].get_color()
    assert values(axis) == [1.0, 2.0, 3.0] and axis.get_ylabel() == "calls per rollout"


def test_stability_has_a_panel_for_what_was_logged(tmp_path, drawn):
    rows = [{"step": step, "likelihood/right": -0.1 * step, "frac_reward_zero_std": 0.5} for step in (1, 2, 3)]
    stability_curves(rows, tmp_path / "stability.png")
    [(upper, lower)] = drawn
    assert legend(upper) == ["right answers' own tokens"] and legend(lower) == ["questions without variance of rewards"]
    assert values(upper) == pytest.approx([-0.1, -0.2, -0.3])


def test_compare_draws_the_mean_over_seeds_and_its_interval(tmp_path, drawn):
    runs = {"PoU": [history(slope=1.0), history(slope=3.0)], "one seed": [history()]}
    compare(runs, ["reward", "tools/entropy"], tmp_path / "compare.svg")
    [(axis, _)] = drawn
    top = max(y for x, y in axis.collections[0].get_paths()[0].vertices if x == 40)
    # of 1 and 3: s/√2 = 1, t of one degree of freedom
    assert values(axis)[-1] == pytest.approx(2.0) and top == pytest.approx(2.0 + 12.706, rel=1e-3)
    assert legend(axis) == ["PoU (2 seeds)", "one seed (1 seed)"]


@pytest.mark.parametrize(("many", "bands"), [(4, 4), (5, 0), (32, 0)])
def test_many_settings_are_told_apart_and_have_bands_up_to_four(tmp_path, drawn, many, bands):
    compare({str(number): [history(2)] * 2 for number in range(many)}, ["reward"], tmp_path / "many.png")
    [(axis,)] = drawn
    told = axis.get_legend().get_window_extent()
    assert told.y0 >= 0 and told.y1 <= axis.figure.bbox.height
    assert len({(line.get_color(), line.get_linestyle()) for line in axis.lines}) == len(axis.lines) == many
    assert len(axis.collections) == bands and ("interval" in axis.get_title(loc="left")) == bool(bands)


def test_bars_have_the_heights_and_intervals_given(tmp_path, drawn):
    row, outside = {"value": 0.5, "low": 0.25, "high": 0.625}, {"value": 1.0, "low": 0.5, "high": 0.75}
    evaluations = {"before": {"rows": {"f1": row}}, "after": {"rows": {"f1": outside, "exact_match": {"value": None}}}}
    bars(evaluations, ["f1", "exact_match"], tmp_path / "bars.png")
    [(axis,)] = drawn
    assert [patch.get_height() for patch in axis.patches] == [0.5, 1.0]
    errors = [axis.containers[place].lines[2][0].get_segments()[0][:, 1].tolist() for place in (1, 3)]
    assert errors == [[0.25, 0.625], [0.5, 0.75]]
    assert [tick.get_text() for tick in axis.get_xticklabels()] == ["f1", "exact\nmatch"]


def test_lines_have_a_panel_for_each_metric_and_leave_out_what_was_not_measured(tmp_path, drawn):
    row = {"follow_rate": {"value": 0.4, "low": 0.3, "high": 0.5}, "exact_match": {"value": None}}
    better = {"follow_rate": {"value": 0.8, "low": None, "high": None}, "exact_match": {"value": 0.6}}
    evaluations = {"ours": {0.4: {"rows": better}, 0.0: {"rows": row}}}
    lines(evaluations, ["follow_rate", "exact_match"], tmp_path / "lines.png", "stale", {"rows": row})
    [(upper, lower)] = drawn
    assert [list(line.get_ydata()) for line in upper.lines] == [[0.4, 0.4], [0.4, 0.8]]
    assert [list(line.get_xdata()) for line in lower.lines] == [[0.4]] and lower.get_xlabel() == "stale"


@pytest.mark.parametrize(("low", "high", "whole"), [(0.3, 0.5, True), (-0.5, -0.3, False), (3.5, 4.5, False)])
def test_lines_stay_in_their_panel(tmp_path, drawn, low, high, whole):
    rows = {"rows": {"calls": {"value": (low + high) / 2, "low": low, "high": high}}}
    lines({"ours": {0.1: rows, 0.5: rows}}, ["calls"], tmp_path / "lines.png", "stale")
    bottom, top = drawn[0][0].get_ylim()
    assert bottom < low and high < top and ((bottom, top) == (-0.03, 1.03)) == whole


def test_the_calibration_plot_shows_the_bins(tmp_path, drawn):
    reliability({"judge": (Bin(0.2, 0.1, 30), Bin(0.8, 0.6, 10)), "silent": ()}, tmp_path / "reliability.png")
    [(axis,)] = drawn
    assert list(axis.lines[1].get_ydata()) == [0.1, 0.6] and legend(axis) == ["judge (40 pairs)"]


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
    assert (tmp_path / "thread.png").stat().st_size > 10_000 and ("matplotlib.pyplot" in sys.modules) == before


def test_what_is_not_finite_leaves_the_rest_of_a_running_mean_as_it_is():
    rough = np.array([1.0, np.nan, 1e20, 1.0, 2.0, 3.0])
    assert running_mean(rough, 1)[[0, 2, 3, 4, 5]].tolist() == [1.0, 1e20, 1.0, 2.0, 3.0]
    assert running_mean(rough, 3)[[0, 4, 5]].tolist() == [1.0, 2.0, 2.5]
    assert np.isnan(running_mean(rough, 1)[1]) and running_mean(np.array([]), 3).tolist() == []
