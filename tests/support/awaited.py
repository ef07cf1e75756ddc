"""Judges that take their time or are down, and a heart that beats beside what is awaited."""

import asyncio
import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from faithful_search.errors import JudgeError
from faithful_search.judges import Judge, Pair, Verdict


@dataclass(frozen=True)
class SlowJudge(Judge):
    """Takes its time for each batch, and notes how many pairs each had."""

    seconds: float = 0.3
    batches: list[int] = field(default_factory=list)

    name = "slow"
    lexical = False
    reads_queries = False

    def judge_batch(self, pairs: Sequence[Pair]) -> list[Verdict]:
        time.sleep(self.seconds)
        self.batches.append(len(pairs))
        return [Verdict(1.0, True, "", self.name) for _ in pairs]


@dataclass(frozen=True)
class DeadJudge(Judge):
    name = "dead"
    lexical = False
    reads_queries = False

    def judge_batch(self, pairs: Sequence[Pair]) -> list[Verdict]:
        raise JudgeError("nobody answers")


async def beside_a_heart(ascore, rollouts):
    """What is awaited for each rollout, and the longest time between two beats of the event
    loop.
    """
    beats = [time.monotonic()]

    async def heart():
        while True:
            await asyncio.sleep(0.01)
            beats.append(time.monotonic())

    beating = asyncio.create_task(heart())
    scores = await asyncio.gather(*map(ascore, rollouts))
    beating.cancel()
    pauses = [later - earlier for earlier, later in itertools.pairwise(beats)]
    return scores, max(pauses, default=0.0)
