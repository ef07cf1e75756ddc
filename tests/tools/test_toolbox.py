"""The toolbox: numbering, failures as notes, real concurrency, and answers that are kept."""

import asyncio
import copy
import gc
import os
import pickle
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Annotated, Literal

import lab
import msgspec
import pytest

from faithful_search import dialects
from faithful_search.errors import ConfigError, ToolError
from faithful_search.measure.probes import Blanked
from faithful_search.tools import (
    Irrelevant,
    Patience,
    Tool,
    Toolbox,
    ToolStats,
    method_of,
    schema_of,
)
from faithful_search.tools.base import Partial
from faithful_search.tools.cassette import Cassette
from faithful_search.trajectory import Evidence, ToolCall
from faithful_search.wire.cache import Cache, key_of


@dataclass(frozen=True)
class Echo(Tool):
    """Returns what it is told, after a while."""

    name: str = "echo"
    description: str = ""

    async def echo(self, text: str, times: int = 1, wait: float = 0.0) -> list[Evidence]:
        """Say it again.

        Args:
            text: What to say.
            times: How often,
                in whole numbers.
            wait: Seconds before.
        """
        await asyncio.sleep(wait)
        return [Evidence(text=text, title="Echo", id="forged")] * times


class Service(lab.Shelf):
    """Does what the first word of a query says; `asked` are all of them, `most` how many at
    once.
    """

    cache_key = "service/v1"

    def __init__(self, slow: float = 0.0) -> None:
        super().__init__(name="service")
        self.slow = slow
        self.asked: list[str] = []
        self.now = self.most = 0
        self.release = threading.Event()
        self.lacks = ""

    def check(self) -> None:
        if self.lacks:
            raise ConfigError(f"service needs {self.lacks}")

    async def shelf(self, query: str) -> list[Evidence]:
        self.asked.append(query)
        self.now += 1
        self.most = max(self.most, self.now)
        await asyncio.sleep(self.slow)
        self.now -= 1
        match query.split()[0]:
            case "block":
                self.release.wait(20)
            case "busy":
                raise ToolError("The service is busy.", transient=True)
            case "tried":
                raise ToolError("The service was busy several times.", transient=True, retried=True)
            case "once" if self.asked.count(query) == 1:
                raise ConnectionResetError(104, "Connect call failed ('10.1.2.3', 443)")
            case "lost":
                raise ConnectionRefusedError(111, "Connect call failed ('10.1.2.3', 443)")
            case "gone":
                raise ToolError("There is no such page.")
            case "inside":
                self.toolbox.run_batch([], [])
            case "hang":
                await asyncio.sleep(60)
            case "late" | "stay" as way:
                while True:
                    try:
                        await asyncio.sleep(30)
                    except asyncio.CancelledError:
                        if way == "late":
                            raise ValueError("too late") from None
            case "nothing":
                return []
            case "part" if self.asked.count(query) == 1:
                return Partial([Evidence("A part.", "Service")])
        return [Evidence(f"About {query}.", "Service")]

    def __reduce__(self):
        return Service, (self.slow,)


QUICK, NEVER = Patience(retries=2, first=0.001), Patience(0)


def echo(text: str, **more: object) -> ToolCall:
    return ToolCall("echo", {"text": text, **more})


@pytest.fixture
def toolbox():
    with Toolbox([Echo(), Service()], timeout=0.5, patience=NEVER) as made:
        yield made


@pytest.fixture
def cache(tmp_path):
    made = Cache(tmp_path / "cache.sqlite")
    yield made
    made.close()


@pytest.fixture
def cassette(tmp_path):
    return Cassette(tmp_path / "calls.jsonl", "record")


def one(toolbox: Toolbox, call: ToolCall):
    [found] = toolbox.run_batch([call], [toolbox.session()])
    return found


def ask(toolbox: Toolbox, *queries: str):
    calls = [ToolCall("service", {"query": query}) for query in queries]
    return toolbox.run_batch(calls, [toolbox.session() for _ in calls])


def ids(observation) -> list[str]:
    return [item.id for item in observation.evidence]


