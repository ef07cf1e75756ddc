"""Audits and evaluations side by side: what is paired with what, and what is said of the
differences.
"""

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


def test_audits_are_paired_with_the_first_by_question(tmp_path):
    audited(tmp_path / "a", [rollout(n) for n in range(12)])  # three of twelve are right
    audited(
        tmp_path / "b", [right(n) for n in range(19, 3, -1)]
    )  # all; eight questions are shared, in another order
    first, second = open_sides(
        [tmp_path / "a" / "audit", tmp_path / "b" / "audit" / "scores.jsonl"]
    )
    found = compare([first, second])
    assert found.names == ["a/audit", "b/audit"]
    assert found.shared == [8]
    assert [row.value for row in found.rows["exact_match_unicode"]] == [0.25, 1.0]
    change = found.differences["exact_match_unicode"][0]
    assert (change.value, change.n) == (0.75, 8)
    assert change.low > 0
    assert found.title(0).endswith("on 8 shared questions")
    assert found.clear(0)["better"]["exact_match_unicode"] == change
    assert found.notes == []
    asked = changes([first, second], "exact_match_unicode")
    assert len(asked) == 6
    assert asked[0].values == [0.0, 1.0]
    number = int(re.search(r"\d+", asked[0].question)[0])
    assert asked[0].rows == [[number + 1], [20 - number]]


def test_intervals_of_audits_and_their_differences_end_at_the_bounds_of_the_metric(tmp_path):
    golds = (["The town of Orvik", "Tarn"], ["Orvik", "The old town of Tarn by the sea"])
    for folder, answers in zip(("a", "b"), golds, strict=True):
        rows = [{**rollout(n), "answers": [answer]} for n, answer in enumerate(answers)]
        audited(tmp_path / folder, rows)
    found = compare(open_sides([tmp_path / "a" / "audit", tmp_path / "b" / "audit"]))
    for estimate in found.rows["f1_unicode"]:
        assert (estimate.low, estimate.high) == (0.0, 1.0)
    (change,) = found.differences["f1_unicode"]
    assert (change.low, change.high) == (-1.0, 1.0)


def test_rows_without_a_question_are_paired_by_id(tmp_path):
    bare = [
        {name: value for name, value in rollout(n).items() if name != "question"} for n in range(6)
    ]
    audited(tmp_path / "a", bare)
    audited(tmp_path / "b", [*bare, {"output": bare[0]["output"]}], how="pokee")
    found = compare(open_sides([tmp_path / "a" / "audit", tmp_path / "b" / "audit"]))
    assert found.shared == [6]
    assert found.differences["f1_pokee"][0].value is None
    told = "\n".join(found.notes)
    assert "1 rows without question and id are in no pair" in told
    assert "how: 'unicode' there, 'pokee' here" in told


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


def test_an_audit_that_is_named_twice_is_refused(tmp_path):
    write_metrics(tmp_path / "pou" / "metrics.json", {"after": evaluation([1.0])})
    with pytest.raises(ConfigError, match="pou is named twice"):
        open_sides([tmp_path / "pou", f"{tmp_path}/pou/metrics.json"])


def test_evaluations_of_runs_are_compared_or_one_is_named(tmp_path):
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
    with pytest.raises(
        DataError, match="no evaluation called 'none' in it; there are: before, after"
    ):
        open_sides([f"{tmp_path}/pou#none"])


@pytest.mark.parametrize("content", ["[1]", "[" * 100_000 + "]" * 100_000])
def test_a_file_that_holds_no_evaluations_is_refused(tmp_path, content):
    file = tmp_path / "metrics.json"
    file.write_text(content)
    with pytest.raises(DataError, match="no evaluations"):
        open_sides([str(file)])


def test_the_command_prints_a_table_and_links_reports(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, make in (("a", rollout), ("b", right), ("c", right)):
        found = audited(tmp_path / name, [make(n) for n in range(12)])
        page.write(
            tmp_path / name / "audit" / "report.html",
            found,
            tmp_path / name / "audit" / "scores.jsonl",
            [],
        )
    done = invoked("compare", "a/audit", "b/audit", "c/audit", "--out", "out")
    assert done.exit_code == 0, done.output
    assert "b/audit − a/audit" in done.output
    assert re.search(
        r"better:\n +exact_match_unicode +\+0\.750 .*is the answer a gold", done.output
    )
    assert json.loads((tmp_path / "out" / "comparison.json").read_text())["shared"] == [12, 12]
    text = (tmp_path / "out" / "comparison.html").read_text()
    assert '<a href="../b/audit/report.html#row-2">row 2</a>' in text
    assert "<script" not in text


def named(rows: dict[str, list[float]]) -> Evaluation:
    """An evaluation with these rows, over as many questions as each has values."""
    many = len(next(iter(rows.values())))
    estimates = {name: mean_ci(values) for name, values in rows.items()}
    return Evaluation(estimates, [f"q{n}" for n in range(many)], rows, {})


FALLING = ("decorated", "answer_first", "memory_share", "repeated_calls", "unused_evidence_lexical")
RISING = ("exact_match", "follow_rate", "valid_format", "no_on_blank", "answer_support_facts")
NEITHER = ("calls", "self_rubric", "a_row_of_my_own")


@pytest.fixture
def sides(tmp_path):
    """A run before and after training, in which the rows of `FALLING` fell and all others rose."""
    low, high = [0.0] * 8, [1.0] * 8
    before = {name: high if name in FALLING else low for name in FALLING + RISING + NEITHER}
    after = {name: low if name in FALLING else high for name in before}
    write_metrics(tmp_path / "metrics.json", {"before": named(before), "after": named(after)})
    return open_sides([f"{tmp_path}#before", f"{tmp_path}#after"])


@pytest.mark.parametrize("name", FALLING + RISING)
def test_what_gets_better_is_called_better(sides, name):
    assert name in compare(sides).clear(0)["better"]


@pytest.mark.parametrize("name", FALLING + RISING)
def test_the_other_way_round_it_is_called_worse(sides, name):
    assert name in compare(sides[::-1]).clear(0)["worse"]


@pytest.mark.parametrize("name", NEITHER)
def test_what_is_neither_good_nor_bad_is_called_higher(sides, name):
    assert name in compare(sides).clear(0)["higher"]


def test_the_table_has_an_arrow_for_the_better_way(sides):
    arrows = {row[0]: row[1] for row in compare(sides).table()}
    assert (arrows["decorated"], arrows["exact_match"], arrows["calls"]) == ("↓", "↑", "")


def test_how_many_would_be_marked_by_chance_is_a_whole_sentence(sides):
    sentence = "Of 13 differences about 1 would be marked by chance, if nothing differed."
    assert sentence in str(compare(sides))


def test_a_row_of_the_page_has_bars_of_sides_and_difference(sides, tmp_path):
    found = compare(sides)
    text = page.write_comparison(tmp_path / "comparison.html", found, sides).read_text("utf-8")
    assert text.count("<svg") == 3 * len(found.rows)


def test_a_clear_difference_has_a_line_and_a_sentence(sides, tmp_path):
    found = compare(sides)
    text = page.write_comparison(tmp_path / "comparison.html", found, sides).read_text("utf-8")
    assert "with the gold evidence blocked, which share of the answers" in text
    assert text.count("<dt>") == len(found.rows)
