"""The endpoint judge and a real server (llama-cpp-python) with a real small model: the plumbing, not the quality.

    python -m venv /tmp/server && /tmp/server/bin/pip install "llama-cpp-python[server]"
    FAITHFUL_SEARCH_TEST_SERVER_PYTHON=/tmp/server/bin/python FAITHFUL_SEARCH_TEST_SERVER_MODEL=model.gguf \\
        pytest -m slow tests/test_endpoint_real.py
"""

import os
import socket
import subprocess
import time

import pytest

from faithful_search.judges import Pair, Request, load

PYTHON = os.environ.get("FAITHFUL_SEARCH_TEST_SERVER_PYTHON", "")
MODEL = os.environ.get("FAITHFUL_SEARCH_TEST_SERVER_MODEL", "")
PAIRS = [
    Pair("The tower stands in Lyon.", "The tower is in Lyon."),
    Pair("The tower stands in Lyon.", "Cats bark at night.", "Where is the tower?", "info_think"),
]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (PYTHON and MODEL), reason="no server to start: see this file's first lines"),
]


@pytest.fixture(scope="module", params=["--logits_all=true", "--logits_all=false"])
def server(request, tmp_path_factory):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [PYTHON, "-m", "llama_cpp.server", "--model", MODEL, "--host", "127.0.0.1", "--port", str(port)]
    with (tmp_path_factory.mktemp("server") / "log").open("wb") as log:
        running = subprocess.Popen([*command, "--n_ctx=1024", "--n_threads=1", request.param], stdout=log, stderr=log)
        try:
            _wait_for(port, running)
            yield f"http://127.0.0.1:{port}/v1", request.param.endswith("true")
        finally:
            running.terminate()
            running.wait(20)


def _wait_for(port: int, running: subprocess.Popen) -> None:
    for _ in range(300):
        assert running.poll() is None, "the server ended"
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            time.sleep(0.2)
    raise AssertionError("the server does not listen")


def test_every_pair_gets_a_verdict_and_none_is_asked_twice(server, tmp_path):
    url, _ = server
    judge = load("endpoint", "small", url=url, cache=tmp_path / "c.sqlite", concurrency=2)
    verdicts = judge.judge_batch(PAIRS)
    assert not any(verdict.abstained for verdict in verdicts)
    assert all(0 <= verdict.p <= 1 for verdict in verdicts)
    assert judge.stats.prompt_tokens > 300 and judge.stats.completion_tokens == len(PAIRS)
    again = load("endpoint", "small", url=url, cache=tmp_path / "c.sqlite")
    assert again.judge_batch(PAIRS) == verdicts and again.stats.calls == 0


def test_log_probs_are_used_where_the_server_has_them(server):
    url, has_logprobs = server
    judge = load("endpoint", "small", url=url, cache=None, concurrency=1)
    judge.judge_batch(PAIRS)
    assert ("logprobs" in judge._asker._ladder.current.body) is has_logprobs
    assert "grammar" in judge._asker._ladder.current.body
    assert judge.stats.retries == judge.stats.failures == 0


def test_texts_are_written(server):
    url, _ = server
    judge = load("endpoint", "small", url=url, cache=None, write_tokens=400, timeout=120)
    [text] = judge.write_batch([Request("claims", {"answer": "Lyon is in France."})])
    assert text is None or text == text.strip() != ""
    assert judge.stats.calls >= 1 and judge.stats.completion_tokens > 0


def test_a_prompt_beyond_the_context_abstains_and_the_others_do_not(server):
    url, _ = server
    judge = load("endpoint", "small", url=url, cache=None, retries=0, concurrency=1)
    verdicts = judge.judge_batch([PAIRS[0], Pair("word " * 3000, "claim"), PAIRS[1]])
    assert [verdict.abstained for verdict in verdicts] == [False, True, False]
    assert "context" in verdicts[1].why
