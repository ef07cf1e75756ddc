"""Many callers, one thread: what goes together, what reaches whom, and what survives."""

from __future__ import annotations

import asyncio
import gc
import operator
import os
import pickle
import signal
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from faithful_search.errors import ConfigError, ToolError
from faithful_search.tools.batcher import Batcher


class Recorder:
    """Doubles numbers and remembers the batches; holds a batch while the gate is shut."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.gate = threading.Event()
        self.gate.set()
        self.begun = threading.Event()

    def __call__(self, items):
        self.batches.append(list(items))
        self.begun.set()
        assert self.gate.wait(20)
        return [2 * item for item in items]


def test_calls_of_one_turn_are_one_batch_in_order_however_long_it_takes():
    run = Recorder()

    async def slowly(batcher, number):
        time.sleep(0.02)  # long enough for a thread to begin
        return await batcher.ask(number)

    async def many():
        batcher = Batcher(run)
        await batcher.ask(9)
        return await asyncio.gather(*(slowly(batcher, number) for number in range(3)))

    assert asyncio.run(many()) == [0, 2, 4]
    assert run.batches == [[9], [0, 1, 2]]


def test_nothing_of_an_answered_call_is_kept():
    class Heavy:
        pass

    async def ask(batcher):
        item = Heavy()
        await batcher.ask(item)
        return weakref.ref(item)

    batcher = Batcher(lambda items: [None] * len(items))
    held = asyncio.run(ask(batcher))
    deadline = time.monotonic() + 10
    while held() is not None and time.monotonic() < deadline:
        time.sleep(0.01)
        gc.collect()
    assert held() is None


def test_one_who_leaves_while_the_batch_runs_spoils_nothing_for_the_others():
    run, said = Recorder(), []

    async def scenario():
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: said.append(context))
        batcher = Batcher(run)
        run.gate.clear()
        calls = [asyncio.ensure_future(batcher.ask(n)) for n in range(3)]
        await asyncio.to_thread(run.begun.wait, 20)
        calls[0].cancel()
        await asyncio.sleep(0)
        run.gate.set()
        async with asyncio.timeout(20):
            return await asyncio.gather(*calls[1:])

    assert asyncio.run(scenario()) == [2, 4] and said == []


def test_what_arrives_while_a_batch_runs_is_the_next_batch():
    run = Recorder()

    async def scenario():
        batcher = Batcher(run, most=3)
        run.gate.clear()
        first = asyncio.ensure_future(batcher.ask(0))
        await asyncio.to_thread(run.begun.wait, 20)
        rest = [asyncio.ensure_future(batcher.ask(n)) for n in range(1, 6)]
        await asyncio.sleep(0.05)
        run.gate.set()
        return await asyncio.gather(first, *rest)

    assert asyncio.run(scenario()) == [0, 2, 4, 6, 8, 10]
    assert run.batches == [[0], [1, 2, 3], [4, 5]]


def test_a_lone_call_waits_for_nobody():
    async def one_by_one():
        batcher = Batcher(lambda items: items)
        for n in range(100):
            await batcher.ask(n)

    start = time.perf_counter()
    asyncio.run(one_by_one())
    assert time.perf_counter() - start < 2


def test_an_error_reaches_its_own_batch_only():
    def run(items):
        if 13 in items:
            raise ToolError("unlucky")
        return items

    async def scenario():
        batcher = Batcher(run, most=2)
        return await asyncio.gather(*map(batcher.ask, (1, 13, 3, 4)), return_exceptions=True)

    one, two, three, four = asyncio.run(scenario())
    assert isinstance(one, ToolError) and isinstance(two, ToolError) and (three, four) == (3, 4)


@pytest.mark.parametrize("error", [SystemExit(3), StopIteration("end"), KeyboardInterrupt(), None])
def test_the_thread_lives_through_any_error_and_through_a_missing_result(error):
    def run(items):
        if items[0] == "bad" and error is not None:
            raise error
        return items[1:] if items[0] == "bad" else items

    async def scenario():
        batcher = Batcher(run)
        with pytest.raises(RuntimeError, match=type(error).__name__ if error else "1 items gave 0 results"):
            await batcher.ask("bad")
        return await batcher.ask("good")

    assert asyncio.run(scenario()) == "good"


def test_a_cancelled_call_is_not_run():
    run = Recorder()

    async def scenario():
        batcher = Batcher(run)
        run.gate.clear()
        first = asyncio.ensure_future(batcher.ask(1))
        await asyncio.to_thread(run.begun.wait, 20)
        dropped, kept = asyncio.ensure_future(batcher.ask(2)), asyncio.ensure_future(batcher.ask(3))
        await asyncio.sleep(0.02)
        dropped.cancel()
        await asyncio.sleep(0)
        run.gate.set()
        return await asyncio.gather(first, dropped, kept, return_exceptions=True)

    first, dropped, kept = asyncio.run(scenario())
    assert (first, kept) == (2, 6) and isinstance(dropped, asyncio.CancelledError)
    assert run.batches == [[1], [3]]


def test_several_threads_and_loops_never_run_two_batches_at_once():
    running, most_at_once = [], []

    def run(items):
        running.append(1)
        most_at_once.append(len(running))
        time.sleep(0.001)
        running.pop()
        return [item * 10 for item in items]

    batcher = Batcher(run, most=4)

    def client(place):
        async def ask():
            return await asyncio.gather(*(batcher.ask(place * 100 + n) for n in range(20)))

        return asyncio.run(ask())

    with ThreadPoolExecutor(6) as threads:
        answers = [*threads.map(client, range(6))]
    assert answers == [[(place * 100 + n) * 10 for n in range(20)] for place in range(6)]
    assert max(most_at_once) == 1


def test_a_loop_that_closed_meanwhile_harms_nobody():
    run = Recorder()
    batcher = Batcher(run)
    run.gate.clear()

    async def leave():
        waiting = asyncio.ensure_future(batcher.ask(1))
        await asyncio.to_thread(run.begun.wait, 20)
        assert not waiting.done()

    asyncio.run(leave())
    run.gate.set()
    assert asyncio.run(batcher.ask(2)) == 4


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_has_a_thread_of_its_own():
    batcher = Batcher(Recorder())
    assert asyncio.run(batcher.ask(1)) == 2
    child = os.fork()
    if child == 0:
        signal.alarm(20)  # rather than waiting for ever for a thread that is not there
        os._exit(0 if asyncio.run(batcher.ask(4)) == 8 else 1)
    assert os.waitpid(child, 0) == (child, 0)
    assert asyncio.run(batcher.ask(5)) == 10


def test_pickles_without_its_thread():
    batcher = Batcher(operator.itemgetter(slice(None)), most=7)
    assert asyncio.run(batcher.ask("a")) == "a"
    copy = pickle.loads(pickle.dumps(batcher))
    assert copy.most == 7 and asyncio.run(copy.ask("b")) == "b"


def test_the_thread_ends_with_the_batcher():
    def batch_threads():
        return {thread for thread in threading.enumerate() if thread.name == "faithful-search-batches"}

    gc.collect()
    before = batch_threads()
    batcher = Batcher(Recorder())
    asyncio.run(batcher.ask(1))
    mine = batch_threads() - before
    assert len(mine) == 1
    del batcher
    gc.collect()
    (thread,) = mine
    thread.join(20)
    assert not thread.is_alive()


@pytest.mark.parametrize("settings", [{"most": 0}, {"threads": 0}])
def test_a_batch_and_its_threads_are_at_least_one(settings):
    with pytest.raises(ConfigError, match="at least 1"):
        Batcher(list, **settings)


def test_several_threads_run_batches_at_the_same_time():
    together = threading.Barrier(3)

    def run(items):
        together.wait(20)
        return [-item for item in items]

    async def many():
        batcher = Batcher(run, most=1, threads=3)
        return await asyncio.gather(*map(batcher.ask, range(9)))

    assert asyncio.run(many()) == [-n for n in range(9)]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(), max_size=60), st.integers(1, 9), st.integers(1, 4))
def test_everyone_gets_the_answer_to_the_own_item(items, most, threads):
    sizes = []

    def run(batch):
        sizes.append(len(batch))
        return [item + 1 for item in batch]

    async def many():
        batcher = Batcher(run, most, threads)
        return await asyncio.gather(*map(batcher.ask, items))

    assert asyncio.run(many()) == [item + 1 for item in items]
    assert sum(sizes) == len(items) and max(sizes, default=0) <= most
