"""The toolbox: numbering, failures as notes, real concurrency."""

import asyncio
import copy
import gc
import os
import pickle
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from typing import Annotated, Literal

import msgspec
import pytest

from faithful_search import dialects
from faithful_search.errors import ConfigError, ToolError
from faithful_search.measure.probes import Blanked
from faithful_search.tools import Irrelevant, Patience, Tool, Toolbox, ToolStats, method_of, schema_of
from faithful_search.tools.cassette import Cassette
from faithful_search.tools.toolbox import Session
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
        return [Evidence(text=text, id="forged")] * times


class Service(Tool):
    """Does what the first word of a query says; `asked` are all of them."""

    name, cache_key = "service", "service/v1"

    def __init__(self, slow: float = 0.0) -> None:
        self.slow = slow
        self.asked: list[str] = []
        self.release = threading.Event()

    async def service(self, query: str) -> list[Evidence]:
        """Ask.

        Args:
            query: What.
        """
        self.asked.append(query)
        await asyncio.sleep(self.slow)
        match query.split()[0]:
            case "block" if self.asked == [query]:
                self.release.wait(20)
            case "busy":
                raise ToolError("The service is busy.", passing=True)
            case "once" if self.asked.count(query) == 1:
                raise ConnectionResetError(104, "Connect call failed ('10.1.2.3', 443)")
            case "lost":
                raise ConnectionRefusedError(111, "Connect call failed ('10.1.2.3', 443)")
            case "gone":
                raise ToolError("There is no such page.")
            case "hang":
                await asyncio.sleep(60)
            case "nothing":
                return []
        return [Evidence(f"About {query}.")]

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


# numbering


def test_ids_run_on_through_a_rollout_and_start_anew_in_another(toolbox):
    first, second = toolbox.session(), toolbox.session()
    calls = [echo("a", times=2), echo("b", times=3), echo("c")]
    a, b, c = toolbox.run_batch(calls, [first, second, first])
    assert (ids(a), ids(b), ids(c)) == (["E1", "E2"], ["E1", "E2", "E3"], ["E3"])
    assert ids(asyncio.run(toolbox.call(echo("d"), first))) == ["E4"]


def test_order_is_that_of_the_batch_whatever_finishes_first(toolbox):
    session = toolbox.session()
    calls = [echo("slow", wait=0.1), None, echo("fast"), ToolCall("service", {"query": "gone"}), echo("faster")]
    found = toolbox.run_batch(calls, [session] * 5)
    assert [texts(o) for o in found] == [["slow"], [], ["fast"], [], ["faster"]]
    assert [ids(o) for o in found] == [["E1"], [], ["E2"], [], ["E3"]]
    assert found[1].note == "" and not found[1].error


def test_a_rollout_reads_its_own_version_of_what_a_tool_returns(toolbox):
    """Others read the original; ids have no gap where a passage is missing."""
    edited, other = toolbox.session({"a": "changed", "gone": None}), toolbox.session()
    for session, expected in ((edited, ("b", "changed")), (other, ("gone", "b", "a"))):
        found = [toolbox.run_batch([echo(text)], [session])[0] for text in ("gone", "b", "a")]
        shown = [item for observation in found for item in observation.evidence]
        assert [(item.text, item.id) for item in shown] == [(text, f"E{n}") for n, text in enumerate(expected, 1)]
    assert toolbox.run_batch([echo("gone")], [edited])[0].note == "No results."


# wrong calls, settings and tools


