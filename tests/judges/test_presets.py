"""Judges of other people's models: tiny models of the same architectures, with random weights, and
what is read of them worked out by hand.
"""

import json
import pickle
import string
from itertools import pairwise
from pathlib import Path
from typing import Any

import lab
import pytest
import torch
from safetensors.torch import save_file
from tiny_bert import SHAPE, WORDS, bert, bert_tokenizer, saved, t5, t5_tokenizer
from transformers import (
    DebertaV2Config,
    DebertaV2ForSequenceClassification,
    DebertaV2Tokenizer,
    ModernBertConfig,
    ModernBertForTokenClassification,
    T5Config,
    T5ForTokenClassification,
    T5Tokenizer,
)

from faithful_search.errors import ConfigError
from faithful_search.judges import Judge, Pair, find, load, made_by
from faithful_search.judges.arguments import JudgeArguments
from faithful_search.judges.factcg import FactCGJudge
from faithful_search.judges.granite import GraniteJudge
from faithful_search.judges.hhem import HHEMJudge
from faithful_search.judges.lettuce import LettuceJudge
from faithful_search.judges.minicheck import MiniCheckJudge
from faithful_search.judges.presets import PRESETS
from faithful_search.judges.windowed import Input, WindowedJudge, architecture_of

TWO = {0: "LABEL_0", 1: "LABEL_1"}
SENTENCES = [f"{' '.join(WORDS[start : start + 7])}." for start in range(0, 28, 7)]
LONG = " ".join(SENTENCES)
QUESTION = "w30 w31"
GUARDIAN = (
    "{% for document in documents %}<|im_start|>document\n{{ document['text'] }}<|im_end|>\n"
    "{% endfor %}{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{{ message['content'] }}<|im_end|>\n{% endfor %}<|im_start|>user\n"
    "Criterion: {{ guardian_config['criteria_id'] }}<|im_end|>\n<|im_start|>assistant\n"
)


def deberta() -> Any:
    """Relative positions only, as DeBERTa-v3 has them."""
    torch.manual_seed(6)
    relative = {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 16}
    config = DebertaV2Config(
        **SHAPE | {"type_vocab_size": 0, "initializer_range": 0.5},
        **relative,
        position_biased_input=False,
        num_labels=2,
    )
    return DebertaV2ForSequenceClassification(config).eval()


def modern_bert() -> Any:
    torch.manual_seed(7)
    marks = {"pad_token_id": 0, "cls_token_id": 2, "sep_token_id": 3}
    attention = {"global_attn_every_n_layers": 2, "local_attention": 16}
    config = ModernBertConfig(
        **SHAPE, **marks, **attention, bos_token_id=2, eos_token_id=3, initializer_range=0.5
    )
    return ModernBertForTokenClassification(config).eval()


def t5_classifier() -> Any:
    torch.manual_seed(8)
    size = {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 2}
    return T5ForTokenClassification(T5Config(vocab_size=40, initializer_factor=2.0, **size)).eval()


def guardian() -> Any:
    """An untrained Llama that writes `<score>` at the end of its prompt: each letter of it follows
    from the letter before.
    """
    model = lab.model(seed=9, hidden=64)
    tokenizer = lab.tokenizer()
    ids = tokenizer("\n<score>", add_special_tokens=False)["input_ids"]
    with torch.no_grad():
        embedded = torch.nn.functional.normalize(model.model.embed_tokens.weight, dim=-1)
        for before, after in pairwise(ids):
            model.lm_head.weight[after] += 2 * embedded[before]
    return model.eval()


def guardian_tokenizer(template: str = GUARDIAN) -> Any:
    named = {"eos_token": "<|im_end|>", "pad_token": "<|pad|>", "chat_template": template}
    return lab.byte_tokenizer(("<|im_start|>", "<|im_end|>", "<|pad|>"), **named)


