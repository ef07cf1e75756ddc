"""Counters and histograms in the text format that Prometheus reads."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Sequence

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_SIZES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0)


class Counter:
    """A number for each combination of labels; only `gauge`s may go down."""

    def __init__(self, name: str, about: str, labels: Sequence[str] = (), kind: str = "counter") -> None:
        self.name, self.labels = name, tuple(labels)
        self._head = [f"# HELP {name} {about}", f"# TYPE {name} {kind}"]
        # without labels there is one number, which is shown as 0 before anything is counted
        self._values: dict[tuple[str, ...], float] = {} if labels else {(): 0.0}
        self._lock = threading.Lock()

    def add(self, amount: float = 1.0, *labels: str) -> None:
        """Add to the number of these labels' values."""
        with self._lock:
            self._values[labels] = self._values.get(labels, 0.0) + amount

    def value(self, *labels: str) -> float:
        """The number of these labels' values."""
        return self._values.get(labels, 0.0)

    def lines(self) -> list[str]:
        """As Prometheus reads it."""
        with self._lock:
            values = sorted(self._values.items())
        written = list(self._head)
        for labels, value in values:
            escaped = (text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") for text in labels)
            pairs = ",".join(f'{name}="{text}"' for name, text in zip(self.labels, escaped, strict=True))
            written.append(f"{self.name}{f'{{{pairs}}}' if pairs else ''} {value:.10g}")
        return written


class Histogram:
    """How many observations were at most how large."""

    def __init__(self, name: str, about: str, bounds: Sequence[float]) -> None:
        self.name, self.bounds = name, tuple(bounds)
        self._head = [f"# HELP {name} {about}", f"# TYPE {name} histogram"]
        self._counts, self._sum = [0] * (len(self.bounds) + 1), 0.0
        self._lock = threading.Lock()

    def observe(self, value: float) -> None:
        """Count one observation."""
        with self._lock:
            # left: a value that equals a bound counts below it, as `le` says
            self._counts[bisect_left(self.bounds, value)] += 1
            self._sum += value

    def lines(self) -> list[str]:
        """As Prometheus reads it: cumulative counts."""
        with self._lock:
            counts, total = list(self._counts), self._sum
        written, sofar = list(self._head), 0
        for bound, count in zip((*(f"{bound:g}" for bound in self.bounds), "+Inf"), counts, strict=True):
            sofar += count
            written.append(f'{self.name}_bucket{{le="{bound}"}} {sofar}')
        return [*written, f"{self.name}_sum {total:.10g}", f"{self.name}_count {sofar}"]


class Metrics:
    """What a server counts about itself."""

    def __init__(self) -> None:
        self.requests = Counter("faithful_search_requests_total", "Requests answered.", ("path", "status"))
        self.running = Counter("faithful_search_requests_running", "Requests being answered.", kind="gauge")
        self.seconds = Histogram("faithful_search_request_seconds", "Time to answer a request.", _SECONDS)

    def text(self) -> str:
        """All of it, for `GET /metrics`."""
        # the attributes are the metrics, those of a subclass after the common ones
        return "\n".join(line for item in vars(self).values() for line in item.lines()) + "\n"


class RetrievalMetrics(Metrics):
    """What a retrieval server counts besides."""

    def __init__(self) -> None:
        super().__init__()
        self.queries = Counter("faithful_search_queries_total", "Queries searched for.")
        self.batches = Histogram("faithful_search_batch_queries", "Different queries searched for at once.", _SIZES)
        self.passages = Counter("faithful_search_passages", "Passages in the index.", kind="gauge")


class JudgeMetrics(Metrics):
    """What a served judge counts besides. Identical pairs of one request count as known but for the first."""

    def __init__(self) -> None:
        super().__init__()
        self.pairs = Counter("faithful_search_pairs_total", "Pairs asked for.")
        self.judged = Counter("faithful_search_pairs_judged_total", "Pairs that the judge was asked about.")
        self.known = Counter("faithful_search_pairs_known_total", "Pairs answered with a verdict there was already.")
        self.abstained = Counter("faithful_search_pairs_abstained_total", "Pairs answered without a verdict.")
        self.batches = Histogram("faithful_search_batch_pairs", "Different pairs judged at once.", _SIZES)
        self.judging = Histogram("faithful_search_judge_seconds", "Time to judge a batch.", _SECONDS)