def test_unknown_tool_names_those_there_are_and_the_one_that_is_nearly_right(toolbox):
    assert len(one(toolbox, ToolCall("x" * 100_000)).note) < 200
    for name, meant in (("web_search", ""), ("servise", " Did you mean 'service'?")):
        found = one(toolbox, ToolCall(name, {"query": "x"}))
        assert found.error and found.note == f"Unknown tool '{name}'.{meant} Available tools: echo, service."


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({}, "missing required argument 'text'"),
        ({"text": 3}, "argument 'text': expected 'str', got 'int'"),
        ({"text": None}, "argument 'text': expected 'str', got 'null'"),
        ({"text": "a", "times": "2"}, "argument 'times': expected 'int', got 'str'"),
        ({"text": "a", "colour": "red"}, "unknown argument 'colour'"),
        (["a"], "expected 'object', got 'array'"),
        ({"text": ""}, "argument 'text' is empty"),
        ({"text": " \n\u3000"}, "argument 'text' is empty"),
    ],
)
def test_wrong_arguments_are_explained(toolbox, arguments, told):
    found = one(toolbox, ToolCall("echo", arguments))
    assert found.note == f"Error: echo: {told}. Its arguments: text, times, wait; required: text."
    assert found.error and not found.evidence


class Rich(Tool):
    """Has arguments of every kind."""

    name = "rich"

    async def rich(
        self,
        queries: Annotated[list[str], msgspec.Meta(min_length=1, max_length=3)],
        query: str = "",
        sort: Literal["new", "old"] = "new",
        sites: list[str] | None = None,
    ) -> list[Evidence]:
        """Search with everything.

        Over two paragraphs.

        Args:
            queries: What to look for: words,
                all of them.
            query: What matters most.
            sort: The order.
            sites: Only there.

        Returns:
            Passages.
        """
        return [Evidence(f"{item} {query} {sites}") for item in queries]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"queries": ["a"] * 4}, "Error: rich: argument 'queries': expected 'array' of length <= 3"),
        ({"queries": []}, "Error: rich: argument 'queries': expected 'array' of length >= 1"),
        ({"queries": [" ", ""]}, "Error: rich: argument 'queries' is empty"),
        ({"queries": ["a", " "]}, ""),
        ({"queries": "a"}, "Error: rich: argument 'queries': expected 'array', got 'str'"),
        ({"queries": ["a", 3]}, "Error: rich: argument 'queries[1]': expected 'str', got 'int'"),
        ({"queries": ["a"], "query": "", "sites": None}, ""),
    ],
)
def test_lists_are_checked(arguments, told):
    with Toolbox([Rich()]) as toolbox:
        found = one(toolbox, ToolCall("rich", arguments))
    assert found.note.split(". Its")[0] == told and bool(told) == found.error == (not found.evidence)


def test_the_schema_of_a_rich_signature():
    function = schema_of(Rich())["function"]
    strings = {"type": "array", "items": {"type": "string"}}
    assert function["description"] == "Search with everything.\n\nOver two paragraphs."
    properties = function["parameters"]["properties"]
    about = "What to look for: words, all of them."
    assert properties["queries"] == {**strings, "minItems": 1, "maxItems": 3, "description": about}
    assert properties["sort"]["enum"] == ["new", "old"]
    assert properties["sites"] == {**strings, "nullable": True, "description": "Only there."}
    assert function["parameters"]["required"] == ["queries"]


def test_schemas_are_those_of_transformers():
    from transformers.utils import get_json_schema

    for tool in (Echo(), Irrelevant()):
        assert schema_of(tool) == get_json_schema(method_of(tool))


def test_the_tools_own_name_and_description_are_what_the_policy_reads():
    function = schema_of(Echo(name="parrot", description="A bird."))["function"]
    assert (function["name"], function["description"]) == ("parrot", "A bird.")
    with Toolbox([Echo(), Echo(name="parrot")]) as toolbox:
        assert texts(one(toolbox, ToolCall("parrot", {"text": "a"}))) == ["a"]
        assert toolbox.stats()["parrot"].calls == 1 and toolbox.stats()["echo"].calls == 0


