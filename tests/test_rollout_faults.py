"""A thousand episodes with tools that fail in every way at 30 % of their calls: none is lost, every fault is read."""

from __future__ import annotations

import asyncio
import json
import random
import re
import time
from collections import Counter

import lab
import pytest

from faithful_search import dialects
from faithful_search.cache import Cache
from faithful_search.errors import ToolError
from faithful_search.inference.base import Completion
from faithful_search.rollout import Engine, Limits
from faithful_search.tasks import Task
from faithful_search.tools import Patience, Tool, Toolbox
from faithful_search.trajectory import Evidence

CALLS = 3  # of an episode
TIMEOUT = 1.0  # far more than a thousand healthy calls take to begin on a busy machine
TOLD = {
    "hang": f"did not answer within {TIMEOUT:g} seconds.",
    "stubborn": f"did not answer within {TIMEOUT:g} seconds.",
    "gone": "There is no such page.",
    "busy": "The service is busy.",
    "lost": "failed: ConnectionResetError: Connection reset by peer",
    "crash": "failed: KeyError: 'results'",
    "html": "failed: it returned str, not a list of Evidence.",
    "rows": "failed: it returned list, not a list of Evidence.",
    "nothing": "failed: it returned NoneType, not a list of Evidence.",
    "cancelled": "was cancelled.",
    "exit": "failed: it tried to end the program.",
}


class Faulty(Tool):
    """Fails at 30 % of the queries, always the same ones in the same way; `faults` keeps which."""

    def __init__(self, name: str) -> None:
        self.name = self.cache_key = name
        self.faults: dict[str, str] = {}
        self.asked: set[str] = set()

    async def search(self, query: str) -> list[Evidence]:
        """Search.

        Args:
            query: What to look for.
        """
        self.asked.add(query)
        draw = random.Random(f"{self.name} {query}")
        await asyncio.sleep(draw.choice((0, 0, 0.02)))
        if draw.random() >= 0.3:
            return [Evidence(f"Found for {query}.", "Page")]
        fault = self.faults[query] = draw.choice(list(TOLD))
        return await self._fail(fault)

    async def _fail(self, fault: str):
        returned = {"html": "<html>", "rows": [{"text": "x"}], "nothing": None}
        raised = {
            "gone": ToolError("There is no such page."),
            "busy": ToolError("The service is busy.", passing=True),
            "lost": ConnectionResetError(104, "reset by ('10.0.0.7', 443)"),
            "crash": KeyError("results"),
            "cancelled": asyncio.CancelledError(),
            "exit": SystemExit(1),
        }
        if fault in raised:
            raise raised[fault]
        end = time.monotonic() + 4 * TIMEOUT
        while fault == "stubborn" and time.monotonic() < end:
            try:
                await asyncio.sleep(end - time.monotonic())
            except asyncio.CancelledError:
                continue
        if fault == "hang":
            await asyncio.sleep(600)
        return returned.get(fault, [])


class Asking:
    """A policy that asks each tool about its question, then answers; every tenth of its calls is broken JSON."""

    def __init__(self, names: list[str], start: int) -> None:
        self.tokenizer, self.names, self.start = lab.tokenizer(), names, start
        self.turns: Counter[str] = Counter()

    def generate(self, prompts, sampling, max_new_tokens=None):
        return [self._turn(prompt) for prompt in prompts]

    def _turn(self, prompt: list[int]) -> Completion:
        [number] = re.findall(r"Question (\d{4})\?", self.tokenizer.decode(prompt[self.start - 60 : self.start]))
        turn = self.turns[number]
        self.turns[number] += 1
        verdict = "<helpful>no</helpful><ref>null</ref>" if turn else ""
        query = f"{number} {turn}"
        call = json.dumps({"name": self.names[turn % len(self.names)], "arguments": {"query": query}})
        if (int(number) + turn) % 10 == 0:
            call = call[:-2] + ",}"
        act = f"<tool_call>{call}</tool_call>" if turn < CALLS else "<answer>Rome</answer>"
        ids = self.tokenizer(f"<think>{verdict}so</think>{act}", add_special_tokens=False)["input_ids"]
        return Completion(ids, "stop")


