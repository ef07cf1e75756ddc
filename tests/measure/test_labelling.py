"""Labels over trajectories: cut as the rewards cut, nothing lost, nothing asked or written twice,
provenance told.
"""

import hashlib
import json

import pytest
from agent_rows import CountingJudge, file_of, lines_of
from hypothesis import given, settings, strategies as st
from served import invoked
from stub_server import StubServer

from faithful_search import rewards
from faithful_search.errors import ConfigError, DataError, JudgeError
from faithful_search.judges import Pair
from faithful_search.measure import agreement
from faithful_search.measure.audit import audit
from faithful_search.measure.label import METRICS, PairToJudge, label, reward, sampled
from faithful_search.reading.rows import read_trajectories


def scripted(
    name="scripted",
    say=lambda pair: None if "abstain" in pair.hypothesis else "yes" in pair.hypothesis,
):
    return CountingJudge(say, name)


def episode(number, thought):
    text = (
        f"<think>Look up {number}.</think><search>bridge {number}</search>"
        f'<information>Doc 1(Title: "Bridge {number}") It was built by Ann.</information>'
        f"<think>{thought}</think><answer>Ann</answer>"
    )
    return {"question": "Who built the bridge?", "text": text, "answers": ["Ann"]}


def many(path, count):
    return file_of(
        path, [episode(n, f"Thought {n}: {'yes' if n % 3 else 'no'}.") for n in range(count)]
    )


def rows_of(folder):
    return lines_of(folder / "pairs.jsonl")


def test_a_labelled_row_says_where_it_is_from(
    tmp_path,
):
    datasets = pytest.importorskip("datasets")
    path = file_of(tmp_path / "mine.jsonl", [episode(1, "So yes, Ann."), episode(2, "No idea.")])
    found = label([path], tmp_path / "out", judge=scripted())
    first, second = rows = rows_of(tmp_path / "out")
    asked = {"question": "Who built the bridge?", "premise": "Bridge 1\nIt was built by Ann."}
    said = {
        "hypothesis": "So yes, Ann.",
        "task": "info_think",
        "label": True,
        "p": 0.75,
        "judge": "scripted",
    }
    assert first == {
        "id": first["id"],
        **asked,
        **said,
        "source": "mine",
        "trajectory": "mine:1",
        "step": 2,
    }
    assert (second["label"], second["p"], second["trajectory"]) == (False, 0.25, "mine:2")
    assert (found.pairs, found.positives, found.complete, found.finished) == (2, 1, True, True)
    read = datasets.load_dataset(
        str(tmp_path / "out"), split="train", cache_dir=str(tmp_path / "cache")
    )
    assert read.column_names == list(rows[0])
    assert read.to_list() == rows
    assert [(row.label, row.source) for row in agreement.load(tmp_path / "out")] == [
        (True, "mine"),
        (False, "mine"),
    ]


@pytest.fixture
def sentences_and_spans(tmp_path):
    """An answer that the evidence holds as it stands, and one that says the same in a sentence."""
    evidence = "The Symphony No. 9 was composed between 1822 and 1824."
    search = f"<think>a</think><search>b</search><information>{evidence}</information>"
    answers = ("between 1822 and 1824", "It was composed between 1822 and 1824.")
    rows = [
        {"question": f"When? {n}", "text": f"{search}<answer>{answer}</answer>"}
        for n, answer in enumerate(answers)
    ]
    return file_of(tmp_path / "mine.jsonl", rows)


def labels_of(folder):
    return [row["label"] for row in rows_of(folder)]


def test_labels_by_words_are_those_of_an_audit_of_the_same_file(sentences_and_spans, tmp_path):
    label([sentences_and_spans], tmp_path / "labels", metric="answer_support")
    audit(sentences_and_spans, tmp_path / "audit", metrics=["answer_support"], workers=1)
    scores = [
        line["scores"]["answer_support_lexical"]["value"]
        for line in lines_of(tmp_path / "audit" / "scores.jsonl")
    ]
    assert labels_of(tmp_path / "labels") == [score == 1.0 for score in scores] == [True, True]


