"""Published question sets: each shape of row gives the question with all its gold answers, and a
download can be repeated.
"""

import json
from contextlib import suppress
from typing import Any

import pytest
from published_sets import ASKED, PQAREF, ROWS, in_place_of_the_hub, rows_of

from faithful_search.errors import DataError
from faithful_search.suites import load_suite, suite_names
from faithful_search.suites.downloading import download, passages, read_lock
from faithful_search.suites.published import PUBLISHED, published
from faithful_search.suites.published_rows import decrypted, flashrag, pqaref
from faithful_search.tasks import load_tasks, task_from_row

ALIASES = {"musique", "pira", "nq", "triviaqa", "popqa", "bamboogle", "hotpotqa"}
ALIASES |= {"2wikimultihopqa"}
OTHER_QUESTIONS = {"pqarefeval", "morehopqa"}


@pytest.fixture
def hub(tmp_path, monkeypatch):
    monkeypatch.setenv("FAITHFUL_SEARCH_DATA", str(tmp_path / "data"))
    return in_place_of_the_hub(monkeypatch, tmp_path / "hub")


def downloaded(tmp_path, name: str, **settings: Any) -> list[dict[str, Any]]:
    path, _, _ = download(name, None, tmp_path / "data", **settings)
    return rows_of(path)


def test_rows_of_every_set_were_written_by_hand():
    assert ROWS.keys() == PUBLISHED.keys()


@pytest.mark.parametrize("name", sorted(PUBLISHED.keys() - OTHER_QUESTIONS))
def test_the_question_is_found(hub, tmp_path, name):
    assert downloaded(tmp_path, name)[0]["question"] == ASKED


@pytest.mark.parametrize("name", sorted(PUBLISHED.keys() - OTHER_QUESTIONS))
def test_the_first_gold_answer_is_the_publishers(hub, tmp_path, name):
    assert downloaded(tmp_path, name)[0]["answers"][0] == "the Mir"


@pytest.mark.parametrize("name", sorted(ALIASES))
def test_aliases_count(hub, tmp_path, name):
    assert len(downloaded(tmp_path, name)[0]["answers"]) == 2


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_each_row_names_its_set(hub, tmp_path, name):
    assert {row["data_source"] for row in downloaded(tmp_path, name)} == {name}


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_a_set_is_loaded_by_its_name(hub, tmp_path, name):
    (task, *_) = load_tasks(name, published(name).evaluated)
    assert task.question == downloaded(tmp_path, name)[0]["question"]


def test_a_file_that_was_downloaded_is_read(hub, tmp_path):
    downloaded(tmp_path, "nq")
    calls = list(hub.calls)
    assert [task.id for task in load_tasks("nq", "test")] == ["dev_0", "dev_1"]
    assert hub.calls == calls


def test_pqaref_gives_question_and_referenced_answer(hub, tmp_path):
    (row,) = downloaded(tmp_path, "pqarefeval")
    assert row["question"] == "Does honey ease coughs?"
    assert row["answers"] == ["It eased coughs in children (PUBMED:1)."]


def test_a_text_of_another_form_is_no_row_of_pqaref():
    with pytest.raises(DataError, match="no question, abstracts and answer"):
        pqaref({"input": PQAREF.partition("Answer")[0]})


def test_a_number_is_an_answer(hub, tmp_path):
    assert downloaded(tmp_path, "morehopqa")[0]["answers"] == ["3"]


@pytest.mark.parametrize(
    ("name", "titles"),
    [("hotpotqa", ["Veldt", "Mir"]), ("2wikimultihopqa", ["Veldt", "Mir"]), ("musique", ["Veldt"])],
)
def test_supporting_titles_are_kept_once(hub, tmp_path, name, titles):
    assert downloaded(tmp_path, name)[0]["supporting_titles"] == titles


@pytest.mark.parametrize(
    "evidences",
    [
        [["Veldt", "mouth", "the Mir"]],
        {"fact": ["Veldt"], "relation": ["mouth"], "entity": ["the Mir"]},
    ],
)
def test_triples_are_kept_for_changed_worlds(evidences):
    row = ROWS["2wikimultihopqa"][0]
    changed = row | {"metadata": row["metadata"] | {"evidences": evidences}}
    assert flashrag(changed)["evidence_triples"] == [["Veldt", "mouth", "the Mir"]]


def test_musiques_decomposition_is_kept_with_its_texts(hub, tmp_path):
    (step,) = downloaded(tmp_path, "musique")[0]["decomposition"]
    assert step == {
        "question": "Veldt >> mouth",
        "answer": "the Mir",
        "title": "Veldt",
        "text": "A river.",
    }


