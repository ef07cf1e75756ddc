"""Suites side by side: by question within a set, over sets, and in the shape of the papers' tables."""

import json
import re
import shutil
import subprocess

import pytest
from served import invoked

from faithful_search.errors import ConfigError, DataError
from faithful_search.measure.evaluation import Evaluation
from faithful_search.measure.report import papers
from faithful_search.measure.sets import SuiteResults
from faithful_search.measure.stats import mean_ci
from faithful_search.measure.suite_comparison import compare_suites, open_suites
from faithful_search.measure.tuning import TunedOn, tuned_on
from faithful_search.measure.writing import write_metrics

SETS = ("nq", "triviaqa", "popqa", "hotpotqa", "2wikimultihopqa", "musique", "bamboogle")


def evaluation(share: float, questions: int = 20) -> Evaluation:
    """The first so many of the questions are right."""
    right = round(share * questions)
    values = [1.0] * right + [0.0] * (questions - right)
    names = [f"q{number}" for number in range(questions)]
    calls = {"web_search": [2] * questions, "local_search": [1] * questions}
    return Evaluation({"exact_match": mean_ci(values)}, names, {"exact_match": values}, calls)


def suite(folder, shares, **more):
    """An evaluation of a suite in a folder, with this share of right answers in each set."""
    results = SuiteResults({name: evaluation(share) for name, share in shares.items()})
    write_metrics(folder / "metrics.json", {"suite": "pou", **results.to_dict(), **more})
    return folder


@pytest.fixture
def folders(tmp_path):
    """Two agents on seven sets; the second one is better on each, by 0.05, 0.10, …"""
    before = dict.fromkeys(SETS, 0.4)
    after = {name: 0.45 + 0.05 * place for place, name in enumerate(SETS)}
    return suite(tmp_path / "rag", before), suite(tmp_path / "ours", after)


def test_the_macro_difference_is_the_mean_of_the_sets(folders):
    found = compare_suites(open_suites(folders))
    assert found.macro_differences["exact_match"][0].value == pytest.approx(0.2)


def test_wilcoxon_takes_one_difference_a_set(folders):
    test = compare_suites(open_suites(folders)).wilcoxon["exact_match"][0]
    assert (test.n, test.p) == (7, pytest.approx(2 / 128))


def test_few_sets_are_explained_once_below_the_table(tmp_path):
    pair = [
        suite(tmp_path / name, {"nq": 0.4, "popqa": right})
        for name, right in (("a", 0.5), ("b", 0.7))
    ]
    text = str(compare_suites(open_suites(pair)))
    assert text.count("its least value is n=1: 1.") == 1
    assert "p = 1 (n=1)" in text


def test_enough_sets_need_no_such_sentence(folders):
    assert "least value" not in str(compare_suites(open_suites(folders)))


def test_only_sets_of_all_sides_are_compared(folders, tmp_path):
    few = suite(tmp_path / "few", {"nq": 0.5, "other": 0.5})
    found = compare_suites(open_suites([*folders, few]))
    assert found.sets == ["nq"]
    assert "few also has other, which not all sides have." in found.notes


def test_suites_without_a_common_set_are_refused(folders, tmp_path):
    with pytest.raises(DataError, match="share no question set"):
        compare_suites(open_suites([folders[0], suite(tmp_path / "few", {"other": 0.5})]))


def test_a_suite_is_not_compared_with_a_single_set(folders, tmp_path):
    write_metrics(tmp_path / "single" / "metrics.json", {"tiny": evaluation(0.5)})
    with pytest.raises(ConfigError, match="compare suites with suites"):
        open_suites([folders[0], tmp_path / "single"])


def test_a_folder_that_is_not_there_is_named(folders, tmp_path):
    with pytest.raises(DataError, match="no such file or folder"):
        open_suites([folders[0], tmp_path / "nowhere"])


def test_an_evaluation_that_has_not_ended_is_named(folders, tmp_path):
    (tmp_path / "begun" / "unfinished").mkdir(parents=True)
    with pytest.raises(DataError, match=r"has not ended: .* --resume"):
        open_suites([folders[0], tmp_path / "begun"])


