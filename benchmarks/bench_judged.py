"""Judged answer support through an endpoint of 50 ms a call: how near to the ideal, and beside
ragas' Faithfulness.

A small server on loopback, in a process of its own, answers every request after the same delay, so
both systems get the same answers over HTTP with as many requests under way. The ideal is calls ×
delay ÷ concurrency; what is above it is overhead. Imports, clients and first requests come before
the clock; nothing is cached.

Both ask twice about an answer, short or long: once for the statements it makes, once for whether
they are supported. With `--apart` ours asks about each statement by itself, which costs more calls
and gives probabilities. The slower the model, the nearer the ratio of rows comes to that of the
calls, which is printed too. The delay is the same however long an answer is; ragas lets the model
write each claim again with a reason. What it spends on a call beside waiting is CPU time, most of
it in instructor (the schema anew each time), pydantic and openai's client. Its telemetry is
switched off: a name look-up for each report blocks its event loop wherever there is no network.

ragas is measured where it is installed, in an environment that also has this package:
`pip install ragas==0.4.3 "langchain-community<0.4"`.
Run: `python benchmarks/bench_judged.py [--answers 500] [--concurrency 16] [--delay 0.05] [--apart]`
"""

import argparse
import asyncio
import importlib.util
import json
import multiprocessing
import os
import re
import time
from multiprocessing.connection import Connection
from typing import Any, NamedTuple, Protocol

from faithful_search.judges.endpoint import EndpointJudge
from faithful_search.rewards.answer_support import AnswerSupport
from faithful_search.trajectory import Evidence, Step, ToolCall, Trajectory

SENTENCES = (
    "Town {0} lies on river {0}.",
    "It was founded in {0}.",
    "Its bridge was built by family {0}.",
)
STATEMENTS = 3


class System(Protocol):
    """What scores answers through the server."""

    def score(self, rows: list[Trajectory]) -> list[float]:
        """One value a row."""

    def close(self) -> None:
        """Hang up."""


class Run(NamedTuple):
    """What a system took for some rows."""

    rows: float
    calls: float


