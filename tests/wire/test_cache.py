"""The cache of results: one computation for many, nothing lost, no file harmed."""

import asyncio
import contextlib
import os
import pickle
import sqlite3
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor

import pytest

from faithful_search.errors import ConfigError, DataError
from faithful_search.wire import background
from faithful_search.wire.background import once
from faithful_search.wire.cache import Cache, key_of

LIMIT = 2_000_000


@pytest.fixture
def cache(tmp_path):
    return Cache(tmp_path / "deep" / "results.sqlite")


def through(cache, key, compute, **how):
    """What is kept under the key, or else computed: bytes as they are."""
    return cache.get_or_compute(key, compute, bytes, bytes, **how)


def gives(value, log=None, seconds=0.0):
    async def compute():
        if log is not None:
            log.append(1)
        await asyncio.sleep(seconds)
        if isinstance(value, Exception):
            raise value
        return value

    return compute


def test_what_was_put_first_is_there_for_the_next_process(cache):
    cache.put("a", b"\x00one")
    cache.put("a", b"two")
    assert cache.get("a") == b"\x00one"
    cache.put("b", b"")
    assert Cache(cache.path).get_many("abc") == {"a": b"\x00one", "b": b""}
    assert len(cache) == 2


def test_keys_depend_on_content_and_not_on_order():
    assert key_of(a=1, b={"x": 1, "y": 2}) == key_of(b={"y": 2, "x": 1}, a=1)
    assert (
        len({key_of(a=1), key_of(a="1"), key_of(b=1), key_of(a=1, b=None), key_of(a="\ud800")}) == 5
    )


# --- one computation for many
# ----------------------------------------------------------------------------------------


def test_concurrent_callers_share_one_computation(cache):
    computed = []

    async def ask(cache):
        compute = gives(b"value", computed, 0.1)
        return await asyncio.gather(
            *(through(cache, key, compute) for key in ["k"] * 20 + ["other"])
        )

    with ThreadPoolExecutor(8) as threads:
        found = [*threads.map(lambda _: asyncio.run(ask(Cache(cache.path))), range(8))]
    assert computed == [1, 1]
    assert cache.get("k") == b"value"
    assert {value for each in found for value, _ in each} == {b"value"}
    assert sorted(hit for each in found for _, hit in each) == [False] * 2 + [True] * (8 * 21 - 2)


def test_failures_reach_waiters_and_are_not_cached(cache):
    async def ask():
        compute = gives(RuntimeError("down"), seconds=0.02)
        return await asyncio.gather(
            *(through(cache, "k", compute) for _ in range(3)), return_exceptions=True
        )

    assert [str(error) for error in asyncio.run(ask())] == ["down"] * 3
    assert asyncio.run(cache.get_or_compute("k", gives(b"a part"), bytes, lambda value: None)) == (
        b"a part",
        False,
    )
    assert cache.get("k") is None
    assert asyncio.run(through(cache, "k", gives(b"value"))) == (
        b"value",
        False,
    )


def test_a_waiter_takes_over_from_a_cancelled_leader(
    cache,
):
    async def ask():
        started = []
        first = asyncio.create_task(through(cache, "k", gives(b"never", started, 60)))
        while not started:
            await asyncio.sleep(0.01)
        second, third = (
            asyncio.create_task(through(cache, "k", gives(b"value"))) for _ in range(2)
        )
        await asyncio.sleep(0.02)
        third.cancel()
        await asyncio.sleep(0.02)
        assert third.cancelled()
        assert not first.done()
        assert not second.done()
        first.cancel()
        return await second

    assert asyncio.run(ask()) == (b"value", False)


def test_who_has_waited_long_enough_does_the_work_itself():
    async def ask():
        first = asyncio.create_task(once("slow", gives("never", seconds=600)))
        await asyncio.sleep(0)
        found = await once("slow", gives("done"), wait=0.05)
        assert not first.done()
        first.cancel()
        return found

    assert asyncio.run(asyncio.wait_for(ask(), 30)) == ("done", False)


def test_leader_timeout_propagates_to_waiters():
    asked = []

    async def scene():
        late = gives(TimeoutError(), asked, 0.02)
        return await asyncio.gather(
            *(once("late", late, wait=20) for _ in range(3)), return_exceptions=True
        )

    assert [type(error) for error in asyncio.run(scene())] == [TimeoutError] * 3
    assert asked == [1]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_opens_the_cache_anew(cache):
    cache.put("a", b"one")
    _, opened = cache._open

    async def work():
        child = os.fork()
        if child == 0:
            cache.put("b", b"two")
            fine = (
                cache.get("a") == b"one"
                and cache._open[1] is not opened
                and not background._flights
            )
            os._exit(0 if fine else 1)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    assert asyncio.run(once("at it", work)) == (0, False)
    assert cache.get("b") == b"two"


# --- in memory
# -------------------------------------------------------------------------------------------------------


