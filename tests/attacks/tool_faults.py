"""Every way in which Python lets a tool go wrong: what it returns, what it raises, what it does to its caller."""

import asyncio
import contextvars
import math
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError as FutureCancelled, ThreadPoolExecutor
from typing import Any

from faithful_search.errors import ConfigError, DataError, ToolError
from faithful_search.tools.base import Partial
from faithful_search.trajectory import Evidence

SECRET = "s3cr3t-key-0815"
ADDRESS = f"http://admin:{SECRET}@10.0.0.7:8080/?key={SECRET}"
MEGABYTE = 1_000_000


def _fails(*_: Any, **__: Any) -> Any:
    raise RuntimeError(ADDRESS)


def _exits(self: object) -> str:
    raise SystemExit(3)


def _again(self: object) -> Any:
    while True:
        yield Evidence("again")


def _odd(base: type, **members: Any) -> Any:
    """A class of this kind, some of whose members misbehave."""
    return type("Odd", (base,), members)


PanicException = type("PanicException", (BaseException,), {})  # as Rust extensions raise it
Mute = _odd(Exception, __str__=_fails, __repr__=_fails)
Murderous = _odd(Exception, __str__=_exits, __repr__=_exits)
Numb = _odd(Exception, __str__=lambda self: 7)
Masked = _odd(Exception, __class__=property(_fails))
Unnamed = _odd(type, __name__=property(_fails))("Unnamed", (Exception,), {})
Hollow = _odd(ToolError, __init__=lambda self: None, __getattribute__=_fails)
Rows = _odd(list, __iter__=_fails)
Endless = _odd(list, __iter__=_again)
Word = _odd(str, **dict.fromkeys(("__len__", "__str__", "__getitem__", "__iter__", "encode", "split"), _fails))
Lazy = _odd(Evidence, __getattribute__=_fails)


def _raised(error: Callable[[], BaseException]) -> Callable[[], Any]:
    async def fault() -> Any:
        raise error()

    return fault


def _returned(value: Callable[[], Any]) -> Callable[[], Any]:
    async def fault() -> Any:
        return value()

    return fault


def _in_a_thread(error: Callable[[], BaseException]) -> Callable[[], Any]:
    """A synchronous tool: what waits runs on a thread."""

    def work() -> Any:
        raise error()

    async def fault() -> Any:
        return await asyncio.to_thread(work)

    return fault


def _in_its_own_pool(error: Callable[[], BaseException]) -> Callable[[], Any]:
    def work() -> Any:
        raise error()

    async def fault() -> Any:
        with ThreadPoolExecutor(1) as pool:
            return await asyncio.get_running_loop().run_in_executor(pool, work)

    return fault


def _in_a_task(error: Callable[[], BaseException]) -> Callable[[], Any]:
    async def fault() -> Any:
        return await asyncio.create_task(_raised(error)())

    return fault


def _in_a_group(error: Callable[[], BaseException]) -> Callable[[], Any]:
    async def fault() -> Any:
        async with asyncio.TaskGroup() as group:
            group.create_task(_raised(error)())
            group.create_task(asyncio.sleep(0.05))

    return fault


async def _left_behind() -> Any:
    """Fails after it has answered."""

    def end() -> None:
        raise KeyboardInterrupt

    asyncio.get_running_loop().call_soon(end)
    raise RuntimeError(ADDRESS)


async def _stops_the_loop() -> Any:
    asyncio.get_running_loop().stop()
    raise RuntimeError(ADDRESS)


async def _closes_the_loop() -> Any:
    asyncio.get_running_loop().close()


async def _cancels_itself() -> Any:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(5)


async def _hears_no_end() -> Any:
    try:
        await asyncio.sleep(0)
    finally:
        return None  # noqa: B012


async def _too_deep() -> Any:
    async def deeper() -> Any:
        return await deeper()

    return await deeper()


async def _generator() -> Any:
    return (Evidence(str(number)) for number in range(3))


def _chained() -> BaseException:
    error = RuntimeError(ADDRESS)
    error.__cause__ = error.__context__ = ValueError(ADDRESS)
    error.add_note(ADDRESS)
    return error


