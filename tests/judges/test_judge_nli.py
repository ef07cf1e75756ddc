"""Entailment models as judges: tiny ones, untrained or with weights set by hand. Distilled judges'
files.
"""

import json
import math
import random
from dataclasses import replace
from typing import Any

import lab
import pytest
import torch
from hypothesis import given, strategies as st
from tiny_bert import LABELS, LONG, SHAPE, WORDS, bert, bert_tokenizer, saved, t5, t5_tokenizer
from transformers import RobertaConfig, RobertaForSequenceClassification

from faithful_search.distil.heads import COLDEST, HOTTEST, fit_temperature, negative_log_likelihood
from faithful_search.errors import ConfigError
from faithful_search.inference.batching import batches
from faithful_search.inference.loading import max_tokens
from faithful_search.judges import Judge, Pair, distilled, load
from faithful_search.judges.distilled import JudgeFile, calibrated
from faithful_search.judges.generator import GeneratorJudge
from faithful_search.judges.nli import NLIJudge
from faithful_search.judges.windowed import Input
from faithful_search.judges.windows import windows

PAIR = Pair("w1", "w2")
SENTENCES = [
    f"{' '.join(WORDS[start : start + 7])}." for start in range(0, 196, 7)
]  # of LONG, 8 tokens each


def by_hand(judge: NLIJudge, premise: str, hypothesis: str) -> float:
    """p without batching, windows or helpers."""
    encoded = judge.tokenizer(premise, hypothesis, return_tensors="pt")
    with torch.no_grad():
        return float(judge.model(**encoded).logits[0].softmax(-1)[2])


def fixed(biases: list[float], **more: Any) -> Any:
    """A classifier whose logits are these whatever it reads."""
    model = bert(**more)
    with torch.no_grad():
        model.classifier.weight.zero_()
        model.classifier.bias.copy_(torch.tensor(biases).log())
    return model


def test_p_is_the_softmax_at_the_entailment_label():
    judge = NLIJudge(fixed([1.0, 2.0, 5.0]), bert_tokenizer(), "made/by-hand")
    [verdict] = judge.judge_batch([PAIR])
    assert verdict.p == pytest.approx(5 / 8)
    assert verdict.label
    assert isinstance(judge, Judge)
    assert (verdict.why, verdict.judge) == ("p(entailment) = 0.625", "nli:made/by-hand")
    assert not replace(judge, threshold=0.63).judge_batch([PAIR])[0].label
    assert replace(judge, label="neutral").judge_batch([PAIR])[0].p == pytest.approx(2 / 8)


@pytest.mark.parametrize(
    ("more", "biases"),
    [
        ({"labels": {0: "supported"}}, [3.0]),
        ({"problem_type": "multi_label_classification"}, [3.0, 3.0, 3.0]),
    ],
)
def test_labels_that_do_not_exclude_each_other_get_a_sigmoid(more, biases):
    model = fixed(biases, **more)
    [verdict] = NLIJudge(model, bert_tokenizer(), label=model.config.id2label[0]).judge_batch(
        [PAIR]
    )
    assert verdict.p == pytest.approx(3 / 4)


@pytest.mark.parametrize(
    "labels", [{0: "not_entailment", 1: "other"}, {0: "LABEL_0", 1: "LABEL_1", 2: "LABEL_2"}]
)
def test_a_model_without_an_entailment_label_is_refused(labels):
    with pytest.raises(
        ConfigError, match=f"'entailment'; its labels are '{labels[0]}', '{labels[1]}'"
    ):
        NLIJudge(bert(labels), bert_tokenizer())
    assert NLIJudge(bert(labels), bert_tokenizer(), label=labels[1].upper()).judge_batch([PAIR])