def texts(observation) -> list[str]:
    return [item.text for item in observation.evidence]


def test_evidence_ids_follow_the_order_of_the_calls(toolbox):
    own, other = toolbox.session(), toolbox.session()
    calls = [
        echo("slow", wait=0.1),
        None,
        echo("fast", times=2),
        ToolCall("service", {"query": "gone"}),
        echo("b"),
    ]
    found = toolbox.run_batch([*calls, echo("faster")], [own, own, own, own, other, own])
    assert [texts(o) for o in found] == [["slow"], [], ["fast", "fast"], [], ["b"], ["faster"]]
    assert [ids(o) for o in found] == [["E1"], [], ["E2", "E3"], [], ["E1"], ["E4"]]
    assert found[1].note == ""
    assert not found[1].error
    assert ids(asyncio.run(toolbox.call(echo("d"), own))) == ["E5"]


def test_a_rollout_reads_its_own_version_of_what_a_tool_returns(toolbox):
    """Others read the original; ids have no gap where a passage is missing."""
    edited, other = toolbox.session({"a": "changed", "gone": None}), toolbox.session()
    for session, expected in ((edited, ("b", "changed")), (other, ("gone", "b", "a"))):
        found = [toolbox.run_batch([echo(text)], [session])[0] for text in ("gone", "b", "a")]
        shown = [item for observation in found for item in observation.evidence]
        assert [(item.text, item.id) for item in shown] == [
            (text, f"E{n}") for n, text in enumerate(expected, 1)
        ]
    assert toolbox.run_batch([echo("gone")], [edited])[0].note == "No results."


# wrong calls, settings and tools


def test_wrong_calls_name_what_there_is(
    toolbox,
):
    for name, meant in (("web_search", ""), ("servise", " Did you mean 'service'?")):
        found = one(toolbox, ToolCall(name, {"query": "x"}))
        assert found.note == f"Error: Unknown tool.{meant} Available tools: echo, service."
        assert found.error
    told = toolbox.describe_malformed("cut off", dialects.load("pou").call_form(toolbox.names)).note
    form = 'Write it as JSON like {"name": "echo", "arguments": {"…": "…"}}.'
    why = "Error: The tool call could not be read: cut off."
    assert told == f"{why} {form} Available tools: echo, service."


class Rich(Tool):
    """Has arguments of every kind."""

    name = "rich"

    async def rich(
        self,
        queries: Annotated[list[str], msgspec.Meta(min_length=1, max_length=3)],
        sort: Literal["new", "old"] = "new",
        sites: list[str] | None = None,
    ) -> list[Evidence]:
        """Search with everything.

        Over two paragraphs.

        Args:
            queries: What to look for: words,
                all of them.
            sort: The order.
            sites: Only there.

        Returns:
            Passages.
        """
        return [Evidence(f"{item} {sites}") for item in queries]


@pytest.mark.parametrize(
    ("name", "arguments", "told"),
    [
        ("echo", {}, "missing required argument 'text'"),
        ("echo", {"text": 3}, "argument 'text': expected 'str', got 'int'"),
        ("echo", {"text": "a", "colour": "red"}, "unknown argument"),
        ("echo", {"text": "a", "x` - at `$.text": "red"}, "unknown argument"),
        (
            "rich",
            {"queries": ["a"], "sort": "up"},
            "argument 'sort': none of the values that it takes",
        ),
        ("echo", ["a"], "expected 'object', got 'array'"),
        ("echo", {"text": " \n\u3000"}, "argument 'text' is empty"),
        ("rich", {"queries": ["a"] * 4}, "argument 'queries': expected 'array' of length <= 3"),
        ("rich", {"queries": [" ", ""]}, "argument 'queries' is empty"),
        ("rich", {"queries": ["a", 3]}, "argument 'queries[1]': expected 'str', got 'int'"),
    ],
)
def test_wrong_arguments_are_explained(name, arguments, told):
    usage = {
        "echo": "text, times, wait; required: text.",
        "rich": "queries, sort, sites; required: queries.",
    }
    with Toolbox([Echo(), Rich()]) as toolbox:
        found = one(toolbox, ToolCall(name, arguments))
        assert one(toolbox, ToolCall("rich", {"queries": ["a", " "], "sites": None})).evidence
    assert found.note == f"Error: {name}: {told}. Its arguments: {usage[name]}"
    assert found.error
    assert not found.evidence


