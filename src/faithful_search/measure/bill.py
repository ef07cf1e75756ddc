"""What it would take to have a paid judge read a file, before anything is asked."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from typing import Any

import msgspec

from ..errors import ConfigError
from ..judges.endpoint import EndpointJudge
from .audit import metrics_of
from .files import STDIN, PathLike, local_file, total_rows
from .rows import Source
from .scores import Scorer
from .settings import AuditSettings
from .workers import chunks

READ = 512
"""Rows that are read for an estimate; those of a longer file are taken to be like its first ones."""
_SECONDS = 1.0
"""What a request is taken to last: nothing is known of the server."""


class Bill(msgspec.Struct, frozen=True):
    """An estimate from `read` of `rows` (`None`: too many to count); `hits` are answers in the judge's cache."""

    read: int
    rows: int | None
    calls: int
    hits: int
    prompt_tokens: int
    completion_tokens: int
    cost: float
    seconds: float

    def __str__(self) -> str:
        basis = "" if self.rows == self.read else f", from the first {self.read:,}"
        rows = f"{self.rows:,} rows{basis}" if self.rows is not None else f"the first {self.read:,} rows alone"
        cost = f"cost {self.cost:.4f}" if self.cost else "its cost unknown without --judge-prices"
        kept = f" ({self.hits:,} answers are in the cache)" if self.hits else ""
        return (
            f"{rows}: about {self.calls:,} calls{kept}, {self.prompt_tokens:,} + {self.completion_tokens:,} tokens, "
            f"{cost}, {self.seconds / 60:.1f} min if a call takes {_SECONDS:g} s; 4 characters are taken for a token"
        )


def bill(source: PathLike, judge: EndpointJudge, **settings: Any) -> Bill:
    """Estimate what a new audit with this judge and these settings takes; nothing is asked. Raises as `audit` does."""
    if str(source) == STDIN:
        raise ConfigError("the standard input can be read only once: save it to a file for an estimate")
    given, path, dry = AuditSettings(**settings), local_file(source), replace(judge, dry=True, on_progress=None)
    rows = Source(path, given.dialect, given.text_column, given.limit)
    scorer, read = Scorer(metrics_of(given, dry), dry, given.how, None, rows.reader), 0
    for batch in chunks(islice(rows, READ), 64):
        scorer.score(batch)
        read += len(batch)
    # A file that was read to its end need not be counted
    total = read if read < READ else total_rows([path], given.limit)
    times, stats = (total or read) / read, dry.stats
    dry.close()
    names = ("calls", "hits", "prompt_tokens", "completion_tokens")
    counted = {name: round(times * getattr(stats, name)) for name in names}
    seconds = counted["calls"] * _SECONDS / judge.concurrency
    return Bill(read, total, **counted, cost=times * stats.cost, seconds=seconds)