def test_undocumented_tools_are_refused():
    class Silent(Tool):
        name = "silent"

        async def silent(self, query: str) -> list[Evidence]:
            """Search."""
            return []

    class Untyped(Tool):
        name = "untyped"

        async def untyped(self, query) -> list[Evidence]:
            """Search.

            Args:
                query: Words.
            """
            return []

    mute = type("Mute", (), {"name": "mute"})()
    for tool, told in (
        (Silent(), "Silent.silent: describe 'query' under 'Args:'"),
        (Untyped(), "argument 'query' has no type"),
        (mute, "no public async method"),
    ):
        with pytest.raises(ConfigError, match=told):
            Toolbox([tool])


def test_settings_that_make_no_sense():
    for wrong in ("timeout", "concurrency", "failures", "cooldown"):
        with pytest.raises(ConfigError, match="must be positive"):
            Toolbox([Echo()], **{wrong: 0})
    with pytest.raises(ConfigError, match="two tools of one name: echo, echo"):
        Toolbox([Echo(), Echo()])
    with Toolbox([Echo()]) as toolbox, pytest.raises(ConfigError, match="1 calls for 2 sessions"):
        toolbox.run_batch([None], [toolbox.session()] * 2)


def test_malformed_calls_are_told_the_form_and_the_tools(toolbox):
    form = dialects.load("pou").call_form(toolbox.names)
    for asked, told in (("", ""), (form, ' Write it as JSON like {"name": "echo", "arguments": {"…": "…"}}.')):
        found = toolbox.describe_malformed("cut off", asked)
        assert found.note == f"The tool call could not be read: cut off.{told} Available tools: echo, service."
        assert found.error


def test_the_irrelevant_tool_is_deterministic_and_well_formed():
    tool = Irrelevant(top_k=3)
    first, again = (asyncio.run(tool.garden_almanac("capital of France")) for _ in range(2))
    other = asyncio.run(tool.garden_almanac("who painted Guernica"))
    assert first == again != other
    assert len({item.source for item in first}) == 3
    assert all(item.title and item.text.endswith(".") and not item.id for item in first)
    assert len(asyncio.run(Irrelevant(top_k=1000).garden_almanac("x"))) > 30


# threads and loops


def test_giving_up_on_a_call_ends_the_tools_work():
    async def give_up() -> int:
        toolbox = Toolbox([Service()])
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(toolbox.call(ToolCall("service", {"query": "hang"}), toolbox.session()), 0.05)
        for _ in range(50):
            await asyncio.sleep(0)
        return len(asyncio.all_tasks())

    assert asyncio.run(give_up()) == 1  # its own, while the loop still runs


