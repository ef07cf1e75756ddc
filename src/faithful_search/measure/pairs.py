"""The pairs of texts in trajectories, as the rewards cut them."""

from __future__ import annotations

import hashlib
import heapq
import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import get_args

import msgspec

from .. import rewards
from ..errors import ConfigError
from ..judges import GroundingJudge, Judge, Pair
from ..rewards.judged import Asked, JudgedReward
from ..trajectory import Trajectory
from .failures import told
from .rows import READER, Raw, Reader
from .settings import PairMetric

METRICS = get_args(PairMetric)


class Cut(msgspec.Struct, frozen=True):
    """A pair to be judged: `id` is its digest; `trajectory` (FILE:ROW) and `step` (from 1) are where it was met."""

    id: str
    pair: Pair
    source: str
    trajectory: str
    step: int


class Cuts(msgspec.Struct, frozen=True):
    """What a batch of rows gave.

    Attributes:
        rows: how many rows it had.
        cuts: the pairs that a judge is asked about.
        settled: pairs that need none: an action without a thought after a response.
        unread: rows without pairs because they could not be read, and why.
        unsplit: answers that the judge could make no claims of, and why.
        dialects: trajectories of each dialect.
    """

    rows: int
    cuts: list[Cut]
    settled: int
    unread: list[str]
    unsplit: list[str]
    dialects: dict[str, int]


@dataclass(frozen=True)
class Cutter:
    """Cuts batches of a file's rows. Picklable where its judge is.

    Args:
        metric: one of `METRICS`, whose reward says what the pairs are.
        judge: asked only to make claims of answers (`answer_support`), where it can write.
        source: what the file is called in the rows.
        reader: reads its rows.
    """

    metric: str
    judge: Judge | None = None
    source: str = ""
    reader: Reader = READER

    @cached_property
    def reward(self) -> JudgedReward:
        """What cuts the pairs."""
        return reward(self.metric, self.judge)

    def __call__(self, batch: Sequence[Raw]) -> Cuts:
        """The pairs of these rows; raises nothing that a row did."""
        rows = [self.reader(raw) for raw in batch]
        read = [(row.number, row.trajectory) for row in rows if row.trajectory is not None]
        asked, failed = self._asked(read)
        settled = [(number, item.settled) for number, item in asked if item.settled is not None]
        return Cuts(
            rows=len(rows),
            cuts=[
                Cut(pair_id(item.pair), item.pair, self.source, f"{self.source}:{number}", item.step)
                for number, item in asked
                if item.settled is None
            ],
            settled=sum(not verdict.abstained for _, verdict in settled),
            unread=[*(f"row {row.number}: {row.error}" for row in rows if row.trajectory is None), *failed],
            unsplit=[f"row {number}: {verdict.why}" for number, verdict in settled if verdict.abstained],
            dialects=dict(Counter(trajectory.dialect or "unknown" for _, trajectory in read)),
        )

    def _asked(self, read: Sequence[tuple[int, Trajectory]]) -> tuple[list[tuple[int, Asked]], list[str]]:
        """What is asked about each row. A row that the reward fails on is named and costs the others nothing."""
        try:
            found = self.reward.pairs_batch([trajectory for _, trajectory in read])
        except Exception as error:
            if len(read) == 1:
                return [], [f"row {read[0][0]}: failed: {told(self.metric, error)}"]
            alone = [self._asked([row]) for row in read]
            return [item for own, _ in alone for item in own], [why for _, own in alone for why in own]
        return [(number, item) for (number, _), own in zip(read, found, strict=True) for item in own], []


def reward(metric: str, judge: Judge | None = None) -> JudgedReward:
    """The reward that cuts a metric's pairs, with a judge; by default its own, or the comparison of words.

    Raises:
        ConfigError: for a metric that has no pairs.

    Example:
        >>> reward("think_answer").judge.name
        'lexical'
    """
    if metric not in METRICS:
        raise ConfigError(f"{metric!r} has no pairs to label; there are: {', '.join(METRICS)}")
    kind: Callable[..., JudgedReward] = rewards.load(metric)  # type: ignore[assignment]
    return kind(judge=judge or kind().judge or GroundingJudge())


def pair_id(pair: Pair) -> str:
    """A digest of what a judge reads: equal pairs are one row of a dataset.

    Example:
        >>> pair_id(Pair("It rained.", "Rain fell."))
        'd871cdde70cb03ff'
    """
    text = json.dumps([pair.premise, pair.hypothesis, pair.question, pair.task])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def sampled(cuts: Iterable[Cut], count: int, seed: int) -> list[Cut]:
    """`count` different pairs, chosen by the hash of seed and id, in the order they came.

    A larger sample contains the smaller ones. Memory holds `count` pairs, so the files may be larger than memory.
    """
    kept: list[tuple[int, int, Cut]] = []
    ids: set[str] = set()
    for place, cut in enumerate(cuts):
        if cut.id in ids:
            continue
        rank = -int(hashlib.sha256(f"{seed} {cut.id}".encode()).hexdigest(), 16)
        ids.add(cut.id)
        heapq.heappush(kept, (rank, place, cut))
        if len(kept) > count:
            ids.remove(heapq.heappop(kept)[2].id)
    return [cut for _, _, cut in sorted(kept, key=lambda entry: entry[1])]
