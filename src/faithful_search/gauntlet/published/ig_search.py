"""IG-Search's information gain of each search, by a judge in place of the policy."""

from dataclasses import dataclass, field
from typing import ClassVar

from ...errors import ConfigError
from ...evidence import supporting
from ...judges import ContainmentJudge, Judge, Pair, Verdict
from ...rewards import Correctness, Mix, Score
from ...rewards.base import JudgedReward, StepPair
from ...rewards.correctness import NO_GOLD
from ...rewards.turns import passages
from ...tasks import world_context
from ...trajectory import Trajectory

DIALECT = "search_r1"

NOTHING_CAME = Verdict(0.0, False, "the search returned nothing", "rule")


@dataclass(frozen=True)
class InformationGain(JudgedReward):
    """The share of the searches whose passages hold the gold answer: what `ig_search` has in place
    of the policy's gain of confidence.
    """

    judge: Judge = field(default_factory=ContainmentJudge)

    name: ClassVar[str] = "information_gain"
    nothing: ClassVar[str] = "no tool was called"

    def pairs(self, trajectory: Trajectory) -> list[StepPair]:
        if not trajectory.answers:
            return []
        context = world_context(trajectory.meta)
        question = trajectory.question or ""
        pairs = []
        for number, step in enumerate(trajectory.steps, start=1):
            if step.call is not None:
                returned = passages(supporting(step))
                pair = Pair(returned, trajectory.answers[0], question, context=context)
                pairs.append(StepPair(number, pair, None if returned else NOTHING_CAME))
        return pairs

    def empty(self, trajectory: Trajectory) -> Score:
        if not trajectory.answers:
            return NO_GOLD
        return Score(0.0, self.nothing, {"applies": False})


def ig_search(weight: float = 0.3, judge: Judge | None = None) -> Mix:
    """Exact match, and for each search how much more certain it makes the gold answer.

    ```
    R   = EM + w·mean over the searches of IG_t
    IG_t = confidence in the gold answer with the passages of search t, minus that with random ones
    ```

    IG-Search (arXiv 2604.15148), of which the abstract was read: w and the sum are ours, since the
    paper adds IG_t to the advantages of the query's tokens. Simplified: the confidence is whether a
    judge says that the passages hold the first gold answer, 1 or 0, where the paper takes the
    policy's own probabilities; random passages do not hold it. So this pays for what a search
    brought and not for what the policy made of it.

    Args:
        weight: w, at least 0.
        judge: whether the passages hold the answer; by default it must occur as it stands.

    How to hack it: search for the answer that is remembered (`looked_up`): each search then
    brings it, which no reader's first search does.
    """
    if weight < 0:
        raise ConfigError(f"ig_search: weight must be at least 0, got {weight}")
    gain = InformationGain() if judge is None else InformationGain(judge)
    return Mix(
        {"correctness": Correctness(), "information_gain": gain},
        {"correctness": 1.0, "information_gain": weight},
        gate=None,
    )
