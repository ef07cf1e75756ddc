"""Batches of rows with their scores: equal to an audit's, in the form in which they came, wherever
they are scored.
"""

import pickle

import datasets
import numpy as np
import pandas
import pytest
from agent_rows import CountingJudge, file_of, lines_of, rollout, silent_on

import faithful_search as fs
from faithful_search.errors import ConfigError
from faithful_search.measure.audit import audit

ROWS = [*map(rollout, range(6)), {**rollout(6), "output": "no agent wrote this"}]
COLUMNS = {name: [row[name] for row in ROWS] for name in ROWS[0]}


def test_a_batch_gets_the_scores_of_an_audit(tmp_path):
    audit(file_of(tmp_path / "a.jsonl", ROWS), tmp_path / "out", workers=1)
    scored = fs.BatchScorer(dialect="search_r1")(COLUMNS)
    rows = lines_of(tmp_path / "out" / "scores.jsonl")
    for name in rows[0]["scores"]:
        wanted = [row["scores"][name]["value"] for row in rows[:6]]
        assert [None if np.isnan(value) else value for value in scored[name][:6]] == wanted, name
    assert scored["output"] is COLUMNS["output"]
    assert scored["calls"].tolist() == [1.0] * 6 + [0.0]
    assert scored["read_as"].tolist() == ["search_r1"] * 7


def test_an_unread_row_says_why_and_no_verdict_is_no_zero():
    judge = CountingJudge(silent_on("Lighthouse 2 "))
    scored = fs.BatchScorer(("answer_correctness", "info_think_faithfulness"), judge)(COLUMNS)
    assert scored["read_error"][0] == ""
    assert "no dialect fits" in scored["read_error"][6]
    assert np.isnan(scored["exact_match_unicode"][6])
    assert np.isnan(scored["calls"][6])
    assert scored["f1_unicode"][0] == 1.0
    assert np.isnan(scored["info_think_faithfulness"][2])
    assert scored["abstained"].tolist()[:4] == [
        0.0,
        0.0,
        1.0,
        0.0,
    ]


def test_half_a_character_leaves_every_row_its_score():
    texts = [text.replace("<think>", "<think>\ud800") for text in COLUMNS["output"][:2]] + COLUMNS[
        "output"
    ][2:]
    scorer, changed = (
        fs.BatchScorer(("answer_correctness",)),
        {**COLUMNS, "output": texts, "more": [np.arange(2)] * 7},
    )
    assert scorer(changed)["f1_unicode"][:6].tolist() == scorer(COLUMNS)["f1_unicode"][:6].tolist()
    with pytest.raises(ConfigError, match="has columns calls already: give a prefix"):
        scorer({**COLUMNS, "calls": [1] * 7})


def test_it_travels_and_serves_datasets_pandas_and_spark():
    scorer = fs.BatchScorer(("answer_correctness",), prefix="fs_")
    plain = scorer(COLUMNS)
    assert pickle.loads(pickle.dumps(scorer)) == scorer
    frame = pickle.loads(pickle.dumps(scorer))(pandas.DataFrame(COLUMNS))
    assert frame["fs_f1_unicode"].tolist()[:6] == plain["fs_f1_unicode"].tolist()[:6]
    assert len(frame.columns) == 14
    [again] = scorer.frames(iter([pandas.DataFrame(COLUMNS)]))
    assert again.equals(frame)
    assert [part.split()[0] for part in scorer.schema.split(", ")] == list(frame.columns[4:])
    mapped = datasets.Dataset.from_dict(COLUMNS).map(scorer, batched=True, batch_size=3)
    assert mapped["fs_f1_unicode"][:6] == plain["fs_f1_unicode"].tolist()[:6]
    assert mapped["fs_read_as"][0] == "search_r1"
