"""The table and the figure of starts with habits of several strengths."""

import json

import pytest
import starts
from starts import Start, folder_of, summarise

from faithful_search.measure.evaluation import Evaluation

QUESTIONS = [f"q{number}" for number in range(20)]


def measured(folder, right, first):
    """Write the evaluation of a policy that is right and answers first in so many questions."""
    values = {
        "exact_match": [float(number < right) for number in range(20)],
        "answer_first": [float(number >= 20 - first) for number in range(20)],
    }
    (folder / "test").mkdir(parents=True)
    metrics = {"script": {}, "policy": Evaluation({}, QUESTIONS, values, {}).to_dict()}
    (folder / "test" / "metrics.json").write_text(json.dumps(metrics))


@pytest.fixture
def drawn(tmp_path, monkeypatch):
    """What is drawn of two strengths whose starts answer first equally often."""
    tables = {}
    monkeypatch.setattr(starts, "lines", lambda drawable, *_: tables.update(drawable))
    both = [Start(strength, 0, tmp_path / f"{strength}_0") for strength in ("weak", "strong")]
    for start, right in zip(both, (5, 15), strict=True):
        measured(start.folder, right, first=4)
        measured(folder_of(start, "further SFT"), right + 2, first=0)
    summarise(both, ["further SFT"], tmp_path)
    return tables["further SFT"]


def test_strengths_of_the_same_share_are_both_drawn(drawn):
    assert list(drawn) == pytest.approx([0.2, 0.2])
    assert [point["rows"]["exact_match"]["value"] for point in drawn.values()] == [0.35, 0.85]


def test_the_table_has_changes_paired_with_their_starts(drawn, tmp_path):
    rows = (tmp_path / "starts.md").read_text().splitlines()
    [weak] = [row for row in rows if row.startswith("| weak | further SFT")]
    assert weak.count("0.100 [") == 1
    [all_starts] = [row for row in rows if row.startswith("| all | further SFT")]
    assert all_starts.startswith("| all | further SFT | 2 |")
