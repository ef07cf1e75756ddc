"""What lets a build fail: requirements, regressions, and that neither passes in silence."""

import json
import re
import shlex
import subprocess
import sys

import pytest
import yaml
from agent_rows import PLACES, file_of, rollout
from paths import ROOT
from served import invoked

from faithful_search.errors import ConfigError
from faithful_search.measure.audit import audit
from faithful_search.measure.comparison import compare, open_sides
from faithful_search.measure.gates import Requirement, check, regressions, unmet
from faithful_search.measure.stats import NOTHING, Estimate
from faithful_search.measure.summary import Audit

ROWS = {
    "answer_support_lexical": Estimate(0.71, 0.64, 0.78, 40, 0.03),
    "citation_returned": Estimate(None, None, None, 0, None, not_applicable=40),
    "citation_coverage": Estimate(None, None, None, 9, None, abstained=7),
    "exact_match_unicode": Estimate(0.9899999, 0.9, 1.0, 40, 0.01),
    "calls": Estimate(2.0, 1.5, 2.5, 40, 0.2),
}


def right(number):
    """The rollout, whose answer is the gold answer."""
    return {**rollout(number), "answers": [PLACES[number % 4]]}


def wrong(number):
    return {**rollout(number), "answers": ["nowhere"]}


def cites(number, wrongly=False):
    """An agent's messages about a lighthouse, with a citation of what it was shown, or of nothing."""
    address = f"https://lights.example/{number}"
    result = {"results": [{"url": address, "content": f"Lighthouse {number} stands in Tarn."}]}
    call = {"name": "search", "arguments": json.dumps({"query": f"lighthouse {number}"})}
    cited = "https://nowhere.example" if wrongly else address
    messages = [
        {"role": "user", "content": f"Where is lighthouse {number}?"},
        {"role": "assistant", "tool_calls": [{"id": "c", "type": "function", "function": call}]},
        {"role": "tool", "tool_call_id": "c", "content": json.dumps(result)},
        {"role": "assistant", "content": f"Lighthouse {number} stands in Tarn [source]({cited})."},
    ]
    return {"messages": messages}


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def audits(folder, kept, new, **settings):
    """Two audits of these rows, as sides."""
    for name, rows in {"kept": kept, "new": new}.items():
        source = file_of(folder / f"{name}.jsonl", rows)
        audit(source, folder / name, workers=1, **settings)
    return compare(open_sides([folder / "kept", folder / "new"]))


@pytest.mark.parametrize(
    ("text", "requirement"),
    [
        ("answer_support >= 0.8", Requirement("answer_support", ">=", 0.8)),
        (" answer_support>=0.8 ", Requirement("answer_support", ">=", 0.8)),
        ("calls<3", Requirement("calls", "<", 3.0)),
        ("calls == 2", Requirement("calls", "==", 2.0)),
        ("declined <= .1", Requirement("declined", "<=", 0.1)),
        ("f1 > 1e-3", Requirement("f1", ">", 0.001)),
    ],
)
def test_a_requirement_is_a_result_a_sign_and_a_number(text, requirement):
    assert Requirement.parse(text) == requirement


@pytest.mark.parametrize(
    "text",
    [
        "",
        "answer_support",
        "answer_support 0.8",
        "answer_support = 0.8",
        "answer_support != 0.8",
        "answer_support => 0.8",
        ">= 0.8",
        "0.8 <= answer_support",
        "a >= 0.8, b >= 0.9",
        "a >= 0.8 or b >= 0.8",
        "a >= 80%",
        "a >= nan",
        "a <= inf",
        "a >= high",
    ],
)
def test_anything_else_is_refused_with_an_example(text):
    with pytest.raises(ConfigError, match=r"require .*as .*0\.8"):
        Requirement.parse(text)