@pytest.mark.parametrize(
    ("name", "labels"), [("lexical", [True, True]), ("containment", [True, False])]
)
def test_a_judge_of_words_is_recorded_under_its_own_name(
    sentences_and_spans, tmp_path, name, labels
):
    asked = ("label", str(sentences_and_spans), "--metric", "answer_support", "--judge", name)
    done = invoked(*asked, "--out", str(tmp_path / "out"))
    assert done.exit_code == 0, done.output
    assert labels_of(tmp_path / "out") == labels
    assert {row["judge"] for row in rows_of(tmp_path / "out")} == {name}
    assert json.loads((tmp_path / "out" / "provenance.json").read_text())["judge"] == name


@pytest.mark.parametrize("name", ["lexical", "containment"])
def test_an_audit_records_which_comparison_of_words_judged(sentences_and_spans, tmp_path, name):
    done = invoked(
        *("audit", str(sentences_and_spans), "--judge", name, "--workers", "1", "--no-report"),
        *("--out", str(tmp_path / "out"), "--metrics", "answer_support"),
    )
    assert done.exit_code == 0, done.output
    summary = json.loads((tmp_path / "out" / "audit.json").read_text())
    assert summary["settings"]["judge"] == name
    assert f"answer_support_{name}" in summary["rows"]


def test_the_reward_alone_looks_for_the_answer_as_it_stands(sentences_and_spans):
    *_, row = read_trajectories(sentences_and_spans)
    score = rewards.load("answer_support")().score(row.trajectory)
    assert (score.value, score.parts["judge"]) == (0.0, "containment")


def test_broken_rows_are_left_out_and_counted(tmp_path):
    silent = "<think>Look.</think><search>x</search><information>y</information><answer>z</answer>"
    rows = [
        {"question": "Q?", "text": silent},
        '{"text": ',
        "[]",
        episode(1, "yes"),
        episode(2, "no"),
    ]
    path = file_of(tmp_path / "mine.jsonl", rows)
    found = label([path], tmp_path / "out", judge=scripted(), dialect="search_r1")
    [file] = found.files
    assert (found.pairs, file.pairs, file.settled, file.rows, file.skipped) == (
        2,
        3,
        1,
        5,
        2,
    )
    assert not found.complete
    assert [why.split(":")[0] for why in file.reasons] == ["row 2", "row 3"]
    again = label([path], tmp_path / "out", judge=scripted(), dialect="search_r1", limit=1)
    assert again.files == found.files  # a shorter read does not shrink a file's record


@pytest.mark.parametrize("metric", METRICS)
def test_the_pairs_are_those_that_the_reward_asks_about(tmp_path, metric):
    path, judge = many(tmp_path / "mine.jsonl", 3), scripted()
    label([path], tmp_path / "out", metric=metric, judge=judge)
    asked = [
        item.pair
        for row in read_trajectories(path)
        for item in reward(metric, judge).pairs(row.trajectory)
    ]
    assert asked
    assert judge.asked == list(dict.fromkeys(asked))
    assert label([path], tmp_path / "words", metric=metric).pairs == len(judge.asked)
    found = [
        Pair(row["premise"], row["hypothesis"], row["question"], row["task"])
        for row in rows_of(tmp_path / "out")
    ]
    assert found == judge.asked


def test_an_abstention_is_no_label_and_asked_again(tmp_path):
    path = file_of(
        tmp_path / "mine.jsonl", [episode(1, "yes"), episode(2, "abstain"), episode(3, "no")]
    )
    few = label([path], tmp_path / "out", judge=scripted(), sample=1)
    assert few.pairs + few.abstained == 1
    found = label([path], tmp_path / "out", judge=scripted())  # a sample can grow
    assert (found.pairs, found.abstained, found.complete) == (2, 1, False)
    assert found.unjudged == ["mine:2, step 2: timed out"]
    again = scripted()
    label([path], tmp_path / "out", judge=again)
    assert [pair.hypothesis for pair in again.asked] == ["abstain"]


