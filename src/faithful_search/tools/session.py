"""One rollout's part of a toolbox: the ids of its evidence and its calls that are under way."""

import asyncio
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import msgspec

from ..trajectory import Evidence
from .base import NO_RESULTS, Observation


class Session:
    """Numbers the evidence of one rollout, `E1`, `E2`, … running on across its calls, and ends with it.

    Args:
        edits: texts that this rollout reads in the place of others, `None` for a passage it does not see; see
            `Task.edits`. They are applied behind the cache and the cassette, which hold what the tools returned.
    """

    def __init__(self, edits: Mapping[str, str | None] | None = None) -> None:
        self.given, self.closed, self.edits = 0, False, edits or {}
        self._lock = threading.Lock()
        self._tasks: set[asyncio.Future[Any]] = set()

    def number(self, observation: Observation) -> Observation:
        """The same observation with the next ids on its evidence, edited."""
        named: list[Evidence] = []
        for item in observation.evidence:
            text = self.edits.get(item.text, item.text)
            if text is not None:
                self.given += 1
                named.append(msgspec.structs.replace(item, text=text, id=f"E{self.given}"))
        # in this rollout's world nothing was found
        note = NO_RESULTS.note if observation.evidence and not named else observation.note
        return msgspec.structs.replace(observation, evidence=tuple(named), note=note)

    def close(self) -> None:
        """The rollout has ended: its running calls are cancelled, later ones are answered with a note."""
        with self._lock:
            self.closed = True
            tasks = list(self._tasks)
        # outside of the lock: cancelling may run callbacks that want it
        for task in tasks:
            with suppress(RuntimeError):  # the loop of an abandoned call may be closed
                task.get_loop().call_soon_threadsafe(task.cancel)

    @contextmanager
    def running(self, task: asyncio.Future[Any]) -> Iterator[None]:
        """While the block runs `close` cancels `task`; leaving the block cancels it too."""
        with self._lock:
            self._tasks.add(task)
            if self.closed:
                task.cancel()
        try:
            yield
        finally:
            task.cancel()
            with self._lock:
                self._tasks.discard(task)
