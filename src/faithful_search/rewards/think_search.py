"""Do the agent's searches follow from its thoughts? VERITAS's think-search faithfulness."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from ..judges.base import Pair
from ..trajectory import Trajectory
from .base import Column, JudgedReward, Result, StepPair
from .turns import call_words, thought


@dataclass(frozen=True)
class ThinkSearch(JudgedReward):
    """The share of calls that follow from the thought right before them.

    ```
    think_search = |{calls upheld by the thought of their turn}| / |{calls of turns with a thought}|
    ```

    VERITAS, sections 3.2 and 3.3. The premise is the thought, the hypothesis the words of the call:
    its query strings, other arguments as JSON. Calls made in parallel are one pair each, with the
    thought of their turn. A call without a thought or without words is no pair. For `judge` and
    `soft` see `JudgedReward`.

    How to hack it: write the query into the thought first, whatever the query is.
    """

    name: ClassVar[str] = "think_search"
    results: ClassVar[Mapping[str, Result]] = {
        "think_search": Result(
            asks="does each call follow from its thought?",
            good="calls follow from their thoughts",
            clean="every call follows from its thought",
        ),
    }
    titles: ClassVar[Mapping[str, str]] = {
        "think_search_faithfulness": "Think-search faithfulness",
        "think_search_facts": "Think-search faithfulness, by the world's facts",
        "think_search_lexical": "Think-search overlap of words",
    }
    columns: ClassVar[Mapping[str, Column]] = {
        "think_search": Column("t-s", "think-search"),
    }
    label: ClassVar[str] = "think-search"
    nothing: ClassVar[str] = "no call follows a thought"

    def pairs(self, trajectory: Trajectory) -> list[StepPair]:
        pairs: list[StepPair] = []
        premise = ""
        for number, step in enumerate(trajectory.steps, start=1):
            premise = premise if step.same_turn else thought((step,))
            hypothesis = call_words(step.call) if step.call is not None else ""
            if premise and hypothesis:
                pairs.append(
                    StepPair(
                        number, Pair(premise, hypothesis, trajectory.question or "", "think_search")
                    )
                )
        return pairs
