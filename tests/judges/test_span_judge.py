"""The judge that marks what is not supported: what it reads, and what it says of a network's
output. The networks here are functions of the marks.
"""

from typing import Any

import numpy as np
import pytest
from tiny_bert import LONG, WORDS, bert_tokenizer

from faithful_search.errors import ConfigError
from faithful_search.judges import Pair, load
from faithful_search.judges.span import SpanJudge, arrays
from faithful_search.judges.span_inputs import MARKS, SpanInput, SpanReader, unsupported_tokens

MISSING = MARKS.index("missing")
PAIR = Pair("w1 w2 w3.", "w1 w9.", "w8 w7")


def reader(**sizes: int) -> SpanReader:
    return SpanReader(bert_tokenizer().backend_tokenizer, **sizes)


def counting(inputs: Any) -> Any:
    """A network that counts missing words: 2 less support for each, and 3 where one is."""
    missing = (inputs["marks"] == MISSING) * inputs["claim_mask"]
    return 1.0 - 2.0 * missing.sum(axis=1), np.where(missing, 3.0, -3.0)


def judge(**settings: Any) -> SpanJudge:
    return SpanJudge(counting, reader(), "counting", **settings)


def read(pair: Pair, **sizes: int) -> SpanInput:
    [only] = reader(**sizes).readings(pair)
    return only


def marks(pair: Pair, **sizes: int) -> list[str]:
    return [MARKS[mark] for mark in read(pair, **sizes).marks]


def of_claim(pair: Pair, **sizes: int) -> list[str]:
    start, end = read(pair, **sizes).claim
    return marks(pair, **sizes)[start:end]


def test_hypothesis_question_and_evidence_are_read_in_this_order():
    tokenizer = bert_tokenizer()
    text = tokenizer.decode(read(PAIR).ids)
    assert text == "[CLS] w1 w9 . [SEP] w8 w7 [SEP] w1 w2 w3 . [SEP]"


def test_words_of_the_evidence_are_told_from_missing_ones():
    assert of_claim(PAIR) == ["read", "missing", "function"]


def test_a_word_of_the_question_alone_is_marked_so():
    assert of_claim(Pair("w1.", "w1 w8", "w8")) == ["read", "asked"]


def test_a_missing_name_is_marked_as_one():
    assert of_claim(Pair("w1.", "w1 W9")) == ["read", "missing_name"]


def test_shared_words_of_the_evidence_are_marked():
    places = marks(Pair("w1 w2.", "w1"))
    assert places == ["claim", "read", "other", "other", "shared", "other", "other", "other"]


@pytest.mark.parametrize(("task", "mark"), [("support", "claim"), ("info_think", "thought")])
def test_the_first_mark_says_what_is_judged(task, mark):
    assert marks(Pair("w1", "w1", task=task))[0] == mark


def test_of_long_evidence_the_parts_are_read_that_share_words():
    pair = Pair(LONG, "w150 w151")
    assert of_claim(pair, evidence=50) == ["read", "read"]


def test_a_word_beyond_what_is_read_is_marked_so():
    texts = " ".join(f"{' '.join(WORDS[start : start + 7])}." for start in range(0, 196, 7))
    claim = "w1 w2 w3 w190"
    assert of_claim(Pair(texts, claim), evidence=48)[-1] == "beyond"


def test_the_evidence_that_is_read_has_a_limit():
    reading = read(Pair(LONG, "w1"), evidence=50)
    assert len(reading.ids) <= 1 + 1 + 2 + 50 + 1


def test_a_long_hypothesis_is_read_in_parts():
    parts = reader(hypothesis=40).readings(Pair("w1.", LONG))
    read_words = [LONG[start:end] for part in parts for start, end in part.places]
    assert read_words == LONG.replace(".", " .").split()


def test_control_tokens_in_a_text_are_read_as_characters():
    ids = read(Pair("w1 [SEP] w2", "w1")).ids
    assert ids.count(3) == 3  # the three separators of the layout


@pytest.mark.parametrize("hypothesis", ["", "  "])
def test_an_empty_hypothesis_is_not_supported(hypothesis):
    assert judge().judge_batch([Pair("w1", hypothesis)])[0].p == 0


@pytest.mark.parametrize(("hypothesis", "label"), [("w1 w2", True), ("w1 w9", False)])
def test_p_is_that_of_the_network(hypothesis, label):
    logit = 1.0 if label else -1.0
    verdict = judge().judge_batch([Pair("w1 w2", hypothesis)])[0]
    assert (verdict.p, verdict.label) == (pytest.approx(1 / (1 + np.exp(-logit))), label)


def test_the_least_supported_part_decides():
    long = "w1 w2. " * 20
    pairs = [Pair("w1 w2.", long), Pair("w1 w2.", f"{long} w9.")]
    narrow = SpanJudge(counting, reader(hypothesis=12))
    assert [verdict.label for verdict in narrow.judge_batch(pairs)] == [True, False]


def test_why_names_what_is_least_supported():
    assert "'w9'" in judge().judge_batch([PAIR])[0].why


def test_it_abstains_where_it_cannot_tell():
    verdict = judge(unsure=0.25).judge_batch([Pair("w1 w2", "w1 w9")])[0]
    assert verdict.p is None


def test_spans_are_places_in_the_hypothesis():
    marked = [PAIR.hypothesis[start:end] for start, end, p in judge().spans(PAIR) if p > 0.5]
    assert marked == ["w9"]


@pytest.mark.parametrize("tokens", [8, 64, 4096])
def test_the_size_of_batches_changes_nothing(tokens):
    pairs = [Pair("w1 w2 w3", f"w1 w{number}") for number in range(9)]
    verdicts = judge(batch_tokens=tokens).judge_batch(pairs)
    assert verdicts == judge().judge_batch(pairs)


def test_a_batch_is_padded():
    batch = arrays([read(Pair("w1", "w1")), read(PAIR)])
    assert batch["attention_mask"].sum(axis=1).tolist() == [6, 13]


def test_spans_become_labels_of_tokens():
    assert unsupported_tokens(read(PAIR), [(3, 5)]) == [0, 1, 0]


@pytest.mark.parametrize("unsure", [-0.1, 1.0])
def test_a_band_out_of_range_is_refused(unsure):
    with pytest.raises(ConfigError, match="unsure"):
        judge(unsure=unsure)


def test_a_folder_without_a_network_is_refused(tmp_path):
    pytest.importorskip("onnxruntime")
    with pytest.raises(ConfigError, match=r"lacks model\.onnx"):
        load("span", str(tmp_path))
