"""Do the agent's thoughts consider what it has just retrieved? VERITAS's information-think
faithfulness.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

from ..citations import without_marks
from ..judges.base import Pair, Verdict
from ..trajectory import Step, Trajectory
from .base import Column, JudgedReward, Result, StepPair
from .turns import asks_for_thoughts, returned, thought

UNTHINKING = Verdict(0.0, False, "acts on what was returned without a thought in between", "rule")


@dataclass(frozen=True)
class InfoThink(JudgedReward):
    """The share of responses that the thought right after them is grounded in.

    ```
    info_think = |{t : the thought of turn t+1 is upheld by what the calls of turn t returned}| / |{t}|
    ```

    VERITAS, sections 3.2 and 3.3. The premise is all that the calls of one turn returned (titles
    and texts; the note of a call that found nothing or failed; copies of the call left out), the
    hypothesis the thought of the next turn. Ours: acting on a response with no thought in between
    scores 0, unless the dialect asks for no thoughts. A response that is followed by neither, or
    left out of the transcript ("..."), is not counted.

    Args:
        judge: is asked about the pairs; by default words are compared.
        soft: average the judge's p instead of its labels.
        unthinking: whether acting on a response without a thought is such a pair; `False` skips
            it. The paper does not say what it does there.

    How to hack it: repeat the evidence word for word and reason about nothing.
    """

    unthinking: bool = True

    name: ClassVar[str] = "info_think"
    results: ClassVar[Mapping[str, Result]] = {
        "info_think": Result(
            asks="does each thought consider what was just retrieved?",
            good="thoughts consider what was just retrieved",
            clean="every thought considers what was just retrieved",
        ),
    }
    titles: ClassVar[Mapping[str, str]] = {
        "info_think_faithfulness": "Information-think faithfulness",
        "info_think_facts": "Information-think faithfulness, by the world's facts",
        "info_think_lexical": "Information-think overlap of words",
    }
    columns: ClassVar[Mapping[str, Column]] = {
        "info_think": Column("i-t", "information-think"),
    }
    label: ClassVar[str] = "information-think"
    nothing: ClassVar[str] = "no thought or action follows a response"

    def pairs(self, trajectory: Trajectory) -> list[StepPair]:
        pairs: list[StepPair] = []
        should_think = self.unthinking and asks_for_thoughts(trajectory.dialect)
        number = 1  # of the first step after the turn
        for turn, after in pairwise(trajectory.turns):
            number += len(turn)
            premise = returned(turn)
            hypothesis = without_marks(thought(after), trajectory)
            pair = Pair(premise, hypothesis, trajectory.question or "", "info_think")
            says_something = any(map(str.isalnum, premise))  # "..." is a response left out
            if hypothesis and says_something:
                pairs.append(StepPair(number, pair))
            # the paper skips these, which pays for not thinking
            elif premise and not hypothesis and should_think and any(map(_acts, after)):
                pairs.append(StepPair(number, pair, UNTHINKING))
        return pairs


def _acts(step: Step) -> bool:
    """Whether a step calls a tool or answers."""
    return step.call is not None or step.answer is not None
