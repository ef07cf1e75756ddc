"""Folders of a span judge: the network, the tokenizer and the settings, whole or damaged. The
networks here look up a number for each token.
"""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from served import command
from tiny_bert import bert_tokenizer

from faithful_search.errors import ConfigError, WeightsError
from faithful_search.judges import Pair, load
from faithful_search.judges.distilled import JudgeFile
from faithful_search.judges.remote import RemoteJudge
from faithful_search.judges.span import NETWORK, TOKENIZER

pytest.importorskip("onnxruntime")
onnx = pytest.importorskip("onnx")

INPUTS = ("input_ids", "marks", "attention_mask", "claim_mask")
PAIR = Pair("w1 w2", "w1 w3")
PIECES = len(bert_tokenizer())
WORD = bert_tokenizer().convert_tokens_to_ids("w3")


def write_network(folder: Path, table: Any = None, logits: str = "logits", keep: int = 0) -> None:
    """A network whose logits of tokens are those of a table, and that of support is their mean."""
    table = np.zeros(PIECES) if table is None else table
    numbers = onnx.numpy_helper.from_array(np.asarray(table, dtype=np.float32), "table")
    nodes = [
        onnx.helper.make_node("Gather", ["table", "input_ids"], ["token_logits"]),
        onnx.helper.make_node("ReduceMean", ["token_logits"], [logits], axes=[1], keepdims=keep),
    ]
    whole, decimal = onnx.TensorProto.INT64, onnx.TensorProto.FLOAT
    shape = ["rows", "tokens"]
    values = onnx.helper.make_tensor_value_info
    inputs = [values(name, whole, shape) for name in INPUTS]
    outputs = [values(logits, decimal, None), values("token_logits", decimal, shape)]
    graph = onnx.helper.make_graph(nodes, "tokens", inputs, outputs, [numbers])
    opset = [onnx.helper.make_opsetid("", 17)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=opset, ir_version=8), folder / NETWORK)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("judge")
    table = np.zeros(PIECES)
    table[WORD] = 9.0
    write_network(folder, table)
    bert_tokenizer().backend_tokenizer.save(str(folder / TOKENIZER))
    JudgeFile("span", window=64).write(folder)
    return folder


@pytest.fixture
def folder(whole: Path, tmp_path: Path) -> Path:
    """A copy that may be damaged."""
    return Path(shutil.copytree(whole, tmp_path / "judge"))


def refusal(folder: Path, kind: type[Exception] = ConfigError) -> str:
    with pytest.raises(kind) as error:
        load("span", str(folder))
    return str(error.value)


def test_a_whole_folder_marks_words(whole):
    marked = load("span", str(whole)).spans(PAIR)
    assert [PAIR.hypothesis[start:end] for start, end, p in marked if p > 0.9] == ["w3"]


def test_p_of_a_span_is_the_probability_that_it_is_not_supported(whole):
    [supported, unsupported] = load("span", str(whole)).spans(PAIR)
    assert (supported.p, unsupported.p) == pytest.approx((0.5, 1 / (1 + np.exp(-9))))


@pytest.mark.parametrize("name", [NETWORK, TOKENIZER, "judge.json"])
def test_a_file_that_is_missing_is_named(folder, name):
    (folder / name).unlink()
    assert f"{folder} is no span judge: it lacks {name}; name a folder that " in refusal(folder)


def test_a_folder_that_is_missing_is_named(tmp_path):
    assert f"there is no folder {tmp_path / 'none'}" in refusal(tmp_path / "none")


@pytest.mark.parametrize("damaged", [b"", b"version https://git-lfs", b"\x00\x01" * 50])
def test_a_damaged_network_is_named(folder, damaged):
    (folder / NETWORK).write_bytes(damaged)
    message = refusal(folder, WeightsError)
    assert message.startswith(f"cannot open {folder / NETWORK}: ")
    assert message.endswith("; copy the judge's whole folder again, or train it again")


def test_a_network_that_was_copied_in_part_is_named(folder):
    content = (folder / NETWORK).read_bytes()
    (folder / NETWORK).write_bytes(content[: len(content) // 2])
    assert refusal(folder, WeightsError).startswith(f"cannot open {folder / NETWORK}: ")


@pytest.mark.parametrize(
    ("named", "reason"),
    [
        ({"logits": "scores"}, "logits"),
        ({"keep": 1}, r"(1, 1)"),
        ({"table": np.full(PIECES, np.nan)}, "not numbers"),
        ({"table": np.zeros(PIECES - 1)}, "out of data bounds"),  # a word piece less
    ],
)
def test_a_network_that_does_not_fit_is_named(folder, named, reason):
    write_network(folder, **named)
    message = refusal(folder, WeightsError)
    assert message.startswith(f"cannot open {folder / NETWORK} with the tokens of tokenizer.json")
    assert reason in message


@pytest.mark.parametrize("damaged", ["", "{", "{}", '{"model": {}}', "[1]"])
def test_a_damaged_tokenizer_is_named(folder, damaged):
    (folder / TOKENIZER).write_text(damaged)
    assert refusal(folder, WeightsError).startswith(f"cannot open {folder / TOKENIZER}: ")


def test_a_tokenizer_of_another_kind_of_model_is_named(folder):
    text = (folder / TOKENIZER).read_text()
    (folder / TOKENIZER).write_text(text.replace("[CLS]", "<s>"))
    message = refusal(folder, WeightsError)
    assert message.startswith(f"cannot open {folder / TOKENIZER}: ")
    assert "needs the tokens [CLS] and [SEP]" in message


@pytest.mark.parametrize(
    ("damaged", "reason"),
    [
        ("", "truncated"),
        ('{"kind": "span"', "truncated"),
        (f'{{"kind": "span", "more": {"[" * 100_000}', "recursion"),
        ("{}", "missing required field `kind`"),
        ('{"kind": "span", "threshold": 2}', "threshold must be in [0, 1], got 2"),
        ('{"kind": "span", "unsure": 1}', "unsure must be at least 0 and below 1, got 1"),
        ('{"kind": "span", "words": "many"}', "Expected `float`, got `str` - at `$.words`"),
        ('{"kind": "span", "window": 0}', "window must be at least 1 token, got 0"),
        ('{"kind": "span", "hypothesis_window": -1}', "hypothesis_window must be at least 1 token"),
        ('{"kind": "span", "question_window": 0}', "question_window must be at least 1 token"),
    ],
)
def test_damaged_settings_are_named(folder, damaged, reason):
    (folder / "judge.json").write_text(damaged)
    message = refusal(folder)
    assert message.startswith(f"cannot read judge.json of the judge '{folder}': ")
    assert reason in message


def test_the_folder_of_a_judge_of_another_kind_is_told(folder):
    JudgeFile("nli").write(folder)
    assert "use --judge nli" in refusal(folder)


def test_a_served_folder_tells_the_tasks_it_was_trained_for(folder):
    JudgeFile("span", ("info_think", "support"), window=64).write(folder)
    with command(f"span:{folder}", verb="serve-judge") as (_, url):
        served = RemoteJudge(url)
        assert served.tasks == ("info_think", "support")
        assert served.judge_batch([PAIR]) == load("span", str(folder)).judge_batch([PAIR])


def test_threads_of_nested_loops_are_read(whole, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1,2")
    assert load("span", str(whole)).source == str(whole)
