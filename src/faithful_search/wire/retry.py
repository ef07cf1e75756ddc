"""Transient failures: which they are, how long to wait before the next try, when to leave a service
alone.
"""

import asyncio
import email.utils
import math
import random
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from ..errors import ConfigError

T = TypeVar("T")

TRANSIENT = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 520, 521, 522, 523, 524, 529})
"""HTTP statuses after which the same request may succeed; 52x are Cloudflare's, 529 is that of
overloaded models.
"""


def transient(error: BaseException) -> bool:
    """Whether to make the same call again a little later: the error says so (`transient`), or is
    the network's, and whoever raised it has not retried already (`retried`), since two layers must
    not multiply their retries.
    """
    return bool(getattr(error, "transient", isinstance(error, OSError))) and not getattr(
        error, "retried", False
    )


def cancelled() -> bool:
    """Whether the running task was asked to end."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def retry_after(header: str | None) -> float | None:
    """Seconds that a server asks to wait, by a number or a date; `None` when it did not ask."""
    value = (header or "").strip()
    try:
        # Python also reads the digits of other scripts
        seconds = float(value) if value.isascii() else math.nan
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(value).timestamp() - time.time()
        except (ValueError, TypeError, OverflowError):
            return None
    return max(0.0, seconds) if math.isfinite(seconds) else None


@dataclass(frozen=True)
class Patience:
    """How often and after which pauses a call is made again.

    Args:
        retries: calls after the first.
        first: longest pause before the first retry, in seconds; it doubles with each.
        longest: longest pause before any, in seconds; a service that asks for more is not called
            again.
    """

    retries: int = 2
    first: float = 0.5
    longest: float = 8.0

    def __post_init__(self) -> None:
        if min(self.retries, self.first, self.longest) < 0:
            raise ConfigError(f"retries, first and longest must not be negative; got {self}")

    async def persist(
        self,
        attempt: Callable[[], Awaitable[T]],
        deadline: float | None = None,
        on_retry: Callable[[], object] = lambda: None,
    ) -> T:
        """The result of `attempt`, called again after a transient failure while retries and time
        are left.

        No pause is begun that would end after `deadline` (`time.monotonic`), and none by a task
        that is cancelled, whatever failure `attempt` made of the cancellation. `on_retry` is called
        before each pause.
        """
        for retry in range(1, self.retries + 1):
            try:
                return await attempt()
            except Exception as error:
                pause = self.pause(retry, error)
                late = (
                    deadline is not None
                    and pause is not None
                    and time.monotonic() + pause >= deadline
                )
                if pause is None or late or cancelled():
                    raise
            on_retry()
            await asyncio.sleep(pause)
        return await attempt()

    def pause(self, retry: int, error: BaseException) -> float | None:
        """Seconds to wait before the retry of this number, from 1; `None` where another call is of
        no use.
        """
        wished = getattr(error, "retry_after", None) or 0.0
        if not transient(error) or wished > self.longest:
            return None
        if wished:  # and a little later than all the others
            return wished * random.uniform(1.0, 1.1)
        # full jitter: callers that failed together do not come back together; and 2.0 ** 1024 would
        # overflow
        return random.uniform(0, min(self.longest, self.first * 2.0 ** min(retry - 1, 60)))


class Breaker:
    """Keeps callers from a service that has failed `failures` times in a row. After `cooldown`
    seconds one call is let through: its success lets all through again; its failure, or silence for
    as long, starts over. Thread-safe.
    """

    def __init__(self, failures: int = 5, cooldown: float = 30.0) -> None:
        if failures < 1 or cooldown <= 0:
            raise ConfigError(f"failures and cooldown must be positive; got {failures}, {cooldown}")
        self._failures, self._cooldown, self._lock = failures, cooldown, threading.Lock()
        self._in_a_row, self._until, self._answered = 0, 0.0, -math.inf

    @property
    def remaining(self) -> float:
        """Seconds for which callers have to leave the service alone; asking does not make one the
        trial call.
        """
        return max(0.0, self._until - time.monotonic()) if self._in_a_row >= self._failures else 0.0

    def refusal(self) -> float:
        """As `remaining`, for a caller that makes its call at 0.0: it becomes the trial call where
        one is due.
        """
        with self._lock:
            remaining = self.remaining
            if not remaining:
                self._until = (
                    time.monotonic() + self._cooldown
                )  # the others wait for what this caller learns
            return remaining

    def succeeded(self) -> None:
        with self._lock:
            self._in_a_row, self._answered = 0, time.monotonic()

    def failed(self, since: float | None = None) -> None:
        """Count a transient failure, unless the service has answered another call since this one
        began, at `since`: then it says something about the call.
        """
        with self._lock:
            if since is None or since >= self._answered:
                self._in_a_row, self._until = self._in_a_row + 1, time.monotonic() + self._cooldown
