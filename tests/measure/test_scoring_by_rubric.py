"""`faithful-search label --metric rubric`: a judge scores trajectories for the cold start."""

import json

import pytest
from agent_rows import file_of
from click.testing import CliRunner
from stub_server import StubServer

from faithful_search.cli import cli
from faithful_search.coldstart.rubric import scored_file
from faithful_search.errors import ConfigError
from faithful_search.judges import GroundingJudge
from faithful_search.measure.scoring_by_rubric import score_by_rubric
from faithful_search.rewards.self_rubric import read_rubric

TEXT = (
    "<think>I look.</think><search>Zodiac</search>\n\n<information>Doc 1(Title: Zodiac) Born in "
    "Denver.</information>\n\n<think>In {answer}.</think><answer>{answer}</answer>"
)
REPLIES = {
    "Denver": "The answer stands in the results.\nScore: 1.0",
    "Leeds": "The results say Denver.\n**Score:** 0.4",
    "Rome": "Half right.\nScore: 0.5",
}


def row(answer, gold=("Denver",)):
    text = TEXT.format(answer=answer)
    return {"question": "Where was he born?", "answers": list(gold), "output": text}


def judge(messages):
    asked = messages[-1]["content"]
    return next(reply for answer, reply in REPLIES.items() if f"In {answer}." in asked)


@pytest.fixture
def label(tmp_path):
    """Runs the command on these rows; returns its result and the stub of the judge."""

    def run(*rows, reply=judge, mode="ok", options=()):
        file = file_of(tmp_path / "r.jsonl", rows)
        with StubServer(mode=mode, label=reply) as stub:
            arguments = [
                *("label", str(file), "--metric", "rubric", "--out", str(tmp_path / "out")),
                *("--judge", "endpoint", "--judge-url", stub.url, "--judge-model", "stub"),
                *("--judge-cache", "none", *options),
            ]
            return CliRunner().invoke(cli, arguments), stub

    return run


def test_a_judges_scores_are_read_by_the_cold_start(label, tmp_path):
    label(row("Denver"), row("Leeds"))
    rows = scored_file(tmp_path / "out/scored.jsonl")
    labels = [(row.meta["rubric"]["score"], row.meta["rubric"]["why"]) for row in rows]
    assert labels == [
        (1.0, "The answer stands in the results."),
        (0.4, "The results say Denver."),
    ]


def test_it_says_how_often_each_score_was_given(label):
    result, _ = label(row("Denver"), row("Leeds"))
    assert "1 of 0.4, 1 of 1.0" in result.output


def test_the_judge_reads_question_reference_and_trajectory(label):
    _, stub = label(row("Leeds"))
    asked = stub.requests[0]["messages"][-1]["content"]
    parts = ["Where was he born?", "\nDenver\n", "In Leeds."]
    assert [part in asked for part in parts] == [True, True, True]


def test_a_reply_without_a_score_of_the_rubric_is_no_score(label, tmp_path):
    result, _ = label(row("Denver"), row("Rome"))
    assert result.exit_code == 3
    assert "r.jsonl:2: no score of the rubric in" in result.output
    assert len(scored_file(tmp_path / "out/scored.jsonl")) == 1


def test_the_same_command_asks_about_the_open_ones_only(label, tmp_path):
    label(row("Denver"), row("Rome"))
    result, stub = label(row("Denver"), row("Rome"), reply=lambda messages: "Score: 0.7")
    assert result.exit_code == 0
    assert stub.calls == 1
    assert len(scored_file(tmp_path / "out/scored.jsonl")) == 2


def test_a_judge_that_fails_has_not_judged(label):
    result, _ = label(row("Denver"), mode="context")
    assert result.exit_code == 3
    assert "trajectories without a score: 1" in result.output


def test_rows_without_a_reference_are_counted(label):
    result, stub = label(row("Denver"), row("Leeds", gold=()))
    assert "1 of 2 rows could not be read" in result.output
    assert stub.calls == 1


def test_another_judge_needs_another_folder(label):
    label(row("Denver"))
    result, _ = label(row("Denver"), options=["--judge-model", "other"])
    assert "use another folder" in result.output


def test_a_sample_is_scored(label, tmp_path):
    label(row("Denver"), row("Leeds"), options=["--sample", "1"])
    assert len(scored_file(tmp_path / "out/scored.jsonl")) == 1


def test_an_estimate_asks_nothing(label):
    result, stub = label(row("Denver"), row("Leeds"), options=["--estimate"])
    assert "2 rows: about 2 calls" in result.output
    assert stub.calls == 0


def test_a_judge_that_cannot_write_is_refused(tmp_path):
    file = file_of(tmp_path / "r.jsonl", [row("Denver")])
    with pytest.raises(ConfigError, match="--judge endpoint or generator"):
        score_by_rubric([file], tmp_path / "out", judge=GroundingJudge(), metric="rubric")


def test_provenance_names_judge_and_prompt(label, tmp_path):
    label(row("Denver"))
    record = json.loads((tmp_path / "out/provenance.json").read_text())
    assert "stub" in record["judge"]
    assert list(record["prompts"]) == ["rubric@1"]


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        ("Early stop. **Score: 0.2**", (0.2, "Early stop.")),
        ("Not score 1.0.\nScore: 0.7", (0.7, "Not score 1.0.")),
        ("I cannot say.", (None, "I cannot say.")),
    ],
)
def test_a_reply_is_read(reply, expected):
    assert read_rubric(reply) == expected
