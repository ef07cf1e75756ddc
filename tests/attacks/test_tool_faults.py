"""Tools that go wrong in every way Python allows: no call raises, no rollout is lost, and nobody
learns a key.
"""

import asyncio
import gc
import json
import logging
import random
import re
import time
import tracemalloc
from collections import Counter
from typing import Any

import lab
import pytest
from search_servers import KEY, Request, SearchServer, serper
from tool_faults import ADDRESS, FAULTS, HANGING, LARGE, MEGABYTE, SECRET

from faithful_search import dialects
from faithful_search.rollout import Engine, Limits
from faithful_search.serving.mcp import as_text
from faithful_search.tasks import Task
from faithful_search.tools import (
    Cassette,
    Observation,
    Patience,
    RemoteSearch,
    Tool,
    Toolbox,
    WebSearch,
)
from faithful_search.tools.outcome import EVIDENCE_LENGTH, LINE_LENGTH, MOST_PASSAGES
from faithful_search.tools.web.providers.serper import Serper
from faithful_search.trajectory import Evidence, ToolCall, Trajectory
from faithful_search.wire import http
from faithful_search.wire.cache import Cache
from faithful_search.wire.failures import LONGEST
from faithful_search.wire.http import Http

SHARE, CALLS = 0.3, 3
SETTINGS: dict[str, Any] = {
    "timeout": 100,
    "concurrency": 2000,
    "failures": 10**6,
    "patience": Patience(1, 0.0),
}
GOOD = "A good answer."
FOUND = {"document": {"id": "1", "contents": f'"Page"\n{GOOD}'}, "score": 1.0}
WAYS = FAULTS | HANGING


class Odd(lab.Shelf):
    """Goes wrong in the way it is asked to."""

    def __init__(self, cache_key: str = "") -> None:
        super().__init__(name="odd")
        self.cache_key = cache_key

    async def shelf(self, query: str) -> list[Evidence]:
        way = query.partition(" #")[0]
        if way in LARGE:
            return LARGE[way]()
        return await WAYS[way]() if way in WAYS else [Evidence(GOOD)]


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVICE_API_KEY", SECRET)


class Planned(lab.Writing):
    """Of `Question 7?` it asks the tools for `plan[7]`, one after the other, and then answers."""

    def __init__(self, plan: list[list[str]], *tools: str) -> None:
        super().__init__()
        self.plan, self.tools, self.turns = plan, tools or ("odd",), Counter[int]()

    def turn(self, prompt: str) -> str:
        number = int(re.findall(r"Question (\d+)\?", prompt)[0])
        turn = self.turns[number]
        self.turns[number] += 1
        if turn == CALLS:
            return lab.answering("no", "null", "so", "Rome")
        verdict = "<helpful>no</helpful><ref>null</ref>" if turn else ""
        return lab.searching(
            f"{verdict}so", self.tools[turn % len(self.tools)], self.plan[number][turn]
        )


def calls(ways: list[str]) -> list[ToolCall]:
    return [ToolCall("odd", {"query": f"{way} #{number}"}) for number, way in enumerate(ways)]


def is_clean(text: str) -> bool:
    return not any(word in text for word in (SECRET, "10.0.0.7", ADDRESS, "admin"))


def ask(ways: list[str], **settings: Any) -> list[Observation]:
    """What a tool's calls get that go wrong in these ways, each in a session of its own."""
    with Toolbox([Odd()], **SETTINGS | settings) as toolbox:
        return toolbox.run_batch(calls(ways), [toolbox.session() for _ in ways])


def assert_told(found: Observation) -> None:
    assert found.error
    assert found.note
    assert not found.evidence
    assert len(found.note) <= LONGEST
    assert "\n" not in found.note
    assert is_clean(found.note)
    assert found.note.encode().decode() == found.note


def test_whatever_a_tool_does_its_neighbours_are_answered_and_it_is_told(caplog):
    ways = [*FAULTS, *["good"] * len(FAULTS)]
    with Toolbox([Odd()], **SETTINGS) as toolbox, caplog.at_level(logging.DEBUG, "faithful_search"):
        found = toolbox.run_batch(calls(ways), [toolbox.session() for _ in ways])
        stats = toolbox.stats()["odd"]
    for item in found[: len(FAULTS)]:
        assert_told(item)
    assert not any("did not answer" in item.note for item in found)
    assert [[each.text for each in item.evidence] for item in found[len(FAULTS) :]] == [
        [GOOD]
    ] * len(FAULTS)
    assert (stats.errors, stats.calls) == (len(FAULTS), len(ways))
    ours = [
        record.getMessage()
        for record in caplog.records
        if record.name.startswith("faithful_search")
    ]
    assert ours
    assert not any(SECRET in line for line in ours)
    assert max(map(len, ours)) < 2 * LONGEST


