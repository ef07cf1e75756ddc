"""The table and the figure of starts with habits of several strengths."""

import json
import shutil

import pytest
import starts
from starts import MEASURED, Results, Start, folder_of, summarise

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
    summarise(both, ["further SFT"], tmp_path, Results(tmp_path / MEASURED))
    return tables["further SFT"]


def test_strengths_of_the_same_share_are_both_drawn(drawn):
    assert list(drawn) == pytest.approx([0.2, 0.2])
    assert [point["rows"]["exact_match"]["value"] for point in drawn.values()] == [0.35, 0.85]


def rows_of(folder, name):
    """The rows of both tables that begin with this."""
    lines = (folder / "starts.md").read_text().splitlines()
    return [line for line in lines if line.startswith(name)]


def test_changes_are_paired_with_their_starts(drawn, tmp_path):
    values, changes = rows_of(tmp_path, "| weak | further SFT")
    assert "+0.100 [" not in values
    assert changes.count("+0.100 [") == 1


def test_all_starts_have_a_row_together(drawn, tmp_path):
    values, _ = rows_of(tmp_path, "| all | further SFT")
    assert values.startswith("| all | further SFT | 2 |")


def test_the_first_arm_is_compared_with_the_others(tmp_path, monkeypatch):
    monkeypatch.setattr(starts, "lines", lambda *_: None)
    start = Start("weak", 0, tmp_path / "weak_0")
    measured(start.folder, right=5, first=4)
    measured(folder_of(start, "Proof-of-Use"), right=9, first=0)
    measured(folder_of(start, "further SFT"), right=7, first=0)
    summarise([start], ["Proof-of-Use", "further SFT"], tmp_path, Results(tmp_path / MEASURED))
    _, changes = rows_of(tmp_path, "| weak | further SFT")
    assert changes.split(" | ")[-1].startswith("+0.100 [")


@pytest.fixture
def kept(tmp_path):
    """The results of a start and an arm whose folders are no longer there."""
    start = Start("weak", 0, tmp_path / "weak_0")
    measured(start.folder, right=5, first=4)
    measured(folder_of(start, "further SFT"), right=7, first=0)
    Results(tmp_path / MEASURED).keep([start])
    for folder in (start.folder, folder_of(start, "further SFT")):
        shutil.rmtree(folder)
    return Results(tmp_path / MEASURED)


def test_results_outlive_their_folders(kept, tmp_path):
    start = Start("weak", 0, tmp_path / "weak_0")
    assert sum(kept.of(start.folder).values["exact_match"]) == 5
    assert kept.have(start, ["further SFT"])
    assert not kept.have(start, ["further SFT", "Proof-of-Use"])


def test_what_is_kept_stays_when_more_is_added(kept, tmp_path):
    second = Start("weak", 1, tmp_path / "weak_1")
    measured(second.folder, right=6, first=4)
    kept.keep([second])
    assert Results(tmp_path / MEASURED).have(Start("weak", 0, tmp_path / "weak_0"), [])


def test_a_new_measurement_replaces_what_was_kept(kept, tmp_path):
    start = Start("weak", 0, tmp_path / "weak_0")
    measured(start.folder, right=9, first=4)
    assert sum(kept.of(start.folder).values["exact_match"]) == 9