def test_what_is_in_memory_is_what_the_file_holds(cache):
    other = Cache(cache.path)
    other.put("a", b"theirs")
    cache.put("a", b"ours")  # the first value stays
    assert cache.recent("a") is None
    assert cache.get("a") == b"theirs" == cache.recent("a")
    cache.put("b", b"ours")
    assert cache.recent("b") == b"ours"
    assert other.recent("b") is None
    cache.close()
    assert cache.recent("a") is None
    assert cache.get_many("ab") == {"a": b"theirs", "b": b"ours"}


def test_memory_is_bounded_and_the_first_make_room(tmp_path):
    cache = Cache(tmp_path / "results.sqlite", memory=100_000)
    for n in [*range(100), 3, 3]:
        cache.put(str(n), bytes(9_000))
    cache.put("huge", bytes(100_000))
    held = [key for key in (*map(str, range(100)), "huge") if cache.recent(key) is not None]
    assert held == [str(n) for n in range(90, 100)]
    cache.get_many(["3", "98", "4"])
    assert [cache.recent(key) is not None for key in ("3", "4", "90", "91", "92")] == [
        True,
        True,
        False,
        False,
        True,
    ]
    assert cache.get("huge") == bytes(100_000)
    assert cache._recent_bytes <= 100_000
    nothing = Cache(cache.path, memory=0)
    assert nothing.get("3") == bytes(9_000)
    assert nothing.recent("3") is None


# --- the file
# --------------------------------------------------------------------------------------------------------


OURS, ANOTHER = f"PRAGMA application_id = {0x46534348}", "PRAGMA user_version = 99"
TABLE = "CREATE TABLE entries (key TEXT, value BLOB)"


@pytest.mark.parametrize(
    ("orders", "told"),
    [
        ((), r"theirs \(file is not a database\): .*name another file"),
        ((TABLE,), "theirs is a database of something else"),
        ((OURS, ANOTHER, TABLE), "another version"),
    ],
)
def test_a_file_of_something_else_is_named_and_left_alone(tmp_path, orders, told):
    path = tmp_path / "theirs"
    path.write_text("" if orders else "dear diary " * 500)
    for order in orders:
        with sqlite3.connect(path) as theirs:
            theirs.execute(order)
    before = path.read_bytes()
    with pytest.raises(DataError, match=told):
        Cache(path).put("a", b"one")
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["theirs"]


def test_a_damaged_file_is_named(cache):
    for n in range(500):
        cache.put(str(n), b"x" * 200)
    cache.close()
    whole = cache.path.read_bytes()
    cache.path.write_bytes(whole[:2048] + b"\xff" * (len(whole) - 2048))
    damaged = cache.path.read_bytes()
    with pytest.raises(DataError, match=r"results\.sqlite \(.*malformed\): .*name another file"):
        Cache(cache.path).get_many(map(str, range(500)))
    assert cache.path.read_bytes() == damaged


def test_a_locked_cache_still_returns_the_result(cache, caplog):
    cache.put("a", b"one")
    patient, impatient = Cache(cache.path, 0.1), Cache(cache.path, 0.1)
    assert patient.get("b") is None
    holder = sqlite3.connect(cache.path, isolation_level=None)
    holder.execute("BEGIN EXCLUSIVE")
    with pytest.raises(
        DataError, match=r"\(database is locked\): .*wait for processes that write to it"
    ):
        impatient.get("a")
    for key in "bc":
        assert asyncio.run(through(patient, key, gives(b"value"))) == (b"value", False)
    assert patient.unstored == 2
    assert [record.message.count("no longer kept") for record in caplog.records] == [1]
    holder.execute("ROLLBACK")
    assert impatient.get("a") == b"one"


def test_what_is_in_the_way_is_named(tmp_path):
    (tmp_path / "file").write_text("x")
    for path in (tmp_path, tmp_path / "file" / "results.sqlite"):
        with pytest.raises(DataError, match=r"cannot use the cache .*name another file"):
            Cache(path).get("a")


def test_a_file_without_permission_is_named():
    with tempfile.TemporaryDirectory() as folder:
        cache = Cache(f"{folder}/results.sqlite")
        cache.put("a", b"one")
        cache.close()
        before = cache.path.read_bytes()
        cache.path.chmod(0o444)
        os.chmod(folder, 0o555)
        user = os.getuid()
        os.seteuid(user or 65534)  # permissions do not bind root
        try:
            with pytest.raises(DataError, match=r"results\.sqlite .*give permission"):
                Cache(cache.path).put("b", b"two")
        finally:
            os.seteuid(user)
        assert cache.path.read_bytes() == before
        os.chmod(folder, 0o755)


# --- limits
# ----------------------------------------------------------------------------------------------------------


def age(cache, key, seconds):
    cache.close()
    with sqlite3.connect(cache.path) as raw:
        raw.execute("UPDATE entries SET made = made - ? WHERE key = ?", (seconds, key))


def on_disk(path):
    size = 0
    for file in path.parent.iterdir():
        with contextlib.suppress(FileNotFoundError):  # a journal that has just been emptied
            size += file.stat().st_size
    return size