@pytest.mark.parametrize(
    ("places", "names"),
    [
        (("a/pou", "a/rag"), ["pou", "rag"]),
        (("a/run", "b/run"), ["a/run", "b/run"]),
        (("a/x/run", "b/x/run", "c/run"), ["a/x/run", "b/x/run", "NAME/c/run"]),
    ],
)
def test_names_are_lengthened_until_they_differ(tmp_path, places, names):
    folders = [suite(tmp_path / place, {"nq": 0.5}) for place in places]
    expected = [name.replace("NAME", tmp_path.name) for name in names]
    assert [side.name for side in open_suites(folders)] == expected


def test_a_suite_that_is_named_twice_is_refused(folders):
    with pytest.raises(ConfigError, match="rag is named twice"):
        open_suites([folders[0], folders[0] / "metrics.json"])


def test_a_difference_over_few_questions_has_no_star(tmp_path):
    few = [{"nq": evaluation(share, questions=5)} for share in (0.0, 1.0)]
    for name, sets in zip("ab", few, strict=True):
        write_metrics(tmp_path / name / "metrics.json", SuiteResults(sets).to_dict())
    found = compare_suites(open_suites([tmp_path / "a", tmp_path / "b"]))
    assert "*" not in str(found.table())


def test_the_legend_counts_the_questions_of_differences(folders):
    found = compare_suites(open_suites(folders))
    assert "Questions that rag and ours share: nq 20, triviaqa 20" in str(found)


def test_evaluations_of_one_set_are_no_suites(tmp_path):
    write_metrics(tmp_path / "metrics.json", {"tiny": evaluation(0.5)})
    assert open_suites([tmp_path]) is None


def test_a_side_that_was_tuned_on_other_questions_is_named(folders, tmp_path):
    tuned = suite(
        tmp_path / "tuned",
        dict.fromkeys(SETS, 0.5),
        tuned_on={"questions": "hotpotqa", "eval_questions": "hotpotqa", "eval_split": "dev"},
    )
    notes = compare_suites(open_suites([folders[0], tuned])).notes
    assert notes == ["tuned was trained on hotpotqa (train), and rag was not."]


def test_a_training_names_its_questions_in_its_settings():
    metrics = {"settings": {"questions": ["nq", "hotpotqa"]}}
    assert tuned_on(metrics) == [TunedOn("nq"), TunedOn("hotpotqa")]


def test_an_evaluation_on_what_was_trained_on_is_remarked(tmp_path):
    metrics = {
        "tiny": evaluation(0.5),
        "script": {"questions": "world", "split": "train"},
        "tuned_on": {"questions": "world"},
    }
    for name in ("a", "b"):
        write_metrics(tmp_path / name / "metrics.json", metrics)
    done = invoked("compare", tmp_path / "a", tmp_path / "b", "--out", tmp_path / "out")
    assert "a was trained on world (train), which it is measured on here" in done.output


# --- tables in the shape of the papers'


def written(folders, tmp_path, form, *flags):
    """What `compare` writes in a format."""
    done = invoked("compare", *folders, "--out", tmp_path / "out", "--to", form, *flags)
    assert done.exit_code == 0, done.output
    return (tmp_path / "out" / papers.FILES[form]).read_text("utf-8")


def test_a_method_is_a_row_and_a_set_a_column(folders, tmp_path):
    text = written(folders, tmp_path, "markdown")
    assert "| method | nq | triviaqa | popqa | hotpotqa |" in text.replace("\\", "")
    assert re.search(r"\| ours \|.*\*\*0\.600\*\* \[0\.5\d\d, 0\.6\d\d\] \|\n", text)


def test_the_papers_numbers_are_marked_as_theirs(folders, tmp_path):
    text = written(folders, tmp_path, "markdown", "--beside", "veritas")
    assert "| RAG † | 0.349 | 0.585 | 0.392 | 0.299 | 0.235 | 0.058 | 0.208 | 0.304 |" in text
    assert "not measured here" in text


