"""`faithful-search write-episodes`: a served model writes episodes, which the cold start reads."""

import json

import pytest
from agent_rows import file_of
from click.testing import CliRunner
from stub_server import StubServer
from transformers import AutoTokenizer

from faithful_search import dialects
from faithful_search.bundled import tiny_policy
from faithful_search.cli import cli
from faithful_search.coldstart.filtering import read_written
from faithful_search.inference.chat import ChatFormat
from faithful_search.trajectory import read_jsonl

QUESTIONS = [
    {"id": "zodiac", "question": "Where was the director of Zodiac born?", "answers": ["Denver"]},
    {"id": "alien", "question": "Where was the director of Alien born?", "answers": ["Leeds"]},
]
PASSAGES = [
    {"id": "p1", "title": "Zodiac", "text": "A film directed by David Fincher."},
    {"id": "p2", "title": "David Fincher", "text": "He was born in Denver."},
]


def call(query):
    arguments = json.dumps({"name": "local_search", "arguments": {"query": query}})
    return f"<tool_call>{arguments}</tool_call>"


TURNS = (
    f"<think>I look.</think>{call('Zodiac')}",
    f"<think><helpful>yes</helpful><ref>E1</ref>By Fincher.</think>{call('he was born')}",
    "<think><helpful>yes</helpful><ref>E2</ref>In Denver.</think><answer>Denver</answer>",
)


def expert(messages):
    """Plays the turns, which answer the first question, whatever is asked."""
    return TURNS[sum(message["role"] == "assistant" for message in messages)]


@pytest.fixture
def write(tmp_path):
    """Runs the command with a stub as the server; returns its result and the stub."""
    file_of(tmp_path / "q.jsonl", QUESTIONS)
    file_of(tmp_path / "c.jsonl", PASSAGES)

    def run(*options, label=expert, questions="q.jsonl", **server):
        with StubServer(label=label, **server) as stub:
            arguments = [
                *("write-episodes", str(tmp_path / questions), "--endpoint", stub.url),
                *("--model", "stub", "--corpus", str(tmp_path / "c.jsonl")),
                *("--search-top-k", "1", "--out", str(tmp_path / "e.jsonl"), *options),
            ]
            return CliRunner().invoke(cli, arguments), stub

    return run


def test_it_says_how_many_episodes_are_fit_and_why_not(write):
    result, _ = write()
    assert "1 of 2 episodes are fit for the cold start" in result.output
    assert "1 wrong_answer, such as alien" in result.output


def test_it_says_which_command_trains_on_them(write, tmp_path):
    result, _ = write()
    command = f"faithful-search train sft --trajectories {tmp_path}/e.jsonl --dialect pou"
    assert command in result.output


def test_the_cold_start_reads_what_was_written(write, tmp_path):
    write()
    chat = ChatFormat.of(AutoTokenizer.from_pretrained(tiny_policy()), dialects.load("pou"))
    rows = list(read_written([tmp_path / "e.jsonl"], chat, tools=lambda: []))
    rejected = {row.trajectory.id: row.rejected for row in rows}
    assert rejected == {"zodiac": None, "alien": "wrong_answer"}


def test_samples_have_seeds_of_their_own(write):
    _, stub = write("--samples", "2", "--limit", "1", "--seed", "5")
    assert {request["seed"] for request in stub.requests} == {5, 6}


def test_what_was_written_is_not_asked_for_again(write, tmp_path):
    write("--limit", "1")
    _, stub = write()
    asked = {request["messages"][1]["content"] for request in stub.requests}
    assert not any("Zodiac" in question for question in asked)
    assert {episode.id for episode in read_jsonl(tmp_path / "e.jsonl")} == {"zodiac", "alien"}


def test_episodes_that_failed_are_asked_for_again(write, tmp_path):
    failing, _ = write(mode="context")
    assert failing.exit_code == 3
    assert "2 episodes were not finished" in failing.output
    again, _ = write()
    assert again.exit_code == 0
    assert len(list(read_jsonl(tmp_path / "e.jsonl"))) == 2


def test_other_settings_need_another_file(write):
    write()
    result, stub = write("--temperature", "0")
    assert "temperature: 0.7 there, 0.0 now" in result.output
    assert stub.calls == 0


def test_another_question_with_the_same_id_is_refused(write, tmp_path):
    write("--limit", "1")
    file_of(tmp_path / "q.jsonl", [{**QUESTIONS[0], "question": "Who directed Zodiac?"}])
    result, _ = write()
    assert "about another question" in result.output


def test_questions_of_ones_own_need_their_corpus(tmp_path):
    file_of(tmp_path / "q.jsonl", QUESTIONS)
    endpoint = ["--endpoint", "http://127.0.0.1:9/v1", "--model", "stub"]
    result = CliRunner().invoke(cli, ["write-episodes", str(tmp_path / "q.jsonl"), *endpoint])
    assert "give --corpus, too" in result.output
