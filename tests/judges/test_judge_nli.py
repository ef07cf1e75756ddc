"""Entailment models as judges: tiny ones, untrained or with weights set by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import lab
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny_bert import LABELS, LONG, WORDS, bert, bert_tokenizer, t5, t5_tokenizer
from transformers import (
    RobertaConfig,
    RobertaForSequenceClassification,
)

from faithful_search.errors import ConfigError
from faithful_search.inference.batching import batches
from faithful_search.inference.loading import max_tokens
from faithful_search.judges import Judge, Pair
from faithful_search.judges.nli import NLIJudge
from faithful_search.judges.windows import windows


def by_hand(judge: NLIJudge, premise: str, hypothesis: str) -> float:
    """p without batching, windows or helpers."""
    encoded = judge.tokenizer(premise, hypothesis, return_tensors="pt")
    with torch.no_grad():
        return float(judge.model(**encoded).logits[0].softmax(-1)[2])


def test_p_is_the_softmax_at_the_entailment_label():
    model = bert()
    with torch.no_grad():
        model.classifier.weight.zero_()
        model.classifier.bias.copy_(torch.tensor([1.0, 2.0, 5.0]).log())
    judge = NLIJudge(model, bert_tokenizer(), "made/by-hand")
    verdict = judge.judge_batch([Pair("w1", "w2")])[0]
    assert verdict.p == pytest.approx(5 / 8) and verdict.label
    assert (verdict.why, verdict.judge) == ("p(entailment) = 0.625", "nli:made/by-hand")
    assert not replace(judge, threshold=0.63).judge_batch([Pair("w1", "w2")])[0].label
    assert replace(judge, label="neutral").judge_batch([Pair("w1", "w2")])[0].p == pytest.approx(2 / 8)
    assert isinstance(judge, Judge)


def test_labels_that_do_not_exclude_each_other_get_a_sigmoid():
    for more in ({"labels": {0: "supported"}}, {"problem_type": "multi_label_classification"}):
        model = bert(**more)
        with torch.no_grad():
            model.classifier.weight.zero_()
            model.classifier.bias.fill_(torch.tensor(3.0).log())
        name = model.config.id2label[0]
        judged = NLIJudge(model, bert_tokenizer(), label=name).judge_batch([Pair("w1", "w2")])
        assert judged[0].p == pytest.approx(3 / 4)


@pytest.mark.parametrize("labels", [{0: "not_entailment", 1: "other"}, {0: "LABEL_0", 1: "LABEL_1", 2: "LABEL_2"}])
def test_a_model_without_an_entailment_label_is_refused_and_its_labels_named(labels):
    with pytest.raises(ConfigError, match=f"'entailment'; its labels are '{labels[0]}', '{labels[1]}'"):
        NLIJudge(bert(labels), bert_tokenizer())
    assert NLIJudge(bert(labels), bert_tokenizer(), label=labels[1].upper()).judge_batch([Pair("w1", "w2")])


@pytest.mark.parametrize("name", ["ENTAILMENT", "entail", "Entails"])
def test_the_label_is_found_in_any_case_and_in_either_table(name):
    model = bert({0: "no", 1: name})
    assert NLIJudge(model, bert_tokenizer()).judge_batch([Pair("w1", "w2")])[0].p > 0
    model.config.id2label = {0: "LABEL_0", 1: "LABEL_1"}  # label2id still says it
    assert NLIJudge(model, bert_tokenizer()).judge_batch([Pair("w1", "w2")])[0].p > 0


def test_other_models_are_refused(tmp_path):
    lab.model().save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="neither a sequence classifier"):
        NLIJudge.from_pretrained(str(tmp_path))
    with pytest.raises(ConfigError, match=r"LlamaForCausalLM\).*'generator'"):
        NLIJudge(lab.model(), lab.tokenizer())
    bare = bert_tokenizer()
    bare.pad_token = None
    with pytest.raises(ConfigError, match="padding"):
        NLIJudge(bert(), bare)


def test_p_is_that_of_the_pair_read_alone():
    judge = NLIJudge(bert(), bert_tokenizer())
    pairs = [Pair("w1 w2 w3", "w2"), Pair("w11. w12. w13.", "w14")]
    expected = [by_hand(judge, pair.premise, pair.hypothesis) for pair in pairs]
    assert [v.p for v in judge.judge_batch(pairs)] == pytest.approx(expected, abs=1e-5)


def test_a_long_premise_gets_the_most_of_its_windows():
    judge = NLIJudge(bert(), bert_tokenizer(), window=24, stride=8)
    verdict = judge.judge_batch([Pair(LONG, "w9 w10")])[0]
    sentences = [f"{' '.join(WORDS[start : start + 7])}." for start in range(0, 196, 7)]
    parts = [
        " ".join(sentences[start : start + 3]) for start in range(0, 27, 2)
    ]  # of 8 tokens, three fit, one is shared
    expected = [by_hand(judge, part, "w9 w10") for part in parts]
    assert verdict.p == pytest.approx(max(expected), abs=1e-5)
    assert max(expected) - min(expected) > 0.01 and max(expected) not in (expected[0], expected[-1])
    assert f"the most of {len(parts)} windows" in verdict.why


def test_windows_shrink_to_what_the_model_holds():
    judge = NLIJudge(bert(), bert_tokenizer(), window=1000, stride=0)
    hypothesis = " ".join(WORDS[:21])  # leaves 64 - 3 - 21 = 40 tokens: five sentences
    verdict = judge.judge_batch([Pair(LONG, hypothesis)])[0]
    sentences = [f"{' '.join(WORDS[start : start + 7])}." for start in range(0, 196, 7)]
    parts = [" ".join(sentences[start : start + 5]) for start in range(0, 28, 5)]
    assert verdict.p == pytest.approx(max(by_hand(judge, part, hypothesis) for part in parts), abs=1e-5)


def test_a_hypothesis_that_is_too_long_is_cut_and_said_to_be():
    judge = NLIJudge(bert(), bert_tokenizer())
    verdict = judge.judge_batch([Pair("w1 w2", LONG)])[0]
    # (64 - 3) // 2 = 30 tokens are three sentences of 8
    assert "the hypothesis was cut from 224 tokens to its first 24" in verdict.why
    sentences = [f"{' '.join(WORDS[start : start + 7])}." for start in range(0, 21, 7)]
    assert verdict.p == pytest.approx(by_hand(judge, "w1 w2", " ".join(sentences)), abs=1e-5)


def test_an_empty_hypothesis_follows_from_nothing():
    verdict = NLIJudge(bert(), bert_tokenizer()).judge_batch([Pair("w1", " \n")])[0]
    assert (verdict.p, verdict.label, verdict.why) == (0.0, False, "there is nothing to judge")


def test_control_tokens_in_the_evidence_are_text():
    tokenizer = bert_tokenizer()
    judge = NLIJudge(bert(), tokenizer)
    row = judge._head.encode(tokenizer, [("w1 [SEP] w2 [CLS]", "w3")], 64)[0]
    assert (row["input_ids"].count(tokenizer.sep_token_id), row["input_ids"].count(tokenizer.cls_token_id)) == (2, 1)
    assert judge.judge_batch([Pair("w1 \ud800", "w2 \udfff")])[0].p > 0


def test_roberta_counts_its_positions_behind_the_padding():
    torch.manual_seed(3)
    size = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = RobertaConfig(
        vocab_size=300, max_position_embeddings=34, pad_token_id=0, id2label=LABELS, type_vocab_size=2, **size
    )
    model, tokenizer = RobertaForSequenceClassification(config).eval(), bert_tokenizer(10**30)
    assert max_tokens(model, tokenizer) == 33
    # with one position more this would be an IndexError
    assert NLIJudge(model, tokenizer).judge_batch([Pair(LONG, LONG)])[0].p > 0


@pytest.mark.parametrize(("whole", "start"), [("▁1", (0,)), ("▁0", (0,)), ("", (0, 3))])
def test_a_seq2seq_model_is_read_where_its_labels_part(whole, start):
    model, tokenizer = t5(), t5_tokenizer(whole)
    judge = NLIJudge(model, tokenizer)
    assert judge._head.start == start
    pairs = [Pair("a b c.", "b"), Pair("z" * 60, "y z"), Pair("", "k")]
    for pair, verdict in zip(pairs, judge.judge_batch(pairs), strict=True):
        text = f"premise: {pair.premise} hypothesis: {pair.hypothesis}"
        expected = written(model, tokenizer, text, start)
        assert verdict.p == pytest.approx(expected, abs=1e-5)


def written(model: Any, tokenizer: Any, text: str, start: tuple[int, ...]) -> float:
    """p(1) of the two labels as the model's own generation has it."""
    yes, no = (tokenizer(label)["input_ids"][len(start) - 1] for label in "10")
    encoded = tokenizer(text, return_tensors="pt")
    output = model.generate(
        **encoded,
        decoder_input_ids=torch.tensor([start]),
        max_new_tokens=1,
        do_sample=False,
        output_logits=True,
        return_dict_in_generate=True,
    )
    probs = output.logits[0][0].float().softmax(-1)
    return float(probs[yes] / (probs[yes] + probs[no]))