def test_an_expired_value_is_computed_anew_once(tmp_path):
    cache, computed = Cache(tmp_path / "results.sqlite", max_age=100), []
    for key in ("old", "young"):
        cache.put(key, b"first")
    age(cache, "old", 101)
    age(cache, "young", 50)
    assert cache.get_many(["old", "young"]) == {"young": b"first"}
    assert len(cache) == 1
    assert Cache(cache.path).get("old") == b"first"  # who sets no limit reads it
    Cache(cache.path).put("old", b"second")

    async def ask():
        return await asyncio.gather(
            *(through(cache, "old", gives(b"third", computed, 0.02)) for _ in range(5))
        )

    assert asyncio.run(ask()) == [(b"third", False)] + [(b"third", True)] * 4
    assert asyncio.run(ask()) == [(b"third", True)] * 5
    assert computed == [1]
    cache.put("young", b"third")
    assert cache.get_many(["old", "young"]) == {"old": b"third", "young": b"first"}
    assert len(cache) == 2


def test_hits_in_memory_grow_old_like_others(tmp_path):
    cache = Cache(tmp_path / "results.sqlite", max_age=100)
    cache.put("a", b"one")
    assert cache.recent("a") == b"one"
    cache.max_age = 1e-6
    assert cache.recent("a") is None
    assert cache.get("a") is None
    cache.put("a", b"two")
    assert cache._recent_bytes == len("a") + len(b"two") + 400
    assert Cache(cache.path).get("a") == b"two"


def test_limits_are_checked_and_pickled(tmp_path):
    for limits in ({"max_age": 0}, {"max_age": float("nan")}, {"max_bytes": 1_999_999}):
        with pytest.raises(ConfigError, match=next(iter(limits))):
            Cache(tmp_path / "results.sqlite", **limits)
    limited = Cache(tmp_path / "results.sqlite", 3.0, max_age=5, max_bytes=LIMIT, memory=0)
    limited.put("a", b"one")
    copy = pickle.loads(pickle.dumps(limited))
    assert (copy.patience, copy.max_age, copy.max_bytes, copy.memory) == (3.0, 5, LIMIT, 0)
    assert copy.get("a") == b"one"


def test_the_file_stays_within_its_limit_and_the_oldest_go_first(tmp_path):
    cache, largest, size = Cache(tmp_path / "results.sqlite", max_bytes=LIMIT), 0, 5000
    count = LIMIT // size
    for n in range(count):
        cache.put(key_of(n=n), os.urandom(size))
        if n % 16 == 0:
            largest = max(largest, on_disk(cache.path))
    there = Cache(cache.path)
    kept = [n for n in range(count) if there.get(key_of(n=n)) is not None]
    assert largest <= LIMIT
    assert on_disk(cache.path) <= LIMIT
    assert kept == list(range(kept[0], count))  # the youngest, without a gap
    assert sum(size for _ in kept) > LIMIT // 20
    assert len(cache) == len(kept)


def test_a_limit_shrinks_the_file(cache):
    with cache._connection() as raw:
        raw.executemany(
            "INSERT INTO entries VALUES (?, ?, ?)", ((f"{n}", bytes(2000), n) for n in range(3000))
        )
    cache.close()
    limited = Cache(cache.path, max_bytes=LIMIT)
    assert limited.get("2999") == bytes(2000)
    assert limited.get("0") is None
    assert on_disk(cache.path) <= LIMIT
    assert len(limited) > 200
    limited.put("new", b"1")
    assert asyncio.run(through(limited, "huge", gives(bytes(1_800_000)))) == (
        bytes(1_800_000),
        False,
    )
    assert limited.get("huge") is None
    assert Cache(cache.path).get("new") == b"1"


def test_concurrent_writers_stay_within_the_size_limit(tmp_path):
    path = tmp_path / "results.sqlite"
    code = (
        "import os, sys, threading; from faithful_search.wire.cache import Cache, key_of\n"
        "def fill(thread):\n"
        "    cache = Cache(sys.argv[1], 60, max_bytes=int(sys.argv[2]))\n"
        "    for n in range(200):\n"
        "        key = key_of(n=n, who=[sys.argv[3], thread]); cache.put(key, os.urandom(4000))\n"
        "        assert len(cache.get(key) or bytes(4000)) == 4000\n"
        "        cache.put(f'common-{n}', sys.argv[3].encode())\n"
        "threads = [threading.Thread(target=fill, args=(n,)) for n in range(2)]\n"
        "[thread.start() for thread in threads]; [thread.join() for thread in threads]"
    )
    command = [sys.executable, "-c", code, str(path), str(LIMIT)]
    running = [
        subprocess.Popen([*command, name], stderr=subprocess.PIPE, text=True) for name in "ab"
    ]
    largest = 0
    while any(process.poll() is None for process in running):
        largest = max(largest, on_disk(path))
    assert [process.communicate()[1] for process in running] == ["", ""]
    assert 0 < largest <= LIMIT
    cache = Cache(path)
    assert len(cache) > 50
    assert cache.get("common-199") in (b"a", b"b")
    with sqlite3.connect(path) as raw:
        assert raw.execute("PRAGMA integrity_check").fetchone() == ("ok",)
