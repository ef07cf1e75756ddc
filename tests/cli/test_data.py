"""`faithful-search data`: what it prints, and what lies there afterwards."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from published_sets import in_place_of_the_hub, rows_of

from faithful_search.cli import cli
from faithful_search.suites import load_suite
from faithful_search.tasks import load_tasks


@pytest.fixture
def hub(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FAITHFUL_SEARCH_DATA", raising=False)
    return in_place_of_the_hub(monkeypatch, tmp_path / "hub")


def run(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(cli, ["data", *arguments])
    assert result.exit_code == code, result.output
    return result.output


def test_it_says_what_was_downloaded_and_from_where(hub):
    assert run("nq") == (
        "nq, test: 2 questions in data/nq.test.jsonl.gz\n"
        "  licence: CC BY-SA 3.0\n"
        "  from: RUC-NLPIR/FlashRAG_datasets, revision a1b2c3\n"
    )


def test_it_says_what_was_there_already(hub):
    run("nq")
    assert "in data/nq.test.jsonl.gz, which was there already" in run("nq")


def test_it_says_what_was_left_out(hub):
    assert "  left out, since they need a file: 1\n" in run("gaia")


def test_rows_that_cannot_be_read_are_in_the_exit_code(hub):
    hub.lines["nq"] = ["{"]
    output = run("nq", code=3)
    assert "left out: nq test, row 2: not JSON" in output
    assert output.endswith("rows that could not be read: 1\n")


def test_sets_are_merged_and_loaded_apart(hub, tmp_path):
    run("nq", "musique", "--merge", "both.jsonl.gz")
    merged = rows_of(tmp_path / "both.jsonl.gz")
    assert [row["id"] for row in merged] == ["nq/dev_0", "nq/dev_1", "musique/2hop__1_2"]
    assert [task.id for task in load_tasks("both.jsonl.gz#musique")] == ["musique/2hop__1_2"]


def test_passages_are_written_beside_the_questions(hub, tmp_path):
    assert "passages: 2 in data/musique.dev.corpus.jsonl.gz" in run("musique", "--contexts")
    titles = [row["title"] for row in rows_of(tmp_path / "data/musique.dev.corpus.jsonl.gz")]
    assert titles == ["Oslo", "Veldt"]


def test_a_set_without_passages_does_not_end_the_others(hub):
    output = run("nq", "musique", "--contexts")
    assert "passages: none come with its questions" in output
    assert "passages: 2 in" in output


def test_another_folder_is_told_to_the_others(hub):
    output = run("nq", "--out", "elsewhere")
    assert output.endswith("to use these by name: export FAITHFUL_SEARCH_DATA=elsewhere\n")


def test_the_list_has_every_set_without_a_download(hub):
    output = run("--list")
    assert "browsecomp\n  split test, 1,266 questions" in output
    assert hub.calls == []


def test_a_suites_sets_are_downloaded_in_its_splits(hub, tmp_path):
    run("--suite", "veritas")
    files = {path.name for path in (tmp_path / "data").glob("*.jsonl.gz")}
    assert files == {
        *("nq.test.jsonl.gz", "triviaqa.test.jsonl.gz", "popqa.test.jsonl.gz"),
        *("hotpotqa.dev.jsonl.gz", "2wikimultihopqa.dev.jsonl.gz", "musique.dev.jsonl.gz"),
        "bamboogle.test.jsonl.gz",
    }


def test_a_suite_reads_what_its_folder_has(hub, tmp_path):
    run("--suite", "veritas", "--out", "elsewhere")
    sources = [
        question_set.source for question_set in load_suite("veritas", Path("elsewhere")).sets
    ]
    assert sources[0] == "elsewhere/nq.test.jsonl.gz"
    assert len(load_tasks(sources[0])) == 2


@pytest.mark.parametrize(
    ("arguments", "code", "why"),
    [
        ((), 2, "name at least one data set"),
        (("nq", "--seed", "0"), 2, "give --limit, too"),
        (("nq", "--suite", "pou"), 2, "leave out names and --split"),
        (("--suite", "mini"), 1, "the suite mini has no published sets"),
        (("nq", "--merge", "all.json"), 2, "all.json must end in .jsonl.gz"),
        (("nq", "--half"), 2, "--kind, --half, --hnsw and --yes are for wiki18"),
        (("nq", "squad"), 1, "unknown data set 'squad'"),
        (("nq", "popqa", "--split", "dev"), 1, "popqa has no split 'dev'"),
        (("nq", "--merge", "data/nq.test.jsonl.gz"), 1, "is the file of one of the sets"),
    ],
)
def test_what_cannot_be_is_refused(hub, arguments, code, why):
    assert why in run(*arguments, code=code)


def test_a_wrong_name_is_refused_before_the_first_download(hub):
    run("nq", "squad", code=1)
    assert hub.calls == []


def test_the_lock_is_json(hub, tmp_path):
    run("nq", "popqa")
    lock = json.loads((tmp_path / "data" / "sources.json").read_text())
    assert list(lock) == ["nq.test.jsonl.gz", "popqa.test.jsonl.gz"]