@pytest.mark.parametrize("kept", [False, True])
def test_a_thousand_rollouts_with_faulty_tools_lose_no_episode(tmp_path, kept):
    count = 1000 if not kept else 200
    tools = [Faulty(name) for name in ("web", "pages", "graph")]
    cache = Cache(tmp_path / "cache.sqlite") if kept else None
    tasks = [Task(f"q{n}", f"Question {n:04}?", ("Rome",)) for n in range(count)]
    settings = {"timeout": TIMEOUT, "concurrency": 1000, "per_tool": 400, "patience": Patience(1, 0.01)}
    with Toolbox(tools, **settings, failures=1000, cache=cache) as toolbox:
        probe = Engine(Asking([], 0), toolbox)
        start = len(probe.chat.prompt_ids(tasks[0].question, toolbox.schemas))
        engine = Engine(Asking(toolbox.names, start), toolbox, limits=Limits(turns=6), concurrency=count)
        begun = time.perf_counter()
        found = engine.run(tasks)
        took = time.perf_counter() - begun
        stats = toolbox.stats()
    assert [t.id for t in found] == [task.id for task in tasks]
    assert {t.stop_reason for t in found} == {"answered"} and {len(t.steps) for t in found} == {CALLS + 1}
    faults = {(tool.name, query): fault for tool in tools for query, fault in tool.faults.items()}
    read: dict[tuple[str, str], str] = {}
    for t in found:
        for step in t.steps[:CALLS]:
            response = t.text[slice(*step.spans["response"])]
            if step.note:
                assert not step.evidence and dialects.load("pou").fence.escape(step.note) in response
                read[step.call.name, step.call.arguments["query"]] = step.note
            else:
                assert [item.text for item in step.evidence] == [f"Found for {step.call.arguments['query']}."]
    assert read.keys() == faults.keys()
    assert all(note.endswith(TOLD[faults[which]]) for which, note in read.items())
    assert set(faults.values()) == set(TOLD) and 0.25 < len(faults) / (CALLS * count) < 0.35
    assert "10.0.0.7" not in "".join(read.values())
    assert sum(s.errors for s in stats.values()) == len(faults)
    assert sum(s.calls for s in stats.values()) == CALLS * count
    assert took < 60  # CALLS time-outs and what the byte tokenizer takes; ten-fold slack


def test_a_service_that_goes_down_altogether_costs_a_time_out_and_no_episode():
    class Down(Faulty):
        async def search(self, query: str) -> list[Evidence]:
            """Search.

            Args:
                query: What to look for.
            """
            self.asked.add(query)
            await asyncio.sleep(600)
            return []

    tools = [Down("web"), Faulty("graph")]
    tasks = [Task(f"q{n}", f"Question {n:04}?", ("Rome",)) for n in range(300)]
    with Toolbox(tools, timeout=TIMEOUT, patience=Patience(0), per_tool=16, failures=5) as toolbox:
        start = len(Engine(Asking([], 0), toolbox).chat.prompt_ids(tasks[0].question, toolbox.schemas))
        found = Engine(Asking(["web", "web", "web"], start), toolbox, limits=Limits(turns=6)).run(tasks)
        stats = toolbox.stats()["web"]
    assert {t.stop_reason for t in found} == {"answered"} and len(found) == 300
    notes = Counter(re.sub(r"next \d+ s", "next n s", step.note) for t in found for step in t.steps[:CALLS])
    assert notes == {
        f"Error: web did not answer within {TIMEOUT:g} seconds.": 16,
        "Error: web is out of order for the next n s. Other tools: graph.": 3 * 300 - 16,
    }
    assert (stats.made, stats.refused, len(tools[0].asked)) == (16, 884, 16)
