"""A span judge is trained on labelled pairs, written as ONNX, and opens without torch."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_bert import SHAPE, bert_tokenizer, saved
from transformers import BertConfig, BertModel
from trl import SFTConfig

from faithful_search.distil import distillation
from faithful_search.distil.distillation import train_judge
from faithful_search.distil.settings import Distillation
from faithful_search.distil.span_export import TorchNetwork, export
from faithful_search.distil.span_model import (
    IGNORED,
    collate,
    open_saved,
    open_span_model,
    save,
    span_rows,
)
from faithful_search.errors import ConfigError
from faithful_search.judges import load
from faithful_search.judges.distilled import JudgeFile
from faithful_search.judges.span import SpanJudge
from faithful_search.judges.span_inputs import SpanReader
from faithful_search.measure.agreement.labelled import Labelled

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")


def row(number: int, label: bool, **named: Any) -> Labelled:
    """A pair whose hypothesis adds a word that the premise lacks if it is false."""
    first, second = f"w{10 + number % 40}", f"w{60 + number % 31}"
    wrong = "w1"
    fields = {
        "id": f"made:{number}",
        "premise": f"{first} {second}.",
        "hypothesis": f"{first} {second if label else wrong}",
        "question": f"w{number % 190}",
        "label": label,
        "source": "made",
        "split": "heldout" if number % 4 == 0 else "train",
        "group": f"g{number}",
        "spans": () if label else ((len(first) + 1, len(first) + 3),),
    }
    return Labelled(**{**fields, **named})


ROWS = [row(number, number % 3 > 0) for number in range(120)]
PAIRS = [item.pair for item in ROWS]


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> str:
    torch.manual_seed(1)
    network = BertModel(BertConfig(**SHAPE, initializer_range=0.05))
    return saved(tmp_path_factory.mktemp("encoder"), network)


def arguments(out: Path, **named: Any) -> SFTConfig:
    return SFTConfig(
        output_dir=str(out),
        eval_strategy="steps",
        learning_rate=3e-3,
        seed=0,
        use_cpu=True,
        bf16=False,
        activation_checkpointing=False,
        disable_tqdm=True,
        report_to="none",
        **named,
    )


SPANS = Distillation(
    head="spans", untrained=False, validation=0.2, window=32, head_learning_rate=1e-2
)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, encoder: str) -> Any:
    args = arguments(tmp_path_factory.mktemp("judge"), max_steps=150, eval_steps=75)
    return train_judge(ROWS, encoder, args, SPANS)


def test_it_learns_which_words_are_missing(trained):
    labels = [verdict.label for verdict in load("span", str(trained.folder)).judge_batch(PAIRS)]
    assert labels == [item.label for item in ROWS]


def test_the_missing_word_is_marked(trained):
    judge, false = load("span", str(trained.folder)), ROWS[3]
    assert not false.label
    ranked = sorted(judge.spans(false.pair), key=lambda span: -span.p)
    assert false.hypothesis[ranked[0].start : ranked[0].end] == "w1"


def test_it_opens_without_torch(trained):
    code = (
        "import sys; from faithful_search.judges import Pair, load; "
        "load('span', sys.argv[1]).judge_batch([Pair('w1', 'w1')]); "
        "assert 'torch' not in sys.modules and 'transformers' not in sys.modules"
    )
    command = [sys.executable, "-c", code, str(trained.folder)]
    assert subprocess.run(command, capture_output=True, text=True, check=False).stderr == ""


def test_an_encoder_that_may_run_its_own_code_may_as_it_is_written_too(
    encoder, tmp_path, monkeypatch
):
    allowed = []

    def recorded(folder: str, *rest: Any, **named: Any) -> Any:
        allowed.append(named.get("trust_remote_code"))
        return open_saved(folder, *rest, **named)

    monkeypatch.setattr(distillation, "open_saved", recorded)
    args = arguments(tmp_path, max_steps=1, eval_steps=1, trust_remote_code=True)
    train_judge(ROWS, encoder, args, SPANS)
    assert allowed == [True]


def test_its_file_says_what_it_reads(trained):
    assert (trained.file.kind, trained.file.window) == ("span", 32)


def test_the_float_export_gives_the_scores_of_training(encoder, tmp_path):
    model, tokenizer = open_span_model(encoder)
    inside = SpanJudge(TorchNetwork(model.eval()), SpanReader(tokenizer))
    JudgeFile("span").write(tmp_path)
    export(model, tokenizer, tmp_path, quantize=False)
    outside = load("span", str(tmp_path))
    expected = [verdict.p for verdict in inside.judge_batch(PAIRS)]
    assert [verdict.p for verdict in outside.judge_batch(PAIRS)] == pytest.approx(
        expected, abs=1e-3
    )


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory, encoder: str) -> Any:
    """A network, and the directory in which it was saved as a judge."""
    folder = tmp_path_factory.mktemp("kept")
    model, tokenizer = open_span_model(encoder, seed=7)
    JudgeFile("span").write(folder)
    save(model, tokenizer, folder)
    return model, str(folder)


def test_training_goes_on_from_a_saved_judge(kept):
    model, folder = kept
    again, _ = open_saved(folder)
    assert again.marks.weight.tolist() == model.marks.weight.tolist()


def test_a_saved_judge_is_not_taken_for_an_encoder(kept):
    with pytest.raises(ConfigError, match="open_saved"):
        open_span_model(kept[1])


@pytest.mark.parametrize(
    ("dtype", "opened"), [("bfloat16", torch.bfloat16), ("auto", torch.float32)]
)
def test_a_saved_judge_opens_in_the_dtype_that_is_asked_for(kept, dtype, opened):
    model, _ = open_saved(kept[1], dtype=dtype)
    assert model.encoder.dtype == opened


def test_an_encoder_of_half_precision_reads(encoder):
    model, tokenizer = open_span_model(encoder, dtype=torch.bfloat16)
    judge = SpanJudge(TorchNetwork(model.eval()), SpanReader(tokenizer))
    assert 0 < judge.judge_batch(PAIRS[:1])[0].p < 1


def test_a_false_pair_without_spans_labels_no_token():
    reader = SpanReader(bert_tokenizer().backend_tokenizer)
    [example] = span_rows(reader, [row(0, False, spans=None)])
    assert set(example["token_labels"]) == {IGNORED}


def test_a_true_pair_labels_all_tokens_as_supported():
    reader = SpanReader(bert_tokenizer().backend_tokenizer)
    [example] = span_rows(reader, [row(0, True, spans=None)])
    assert set(example["token_labels"]) == {0.0}


def test_a_part_without_the_error_is_labelled_true():
    reader = SpanReader(bert_tokenizer().backend_tokenizer, hypothesis=8)
    text = "w1 w2 w3 w4 w5. w9 w2 w3 w4 w5."
    false = row(0, False, premise=text, hypothesis=text, spans=((16, 18),))
    assert [example["labels"] for example in span_rows(reader, [false])] == [1.0, 0.0]


def test_padding_is_no_part_of_the_hypothesis():
    reader = SpanReader(bert_tokenizer().backend_tokenizer)
    examples = span_rows(reader, [row(0, True), row(1, True, premise="w1 w2 w3 w4 w5 w6.")])
    assert collate(examples)["claim_mask"].sum(dim=1).tolist() == [2, 2]


def test_a_batch_is_padded_to_a_multiple():
    reader = SpanReader(bert_tokenizer().backend_tokenizer)
    batch = collate(span_rows(reader, [row(0, True)]), pad_to_multiple_of=64)
    assert {part.shape[1] for name, part in batch.items() if name != "labels"} == {64}


def test_a_tokenizer_of_another_kind_is_refused(tmp_path):
    import lab

    lab.model().save_pretrained(tmp_path)
    lab.tokenizer().save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="BERT"):
        open_span_model(str(tmp_path))