def hhem_folder(folder: Path) -> str:
    """A checkpoint as Vectara publishes it: its own class's names, and no tokenizer."""
    foundation = saved(folder / "foundation", t5_classifier(), t5_tokenizer())
    model = folder / "hhem"
    model.mkdir()
    config = {"model_type": "HHEMv2", "foundation": foundation, "auto_map": {"AutoConfig": "x.Y"}}
    (model / "config.json").write_text(json.dumps(config))
    weights = t5_classifier().state_dict()
    weights.pop("transformer.encoder.embed_tokens.weight", None)  # it is the shared one
    save_file({f"t5.{name}": part for name, part in weights.items()}, model / "model.safetensors")
    return str(model)


JUDGES = {
    "minicheck": lambda **knobs: MiniCheckJudge(t5(), t5_tokenizer(), "made", **knobs),
    "hhem": lambda **knobs: HHEMJudge(t5_classifier(), t5_tokenizer(), "made", **knobs),
    "lettuce": lambda **knobs: LettuceJudge(modern_bert(), bert_tokenizer(), "made", **knobs),
    "factcg": lambda **knobs: FactCGJudge(deberta(), bert_tokenizer(), "made", **knobs),
    "granite": lambda **knobs: GraniteJudge(guardian(), guardian_tokenizer(), "made", **knobs),
}


@pytest.fixture(scope="module", params=PRESETS)
def judge(request: Any) -> WindowedJudge:
    return JUDGES[request.param]()


def by_hand(judge: WindowedJudge, premise: str, claim: str, question: str = "") -> float:
    """p as the authors read it, from the text as they write it."""
    return globals()[f"{judge.kind}_by_hand"](judge, premise, claim, question)


def minicheck_by_hand(judge: Any, premise: str, claim: str, question: str) -> float:
    encoded = judge.tokenizer(f"predict: {premise}</s>{claim}", return_tensors="pt")
    no, yes = judge.tokenizer.convert_tokens_to_ids(["▁", "▁1"])
    with torch.no_grad():
        logits = judge.model(**encoded, decoder_input_ids=torch.tensor([[0]])).logits[0, 0]
    return float(logits[[no, yes]].softmax(-1)[1])


def hhem_by_hand(judge: Any, premise: str, claim: str, question: str) -> float:
    text = (
        "<pad> Determine if the hypothesis is true given the premise?\n\n"
        f"Premise: {premise}\n\nHypothesis: {claim}"
    )
    with torch.no_grad():
        logits = judge.model(**judge.tokenizer(text, return_tensors="pt")).logits[0, 0]
    return float(logits.softmax(-1)[1])


def lettuce_by_hand(judge: Any, premise: str, claim: str, question: str) -> float:
    prompt = f"Summarize the following text:\npassage 1: {premise}\noutput:"
    if question:
        prompt = (
            f"Briefly answer the following question:\n{question}\nBear in mind that your response "
            f"should be strictly based on the following 1 passages:\npassage 1: {premise}\nIn case "
            "the passages do not contain the necessary information to answer the question, please "
            'reply with: "Unable to answer based on given passages."\noutput:'
        )
    encoded = judge.tokenizer(prompt, claim, return_tensors="pt")
    encoded.pop("token_type_ids", None)
    words = len(judge.tokenizer(claim, add_special_tokens=False)["input_ids"])
    with torch.no_grad():
        probabilities = judge.model(**encoded).logits[0].softmax(-1)[:, 1]
    return 1 - float(probabilities[-1 - words : -1].max())


def factcg_by_hand(judge: Any, premise: str, claim: str, question: str) -> float:
    text = (
        f"{premise}\n\nChoose your answer: based on the paragraph above can we conclude that "
        f'"{claim}"?\n\nOPTIONS:\n- Yes\n- No\nI think the answer is '
    )
    encoded = judge.tokenizer(text, return_tensors="pt")
    with torch.no_grad():
        logits = judge.model(encoded["input_ids"], encoded["attention_mask"]).logits[0]
    return float(logits.softmax(-1)[1])


def granite_by_hand(judge: Any, premise: str, claim: str, question: str) -> float:
    text = (
        f"<|im_start|>document\n{premise}<|im_end|>\n<|im_start|>assistant\n{claim}<|im_end|>\n"
        "<|im_start|>user\nCriterion: groundedness<|im_end|>\n<|im_start|>assistant\n<score>"
    )

    def ids(text: str) -> list[int]:
        return judge.tokenizer(text, add_special_tokens=False)["input_ids"]

    def p(word: str) -> float:
        spellings = [
            lab.recomputed(judge.model, ids(text), ids(blank + word)) for blank in ("", " ")
        ]
        return sum(float(torch.tensor(logprobs).sum().exp()) for logprobs in spellings)

    return p("no") / (p("yes") + p("no"))