def test_a_file_cut_off_is_labelled_as_far_as_it_goes(tmp_path):
    noise = [episode(n, hashlib.sha256(str(n).encode()).hexdigest() * 8) for n in range(60)]
    whole = file_of(tmp_path / "in" / "a.jsonl.gz", noise)
    whole.write_bytes(whole.read_bytes()[:-2000])
    found = label([whole, many(tmp_path / "in" / "b.jsonl", 3)], tmp_path / "out", judge=scripted())
    assert 3 < found.pairs < 63
    assert not found.complete
    assert "cannot read" in found.files[0].broken_off
    assert found.files[1].pairs == 3
    assert label([tmp_path / "in"], tmp_path / "same", judge=scripted()).files == found.files


def test_files_may_be_added_but_not_other_judges_or_metrics(tmp_path):
    one = file_of(tmp_path / "one.jsonl", [episode(1, "yes"), episode(2, "yes"), episode(1, "yes")])
    two = file_of(tmp_path / "two.jsonl.gz", [episode(2, "yes"), episode(3, "yes")])
    first, judge = scripted(), scripted()
    assert (
        label([one], tmp_path / "out", judge=first).pairs == len(first.asked) == 2
    )  # equal pairs are one
    found = label([one, two], tmp_path / "out", judge=judge)
    assert (found.pairs, len(judge.asked)) == (3, 1)
    assert [(file.name, file.rows, file.pairs) for file in found.files] == [
        ("one.jsonl", 3, 3),
        ("two.jsonl.gz", 2, 2),
    ]
    assert [row["trajectory"] for row in rows_of(tmp_path / "out")] == ["one:1", "one:2", "two:2"]
    with pytest.raises(ConfigError, match="judge: 'scripted' there, 'other' now"):
        label([one], tmp_path / "out", judge=scripted("other"))
    (tmp_path / "out" / "provenance.json").unlink()
    with pytest.raises(ConfigError, match=r"provenance\.json has no settings record"):
        label([one], tmp_path / "out", judge=scripted())
    assert len(rows_of(tmp_path / "out")) == 3


@given(st.integers(min_value=0, max_value=3000))
@settings(max_examples=15)
def test_a_file_cut_anywhere_goes_on_without_loss(tmp_path_factory, at):
    folder = tmp_path_factory.mktemp("labels")
    path = many(folder / "mine.jsonl", 8)
    label([path], folder / "out", judge=scripted())
    pairs = folder / "out" / "pairs.jsonl"
    whole = pairs.read_bytes()
    pairs.write_bytes(whole[: at % (len(whole) + 1)])
    left = pairs.read_bytes().count(b"}")  # a line is whole without its line break
    judge = scripted()
    label([path], folder / "out", judge=judge)
    assert pairs.read_bytes() == whole
    assert len(judge.asked) == 8 - left


def test_a_judge_that_breaks_off_keeps_its_labels(tmp_path):
    path = many(tmp_path / "mine.jsonl", 100)

    class Mortal(CountingJudge):
        def judge_batch(self, pairs):
            with pytest.raises(DataError, match="another labelling is writing"):
                label([path], tmp_path / "out", judge=scripted())
            if self.asked:
                raise JudgeError("the key was revoked")
            return super().judge_batch(pairs)

    with pytest.raises(
        JudgeError, match=r"cannot be asked: the key was revoked; 32 lines are in .*pairs\.jsonl"
    ):
        label([path], tmp_path / "out", judge=Mortal(name="scripted"))
    assert not json.loads((tmp_path / "out" / "provenance.json").read_text())["finished"]
    judge = scripted()
    assert label([path], tmp_path / "out", judge=judge).pairs == 100
    assert len(judge.asked) == 68


