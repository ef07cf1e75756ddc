"""Every way in which Python lets a tool go wrong: what it returns, what it raises, what it does to
its caller.
"""

import asyncio
import contextvars
import itertools
import math
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import CancelledError as FutureCancelled, ThreadPoolExecutor
from functools import partial
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
Endless = _odd(list, __iter__=lambda self: itertools.repeat(Evidence("again")))
Word = _odd(
    str,
    **dict.fromkeys(("__len__", "__str__", "__getitem__", "__iter__", "encode", "split"), _fails),
)
Lazy = _odd(Evidence, __getattribute__=_fails)

Error = Callable[[], BaseException]
Fault = Callable[[], Awaitable[Any]]


def _work(error: Error) -> Any:
    raise error()


async def _raise(error: Error) -> Any:
    raise error()


async def _in_a_thread(error: Error) -> Any:
    """A synchronous tool: what waits runs on a thread."""
    return await asyncio.to_thread(_work, error)


async def _in_a_pool(error: Error) -> Any:
    with ThreadPoolExecutor(1) as pool:
        return await asyncio.get_running_loop().run_in_executor(pool, _work, error)


async def _in_a_task(error: Error) -> Any:
    return await asyncio.create_task(_raise(error))


async def _in_a_group(error: Error) -> Any:
    async with asyncio.TaskGroup() as group:
        group.create_task(_raise(error))
        group.create_task(asyncio.sleep(0.05))


async def _return(value: Callable[[], Any]) -> Any:
    return value()


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


_KINDS = (
    *(
        RuntimeError,
        KeyError,
        MemoryError,
        RecursionError,
        SystemError,
        UserWarning,
        StopIteration,
        StopAsyncIteration,
    ),
    *(
        GeneratorExit,
        SystemExit,
        KeyboardInterrupt,
        BaseException,
        PanicException,
        asyncio.CancelledError,
    ),
    *(asyncio.InvalidStateError, ConfigError, DataError),
)
ERRORS: dict[str, Error] = {
    **{kind.__name__: partial(kind, ADDRESS) for kind in _KINDS},
    "future cancelled": lambda: FutureCancelled(ADDRESS),
    "chained": _chained,
    "bytes": lambda: ValueError(b"\xff" + ADDRESS.encode()),
    "no text": ValueError,
    "assertion": AssertionError,
    "half a character": lambda: ValueError("\ud800"),
    "unicode": lambda: UnicodeDecodeError("utf-8", b"\xff", 0, 1, ADDRESS),
    "group": lambda: ExceptionGroup(ADDRESS, [RuntimeError(ADDRESS), ToolError(ADDRESS)]),
    "base group": lambda: BaseExceptionGroup(
        ADDRESS, [KeyboardInterrupt(ADDRESS), GeneratorExit()]
    ),
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
    "said": lambda: ToolError("There is no such page."),
    "said nothing": ToolError,
    "said something odd": lambda: ToolError(object),  # type: ignore[arg-type]
    "said much": lambda: ToolError("x" * 10 * MEGABYTE),
    "said a key": lambda: ToolError(f"401 for {SECRET}"),
    "said half a character": lambda: ToolError("\udfff"),
    "hollow": Hollow,
    **{
        f"busy for {after}": partial(ToolError, "Busy.", transient=True, retry_after=after)
        for after in ("soon", math.nan, -math.inf)
    },
    # tried again
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
_DEEDS: dict[str, Fault] = {
    "left behind": _left_behind, "stops the loop": _stops_the_loop, "closes the loop": _closes_the_loop,
    "cancels itself": _cancels_itself, "hears no end": _hears_no_end, "too deep": _too_deep, "generator": _generator,
}  # fmt: skip
_ELSEWHERE = {"in a thread": _in_a_thread, "in a task": _in_a_task, "in a group": _in_a_group}
_RAISED: dict[str, Fault] = {
    f"raises {name} {where}": partial(raises, error)
    for where, raises in _ELSEWHERE.items()
    for name, error in ERRORS.items()
}
HANGING = {way: fault for way, fault in _RAISED.items() if way.split()[1] in ("masked", "hollow")}
"""asyncio itself cannot carry these errors from one task to another: who waits for one waits for
ever.
"""

FAULTS: dict[str, Fault] = {
    **{f"raises {name}": partial(_raise, error) for name, error in ERRORS.items()},
    **{way: fault for way, fault in _RAISED.items() if way not in HANGING},
    **{
        f"raises {name} in a pool": partial(_in_a_pool, ERRORS[name])
        for name in ("KeyboardInterrupt", "SystemExit", "PanicException", "mute")
    },
    **{f"returns {name}": partial(_return, value) for name, value in _VALUES.items()},
    **_DEEDS,
}
"""Each is called without arguments and awaited; it ends at once, one way or another."""

LARGE: dict[str, Callable[[], list[Evidence]]] = {
    "texts": lambda: [Evidence("x" * 50 * MEGABYTE)] * 20,
    "titles": lambda: [
        Evidence("x", "t" * 10 * MEGABYTE, url="u" * 10 * MEGABYTE, source="s" * MEGABYTE)
    ],
    "many": lambda: [Evidence("x")] * MEGABYTE,
    "endless": Endless,
    "words": lambda: [Evidence(Word("a word"), Word("a title"))],
    "no number": lambda: [Evidence("x", score=math.nan), Evidence("y", score=math.inf)],
    "half characters": lambda: [Evidence("\ud800", "\udfff")],
}
"""What is odd and can be shown all the same."""
