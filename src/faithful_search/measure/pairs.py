"""The pairs of texts in trajectories, as the rewards cut them."""

from __future__ import annotations

import hashlib
import heapq
import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, get_args

import msgspec

from .. import rewards
from ..errors import ConfigError
from ..judges import GroundingJudge, Judge, Pair
from ..rewards.judged import Asked, JudgedReward
from .failures import told
from .files import Raw
from .provenance import File
from .rows import READER, Reader, Row
from .scoring import each
from .settings import PairMetric

METRICS = get_args(PairMetric)


class Cut(msgspec.Struct, frozen=True):
    """A pair to be judged: `id` is its digest; `trajectory` (FILE:ROW) and `step` (from 1) are where it was met."""

    id: str
    pair: Pair
    trajectory: str
    step: int


class Cuts(NamedTuple):
    """The pairs of some rows that a judge is asked about, what was counted on the way, and answers without claims."""

    cuts: list[Cut]
    counted: File
    unsplit: list[str]


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

    def __call__(self, batch: Sequence[Raw]) -> Cuts:
        """The pairs of these rows; raises nothing that a row did."""
        rows = [self.reader(raw) for raw in batch]
        read = [row for row in rows if row.trajectory is not None]
        left_out = [f"row {row.number}: {row.error}" for row in rows if row.trajectory is None]
        cuts, unsplit, settled = [], [], 0
        asked = each(self._asked, read, lambda error: f"failed: {told(self.metric, error)}")
        for row, own in zip(read, asked, strict=True):
            if isinstance(own, str):  # why the reward could not cut it
                left_out.append(f"row {row.number}: {own}")
                continue
            for item in own:
                if item.settled is None:
                    cuts.append(Cut(pair_id(item.pair), item.pair, f"{self.source}:{row.number}", item.step))
                elif item.settled.abstained:
                    unsplit.append(f"row {row.number}: {item.settled.why}")
                else:
                    settled += 1
        written = dict(Counter(row.trajectory.dialect or "unknown" for row in read if row.trajectory))
        counted = File("", "", len(rows), len(cuts) + settled, settled, len(left_out), left_out, written)
        return Cuts(cuts, counted, unsplit)

    def _asked(self, rows: Sequence[Row]) -> list[list[Asked] | str]:
        trajectories = [row.trajectory for row in rows if row.trajectory is not None]
        return [*reward(self.metric, self.judge).pairs_batch(trajectories)]


def reward(metric: str, judge: Judge | None = None) -> JudgedReward:
    """The reward that cuts a metric's pairs, with a judge; by default its own, or the comparison of words.

    Raises:
        ConfigError: for a metric that has no pairs.
    """
    if metric not in METRICS:
        raise ConfigError(f"{metric!r} has no pairs to label; there are: {', '.join(METRICS)}")
    kind: Callable[..., JudgedReward] = rewards.load(metric)  # type: ignore[assignment]
    return kind(judge=judge or kind().judge or GroundingJudge())


def pair_id(pair: Pair) -> str:
    """A digest of what a judge reads: equal pairs are one row of a dataset."""
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
            # its rank is the worst of all so far, so that it will not come back when it is met again
            ids.remove(heapq.heappop(kept)[2].id)
    return [cut for _, _, cut in sorted(kept, key=lambda entry: entry[1])]
