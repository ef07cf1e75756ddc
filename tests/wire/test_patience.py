"""Retries, their pauses, the breaker, and calls that hang."""

import asyncio
import email.utils
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from unittest.mock import AsyncMock

import pytest
from hypothesis import given, strategies as st

from faithful_search.errors import ConfigError, ToolError
from faithful_search.wire import retry
from faithful_search.wire.background import DaemonThreads
from faithful_search.wire.retry import Breaker, Patience, retry_after, transient

BUSY, GONE = ToolError("busy", transient=True), ToolError("gone")
TRIED, WAIT = (
    ToolError("tried", transient=True, retried=True),
    ToolError("busy", transient=True, retry_after=7),
)


def flaky(*errors: BaseException) -> AsyncMock:
    """Raises what it is given, one after the other, then answers."""
    return AsyncMock(side_effect=[*errors, "answer"])


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        *((BUSY, True), (TimeoutError(), True), (ConnectionResetError(), True)),
        *(
            (GONE, False),
            (TRIED, False),
            (ValueError("a bug"), False),
            (asyncio.CancelledError(), False),
        ),
    ],
)
def test_what_passes_is_tried_again_as_often_as_said(error, expected):
    quick = Patience(retries=2, first=0.001)
    assert transient(error) is expected
    answers, fails = flaky(error, error), flaky(error, error, error)
    if expected:
        assert asyncio.run(quick.persist(answers)) == "answer"
        assert answers.call_count == 3
    with pytest.raises(type(error)):
        asyncio.run(quick.persist(fails))
    assert fails.call_count == (3 if expected else 1)


@pytest.mark.parametrize("retry_after", [7, 99])
def test_no_pause_outlasts_the_deadline(retry_after):
    fails, start = (
        flaky(ToolError("busy", transient=True, retry_after=retry_after)),
        time.monotonic(),
    )
    with pytest.raises(ToolError):
        asyncio.run(Patience().persist(fails, deadline=start + 5 if retry_after == 7 else None))
    assert fails.call_count == 1
    assert time.monotonic() - start < 4


@given(st.integers(1, 5000), st.floats(0, 10), st.floats(0, 10), st.integers())
def test_pauses_are_drawn_up_to_their_bound(retry, first, longest, seed):
    random.seed(seed)
    patience, most = Patience(9, first, longest), min(longest, first * 2.0 ** min(retry - 1, 60))
    pauses = [patience.pause(retry, BUSY) for _ in range(50)]
    assert 0 <= min(pauses) <= most / 3
    assert 2 / 3 * most <= max(pauses) <= most
    if longest >= 7.7:  # a pause that a service names is given to it
        assert 7 <= patience.pause(retry, WAIT) <= 7.7


def test_what_a_server_asks_to_wait():
    overflowing = ("Mon, 01 Jan 99999999999 00:00:00 GMT", "Mon, 32 Jan 2026 99:00:00 GMT")
    for header in (*overflowing, "nan", "inf", "1e999", "soon", "Mon, 99 Foo 2020", "", "٣", None):
        assert retry_after(header) is None
    assert (retry_after("7"), retry_after("-5")) == (7, 0)
    assert 97 < retry_after(email.utils.formatdate(time.time() + 100, usegmt=True)) <= 100


@pytest.mark.parametrize("wrong", [{"retries": -1}, {"first": -0.1}, {"longest": -1}])
def test_settings_are_checked(wrong):
    with pytest.raises(ConfigError, match="must not be negative"):
        Patience(**wrong)
    with pytest.raises(ConfigError, match="must be positive"):
        Breaker(failures=0)


def test_an_abandoned_call_does_not_retry():
    tries = []

    async def attempt():
        tries.append(1)
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            raise ConnectionAbortedError from None

    async def give_up():
        task = asyncio.create_task(Patience(retries=5, first=0.001).persist(attempt))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(ConnectionAbortedError):
            await asyncio.wait_for(task, 30)

    asyncio.run(give_up())
    assert tries == [1]


@pytest.fixture
def clock(monkeypatch):
    made = SimpleNamespace(now=100.0)
    monkeypatch.setattr(retry, "time", SimpleNamespace(monotonic=lambda: made.now, time=time.time))
    return made


@pytest.fixture
def broken(clock):
    """A breaker that has just opened."""
    breaker = Breaker(failures=3, cooldown=10)
    for _ in range(3):
        breaker.failed()
    return breaker


def test_the_breaker_opens_after_failures_in_a_row_only(broken, clock):
    assert broken.refusal() == broken.remaining == 10
    breaker = Breaker(failures=3, cooldown=10)
    for _ in range(5):
        breaker.failed()
        breaker.failed()
        breaker.succeeded()
    assert breaker.refusal() == 0


def test_one_caller_tries_after_the_cooldown(broken, clock):
    clock.now += 10
    assert [broken.remaining, broken.remaining] == [0, 0]  # looking is not trying
    with ThreadPoolExecutor(20) as threads:
        assert sorted(threads.map(lambda _: broken.refusal(), range(20))) == [0] + [10] * 19
    broken.succeeded()
    assert [broken.refusal(), broken.refusal()] == [0, 0]


def test_a_failed_trial_begins_the_next_cooldown(broken, clock):
    clock.now += 12
    assert broken.refusal() == 0
    clock.now += 10
    assert [broken.refusal(), broken.refusal()] == [0, 10]
    clock.now += 3
    broken.failed()
    assert broken.refusal() == 10


def test_failures_among_successes_do_not_break_the_circuit(clock):
    breaker = Breaker(failures=2, cooldown=10)
    clock.now += 5
    breaker.succeeded()
    for _ in range(9):
        breaker.failed(since=101)
    assert breaker.refusal() == 0
    breaker.failed(since=106)
    breaker.failed(since=106)
    assert breaker.refusal() == 10


def test_calls_that_hang_hold_up_neither_others_nor_the_end():
    release = threading.Event()
    threads = DaemonThreads()
    stuck = [threads.submit(release.wait, 30) for _ in range(40)]
    assert threads.submit(sum, [1, 2]).result(10) == 3
    threads.shutdown(wait=True)
    assert not any(future.done() for future in stuck)
    with pytest.raises(RuntimeError):
        threads.submit(sum, [1])
    release.set()
    assert all(future.result(10) for future in stuck)


def test_threads_are_used_again_and_bounded():
    with DaemonThreads(most=3) as threads:
        waits = [
            threads.submit(lambda: time.sleep(0.01) or threading.get_ident()) for _ in range(12)
        ]
        assert 1 <= len({future.result(10) for future in waits}) <= 3
        with pytest.raises(ZeroDivisionError):
            threads.submit(lambda: 1 / 0).result(10)
