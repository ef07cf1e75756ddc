"""The line that says what a model is doing while nothing else is printed."""

import os
import re
import time

import pytest

from faithful_search.cli import status_line
from faithful_search.cli.status_line import Waiting, Writing
from faithful_search.wire.llm import Stats


class Words:
    """A tokenizer whose tokens are words."""

    words = ("Look", "it", "up", "\x1b[2J", "in", "the", "long", "list", "of", "harbours")

    def decode(self, ids, **how):
        return " ".join(self.words[id] for id in ids)


@pytest.fixture
def narrow(monkeypatch):
    """A terminal of 50 characters."""
    monkeypatch.setattr("shutil.get_terminal_size", lambda: os.terminal_size((50, 24)))


@pytest.fixture
def writing(monkeypatch, narrow):
    """A line that is updated with each token."""
    monkeypatch.setattr(status_line, "_UPDATE_SECONDS", 0.0)
    return Writing(Words())


@pytest.fixture
def waiting(monkeypatch):
    """A line that is updated all the time."""
    monkeypatch.setattr(status_line, "_TICK_SECONDS", 0.01)
    line = Waiting(Stats(calls=2, completion_tokens=1234))
    yield line
    line.close()


def shown_by(line, capsys) -> str:
    """The line's text, once there is one."""
    deadline = time.monotonic() + 10
    text = ""
    while not text and time.monotonic() < deadline:
        time.sleep(0.02)
        text = capsys.readouterr().err
    return text


def test_the_end_of_what_is_written_is_shown(writing, capsys):
    writing([[*range(10)]])
    shown = capsys.readouterr().err
    assert shown.startswith("writing, 10 tokens: … ")
    assert shown.endswith("list of harbours")
    assert len(shown) < 50


def test_no_terminal_obeys_what_is_written(writing, capsys):
    writing([[0, 3]])
    assert "\x1b[2J" not in capsys.readouterr().err


def test_the_line_is_gone_while_a_turn_is_printed(writing, capsys):
    writing([[0, 1]])
    before = capsys.readouterr().err
    with writing.hidden():
        assert capsys.readouterr().err == f"\r{' ' * len(before)}\r"


def test_tokens_of_threads_are_added_up(writing, capsys):
    writing([[0, 1], [2]])
    assert "writing, 3 tokens in 2 threads: … Look it" in capsys.readouterr().err


def test_waiting_counts_requests_and_tokens(waiting, capsys):
    shown = shown_by(waiting, capsys)
    assert re.search(r"waiting for request 2, \d+ s; 1,234 tokens", shown)


def test_waiting_is_cut_to_the_terminal(narrow, waiting, capsys):
    assert max(map(len, shown_by(waiting, capsys).split("\r"))) < 50


def test_waiting_shows_nothing_while_it_is_hidden(waiting, capsys):
    shown_by(waiting, capsys)
    with waiting.hidden():
        capsys.readouterr()
        time.sleep(0.1)
        assert capsys.readouterr().err == ""


def test_waiting_begins_anew_with_each_turn(waiting, capsys):
    waiting._turn_began -= 100
    with waiting.hidden():
        pass
    capsys.readouterr()
    shown = shown_by(waiting, capsys)
    assert "waiting for request 2, 0 s" in shown


def test_a_closed_line_is_gone(waiting, capsys):
    shown_by(waiting, capsys)
    waiting.close()
    assert capsys.readouterr().err.endswith(" \r")


def test_there_is_no_line_without_a_terminal():
    class Served:
        stats = Stats()

    assert status_line.status_line(Served()) is None