def test_bioasq_names_its_evidence(hub, tmp_path):
    assert downloaded(tmp_path, "bioasq")[0]["supporting_ids"] == ["101", "102"]


def test_encrypted_questions_are_refused():
    with pytest.raises(DataError, match="encrypted, as BrowseComp's questions are"):
        task_from_row(ROWS["browsecomp"][0])


@pytest.mark.parametrize(("name", "need"), [("gaia", "a file"), ("hle", "an image")])
def test_what_needs_more_than_text_is_left_out_and_counted(hub, tmp_path, name, need):
    _, source, _ = download(name, None, tmp_path / "data")
    assert source.rows == 1
    assert source.left_out == {need: 1}


def test_loading_logs_what_is_left_out(hub, caplog):
    load_tasks("gaia", "validation")
    assert "gaia, validation: left out, since they need a file: 1" in caplog.text


@pytest.mark.parametrize("text", ["no base64!", "/////w=="])
def test_what_cannot_be_decrypted_is_said(text):
    with pytest.raises(DataError, match="cannot be decrypted"):
        decrypted(text, "password")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("hotpotqa", [("Veldt", "A river. It is long."), ("Mir", "A sea.")]),
        ("2wikimultihopqa", [("Veldt", "A river."), ("Mir", "A sea.")]),
        ("morehopqa", [("Veldt", "A river. It is long."), ("Mir", "A sea.")]),
        ("musique", [("Oslo", "A city."), ("Veldt", "A river.")]),
        ("pira", [("", "The Veldt ends in the Mir.")]),
        ("bioasq", [("", "The Veldt ends in the Mir."), ("", "nan")]),
    ],
)
def test_passages_come_with_the_questions(hub, name, expected):
    entry = published(name)
    rows = list(passages(entry, entry.evaluated, "main", print))
    assert [(row["title"], row["text"]) for row in rows] == expected


def test_the_table_says_which_sets_have_passages(hub):
    having: set[str] = set()
    for entry in PUBLISHED.values():
        with suppress(DataError):
            if list(passages(entry, entry.evaluated, "main", print)):
                having.add(entry.name)
    assert having == {entry.name for entry in PUBLISHED.values() if entry.has_passages}


def test_bioasqs_passages_keep_their_ids(hub):
    rows = passages(published("bioasq"), "test", "main", print)
    assert [row["id"] for row in rows] == ["101", "102"]


def test_a_set_without_passages_says_so(hub):
    with pytest.raises(DataError, match="nq has no passages beside its questions"):
        list(passages(published("nq"), "test", "main", print))


def test_a_broken_row_is_reported_and_skipped(hub, tmp_path):
    hub.lines["nq"] = ["{", json.dumps({"id": "x", "question": ASKED})]
    reports: list[str] = []
    _, source, _ = download(
        "nq", None, tmp_path / "data", on_broken=lambda where, why: reports.append(where)
    )
    assert (source.rows, source.broken) == (2, 2)
    assert reports == ["nq test, row 2", "nq test, row 3"]


def test_loading_refuses_a_broken_row_and_says_what_to_do(hub):
    hub.lines["nq"] = ["{}"]
    with pytest.raises(DataError, match=r"no question and no answers.*faithful-search data nq"):
        load_tasks("nq", "test")


def test_a_finished_set_is_not_downloaded_again(hub, tmp_path):
    download("nq", None, tmp_path / "data")
    calls = list(hub.calls)
    _, _, is_new = download("nq", None, tmp_path / "data")
    assert not is_new
    assert hub.calls == calls


def test_a_later_download_takes_the_locked_revision(hub, tmp_path):
    download("nq", None, tmp_path / "data")
    hub.newest = "d4e5f6"
    download("popqa", None, tmp_path / "data")
    assert [revision for _, revision in hub.calls] == ["a1b2c3", "a1b2c3"]


def test_the_lock_has_the_commit_of_a_tag(hub, tmp_path):
    hub.tags["v1"] = "d4e5f6"
    _, source, _ = download("nq", None, tmp_path / "data", revision="v1")
    assert source.revision == "d4e5f6"


def test_a_commit_is_taken_as_it_is(hub, tmp_path):
    _, source, _ = download("nq", None, tmp_path / "data", revision="0" * 40)
    assert source.revision == "0" * 40


def test_another_revision_replaces_the_file(hub, tmp_path):
    download("nq", None, tmp_path / "data")
    _, source, is_new = download("nq", None, tmp_path / "data", revision="0" * 40)
    assert is_new
    assert read_lock(tmp_path / "data") == {"nq.test.jsonl.gz": source}