@pytest.mark.parametrize(
    ("text", "value", "met"),
    [
        ("a >= 0.8", 0.8, True),
        ("a >= 0.8", 0.79, False),
        ("a > 0.8", 0.8, False),
        ("a > 0.8", 0.81, True),
        ("a <= 0.8", 0.8, True),
        ("a < 0.8", 0.8, False),
        ("a == 1", 1.0, True),
        ("a == 1", 0.999, False),
        ("a >= 0.3", 0.1 + 0.1 + 0.1 - 1e-16, True),
        ("a > 0.3", 0.1 + 0.1 + 0.1, False),
        ("a == 0.3", 0.1 + 0.1 + 0.1, True),
    ],
)
def test_a_value_meets_it_up_to_rounding(text, value, met):
    assert Requirement.parse(text).met(value) is met


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            "answer_support_lexical >= 0.8",
            "answer_support_lexical is 0.710 [0.640, 0.780] (n=40), "
            "required: answer_support_lexical >= 0.8",
        ),
        (
            "answer_support >= 0.8",
            "answer_support_lexical is 0.710 [0.640, 0.780] (n=40), "
            "required: answer_support >= 0.8",
        ),
        (
            "citation_returned >= 0",
            "citation_returned has no value (it applies to none of 40 rows), "
            "required: citation_returned >= 0",
        ),
        (
            "citation_coverage >= 0",
            "citation_coverage has no value (the judge gave no verdict on 7 rows), "
            "required: citation_coverage >= 0",
        ),
        (
            "exact_match >= 0.99",
            "exact_match_unicode is 0.990 [0.900, 1.000], exactly 0.9899999 (n=40), "
            "required: exact_match >= 0.99",
        ),
    ],
)
def test_what_is_not_met_is_a_line_with_interval_and_n(text, line):
    assert unmet([text], ROWS) == [line]


def test_requirements_that_are_met_have_no_line():
    assert unmet(["answer_support >= 0.7", "calls <= 2", "exact_match < 1"], ROWS) == []


def test_a_result_that_was_never_measured_meets_nothing():
    [line] = unmet(["declined >= 0"], {"declined": NOTHING})
    assert "declined has no value (it was not measured)" in line


def test_an_unknown_result_is_refused_with_those_there_are():
    with pytest.raises(
        ConfigError, match=r"citation_support.* is not measured; there are: answer_"
    ):
        unmet(["citation_support >= 0.5"], ROWS)


def test_a_name_of_two_results_is_refused():
    rows = dict.fromkeys(("f1_squad", "f1_pokee"), ROWS["calls"])
    with pytest.raises(ConfigError, match="f1, which is required, can be f1_squad or f1_pokee"):
        unmet(["f1 >= 0.5"], rows)


@pytest.mark.parametrize("text", ["a <= 80", "a >= 80", "a > -1", "a > 1", "a < 0", "a >1.0"])
def test_a_bound_that_no_value_reaches_is_refused(text):
    with pytest.raises(ConfigError, match="a is always between 0 and 1"):
        check([text], {"a": (0.0, 1.0)})


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a >= 0", 0.0),
        ("a == 0", 0.0),
        ("a <= 0", 0.0),
        ("a >= 1", 1.0),
        ("a == 1", 1.0),
        ("a < 1", 0.0),
        ("a > 0", 1.0),
    ],
)
def test_a_bound_at_the_end_of_the_range_is_accepted_and_a_value_meets_it(text, value):
    check([text], {"a": (0.0, 1.0)})
    assert Requirement.parse(text).met(value)


def test_an_audit_says_itself_what_is_not_met(tmp_path):
    measured = audit(file_of(tmp_path / "a.jsonl", map(right, range(8))), tmp_path / "a", workers=1)
    assert measured.unmet("exact_match == 1", "answered == 1", "calls <= 1") == []


def test_an_audit_that_was_read_back_says_the_same(tmp_path):
    source = file_of(tmp_path / "a.jsonl", map(wrong, range(8)))
    measured = audit(source, tmp_path / "a", workers=1)
    kept = Audit.from_dict(json.loads((tmp_path / "a" / "audit.json").read_text()))
    assert kept.unmet("exact_match > 0") == measured.unmet("exact_match > 0") != []


def test_the_evenness_of_tools_can_be_required(tmp_path):
    source = file_of(tmp_path / "a.jsonl", map(right, range(8)))
    assert audit(source, tmp_path / "a", workers=1).unmet("tool_entropy >= 0.5") != []


