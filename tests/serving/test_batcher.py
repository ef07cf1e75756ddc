"""Many callers, few threads: what goes together, what reaches whom, and what survives."""

import asyncio
import gc
import operator
import os
import pickle
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings, strategies as st

from faithful_search.errors import ToolError
from faithful_search.tools.batcher import Batcher


def asked(batcher, items, **how):
    """What a loop of its own gets for these items, which it asks for at once."""

    async def together():
        return await asyncio.gather(*map(batcher.ask, items), **how)

    return asyncio.run(together())


class Recorder:
    """Doubles numbers and remembers the batches; holds a batch while the gate is shut."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.gate, self.begun = threading.Event(), threading.Event()
        self.gate.set()

    def __call__(self, items):
        self.batches.append(list(items))
        self.begun.set()
        assert self.gate.wait(20)
        return [2 * item for item in items]

    async def held(self, batcher, item):
        """A call for this item, whose batch runs until the gate is opened."""
        self.gate.clear()
        call = asyncio.ensure_future(batcher.ask(item))
        await asyncio.to_thread(self.begun.wait, 20)
        return call


def test_calls_of_one_turn_are_one_batch_in_order():
    run = Recorder()

    async def slowly(batcher, number):
        time.sleep(0.02)  # long enough for a thread to begin
        return await batcher.ask(number)

    async def many():
        batcher = Batcher(run)
        return await asyncio.gather(*(slowly(batcher, number) for number in range(3)))

    assert asyncio.run(many()) == [0, 2, 4]
    assert run.batches == [[0, 1, 2]]


def test_items_that_arrive_meanwhile_form_the_next_batch():
    """One who leaves while the own batch runs spoils nothing for the others."""
    run, said = Recorder(), []

    async def scenario():
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: said.append(context))
        batcher = Batcher(run, most=3)
        first = await run.held(batcher, 0)
        rest = [asyncio.ensure_future(batcher.ask(n)) for n in range(1, 7)]
        await asyncio.sleep(0.05)
        for call in (first, rest[1]):
            call.cancel()
        await asyncio.sleep(0)
        run.gate.set()
        async with asyncio.timeout(20):
            return await asyncio.gather(first, *rest, return_exceptions=True)

    gone, one, dropped, *others = asyncio.run(scenario())
    assert (one, others) == (2, [6, 8, 10, 12])
    assert said == []
    assert isinstance(gone, asyncio.CancelledError)
    assert isinstance(dropped, asyncio.CancelledError)
    assert run.batches == [[0], [1, 3, 4], [5, 6]]


def test_the_threads_end_with_the_batcher():
    before = set(threading.enumerate())
    batcher = Batcher(list)
    assert asyncio.run(batcher.ask(1)) == 1
    (thread,) = set(threading.enumerate()) - before
    del batcher
    gc.collect()
    thread.join(20)
    assert not thread.is_alive()


@pytest.mark.parametrize(
    "error", [ToolError("unlucky"), SystemExit(3), StopIteration("end"), KeyboardInterrupt(), None]
)
def test_an_error_reaches_its_own_batch_only(error):
    def run(items):
        if 13 in items and error is not None:
            raise error
        return items[1:] if 13 in items else items

    one, two, three, four = asked(Batcher(run, most=2), (1, 13, 3, 4), return_exceptions=True)
    assert one is two
    assert (three, four) == (3, 4)
    assert one is error or isinstance(one, RuntimeError)
    assert error is one or (type(error).__name__ if error else "2 items gave 1 results") in str(one)


def test_a_loop_that_closed_meanwhile_harms_nobody():
    run = Recorder()
    batcher = Batcher(run)

    async def leave():
        waiting = await run.held(batcher, 1)
        assert not waiting.done()

    asyncio.run(leave())
    run.gate.set()
    assert asyncio.run(batcher.ask(2)) == 4


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_forked_and_pickled_batchers_have_their_own_threads():
    batcher = Batcher(operator.itemgetter(slice(None)), most=7)
    assert asyncio.run(batcher.ask("a")) == "a"
    child = os.fork()
    if child == 0:
        signal.alarm(20)  # rather than waiting for ever for a thread that is not there
        os._exit(0 if asyncio.run(batcher.ask("b")) == "b" else 1)
    assert os.waitpid(child, 0) == (child, 0)
    copy = pickle.loads(pickle.dumps(batcher))
    assert copy.most == 7
    assert asyncio.run(copy.ask("b")) == asyncio.run(batcher.ask("b")) == "b"


def test_several_threads_run_batches_at_the_same_time():
    together = threading.Barrier(3)

    def run(items):
        together.wait(20)
        return [-item for item in items]

    assert asked(Batcher(run, most=1, threads=3), range(9)) == [-n for n in range(9)]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(), max_size=60), st.integers(1, 9), st.integers(1, 4))
def test_callers_on_several_loops_get_their_own_answers(items, most, threads):
    sizes, running, at_once = [], [], []

    def run(batch):
        sizes.append(len(batch))
        running.append(1)
        at_once.append(len(running))
        time.sleep(0.0001)
        running.pop()
        return [item + 1 for item in batch]

    batcher = Batcher(run, most, threads)
    with ThreadPoolExecutor(2) as loops:
        answers = [*loops.map(lambda _: asked(batcher, items), range(2))]
    assert answers == [[item + 1 for item in items]] * 2
    assert sum(sizes) == 2 * len(items)
    assert max(sizes, default=0) <= most
    assert max(at_once, default=0) <= threads
