"""Judged answer support through an endpoint of 50 ms a call: how near to the ideal, and beside ragas' Faithfulness.

A small server on loopback, in a process of its own, answers every request after the same delay. The ideal is
calls × delay ÷ concurrency; what is above it is overhead. ragas is measured where it is installed, in an environment
that also has this package: `pip install ragas==0.4.3 "langchain-community<0.4"`.
Run: `python benchmarks/bench_judged.py [--answers 500] [--concurrency 16] [--delay 0.05]`
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import json
import multiprocessing
import re
import time
from multiprocessing.connection import Connection
from typing import Any

from faithful_search.judges.endpoint import EndpointJudge
from faithful_search.rewards.answer_support import AnswerSupport
from faithful_search.trajectory import Evidence, Step, ToolCall, Trajectory

SENTENCES = ("Town {0} lies on river {0}.", "It was founded in {0}.", "Its bridge was built by family {0}.")
STATEMENTS = 3


def main() -> None:
    """Print a line for each system and kind of answer."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--answers", type=int, default=500)
    parser.add_argument("--concurrency", type=int, default=16)
    parser.add_argument("--delay", type=float, default=0.05)
    options = parser.parse_args()
    with Server(options.delay) as server:
        print(f"{options.answers} answers, {options.concurrency} requests at once, {options.delay * 1000:g} ms each")
        judge([make_trajectory(0, 1)], server, options)  # what is imported once is not what is compared
        compare("short answers, one claim", 1, server, options)
        compare("long answers, three sentences", 3, server, options)


def compare(kind: str, sentences: int, server: Server, options: argparse.Namespace) -> None:
    """Both systems on the same answers."""
    rows = [make_trajectory(number, sentences) for number in range(options.answers)]
    print(f"{kind}:")
    ours = timed("faithful-search", judge, rows, server, options)
    if importlib.util.find_spec("ragas") is None:
        print("  ragas is not installed here; nothing to compare with")
        return
    theirs = timed("ragas", ragas, rows, server, options)
    print(f"  ratio of rows per second: {ours / theirs:.2f}")


def timed(name: str, work: Any, rows: list[Trajectory], server: Server, options: argparse.Namespace) -> float:
    """Run `work` and print its speed, its calls, and the overhead over the ideal; returns rows per second."""
    server.calls()
    start = time.perf_counter()
    work(rows, server, options)
    seconds = time.perf_counter() - start
    calls = server.calls()
    ideal = calls * options.delay / options.concurrency
    print(
        f"  {name:<16} {len(rows) / seconds:7.1f} rows/s  {calls:>5} calls  {seconds:6.2f} s, "
        f"ideal {ideal:6.2f} s, overhead {seconds / ideal - 1:+.0%}"
    )
    return len(rows) / seconds


def make_trajectory(number: int, sentences: int) -> Trajectory:
    """One search that finds everything, and an answer of so many sentences."""
    facts = [sentence.format(number) for sentence in SENTENCES]
    answer = " ".join(facts[:sentences]) if sentences > 1 else f"river {number}"
    found = Evidence(" ".join(facts), f"Town {number}", "E1")
    search = Step(think="Search.", call=ToolCall("search"), evidence=(found,))
    last = Step(think="Found.", helpful=True, refs=("E1",), answer=answer)
    return Trajectory((search, last), f"Which river does town {number} lie on?", answer, "answered", "pou", str(number))


def judge(rows: list[Trajectory], server: Server, options: argparse.Namespace) -> None:
    """Ours: every row judged, nothing cached."""
    endpoint = EndpointJudge("stub", url=server.url, concurrency=options.concurrency, cache=None)
    scores = AnswerSupport(endpoint).score_batch(rows)
    assert all(score.value == 1.0 for score in scores), next(score for score in scores if score.value != 1.0)
    endpoint.close()


def ragas(rows: list[Trajectory], server: Server, options: argparse.Namespace) -> None:
    """Theirs, likewise."""
    asyncio.run(ask_ragas(rows, server, options))


