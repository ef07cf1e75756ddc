"""Search-R1's reward with format and retrieval."""

from dataclasses import dataclass
from typing import ClassVar

from ...rewards import Format, Mix, Reward, Score
from ...rewards.correctness import NO_ANSWER, NO_GOLD
from ...rewards.turns import short_answer
from ...text import exact_match, sub_exact_match
from ...trajectory import Trajectory

DIALECT = "search_r1"


@dataclass(frozen=True)
class SearchR1Outcome(Reward):
    """The table of `search_r1`; its three settings are the fields."""

    structure: float = 0.2
    retrieval: float = 0.1
    final: float = 0.1

    name: ClassVar[str] = "search_r1_outcome"

    def score(self, trajectory: Trajectory) -> Score:
        if not trajectory.answers:
            return NO_GOLD
        answer = short_answer(trajectory)
        form = Format().score(trajectory)
        if exact_match(answer, trajectory.answers):
            return Score(1.0) if form.value else Score(1.0 - self.structure, form.why)
        if form.value:
            if self._retrieved(trajectory):
                return Score(self.structure + self.retrieval, "wrong; a gold answer was retrieved")
            return Score(self.structure, "wrong; no gold answer was retrieved")
        return Score(self.final, form.why) if answer.strip() else NO_ANSWER

    def _retrieved(self, trajectory: Trajectory) -> bool:
        """Whether a passage contains a gold answer, as characters."""
        return any(
            sub_exact_match(f"{passage.title}\n{passage.text}", trajectory.answers)
            for passage in trajectory.passages
        )


def search_r1(structure: float = 0.2, retrieval: float = 0.1, final: float = 0.1) -> Mix:
    """Search-R1's reward with format and retrieval, for policies that start from a base model.

    | the answer | the format | retrieved text | R |
    |---|---|---|---|
    | right | valid | | 1 |
    | right | broken | | 1 - structure |
    | wrong | valid | holds a gold answer | structure + retrieval |
    | wrong | valid | does not | structure |
    | wrong | broken | | final |
    | none | broken | | 0 |

    `verl/utils/reward_score/qa_em_format.py` of PeterGriffinJin/Search-R1, whose comments give the
    values for 0.2, 0.1 and 0.1; "An Empirical Study on Reinforcement Learning for
    Reasoning-Search Interleaved LLM Agents" (arXiv 2505.15117) studies it. Simplified: the format
    is that of the trajectory's own dialect (`Format`), where the original wants Search-R1's tags in
    their order.

    Args:
        structure: what a valid format earns beside a wrong answer.
        retrieval: what is added where a retrieved passage holds a gold answer.
        final: what a wrong answer earns in a broken format.

    How to hack it: answer from memory (`from_memory`); a wrong answer in good form still earns
    `structure`.
    """
    outcome = SearchR1Outcome(structure, retrieval, final)
    return Mix({"search_r1_outcome": outcome}, gate=None)
