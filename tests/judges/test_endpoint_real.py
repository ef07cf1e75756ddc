"""The endpoint judge and a real server with a real small model: the plumbing, not the quality.

A GGUF file is served by llama-cpp-python, a model's directory by vLLM, each from an environment of its own:

    python -m venv /tmp/server && /tmp/server/bin/pip install "llama-cpp-python[server]"    # or vllm
    FAITHFUL_SEARCH_TEST_SERVER_PYTHON=/tmp/server/bin/python FAITHFUL_SEARCH_TEST_SERVER_MODEL=model.gguf \\
        pytest -m slow tests/judges/test_endpoint_real.py
"""

import os
import socket
import subprocess
import time
from pathlib import Path

import pytest
from served import free_port

from faithful_search.judges import Pair, load

PYTHON = os.environ.get("FAITHFUL_SEARCH_TEST_SERVER_PYTHON", "")
MODEL = os.environ.get("FAITHFUL_SEARCH_TEST_SERVER_MODEL", "")
LLAMA = ("-m", "llama_cpp.server", "--n_ctx=1024", "--n_threads=1")
VLLM = (
    *("-m", "vllm.entrypoints.openai.api_server", "--served-model-name=small", "--max-model-len=1024"),
    *("--dtype=bfloat16", "--enforce-eager", "--gpu-memory-utilization=0.3"),
)
WAYS = {  # a flag, and how many log-probs the server then gives
    LLAMA: {"--logits_all=true": 20, "--logits_all=false": None},
    VLLM: {"--max-logprobs=20": 20, "--max-logprobs=5": 5},
}
COMMAND = VLLM if Path(MODEL).is_dir() else LLAMA
PAIRS = [
    Pair("The tower stands in Lyon.", "The tower is in Lyon."),
    Pair("The tower stands in Lyon.", "Cats bark at night.", "Where is the tower?", "info_think"),
]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (PYTHON and MODEL), reason="no server to start: see this file's first lines"),
]


@pytest.fixture(scope="module", params=WAYS[COMMAND])
def server(request, tmp_path_factory):
    """The URL, and how many log-probs there are."""
    port = free_port()
    command = [PYTHON, *COMMAND, "--model", MODEL, "--host", "127.0.0.1", "--port", str(port), request.param]
    own = os.environ | {"VLLM_CPU_KVCACHE_SPACE": "1"}
    with (tmp_path_factory.mktemp("server") / "log").open("wb") as log:
        running = subprocess.Popen(command, stdout=log, stderr=log, env=own)
        try:
            _wait_for(port, running)
            url = f"http://127.0.0.1:{port}/v1"
            load("endpoint", "small", url=url, cache=None, timeout=300).judge_batch(PAIRS[:1])  # the first is slow
            yield url, WAYS[COMMAND][request.param]
        finally:
            running.terminate()
            running.wait(60)


def _wait_for(port: int, running: subprocess.Popen) -> None:
    for _ in range(1500):
        assert running.poll() is None, "the server ended"
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            time.sleep(0.2)
    raise AssertionError("the server does not listen")


def test_verdicts_log_probs_and_a_prompt_beyond_the_context(server, tmp_path):
    url, logprobs = server
    judge = load("endpoint", "small", url=url, cache=tmp_path / "c.sqlite", concurrency=1)
    verdicts = judge.judge_batch(PAIRS)
    assert all(0 <= verdict.p <= 1 for verdict in verdicts) and judge.stats.retries == judge.stats.failures == 0
    assert len(PAIRS) <= judge.stats.completion_tokens <= 2 * len(PAIRS)  # some count the end of the reply
    body = judge._ladder.current.body
    assert body.get("top_logprobs") == logprobs and "structured_outputs" in body
    if logprobs is None:
        assert all(verdict.p == float(verdict.label) for verdict in verdicts)
    elif COMMAND is VLLM:  # of the other one, a label may be missing among the 20
        assert all(0 < verdict.p < 1 for verdict in verdicts)
    again = load("endpoint", "small", url=url, cache=tmp_path / "c.sqlite", retries=0, concurrency=1)
    first, long, last = again.judge_batch([PAIRS[0], Pair("word " * 3000, "claim"), PAIRS[1]])
    assert [first, last] == verdicts and long.abstained and "context" in long.why
