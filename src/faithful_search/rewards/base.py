"""What a reward is: a frozen value that reads a `Trajectory` and says how faithful it is, and why."""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import msgspec

from ..errors import ConfigError, JudgeError
from ..inference.base import Generator
from ..judges import GroundingJudge, Judge, Pair, Verdict
from ..trajectory import Trajectory

NOT_UPHELD = "not upheld by the judge"


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
        return earned, 0.0 if abs(
            rest
        ) < 1e-9 else rest  # a smaller one is the rounding of their sums


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
        inner = {
            name: own.bind(**resources)
            for name, own in vars(self).items()
            if isinstance(own, Reward)
        }
        knobs = {knob.name for knob in dataclasses.fields(self)}
        return dataclasses.replace(
            self, **inner | {name: one for name, one in resources.items() if name in knobs}
        )


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
            raise ConfigError(
                f"{type(self).__name__} asks the policy itself: use .bind(policy=generator)"
            )
        return self.policy


class Asked(msgspec.Struct, frozen=True):
    """One pair of a trajectory: `step` (from 1) is where its hypothesis stands. `settled` needs no judge."""

    step: int
    pair: Pair
    settled: Verdict | None = None


@dataclass(frozen=True)
class JudgedReward(BatchReward):
    """The share of a trajectory's pairs that the judge upholds; subclasses say which pairs those are.

    The value is the mean of the labels. A trajectory without pairs has none; one of whose pairs the judge abstained
    from abstains as a whole. A batch asks the judge once. `parts["pairs"]` holds step, p, label and reason of each pair
    (and `settled` where no judge was asked), `parts["judge"]` who judged, with the version of its prompt.

    Args:
        judge: is asked about the pairs, with the reward's name as their `task`; by default the words are compared.
        soft: average p instead of the labels.
    """

    judge: Judge = field(default_factory=GroundingJudge)
    soft: bool = False

    nothing: ClassVar[str] = "nothing to judge"  # why a trajectory without pairs has no value

    @property
    def judge_name(self) -> str:
        return self.judge.name

    @abstractmethod
    def pairs(self, trajectory: Trajectory) -> list[Asked]: ...

    def pairs_batch(self, trajectories: Sequence[Trajectory]) -> list[list[Asked]]:
        """The pairs of many trajectories, for rewards that must ask before they know them."""
        return [self.pairs(trajectory) for trajectory in trajectories]

    def empty(self, trajectory: Trajectory) -> Score:
        """The score of a trajectory without pairs."""
        return Score(None, self.nothing)

    def score_batch(self, trajectories: Sequence[Trajectory]) -> list[Score]:
        asked = self.pairs_batch(trajectories)
        verdicts = iter(
            ask(self.judge, [item.pair for own in asked for item in own if item.settled is None])
        )
        scores = []
        for trajectory, own in zip(trajectories, asked, strict=True):
            found = [item.settled or next(verdicts) for item in own]
            scores.append(self.judged(trajectory, own, found) if own else self.empty(trajectory))
        return scores

    def judged(
        self, trajectory: Trajectory, asked: Sequence[Asked], verdicts: Sequence[Verdict]
    ) -> Score:
        """The score of a trajectory with these pairs and verdicts."""
        both = list(zip(asked, verdicts, strict=True))
        judge = next(
            (said.judge for item, said in both if item.settled is None and said.judge),
            self.judge_name,
        )
        told: list[dict[str, Any]] = []
        for item, said in both:
            told.append({"step": item.step, "p": said.p, "label": said.label, "why": said.why})
            if item.settled is not None:
                told[-1]["settled"] = True
        parts: dict[str, Any] = {"judge": judge, "pairs": told}
        missing = next((verdict for verdict in verdicts if verdict.abstained), None)
        if missing is not None:
            return Score(None, f"the judge abstained: {missing.why}", {"abstained": True, **parts})
        values = [float(verdict.p if self.soft else verdict.label) for verdict in verdicts]  # type: ignore[arg-type]
        against = next(
            (
                f"step {item.step}: {said.why or NOT_UPHELD}"
                for item, said in both
                if not said.label
            ),
            "",
        )
        by_step = {item.step: value for item, value in zip(asked, values, strict=True)}
        # where a step has several pairs, the mean over pairs is not the mean over steps: then none has a share
        numbers = range(1, len(trajectory.steps) + 1) if len(by_step) == len(asked) else ()
        steps = tuple(by_step.get(number) for number in numbers)
        return Score(sum(values) / len(values), against, {"applies": True, **parts}, steps)


def ask(judge: Judge, pairs: Sequence[Pair]) -> list[Verdict]:
    """The judge's verdicts, equal pairs asked about once; where it cannot be asked at all, verdicts that abstain."""
    different = list(dict.fromkeys(pairs))
    try:
        verdicts = dict(
            zip(different, judge.judge_batch(different) if different else [], strict=True)
        )
    except JudgeError as error:
        verdicts = dict.fromkeys(different, Verdict(None, None, str(error), judge.name))
    return [verdicts[pair] for pair in pairs]
