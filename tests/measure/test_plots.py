"""Figures: written, labelled, and showing the numbers they were given."""

import sys
import threading
from functools import partial

import pytest
from matplotlib.figure import Figure
from PIL import Image

from faithful_search.analysis.figures import (
    bars,
    compare,
    heat_map,
    lines,
    reliability,
    reward_curves,
    self_preference,
    stability_curves,
    tool_curves,
)
from faithful_search.errors import DataError
from faithful_search.measure.agreement.statistics import Bin


def history(slope=1.0):
    logged = {
        "parts/citation": 0.5,
        "parts/citation/abstained": 0.0,
        "parts/alpha": 0.9,
        "tools/entropy": 0.81,
    }
    logged |= {"tools/ratio/local_search": 0.75, "tools/ratio/knowledge_graph": 0.25}
    rows = [{"step": step, "reward": slope * step / 40, **logged} for step in range(1, 41)]
    return [*rows, {"step": 40, "train_runtime": 1.0}]


@pytest.fixture
def drawn(monkeypatch):
    """The axes of the figures drawn, kept so that their content can be read; writing them takes ten
    times as long.
    """
    kept = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, path: kept.append(figure.axes))
    return kept


def legend(axis):
    return [text.get_text() for text in axis.get_legend().get_texts()]


def values(axis, number=0):
    return axis.lines[number].get_ydata().tolist()


def test_reward_curves_show_components_and_weights(tmp_path, drawn):
    resumed = [{"step": 40, "reward": 9.0}, *history()]  # a step that was logged twice counts once
    path = reward_curves(resumed, tmp_path / "rewards.png")
    rows = {
        "reward": 1.0,
        "parts/exact_match": 1.0,
        "parts/exact_match/weight": 1.0,
        "parts/info_think": 0.5,
    }
    reward_curves(
        [{"step": n, **rows, "parts/info_think/weight": 0.01 * n} for n in (1, 2, 3)], path
    )
    compare({"PoU": [history(slope=1.0), history(slope=3.0)], "one": [history()]}, ["reward"], path)
    [(upper, lower), (parts, weights), (means,)] = drawn
    assert legend(upper) == ["total reward", "citation, R_cite"]
    assert values(upper) == [step / 40 for step in range(1, 41)]
    assert values(lower) == [0.9] * 40
    assert legend(parts) == ["total reward", "exact match", "information-think"]
    assert legend(weights) == ["weight of information-think"]
    assert values(weights, 1) == pytest.approx([0.01, 0.02, 0.03])
    top = max(y for x, y in means.collections[0].get_paths()[0].vertices if x == 40)
    # of 1 and 3: s/√2 = 1, t of one degree of freedom
    assert values(means)[-1] == pytest.approx(2.0)
    assert top == pytest.approx(2.0 + 12.706, rel=1e-3)
    assert legend(means) == ["PoU (2 seeds)", "one (1 seed)"]


def test_curves_have_a_panel_for_what_was_logged(tmp_path, drawn):
    tool_curves(history(), tmp_path / "tools.png")
    tool_curves(
        [{"step": n, "tools/ratio/search": 1.0, "tools/calls": float(n)} for n in (1, 2)],
        tmp_path / "one.png",
    )
    stability_curves([{"step": n, "likelihood/right": -0.1 * n} for n in (1, 2)], tmp_path)
    self_preference(
        [{"step": n, "self_score": 0.6, "self_gap": 0.1} for n in (1, 2)], tmp_path / "self.svg"
    )
    (shares, entropy), (calls,), (likelihood,), (own, _) = drawn
    assert legend(shares) == ["local_search", "knowledge_graph"]
    assert len(entropy.lines) == 2
    assert [values(axis) for axis in (calls, likelihood, own)] == [
        [1.0, 2.0],
        [-0.1, -0.2],
        [0.6, 0.6],
    ]


def test_bars_lines_and_bins_have_the_values_and_intervals_given(tmp_path, drawn):
    row, outside = (
        {"value": 0.5, "low": 0.25, "high": 0.625},
        {"value": 1.0, "low": 0.5, "high": 0.75},
    )
    before, after = (
        {"rows": {"f1": own, "exact_match": {"value": None}}} for own in (row, outside)
    )
    bars({"before": before, "after": after}, ["f1", "exact_match"], tmp_path / "bars.png")
    lines({"ours": {0.4: after, 0.0: before}}, ["f1"], tmp_path / "lines.png", "stale", before)
    reliability(
        {"judge": (Bin(0.2, 0.1, 30), Bin(0.8, 0.6, 10)), "silent": ()},
        tmp_path / "reliability.png",
    )
    (axis,), (panel,), (bins,) = drawn
    assert [patch.get_height() for patch in axis.patches] == [0.5, 1.0]
    errors = [
        axis.containers[place].lines[2][0].get_segments()[0][:, 1].tolist() for place in (1, 3)
    ]
    assert errors == [[0.25, 0.625], [0.5, 0.75]]
    assert [list(line.get_ydata()) for line in panel.lines] == [[0.5, 0.5], [0.5, 1.0]]
    assert list(bins.lines[1].get_ydata()) == [0.1, 0.6]
    assert legend(bins) == ["judge (40 pairs)"]


def test_nothing_to_draw_is_said(tmp_path):
    for draw, lacking in (
        (partial(reward_curves, [{"step": 1, "loss": 0.5}]), "reward"),
        (partial(bars, {"a": {"rows": {}}}, ["f1"]), "f1"),
        (partial(reliability, {"silent": ()}), "a judged and labelled pair"),
    ):
        with pytest.raises(DataError, match=f"nothing to draw for .*: no row holds {lacking}"):
            draw(tmp_path / "none.png")


def test_figures_are_written_in_a_thread_without_pyplot(tmp_path):
    before, path = "matplotlib.pyplot" in sys.modules, tmp_path / "new" / "tools.png"
    thread = threading.Thread(target=tool_curves, args=(history(), path))
    thread.start()
    thread.join()
    assert Image.open(path).size[0] >= 900
    assert path.stat().st_size > 10_000
    assert ("matplotlib.pyplot" in sys.modules) == before


def test_a_heat_map_writes_each_value_in_its_cell(tmp_path, drawn):
    names = ["reads", "cheats"], ["one mix", "another"]
    heat_map([[0.5, None], [1.25, 0.0]], names, tmp_path / "map.png", "Paid", "share")
    [(axis, _)] = drawn
    cells = {text.get_position(): text.get_text() for text in axis.texts}
    assert cells == {(0, 0): "0.50", (0, 1): "1.25", (1, 1): "0.00"}
    assert [label.get_text() for label in axis.get_yticklabels()] == ["reads", "cheats"]


def test_a_heat_map_of_one_cell_with_a_long_name_is_drawn(tmp_path):
    path = heat_map([[0.5]], (["one"], ["a mix " * 8]), tmp_path / "map.png", "Paid", "share")
    with Image.open(path) as picture:
        assert picture.width > 300