def test_schemas_are_those_of_transformers():
    from transformers.utils import get_json_schema

    for tool in (Echo(), Irrelevant()):
        assert schema_of(tool) == get_json_schema(method_of(tool))
    function = schema_of(Rich())["function"]
    strings = {"type": "array", "items": {"type": "string"}}
    assert function["description"] == "Search with everything.\n\nOver two paragraphs."
    properties = function["parameters"]["properties"]
    about = "What to look for: words, all of them."
    assert properties["queries"] == {**strings, "minItems": 1, "maxItems": 3, "description": about}
    assert properties["sort"]["enum"] == ["new", "old"]
    assert properties["sites"] == {**strings, "nullable": True, "description": "Only there."}
    assert function["parameters"]["required"] == ["queries"]
    function = schema_of(Echo(name="parrot", description="A bird."))["function"]
    assert (function["name"], function["description"]) == ("parrot", "A bird.")


def test_undocumented_tools_and_wrong_settings_are_refused():
    class Silent(Tool):
        name = "silent"

        async def silent(self, query: str) -> list[Evidence]:
            """Search."""

    class Untyped(Tool):
        name = "untyped"

        async def untyped(self, query) -> list[Evidence]:
            """Search."""

    for tools, settings, told in (
        ([Silent()], {}, "Silent.silent: describe 'query' under 'Args:'"),
        ([Untyped()], {}, "argument 'query' has no type"),
        ([type("Mute", (), {"name": "mute"})()], {}, "no public async method"),
        ([Echo(), Echo()], {}, "two tools of one name: echo, echo"),
        *(
            ([Echo()], {name: 0}, "must be positive")
            for name in ("timeout", "concurrency", "failures", "cooldown")
        ),
    ):
        with pytest.raises(ConfigError, match=told):
            Toolbox(tools, **settings)
    with Toolbox([Echo()]) as toolbox, pytest.raises(ConfigError, match="1 calls for 2 sessions"):
        toolbox.run_batch([None], [toolbox.session()] * 2)


def test_the_irrelevant_tool_is_deterministic_and_well_formed():
    tool = Irrelevant(top_k=3)
    first, again = (asyncio.run(tool.garden_almanac("capital of France")) for _ in range(2))
    assert first == again != asyncio.run(tool.garden_almanac("who painted Guernica"))
    assert len({item.source for item in first}) == 3
    assert all(item.title and item.text for item in first)


# threads and loops


def test_giving_up_on_a_call_ends_the_tools_work():
    async def give_up() -> int:
        toolbox = Toolbox([Service()])
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(
                toolbox.call(ToolCall("service", {"query": "hang"}), toolbox.session()), 0.05
            )
        for _ in range(50):
            await asyncio.sleep(0)
        return len(asyncio.all_tasks())

    assert asyncio.run(give_up()) == 1  # its own, while the loop still runs


def test_abandoned_tools_that_fail_later_log_nothing(caplog):
    gc.collect()  # what other tests left
    caplog.clear()
    with Toolbox([Service()], timeout=0.1) as toolbox:
        assert all(
            "did not answer within 0.1 seconds" in o.note for o in ask(toolbox, "late", "stay")
        )
        ask(toolbox, "fine")  # the first of them has ended by now
        gc.collect()
    del toolbox
    gc.collect()
    assert caplog.messages == []


def test_a_tool_that_blocks_the_loop_costs_its_batch(toolbox, monkeypatch):
    monkeypatch.setattr("faithful_search.tools.toolbox._GRACE", 0.1)
    start = time.monotonic()
    calls = [echo("quick"), ToolCall("service", {"query": "block"})]
    _, blocked = toolbox.run_batch(calls, [toolbox.session(), toolbox.session()])
    assert time.monotonic() - start < 4
    assert (blocked.note, blocked.error) == (
        "Error: service did not answer within 0.5 seconds.",
        True,
    )
    assert toolbox.stats()["service"].errors == 1
    assert texts(one(toolbox, echo("after"))) == ["after"]
    toolbox.tools["service"].release.set()


