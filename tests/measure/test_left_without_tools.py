"""What a training leaves behind whose policy has no tool."""

import pytest

from faithful_search.analysis.results import leave
from faithful_search.measure.evaluation import Record


@pytest.fixture
def folder(tmp_path):
    record = Record(
        folder=str(tmp_path),
        model="m",
        dialect="r1",
        tools=[],
        questions="world",
        settings={},
        steps=2,
        history=[{"step": 1, "reward": 0.1, "grad_norm": 0.5, "entropy": 0.5}],
    )
    leave(record, "recipes/pou.py", [])
    return tmp_path


def test_its_rewards_are_drawn(folder):
    assert (folder / "rewards.png").exists()


def test_no_figure_of_tools_is_drawn(folder):
    assert not (folder / "tools.png").exists()


def test_its_card_shows_no_figure_of_tools(folder):
    assert "tools.png" not in (folder / "README.md").read_text(encoding="utf-8")
