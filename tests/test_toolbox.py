"""The toolbox: numbering, failures as notes, real concurrency."""

import asyncio
import copy
import gc
import os
import pickle
import threading
import time
from dataclasses import dataclass
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from faithful_search import dialects
from faithful_search.errors import ConfigError, ToolError
from faithful_search.tools import Irrelevant, Tool, Toolbox, load, method_of, names, schema_of
from faithful_search.trajectory import Evidence, ToolCall


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


class Trouble(Tool):
    """Goes wrong in the way asked for."""

    name = "trouble"

    async def trouble(self, kind: str) -> list[Evidence]:
        """Fail.

        Args:
            kind: How.
        """
        if kind == "hang":
            await asyncio.sleep(60)
        if kind == "stubborn":
            deadline = time.monotonic() + 3
            while time.monotonic() < deadline:
                try:
                    await asyncio.sleep(deadline - time.monotonic())
                except asyncio.CancelledError:
                    continue
        if kind == "block":
            time.sleep(5)
        if kind == "tool":
            raise ToolError("The page asks for a password.")
        if kind == "long":
            raise ValueError("line\n" * 10_000)
        if kind == "cancelled":
            raise asyncio.CancelledError
        if kind == "string":
            return "text"
        return []


def echo(text: str, **more: object) -> ToolCall:
    return ToolCall("echo", {"text": text, **more})


@pytest.fixture
def toolbox():
    with Toolbox([Echo(), Trouble()], timeout=0.2) as made:
        yield made


def one(toolbox: Toolbox, call: ToolCall):
    [found] = toolbox.run_batch([call], [toolbox.session()])
    return found


def ids(observation) -> list[str]:
    return [item.id for item in observation.evidence]


def test_ids_run_on_through_a_rollout_and_start_anew_in_another(toolbox):
    first, second = toolbox.session(), toolbox.session()
    calls = [echo("a", times=2), echo("b", times=3), echo("c")]
    a, b, c = toolbox.run_batch(calls, [first, second, first])
    assert (ids(a), ids(b), ids(c)) == (["E1", "E2"], ["E1", "E2", "E3"], ["E3"])
    assert ids(asyncio.run(toolbox.call(echo("d"), first))) == ["E4"]


def test_order_is_that_of_the_batch_whatever_finishes_first(toolbox):
    session = toolbox.session()
    calls = [echo("slow", wait=0.1), None, echo("fast"), ToolCall("trouble", {"kind": "hang"}), echo("faster")]
    found = toolbox.run_batch(calls, [session] * 5)
    assert [[item.text for item in o.evidence] for o in found] == [["slow"], [], ["fast"], [], ["faster"]]
    assert [ids(o) for o in found] == [["E1"], [], ["E2"], [], ["E3"]]
    assert found[1].note == "" and not found[1].error


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 2)), max_size=12))
def test_ids_are_unique_and_gapless_in_every_session(plan):
    with Toolbox([Echo()]) as toolbox:
        sessions = [toolbox.session() for _ in range(3)]
        found = toolbox.run_batch([echo("x", times=times) for times, _ in plan], [sessions[who] for _, who in plan])
    for who in range(3):
        given_ids = [item for o, (_, owner) in zip(found, plan, strict=True) if owner == who for item in ids(o)]
        assert given_ids == [f"E{n}" for n in range(1, len(given_ids) + 1)]


def test_unknown_tool_names_those_there_are(toolbox):
    found = one(toolbox, ToolCall("web_search", {"query": "x"}))
    assert (found.note, found.error) == ("Unknown tool 'web_search'. Available tools: echo, trouble.", True)