def main() -> None:
    """Print a line for each system and kind of answer."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--answers", type=int, default=500)
    parser.add_argument("--concurrency", type=int, default=16)
    parser.add_argument("--delay", type=float, default=0.05)
    parser.add_argument("--apart", action="store_true", help="ask about each claim by itself")
    options = parser.parse_args()
    with Server(options.delay) as server:
        print(
            f"{options.answers} answers, {options.concurrency} requests at once, {options.delay * 1000:g} ms each"
        )
        systems: dict[str, System] = {
            "faithful-search": Ours(server.url, options.concurrency, not options.apart)
        }
        if importlib.util.find_spec("ragas") is not None:
            systems["ragas"] = Ragas(server.url, options.concurrency)
        for kind, sentences in (("short answers", 1), ("long answers, three sentences", 3)):
            print(f"{kind}:")
            rows = [make_trajectory(number, sentences) for number in range(options.answers)]
            compare(
                {
                    name: timed(name, system, rows, server, options)
                    for name, system in systems.items()
                }
            )
        for system in systems.values():
            system.close()


def compare(runs: dict[str, Run]) -> None:
    """Ours beside theirs, now and in the limit of slow models."""
    if "ragas" not in runs:
        print("  ragas is not installed here; nothing to compare with")
        return
    ours, theirs = runs["faithful-search"], runs["ragas"]
    print(
        f"  ratio of rows per second: {ours.rows / theirs.rows:.2f}; "
        f"for models so slow that only calls count: {theirs.calls / ours.calls:.2f}"
    )


def timed(
    name: str, system: System, rows: list[Trajectory], server: "Server", options: argparse.Namespace
) -> Run:
    """Score the rows and print the speed, the calls, the overhead over the ideal and the CPU time
    spent on it.
    """
    assert set(system.score(rows[: options.concurrency])) == {1.0}  # opens the connections
    server.calls()
    start, cpu = time.perf_counter(), time.process_time()
    values = system.score(rows)
    seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
    assert set(values) == {1.0} and len(values) == len(rows)
    calls = server.calls()
    ideal = calls * options.delay / options.concurrency
    print(
        f"  {name:<16} {len(rows) / seconds:7.1f} rows/s  {calls:>5} calls  {seconds:6.2f} s, "
        f"ideal {ideal:6.2f} s, overhead {seconds / ideal - 1:+.0%}, CPU {1000 * cpu / calls:.2f} ms a call"
    )
    return Run(len(rows) / seconds, calls / len(rows))


def make_trajectory(number: int, sentences: int) -> Trajectory:
    """One search that finds everything, and an answer of so many sentences."""
    facts = [sentence.format(number) for sentence in SENTENCES]
    answer = " ".join(facts[:sentences]) if sentences > 1 else f"river {number}"
    found = Evidence(" ".join(facts), f"Town {number}", "E1")
    search = Step(think="Search.", call=ToolCall("search"), evidence=(found,))
    last = Step(think="Found.", helpful=True, refs=("E1",), answer=answer)
    return Trajectory(
        (search, last),
        f"Which river does town {number} lie on?",
        answer,
        "answered",
        "pou",
        str(number),
    )


class Ours:
    """Answer support by the endpoint judge."""

    def __init__(self, url: str, concurrency: int, together: bool) -> None:
        self._judge = EndpointJudge(
            "stub", url=url, concurrency=concurrency, together=together, cache=None
        )

    def score(self, rows: list[Trajectory]) -> list[float]:
        return [float(score.value or 0.0) for score in AnswerSupport(self._judge).score_batch(rows)]

    def close(self) -> None:
        self._judge.close()


class Ragas:
    """Faithfulness, with so many rows at once, each of which has one request under way."""

    def __init__(self, url: str, concurrency: int) -> None:
        os.environ["RAGAS_DO_NOT_TRACK"] = "true"
        from openai import AsyncOpenAI
        from ragas.llms import llm_factory
        from ragas.metrics.collections import Faithfulness

        self._runner = asyncio.Runner()
        self._client = AsyncOpenAI(base_url=url, api_key="none")
        self._metric = Faithfulness(llm=llm_factory("stub", client=self._client))
        self._gate = asyncio.Semaphore(concurrency)

    def score(self, rows: list[Trajectory]) -> list[float]:
        return self._runner.run(self._score(rows))

    async def _score(self, rows: list[Trajectory]) -> list[float]:
        return await asyncio.gather(*map(self._one, rows))

    async def _one(self, row: Trajectory) -> float:
        async with self._gate:
            found = await self._metric.ascore(
                row.question, row.answer, [row.steps[0].evidence[0].text]
            )
            return float(found.value)

    def close(self) -> None:
        self._runner.run(self._client.close())
        self._runner.close()


class Server:
    """The endpoint, in its own process."""

    def __init__(self, delay: float) -> None:
        self._ours, theirs = multiprocessing.Pipe()
        self._process = multiprocessing.Process(target=_serve, args=(delay, theirs), daemon=True)

    def __enter__(self) -> "Server":
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
                lengths = re.findall(rb"content-length: *(\d+)", head, re.IGNORECASE)
                body = json.loads(await reader.readexactly(int(lengths[0])))
                count += 1
                await asyncio.sleep(delay)
                payload = json.dumps(_completion(body)).encode()
                head = (
                    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
                    % len(payload)
                )
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
        call = {
            "id": "1",
            "type": "function",
            "function": {"name": name, "arguments": message.pop("content")},
        }
        message |= {"content": None, "tool_calls": [call]}
    usage = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}
    choice: dict[str, Any] = {"index": 0, "message": message, "finish_reason": "stop"}
    if body.get("logprobs"):
        token = {"token": "1", "logprob": -0.01, "bytes": None}
        choice["logprobs"] = {
            "content": [token | {"top_logprobs": [token, {**token, "token": "0", "logprob": -4.6}]}]
        }
    return {
        "id": "x",
        "object": "chat.completion",
        "created": 0,
        "model": "stub",
        "choices": [choice],
        "usage": usage,
    }


def _schema(body: dict[str, Any]) -> str:
    """The names asked for by a schema or shown in the prompt; empty for our own plain requests."""
    return json.dumps([body.get("tools"), body.get("response_format"), body["messages"]])


def _words(body: dict[str, Any], schema: str) -> str:
    statements = [f"statement {number}" for number in range(STATEMENTS)]
    if "verdict" in schema and "reason" in schema:
        return json.dumps(
            {
                "statements": [
                    {"statement": text, "reason": "there", "verdict": 1} for text in statements
                ]
            }
        )
    if '"statements' in schema or '\\"statements' in schema:
        return json.dumps({"statements": statements})
    asked = body["messages"][-1]["content"]
    if "<claims-" in asked:
        return "\n".join(f"{number}: 1" for number in range(1, STATEMENTS + 1))
    return "\n".join(statements) if "<answer-" in asked else "1"


if __name__ == "__main__":
    main()
