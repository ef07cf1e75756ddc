"""What judges that run a model here have in common, and the one that compares vectors."""

import json
import pickle
from dataclasses import replace
from typing import Any

import lab
import numpy as np
import pytest
import torch
from tiny_bert import LONG, bert, bert_tokenizer, saved, t5, t5_tokenizer, tiny_encoder

from faithful_search.errors import ConfigError
from faithful_search.inference.encoder import Encoder
from faithful_search.judges import Judge, Pair, load
from faithful_search.judges.embedding import EmbeddingJudge

MADE = {
    "classifier": ("nli", bert, bert_tokenizer),
    "seq2seq": ("nli", t5, t5_tokenizer),
    "generator": ("generator", lab.model, lab.tokenizer),
    "embedding": ("embedding", tiny_encoder, bert_tokenizer),
}
PAIRS = [
    Pair("w1 w2 w3", "w2"),
    Pair(LONG, "w9 w10"),
    Pair("", "w4"),
    Pair("w5 " * 30, "w7 w8 w9 w10", "Which one?"),
    Pair("w11. w12. w13.", "w14", "", "think_search"),
]


@pytest.fixture(params=MADE)
def made(request: Any, tmp_path: Any) -> tuple[str, str]:
    """The kind of a judge, and the directory of its model."""
    kind, model, tokenizer = MADE[request.param]
    return kind, saved(tmp_path, model(), tokenizer())


def test_it_loads_from_a_directory_prints_and_pickles(made):
    kind, folder = made
    judge = load(kind, folder, threshold=0.25)
    assert isinstance(judge, Judge)
    assert judge.name == f"{kind}:{folder}"
    assert f"source={folder!r}" in repr(judge)
    assert "threshold=0.25" in repr(judge)
    assert "model=" not in repr(judge)
    again = pickle.loads(pickle.dumps(judge))
    assert again.judge_batch(PAIRS) == judge.judge_batch(PAIRS)
    assert judge.judge_batch([]) == []
    sure = replace(judge, threshold=1.0).judge_batch(PAIRS)
    assert [v.p for v in sure] == [v.p for v in judge.judge_batch(PAIRS)]
    assert not any(v.label for v in sure)


def test_a_batch_says_what_single_pairs_say_in_their_order(made):
    kind, folder = made
    for budget in (1, 130, 10_000):
        judge = load(kind, folder, batch_tokens=budget)
        together, alone = judge.judge_batch(PAIRS), [judge.judge_batch([pair])[0] for pair in PAIRS]
        assert [v.p for v in together] == pytest.approx([v.p for v in alone], abs=1e-5)
        assert [v.why.split()[0] for v in together] == [v.why.split()[0] for v in alone]
    assert len({round(v.p, 5) for v in together}) == len(PAIRS)  # else order could not be seen


@pytest.mark.parametrize("kind", ["nli", "generator", "embedding"])
def test_what_cannot_be_opened_or_set_is_refused(kind, tmp_path):
    with pytest.raises(ConfigError, match="there is no model"):
        load(kind, str(tmp_path / "nothing"))
    _, model, tokenizer = next(parts for parts in MADE.values() if parts[0] == kind)
    saved(tmp_path, model(), tokenizer())
    for knobs in ({"threshold": 1.5}, {"window": 0}, {"window": 8, "stride": 8}, {"stride": -1}):
        with pytest.raises(
            (ConfigError, TypeError) if kind == "generator" and "stride" in knobs else ConfigError
        ):
            load(kind, str(tmp_path), **knobs)
    with pytest.raises(ConfigError, match="at least 1 token"):
        load(kind, str(tmp_path), batch_tokens=0).judge_batch(PAIRS)


def test_a_damaged_model_gives_no_verdict(made):
    kind, folder = made
    judge = load(kind, folder)
    holder = {"generator": "generator", "embedding": "encoder"}.get(kind)
    model = getattr(judge, holder).model if holder else judge.model
    for weights in model.parameters():
        torch.nn.init.constant_(weights, float("nan"))
    verdict = judge.judge_batch(PAIRS)[0]
    assert verdict.abstained
    assert "nan" in verdict.why


@pytest.mark.parametrize("network", [bert, tiny_encoder])
def test_a_model_without_a_head_that_writes_is_no_generator(network, tmp_path):
    saved(tmp_path, network())
    with pytest.raises(ConfigError, match=rf"is a {type(network()).__name__}, .* random weights"):
        load("generator", str(tmp_path))


# ---- the encoder, against pooling done by hand, and the judge that compares its vectors

BOTH = ("pooling_mode_cls_token", "pooling_mode_mean_tokens")
TEXTS = ["w1", "w2 w3 w4 w5 w6 w7 w8", "", "w9 w10", "w11 w12 w13"]


def by_hand(encoder: Encoder, text: str) -> np.ndarray:
    """The vector of one text, without padding."""
    encoded = encoder.tokenizer(
        text, return_tensors="pt", truncation=True, max_length=encoder.limit
    )
    with torch.no_grad():
        states = encoder.model(**encoded).last_hidden_state[0]
    pooled = {"mean": states.mean(0), "cls": states[0], "max": states.amax(0)}[
        encoder.pooling
    ].numpy()
    return pooled / np.linalg.norm(pooled)


def layout(*kinds: str) -> list[dict[str, str]]:
    paths = {
        "Transformer": "",
        "Pooling": "1_Pooling",
        "Normalize": "2_Normalize",
        "Dense": "3_Dense",
    }
    return [{"type": f"sentence_transformers.models.{kind}", "path": paths[kind]} for kind in kinds]