def test_concurrency_is_a_limit():
    service = Service(slow=0.01)
    for most, calls in ((3, 10), (30, 40)):  # one tool may take all of them
        with Toolbox([service], concurrency=most) as toolbox:
            ask(toolbox, *map(str, range(calls)))
        assert service.most == most


def test_from_many_threads_and_inside_a_running_loop(toolbox):
    def work(number: int) -> list[str]:
        return texts(one(toolbox, echo(str(number), wait=0.02)))

    async def notebook() -> list[str]:
        return work(8)

    with ThreadPoolExecutor(8) as threads:
        assert [*threads.map(work, range(8)), asyncio.run(notebook())] == [
            [str(number)] for number in range(9)
        ]


def test_a_tool_that_calls_run_batch_gets_an_error(toolbox, caplog):
    toolbox.tools["service"].toolbox = toolbox
    assert (
        one(toolbox, ToolCall("service", {"query": "inside"})).note
        == "Error: service failed: ConfigError."
    )
    assert "await Toolbox.call there instead" in caplog.text


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_toolbox_works_after_close_and_after_a_fork():
    before = set(threading.enumerate())
    toolbox = Toolbox([Echo()])
    assert one(toolbox, echo("x")).evidence
    child = os.fork()
    if child == 0:
        os._exit(0 if texts(one(toolbox, echo("child"))) == ["child"] else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    toolbox.close()
    assert one(toolbox, echo("x")).evidence
    [own] = set(threading.enumerate()) - before
    del toolbox
    gc.collect()
    own.join(5)
    assert own.daemon
    assert not own.is_alive()


def test_waiting_for_a_slot_is_not_the_tools_time(monkeypatch):
    monkeypatch.setattr("faithful_search.tools.toolbox._GRACE", 0.1)
    with Toolbox([Echo()], timeout=0.5, concurrency=1) as toolbox:
        found = toolbox.run_batch([echo("x", wait=0.1)] * 8, [toolbox.session()] * 8)
    assert [o.error for o in found] == [False] * 8


# a service and its failures


def test_what_passes_is_tried_again_and_counted():
    service, queries = Service(), ("once", "busy", "tried", "lost", "gone")
    with Toolbox([service], patience=QUICK, failures=3) as toolbox:
        once, busy, tried, lost, gone = ask(toolbox, *queries)
        stats = toolbox.stats()["service"]
    assert texts(once) == ["About once."]
    assert busy.note == "Error: The service is busy."
    assert gone.note == "Error: There is no such page."
    assert tried.error  # no address
    assert lost.note == "Error: service failed: ConnectionRefusedError."
    assert [service.asked.count(query) for query in queries] == [2, 3, 1, 3, 1]
    assert (stats.calls, stats.errors, stats.made, stats.hits) == (5, 4, 5, 0)


def test_the_time_out_covers_all_retries():
    service = Service(slow=0.15)
    start = time.monotonic()
    with Toolbox([service], timeout=0.4, patience=Patience(retries=50, first=0.01)) as toolbox:
        [found], stats = ask(toolbox, "busy"), toolbox.stats()["service"]
    assert found.error
    assert time.monotonic() - start < 3
    assert len(service.asked) <= 4
    assert 0.3 < stats.quantile(0.5) == stats.quantile(0.95)


def test_calls_behind_hanging_ones_are_refused_in_time():
    """Even when the tool answers others in between, so that it is never out of order."""
    # the others have waited a time-out and the first answer when the call that hangs is late
    service = Service(slow=0.2)
    with Toolbox([service], timeout=0.5, concurrency=1, failures=1000) as toolbox:
        start = time.monotonic()
        answered, late, *refused = ask(toolbox, "fine", "hang 1", "a", "hang 2", "b", "hang 3")
        took = time.monotonic() - start
    assert took < 3
    assert not answered.error
    assert late.error
    assert [
        o.note.startswith("Error: service is busy with calls that do not end.") for o in refused
    ] == [True] * 4


def test_a_broken_tool_is_refused_until_it_works_again():
    service = Service()
    with Toolbox([service], patience=NEVER, failures=3, cooldown=0.3) as toolbox:
        for query in ("busy 1", "busy 2", "busy 3"):
            ask(toolbox, query)
        [refused] = ask(toolbox, "fine")
        assert (
            refused.note
            == "Error: service is out of order for the next 1 s. There is no other tool."
        )
        assert "fine" not in service.asked
        time.sleep(0.35)
        assert [o.error for o in ask(toolbox, "fine")] == [False]
        assert [o.error for o in ask(toolbox, "fine", "fine again")] == [False, False]


def test_only_service_failures_open_the_breaker():
    with Toolbox([Service()], failures=2, patience=QUICK) as toolbox:
        ask(toolbox, *["gone"] * 5, *[""] * 5, *["tried"] * 5)
        assert [o.error for o in ask(toolbox, "fine")] == [False]
        stats = toolbox.stats()["service"]
    assert (stats.calls, stats.errors, stats.made) == (16, 15, 11)


def test_a_difference_of_counts_and_its_quantiles_by_hand():
    before = ToolStats(4, 3, 3, 1, (0.5,))
    between = ToolStats(9, 5, 4, 4, (0.5, 0.1, 0.2, 0.9)) - before
    assert between == ToolStats(5, 2, 1, 3, (0.1, 0.2, 0.9))
    assert (between.quantile(0.5), between.quantile(0.95)) == (0.2, pytest.approx(0.83))


# cache and cassette


def test_answers_are_kept_and_failures_are_not(cache):
    service, queries = Service(), ("a", "nothing", "gone", "busy")
    with Toolbox([service], cache=cache, patience=NEVER) as toolbox:
        first, again = ask(toolbox, *queries), ask(toolbox, *queries)
        stats = toolbox.stats()["service"]
    assert first == again
    assert again[1].note == "No results."
    assert [service.asked.count(query) for query in queries] == [1, 1, 2, 2]
    assert (stats.calls, stats.hits, stats.errors, stats.made) == (8, 2, 4, 6)
    other = Service()
    for other.cache_key in ("service/v2", "", ""):
        with Toolbox([other], cache=cache) as toolbox:
            ask(toolbox, "a")
    assert other.asked == ["a"] * 3


@pytest.mark.parametrize("keeps", ["cache", "cassette", "both"])
def test_concurrent_equal_calls_are_made_once(cache, cassette, keeps):
    kept = {"cache": cache, "cassette": cassette}
    kept = kept if keeps == "both" else {keeps: kept[keeps]}
    service = Service(slow=0.05)
    with Toolbox([service], **kept) as toolbox:
        found, stats = ask(toolbox, *["part"] * 40), toolbox.stats()["service"]
        assert service.asked == ["part"]
        assert [texts(o) for o in found] == [["A part."]] * 40
        assert (stats.calls, stats.hits, stats.made) == (40, 39, 1)
        assert not any(map(len, kept.values()))
        assert [texts(o) for o in (*ask(toolbox, "part"), *ask(toolbox, "part"))] == [
            ["About part."]
        ] * 2
        assert service.asked == ["part"] * 2
        assert [*map(len, kept.values())] == [1] * len(kept)


def test_waiters_hear_of_a_hanging_calls_timeout(cache, caplog):
    service = Service()
    cache.get("opened")  # which on a busy disk takes longer than they wait
    with Toolbox([service], timeout=0.2, cache=cache, patience=NEVER) as toolbox:
        found = ask(toolbox, *["hang"] * 20)
    assert {o.note for o in found} == {"Error: service did not answer within 0.2 seconds."}
    assert service.asked == ["hang"]
    assert caplog.messages == []


def test_an_ended_episode_costs_other_waiters_nothing(cache):
    service = Service(slow=0.3)

    async def scene() -> list:
        toolbox, call = Toolbox([service], cache=cache), ToolCall("service", {"query": "a"})
        sessions = [toolbox.session() for _ in range(3)]
        calls = [asyncio.ensure_future(toolbox.call(call, session)) for session in sessions]
        while not service.asked:
            await asyncio.sleep(0.005)
        sessions[0].close()  # the one that asks
        return await asyncio.gather(*calls)

    ended, *others = asyncio.run(scene())
    assert ended.note == "Error: service was not asked: the episode has ended."
    assert [texts(o) for o in others] == [["About a."]] * 2
    assert service.asked == ["a", "a"]


def test_a_cassette_records_cached_results_too(cache, cassette):
    service, keyless = Service(), Echo()
    with Toolbox([service], cache=cache) as toolbox:
        found = ask(toolbox, "b")
    with Toolbox([keyless, service], cache=cache, cassette=cassette) as toolbox:
        assert ask(toolbox, "b") == found
        assert ask(toolbox, "a")
        one(toolbox, echo("not recorded"))
    assert service.asked == ["b", "a"]
    assert len(cassette) == 2
    assert (
        "About a." in cassette.path.read_text().splitlines()[0]
    )  # sorted when its toolbox is closed
    service.lacks = "a key"  # which a replay can do without
    with Toolbox([keyless, service], cassette=Cassette(cassette.path)) as toolbox:
        assert ask(toolbox, "b") == found
        assert one(toolbox, echo("again")).evidence
        [miss] = ask(toolbox, "c")
    assert miss.error
    assert "The nearest recorded call" in miss.note
    assert service.asked == ["b", "a"]
    service.cache_key = ""
    with pytest.raises(ConfigError, match="service needs a key"):
        Toolbox([service], cassette=Cassette(cassette.path))


def test_trouble_of_the_cache_stops_no_call(cache, tmp_path):
    cache.put(
        key_of(tool="service", cache_key="service/v1", arguments={"query": "a"}), b"no evidence"
    )
    blocked = Cache(tmp_path / "blocked.sqlite")
    blocked.path.write_bytes(b"this is no database" * 100)
    for each in (blocked, cache):
        with Toolbox([Service()], cache=each) as toolbox:
            assert texts(ask(toolbox, "a")[0]) == ["About a."]


def test_a_closed_session_ends_its_calls_and_no_others():
    service = Service(slow=0.3)

    def close_two() -> None:
        while len(service.asked) < 3:
            time.sleep(0.005)
        sessions[3].close()
        sessions[1].close()

    with Toolbox([service], concurrency=3) as toolbox:
        sessions = [toolbox.session() for _ in range(4)]
        calls = [ToolCall("service", {"query": str(n)}) for n in range(4)]  # the last has to wait
        threading.Thread(target=close_two, daemon=True).start()
        found = toolbox.run_batch(calls, sessions)
        late = toolbox.run_batch([calls[1]], [sessions[1]])
    assert [ids(o) for o in found] == [["E1"], [], ["E1"], []]
    assert (
        found[1].note
        == found[3].note
        == late[0].note
        == "Error: service was not asked: the episode has ended."
    )
    assert service.asked == ["0", "1", "2"]  # it was cancelled within
    assert service.now == 1


def test_copies_of_a_toolbox_work_on_their_own(cache, cassette):
    settings = {"timeout": 3, "concurrency": 9, "patience": QUICK, "failures": 7, "cooldown": 9.0}
    with Toolbox([Service(), Echo()], **settings, cache=cache, cassette=cassette) as toolbox:
        one(toolbox, echo("x"))
        copies = [
            copy.deepcopy(toolbox),
            *(pickle.loads(pickle.dumps(each)) for each in (toolbox, Blanked(toolbox))),
        ]
        for other in (*copies, Blanked(toolbox)):
            assert {key: other.settings[key] for key in settings} == settings
            assert (other.cache.path, other.cassette.path) == (cache.path, cassette.path)
        for other in copies[:2]:
            assert other.stats()["echo"].calls == 0
            assert ids(one(other, echo("x", times=2))) == ["E1", "E2"]
            other.close()