def test_what_asyncio_cannot_carry_costs_a_time_out_at_most():
    found = ask([*HANGING, *["good"] * 20], timeout=1)
    for item in found[: len(HANGING)]:
        assert_told(item)
    assert {item.evidence[0].text for item in found[len(HANGING) :]} == {GOOD}


def test_what_is_shared_kept_and_recorded_of_faults_is_a_tools_own_words(tmp_path):
    ways = [*FAULTS, "good"]
    cassette = Cassette(tmp_path / "calls.jsonl", "record")
    with Toolbox(
        [Odd("odd")], **SETTINGS, cache=Cache(tmp_path / "cache.sqlite"), cassette=cassette
    ) as toolbox:
        found = toolbox.run_batch(
            [call for call in calls(ways) for _ in range(3)], [toolbox.session()] * 3 * len(ways)
        )
    for number, way in enumerate(FAULTS):
        equal = found[3 * number : 3 * number + 3]
        assert_told(equal[0])
        assert equal[0] == equal[1] == equal[2], way
        assert "did not answer" not in equal[0].note, way
    assert {item.evidence[0].text for item in found[-3:]} == {GOOD}
    lines = [json.loads(line) for line in (tmp_path / "calls.jsonl").read_text().splitlines()]
    told = {line["arguments"]["query"].partition(" #")[0]: line.get("error") for line in lines}
    assert set(told) == {
        way for way in FAULTS if way.startswith("raises said") and "group" not in way
    } | {"good"}
    assert is_clean(str(told))
    assert is_clean((tmp_path / "cache.sqlite").read_bytes().decode("latin-1"))


def test_on_an_event_loop_of_the_callers_as_an_mcp_server_has():
    # on the main thread an interrupt is the user's, and the loop with its tasks and threads is the
    # caller's
    theirs = re.compile(
        "Interrupt|loop|left behind|Exit in a (task|group)|StopIteration in a thread"
    )
    ways = [way for way in FAULTS if not theirs.search(way)]

    async def ask_here(ways: list[str]) -> list[Observation]:
        with Toolbox([Odd()], **SETTINGS) as toolbox:
            session = toolbox.session()
            return await asyncio.gather(*(toolbox.call(call, session) for call in calls(ways)))

    *found, good = asyncio.run(ask_here([*ways, "good"]))
    for item in found:
        assert_told(item)
        assert is_clean(as_text(item))
    assert GOOD in as_text(good)
    with pytest.raises(KeyboardInterrupt):  # the user's
        asyncio.run(ask_here(["raises KeyboardInterrupt"]))


@pytest.mark.parametrize("way", LARGE)
def test_what_is_too_large_or_odd_is_cut_and_says_so(way):
    [found] = ask([way])
    parts = [
        getattr(item, part)
        for item in found.evidence
        for part in ("text", "title", "source", "url")
    ]
    assert found.evidence
    assert {type(part) for part in parts} == {str}
    assert sum(map(len, parts)) < EVIDENCE_LENGTH + 200
    assert len(found.evidence) <= MOST_PASSAGES
    assert found.evidence[-1].text.endswith("passages]") == (way in ("texts", "many", "endless"))
    assert max(len(item.title) for item in found.evidence) <= LINE_LENGTH
    t = Trajectory(text="".join(parts))
    assert Trajectory.from_json(t.to_json()) == t
    assert all(item.score is None for item in found.evidence)


def test_a_tool_that_returns_much_costs_no_memory():
    tracemalloc.start()
    try:
        with Toolbox([Odd()], **SETTINGS) as toolbox:
            session = toolbox.session()
            found = [toolbox.run_batch(calls(["texts"]), [session]) for _ in range(5)]
            toolbox.run_batch(
                calls(["raises long", "raises said much", "raises long key"]), [session] * 3
            )
            gc.collect()
            kept = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert len(found) == 5
    assert kept < 10 * MEGABYTE


def test_a_tool_gets_arguments_of_its_own():
    class Greedy(Tool):
        name = "greedy"

        async def greedy(self, queries: list[str]) -> list[Evidence]:
            """Search.

            Args:
                queries: What to look for.
            """
            queries.clear()
            raise ConnectionError

    call = ToolCall("greedy", {"queries": ["a"]})
    with Toolbox([Greedy()], **SETTINGS) as toolbox:
        found = toolbox.run_batch([call], [toolbox.session()])
    assert found[0].error
    assert call.arguments == {"queries": ["a"]}


def planned(rounds: int) -> list[list[str]]:
    draw, ways = random.Random(rounds), [*FAULTS, *LARGE]

    def way(number: int, turn: int) -> str:
        odd = ways[(number * CALLS + turn) % len(ways)] if draw.random() < SHARE else "good"
        return f"{odd} #{number}-{turn}"

    return [[way(number, turn) for turn in range(CALLS)] for number in range(rounds)]