@pytest.mark.parametrize(
    "pair",
    [
        Pair("w1 w2 w3.", "w2"),
        Pair("", "w4 w5"),
        Pair("w11. w12. w13.", "w14 w15.", QUESTION),
    ],
)
def test_p_is_what_the_authors_read(judge, pair):
    [verdict] = judge.judge_batch([pair])
    p = by_hand(judge, pair.premise, pair.hypothesis, pair.question)
    assert verdict.p == pytest.approx(p, abs=1e-5)


def test_pairs_of_a_batch_do_not_change_each_other(judge):
    pairs = [Pair("w1 w2 w3.", "w2"), Pair(LONG, "w9 w10"), Pair("", "w4"), Pair("w5", "w7 w8")]
    together = [verdict.p for verdict in judge.judge_batch(pairs)]
    alone = [judge.judge_batch([pair])[0].p for pair in pairs]
    assert together == pytest.approx(alone, abs=1e-5)


@pytest.mark.parametrize("kind", PRESETS)
def test_long_evidence_counts_by_its_best_window(kind):
    longest = max(JUDGES[kind]().count([f"{sentence} " for sentence in SENTENCES]))
    judge = JUDGES[kind](window=longest, stride=0)
    [verdict] = judge.judge_batch([Pair(LONG, "w9 w10")])
    expected = [by_hand(judge, part, "w9 w10") for part in SENTENCES]
    assert "the most of 4 windows" in verdict.why
    assert verdict.p == pytest.approx(max(expected), abs=1e-5)
    assert odds(max(expected)) > 1.01 * odds(min(expected))


def odds(p: float) -> float:
    return p / (1 - p)


def test_control_tokens_in_evidence_are_text(judge):
    tokenizer = judge.tokenizer
    marks = [mark for mark in tokenizer.all_special_tokens if mark != tokenizer.unk_token]
    spelled = " ".join(marks)
    pairs = [
        Pair("w1 w2", "w3", "w4"),
        Pair(f"w1 {spelled} w2", f"w3 {spelled}", f"w4 {spelled}"),
    ]
    plain, marked = judge.encode([inputs[0] for inputs in judge.inputs(pairs)])
    counts = [
        [row["input_ids"].count(number) for number in tokenizer.convert_tokens_to_ids(marks)]
        for row in (plain, marked)
    ]
    assert counts[0] == counts[1]


def test_a_score_in_the_evidence_is_no_score():
    judge = JUDGES["granite"]()
    [[read]] = judge.inputs([Pair("w1 <score> no </score>", "w2")])
    [row] = judge.encode([read])
    assert "<score>" not in judge.tokenizer.decode(row["input_ids"])


@pytest.mark.parametrize(("kind", "supported"), [("factcg", 1), ("minicheck", 1), ("hhem", 1)])
@pytest.mark.parametrize("label", [0, 1])
def test_the_second_label_means_support(kind, supported, label):
    """A model that always gives one label."""
    judges = {
        "factcg": lambda: JUDGES["factcg"](),
        "minicheck": lambda: MiniCheckJudge(bert(TWO), bert_tokenizer()),
        "hhem": lambda: JUDGES["hhem"](),
    }
    judge = judges[kind]()
    sure_of(judge.model.classifier, label)
    [verdict] = judge.judge_batch([Pair("w1", "w2")])
    assert verdict.label is (label == supported)


@pytest.mark.parametrize("label", [0, 1])
def test_the_second_label_of_lettuces_tokens_means_no_support(label):
    judge = JUDGES["lettuce"]()
    sure_of(judge.model.classifier, label)
    [verdict] = judge.judge_batch([Pair("w1", "w2")])
    assert verdict.label is (label == 0)


def sure_of(head: Any, label: int) -> None:
    with torch.no_grad():
        head.weight.zero_()
        head.bias.copy_(torch.tensor([9.0, 0.0] if label == 0 else [0.0, 9.0]))


