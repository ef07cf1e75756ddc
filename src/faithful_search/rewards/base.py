"""What a reward is: a frozen value that reads a `Trajectory` and says how faithful it is, and why."""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import msgspec

from ..errors import ConfigError
from ..inference.base import Generator
from ..trajectory import Trajectory

_ROUNDING = 1e-9  # below this a difference of rewards is the rounding of their sums


class Score(msgspec.Struct, frozen=True, omit_defaults=True):
    """`value` is `None` where the reward does not apply or its judge abstained (`parts["abstained"]` is then True).

    A zero that a paper defines (no citation to check, say) is 0.0 with `parts["applies"] = False`.

    `steps` has an entry for each step of the trajectory, `None` where nothing is said of it; it is empty where the
    whole is judged. Of a single reward the value is the mean of the other entries, of a `Mix` that mean plus what its
    parts say of the whole.

    Example:
        >>> Score(0.5, steps=(None, 1.0, 0.0)).credit
        ((0.0, 0.5, 0.0), 0.0)
        >>> Score(1.0).credit
        ((), 1.0)
    """

    value: float | None
    why: str = ""
    parts: dict[str, Any] = {}
    steps: tuple[float | None, ...] = ()

    @property
    def credit(self) -> tuple[tuple[float, ...], float]:
        """What of the value (0 where it is `None`) each step earned, and what the whole did."""
        # divided by the steps that count, so that what they earned adds up to their mean, which is the value
        value, many = self.value or 0.0, sum(step is not None for step in self.steps)
        earned = tuple((step or 0.0) / many for step in self.steps) if many else ()
        rest = value - sum(earned)
        return earned, 0.0 if abs(rest) < _ROUNDING else rest


@dataclass(frozen=True)
class Reward(ABC):
    """Fields are knobs. Subclasses implement `score`; those whose judge or policy wants batches are a `BatchReward`."""

    name: ClassVar[str]
    range: ClassVar[tuple[float, float]] = (0.0, 1.0)

    @property
    def made_of(self) -> "tuple[Reward, ...]":
        """The rewards that this one sums or wraps; most have none."""
        return tuple(value for value in vars(self).values() if isinstance(value, Reward))

    def within(self) -> "Iterator[Reward]":
        """This reward and those it is made of, at every level."""
        yield self
        for reward in self.made_of:
            yield from reward.within()

    @property
    def needs_policy(self) -> bool:
        """Whether it, or a reward within it, asks the policy itself."""
        return any(reward.needs_policy for reward in self.made_of)

    @property
    def samples_policy(self) -> bool:
        """Whether it lets the policy write, rather than only asking for probabilities."""
        return any(reward.samples_policy for reward in self.made_of)

    def covers(self, dialect: str) -> bool:
        """Whether trajectories written in that dialect can have a value."""
        return all(reward.covers(dialect) for reward in self.made_of)

    @abstractmethod
    def score(self, trajectory: Trajectory) -> Score: ...

    def score_batch(self, trajectories: Sequence[Trajectory]) -> list[Score]:
        return [self.score(trajectory) for trajectory in trajectories]

    def measure(self, score: Score) -> float | None:
        """The score as a measurement: `None` where nothing was there to measure, a paper's zero for that included."""
        return None if score.parts.get("applies", True) is False else score.value

    @property
    def bounds(self) -> tuple[float, float]:
        """The range of `measure`."""
        return self.range

    # a copy, since rewards are values: one that was given a policy is not the one that a run's configuration names
    def bind(self, **resources: Any) -> Self:
        """A copy that has, as have the rewards within it, those of `resources` (`policy=…`) that are its fields."""
        inner = {name: own.bind(**resources) for name, own in vars(self).items() if isinstance(own, Reward)}
        knobs = {knob.name for knob in dataclasses.fields(self)}
        return dataclasses.replace(self, **inner | {name: one for name, one in resources.items() if name in knobs})


@dataclass(frozen=True)
class BatchReward(Reward):
    """A reward that implements `score_batch`."""

    @abstractmethod
    def score_batch(self, trajectories: Sequence[Trajectory]) -> list[Score]: ...

    def score(self, trajectory: Trajectory) -> Score:
        return self.score_batch([trajectory])[0]


@dataclass(frozen=True)
class PolicyReward(BatchReward):
    """A reward that asks the policy itself."""

    policy: Generator | None = field(default=None, repr=False, kw_only=True)

    needs_policy: ClassVar[bool] = True

    @property
    def bound_policy(self) -> Generator:
        """The policy. Raises `ConfigError` when none is bound."""
        if self.policy is None:
            raise ConfigError(f"{type(self).__name__} asks the policy itself: use .bind(policy=generator)")
        return self.policy