def test_the_command_fails_with_a_line_for_each(here):
    file_of(here / "a.jsonl", map(wrong, range(8)))
    required = ["--require", "exact_match >= 0.5", "--require", "answered >= 0.5"]
    done = invoked("audit", "a.jsonl", "--no-report", *required)
    assert done.exit_code == 4
    assert done.stderr == (
        "exact_match_unicode is 0.000 [0.000, 0.324] (n=8), required: exact_match >= 0.5\n"
    )


def test_the_command_ends_well_where_all_is_met(here):
    file_of(here / "a.jsonl", map(right, range(8)))
    done = invoked("audit", "a.jsonl", "--no-report", "--require", "exact_match >= 0.5")
    assert done.exit_code == 0
    assert "1 requirement is met" in done.stdout


def test_requirements_that_are_met_leave_unread_rows_told(here):
    file_of(here / "a.jsonl", [*map(right, range(8)), "{half"])
    done = invoked("audit", "a.jsonl", "--no-report", "--require", "exact_match >= 0.5")
    assert done.exit_code == 3
    assert "rows that could not be read: 1" in done.stderr


def test_unread_rows_do_not_hide_what_is_not_met(here):
    file_of(here / "a.jsonl", [*map(wrong, range(8)), "{half"])
    done = invoked("audit", "a.jsonl", "--no-report", "--require", "exact_match >= 0.5")
    assert done.exit_code == 4
    assert "rows that could not be read: 1" in done.stderr


def test_a_result_without_a_value_fails_the_command(here):
    file_of(here / "a.jsonl", map(right, range(8)))
    done = invoked("audit", "a.jsonl", "--no-report", "--require", "citation_returned >= 0")
    assert done.exit_code == 4
    assert "citation_returned has no value (it applies to none of 8 rows)" in done.stderr


@pytest.mark.parametrize(
    ("required", "metrics", "told"),
    [
        ("faithfulness >= 0.5", "", "answer_support_lexical, answered, calls"),
        ("info_think_faithfulness >= 0.5", "", "info_think_lexical"),
        ("answer_support >= 0.5", "tool_use", "there are: answered, calls, repeated_calls"),
        ("answer_support >= 80", "", "always between 0 and 1"),
        ("calls >= -1", "", "always at least 0"),
    ],
)
def test_what_makes_no_sense_is_refused_before_the_audit(here, required, metrics, told):
    file_of(here / "a.jsonl", map(right, range(8)))
    named = ["--metrics", metrics] if metrics else []
    done = invoked("audit", "a.jsonl", "--require", required, *named)
    assert done.exit_code == 1
    assert told in done.stderr
    assert not (here / "a-audit").exists()


def test_a_requirement_that_is_none_is_wrong_usage(here):
    done = invoked("audit", "a.jsonl", "--require", "answer_support: 0.8")
    assert done.exit_code == 2
    assert "--require takes a result" in done.stderr


def test_other_requirements_go_on_with_the_same_audit(here):
    file_of(here / "a.jsonl", map(wrong, range(8)))
    assert invoked("audit", "a.jsonl", "--no-report").exit_code == 0
    again = invoked("audit", "a.jsonl", "--no-report", "--require", "exact_match > 0")
    assert again.exit_code == 4


def test_a_file_of_options_has_a_list_of_requirements(here):
    file_of(here / "a.jsonl", map(wrong, range(8)))
    options = {"require": ["exact_match > 0", "answered > 0", "f1 > 0"], "no_report": True}
    (here / "o.yaml").write_text(yaml.safe_dump(options))
    done = invoked("audit", "a.jsonl", "--config", "o.yaml")
    assert done.stderr.count("required: ") == 2


def test_a_file_of_options_has_a_single_requirement(here):
    file_of(here / "a.jsonl", map(wrong, range(8)))
    (here / "o.yaml").write_text("require: exact_match > 0\n")
    assert invoked("audit", "a.jsonl", "--config", "o.yaml").exit_code == 4


def test_what_is_clearly_worse_is_a_regression(tmp_path):
    found = audits(tmp_path, map(right, range(12)), map(wrong, range(12)))
    assert "new: exact_match_unicode is worse by -1.000 [-1.000, -0.554] (n=12)" in regressions(
        found
    )


