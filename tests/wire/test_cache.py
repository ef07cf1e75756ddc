"""The cache of results: one computation for many, nothing lost, no file harmed."""

import asyncio
import contextlib
import functools
import gc
import os
import pickle
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from faithful_search.errors import ConfigError, DataError
from faithful_search.wire import single_flight
from faithful_search.wire.cache import Cache, key_of
from faithful_search.wire.single_flight import once


@pytest.fixture
def cache(tmp_path):
    return Cache(tmp_path / "deep" / "results.sqlite")


def test_what_was_put_first_is_there_for_the_next_process(cache):
    cache.put("a", b"\x00one")
    cache.put("a", b"two")
    assert cache.get("a") == b"\x00one"
    for n in range(1200):
        cache.put(str(n), b"%d" % n)
    expected = {"a": b"\x00one"} | {str(n): b"%d" % n for n in range(1200)}
    assert Cache(cache.path).get_many(["a", "c", *map(str, range(1300))]) == expected
    assert len(cache) == 1201


def test_keys_depend_on_content_and_not_on_order():
    assert key_of(a=1, b={"x": 1, "y": 2}) == key_of(b={"y": 2, "x": 1}, a=1)
    assert len({key_of(a=1), key_of(a="1"), key_of(b=1), key_of(a=1, b=None), key_of(a="\ud800")}) == 5


def test_tasks_that_ask_at_once_share_one_computation(cache):
    computed = []

    async def compute():
        computed.append(1)
        await asyncio.sleep(0.05)
        return b"value"

    async def ask():
        return await asyncio.gather(*(cache.get_or_compute(key, compute) for key in ["k"] * 20 + ["other"]))

    found = asyncio.run(ask())
    assert computed == [1, 1]
    assert [hit for _, hit in found] == [False] + [True] * 19 + [False]
    assert {value for value, _ in found} == {b"value"} and cache.get("k") == b"value"


def test_threads_with_loops_and_caches_of_their_own_share_one_computation(cache):
    computed = []

    async def compute():
        computed.append(1)
        await asyncio.sleep(0.1)
        return b"value"

    def ask(_):
        return asyncio.run(Cache(cache.path).get_or_compute("k", compute))

    with ThreadPoolExecutor(8) as threads:
        assert [value for value, _ in threads.map(ask, range(8))] == [b"value"] * 8
    assert computed == [1]


def test_a_failure_reaches_all_who_waited_and_is_not_kept(cache):
    async def fail():
        await asyncio.sleep(0.02)
        raise RuntimeError("down")

    async def succeed():
        return b"value"

    async def ask():
        return await asyncio.gather(*(cache.get_or_compute("k", fail) for _ in range(3)), return_exceptions=True)

    assert [str(error) for error in asyncio.run(ask())] == ["down"] * 3
    assert cache.get("k") is None
    assert asyncio.run(cache.get_or_compute("k", succeed)) == (b"value", False)


def test_when_the_one_who_computes_is_cancelled_another_takes_over(cache):
    async def ask():
        started = asyncio.Event()

        async def hang():
            started.set()
            await asyncio.sleep(60)
            return b"never"

        async def succeed():
            return b"value"

        first = asyncio.create_task(cache.get_or_compute("k", hang))
        await started.wait()
        second = asyncio.create_task(cache.get_or_compute("k", succeed))
        await asyncio.sleep(0.02)
        assert not second.done()
        first.cancel()
        return await second

    assert asyncio.run(ask()) == (b"value", False)


@pytest.mark.parametrize("fails", [True, False])
def test_one_who_waits_may_leave_and_disturbs_nobody(cache, caplog, fails):
    async def ask():
        started, go = asyncio.Event(), asyncio.Event()

        async def compute():
            started.set()
            await go.wait()
            if fails:
                raise RuntimeError("down")
            return b"value"

        first = asyncio.create_task(cache.get_or_compute("k", compute))
        await started.wait()
        others = [asyncio.create_task(cache.get_or_compute("k", compute)) for _ in range(3)]
        await asyncio.sleep(0.02)
        others[0].cancel()
        await asyncio.sleep(0)
        go.set()
        return await asyncio.gather(first, *others, return_exceptions=True)

    first, left, *others = asyncio.run(ask())
    assert isinstance(left, asyncio.CancelledError)
    if fails:
        assert [str(error) for error in (first, *others)] == ["down"] * 3
    else:
        assert [first, *others] == [(b"value", False), (b"value", True), (b"value", True)]
    gc.collect()
    assert caplog.messages == []