@pytest.mark.parametrize("name", ["ENTAILMENT", "entail"])
def test_the_label_is_found_in_any_case_and_in_either_table(name):
    model = bert({0: "no", 1: name})
    for table in (model.config.id2label, {0: "LABEL_0", 1: "LABEL_1"}):  # label2id still says it
        model.config.id2label = table
        assert NLIJudge(model, bert_tokenizer()).judge_batch([PAIR])[0].p > 0


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


@pytest.mark.parametrize(
    (
        "pair",
        "knobs",
        "step",
        "size",
    ),  # what is read: each so many sentences begins a window of so many
    [
        (Pair("w1 w2 w3", "w2"), {}, 0, 0),
        (
            Pair(LONG, "w9 w10"),
            {"window": 24, "stride": 8},
            2,
            3,
        ),  # three of 8 tokens fit, one is shared
        # the hypothesis leaves 64 - 3 - 21 = 40 of the model's tokens
        (Pair(LONG, " ".join(WORDS[:21])), {"window": 1000, "stride": 0}, 5, 5),
    ],
)
def test_p_is_the_most_of_the_windows_each_read_alone(pair, knobs, step, size):
    judge = NLIJudge(bert(), bert_tokenizer(), **knobs)
    starts = range(0, len(SENTENCES) - (step < size), step) if step else ()
    parts = [" ".join(SENTENCES[start : start + size]) for start in starts] or [pair.premise]
    [verdict] = judge.judge_batch([pair])
    expected = [by_hand(judge, part, pair.hypothesis) for part in parts]
    assert verdict.p == pytest.approx(max(expected), abs=1e-5)
    if len(parts) > 1:
        assert f"the most of {len(parts)} windows" in verdict.why
        assert max(expected) - min(expected) > 0.01


def test_a_hypothesis_that_is_too_long_is_cut():
    judge = NLIJudge(bert(), bert_tokenizer())
    long, empty = judge.judge_batch([Pair("w1 w2", LONG), Pair("w1", " \n")])
    # (64 - 3) // 2 = 30 tokens are three sentences of 8
    assert "the hypothesis was cut from 224 tokens to its first 24" in long.why
    assert long.p == pytest.approx(by_hand(judge, "w1 w2", " ".join(SENTENCES[:3])), abs=1e-5)
    assert (empty.p, empty.label, empty.why) == (0.0, False, "there is nothing to judge")


def test_control_tokens_in_the_evidence_are_text():
    tokenizer = bert_tokenizer()
    judge = NLIJudge(bert(), tokenizer)
    [row] = judge.encode([Input("w1 [SEP] w2 [CLS]", "w3")])
    assert (
        row["input_ids"].count(tokenizer.sep_token_id),
        row["input_ids"].count(tokenizer.cls_token_id),
    ) == (2, 1)
    assert judge.judge_batch([Pair("w1 \ud800", "w2 \udfff")])[0].p > 0


def test_roberta_counts_its_positions_behind_the_padding():
    torch.manual_seed(3)
    more = {
        "max_position_embeddings": 34,
        "pad_token_id": 0,
        "id2label": LABELS,
        "type_vocab_size": 2,
    }
    model, tokenizer = (
        RobertaForSequenceClassification(RobertaConfig(**SHAPE | more)).eval(),
        bert_tokenizer(10**30),
    )
    assert max_tokens(model, tokenizer) == 33
    # with one position more this would be an IndexError
    assert NLIJudge(model, tokenizer).judge_batch([Pair(LONG, LONG)])[0].p > 0


@pytest.mark.parametrize(("whole", "start"), [("▁1", (0,)), ("▁0", (0,)), ("", (0, 3))])
def test_a_seq2seq_model_is_read_where_its_labels_part(whole, start):
    judge = NLIJudge(t5(), t5_tokenizer(whole))
    pairs = [Pair("a b c.", "b"), Pair("z" * 60, "y z"), Pair("", "k")]
    for pair, verdict in zip(pairs, judge.judge_batch(pairs), strict=True):
        text = f"premise: {pair.premise} hypothesis: {pair.hypothesis}"
        assert verdict.p == pytest.approx(written(judge, text, start), abs=1e-5)