async def ask_ragas(rows: list[Trajectory], server: Server, options: argparse.Namespace) -> None:
    """Theirs, with the same number of requests at once."""
    from openai import AsyncOpenAI
    from ragas.llms import llm_factory
    from ragas.metrics.collections import Faithfulness

    client = AsyncOpenAI(base_url=server.url, api_key="none")
    metric = Faithfulness(llm=llm_factory("stub", client=client))
    gate = asyncio.Semaphore(options.concurrency)

    async def one(row: Trajectory) -> float:
        async with gate:
            passage = row.steps[0].evidence[0].text
            found = await metric.ascore(row.question, row.answer, [passage])
            return float(found.value)

    async with client:
        values = await asyncio.gather(*map(one, rows))
    assert all(value == 1.0 for value in values)


class Server:
    """The endpoint, in its own process."""

    def __init__(self, delay: float) -> None:
        self._ours, theirs = multiprocessing.Pipe()
        self._process = multiprocessing.Process(target=_serve, args=(delay, theirs), daemon=True)

    def __enter__(self) -> Server:
        self._process.start()
        self.url = f"http://127.0.0.1:{self._ours.recv()}/v1"
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()

    def calls(self) -> int:
        """How many requests came since the last time this was asked."""
        self._ours.send("calls")
        return int(self._ours.recv())


def _serve(delay: float, pipe: Connection) -> None:
    asyncio.run(_listen(delay, pipe))


async def _listen(delay: float, pipe: Connection) -> None:
    count = 0

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal count
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(re.search(rb"content-length: *(\d+)", head, re.IGNORECASE)[1])
                body = json.loads(await reader.readexactly(length))
                count += 1
                await asyncio.sleep(delay)
                payload = json.dumps(_completion(body)).encode()
                head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(payload)
                writer.write(head + payload)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    def report() -> None:
        nonlocal count
        pipe.recv()
        pipe.send(count)
        count = 0

    server = await asyncio.start_server(handle, "127.0.0.1", 0, backlog=512)
    asyncio.get_running_loop().add_reader(pipe.fileno(), report)
    pipe.send(server.sockets[0].getsockname()[1])
    await server.serve_forever()


def _completion(body: dict[str, Any]) -> dict[str, Any]:
    """What a capable model would say to either system: three claims, each supported."""
    schema = _schema(body)
    message: dict[str, Any] = {"role": "assistant", "content": _words(body, schema)}
    if body.get("tools"):
        name = body["tools"][0]["function"]["name"]
        call = {"id": "1", "type": "function", "function": {"name": name, "arguments": message.pop("content")}}
        message |= {"content": None, "tool_calls": [call]}
    usage = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}
    choice: dict[str, Any] = {"index": 0, "message": message, "finish_reason": "stop"}
    if body.get("logprobs"):
        token = {"token": "1", "logprob": -0.01, "bytes": None}
        choice["logprobs"] = {"content": [token | {"top_logprobs": [token, {**token, "token": "0", "logprob": -4.6}]}]}
    return {"id": "x", "object": "chat.completion", "created": 0, "model": "stub", "choices": [choice], "usage": usage}


def _schema(body: dict[str, Any]) -> str:
    """The names asked for by a schema or shown in the prompt; empty for our own plain requests."""
    return json.dumps([body.get("tools"), body.get("response_format"), body["messages"]])


def _words(body: dict[str, Any], schema: str) -> str:
    statements = [f"statement {number}" for number in range(STATEMENTS)]
    if "verdict" in schema and "reason" in schema:
        return json.dumps({"statements": [{"statement": text, "reason": "there", "verdict": 1} for text in statements]})
    if '"statements' in schema or '\\"statements' in schema:
        return json.dumps({"statements": statements})
    return "\n".join(statements) if body.get("max_tokens", 0) > 100 else "1"


if __name__ == "__main__":
    main()