def test_a_seq2seq_model_reads_windows_too():
    judge = NLIJudge(t5(), t5_tokenizer(), window=44, stride=0)
    text = " ".join(f"{letter * 18}." for letter in "ABCD")  # 21 tokens each, its blank included
    verdict = judge.judge_batch([Pair(text, "b")])[0]
    halves = [judge.judge_batch([Pair(part, "b")])[0].p for part in (text[:39], text[40:])]
    assert verdict.p == pytest.approx(max(halves), abs=1e-5) and "2 windows" in verdict.why


def words(texts: Any) -> list[int]:
    return [len(text.split()) for text in texts]


@given(st.lists(st.sampled_from([" ", " ", ". ", ".\n\n", "\n"]), max_size=60), st.integers(1, 12), st.integers(0, 15))
def test_windows_cover_the_text_and_keep_to_size_and_overlap(blanks, size, stride):
    text = "".join(f"W{number}{blank}" for number, blank in enumerate(blanks))
    every, reached = text.split(), 0
    for window in windows(text, size, stride, words):
        start = every.index(window.split()[0]) if every else 0
        assert window in text and len(window.split()) <= size
        assert max(0, reached - stride) <= start <= reached  # nothing left out, not too much twice
        assert start + len(window.split()) > reached or not every  # each says something new
        reached = start + len(window.split())
    assert reached == len(every)


def test_windows_cut_a_text_without_blanks():
    assert windows("abcdefg", 3, 0, lambda texts: list(map(len, texts))) == ["abc", "de", "fg"]


@given(st.lists(st.integers(0, 50)), st.integers(1, 100))
def test_batches_hold_every_row_once_within_the_budget(lengths, budget):
    found = list(batches(lengths, budget))
    assert sorted(row for batch in found for row in batch) == list(range(len(lengths)))
    for batch in found:
        assert len(batch) == 1 or len(batch) * max(lengths[row] for row in batch) <= budget
