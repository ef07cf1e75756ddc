"""ReSearch's reward."""

from dataclasses import dataclass
from typing import ClassVar

from ...rewards import Correctness, Format, Mix, Reward, Score
from ...rewards.correctness import NO_GOLD
from ...trajectory import Trajectory

DIALECT = "research"


@dataclass(frozen=True)
class ReSearchOutcome(Reward):
    """The three cases of `research`."""

    well_formed: float = 0.1

    name: ClassVar[str] = "research_outcome"

    def score(self, trajectory: Trajectory) -> Score:
        if not trajectory.answers:
            return NO_GOLD
        form = Format().score(trajectory)
        if not form.value:
            return Score(0.0, form.why)
        overlap = Correctness("f1").score(trajectory)
        return overlap if overlap.value else Score(self.well_formed, overlap.why)


def research(well_formed: float = 0.1) -> Mix:
    """F1 where there is any, a little for the format alone.

    ```
    R = 0                   if the format is broken
      = F1(answer, gold)    if it is above 0
      = 0.1                 else
    ```

    ReSearch (arXiv 2503.19470), section 2, and `verl/utils/reward_score/re_search.py` of
    Agent-RL/ReSearch, where a broken format is 0 whatever the answer says. Simplified: the format
    is that of the trajectory's own dialect (`Format`); a box around the answer is not asked for.

    Args:
        well_formed: what a valid format earns where no word of the answer is right.

    How to hack it: answer from memory (`from_memory`); who is unsure lists candidates, since F1
    pays each word.
    """
    return Mix({"research_outcome": ReSearchOutcome(well_formed)}, gate=None)
