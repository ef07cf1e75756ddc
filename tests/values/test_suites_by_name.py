"""Suites: the sets of one table of results, by name or in a file."""

from pathlib import Path

import pytest

from faithful_search.errors import ConfigError, DataError
from faithful_search.suites import AgentLimits, load_suite, suite_names, with_corpus
from faithful_search.tasks import load_tasks

SEVEN = {"nq", "triviaqa", "popqa", "hotpotqa", "2wikimultihopqa", "musique", "bamboogle"}


def suite_file(folder: Path, text: str) -> Path:
    path = folder / "mine.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_suites_are_known_by_name():
    assert suite_names() == ("deepresearcher", "mini", "pokee", "pou", "self_eval", "veritas")


@pytest.mark.parametrize("name", ["pou", "veritas"])
def test_two_papers_use_the_seven_sets(name):
    assert {question_set.name for question_set in load_suite(name).sets} == SEVEN


def test_proof_of_use_draws_512_of_each():
    sets = load_suite("pou").sets
    drawn = {(question_set.limit, question_set.seed) for question_set in sets}
    assert drawn == {(512, 0), (None, None)}


def test_pokee_draws_125_and_takes_gaia_whole():
    limits = {question_set.name: question_set.limit for question_set in load_suite("pokee").sets}
    assert limits.pop("gaia") is limits.pop("bamboogle") is None
    assert set(limits.values()) == {125}


def test_a_suite_says_whose_it_is():
    assert "section 4.1" in load_suite("pou").about


def test_mini_has_the_bundled_world_wherever_it_runs(tmp_path):
    (world,) = load_suite("mini", tmp_path).sets
    tasks = load_tasks(world.source, world.split, world.limit, seed=world.seed)
    assert len(tasks) == 40


def test_sets_that_are_not_there_are_said(tmp_path):
    lines = load_suite("mini", tmp_path).left_out
    assert lines[0] == f"hotpotqa: no {tmp_path}/hotpotqa/test.jsonl.gz"
    assert len(lines) == 3


def test_sets_that_are_there_are_taken(tmp_path, monkeypatch):
    monkeypatch.setenv("FAITHFUL_SEARCH_DATA", str(tmp_path))
    for name in ("test.jsonl.gz", "corpus.jsonl.gz"):
        path = tmp_path / "musique" / name
        path.parent.mkdir(exist_ok=True)
        path.touch()
    musique = load_suite("mini").sets[1]
    assert musique.source == f"{tmp_path}/musique/test.jsonl.gz"
    assert musique.corpus == f"{tmp_path}/musique/corpus.jsonl.gz"


def test_a_file_is_a_suite_too(tmp_path):
    path = suite_file(tmp_path, "about: mine\nsets: [{name: a, source: world, limit: 3}]")
    suite = load_suite(path)
    assert suite.name == suite.about == "mine"
    assert suite.sets[0].split == "test"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("- a", "a mapping with the keys about and sets"),
        ("about: mine", "missing required field `sets`"),
        ("about: mine\nsets: [{name: a}]", "missing required field `source`"),
        ("about: mine\nsets: [{name: a, source: b, splt: c}]", "unknown field `splt`"),
        (
            "about: mine\nsets: [{name: a, source: b}, {name: a, source: c}]",
            "two sets are called 'a'",
        ),
        ('about: mine\nsets: [{name: a, source: "{data}/a.jsonl"}]', "none of its question sets"),
    ],
)
def test_a_file_that_is_no_suite_is_refused(tmp_path, text, why):
    with pytest.raises(ConfigError, match=why):
        load_suite(suite_file(tmp_path, text), tmp_path)


def test_mini_bounds_agents_for_two_cores(tmp_path):
    assert load_suite("mini", tmp_path).agents == AgentLimits(3, 64, 10)


@pytest.mark.parametrize(("limits", "why"), [("{turns: 0}", ">= 1"), ("{steps: 3}", "`steps`")])
def test_limits_of_agents_are_checked(tmp_path, limits, why):
    text = f"about: mine\nsets: [{{name: a, source: b}}]\nagents: {limits}"
    with pytest.raises(ConfigError, match=why):
        load_suite(suite_file(tmp_path, text), tmp_path)


def test_an_unreadable_file_is_named(tmp_path):
    with pytest.raises(DataError, match=r"cannot read .*mine\.yaml"):
        load_suite(suite_file(tmp_path, "sets: ["))


def test_a_fault_of_yaml_is_told_in_one_line(tmp_path):
    with pytest.raises(DataError, match=r"mine\.yaml, line 2, column 1: .*expected") as refused:
        load_suite(suite_file(tmp_path, "sets: [a, b\n"))
    assert "\n" not in str(refused.value)


def test_an_unknown_suite_names_those_there_are():
    with pytest.raises(
        ConfigError, match="unknown suite 'papers'; there are: deepresearcher, mini, pokee"
    ):
        load_suite("papers")


def test_published_questions_may_be_asked_of_any_corpus():
    assert with_corpus("hotpotqa") is with_corpus("passages.jsonl") is None


def test_the_bundled_worlds_questions_have_their_own():
    assert with_corpus("world_pairs") is with_corpus("world") is not None
