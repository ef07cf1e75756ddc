"""What a reward is: a frozen value that reads a `Trajectory` and says how faithful it is, and
why.
"""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import Any, ClassVar, Literal, NamedTuple, Self

import msgspec

from ..errors import ConfigError, JudgeError
from ..inference.base import Generator
from ..judges import GroundingJudge, Judge, Pair, Verdict
from ..tools.batcher import Batcher
from ..trajectory import Trajectory

NOT_UPHELD = "not upheld by the judge"
ROUNDING = 1e-9
"""A smaller remainder, after the steps' shares are taken off the value, counts as 0."""


class Score(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a reward says of one trajectory: a value, and the reason for it.

    Attributes:
        value: the verdict about the trajectory. `None` where the reward does not apply or its judge
            abstained (`parts["abstained"]` is then True). A zero that a paper defines, for example
            where there is no citation to check, is 0.0 with `parts["applies"] = False`.
        why: the reason, in a sentence that a person can check against the trajectory.
        parts: the details, such as the pairs of texts that a judge was asked about.
        steps: an entry for each step of the trajectory, `None` for a step that is not judged; empty
            where only the whole is judged. The value of a single reward is the mean of the entries
            that are not `None`. The value of a `Mix` is this mean and what its parts give for the
            whole.

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
        """The share of the value that each step earned, and the remainder, which the trajectory
        earned as a whole. Their sum is the value, or 0 where that is `None`.
        """
        value = self.value or 0.0
        judged_steps = sum(step is not None for step in self.steps)
        shares: tuple[float, ...] = ()
        if judged_steps:
            # Divided by their number, so that the shares add up to the mean of the judged steps
            shares = tuple((step or 0.0) / judged_steps for step in self.steps)
        remainder = value - sum(shares)
        if abs(remainder) < ROUNDING:
            remainder = 0.0
        return shares, remainder


class Result(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The words with which tables and sentences explain a result.

    Attributes:
        asks: the question that the result answers, in plain English.
        direction: 1 where more is better, -1 where less is, 0 where it is neither good nor bad.
        good: what is true of the share that is good, for sentences ("in 80%, …"); empty for
            results that no sentence names.
        clean: the reason that is shown for a score without a reason of its own, to which the reward
            has no objection.
    """

    asks: str
    direction: Literal[-1, 0, 1] = 1
    good: str = ""
    clean: str = ""


class Column(NamedTuple):
    """A column of the line that training prints for each step."""

    head: str
    meaning: str


@dataclass(frozen=True)
class Reward(ABC):
    """Reads a trajectory and says how faithful it is, and why.

    A reward is a frozen dataclass whose fields are its settings. A subclass implements `score`; one
    whose judge or policy works in batches derives from `BatchReward` and implements `score_batch`.
    """

    name: ClassVar[str]
    range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    results: ClassVar[Mapping[str, Result]] = {}
    """How its results are explained, by their names as metrics."""
    titles: ClassVar[Mapping[str, str]] = {}
    """The titles of its rows in a model card, by the rows' whole names (`answer_support_facts`)."""
    columns: ClassVar[Mapping[str, Column]] = {}
    """Its column in the line that training prints for a step, by its name as a part of a mix."""
    label: ClassVar[str] = ""
    """The label of its curve in a figure."""

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
    def score(self, trajectory: Trajectory) -> Score:
        """The score of one trajectory. Bad trajectories get a score with a reason, never an
        exception.
        """

    def score_batch(self, trajectories: Sequence[Trajectory]) -> list[Score]:
        """The scores of many trajectories, in order."""
        return [self.score(trajectory) for trajectory in trajectories]

    async def ascore(self, trajectory: Trajectory) -> Score:
        """`score`, for callers in an event loop: it never holds the loop up.

        Trajectories that are scored at the same time go together as one batch, so that a judge is
        asked about all of them at once. Raises as `score_batch` does.

        Example:
            >>> import asyncio
            >>> from faithful_search.rewards import Correctness
            >>> asyncio.run(Correctness().ascore(Trajectory(answer="Rome", answers=("Rome",)))).value
            1.0
        """
        return await self._together.ask(trajectory)

    @cached_property
    def _together(self) -> Batcher[Trajectory, Score]:
        return Batcher(self.score_batch)

    def __getstate__(self) -> dict[str, Any]:
        """The settings alone are pickled; the thread behind `ascore` is not."""
        return {setting.name: getattr(self, setting.name) for setting in dataclasses.fields(self)}

    def measure(self, score: Score) -> float | None:
        """The score as a measurement: `None` where there was nothing to measure, also where a paper
        defines a zero for that.
        """
        if score.parts.get("applies", True) is False:
            return None
        return score.value

    @property
    def bounds(self) -> tuple[float, float]:
        """The range of `measure`."""
        return self.range

    def bind(self, **resources: Any) -> Self:
        """A copy with these resources (`policy=…`) in the fields of the same names, here and in
        the rewards within it. A reward without such a field does not get the resource.

        Rewards are values, so this one stays as it is: a run's configuration records it without a
        policy.
        """
        settings = {setting.name for setting in dataclasses.fields(self)}
        changed: dict[str, Any] = {}
        for name, value in vars(self).items():
            if isinstance(value, Reward):
                changed[name] = value.bind(**resources)
        for name, resource in resources.items():
            if name in settings:
                changed[name] = resource
        return dataclasses.replace(self, **changed)


@dataclass(frozen=True)
class BatchReward(Reward):
    """A reward that implements `score_batch`, since its judge or policy is asked in batches."""

    @abstractmethod
    def score_batch(self, trajectories: Sequence[Trajectory]) -> list[Score]:
        """The scores of many trajectories, in order."""

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


class StepPair(msgspec.Struct, frozen=True):
    """One pair of a trajectory.

    Attributes:
        step: the number of the step, from 1, that its hypothesis stands in.
        pair: what the judge is asked.
        settled: the verdict where a rule gives it, so that no judge is asked.
    """

    step: int
    pair: Pair
    settled: Verdict | None = None


@dataclass(frozen=True)
class JudgedReward(BatchReward):
    """The share of a trajectory's pairs that the judge upholds. Subclasses say which pairs there
    are.

    The value is the mean of the labels. A trajectory without pairs has no value, and neither has
    one with a pair that the judge abstained from. The judge is asked once for each batch.
    `parts["pairs"]` has the step, p, label and reason of each pair (and `settled` where a rule gave
    the verdict), `parts["judge"]` the name of the judge with the version of its prompt.

    Args:
        judge: the judge of the pairs; by default words are compared.
        soft: average p instead of the labels.
    """

    judge: Judge = field(default_factory=GroundingJudge)
    soft: bool = False

    nothing: ClassVar[str] = "nothing to judge"
    """Why a trajectory without pairs has no value."""

    @property
    def judge_name(self) -> str:
        return self.judge.name

    @abstractmethod
    def pairs(self, trajectory: Trajectory) -> list[StepPair]:
        """The pairs that the judge is asked about, in the order of their steps."""

    def pairs_batch(self, trajectories: Sequence[Trajectory]) -> list[list[StepPair]]:
        """The pairs of many trajectories. A reward whose judge writes the pairs (`AnswerSupport`)
        overrides this, so that it is asked once about all of them.

        Such a reward raises `JudgeError` where its judge cannot be asked. Its `score_batch` then
        returns scores that say so.
        """
        return [self.pairs(trajectory) for trajectory in trajectories]

    def empty(self, trajectory: Trajectory) -> Score:
        """The score of a trajectory without pairs."""
        return Score(None, self.nothing)

    def score_batch(self, trajectories: Sequence[Trajectory]) -> list[Score]:
        return self.scored(trajectories, self.pairs_batch(trajectories))

    def scored(
        self, trajectories: Sequence[Trajectory], pairs: Sequence[list[StepPair]]
    ) -> list[Score]:
        """The scores of trajectories with these pairs; the judge is asked about all at once."""
        open_pairs = []
        for step_pair in chain.from_iterable(pairs):
            if step_pair.settled is None:
                open_pairs.append(step_pair.pair)
        answers = iter(ask(self.judge, open_pairs))
        scores = []
        for trajectory, pairs_of_row in zip(trajectories, pairs, strict=True):
            if not pairs_of_row:
                scores.append(self.empty(trajectory))
                continue
            verdicts = [step_pair.settled or next(answers) for step_pair in pairs_of_row]
            scores.append(self.judged(trajectory, pairs_of_row, verdicts))
        return scores

    def judged(
        self, trajectory: Trajectory, pairs: Sequence[StepPair], verdicts: Sequence[Verdict]
    ) -> Score:
        """The score of a trajectory with these pairs and verdicts."""
        parts: dict[str, Any] = {
            "judge": self._judged_by(pairs, verdicts),
            "pairs": list(map(_record, pairs, verdicts)),
        }
        for verdict in verdicts:
            if verdict.abstained:
                return Score(None, f"no verdict: {verdict.why}", {"abstained": True, **parts})
        values = [float(verdict.p if self.soft else verdict.label) for verdict in verdicts]  # type: ignore[arg-type]
        value_by_step = {pair.step: value for pair, value in zip(pairs, values, strict=True)}
        steps: tuple[float | None, ...] = ()
        # No step has a share if one has several pairs: the mean over pairs is then not the mean
        # over steps
        if len(value_by_step) == len(pairs):
            numbers = range(1, len(trajectory.steps) + 1)
            steps = tuple(map(value_by_step.get, numbers))
        why = _first_objection(pairs, verdicts)
        return Score(sum(values) / len(values), why, {"applies": True, **parts}, steps)

    def _judged_by(self, pairs: Sequence[StepPair], verdicts: Sequence[Verdict]) -> str:
        """The name of who judged, from the first verdict that no rule gave; else that of the
        judge.
        """
        for pair, verdict in zip(pairs, verdicts, strict=True):
            if pair.settled is None and verdict.judge:
                return verdict.judge
        return self.judge_name


def _record(pair: StepPair, verdict: Verdict) -> dict[str, Any]:
    """What `Score.parts` keeps of a pair."""
    record = {"step": pair.step, "p": verdict.p, "label": verdict.label, "why": verdict.why}
    if pair.settled is not None:
        record["settled"] = True
    return record


def _first_objection(pairs: Sequence[StepPair], verdicts: Sequence[Verdict]) -> str:
    """Why the first pair is not upheld; empty where all are."""
    for pair, verdict in zip(pairs, verdicts, strict=True):
        if not verdict.label:
            return f"step {pair.step}: {verdict.why or NOT_UPHELD}"
    return ""


def ask(judge: Judge, pairs: Sequence[Pair]) -> list[Verdict]:
    """The judge's verdicts on the pairs, in order; equal pairs are asked about once.

    Where the judge cannot be asked at all, all verdicts abstain and say why.
    """
    distinct = list(dict.fromkeys(pairs))
    if not distinct:
        return []
    try:
        verdicts = judge.judge_batch(distinct)
    except JudgeError as error:
        verdicts = [Verdict(None, None, str(error), judge.name)] * len(distinct)
    by_pair = dict(zip(distinct, verdicts, strict=True))
    return [by_pair[pair] for pair in pairs]
