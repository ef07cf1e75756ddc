"""A span judge is calibrated on pairs that it was not trained on."""

import math
from typing import Any

import numpy as np
import pytest
from tiny_bert import bert_tokenizer

from faithful_search.distil.distillation import _calibration_rows
from faithful_search.distil.pairs import Parts
from faithful_search.distil.span_calibration import WEIGHTS, calibrate
from faithful_search.errors import DataError
from faithful_search.judges.distilled import JudgeFile
from faithful_search.judges.span import SpanJudge
from faithful_search.judges.span_inputs import SpanReader
from faithful_search.measure.agreement.labelled import Labelled

FILE = JudgeFile("span")


def row(number: int, label: bool, **named: Any) -> Labelled:
    """A pair whose hypothesis has a second word that the premise has only if `label` is true."""
    fields = {
        "id": f"r{number}",
        "premise": "w1 w2 w3.",
        "hypothesis": f"w1 w{2 if label else 100 + number}",
        "question": "",
        "label": label,
        "source": "made",
        "split": "train",
        "group": f"g{number}",
    }
    return Labelled(**{**fields, **named})


ROWS = [row(number, number % 2 == 0) for number in range(40)]


def judge(logit_of: Any) -> SpanJudge:
    def network(inputs: Any) -> Any:
        logits = np.array([logit_of(ids) for ids in inputs["input_ids"]], dtype=float)
        return logits, np.zeros(inputs["input_ids"].shape)

    return SpanJudge(network, SpanReader(bert_tokenizer().backend_tokenizer))


def knowing(ids: Any) -> float:
    """It supports a hypothesis whose second word is w2, number 7, strongly."""
    return 8.0 if ids[2] == 7 else -8.0


def constant(ids: Any) -> float:
    return 0.0


def test_words_weigh_nothing_where_the_network_knows():
    assert calibrate(judge(knowing), FILE, ROWS).words == 0


def test_words_are_counted_where_the_network_does_not_know():
    assert calibrate(judge(constant), FILE, ROWS).words in WEIGHTS[1:]


def test_the_temperature_fits_a_judge_that_is_too_sure():
    wrong = [row(number, number % 4 > 0, hypothesis="w1 w2") for number in range(40)]
    temperature = calibrate(judge(knowing), FILE, wrong).temperature
    # The judge always gives a logit of 8, and three of four pairs are true: logit(3/4) = log(3)
    assert temperature == pytest.approx(8 / math.log(3), rel=0.05)


def test_a_blank_hypothesis_moves_no_temperature():
    blank = [row(number, True, hypothesis=" ") for number in range(40)]
    expected = calibrate(judge(knowing), FILE, ROWS).temperature
    assert calibrate(judge(knowing), FILE, [*ROWS, *blank]).temperature == expected


def test_a_band_in_which_it_guesses_is_left_open():
    coin = [row(number, number % 2 > 0, hypothesis="w1 w2") for number in range(40)]
    assert calibrate(judge(constant), FILE, coin).unsure > 0


def test_a_judge_that_is_right_abstains_nowhere():
    assert calibrate(judge(knowing), FILE, ROWS).unsure == 0


def parts() -> Parts:
    return Parts(train=(ROWS[0],), validation=(ROWS[1],), heldout=())


def test_without_pairs_to_calibrate_by_the_validation_pairs_serve():
    assert list(_calibration_rows(parts(), [])) == [ROWS[1]]


def test_what_was_trained_on_does_not_calibrate():
    assert ROWS[0] not in _calibration_rows(parts(), ROWS)


def test_what_is_held_out_does_not_calibrate():
    with pytest.raises(DataError, match="calibrate"):
        _calibration_rows(parts(), [row(3, True, split="heldout")])
