"""The judge that counts words and where they stand, and weighs the counts as labels taught it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import ClassVar

import msgspec

from ..bundled import bundled_json
from .base import Judge, Pair, Task, Verdict
from .counts import counts
from .lexical import GroundingJudge

FILE = "counted_judge.json"
_WORDS = GroundingJudge()


class TaskWeights(msgspec.Struct, frozen=True):
    """What the counts of a task weigh, and the least p that is upheld."""

    threshold: float
    bias: float
    weights: Mapping[str, float]

    def p(self, counted: Mapping[str, float]) -> float:
        """sigmoid(bias + Σ weight * count)."""
        logit = self.bias + sum(self.weights[name] * counted[name] for name in self.weights)
        # the sigmoid, written as a tanh, which never overflows
        return (1 + math.tanh(logit / 2)) / 2


@cache
def bundled_weights() -> Mapping[Task, TaskWeights]:
    """The weights that come with the package, which `scripts/fit_counted.py` fitted."""
    return msgspec.convert(bundled_json(FILE), dict[Task, TaskWeights])


@dataclass(frozen=True)
class CountedJudge(Judge):
    """p that a claim or a thought follows, by a weighted sum of what `counts` counts.

    It takes a millisecond or two and needs no model, and reads no meaning: what is said in other
    words, or with the evidence's words turned round, deceives it as it does `GroundingJudge`, whose
    verdicts it gives in all tasks but `support` and `info_think`.

    Args:
        weights_of_tasks: by default those of the package.

    Example:
        >>> pair = Pair("The tower stands in Paris since 1889.", "The tower stands in Paris.")
        >>> CountedJudge().judge_batch([pair])[0].label
        True
    """

    weights_of_tasks: Mapping[Task, TaskWeights] = field(
        default_factory=bundled_weights, repr=False, compare=False
    )

    name: ClassVar[str] = "counted"
    lexical: ClassVar[bool] = True
    reads_queries: ClassVar[bool] = False

    def judge_batch(self, pairs: Sequence[Pair]) -> list[Verdict]:
        return [self._judge(pair) for pair in pairs]

    def _judge(self, pair: Pair) -> Verdict:
        by_words = _WORDS.judge_batch([pair])[0]
        task_weights = self.weights_of_tasks.get(pair.task)
        # Weighed, a text without a word would be upheld for what it does not lack
        if task_weights is None or not any(map(str.isalnum, pair.hypothesis)):
            return msgspec.structs.replace(by_words, judge=self.name)
        p = task_weights.p(counts(pair))
        why = f"p = {p:.3f}"
        if by_words.why:
            why += f"; {by_words.why}"
        return Verdict(p, p >= task_weights.threshold, why, self.name)