def test_a_file_that_was_changed_is_not_replaced(hub, tmp_path):
    path, _, _ = download("nq", None, tmp_path / "data")
    path.write_bytes(b"mine")
    for revision in (None, "0" * 40):
        with pytest.raises(DataError, match="is not as it was downloaded"):
            download("nq", None, tmp_path / "data", revision=revision)
    assert path.read_bytes() == b"mine"


def test_a_file_of_the_users_own_is_not_replaced(hub, tmp_path):
    path = tmp_path / "data" / "nq.test.jsonl.gz"
    path.parent.mkdir()
    path.write_bytes(b"mine")
    with pytest.raises(DataError, match="is not as it was downloaded, if it was"):
        download("nq", None, tmp_path / "data")
    assert path.read_bytes() == b"mine"


def test_the_same_rows_give_the_same_bytes(hub, tmp_path):
    first, _, _ = download("nq", None, tmp_path / "one")
    second, _, _ = download("nq", None, tmp_path / "two")
    assert first.read_bytes() == second.read_bytes()


def test_a_draw_is_the_one_that_load_tasks_makes(hub, tmp_path):
    more = [json.dumps(row | {"id": str(n)}) for n, row in enumerate(ROWS["nq"] * 20)]
    hub.lines["nq"] = more
    drawn = downloaded(tmp_path, "nq", limit=9, seed=3)
    assert [row["id"] for row in drawn] == [task.id for task in load_tasks("nq", "test", 9, seed=3)]


def test_a_draw_is_never_taken_for_the_whole_set(hub, tmp_path):
    path, _, _ = download("nq", None, tmp_path / "data", limit=1, seed=0)
    assert path.name == "nq.test.1-seed0.jsonl.gz"
    assert len(load_tasks("nq", "test")) == 2


def test_the_lock_says_where_a_file_is_from(hub, tmp_path):
    download("pira", None, tmp_path / "data")
    (source,) = json.loads((tmp_path / "data" / "sources.json").read_text()).values()
    facts = {key: source[key] for key in ("repository", "configuration", "revision", "rows")}
    assert facts == {
        "repository": "paulopirozelli/pira",
        "configuration": "default",
        "revision": "a1b2c3",
        "rows": 1,
    }


def test_an_unreachable_set_says_how_to_get_access(hub, tmp_path, monkeypatch):
    def refuse(*given: Any, **more: Any) -> None:
        raise OSError("401: gated.")

    monkeypatch.setattr("datasets.load_dataset", refuse)
    with pytest.raises(DataError, match=r"cannot download gaia .*401: gated\. First accept"):
        download("gaia", None, tmp_path / "data")
    assert not (tmp_path / "data").exists()


def test_without_a_network_nothing_is_said_of_access(hub, tmp_path, monkeypatch):
    def fail(*given: Any, **more: Any) -> None:
        raise ConnectionError("Couldn't reach 'gaia-benchmark/GAIA' on the Hub.")

    monkeypatch.setattr("datasets.load_dataset", fail)
    with pytest.raises(DataError, match=r"is there a network, and is HF_HUB_OFFLINE unset\?\Z"):
        download("gaia", None, tmp_path / "data")


@pytest.mark.parametrize(
    ("name", "split", "why"),
    [
        ("squad", None, "unknown data set 'squad'; there are: hotpotqa, 2wiki"),
        ("popqa", "dev", "popqa has no split 'dev'; it has: test"),
    ],
)
def test_an_unknown_name_or_split_is_refused(hub, tmp_path, name, split, why):
    with pytest.raises(DataError, match=why):
        download(name, split, tmp_path)


def test_every_published_set_of_a_suite_has_the_split():
    for suite in map(load_suite, sorted({*suite_names()} - {"deepresearcher"})):
        for question_set in suite.sets:
            if question_set.source in PUBLISHED:
                assert published(question_set.source).split(question_set.split)


def test_one_set_of_a_file_of_several_is_loaded(tmp_path):
    path = tmp_path / "test.jsonl"
    rows = [("tq", "a"), ("Bamboogle", "b"), ("tq", "c")]
    lines = [json.dumps({"data_source": s, "question": q, "answer": "x"}) for s, q in rows]
    path.write_text("\n".join(lines))
    tasks = load_tasks(f"{path}#triviaqa")
    assert [(task.id, task.question) for task in tasks] == [("0", "a"), ("2", "c")]


def test_a_set_that_is_not_in_the_file_is_refused(tmp_path):
    path = tmp_path / "test.jsonl"
    path.write_text(json.dumps({"data_source": "tq", "question": "a", "answer": "x"}))
    with pytest.raises(DataError, match=r"no questions of 'nq' in it; it has those of: tq"):
        load_tasks(f"{path}#nq")
