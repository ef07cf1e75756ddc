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
from ..trajectory import Trajectory
from .failures import told
from .provenance import File
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


class Cuts(NamedTuple):
    """The pairs of a batch of rows that a judge is asked about, what was counted on the way, and the answers that the
    judge could make no claims of, with the reason."""

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
        read = [(row.number, row.trajectory) for row in rows if row.trajectory is not None]
        asked, failed = self._asked(read)
        unread = [*(f"row {row.number}: {row.error}" for row in rows if row.trajectory is None), *failed]
        cuts = [
            Cut(pair_id(item.pair), item.pair, self.source, f"{self.source}:{number}", item.step)
            for number, item in asked
            if item.settled is None
        ]
        settled = [(number, item.settled) for number, item in asked if item.settled is not None]
        unsplit = [f"row {number}: {verdict.why}" for number, verdict in settled if verdict.abstained]
        done = len(settled) - len(unsplit)
        written = dict(Counter(trajectory.dialect or "unknown" for _, trajectory in read))
        return Cuts(cuts, File("", "", len(rows), len(cuts) + done, done, len(unread), unread, written), unsplit)

    def _asked(self, read: Sequence[tuple[int, Trajectory]]) -> tuple[list[tuple[int, Asked]], list[str]]:
        """What is asked about each row. A row that the reward fails on is named and costs the others nothing."""
        try:
            found = reward(self.metric, self.judge).pairs_batch([trajectory for _, trajectory in read])
        except Exception as error:
            if len(read) == 1:
                return [], [f"row {read[0][0]}: failed: {told(self.metric, error)}"]
            alone = [self._asked([row]) for row in read]  # again one by one, to see which it was
            return [item for own, _ in alone for item in own], [why for _, own in alone for why in own]
        return [(number, item) for (number, _), own in zip(read, found, strict=True) for item in own], []


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
