"""Audits and evaluations side by side: what is paired with what, and what is said of the differences."""

import json
import re

import pytest
from agent_rows import PLACES, file_of, rollout
from served import invoked

from faithful_search.errors import ConfigError, DataError
from faithful_search.measure.audit import audit
from faithful_search.measure.comparison import changes, compare, open_sides
from faithful_search.measure.evaluation import Evaluation
from faithful_search.measure.report import page
from faithful_search.measure.stats import mean_ci
from faithful_search.measure.writing import write_metrics


def audited(folder, rows, **settings):
    folder.mkdir(exist_ok=True)
    return audit(file_of(folder / "a.jsonl", rows), folder / "audit", workers=1, **settings)


def right(number: int) -> dict:
    """The lighthouse stands where it did, and that is the gold answer."""
    return {**rollout(number), "answers": [PLACES[number % 4]]}


def test_audits_are_paired_by_question_and_each_is_compared_with_the_first(tmp_path):
    audited(tmp_path / "a", [rollout(n) for n in range(12)])  # three of twelve are right
    audited(
        tmp_path / "b", [right(n) for n in range(19, 3, -1)]
    )  # all; eight questions are shared, in another order
    first, second = open_sides(
        [tmp_path / "a" / "audit", tmp_path / "b" / "audit" / "scores.jsonl"]
    )
    found = compare([first, second])
    assert found.names == [f"{tmp_path}/a/audit", f"{tmp_path}/b/audit"] and found.shared == [8]
    assert [row.value for row in found.rows["exact_match_squad"]] == [0.25, 1.0]
    change = found.differences["exact_match_squad"][0]
    assert (change.value, change.n) == (0.75, 8) and change.low > 0
    [(title, lines)] = found.told().items()
    assert title.endswith("on 8 shared questions") and lines[0].startswith(
        "better: exact_match_squad (+0.750"
    )
    assert found.notes == []
    asked = changes([first, second], "exact_match_squad")
    assert len(asked) == 6 and asked[0].values == [0.0, 1.0]
    number = int(re.search(r"\d+", asked[0].question)[0])
    assert asked[0].rows == [[number + 1], [20 - number]]


def test_rows_without_a_question_are_paired_by_id_and_other_ways_of_measuring_are_named(tmp_path):
    bare = [
        {name: value for name, value in rollout(n).items() if name != "question"} for n in range(6)
    ]
    audited(tmp_path / "a", bare)
    audited(tmp_path / "b", [*bare, {"output": bare[0]["output"]}], how="pokee")
    found = compare(open_sides([tmp_path / "a" / "audit", tmp_path / "b" / "audit"]))
    assert found.shared == [6] and found.differences["f1_pokee"][0].value is None
    told = "\n".join(found.notes)
    assert (
        "1 rows without question and id are in no pair" in told
        and "how: 'squad' there, 'pokee' here" in told
    )


def test_what_shares_nothing_or_has_not_ended_is_refused(tmp_path):
    one, other = tmp_path / "a" / "audit", tmp_path / "b" / "audit"
    audited(tmp_path / "a", [rollout(0)])
    audited(tmp_path / "b", [rollout(1)])
    summary = other / "audit.json"
    for paths, message in (
        ([one, other], "shares no question with"),
        ([one], "name another"),
        ([tmp_path], "neither an audit's folder nor one with"),
        ([other], "has not ended"),
    ):
        if message == "has not ended":
            summary.write_text(json.dumps({**json.loads(summary.read_text()), "finished": False}))
        with pytest.raises((ConfigError, DataError), match=message):
            compare(open_sides(paths))


def evaluation(values: list[float | None]) -> Evaluation:
    kept = [value for value in values if value is not None]
    return Evaluation(
        {"em": mean_ci(kept)}, [f"q{n}" for n in range(len(values))], {"em": values}, {}
    )


def test_the_evaluations_of_runs_are_compared_and_one_can_be_named(tmp_path):
    zeros, ones = evaluation([0.0] * 6 + [None]), evaluation([1.0] * 7)
    for name, after in (("pou", ones), ("veritas", zeros)):
        write_metrics(
            tmp_path / name / "metrics.json",
            {"before": zeros, "after": after, "settings": {"rows": 1}},
        )
    assert [side.name for side in open_sides([tmp_path / "pou"])] == ["pou#before", "pou#after"]
    found = compare(open_sides([f"{tmp_path}/pou#after", f"{tmp_path}/veritas#after"]))
    assert found.names == ["pou#after", "veritas#after"]
    assert (found.differences["em"][0].value, found.differences["em"][0].n) == (-1.0, 6)
    with pytest.raises(DataError, match="no evaluation called 'none'"):
        open_sides([f"{tmp_path}/pou#none"])


def test_the_command_prints_a_table_and_links_the_page_to_the_reports(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, make in (("a", rollout), ("b", right), ("c", right)):
        found = audited(tmp_path / name, [make(n) for n in range(6)])
        page.write(
            tmp_path / name / "audit" / "report.html",
            found,
            tmp_path / name / "audit" / "scores.jsonl",
            [],
        )
    done = invoked("compare", "a/audit", "b/audit", "c/audit", "--out", "out")
    assert done.exit_code == 0, done.output
    assert "b/audit − a/audit" in done.output and "better: exact_match_squad (+0.667" in done.output
    assert json.loads((tmp_path / "out" / "comparison.json").read_text())["shared"] == [6, 6]
    text = (tmp_path / "out" / "comparison.html").read_text()
    assert '<a href="../b/audit/report.html#row-2">row 2</a>' in text
    assert "<script" not in text