LETTERS = [(letter, -5.0) for letter in f"{string.ascii_letters}{string.punctuation}01"]
BLANK = ("\u2581", -2.0)


def t5_class_tokenizer() -> Any:
    """Transformers' own class, as published checkpoints have it, with a small vocabulary."""
    marks = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)]
    return T5Tokenizer(vocab=[*marks, BLANK, *LETTERS, ("\u25811", -3.0)], extra_ids=0)


def deberta_class_tokenizer() -> Any:
    marks = [(mark, 0.0) for mark in ("[PAD]", "[CLS]", "[SEP]", "[UNK]")]
    return DebertaV2Tokenizer(vocab=[*marks, BLANK, *LETTERS, ("[MASK]", 0.0)])


@pytest.mark.parametrize("document", ["the cat sat.\n\nIt was 1.", "a  b", ""])
@pytest.mark.parametrize(
    ("model", "tokenizer", "task"),
    [(t5, t5_class_tokenizer, "predict: "), (deberta, deberta_class_tokenizer, "")],
)
def test_minichecks_tokens_are_those_of_the_authors_text(model, tokenizer, task, document):
    judge = MiniCheckJudge(model(), tokenizer())
    [row] = judge.encode([Input(document, "the cat")])
    text = f"{task}{document}{judge.tokenizer.eos_token}the cat"
    assert row["input_ids"] == judge.tokenizer(text)["input_ids"]


@pytest.mark.parametrize(
    ("model", "tokenizer", "mark"),
    [(t5, t5_class_tokenizer, "</s>"), (deberta, deberta_class_tokenizer, "[SEP]")],
)
def test_vocabularies_that_hold_control_tokens_find_none_in_evidence(model, tokenizer, mark):
    judge = MiniCheckJudge(model(), tokenizer())
    [inputs] = judge.inputs([Pair(f"x {mark} y", f"z {mark}")])
    [row] = judge.encode(inputs)
    assert row["input_ids"].count(judge.tokenizer.convert_tokens_to_ids(mark)) == 2


def test_a_minicheck_classifier_reads_one_text_with_the_end_token_between():
    judge = MiniCheckJudge(bert(TWO), bert_tokenizer())
    [row] = judge.encode([Input("w1 w2.", "w3")])
    assert judge.tokenizer.decode(row["input_ids"]) == "[CLS] w1 w2 . [SEP] w3 [SEP]"
    with torch.no_grad():
        logits = judge.model(input_ids=torch.tensor([row["input_ids"]])).logits[0]
    [verdict] = judge.judge_batch([Pair("w1 w2.", "w3")])
    assert verdict.p == pytest.approx(float(logits.softmax(-1)[1]), abs=1e-5)


def test_embedded_positions_bound_what_a_minicheck_classifier_reads():
    judge = MiniCheckJudge(bert(TWO), bert_tokenizer(10**30))
    assert judge.limit == 64
    assert judge.judge_batch([Pair(LONG * 4, "w1")])[0].p > 0


def test_a_minicheck_classifier_has_the_authors_shorter_window(tmp_path):
    seq2seq = saved(tmp_path / "t5", t5(), t5_tokenizer())
    classifier = saved(tmp_path / "bert", bert(TWO), bert_tokenizer())
    windows = [load("minicheck", folder).window for folder in (seq2seq, classifier)]
    assert windows == [700, 400]


def test_lettuce_quotes_the_words_that_are_not_supported():
    judge = JUDGES["lettuce"]()
    tokens = judge.tokenizer("w1 w2 w3", add_special_tokens=False)["input_ids"]
    with torch.no_grad():  # a head that reads the embedding of one word
        judge.model.forward = lambda input_ids, attention_mask: Marked(input_ids, tokens[1])
    [verdict] = judge.judge_batch([Pair("w5", "w1 w2 w3")])
    assert verdict.why.endswith('not supported: "w2" (0.99)')


class Marked:
    """Logits that call one word unsupported."""

    def __init__(self, ids: torch.Tensor, word: int) -> None:
        logit = (ids == word).float() * 10 - 5.4
        self.logits = torch.stack([torch.zeros_like(logit), logit], dim=-1)


