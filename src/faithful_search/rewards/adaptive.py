"""Proof-of-Use's answer reward, whose weights follow how often the policy is right, and what a mix remembers."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from ..errors import ConfigError
from .answer_support import AnswerSupport
from .base import Reward
from .correctness import Correctness


@dataclass(frozen=True)
class Adaptive:
    """R_a = alpha·process + (1 - alpha)·outcome, one alpha for the whole global batch (Proof-of-Use, equations 6 to 9).

    ```
    c̄ ← beta c̄ + (1 - beta) c        c: the batch mean of the outcome
    alpha = sigmoid(kappa (tau - c̄))
    ```

    The paper gives no values for beta, tau and kappa, nor for c̄ before the first batch (see `MixState`); these are
    ours. `fixed` holds alpha constant: 0.5 is the static mix, 0.0 leaves the process out, which is then not scored.
    """

    process: Reward = field(default_factory=AnswerSupport)
    outcome: Reward = field(default_factory=Correctness)
    beta: float = 0.9
    tau: float = 0.5
    kappa: float = 10.0
    fixed: float | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.beta < 1:
            raise ConfigError(f"Adaptive: beta must be in [0, 1), not {self.beta}")
        if self.fixed is not None and not 0 <= self.fixed <= 1:
            raise ConfigError(f"Adaptive: fixed must be in [0, 1], not {self.fixed}")

    def bind(self, **resources: Any) -> Self:
        """A copy whose rewards have those of `resources` that they have fields for."""
        process, outcome = self.process.bind(**resources), self.outcome.bind(**resources)
        return dataclasses.replace(self, process=process, outcome=outcome)

    def alpha(self, ema: float | None) -> float:
        """The weight of the process at an EMA of the outcome; before any batch that of 0."""
        return sigmoid(self.kappa * (self.tau - (ema or 0.0))) if self.fixed is None else self.fixed


@dataclass(frozen=True)
class MixState:
    """What a `Mix` remembers between updates: the outcome's EMA and the step that `warmup` goes by.

    Without an EMA, the first batch's mean is the first: alpha then knows from the start how often the policy is right.
    `MixState(ema=0.0)` starts from a policy that never is, so that alpha begins near 1 whatever the policy can do. In
    training the step is the optimizer's, counted from 1; 0 is before the first.
    """

    ema: float | None = None
    step: int = 0

    def to_dict(self) -> dict[str, float | int]:
        """For a checkpoint's JSON."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Read back what `to_dict` gave."""
        ema = values["ema"]
        return cls(ema=None if ema is None else float(ema), step=int(values["step"]))


def sigmoid(x: float) -> float:
    """1 / (1 + e^-x), without overflow for any x."""
    if x >= 0:
        return 1 / (1 + math.exp(-x))
    return math.exp(x) / (1 + math.exp(x))  # e^-x would overflow from x = -710 on