def test_what_is_in_memory_is_what_the_file_holds(cache):
    other = Cache(cache.path)
    other.put("a", b"theirs")
    cache.put("a", b"ours")  # the first value stays
    assert cache.recent("a") is None and cache.get("a") == b"theirs" == cache.recent("a")
    cache.put("b", b"ours")
    assert cache.recent("b") == b"ours" and other.recent("b") is None
    cache.close()
    assert cache.recent("a") is None and cache.get_many("ab") == {"a": b"theirs", "b": b"ours"}


def test_hits_in_memory_wait_for_nobody(cache):
    cache.put("a", b"one")
    found = []
    reader = threading.Thread(target=lambda: found.append(cache.get("a")), daemon=True)
    with cache._lock:  # as another thread does that waits for the file
        reader.start()
        reader.join(30)
    assert found == [b"one"]


def test_hits_in_memory_grow_old_like_others(tmp_path):
    cache = Cache(tmp_path / "results.sqlite", max_age=0.2)
    cache.put("a", b"one")
    time.sleep(0.25)
    assert cache.recent("a") is None and cache.get("a") is None
    cache.put("a", b"two")
    assert cache._held == len("a") + len(b"two") + 400 and Cache(cache.path).get("a") == b"two"


def test_memory_is_bounded_and_the_first_make_room(tmp_path):
    cache = Cache(tmp_path / "results.sqlite", memory=100_000)
    for n in [*range(100), 3, 3]:
        cache.put(str(n), bytes(9_000))
    cache.put("huge", bytes(100_000))
    held = [key for key in (*map(str, range(100)), "huge") if cache.recent(key) is not None]
    assert held == [str(n) for n in range(90, 100)]
    cache.get_many(["3", "98", "4"])
    assert [cache.recent(key) is not None for key in ("3", "4", "90", "91", "92")] == [True, True, False, False, True]
    assert cache.get("huge") == bytes(100_000) and cache._held <= 100_000
    nothing = Cache(cache.path, memory=0)
    assert nothing.get("3") == bytes(9_000) and nothing.recent("3") is None


def test_processes_write_at_once(tmp_path):
    path = tmp_path / "shared.sqlite"
    code = (
        "import sys; from faithful_search.wire.cache import Cache; cache = Cache(sys.argv[1])\n"
        "for n in range(200): cache.put(f'{sys.argv[2]}-{n}', b'x'); cache.put(f'common-{n}', sys.argv[2].encode())"
    )
    running = [subprocess.Popen([sys.executable, "-c", code, str(path), name]) for name in "abc"]
    assert [process.wait() for process in running] == [0, 0, 0]
    assert len(Cache(path)) == 800


