"""Metrics of answers beside verdicts that others recorded: by hand, and on real rollouts."""

import json

import pytest
import recorded_verdicts
from real_texts import R1, REAL, real

from faithful_search.errors import DataError

ROWS = [
    {"question": "Q1", "golden_answers": ["Rome"], "text": "Rome", "right": "True"},
    {"question": "Q2", "golden_answers": ["Rome"], "text": "It is Rome.", "right": "True"},
    {"question": "Q3", "golden_answers": ["Rome"], "text": "Oslo", "right": "False"},
    {"question": "Q4", "golden_answers": ["Rome"], "text": "Rome", "right": "False"},
]


@pytest.fixture
def rollouts(tmp_path):
    lines = []
    for row in ROWS:
        text = f"<think>I know it.</think>\n<answer>{row['text']}</answer>"
        lines.append(json.dumps({**row, "text": text}))
    path = tmp_path / "rollouts.jsonl"
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


@pytest.fixture
def recorded(rollouts):
    return recorded_verdicts.recorded_answers(rollouts, "right")


ACCURACIES = {"column": 0.5, "lm_accuracy": 0.75, "exact_match": 0.5, "sub_em": 0.75}


@pytest.mark.parametrize(("metric", "value"), ACCURACIES.items())
def test_accuracies_of_recorded_answers_by_hand(metric, value, recorded):
    assert recorded_verdicts.accuracy(recorded, metric) == value


def test_a_right_answer_that_was_judged_wrong_is_listed(recorded):
    [answer] = recorded_verdicts.disagreements(recorded, "lm_accuracy")
    assert answer.row == 4


def test_a_row_without_a_verdict_is_refused(rollouts):
    with pytest.raises(DataError, match="row 1: the column 'verdict' says None: no verdict"):
        recorded_verdicts.recorded_answers(rollouts, "verdict")


@real
@pytest.mark.parametrize("name", R1)
def test_real_rollouts_have_the_accuracy_of_their_column(name):
    """But for one answer, Autopia for Autopia, that was recorded as wrong."""
    answers = recorded_verdicts.recorded_answers(REAL / f"{name}.jsonl.gz", "gpt4o_output")
    differing = [
        answer.answer for answer in recorded_verdicts.disagreements(answers, "lm_accuracy")
    ]
    assert differing == (["Autopia"] if name == "r1_searcher_hotpotqa_llama" else [])
