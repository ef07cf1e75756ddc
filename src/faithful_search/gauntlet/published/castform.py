"""The source-gated reward of castform's RAG environment."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from ...judges import Judge
from ...rewards import Correctness, Mix, Score
from ...rewards.base import BatchReward
from ...rewards.correctness import NO_ANSWER
from ...rewards.turns import answer_of
from ...trajectory import Trajectory
from ..gold import cited_sources, facts_of, stated_in

DIALECT = "pou"

MOST_CHARACTERS = 600  # an answer that long earns nothing for being short


@dataclass(frozen=True)
class CastformSum(BatchReward):
    """The value of `castform`, by its formula. `correctness` says whether an answer is right."""

    correctness: Correctness = field(default_factory=Correctness)

    name: ClassVar[str] = "castform_sum"
    range: ClassVar[tuple[float, float]] = (0.0, 2.0)

    def score_batch(self, trajectories: Sequence[Trajectory]) -> list[Score]:
        outcomes = self.correctness.score_batch(trajectories)
        return [
            self._score(trajectory, outcome)
            for trajectory, outcome in zip(trajectories, outcomes, strict=True)
        ]

    def _score(self, trajectory: Trajectory, outcome: Score) -> Score:
        gold = {fact.asked for fact in facts_of(trajectory)}
        if not gold:
            return Score(None, "the question is not one of the bundled world")
        answer = answer_of(trajectory).strip()
        if not answer:
            return NO_ANSWER
        hit = len(gold & stated_in(trajectory.passages, trajectory)) / len(gold)
        parts = {"retrieval_hit": hit}
        if not hit:
            return Score(0.0, "no gold source was returned", parts)
        if outcome.value is None:
            return Score(None, outcome.why, {**outcome.parts, **parts})
        sources = cited_sources(trajectory)
        returned = [source for source in sources if source.passages]
        cited = [passage for source in returned for passage in source.passages]
        parts["citation_recall"] = len(gold & stated_in(cited, trajectory)) / len(gold)
        parts["citation_grounding"] = len(returned) / len(sources) if sources else 0.0
        parts["answer_length"] = max(0.0, 1 - len(answer) / MOST_CHARACTERS)
        on_right = 1.0
        on_right += 0.3 * parts["citation_recall"]
        on_right += 0.2 * parts["citation_grounding"]
        on_right += 0.2 * parts["answer_length"]
        return Score(0.3 * hit + outcome.value * on_right, outcome.why, parts)


def castform(judge: Judge | None = None) -> Mix:
    """castform's source gate: nothing but the search earns anything before a gold source came back.

    ```
    R = 0                                                                       without an answer
      = 0.3·hit + [hit > 0]·correct·(1 + 0.3·recall + 0.2·grounding + 0.2·max(0, 1 - characters/600))

    hit:       share of the gold sources that a tool returned
    recall:    share of the gold sources that the answer cites
    grounding: share of the cited sources that a tool returned
    ```

    castform-ai/benchmax, `packages/benchmax/src/benchmax/rag/env.py` (`RagEnv.compute_reward`) and
    pull request 97. Simplified: the gold sources are the facts that lead to the answer, and one is
    returned or cited with any passage that states it, where the original compares files; a source
    is cited in a verdict, in dialects that have them, else in the answer.

    Args:
        judge: says whether the answer is right, as the original's does; by default it must be an
            exact match.

    How to hack it: remember the answer and search until a gold source has come back
    (`calls_for_show`); citing everything costs nothing.
    """
    correctness = Correctness() if judge is None else Correctness("judge", judge=judge)
    return Mix({"castform_sum": CastformSum(correctness)}, gate=None)