def test_a_very_long_unknown_name_is_cut(toolbox):
    assert len(one(toolbox, ToolCall("x" * 100_000)).note) < 200


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({}, "missing required argument 'text'"),
        ({"text": 3}, "argument 'text': expected 'str', got 'int'"),
        ({"text": None}, "argument 'text': expected 'str', got 'null'"),
        ({"text": "a", "times": "2"}, "argument 'times': expected 'int', got 'str'"),
        ({"text": "a", "colour": "red"}, "unknown argument 'colour'"),
        (["a"], "expected 'object', got 'array'"),
    ],
)
def test_wrong_arguments_are_explained(toolbox, arguments, told):
    found = one(toolbox, ToolCall("echo", arguments))
    assert found.note == f"Error: echo: {told}. Its arguments: text, times, wait; required: text."
    assert found.error and not found.evidence


def test_whole_numbers_pass_as_floats(toolbox):
    assert not one(toolbox, echo("a", wait=0)).error


@pytest.mark.parametrize(
    ("kind", "note"),
    [
        ("tool", "The page asks for a password."),
        ("hang", "Error: trouble did not answer within 0.2 seconds."),
        ("stubborn", "Error: trouble did not answer within 0.2 seconds."),
        ("cancelled", "Error: trouble was cancelled."),
        ("string", "Error: trouble failed: it returned str, not a list of Evidence."),
    ],
)
def test_failures_become_notes(toolbox, kind, note):
    found = one(toolbox, ToolCall("trouble", {"kind": kind}))
    assert (found.note, found.error, found.evidence) == (note, True, ())


def test_giving_up_on_a_call_ends_the_tools_work():
    ended: list[str] = []

    class Waiter(Tool):
        name = "waiter"

        async def waiter(self) -> list[Evidence]:
            """Wait."""
            try:
                await asyncio.sleep(30)
            finally:
                ended.append("yes")
            return []

    async def give_up() -> None:
        toolbox = Toolbox([Waiter()])
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(toolbox.call(ToolCall("waiter"), toolbox.session()), 0.05)
        await asyncio.sleep(0)

    asyncio.run(give_up())
    assert ended == ["yes"]


def test_blocking_work_in_threads_overlaps():
    class Threaded(Tool):
        name = "threaded"

        async def threaded(self) -> list[Evidence]:
            """Block, but in a thread."""
            await asyncio.to_thread(time.sleep, 0.05)
            return []

    with Toolbox([Threaded()]) as toolbox:
        start = time.monotonic()
        toolbox.run_batch([ToolCall("threaded")] * 48, [toolbox.session()] * 48)
        assert time.monotonic() - start < 1.0 < 48 * 0.05


def test_a_long_exception_is_one_bounded_line(toolbox):
    note = one(toolbox, ToolCall("trouble", {"kind": "long"})).note
    assert note.startswith("Error: trouble failed: ValueError: line line")
    assert "\n" not in note and len(note) <= 500


def test_nothing_found_is_a_note_but_no_error(toolbox):
    found = one(toolbox, ToolCall("trouble", {"kind": "none"}))
    assert (found.note, found.error) == ("No results.", False)


def test_a_tool_that_blocks_the_loop_costs_its_batch_not_the_program(toolbox):
    start = time.monotonic()
    quick, blocked = toolbox.run_batch(
        [echo("quick"), ToolCall("trouble", {"kind": "block"})], [toolbox.session(), toolbox.session()]
    )
    assert time.monotonic() - start < 4
    assert blocked.error and "did not answer" in blocked.note
    assert one(toolbox, echo("after")).evidence[0].text == "after"
    assert quick.evidence or quick.error


def test_calls_of_a_turn_overlap():
    with Toolbox([Echo()], concurrency=64) as toolbox:
        start = time.monotonic()
        found = toolbox.run_batch([echo("x", wait=0.05)] * 50, [toolbox.session() for _ in range(50)])
        assert time.monotonic() - start < 1.0 < 50 * 0.05
    assert all(ids(o) == ["E1"] for o in found)


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
    with Toolbox([tool], concurrency=3) as toolbox:
        toolbox.run_batch([ToolCall("busy")] * 10, [toolbox.session()] * 10)
    assert tool.most == 3


def test_time_spent_waiting_for_a_slot_is_not_the_tools_time():
    with Toolbox([Echo()], concurrency=1, timeout=0.5) as toolbox:
        found = toolbox.run_batch([echo("x", wait=0.2)] * 4, [toolbox.session()] * 4)
    assert [o.error for o in found] == [False] * 4


