"""The script that makes pairs to train judges on: which thoughts it takes."""

import json

import judge_data
import pytest
import thought_pairs

from faithful_search.errors import DataError
from faithful_search.measure.agreement.labelled import Labelled


def write(path, *rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def labelled(name, wrong=()):
    return {"id": name, "label": False, "wrong": list(wrong)}


def in_pool(name, **columns):
    thought = {"premise": "Ada.", "hypothesis": "It is Bo.", "question": "Who?", "answers": []}
    return {"id": name, "source": "s", **thought, **columns}


def test_labelled_thoughts_without_their_pool_are_refused(tmp_path, capsys):
    with pytest.raises(SystemExit):
        judge_data.main(["qa", "--labels", "l", "--out", str(tmp_path), "--thoughts", "read.jsonl"])
    assert "--thoughts needs the --pool" in capsys.readouterr().err


def test_labelled_thoughts_that_the_pool_lacks_are_counted(tmp_path, capsys):
    read = write(tmp_path / "read.jsonl", *[labelled(name) for name in "ab"])
    pool = write(tmp_path / "pool.jsonl")
    judge_data._of_thoughts([read], pool, times=1, seed=0)
    assert "2 labelled thoughts are not in" in capsys.readouterr().out


def pairs_of(tmp_path, labels, pool):
    files = write(tmp_path / "read.jsonl", *labels), write(tmp_path / "pool.jsonl", *pool)
    return judge_data._of_thoughts([files[0]], files[1], times=1, seed=0)


def test_the_words_that_are_wrong_become_spans(tmp_path):
    [pair] = pairs_of(tmp_path, [labelled("a", ["Bo"])], [in_pool("a")])
    assert pair["spans"] == ((6, 8),)


@pytest.mark.parametrize(
    ("labels", "pool", "why"),
    [
        ([labelled("a", ["Bo", "Bob"])], [in_pool("a")], "not all words in `wrong`"),
        ([labelled("a"), labelled("a", ["Bo"])], [in_pool("a")], "'a' was read before"),
        ([labelled("a")], [in_pool("a"), in_pool("a")], "'a' was read before"),
        ([{"id": "a", "label": False}], [in_pool("a")], "thought 1: it has no wrong"),
        ([], [{"id": "a"}], "it has no premise and no hypothesis"),
    ],
)
def test_thoughts_that_would_be_taken_for_others_are_refused(tmp_path, labels, pool, why):
    with pytest.raises(DataError, match=why):
        pairs_of(tmp_path, labels, pool)


@pytest.mark.parametrize("row", [{"input": "Who?"}, {"prompt": [{"content": "Who?"}]}, {}])
def test_rows_without_a_question_to_avoid_are_refused(tmp_path, row):
    write(tmp_path / "rollouts.jsonl", row)
    with pytest.raises(DataError, match="no question to avoid"):
        judge_data.Avoided().add_rows(tmp_path)


def test_a_source_without_rows_to_train_on_is_refused():
    row = Labelled("1", "a", "b", "", True, source="begin", split="train", group="")
    with pytest.raises(DataError, match="sources: begin"):
        judge_data._to_train_on([row], "begun")


@pytest.mark.parametrize("spec", ["begin", "begin=", "=3", "begin=many"])
def test_a_source_without_a_count_is_refused(spec, capsys):
    with pytest.raises(SystemExit):
        judge_data.main(["qa", "--labels", "l", "--out", "o", "--labelled", spec])
    assert "SOURCE=COUNT" in capsys.readouterr().err


def test_pairs_of_a_rollout_without_a_question_are_avoided_by_the_rollout(tmp_path):
    rows = {"question": "Who is it?"}, {"question": "", "trajectory": "t"}
    pairs = write(tmp_path / "pairs.jsonl", *rows)
    assert thought_pairs.questions_of([pairs]) == {"who is it", "t"}


def test_answers_of_a_rollout_without_a_question_answer_none(tmp_path):
    text = "<think>It is Ada.</think>\n<answer>Ada</answer>"
    rollouts = write(tmp_path / "rollouts.jsonl", {"output": text, "answers": ["Ada"]})
    assert thought_pairs.right_answers([rollouts]) == {}


@pytest.mark.parametrize("rows", [[], [{"premise": "a"}]])
def test_pairs_by_which_nothing_is_avoided_are_refused(tmp_path, rows):
    with pytest.raises(DataError, match="has no"):
        thought_pairs.questions_of([write(tmp_path / "pairs.jsonl", *rows)])