@pytest.mark.parametrize(
    "new",
    [
        [right(n) for n in range(12)],
        [wrong(0), *(right(n) for n in range(1, 12))],
    ],
    ids=["the same", "one of twelve"],
)
def test_what_is_not_clearly_worse_is_no_regression(tmp_path, new):
    assert regressions(audits(tmp_path, map(right, range(12)), new)) == []


def test_what_is_better_is_no_regression(tmp_path):
    assert regressions(audits(tmp_path, map(wrong, range(12)), map(right, range(12)))) == []


def test_more_calls_are_no_regression(tmp_path):
    def busier(number):
        row = right(number)
        search = re.search(r"<search>.*?</information>\n", row["output"], re.DOTALL)[0]
        another = search.replace("where is", "who keeps")
        return {**row, "output": row["output"].replace(search, another + search)}

    found = audits(tmp_path, map(right, range(12)), map(busier, range(12)))
    assert found.clear(0)["higher"]["calls"].value == 1.0
    assert not any("calls" in line for line in regressions(found))


def test_a_result_that_is_lost_is_a_regression(tmp_path):
    def uncited(number):
        row = cites(number)
        row["messages"][-1]["content"] = f"Lighthouse {number} stands in Tarn."
        return row

    found = audits(tmp_path, map(cites, range(12)), map(uncited, range(12)))
    [line] = [line for line in regressions(found) if "citation_returned" in line]
    assert line == (
        "new: citation_returned has no value (it applies to none of 12 rows); "
        "it is 1.000 [0.758, 1.000] in kept"
    )


def test_too_few_questions_for_a_regression_are_told(tmp_path):
    [line] = regressions(audits(tmp_path, map(right, range(4)), map(right, range(4))))
    assert line == (
        "new: no result has a value for 6 shared questions or more, so no regression could be seen"
    )


def test_the_comparison_fails_on_a_regression(here):
    audits(here, map(right, range(12)), map(wrong, range(12)))
    done = invoked("compare", "kept", "new", "--fail-on-regression")
    assert done.exit_code == 4
    assert "new: exact_match_unicode is worse by" in done.stderr
    assert (here / "comparison" / "comparison.html").exists()


def test_the_comparison_alone_fails_on_nothing(here):
    audits(here, map(right, range(12)), map(wrong, range(12)))
    assert invoked("compare", "kept", "new").exit_code == 0


def test_the_comparison_ends_well_without_a_regression(here):
    audits(here, map(wrong, range(12)), map(right, range(12)))
    done = invoked("compare", "kept", "new", "--fail-on-regression")
    assert done.exit_code == 0
    assert "no regression" in done.stdout


def snippet(language, title):
    page = (ROOT / "docs" / "audit.md").read_text(encoding="utf-8")
    blocks = re.findall(rf"```{language}\n(.*?)```", page, re.DOTALL)
    return next(block for block in blocks if block.startswith(f"# {title}\n"))


@pytest.mark.parametrize("wrongly", [False, True], ids=["as it should", "sources made up"])
def test_the_snippet_for_pytest_tells_agents_apart(tmp_path, wrongly):
    file_of(tmp_path / "traces.jsonl", [cites(number, wrongly) for number in range(8)])
    (tmp_path / "test_faithfulness.py").write_text(snippet("python", "test_faithfulness.py"))
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "test_faithfulness.py",
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == int(wrongly), done.stdout
    assert ("citation_returned is 0.000" in done.stdout) == wrongly


@pytest.mark.parametrize("wrongly", [False, True], ids=["as it should", "sources made up"])
def test_the_snippet_for_github_tells_agents_apart(here, wrongly):
    file_of(here / "kept.jsonl", map(cites, range(8)))
    assert invoked("audit", "kept.jsonl", "--out", "kept").exit_code == 0
    file_of(here / "traces.jsonl", [cites(number, wrongly) for number in range(8)])
    workflow = yaml.safe_load(snippet("yaml", ".github/workflows/faithfulness.yml"))
    runs = [step["run"] for step in workflow["jobs"]["audit"]["steps"] if "run" in step]
    codes = []
    for command in runs:
        program, *arguments = shlex.split(command)
        if program == "faithful-search":
            codes.append(invoked(*arguments).exit_code)
    assert codes == ([4, 4] if wrongly else [0, 0])