def test_tools_that_end_badly_after_they_were_given_up_leave_no_word_behind():
    code = r"""
import asyncio, gc
from faithful_search.tools import Tool, Toolbox
from faithful_search.trajectory import ToolCall
class Bad(Tool):
    name = "bad"
    async def bad(self, way: str) -> list:
        'Be bad.\n\nArgs:\n    way: How.'
        while True:
            try:
                await asyncio.sleep(30)
            except asyncio.CancelledError:
                if way == "fail":
                    raise ValueError("too late")
toolbox = Toolbox([Bad()], timeout=0.1)
calls = [ToolCall("bad", {"way": way}) for way in ("fail", "stay")]
print([found.note for found in toolbox.run_batch(calls, [toolbox.session()] * 2)])
toolbox.close()
gc.collect()
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.count("did not answer within 0.1 seconds") == 2
    assert done.stderr == ""


def test_a_tool_that_blocks_the_loop_costs_its_batch_not_the_program(toolbox, monkeypatch):
    monkeypatch.setattr("faithful_search.tools.toolbox._GRACE", 0.1)
    start = time.monotonic()
    calls = [echo("quick"), ToolCall("service", {"query": "block"})]
    quick, blocked = toolbox.run_batch(calls, [toolbox.session(), toolbox.session()])
    assert time.monotonic() - start < 4
    assert (blocked.note, blocked.error) == ("Error: service did not answer within 0.5 seconds.", True)
    assert toolbox.stats()["service"].errors == 1
    assert texts(one(toolbox, echo("after"))) == ["after"]
    assert quick.evidence or quick.error
    toolbox.tools["service"].release.set()


def test_concurrency_is_a_limit():
    class Busy(Tool):
        name = "busy"
        now = most = 0

        async def busy(self) -> list[Evidence]:
            """Count who is in here."""
            self.now += 1
            self.most = max(self.most, self.now)
            await asyncio.sleep(0.01)
            self.now -= 1
            return []

    tool = Busy()
    for most, calls in ((3, 10), (30, 40)):  # one tool may take all of them
        with Toolbox([tool], concurrency=most) as toolbox:
            toolbox.run_batch([ToolCall("busy")] * calls, [toolbox.session()] * calls)
        assert tool.most == most


def test_from_many_threads_and_inside_a_running_loop(toolbox):
    found: list[str] = []

    def work(text: str) -> None:
        found.extend(texts(one(toolbox, echo(text, wait=0.02))))

    async def notebook() -> None:
        work("cell")

    threads = [threading.Thread(target=work, args=(str(n),)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    asyncio.run(notebook())
    assert sorted(found) == [*map(str, range(8)), "cell"]


def test_a_tool_that_calls_run_batch_is_told_so_instead_of_hanging(caplog):
    class Inner(Tool):
        name = "inner"

        async def inner(self) -> list[Evidence]:
            """Call the toolbox from inside it."""
            toolbox.run_batch([ToolCall("inner")], [toolbox.session()])
            return []

    with Toolbox([Inner()], timeout=5) as toolbox:
        assert one(toolbox, ToolCall("inner")).note == "Error: inner failed: ConfigError."
    assert "await Toolbox.call there instead" in caplog.text


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_usable_after_close_and_in_a_forked_child(toolbox):
    assert one(toolbox, echo("x")).evidence
    child = os.fork()
    if child == 0:
        os._exit(0 if texts(one(toolbox, echo("child"))) == ["child"] else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    toolbox.close()
    assert one(toolbox, echo("x")).evidence


@pytest.mark.parametrize("closed", [True, False])
def test_a_toolbox_that_is_closed_or_forgotten_ends_its_thread(closed):
    before = set(threading.enumerate())
    toolbox = Toolbox([Echo()])
    one(toolbox, echo("x"))
    [own] = set(threading.enumerate()) - before
    assert own.daemon
    if closed:
        toolbox.close()
    else:
        del toolbox
        gc.collect()
        own.join(5)
    assert not own.is_alive()


def test_waiting_for_a_slot_is_neither_the_tools_time_nor_a_blocked_loop(monkeypatch):
    monkeypatch.setattr("faithful_search.tools.toolbox._GRACE", 0.1)
    with Toolbox([Echo()], timeout=0.5, concurrency=1) as toolbox:
        found = toolbox.run_batch([echo("x", wait=0.1)] * 8, [toolbox.session()] * 8)
    assert [o.error for o in found] == [False] * 8


# a service and its failures


def test_what_passes_is_tried_again_and_counted():
    service = Service()
    with Toolbox([service], patience=QUICK) as toolbox:
        once, busy, lost, gone = ask(toolbox, "once", "busy", "lost", "gone")
        stats = toolbox.stats()["service"]
    assert texts(once) == ["About once."]
    assert (busy.note, gone.note) == ("The service is busy.", "There is no such page.")
    assert lost.note == "Error: service failed: ConnectionRefusedError."  # no address
    assert [service.asked.count(query) for query in ("once", "busy", "lost", "gone")] == [2, 3, 3, 1]
    assert (stats.calls, stats.errors, stats.made, stats.hits) == (4, 3, 4, 0)


def test_the_time_out_covers_all_retries():
    service = Service(slow=0.15)
    start = time.monotonic()
    with Toolbox([service], timeout=0.4, patience=Patience(retries=50, first=0.01)) as toolbox:
        [found], stats = ask(toolbox, "busy"), toolbox.stats()["service"]
    assert found.error and time.monotonic() - start < 3
    assert len(service.asked) <= 4 and 0.3 < stats.quantile(0.5) == stats.quantile(0.95)


def test_who_has_waited_a_time_out_for_calls_that_hang_is_refused():
    """Even when the tool answers others in between, so that it is never out of order."""
    # the others have waited a time-out and the first answer when the call that hangs is late
    service = Service(slow=0.2)
    with Toolbox([service], timeout=0.5, concurrency=1, failures=1000) as toolbox:
        start = time.monotonic()
        answered, late, *refused = ask(toolbox, "fine", "hang 1", "a", "hang 2", "b", "hang 3")
        took = time.monotonic() - start
    assert took < 3 and not answered.error and late.error
    assert [o.note.startswith("Error: service is busy with calls that do not end.") for o in refused] == [True] * 4


def test_a_broken_tool_is_refused_and_taken_back_when_it_works_again():
    service = Service()
    with Toolbox([service], patience=NEVER, failures=3, cooldown=0.3) as toolbox:
        for query in ("busy 1", "busy 2", "busy 3"):
            ask(toolbox, query)
        [refused] = ask(toolbox, "fine")
        assert refused.note == "Error: service is out of order for the next 1 s. There is no other tool."
        assert "fine" not in service.asked
        time.sleep(0.35)
        assert [o.error for o in ask(toolbox, "fine")] == [False]
        assert [o.error for o in ask(toolbox, "fine", "fine again")] == [False, False]


def test_wrong_calls_and_definite_answers_do_not_break_a_tool():
    with Toolbox([Service()], failures=2, patience=QUICK) as toolbox:
        ask(toolbox, *["gone"] * 5, *[""] * 5)
        assert [o.error for o in ask(toolbox, "fine")] == [False]
        stats = toolbox.stats()["service"]
    assert (stats.calls, stats.errors, stats.made) == (11, 10, 6)


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
    assert first == again and again[1].note == "No results."
    assert [service.asked.count(query) for query in queries] == [1, 1, 2, 2]
    assert (stats.calls, stats.hits, stats.errors, stats.made) == (8, 2, 4, 6)
    other = Service()
    for other.cache_key in ("service/v2", "", ""):
        with Toolbox([other], cache=cache) as toolbox:
            ask(toolbox, "a")
    assert other.asked == ["a"] * 3


def test_equal_calls_at_once_are_made_once(cache):
    service = Service(slow=0.1)
    with Toolbox([service], cache=cache) as toolbox:
        found, stats = ask(toolbox, *["a"] * 40), toolbox.stats()["service"]
    assert service.asked == ["a"] and {o.evidence[0].text for o in found} == {"About a."}
    assert (stats.calls, stats.hits, stats.made) == (40, 39, 1)


def test_those_who_wait_for_a_call_that_hangs_hear_of_its_time_out_and_do_not_repeat_it(cache, caplog):
    service = Service()
    cache.get("opened")  # which on a busy disk takes longer than they wait
    with Toolbox([service], timeout=0.2, cache=cache, patience=NEVER) as toolbox:
        found = ask(toolbox, *["hang"] * 20)
    assert {o.note for o in found} == {"Error: service did not answer within 0.2 seconds."}
    assert service.asked == ["hang"] and caplog.messages == []


def test_the_end_of_one_episode_loses_nothing_of_the_others_that_wait_for_the_same(cache):
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
    assert ended.note == "service was not asked: the episode has ended."
    assert [texts(o) for o in others] == [["About a."]] * 2 and service.asked == ["a", "a"]


@pytest.mark.parametrize("recorded", [False, True])
def test_who_has_waited_long_for_anothers_answer_asks_by_itself(cache, tmp_path, monkeypatch, recorded):
    """The one that asks may sit on an event loop that a tool blocks."""
    monkeypatch.setattr("faithful_search.tools.toolbox._GRACE", 0.1)
    service, cassette = Service(), Cassette(tmp_path / "calls.jsonl", "record")
    kept = {"cassette": cassette} if recorded else {"cache": cache}
    with Toolbox([service], **kept) as first, Toolbox([service], timeout=0.3, **kept) as second:
        leader = threading.Thread(target=ask, args=(first, "block"))
        leader.start()
        while not service.asked:
            time.sleep(0.005)
        [found] = ask(second, "block")
        service.release.set()
        leader.join()
    assert texts(found) == ["About block."] and service.asked == ["block"] * 2


def test_a_recording_is_sorted_when_its_toolbox_is_closed(tmp_path):
    with Toolbox([Service()], cassette=Cassette(tmp_path / "calls.jsonl", "record")) as toolbox:
        ask(toolbox, "b")
        ask(toolbox, "a")
    assert "About a." in (tmp_path / "calls.jsonl").read_text().splitlines()[0]


def test_trouble_of_the_cache_stops_no_call(tmp_path):
    blocked, other = Cache(tmp_path / "cache.sqlite"), Cache(tmp_path / "other.sqlite")
    blocked.path.write_bytes(b"this is no database" * 100)
    other.put(key_of(tool="service", cache_key="service/v1", arguments={"query": "a"}), b"no evidence")
    for cache in (blocked, other):
        with Toolbox([Service()], cache=cache) as toolbox:
            assert texts(ask(toolbox, "a")[0]) == ["About a."]
    other.close()


# sessions, copies


def test_a_closed_session_ends_its_calls_and_no_others():
    begun: list[str] = []
    ended: list[str] = []

    class Patient(Tool):
        name = "patient"

        async def patient(self, who: str) -> list[Evidence]:
            """Wait until the second session is closed.

            Args:
                who: For whom.
            """
            begun.append(who)
            try:
                while who == "1" or not sessions[1].closed:
                    await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                ended.append(who)
                raise
            return [Evidence(who)]

    def close_two() -> None:
        while len(begun) < 3:
            time.sleep(0.01)
        sessions[3].close()
        sessions[1].close()

    with Toolbox([Patient()], concurrency=3) as toolbox:
        sessions = [toolbox.session() for _ in range(4)]
        calls = [ToolCall("patient", {"who": str(n)}) for n in range(4)]  # the last has to wait
        threading.Thread(target=close_two, daemon=True).start()
        found = toolbox.run_batch(calls, sessions)
        late = toolbox.run_batch([calls[1]], [sessions[1]])
    assert [ids(o) for o in found] == [["E1"], [], ["E1"], []]
    assert found[1].note == found[3].note == late[0].note == "patient was not asked: the episode has ended."
    assert (begun, ended) == (["0", "1", "2"], ["1"])


def test_a_session_whose_loop_is_gone_closes_all_the_same():
    loop, session = asyncio.new_event_loop(), Session()
    session.hold(loop.create_future())
    loop.close()
    session.close()
    assert session.closed


def test_copies_and_pickles_have_all_settings_work_and_count_for_themselves(cache, tmp_path):
    settings = {"timeout": 3, "concurrency": 9, "patience": QUICK, "failures": 7, "cooldown": 9.0}
    cassette = Cassette(tmp_path / "calls.jsonl", "record")
    with Toolbox([Service(), Echo()], **settings, cache=cache, cassette=cassette) as toolbox:
        one(toolbox, echo("x"))
        copies = [copy.deepcopy(toolbox), *(pickle.loads(pickle.dumps(each)) for each in (toolbox, Blanked(toolbox)))]
        for other in (*copies, Blanked(toolbox)):
            assert {key: other.settings[key] for key in settings} == settings
            assert (other.cache.path, other.cassette.path) == (cache.path, cassette.path)
        for other in copies[:2]:
            assert repr(other) == repr(toolbox) == "Toolbox(service, echo; timeout=3, concurrency=9)"
            assert other.stats()["echo"].calls == 0
            assert ids(one(other, echo("x", times=2))) == ["E1", "E2"]
            other.close()