def written(judge: NLIJudge, text: str, start: tuple[int, ...]) -> float:
    """p(1) of the two labels as the model's own generation has it."""
    yes, no = (judge.tokenizer(label)["input_ids"][len(start) - 1] for label in "10")
    how = {
        "max_new_tokens": 1,
        "do_sample": False,
        "output_logits": True,
        "return_dict_in_generate": True,
    }
    encoded = judge.tokenizer(text, return_tensors="pt")
    output = judge.model.generate(**encoded, decoder_input_ids=torch.tensor([start]), **how)
    probs = output.logits[0][0].float().softmax(-1)
    return float(probs[yes] / (probs[yes] + probs[no]))


@given(
    st.lists(st.sampled_from([" ", " ", ". ", ".\n\n", "\n"]), max_size=60),
    st.integers(1, 12),
    st.integers(0, 15),
)
def test_windows_cover_the_text_and_keep_to_size_and_overlap(blanks, size, stride):
    text = "".join(f"W{number}{blank}" for number, blank in enumerate(blanks))
    every, reached = text.split(), 0
    for window in windows(text, size, stride, lambda texts: [len(text.split()) for text in texts]):
        start = every.index(window.split()[0]) if every else 0
        assert window in text
        assert len(window.split()) <= size
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
    assert all(
        len(batch) == 1 or len(batch) * max(lengths[row] for row in batch) <= budget
        for batch in found
    )


# ---- what a distilled judge's directory says about it, and how p is calibrated

PAIRS = [Pair("w1 w2 w3.", "w2"), Pair("w5 w6.", "w9"), Pair("w11. w12. w13.", "w14")]


def logit(p: float) -> float:
    return math.log(p / (1 - p))


@given(st.floats(0, 1), st.floats(0, 1), st.floats(0.05, 20))
def test_calibration_keeps_labels_and_order(p, other, value):
    assert (calibrated(p, value) >= 0.5) == (p >= 0.5)
    low, high = sorted((p, other))
    assert 0 <= calibrated(low, value) <= calibrated(high, value) <= 1
    found = calibrated(p, value)
    if 1e-6 < p < 1 - 1e-6 and 1e-9 < found < 1 - 1e-9:
        assert math.isclose(logit(found) * value, logit(p), rel_tol=1e-5, abs_tol=1e-9)


def test_the_label_of_a_p_just_below_one_half_survives_rounding():
    assert calibrated(math.nextafter(0.5, 0), 3.0) < 0.5
    assert calibrated(5e-324, 0.05) == pytest.approx(0, abs=1e-300)


@pytest.mark.parametrize("known", ["there", "missing", "unknown"])
def test_an_unreachable_judge_file_is_not_taken_for_missing(tmp_path, monkeypatch, known):
    """The cache holds the file, or that the Hub has none, or neither: then the file was never asked
    for.
    """
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    own, commit = tmp_path / "models--me--judge", "a" * 40
    for folder in ("refs", f"snapshots/{commit}", f".no_exist/{commit}"):
        (own / folder).mkdir(parents=True)
    (own / "refs" / "main").write_text(commit)
    (own / "snapshots" / commit / "config.json").write_text("{}")
    if known == "there":
        JudgeFile("nli", temperature=2.0).write(own / "snapshots" / commit)
        assert distilled.settings("me/judge", "nli") == {"temperature": 2.0, "threshold": 0.5}
    elif known == "missing":
        (own / ".no_exist" / commit / "judge.json").touch()
        assert distilled.settings("me/judge", "nli") == {}
    else:
        with pytest.raises(
            ConfigError, match=r"there is a judge\.json beside the model 'me/judge' is not known"
        ):
            distilled.settings("me/judge", "nli")


