"""`audit --watch`: a file that is still being written is audited again whenever there is more of
it.
"""

import json
import os
import signal
import subprocess
from subprocess import PIPE

import pytest
from agent_rows import rollout
from served import COMMAND, invoked

from faithful_search.errors import ConfigError
from faithful_search.measure.watching import grown

UNBUFFERED = {**os.environ, "PYTHONUNBUFFERED": "1"}


def line(number: int) -> str:
    return json.dumps(rollout(number)) + "\n"


@pytest.fixture
def watched(tmp_path):
    """A watch on `a.jsonl`, which is not there yet, and a function that waits for a line of it."""
    command = [*COMMAND, "audit", "a.jsonl", "--watch", "--workers", "1"]
    process = subprocess.Popen(
        command, cwd=tmp_path, stdout=PIPE, stderr=PIPE, text=True, env=UNBUFFERED
    )

    def until(said: str) -> None:
        while said not in (shown := process.stdout.readline()):
            assert shown, process.stderr.read()

    yield process, until
    process.kill()
    process.communicate()


def test_a_file_is_audited_as_it_grows_and_ctrl_c_ends_it(watched, tmp_path):
    process, until = watched
    path, scores = tmp_path / "a.jsonl", tmp_path / "a-audit" / "scores.jsonl"
    path.write_text(line(0) + line(1) + line(2)[:40])  # the third is being written
    until("2 trajectories, judge lexical")
    until("waiting for more, Ctrl-C ends")
    path.write_text(line(0) + line(1) + line(2) + line(3))
    until("4 trajectories, judge lexical")
    until("waiting for more, Ctrl-C ends")
    assert "Lighthouse 3 stands in" in (tmp_path / "a-audit" / "report.html").read_text("utf-8")
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, "Traceback" in errors) == (0, False)
    assert [json.loads(row)["row"] for row in scores.read_text().splitlines()] == [1, 2, 3, 4]


def test_before_anything_was_audited_ctrl_c_is_an_interruption(watched):
    process, _ = watched
    assert "waiting for a.jsonl" in process.stderr.readline()
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors.strip()) == (130, "interrupted")


@pytest.mark.parametrize(
    ("file", "said"),
    [
        ("-", "--watch follows a file, not the standard input"),
        ("a.parquet", "a.parquet cannot be watched: only files of JSON lines"),
        ("a.jsonl.gz", "a.jsonl.gz cannot be watched"),
    ],
)
def test_what_cannot_be_watched_is_refused(tmp_path, monkeypatch, file, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / file).touch()
    done = invoked("audit", file, "--watch")
    assert done.exit_code in (1, 2)
    assert said in done.output


def test_a_file_is_told_of_at_first_and_when_there_is_more_of_it(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text("1\n")
    sizes = grown(path, pause=0.01)
    assert next(sizes) == 2
    with path.open("a") as file:
        file.write("2\n")
    assert next(sizes) == 4


def test_only_files_of_lines_can_be_watched(tmp_path):
    with pytest.raises(ConfigError, match="cannot be watched"):
        next(grown(tmp_path / "a.json"))
