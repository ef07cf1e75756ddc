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
    """Whether to make the same call again a little later.

    An error says so by its attribute `transient`; one that has none is transient where it is the
    network's. An error that is marked as `retried` is not: two layers must not multiply their
    retries.
    """
    if getattr(error, "retried", False):
        return False
    return bool(getattr(error, "transient", isinstance(error, OSError)))


def cancelled() -> bool:
    """Whether the running task was asked to end."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def retry_after(header: str | None) -> float | None:
    """Seconds that a server asks to wait, by a number or a date; `None` when it did not ask."""
    value = (header or "").strip()
    try:
        # `float` would also read the digits of other scripts, which no header has.
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
        retries: number of retries of a call that failed for a transient reason.
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
        are left. The last failure is raised.

        Args:
            deadline: no pause is begun that would end after it (`time.monotonic`).
            on_retry: called before each pause.
        """
        for retry in range(1, self.retries + 1):
            try:
                return await attempt()
            except Exception as error:
                pause = self.pause(retry, error)
                if pause is None:
                    raise
                if deadline is not None and time.monotonic() + pause >= deadline:
                    raise
                if cancelled():  # `attempt` may have made another failure of the cancellation
                    raise
            on_retry()
            await asyncio.sleep(pause)
        return await attempt()

    def pause(self, retry: int, error: BaseException) -> float | None:
        """Seconds to wait before a retry; `None` where another call is of no use.

        Args:
            retry: 1 for the first.
            error: how the call before it failed.
        """
        seconds_asked_for = getattr(error, "retry_after", None) or 0.0
        if not transient(error) or seconds_asked_for > self.longest:
            return None
        if seconds_asked_for:
            # A little longer, each caller another while: they must not come back all at once.
            return seconds_asked_for * random.uniform(1.0, 1.1)
        doublings = min(retry - 1, 60)  # 2.0 ** 1024 would overflow
        longest = min(self.longest, self.first * 2.0**doublings)
        # From 0 ("full jitter"): callers that failed together do not come back together.
        return random.uniform(0, longest)


class Breaker:
    """Keeps callers from a service that goes on failing. Thread-safe.

    Args:
        failures: transient failures in a row after which no more calls are let through.
        cooldown: seconds until one is, as a trial. Its success lets all through again; its failure,
            or no outcome for as long, begins another cooldown.
    """

    def __init__(self, failures: int = 5, cooldown: float = 30.0) -> None:
        if failures < 1 or cooldown <= 0:
            raise ConfigError(f"failures and cooldown must be positive; got {failures}, {cooldown}")
        self._failures = failures
        self._cooldown = cooldown
        self._lock = threading.Lock()
        self._failures_in_a_row = 0
        # By `time.monotonic`: when the cooldown ends, and when a call last succeeded
        self._cooldown_end = 0.0
        self._last_success = -math.inf

    @property
    def remaining(self) -> float:
        """Seconds for which callers have to leave the service alone; 0.0 where they may call.

        To look at it takes no trial call from anybody.
        """
        if self._failures_in_a_row < self._failures:
            return 0.0
        return max(0.0, self._cooldown_end - time.monotonic())

    def refusal(self) -> float:
        """`remaining`, for a caller that makes its call if this is 0.0: that may be the trial."""
        with self._lock:
            remaining = self.remaining
            if not remaining:
                # During a cooldown this caller is the trial: the others wait for its outcome.
                self._cooldown_end = time.monotonic() + self._cooldown
            return remaining

    def succeeded(self) -> None:
        """Let all callers through again."""
        with self._lock:
            self._failures_in_a_row = 0
            self._last_success = time.monotonic()

    def failed(self, since: float | None = None) -> None:
        """Count a transient failure.

        Args:
            since: when the call began (`time.monotonic`). Where another call has succeeded since,
                the failure says something about this call and not about the service, and does not
                count.
        """
        with self._lock:
            if since is None or since >= self._last_success:
                self._failures_in_a_row += 1
                self._cooldown_end = time.monotonic() + self._cooldown
