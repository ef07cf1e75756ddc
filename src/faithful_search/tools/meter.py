"""What is counted of a tool's calls."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np

LATEST = 512
"""Of how many calls the durations are remembered."""
_COUNTS = ("calls", "hits", "errors", "refused", "retries", "made", "seconds")


@dataclass(frozen=True)
class ToolStats:
    """What one tool was asked.

    The difference of two, the later one first, counts what was asked in between.

    Attributes:
        calls: all of them.
        hits: those answered from a cache, a cassette, or by another call for the same that was under way.
        errors: those that ended in a note of what went wrong.
        refused: the errors of calls that were not made because the tool is out of order.
        retries: attempts after the first.
        made: calls that reached the tool.
        seconds: what these took, retries included and waiting for a turn excluded, summed.
        latest: seconds of the latest of them, at most `LATEST`, oldest first.

    Example:
        >>> ToolStats(calls=3, made=3, latest=(0.1, 0.2, 0.9)).p50
        0.2
    """

    calls: int = 0
    hits: int = 0
    errors: int = 0
    refused: int = 0
    retries: int = 0
    made: int = 0
    seconds: float = 0.0
    latest: tuple[float, ...] = ()

    @property
    def p50(self) -> float | None:
        """Half of the latest calls took no longer, in seconds; `None` when there were none."""
        return self._quantile(0.5)

    @property
    def p95(self) -> float | None:
        """19 of 20 of the latest calls took no longer, in seconds; `None` when there were none."""
        return self._quantile(0.95)

    def __sub__(self, earlier: ToolStats) -> ToolStats:
        counts = {name: getattr(self, name) - getattr(earlier, name) for name in _COUNTS}
        return ToolStats(**counts, latest=self.latest[-counts["made"] :] if counts["made"] else ())

    def _quantile(self, share: float) -> float | None:
        return float(np.quantile(self.latest, share)) if self.latest else None


class Meter:
    """Counts one tool's calls, from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[str, Any] = dict.fromkeys(_COUNTS, 0)
        # of the latest alone: a run of days must not grow, and its first hour says nothing about now
        self._latest: deque[float] = deque(maxlen=LATEST)

    def count(self, *, hit: bool = False, error: bool = False, refused: bool = False) -> None:
        """One call was answered."""
        with self._lock:
            self._counts["calls"] += 1
            self._counts["hits"] += hit
            self._counts["errors"] += error
            self._counts["refused"] += refused

    def took(self, seconds: float, attempts: int) -> None:
        """One call reached the tool and took so long."""
        with self._lock:
            self._counts["made"] += 1
            self._counts["seconds"] += seconds
            self._counts["retries"] += max(0, attempts - 1)
            self._latest.append(seconds)

    def stats(self) -> ToolStats:
        """The counts up to now."""
        with self._lock:
            return ToolStats(**self._counts, latest=tuple(self._latest))
