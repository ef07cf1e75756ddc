"""The project's labels of recorded thoughts: whole rows that load, and figures that they give."""

import json
from collections import Counter

import pytest
from datasets import load_dataset
from paths import ROOT

from faithful_search.measure.agreement import load
from faithful_search.measure.agreement.statistics import agreement_rate, cohen_kappa
from faithful_search.text import normalize

FOLDER = ROOT / "datasets" / "thoughts"
COUNTS = {"info_think": 300, "think_search": 150}
TRAIN, TRAIN_COUNT = "train/info_think", 640
SCORES = {"faithful": True, "unfaithful": False, "no_claim": False}
READ_TWICE = 100


def rows_of(task):
    lines = (FOLDER / f"{task}.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


ROWS = {task: rows_of(task) for task in COUNTS}
TEST_ROWS = [row for rows in ROWS.values() for row in rows]
TRAIN_ROWS = rows_of(TRAIN)
ALL_ROWS = [*TEST_ROWS, *TRAIN_ROWS]
TWICE = [row for row in ALL_ROWS if len(row["readers"]) == 2]


@pytest.mark.parametrize(("task", "count"), COUNTS.items())
def test_a_configuration_loads_by_its_name(task, count, tmp_path):
    loaded = load_dataset(str(FOLDER), task, split="test", cache_dir=str(tmp_path))
    assert loaded.num_rows == count


def test_the_thoughts_to_train_on_load_as_their_split(tmp_path):
    loaded = load_dataset(str(FOLDER), "info_think_train", split="train", cache_dir=str(tmp_path))
    assert loaded.num_rows == TRAIN_COUNT


def test_ids_are_unique():
    assert len({row["id"] for row in ALL_ROWS}) == len(ALL_ROWS)


@pytest.mark.parametrize("column", ["question", "premise", "hypothesis", "rationale"])
def test_no_row_lacks_a_text(column):
    assert [row["id"] for row in ALL_ROWS if not row[column].strip()] == []


def test_each_label_is_one_of_the_guidelines():
    assert {row["label"] for row in ALL_ROWS} == set(SCORES)


def test_a_question_gives_at_most_two_pairs():
    assert max(Counter(row["question"] for row in ALL_ROWS).values()) == 2


def test_no_question_is_both_trained_on_and_measured_on():
    measured = {normalize(row["question"], "pokee") for row in TEST_ROWS}
    trained = {normalize(row["question"], "pokee") for row in TRAIN_ROWS}
    assert trained & measured == set()


def test_the_folder_that_judges_are_measured_on_holds_no_row_to_train_on():
    assert len(load(FOLDER)) == len(TEST_ROWS)


@pytest.mark.parametrize("label", ["faithful", "unfaithful"])
def test_only_thoughts_that_are_not_faithful_have_wrong_words(label):
    rows = [row for row in TRAIN_ROWS if row["label"] == label]
    assert {bool(row["wrong"]) for row in rows} == {label == "unfaithful"}


def test_the_wrong_words_stand_in_the_thought():
    words = [(word, row["hypothesis"]) for row in TRAIN_ROWS for word in row["wrong"]]
    assert [word for word, thought in words if word not in thought] == []


def test_a_hundred_pairs_are_read_twice():
    assert len(TWICE) == READ_TWICE


def test_readers_who_differ_are_settled_in_words():
    differing = {row["id"] for row in TWICE if len(set(row["first_labels"])) == 2}
    assert {row["id"] for row in TEST_ROWS if row["settled"]} == differing


def test_readers_who_agree_gave_the_label():
    assert [row for row in ALL_ROWS if row["label"] not in row["first_labels"]] == []


def test_agreement_reads_no_claim_as_not_upheld():
    labels = {row.id.rpartition(":")[2]: row.label for row in load(FOLDER)}
    assert labels == {row["id"]: SCORES[row["label"]] for row in TEST_ROWS}


@pytest.mark.parametrize("task", COUNTS)
def test_the_card_has_the_agreement_that_the_rows_give(task):
    pairs = [row["first_labels"] for row in TWICE if row["task"] == task]
    first, second = ([SCORES[labels[place]] for labels in pairs] for place in (0, 1))
    rate = agreement_rate(first, second)
    kappa = cohen_kappa(first, second)
    card = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert f"| `{task}` | {len(pairs)} | {rate} | {kappa} |" in card