@pytest.mark.parametrize("pooling", ["mean", "cls", "max"])
@pytest.mark.parametrize("budget", [1, 20, 1000])
def test_vectors_are_those_of_single_texts_in_order(pooling, budget):
    encoder = Encoder(tiny_encoder(), bert_tokenizer(), pooling=pooling, batch_tokens=budget)
    vectors = encoder.encode(TEXTS)
    assert vectors.shape == (len(TEXTS), 16)
    assert vectors.dtype == np.float32
    assert np.allclose(vectors, [by_hand(encoder, text) for text in TEXTS], atol=1e-5)
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
    assert len(np.unique(vectors.round(3), axis=0)) == len(TEXTS)  # else order could not be seen
    assert encoder.encode([]).shape == (0, 16)


def test_a_prefix_is_written_before_queries_and_passages():
    encoder = Encoder(tiny_encoder(), bert_tokenizer(), query_prefix="w20 ", passage_prefix="w21 ")
    plain = encoder.encode(["w1", "w20 w1", "w21 w1"])
    assert np.allclose(encoder.encode(["w1"]), plain[0], atol=1e-6)
    assert np.allclose(encoder.encode(["w1"], "query"), plain[1], atol=1e-6)
    assert np.allclose(encoder.encode(["w1"], "passage"), plain[2], atol=1e-6)


def test_long_texts_are_cut_and_control_tokens_are_text():
    encoder = Encoder(tiny_encoder(), bert_tokenizer(), limit=10)
    assert encoder.room == 8
    assert encoder.count(["w1 w2 .", ""]) == [3, 0]
    start = LONG[: LONG.index(".") + 1]  # seven words and a full stop
    assert np.allclose(encoder.encode([LONG]), encoder.encode([start]), atol=1e-5)
    assert encoder._encoded(["[SEP] \ud800"])[0].count(encoder.tokenizer.sep_token_id) == 1


def test_an_encoder_without_a_layout_takes_the_mean(tmp_path):
    encoder = Encoder.from_pretrained(saved(tmp_path / "0_Transformer"))
    assert (encoder.pooling, encoder.limit, encoder.query_prefix) == ("mean", 64, "")
    assert np.allclose(
        encoder.encode(TEXTS), Encoder(tiny_encoder(), bert_tokenizer()).encode(TEXTS), atol=1e-6
    )
    modules = [{"type": "sentence_transformers.models.Transformer", "path": "0_Transformer"}]
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    (tmp_path / "0_Transformer" / "sentence_bert_config.json").write_text('{"max_seq_length": 20}')
    assert Encoder.from_pretrained(str(tmp_path)).limit == 20


def test_the_layout_of_sentence_transformers_is_read(tmp_path):
    files = {
        "modules": layout("Transformer", "Pooling", "Normalize"),
        "1_Pooling__config": {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False},
        "sentence_bert_config": {"max_seq_length": 24},
        "config_sentence_transformers": {"prompts": {"query": "w1 ", "document": "w2 "}},
    }
    encoder = Encoder.from_pretrained(saved(tmp_path, **files))
    assert (encoder.pooling, encoder.limit) == ("cls", 24)
    assert (encoder.query_prefix, encoder.passage_prefix) == ("w1 ", "w2 ")
    assert Encoder.from_pretrained(str(tmp_path), limit=12, query_prefix="").limit == 12


@pytest.mark.parametrize(
    ("last", "pooled", "complaint"),
    [
        ("Dense", {}, "Dense"),
        ("Pooling", dict.fromkeys(BOTH, True), f"pools by {', '.join(BOTH)}"),
        ("Pooling", {}, "pools by nothing"),
    ],
)
def test_a_layout_that_cannot_be_followed_is_refused(tmp_path, last, pooled, complaint):
    folder = saved(tmp_path, modules=layout("Transformer", last), **{"1_Pooling__config": pooled})
    with pytest.raises(ConfigError, match=complaint):
        Encoder.from_pretrained(folder)


def test_p_is_the_greatest_cosine_mapped_to_one():
    encoder = Encoder(tiny_encoder(), bert_tokenizer())
    judge = EmbeddingJudge(encoder, window=16, stride=8)
    pairs = [Pair("w1 w2", "w3"), Pair(LONG, "w9 w10"), Pair("w4 w5", "w4 w5")]
    words = LONG.split()
    parts = [
        " ".join(words[start : start + 14]) for start in range(0, 189, 7)
    ]  # two sentences, one of them shared
    long = max(float(by_hand(encoder, part) @ by_hand(encoder, "w9 w10")) for part in parts)
    cosines = [float(by_hand(encoder, "w1 w2") @ by_hand(encoder, "w3")), long, 1.0]
    verdicts = judge.judge_batch(pairs)
    assert [v.p for v in verdicts] == pytest.approx(
        [(1 + cosine) / 2 for cosine in cosines], abs=1e-5
    )
    assert verdicts[2].label
    assert 0 <= verdicts[2].p <= 1
    assert f"the most of {len(parts)} windows" in verdicts[1].why
    assert [judge.judge_batch([pair])[0].p for pair in pairs] == pytest.approx(
        [v.p for v in verdicts], abs=1e-5
    )
    nothing = judge.judge_batch([Pair("", "w1"), Pair("w1", " ")])
    assert [(v.p, v.label, v.why) for v in nothing] == [
        (0.0, False, "there is nothing to compare")
    ] * 2