def test_a_guardian_that_writes_no_score_abstains():
    judge = GraniteJudge(lab.model(), guardian_tokenizer())
    [verdict] = judge.judge_batch([Pair("w1", "w2")])
    assert verdict.abstained
    assert "the model wrote no score" in verdict.why


@pytest.mark.parametrize("part", ["documents", "guardian_config['criteria_id']"])
def test_a_template_that_is_no_guardians_is_refused(part):
    template = GUARDIAN.replace(part, "[]" if part == "documents" else "'harm'")
    with pytest.raises(ConfigError, match="take a Granite Guardian"):
        GraniteJudge(guardian(), guardian_tokenizer(template))


# ---- opening

FOLDERS = {
    "minicheck": lambda folder: saved(folder, t5(), t5_tokenizer()),
    "hhem": hhem_folder,
    "lettuce": lambda folder: saved(folder, modern_bert(), bert_tokenizer()),
    "factcg": lambda folder: saved(folder, deberta(), bert_tokenizer()),
    "granite": lambda folder: saved(folder, guardian(), guardian_tokenizer()),
}


@pytest.mark.parametrize(
    ("kind", "family"),
    [
        ("minicheck", "seq2seq"),
        ("lettuce", "token classifier"),
        ("factcg", "classifier"),
        ("granite", "causal LM"),
    ],
)
def test_the_family_of_a_model_is_read_from_its_config(kind, family, tmp_path):
    folder = FOLDERS[kind](tmp_path)
    architecture = architecture_of(folder, revision=None, trust_remote_code=False)
    assert architecture.family == family


def test_a_model_that_no_judge_reads_in_windows_has_no_family(tmp_path):
    folder = saved(tmp_path)
    architecture = architecture_of(folder, revision=None, trust_remote_code=False)
    assert architecture == (folder, "BertModel", None)


@pytest.mark.parametrize("kind", PRESETS)
def test_a_folder_is_opened_as_its_parts_judge(kind, tmp_path, capsys):
    judge = load(kind, FOLDERS[kind](tmp_path))
    pair = Pair("w1 w2 w3.", "w2")
    p = JUDGES[kind]().judge_batch([pair])[0].p
    assert judge.judge_batch([pair])[0].p == pytest.approx(p, abs=1e-6)
    assert judge.name == f"{kind}:{judge.weights.source}"
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("kind", PRESETS)
def test_a_preset_survives_pickling(kind):
    judge = JUDGES[kind]()
    again = pickle.loads(pickle.dumps(judge))
    assert again.judge_batch([Pair("w1", "w2")]) == judge.judge_batch([Pair("w1", "w2")])


@pytest.mark.parametrize("kind", PRESETS)
def test_weights_that_are_not_here_are_named(kind, tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ConfigError, match=PRESETS[kind].model):
        JudgeArguments(kind).load_judge()


@pytest.mark.parametrize("kind", PRESETS)
def test_a_model_of_another_kind_is_refused(kind, tmp_path):
    folder = saved(tmp_path, bert(), bert_tokenizer())  # three labels, of sequences
    with pytest.raises(ConfigError):
        load(kind, folder)


def test_the_code_beside_hhem_is_not_run(tmp_path):
    folder = hhem_folder(tmp_path)
    (Path(folder) / "x.py").write_text("raise SystemExit('run')")
    assert load("hhem", folder).judge_batch([]) == []


@pytest.mark.parametrize("kind", PRESETS)
def test_results_of_presets_are_named_as_a_models(kind):
    judge = JUDGES[kind]()
    assert isinstance(judge, Judge)
    assert not judge.reads_queries
    assert made_by(judge) == "faithfulness"


@pytest.mark.parametrize("kind", PRESETS)
def test_the_licence_is_that_of_the_published_weights_alone(kind):
    judge = JUDGES[kind]()
    published = type(judge)(judge.model, judge.tokenizer, PRESETS[kind].model)
    assert published.weights.licence == PRESETS[kind].licence
    assert judge.weights.licence == ""
    assert find(kind).preset == PRESETS[kind]