@pytest.mark.parametrize(
    "told",
    [
        "",
        '"kind": "x"',
        '"temperature": 2',
        '"kind": "nli", "temperature": 0',
        '"kind": "generator", "stride": 8',
        "[",
    ],
)
def test_a_broken_file_is_named(tmp_path, told):
    (tmp_path / "judge.json").write_text(f"{{{told}}}")
    with pytest.raises(ConfigError, match=r"cannot read judge\.json of the judge"):
        distilled.read(str(tmp_path))


@pytest.mark.parametrize("kind", ["generator", "span"])
def test_a_stride_is_a_classifiers(kind):
    with pytest.raises(ConfigError, match=f"has a stride, one of the kind '{kind}' has none"):
        JudgeFile(kind, window=512, stride=64)


@pytest.mark.parametrize("value", [0.0, -1.0, math.inf, math.nan])
def test_what_is_no_temperature_is_refused(value):
    with pytest.raises(ConfigError, match="temperature must be above 0"):
        GeneratorJudge(None, temperature=value)
    with pytest.raises(ConfigError, match="temperature must be above 0"):
        NLIJudge(bert(), bert_tokenizer(), temperature=value)


@pytest.mark.parametrize(
    ("given", "other", "model", "tokenizer"),
    [
        (
            JudgeFile("nli", temperature=4.0, threshold=0.6, window=20, stride=4),
            "generator",
            bert,
            bert_tokenizer,
        ),
        (JudgeFile("generator", temperature=0.5, window=3000), "nli", lab.model, lab.tokenizer),
    ],
)
def test_a_judge_reads_its_file_and_knobs_win(tmp_path, given, other, model, tokenizer):
    folder = saved(tmp_path, model(), tokenizer())
    assert distilled.read(folder) is None
    assert distilled.settings(folder, given.kind) == {}
    plain = load(given.kind, folder).judge_batch(PAIRS)
    given.write(folder)
    assert distilled.read(folder) == given
    assert json.loads((tmp_path / "judge.json").read_text())["version"] == 1
    judge, known = load(given.kind, folder), distilled.settings(folder, given.kind)
    assert {name: getattr(judge, name) for name in known} == known
    assert known["window"] == given.window
    for before, after in zip(plain, judge.judge_batch(PAIRS), strict=True):
        assert logit(after.p) * given.temperature == pytest.approx(logit(before.p), abs=1e-5)
        assert after.label == (after.p >= given.threshold)
    assert load(given.kind, folder, temperature=1.0).judge_batch(PAIRS)[0].p == plain[0].p
    with pytest.raises(ConfigError, match=f"use --judge {given.kind}"):
        load(other, folder)


@given(st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1, max_size=30))
def test_no_temperature_does_better_than_the_fitted_one(rows):
    p, labels = [row[0] for row in rows], [row[1] for row in rows]
    found = fit_temperature(p, labels)
    assert COLDEST <= found <= HOTTEST
    inside = [min(max(value, 1e-12), 1 - 1e-12) for value in p]

    def loss(value: float) -> float:
        return negative_log_likelihood([calibrated(own, value) for own in inside], labels)

    assert all(loss(found) <= loss(other) + 1e-6 for other in (0.05, 0.3, 1.0, 1.7, 5.0, 20.0))


def test_calibration_finds_the_temperature_of_the_labels():
    rng = random.Random(1)
    logits = [rng.gauss(0, 3) for _ in range(20000)]
    labels = [rng.random() < 1 / (1 + math.exp(-z / 3)) for z in logits]
    assert fit_temperature([1 / (1 + math.exp(-z)) for z in logits], labels) == pytest.approx(
        3, rel=0.1
    )
    assert fit_temperature([0.9, 0.1], [True, False]) == pytest.approx(COLDEST, rel=1e-6)
    assert fit_temperature([0.9, 0.1], [False, True]) == pytest.approx(HOTTEST, rel=1e-6)
    assert fit_temperature([], []) == 1.0