def test_a_file_that_another_makes_while_it_is_looked_at_is_a_cache(cache, monkeypatch):
    others = [Cache(cache.path)]

    class Interrupted(sqlite3.Connection):
        looked = False

        def execute(self, *what):
            if self.looked and others:
                others.pop().put("theirs", b"1")
            self.looked = True
            return super().execute(*what)

    monkeypatch.setattr(sqlite3, "connect", functools.partial(sqlite3.connect, factory=Interrupted))
    assert cache.get("theirs") == b"1" and not others


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_opens_the_file_anew(cache):
    cache.put("a", b"one")
    _, opened = cache._open
    child = os.fork()
    if child == 0:
        cache.put("b", b"two")
        os._exit(0 if cache.get("a") == b"one" and cache._open[1] is not opened else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert cache.get("b") == b"two"


@pytest.mark.parametrize(
    ("orders", "told"),
    [
        ((), r"theirs .*move it away"),
        (("CREATE TABLE entries (key TEXT, value BLOB)",), "theirs is a database of something else"),
        (
            (f"PRAGMA application_id = {0x46534348}", "PRAGMA user_version = 99", "CREATE TABLE entries (key TEXT)"),
            "another version",
        ),
    ],
)
def test_a_file_of_something_else_is_named_and_left_alone(tmp_path, orders, told):
    path = tmp_path / "theirs"
    if orders:
        with sqlite3.connect(path) as theirs:
            for order in orders:
                theirs.execute(order)
    else:
        path.write_text("dear diary " * 500)
    before = path.read_bytes()
    for use in (lambda: Cache(path).put("a", b"one"), lambda: Cache(path).get("a")):
        with pytest.raises(DataError, match=told):
            use()
    assert path.read_bytes() == before and os.listdir(tmp_path) == ["theirs"]


def test_a_damaged_file_is_named(cache):
    for n in range(500):
        cache.put(str(n), b"x" * 200)
    cache.close()
    whole = cache.path.read_bytes()
    cache.path.write_bytes(whole[:2048] + b"\xff" * (len(whole) - 2048))
    damaged = cache.path.read_bytes()
    with pytest.raises(DataError, match=r"results\.sqlite.*move it away"):
        Cache(cache.path).get_many(map(str, range(500)))
    assert cache.path.read_bytes() == damaged


def test_a_file_that_another_process_holds_is_named_after_a_while(cache):
    cache.put("a", b"one")
    holder = sqlite3.connect(cache.path, isolation_level=None)
    holder.execute("BEGIN EXCLUSIVE")
    with pytest.raises(DataError, match="another process has been writing to it"):
        Cache(cache.path, patience=0.1).get("a")
    holder.execute("ROLLBACK")
    assert Cache(cache.path, patience=0.1).get("a") == b"one"


def test_a_result_that_cannot_be_written_is_still_returned(cache, caplog):
    impatient = Cache(cache.path, patience=0.1)
    assert impatient.get("a") is None
    holder = sqlite3.connect(cache.path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")

    async def compute():
        return b"value"

    assert asyncio.run(impatient.get_or_compute("a", compute)) == (b"value", False)
    assert asyncio.run(impatient.get_or_compute("b", compute)) == (b"value", False)
    assert impatient.unstored == 2
    assert [record.message.count("no longer kept") for record in caplog.records] == [1]


def test_a_folder_in_the_way_is_named(tmp_path):
    with pytest.raises(DataError, match="cannot be opened for writing"):
        Cache(tmp_path).get("a")
    (tmp_path / "file").write_text("x")
    with pytest.raises(DataError, match="cannot be opened for writing"):
        Cache(tmp_path / "file" / "results.sqlite").get("a")


def test_a_file_without_permission_is_named():
    code = (
        "import os, sys; from faithful_search.wire.cache import Cache; from faithful_search.errors import DataError\n"
        "os.getuid() or os.setuid(65534)\n"  # permissions do not bind root
        "try: Cache(sys.argv[1]).put('b', b'two')\n"
        "except DataError as error: print(error)"
    )
    with tempfile.TemporaryDirectory() as folder:
        cache = Cache(f"{folder}/results.sqlite")
        cache.put("a", b"one")
        cache.close()
        before = cache.path.read_bytes()
        cache.path.chmod(0o444)
        os.chmod(folder, 0o555)
        done = subprocess.run([sys.executable, "-c", code, str(cache.path)], capture_output=True, text=True)
        assert cache.path.read_bytes() == before
        os.chmod(folder, 0o755)
    assert "results.sqlite" in done.stdout and "give permission" in done.stdout, done.stderr


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


def test_what_is_too_old_counts_as_absent_and_is_overwritten(tmp_path):
    cache = Cache(tmp_path / "results.sqlite", max_age=100)
    for key in ("old", "young"):
        cache.put(key, b"first")
    age(cache, "old", 101)
    age(cache, "young", 50)
    assert cache.get_many(["old", "young"]) == {"young": b"first"} and len(cache) == 1
    assert Cache(cache.path).get("old") == b"first"  # who sets no limit reads it
    Cache(cache.path).put("old", b"second")
    assert cache.get("old") is None
    for key in ("old", "young"):
        cache.put(key, b"third")
    assert cache.get_many(["old", "young"]) == {"old": b"third", "young": b"first"} and len(cache) == 2


def test_what_is_too_old_is_computed_anew_once(tmp_path):
    cache, computed = Cache(tmp_path / "results.sqlite", max_age=100), []
    cache.put("k", b"old")
    age(cache, "k", 101)

    async def compute():
        computed.append(1)
        await asyncio.sleep(0.02)
        return b"new"

    async def ask():
        return await asyncio.gather(*(cache.get_or_compute("k", compute) for _ in range(5)))

    assert asyncio.run(ask()) == [(b"new", False)] + [(b"new", True)] * 4
    assert asyncio.run(ask()) == [(b"new", True)] * 5 and computed == [1]


def test_limits_that_make_no_sense_are_refused(tmp_path):
    for limits in ({"max_age": 0}, {"max_age": float("nan")}, {"max_bytes": 1_999_999}, {"max_bytes": -1}):
        with pytest.raises(ConfigError, match=next(iter(limits))):
            Cache(tmp_path / "results.sqlite", **limits)
    limited = Cache(tmp_path / "results.sqlite", 3.0, max_age=5, max_bytes=2_000_000, memory=0)
    limited.put("a", b"one")
    copy = pickle.loads(pickle.dumps(limited))
    assert (copy.patience, copy.max_age, copy.max_bytes, copy.memory) == (3.0, 5, 2_000_000, 0)
    assert copy.get("a") == b"one" and repr(copy) == repr(limited)


@pytest.mark.parametrize("size", [200, 900, 30_000])
def test_the_file_stays_within_its_limit_and_the_oldest_go_first(tmp_path, size):
    limit, largest = 2_000_000, 0
    cache = Cache(tmp_path / "results.sqlite", max_bytes=limit)
    count = limit // (size + 200)
    for n in range(count):
        cache.put(key_of(n=n), os.urandom(size))
        if n % 16 == 0:
            largest = max(largest, on_disk(cache.path))
    there = Cache(cache.path)
    kept = [n for n in range(count) if there.get(key_of(n=n)) is not None]
    assert largest <= limit and on_disk(cache.path) <= limit
    assert kept == list(range(kept[0], count))  # the youngest, without a gap
    assert sum(size for _ in kept) > limit // 20 and len(cache) == len(kept)


def test_a_file_of_the_first_version_is_read_and_made_smaller_when_a_limit_is_set(tmp_path):
    path = tmp_path / "results.sqlite"
    with sqlite3.connect(path) as old:  # as the first version made it
        old.execute(f"PRAGMA application_id = {0x46534348}")
        old.execute("PRAGMA user_version = 1")
        old.execute(
            "CREATE TABLE entries (key TEXT PRIMARY KEY, value BLOB NOT NULL, made REAL NOT NULL) WITHOUT ROWID"
        )
        old.executemany("INSERT INTO entries VALUES (?, ?, ?)", ((f"{n}", bytes(2000), n) for n in range(3000)))
    old.close()
    assert len(Cache(path)) == 3000
    limited = Cache(path, max_bytes=2_000_000)
    assert limited.get("2999") == bytes(2000) and limited.get("0") is None
    assert on_disk(path) <= 2_000_000 and len(limited) > 200
    limited.put("new", b"1")

    async def huge():
        return bytes(1_800_000)  # more than a tenth

    assert asyncio.run(limited.get_or_compute("huge", huge)) == (bytes(1_800_000), False)
    assert limited.get("huge") is None and limited.get("new") == b"1"
    limited.close()
    with sqlite3.connect(path) as raw:
        assert raw.execute("PRAGMA user_version").fetchone() == (1,)
        raw.execute("INSERT OR IGNORE INTO entries VALUES ('by the first version', x'00', 1.0)")
    assert Cache(path).get("by the first version") == b"\x00" and Cache(path).get("new") == b"1"


def test_threads_and_processes_that_fill_it_together_stay_within_the_limit(tmp_path):
    path, limit = tmp_path / "results.sqlite", 2_000_000
    code = (
        "import os, sys, threading; from faithful_search.wire.cache import Cache, key_of\n"
        "def fill(thread):\n"
        "    cache = Cache(sys.argv[1], 60, max_bytes=int(sys.argv[2]))\n"
        "    for n in range(250):\n"
        "        key = key_of(n=n, who=[sys.argv[3], thread]); cache.put(key, os.urandom(4000))\n"
        "        assert len(cache.get(key) or bytes(4000)) == 4000\n"
        "threads = [threading.Thread(target=fill, args=(n,)) for n in range(2)]\n"
        "[thread.start() for thread in threads]; [thread.join() for thread in threads]"
    )
    command = [sys.executable, "-c", code, str(path), str(limit)]
    running = [subprocess.Popen([*command, name], stderr=subprocess.PIPE, text=True) for name in "ab"]
    largest = 0
    while any(process.poll() is None for process in running):
        largest = max(largest, on_disk(path))
    assert [process.communicate()[1] for process in running] == ["", ""]
    assert 0 < largest <= limit
    cache = Cache(path)
    assert len(cache) > 50
    with sqlite3.connect(path) as raw:
        assert raw.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_who_has_waited_long_enough_does_the_work_itself():
    async def hang():
        await asyncio.sleep(600)

    async def work():
        return "done"

    async def ask():
        first = asyncio.create_task(once("slow", hang))
        await asyncio.sleep(0)
        found = await once("slow", work, wait=0.05)
        assert not first.done()
        first.cancel()
        return found

    assert asyncio.run(asyncio.wait_for(ask(), 30)) == ("done", False)


def test_a_time_out_of_the_one_at_work_is_heard_by_all_and_not_taken_for_the_end_of_their_own_wait():
    asked = []

    async def late():
        asked.append(1)
        await asyncio.sleep(0.02)
        raise TimeoutError

    async def scene():
        return await asyncio.gather(*(once("late", late, wait=20) for _ in range(3)), return_exceptions=True)

    assert [type(error) for error in asyncio.run(scene())] == [TimeoutError] * 3 and asked == [1]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_waits_for_nothing_that_its_parent_is_at():
    async def scene():
        async def work():
            child = os.fork()
            if child == 0:
                os._exit(len(single_flight._flights))
            return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

        return await once("at it", work)

    assert asyncio.run(scene()) == (0, False)