ERRORS: dict[str, Callable[[], BaseException]] = {
    "runtime": lambda: RuntimeError(ADDRESS),
    "chained": _chained,
    "key": lambda: KeyError(ADDRESS),
    "bytes": lambda: ValueError(b"\xff" + ADDRESS.encode()),
    "no text": lambda: ValueError(),
    "half a character": lambda: ValueError("\ud800"),
    "unicode": lambda: UnicodeDecodeError("utf-8", b"\xff", 0, 1, ADDRESS),
    "memory": lambda: MemoryError(ADDRESS),
    "recursion": lambda: RecursionError(ADDRESS),
    "assertion": lambda: AssertionError(),
    "system": lambda: SystemError(ADDRESS),
    "warning": lambda: UserWarning(ADDRESS),
    "stop": lambda: StopIteration(ADDRESS),
    "stop async": lambda: StopAsyncIteration(ADDRESS),
    "generator exit": lambda: GeneratorExit(ADDRESS),
    "exit": lambda: SystemExit(ADDRESS),
    "interrupt": lambda: KeyboardInterrupt(ADDRESS),
    "base": lambda: BaseException(ADDRESS),
    "panic": lambda: PanicException(ADDRESS),
    "cancelled": lambda: asyncio.CancelledError(ADDRESS),
    "future cancelled": lambda: FutureCancelled(ADDRESS),
    "invalid state": lambda: asyncio.InvalidStateError(ADDRESS),
    "group": lambda: ExceptionGroup(ADDRESS, [RuntimeError(ADDRESS), ToolError(ADDRESS)]),
    "base group": lambda: BaseExceptionGroup(ADDRESS, [KeyboardInterrupt(ADDRESS), GeneratorExit()]),
    "mute": Mute,
    "murderous": Murderous,
    "numb": Numb,
    "masked": Masked,
    "unnamed": Unnamed,
    "long name": lambda: type("N" * MEGABYTE, (Exception,), {})(ADDRESS),
    "secret name": lambda: type(ADDRESS, (Exception,), {})(),
    "long": lambda: ValueError(SECRET + "x" * 10 * MEGABYTE),
    "long key": lambda: KeyError("\x00" * 10 * MEGABYTE),
    "many arguments": lambda: ValueError(*range(MEGABYTE)),
    "config": lambda: ConfigError(ADDRESS),
    "data": lambda: DataError(ADDRESS),
    "said": lambda: ToolError("There is no such page."),
    "said nothing": lambda: ToolError(),
    "said something odd": lambda: ToolError(object),  # type: ignore[arg-type]
    "said much": lambda: ToolError("x" * 10 * MEGABYTE),
    "said a key": lambda: ToolError(f"401 for {SECRET}"),
    "said half a character": lambda: ToolError("\udfff"),
    "hollow": Hollow,
    "soon": lambda: ToolError("Busy.", passing=True, retry_after="soon"),  # type: ignore[arg-type]
    "never": lambda: ToolError("Busy.", passing=True, retry_after=math.nan),
    "before": lambda: ToolError("Busy.", passing=True, retry_after=-math.inf),
}
PASSING: dict[str, Callable[[], BaseException]] = {  # tried again
    "lost": lambda: ConnectionResetError(104, "reset by ('10.0.0.7', 443)"),
    "no number": lambda: OSError(2**70, ADDRESS),
    "no errno": lambda: OSError(ADDRESS, ADDRESS, ADDRESS),
    "late": lambda: TimeoutError(ADDRESS),
}
_VALUES: dict[str, Callable[[], Any]] = {
    "nothing": lambda: None,
    "text": lambda: ADDRESS,
    "bytes": lambda: b"<html>",
    "dict": lambda: {"text": ADDRESS},
    "rows": lambda: [{"text": ADDRESS}],
    "none in a list": lambda: [Evidence("x"), None],
    "the class": lambda: [Evidence],
    "no text": lambda: [Evidence(None)],  # type: ignore[arg-type]
    "bytes as text": lambda: [Evidence(b"x")],  # type: ignore[arg-type]
    "list as text": lambda: [Evidence(["x"])],  # type: ignore[list-item,arg-type]
    "no title": lambda: [Evidence("x", None)],  # type: ignore[arg-type]
    "number as source": lambda: [Evidence("x", source=7)],  # type: ignore[arg-type]
    "no url": lambda: [Evidence("x", url=None)],  # type: ignore[arg-type]
    "text as score": lambda: [Evidence("x", score="0.5")],  # type: ignore[arg-type]
    "complex score": lambda: [Evidence("x", score=1j)],  # type: ignore[arg-type]
    "huge score": lambda: [Evidence("x", score=10**400)],
    "no partial": lambda: Partial([None]),  # type: ignore[list-item]
    "rows that are not read": lambda: Rows([Evidence("x")]),
    "lazy": lambda: [Lazy("x")],
    "context": contextvars.copy_context,
    "lock": threading.Lock,
}
_DEEDS: dict[str, Callable[[], Any]] = {
    "left behind": _left_behind, "stops the loop": _stops_the_loop, "closes the loop": _closes_the_loop,
    "cancels itself": _cancels_itself, "hears no end": _hears_no_end, "too deep": _too_deep, "generator": _generator,
}  # fmt: skip
_ELSEWHERE = {"in a thread": _in_a_thread, "in a task": _in_a_task, "in a group": _in_a_group}
_UNSPEAKABLE = ("masked", "hollow")
_CARRIED = [name for name in ERRORS if name not in _UNSPEAKABLE]
FAULTS: dict[str, Callable[[], Any]] = {
    **{f"raises {name}": _raised(error) for name, error in (ERRORS | PASSING).items()},
    **{f"raises {name} {where}": made(ERRORS[name]) for where, made in _ELSEWHERE.items() for name in _CARRIED},
    **{f"raises {name} in a pool": _in_its_own_pool(ERRORS[name]) for name in ("interrupt", "exit", "panic", "mute")},
    **{f"returns {name}": _returned(value) for name, value in _VALUES.items()},
    **_DEEDS,
}
"""Each is called without arguments and awaited; it ends at once, one way or another."""

HANGING: dict[str, Callable[[], Any]] = {
    f"raises {name} {where}": made(ERRORS[name]) for where, made in _ELSEWHERE.items() for name in _UNSPEAKABLE
}
"""asyncio itself cannot carry these errors from one task to another: who waits for one waits for ever."""

LARGE: dict[str, Callable[[], list[Evidence]]] = {
    "texts": lambda: [Evidence("x" * 50 * MEGABYTE)] * 20,
    "titles": lambda: [Evidence("x", "t" * 10 * MEGABYTE, url="u" * 10 * MEGABYTE, source="s" * MEGABYTE)],
    "many": lambda: [Evidence("x")] * MEGABYTE,
    "endless": Endless,
    "words": lambda: [Evidence(Word("a word"), Word("a title"))],
    "no number": lambda: [Evidence("x", score=math.nan), Evidence("y", score=math.inf)],
    "half characters": lambda: [Evidence("\ud800", "\udfff")],
}
"""What is odd and can be shown all the same."""
