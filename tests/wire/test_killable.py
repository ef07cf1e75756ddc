"""Programs in processes that can be killed: late, crashed and busy ones cost one answer."""

import time
from pathlib import Path

import pytest

from faithful_search.wire.killable import Busy, Crashed, Late, NotStarted, Program, Worker

ECHO = """
import os, sys, time
from faithful_search.wire.killable import answer_lines

def answer(line):
    if line == b"sleep":
        time.sleep(60)
    if line == b"die":
        os._exit(3)
    if line == b"long":
        return b"x" * 10_000
    if line == b"memory":
        return b"%d" % len(bytearray(4_000_000_000))
    return line

answer_lines(answer, int(sys.argv[1]))
"""
SOON = 60.0


@pytest.fixture
def echo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Program:
    (tmp_path / "echo_program.py").write_text(ECHO)
    monkeypatch.syspath_prepend(str(tmp_path))
    return Program("echo_program", memory=500_000_000, workers=1, longest=1_000)


def asked(program: Program, line: bytes, seconds: float = SOON) -> bytes:
    with program.worker(time.monotonic() + SOON) as worker:
        return worker.ask(line, seconds)


def test_a_line_is_answered(echo: Program) -> None:
    assert asked(echo, b"hello") == b"hello\n"


@pytest.mark.parametrize(
    ("line", "seconds", "error"),
    [
        (b"sleep", 0.3, Late),
        (b"die", SOON, Crashed),
        (b"long", SOON, Crashed),
        (b"memory", SOON, Crashed),
    ],
)
def test_what_gives_no_answer_costs_one(
    echo: Program, line: bytes, seconds: float, error: type[Exception]
) -> None:
    with pytest.raises(error):
        asked(echo, line, seconds)
    assert asked(echo, b"next") == b"next\n"


def test_a_process_is_kept_between_questions(echo: Program) -> None:
    asked(echo, b"first")
    with echo.worker(time.monotonic() + SOON) as first:
        pass
    with echo.worker(time.monotonic() + SOON) as second:
        assert second is first


def test_all_being_busy_is_said(echo: Program) -> None:
    with (
        echo.worker(time.monotonic() + SOON),
        pytest.raises(Busy),
        echo.worker(time.monotonic() + 0.1),
    ):
        pass


def test_a_program_that_does_not_start_is_said() -> None:
    with pytest.raises(NotStarted):
        Worker(Program("no.such.module", memory=500_000_000, workers=1))