@given(
    st.lists(st.sampled_from("abcdefghijkl"), unique=True),
    st.integers(1, 12),
    st.integers(1, 12),
    st.integers(0, 3),
)
def test_samples_are_nested_and_in_order(letters, one, two, seed):
    cuts = [PairToJudge(letter, Pair(letter, "h"), f"s:{n}", 1) for n, letter in enumerate(letters)]
    few, more = (sampled(cuts, count, seed) for count in sorted((one, two)))
    assert [cut for cut in more if cut in few] == few
    assert len(few) == min(one, two, len(letters))
    assert [cuts.index(cut) for cut in more] == sorted(cuts.index(cut) for cut in more)


def test_what_cannot_be_labelled_is_refused(tmp_path):
    path = many(tmp_path / "mine.jsonl", 2)
    for files, wrong, message in (
        ([], {}, "at least one"),
        (["-"], {}, "standard input"),
        ([path, tmp_path / "none.jsonl"], {}, "cannot read .*none"),
        ([path], {"metric": "citation"}, "citation.*info_think, think_search"),
    ):
        with pytest.raises((ConfigError, DataError), match=message):
            label(files, tmp_path / "out", judge=scripted(), **wrong)
    assert not (tmp_path / "out").exists()
    short = file_of(tmp_path / "short.jsonl", [{"text": "<answer>x</answer>"}])
    with pytest.raises(DataError, match="no info_think pair in any of the 1 rows read; --metric"):
        label([short], tmp_path / "x", dialect="search_r1")
    label([path], tmp_path / "out", judge=scripted())
    pairs = tmp_path / "out" / "pairs.jsonl"
    damaged = b'{"id": 1}\n' + pairs.read_bytes()
    pairs.write_bytes(damaged)
    with pytest.raises(DataError, match="line 1: not a line of labelling"):
        label([path], tmp_path / "out", judge=scripted())
    assert pairs.read_bytes() == damaged


def test_a_failing_server_leaves_pairs_open(
    tmp_path,
):
    path, out = many(tmp_path / "mine.jsonl", 5), tmp_path / "out"
    with StubServer(
        mode="garbage", label=lambda said: "1" if "yes" in said[-1]["content"] else "0"
    ) as server:
        judge = [
            "--judge",
            "endpoint",
            "--judge-model",
            "stub",
            "--judge-url",
            server.url,
            "--judge-cache",
            "none",
        ]
        command = ["label", path, "--out", out, *judge, "--license", "cc-by-4.0"]
        done = invoked(*command)
        assert done.exit_code == 3
        assert "pairs without a label: 5" in done.output
        server.mode = "ok"
        for calls in (5, 0):
            before = server.calls
            assert invoked(*command).exit_code == 0
            assert server.calls == before + calls
    found = json.loads((out / "provenance.json").read_text())
    assert found["files"][0]["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
    assert found["files"][0]["dialects"] == {"search_r1": 5}
    (name, digest), *_ = found["prompts"].items()
    assert name.startswith("info_think@")
    assert len(digest) == 64
    assert found["judges"] == {f"endpoint:stub {name}": 5}
    assert (found["judge"], found["license"], found["finished"]) == (
        "endpoint:stub",
        "cc-by-4.0",
        True,
    )
    card = (out / "README.md").read_text()
    assert "license: cc-by-4.0" in card
    assert f"`{name}`" in card
    assert "terms of the judge" in card
    assert str(tmp_path) not in card + json.dumps(found)


def test_no_name_writes_markup_into_the_card(tmp_path):
    odd = "x|`<b>y`\n## Owned\n[z](http://evil.example)"
    path = file_of(tmp_path / f"{odd.replace('/', '_')}.jsonl", [episode(1, "yes, Ann built it")])
    out = tmp_path / "a`b\n# [Owned](x)"
    label([path], out, judge=scripted(name=odd), license="mit")
    card = (out / "README.md").read_text()
    assert "\n## Owned" not in card
    assert "\n# [Owned]" not in card
    assert "\n# [" not in card
    shown = [line for line in card.splitlines() if "evil.example" in line]
    assert shown
    assert all(line.count("`") % 2 == 0 for line in shown)
    for line in shown:
        assert all("evil" not in part for part in line.split("`")[::2]), "all of it is code"
        assert not line.startswith("|") or line.count("|") in (3, 6), "no cell is added"