def test_inside_a_running_loop(toolbox):
    async def notebook():
        return one(toolbox, echo("cell"))

    assert asyncio.run(notebook()).evidence[0].text == "cell"


def test_from_many_threads(toolbox):
    found: list[str] = []

    def work(text: str) -> None:
        found.append(one(toolbox, echo(text, wait=0.02)).evidence[0].text)

    threads = [threading.Thread(target=work, args=(str(n),)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == [str(n) for n in range(8)]


def test_a_tool_that_calls_run_batch_is_told_so_instead_of_hanging():
    class Inner(Tool):
        name = "inner"

        async def inner(self) -> list[Evidence]:
            """Call the toolbox from inside it."""
            toolbox.run_batch([ToolCall("inner")], [toolbox.session()])
            return []

    with Toolbox([Inner()], timeout=5) as toolbox:
        assert "await Toolbox.call there instead" in one(toolbox, ToolCall("inner")).note


def test_copies_and_pickles_work_and_count_for_themselves(toolbox):
    one(toolbox, echo("x"))
    with Toolbox([Echo()], timeout=7, concurrency=2, top_k=1) as original:
        one(original, echo("x"))
        for other in (copy.deepcopy(original), pickle.loads(pickle.dumps(original))):
            assert repr(other) == repr(original) == "Toolbox(echo; timeout=7, concurrency=2, top_k=1)"
            assert other.stats()["echo"].calls == 0
            assert ids(one(other, echo("x", times=5))) == ["E1"]
            other.close()


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_usable_after_close_and_in_a_forked_child(toolbox):
    assert one(toolbox, echo("x")).evidence
    child = os.fork()
    if child == 0:
        found = one(toolbox, echo("child"))
        os._exit(0 if found.evidence[0].text == "child" else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    toolbox.close()
    assert one(toolbox, echo("x")).evidence


def test_close_ends_the_thread():
    before = set(threading.enumerate())
    with Toolbox([Echo()]) as toolbox:
        one(toolbox, echo("x"))
        [own] = set(threading.enumerate()) - before
        assert own.daemon
    assert not own.is_alive()


def test_a_forgotten_toolbox_ends_its_thread():
    before = set(threading.enumerate())
    toolbox = Toolbox([Echo()])
    one(toolbox, echo("x"))
    [own] = set(threading.enumerate()) - before
    del toolbox
    gc.collect()
    own.join(5)
    assert not own.is_alive()


def test_waiting_longer_than_the_patience_for_slots_is_no_blocked_loop():
    with Toolbox([Echo()], timeout=0.4, concurrency=1) as toolbox:
        found = toolbox.run_batch([echo("x", wait=0.2)] * 9, [toolbox.session()] * 9)
    assert [o.error for o in found] == [False] * 9


def test_stats_count_calls_errors_and_seconds(toolbox):
    calls = [
        echo("a", wait=0.05),
        echo("b"),
        ToolCall("echo", {}),
        ToolCall("nowhere"),
        ToolCall("trouble", {"kind": "tool"}),
    ]
    toolbox.run_batch(calls, [toolbox.session()] * 5)
    stats = toolbox.stats()
    assert (stats["echo"].calls, stats["echo"].errors) == (3, 1)
    assert (stats["trouble"].calls, stats["trouble"].errors) == (1, 1)
    assert 0.05 <= stats["echo"].seconds < 1
    assert set(stats) == {"echo", "trouble"}


def test_malformed_calls_are_told_the_form_and_the_tools(toolbox):
    form = dialects.load("pou").call_form(toolbox.names)
    found = toolbox.describe_malformed("not JSON (Expecting value)", form)
    assert found.error
    assert found.note == (
        "The tool call could not be read: not JSON (Expecting value). "
        'Write it as JSON like {"name": "echo", "arguments": {"…": "…"}}. Available tools: echo, trouble.'
    )
    assert toolbox.describe_malformed("cut off").note == (
        "The tool call could not be read: cut off. Available tools: echo, trouble."
    )


def test_settings_that_make_no_sense():
    for wrong in ({"timeout": 0}, {"concurrency": 0}, {"top_k": 0}):
        with pytest.raises(ConfigError, match="must be positive"):
            Toolbox([Echo()], **wrong)
    with pytest.raises(ConfigError, match="two tools of one name: echo, echo"):
        Toolbox([Echo(), Echo()])
    with pytest.raises(ConfigError, match="no public async method"):
        Toolbox([type("Mute", (), {"name": "mute"})()])
    with Toolbox([Echo()]) as toolbox, pytest.raises(ConfigError, match="1 calls for 2 sessions"):
        toolbox.run_batch([None], [toolbox.session()] * 2)


def test_a_toolbox_may_be_empty():
    with Toolbox([]) as toolbox:
        assert one(toolbox, echo("x")).note == "Unknown tool 'echo'. There are no tools."
        assert toolbox.run_batch([], []) == [] and toolbox.schemas == []


class Rich(Tool):
    name = "rich"

    async def rich(
        self, query: str, tags: list[str], sort: Literal["new", "old"] = "new", site: str | None = None
    ) -> list[Evidence]:
        """Search with everything.

        Over two paragraphs.

        Args:
            query: What to look for: words.
            tags: Labels,
                all of them.
            sort: The order.
            site: Only there.

        Returns:
            Passages.
        """
        return []


def test_schemas_are_those_of_transformers():
    from transformers.utils import get_json_schema

    class Plain(Echo):
        async def echo(
            self, text: str, tags: list[str], limit: int | None = None, deep: bool = False
        ) -> list[Evidence]:
            """Say it again.

            Args:
                text: What to say.
                tags: Labels,
                    all of them.
                limit: The most.
                deep: Whether to dig.
            """
            return []

    for tool in (Plain(), Irrelevant()):
        assert schema_of(tool) == get_json_schema(method_of(tool))


def test_schema_of_a_richer_signature():
    function = schema_of(Rich())["function"]
    assert function["description"] == "Search with everything.\n\nOver two paragraphs."
    properties = function["parameters"]["properties"]
    assert properties["sort"]["enum"] == ["new", "old"]
    assert properties["site"] == {"type": "string", "nullable": True, "description": "Only there."}
    assert properties["query"]["description"] == "What to look for: words."
    assert properties["tags"]["description"] == "Labels, all of them."
    assert function["parameters"]["required"] == ["query", "tags"]


def test_the_tools_own_name_and_description_are_what_the_policy_reads():
    function = schema_of(Echo(name="parrot", description="A bird."))["function"]
    assert (function["name"], function["description"]) == ("parrot", "A bird.")
    with Toolbox([Echo(), Echo(name="parrot")]) as toolbox:
        assert one(toolbox, ToolCall("parrot", {"text": "a"})).evidence[0].text == "a"
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

    with pytest.raises(ConfigError, match=r"Silent.silent: describe 'query' under 'Args:'"):
        schema_of(Silent())
    with pytest.raises(ConfigError, match="argument 'query' has no type"):
        Toolbox([Untyped()])


def test_the_irrelevant_tool_is_deterministic_and_well_formed():
    tool = Irrelevant(top_k=3)
    first, again = (asyncio.run(tool.garden_almanac("capital of France")) for _ in range(2))
    other = asyncio.run(tool.garden_almanac("who painted Guernica"))
    assert first == again != other
    assert len({item.source for item in first}) == 3
    assert all(item.title and item.text.endswith(".") and not item.id for item in first)
    assert len(asyncio.run(Irrelevant(top_k=1000).garden_almanac("x"))) > 30


def test_tools_are_found_by_file_name():
    assert {"irrelevant", "knowledge_graph", "local_search"} <= set(names())
    assert "base" not in names()
    assert load("irrelevant") is Irrelevant
    with pytest.raises(ConfigError, match="local_search"):
        load("teleport")