@pytest.mark.parametrize("kept", [False, True])
def test_no_rollout_is_lost_and_each_fault_is_text_that_the_policy_saw(
    rounds, kept, tmp_path, monkeypatch
):
    """With `--attack 1000` a thousand rollouts at once."""
    monkeypatch.setattr(logging.getLogger("faithful_search.tools.lane"), "disabled", True)
    plan = planned(rounds)
    limits = Limits(turns=6, total_tokens=10**6, observation_tokens=10_000)
    tasks = [Task(f"q{number}", f"Question {number}?", ("Rome",)) for number in range(rounds)]
    begun = time.monotonic()
    with Toolbox(
        [Odd("odd")], **SETTINGS, cache=Cache(tmp_path / "cache.sqlite") if kept else None
    ) as toolbox:
        found = Engine(Planned(plan), toolbox, limits=limits, concurrency=rounds).run(tasks)
        stats = toolbox.stats()["odd"]
    print(
        f"{rounds} rollouts, {stats.calls} calls, {stats.errors} faults, "
        f"{time.monotonic() - begun:.1f} s"
    )
    assert [t.id for t in found] == [task.id for task in tasks]
    assert {t.stop_reason for t in found} == {"answered"}
    assert stats.calls == CALLS * rounds
    assert stats.errors == assert_steps(found, plan) > 0.5 * SHARE * CALLS * rounds
    assert is_clean("".join(t.to_json() for t in found))
    assert max(len(t.to_json()) for t in found) < 300_000
    assert [Trajectory.from_json(t.to_json()).steps for t in found] == [t.steps for t in found]


def assert_steps(found: list[Trajectory], plan: list[list[str]]) -> int:
    """How many calls failed: each of them, and nothing else, was answered by a note that is in the
    policy's text.
    """
    faults = 0
    for t, ways in zip(found, plan, strict=True):
        for step, way in zip(t.steps, ways, strict=False):
            assert step.call is not None
            assert step.call.arguments == {"query": way}
            failed = way.partition(" #")[0] in FAULTS
            faults += failed
            assert bool(step.note) == failed != bool(step.evidence)
            assert (
                dialects.load("pou").fence.escape(step.note)
                in t.text[slice(*step.spans["response"])]
            )
            assert "did not answer" not in step.note
    return faults


SERVICES = {  # what a search service does, and what the note says of it
    "forbidden": "use another tool", "busy": "429 Too Many Requests", "unavailable": "503 Service Unavailable",
    "hang": "longer than 5 seconds", "cut": "broke off", "closed": "broke off", "html": "not JSON", "null": "something",
}  # fmt: skip


class Moody(SearchServer):
    """Misbehaves for the queries that say how, such as `cut #7-1`."""

    def now(self, request: Request) -> str:
        super().now(request)
        return (request.body["q"] if "q" in request.body else request.body["queries"][0]).partition(
            " #"
        )[0]


@pytest.mark.slow
def test_no_episode_is_lost_among_faulty_services(monkeypatch):
    monkeypatch.setenv("SERPER_API_KEY", KEY)
    monkeypatch.setattr(http, "_CALLS", 10_000)  # else the faults of a host hide one another
    draw, ways = random.Random(7), [*SERVICES]
    plan = [
        [draw.choice(ways) if draw.random() < SHARE else "good" for _ in range(CALLS)]
        for _ in range(200)
    ]
    queries = [
        [f"{way} #{number}-{turn}" for turn, way in enumerate(own)]
        for number, own in enumerate(plan)
    ]
    asking, limits = Http(timeout=5, patience=Patience(0), per_host=1000), Limits(turns=6)
    tasks = [Task(f"q{number}", f"Question {number}?", ("Rome",)) for number in range(200)]
    with Moody(serper) as web, Moody(lambda request: (200, {"result": [[FOUND]]})) as local:
        tools = [WebSearch(Serper(url=web.url, http=asking)), RemoteSearch(local.url, http=asking)]
        with Toolbox(tools, **SETTINGS) as toolbox:
            policy = Planned(queries, "web_search", "local_search")
            found = Engine(policy, toolbox, limits=limits, concurrency=200).run(tasks)
            errors = sum(stats.errors for stats in toolbox.stats().values())
    assert [t.id for t in found] == [task.id for task in tasks]
    assert {t.stop_reason for t in found} == {"answered"}
    for t, own in zip(found, plan, strict=True):
        for step, way in zip(t.steps[:-1], own, strict=True):
            assert bool(step.evidence) == (way == "good") != bool(step.note)
            assert SERVICES.get(way, "") in step.note
            assert (
                dialects.load("pou").fence.escape(step.note)
                in t.text[slice(*step.spans["response"])]
            )
    faults = sum(way != "good" for own in plan for way in own)
    assert errors == faults > 0.25 * CALLS * 200
    assert KEY not in str(found)
