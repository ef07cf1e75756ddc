"""The study's intervals: over questions and over seeds; and what is shown of one that was stopped."""

import json
import sys

import pytest
import study

from faithful_search.measure.evaluation import Evaluation
from faithful_search.measure.writing import write_metrics

QUESTIONS = [f"q{number}" for number in range(40)]


def run(values, calls=None):
    return Evaluation(
        rows={},
        questions=QUESTIONS,
        values={"exact_match": list(values)},
        tool_calls=calls or {"a": [1] * 40, "b": [1] * 40},
    )


HALF, ALL, NONE = run([0.0, 1.0] * 20), run([1.0] * 40), run([0.0] * 40)


def test_a_mean_over_seeds_and_questions():
    found = study.over_seeds([ALL, NONE], "exact_match")
    assert found.value == 0.5
    assert (found.low, found.high) == (0.0, 1.0)  # two seeds that differ this much say nothing
    alike = study.over_seeds([HALF, HALF], "exact_match")
    assert alike.value == 0.5 and 0.3 < alike.low < 0.5 < alike.high < 0.7


def test_a_difference_is_paired_by_question():
    """The same questions are drawn for both, so that a difference of the same size everywhere has no width."""
    better = run([min(1.0, value + 0.25) for value in [0.0, 0.5] * 20])
    found = study.over_seeds([better], "exact_match", [run([0.0, 0.5] * 20)])
    assert (found.value, found.low, found.high) == pytest.approx((0.25, 0.25, 0.25))
    assert study.over_seeds([HALF, HALF], "exact_match", [HALF]).value == 0.0


def test_rollouts_of_a_question_are_averaged_and_what_does_not_apply_is_left_out():
    values = [None if number % 2 else 1.0 for number in range(40)]
    assert study.over_seeds([run(values)], "exact_match").value == 1.0


def test_rows_that_are_no_means_are_computed_from_sums():
    even, lone = run([1.0] * 40), run([1.0] * 40, {"a": [2] * 40, "b": [0] * 40})
    assert study.over_seeds([even], "tool_entropy").value == pytest.approx(1.0)
    assert study.over_seeds([lone], "tool_entropy", [even]).value == pytest.approx(-1.0)


def test_a_study_that_was_stopped_is_shown_as_far_as_it_was_measured(tmp_path, monkeypatch):
    """Of one setting a seed is measured and another trained; of the reference nothing is there."""
    settings = {name: study.Setting("pou.py", "pou_tiny.yaml", seeds=2) for name in ("ours", "theirs")}
    curves = {f"{name}.png": ((name,), ("reward",)) for name in settings}
    shown = study.Study("memory", settings, {}, *[("exact_match",)] * 2, curves, ("cold start", "theirs"))
    monkeypatch.setattr(study, "STUDIES", {"pou": shown})
    monkeypatch.setattr(study, "do", None)  # nothing is trained
    for folder, found in {"cold_start": NONE, "ours_0": HALF}.items():
        write_metrics(tmp_path / folder / "test" / "metrics.json", {"script": {}, "policy": found})
    (tmp_path / "ours_1").mkdir()
    for folder in ("ours_0", "ours_1"):
        (tmp_path / folder / "history.json").write_text('[{"step": 1, "reward": 0.5}]')
    monkeypatch.setattr(sys, "argv", ["study.py", "pou", "--measured", "--out", str(tmp_path)])
    study.main()
    assert {path.name for path in tmp_path.glob("*.png")} == {"ours.png", "results.png"}
    tables = json.loads((tmp_path / "study.json").read_text())
    differences = tables.pop("Paired differences to: cold start")
    assert differences.keys() == {"ours"} and differences["ours"]["exact_match"]["value"] == 0.5
    assert tables.keys() == {"Values"} and tables["Values"].keys() == {"cold start", "ours"}


def test_every_setting_has_its_configuration():
    for named in study.STUDIES.values():
        for setting in named.settings.values():
            assert (study.CONFIGS / setting.config).exists() and (study.RECIPES / setting.recipe).exists()
