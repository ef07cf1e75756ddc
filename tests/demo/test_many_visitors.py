"""The demo as a process of its own: how soon it serves and answers, many visitors at once, and what it keeps."""

import json
import os
import re
import subprocess
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from pathlib import Path

import httpx
import pytest
from served import COMMAND, free_port

from faithful_search.tasks import load_tasks

QUESTIONS = int(os.environ.get("DEMO_QUESTIONS", "60"))
"""Asked after one another, each by a visitor of its own; the figures in docs/log.md are of 500."""


def ask(address: str, question: str) -> str:
    """The page's last view of the answer, asked for as the page's script in a browser does."""
    with httpx.Client(base_url=address, trust_env=False, timeout=600) as client:
        calls = client.get("/config").json()["dependencies"]
        call = next(call["id"] for call in calls if call["api_name"] == "ask")
        session, shown = uuid.uuid4().hex, ""
        join = {"data": [question, "reads its evidence", ""], "fn_index": call, "session_hash": session}
        client.post("/gradio_api/queue/join", json=join).raise_for_status()
        with client.stream("GET", "/gradio_api/queue/data", params={"session_hash": session}) as events:
            for line in events.iter_lines():
                said = json.loads(line[6:]) if line.startswith("data: ") else {}
                if said.get("msg") == "process_completed":
                    assert said["success"], said
                    return shown
                if "output" in said:
                    shown = json.dumps(said["output"])
    raise AssertionError("the stream ended without an answer")


def memory(process: subprocess.Popen) -> float:
    """MiB that the process holds."""
    status = Path(f"/proc/{process.pid}/status").read_text("utf-8")
    return int(re.search(r"VmRSS:\s+(\d+)", status)[1]) / 1024


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
def test_it_serves_twenty_visitors_at_once_and_keeps_nothing_of_hundreds():
    pytest.importorskip("gradio")
    port = free_port()
    address = f"http://127.0.0.1:{port}"
    begun = time.monotonic()
    process = subprocess.Popen([*COMMAND, "demo", "--port", str(port)], stdout=subprocess.DEVNULL)
    try:
        while True:
            try:
                httpx.get(address, trust_env=False, timeout=60)
                break
            except httpx.TransportError:
                assert process.poll() is None and time.monotonic() < begun + 300
                time.sleep(0.1)
        served = time.monotonic() - begun
        questions = [task.question for task in islice(load_tasks("world", "train"), QUESTIONS)]
        ask(address, questions[0])  # opens the agents
        begun = time.monotonic()
        assert "Its answer" in ask(address, questions[1])
        print(f"served after {served:.1f} s, answered after {time.monotonic() - begun:.1f} s", flush=True)
        with ThreadPoolExecutor(20) as pool:
            views = list(pool.map(partial(ask, address), questions[:20]))
        assert all("Its answer" in shown for shown in views)
        held = []
        for number, question in enumerate(questions, 1):
            ask(address, question)
            if number % (QUESTIONS // 5) == 0:
                held.append(round(memory(process)))
                print(number, "questions:", held[-1], "MiB", flush=True)
        assert held[-1] < held[1] + 60
    finally:
        process.terminate()
        process.wait(30)