def test_the_best_of_ours_is_bold_and_theirs_never(folders, tmp_path):
    text = written(folders, tmp_path, "latex", "--beside", "veritas")
    theirs = [line for line in text.splitlines() if "dagger" in line and "&" in line]
    assert not [line for line in theirs if "textbf" in line]
    assert r"ours & \textbf{0.450}" in text


def test_nothing_is_bold_where_all_are_the_same(folders, tmp_path):
    same = suite(tmp_path / "same", dict.fromkeys(SETS, 0.4))
    assert "| **0.4" not in written([folders[0], same], tmp_path, "markdown")


def test_latex_shows_names_as_they_are(folders, tmp_path):
    text = written(folders, tmp_path, "latex")
    assert r"\caption{exact\_match. $\pm$ is half of the 95 \% interval" in text


ODD_NAMES = (r"[50%] a_b & #1 $x^2$ ~{y} \z", "*† --judge <c>|é − λ…")


@pytest.mark.parametrize("beginning", ["[50%]", "*best"])
def test_a_row_cannot_take_the_line_break_before_it(folders, tmp_path, beginning):
    odd = suite(tmp_path / beginning, dict.fromkeys(SETS, 0.4))
    text = written([folders[0], odd], tmp_path, "latex")
    assert re.search(r"\\\\\n\{[*\[]\}", text)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="pdflatex is not installed")
def test_latex_is_compiled_whatever_names_hold(tmp_path):
    pair = [suite(tmp_path / name, dict.fromkeys(SETS, 0.4)) for name in ODD_NAMES]
    flags = ("--beside", "veritas", "--metric", "exact_match")
    table = written(pair, tmp_path, "latex", *flags)
    whole = (
        "\\documentclass{article}\n\\usepackage{booktabs}\n\\begin{document}\n%s\\end{document}\n"
    )
    (tmp_path / "whole.tex").write_text(whole.replace("%s", table), "utf-8")
    command = ["pdflatex", "-halt-on-error", "-interaction=nonstopmode", "whole.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert (tmp_path / "whole.pdf").exists()


def test_a_page_holds_the_tables_and_no_script(folders, tmp_path):
    text = written(folders, tmp_path, "html", "--beside", "veritas")
    assert "† VERITAS" in text
    assert "<script" not in text


def test_figures_are_drawn_by_set_and_of_tools(folders, tmp_path):
    done = invoked("compare", *folders, "--out", tmp_path, "--figures")
    assert done.exit_code == 0, done.output
    assert {path.name for path in tmp_path.glob("*.png")} == {"exact_match.png", "tools.png"}


def training(folder, metric):
    """The folder of a training of which this metric was logged."""
    run = {"before": evaluation(0.4), "after": evaluation(0.5)}
    write_metrics(folder / "metrics.json", run)
    rows = [{"step": step, metric: 1 / step} for step in (1, 2, 3)]
    (folder / "history.json").write_text(json.dumps(rows), "utf-8")
    return folder


@pytest.mark.parametrize(("metric", "drawn"), [("entropy", True), ("kl", True), ("loss", False)])
def test_entropy_and_kl_of_trainings_are_drawn(tmp_path, metric, drawn):
    runs = [training(tmp_path / name, metric) for name in ("first", "second")]
    sides = [f"{run}#after" for run in runs]
    done = invoked("compare", *sides, "--out", tmp_path / "out", "--figures")
    assert done.exit_code == 0, done.output
    assert (tmp_path / "out" / "training.png").exists() == drawn


def test_a_metric_that_was_not_measured_is_refused(folders):
    with pytest.raises(ConfigError, match="no result is called 'bleu'"):
        papers.tables(compare_suites(open_suites(folders)), ["bleu"])


def test_it_is_refused_before_anything_is_shown(folders, tmp_path):
    done = invoked("compare", *folders, "--metric", "bleu", "--out", tmp_path / "out")
    assert done.exit_code == 1
    assert done.output.startswith("error: no result is called 'bleu'")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("paper", ["pou", "veritas", "pokee", "self_eval"])
def test_every_paper_has_a_value_for_each_set(paper):
    data = json.loads(papers.published_file().read_bytes())
    for table in data[paper]["tables"]:
        assert {len(values) for values in table["rows"].values()} == {len(table["sets"])}
