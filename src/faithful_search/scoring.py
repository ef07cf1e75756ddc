"""Scores rollouts that any program made: `Scoring` reads what an agent wrote, with the question and
gold answers, and gives a `Score` for each rollout.

```
text, messages, log row, Trajectory ─ read ─> Trajectory ─ reward ─> Score
```

The adapters of all trainers and evaluators use `Scoring`, so that a rollout has the same score in
each of them.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

import msgspec

from . import columns, dialects, registry, rewards
from .dialects.segments import Responses
from .errors import ConfigError, DataError, DialectError, JudgeError, NoScoreError
from .judges import Judge
from .reading.rows import Reader
from .rewards import Adaptive, AnswerSupport, Mix, Reward, Score, SourceGated
from .tools.batcher import Batcher
from .trajectory import Trajectory
from .wire.failures import FailureLog

T = TypeVar("T")
R = TypeVar("R")
Message = Mapping[str, Any]
Rollout = str | Sequence[Message] | Mapping[str, Any] | Trajectory | None
"""What an agent left behind: a text, chat messages, a row of a log, or a trajectory. `None` and
empty values are a rollout without a turn.
"""
PLAIN = "openai"
"""The dialect of messages without any tags, which can read every rollout."""
GATHERING = 0.02
"""Seconds for which `Scoring.ascore` waits for other rollouts to score with the first. A trainer's
event loop awaits the rollouts of a batch one after the other. Without a wait, the first rollout
would be a batch of its own, and all others would wait until its judge has answered.
"""
MOST = 1024
"""Rollouts that `Scoring.ascore` scores as one batch at most. High, since a judge itself limits how
many pairs it takes at once.
"""
_failures = FailureLog(__name__)


class NamedMix(NamedTuple):
    """A mix that is known by name.

    Attributes:
        make: makes the mix with a judge; `None` stands for its default, which compares words.
        dialect: the dialect of the mix's paper, where the mix checks the format of that dialect;
            `None` where it takes any.
    """

    make: Callable[[Judge | None], Mix]
    dialect: str | None = None


def _proof_of_use(judge: Judge | None) -> Mix:
    support = AnswerSupport() if judge is None else AnswerSupport(judge)
    return rewards.pou_mix(
        support=support,
        correctness=SourceGated(support=support, looked_up=False),
        sensitivity=False,
        alpha=0.5,
    )


def _answer_only(judge: Judge | None) -> Mix:
    support = AnswerSupport() if judge is None else AnswerSupport(judge)
    return rewards.answer_only_mix(SourceGated(support=support, looked_up=False))


def _pokee(judge: Judge | None) -> Mix:
    return rewards.pokee_mix(judge, metric="em" if judge is None else "judge")


MIXES = {
    "pou": NamedMix(_proof_of_use, "pou"),
    "veritas": NamedMix(rewards.veritas_mix),
    "pokee": NamedMix(_pokee, "pokee"),
    "answer_only": NamedMix(_answer_only),
}
"""The mixes that `Scoring` knows by name. None of them asks the policy, so that "pou" has no
evidence sensitivity.
"""


@dataclass(frozen=True)
class Scoring:
    """Scores rollouts of any program with one reward.

    A rollout that cannot be read raises nothing: its score has no value, and `why` says what is
    wrong with it. The value is `None` where a judge failed or the rollout could not be read
    (`parts["abstained"]` is then True), and where the reward does not apply, for example to a
    question without gold answers. `None` never means 0; programs that need a number call `number`.

    A pickle holds the settings alone.

    Args:
        reward: "pou", "veritas", "pokee" or "answer_only" (`MIXES`), a single reward by the name
            that `faithful_search.rewards.load` takes, or a reward. "pou" is `pou_mix` without
            evidence sensitivity, which asks the policy, and with a constant alpha of 1/2; the
            gauntlet calls it `pou_static`.
        dialect: how the agent writes its calls and answers. By default that of the mix's paper or,
            where it has none, the one detected for each rollout. Name it when you train a policy,
            which could otherwise write in whichever dialect pays most.
        responses: with "messages" all of a text counts as the agent's own words, so that only
            messages of tools hold evidence. With "anywhere" tool responses inside a text are read,
            too: for recorded texts, and for training loops that stop the policy at its call.
        judge: for a reward that is given by name; by default words are compared.
        abstained: what `number` returns for a score without a value; by default it raises.

    Raises:
        ConfigError: the name is unknown, the reward asks the policy itself, or the mix has an alpha
            that adapts to the batch. Only `SearchGRPOTrainer` has the policy and the batch.
        DialectError: for an unknown dialect.

    Example:
        >>> call = {"id": "1", "function": {"name": "search", "arguments": "{}"}}
        >>> chat = [
        ...     {"role": "assistant", "content": "", "tool_calls": [call]},
        ...     {"role": "tool", "tool_call_id": "1", "content": "The capital is Canberra."},
        ...     {"role": "assistant", "content": "Canberra"},
        ... ]
        >>> [score] = Scoring("answer_only").score([chat], answers=["Canberra"])
        >>> score.value
        1.0
    """

    reward: Reward | str = "pou"
    dialect: str | None = None
    responses: Responses = "messages"
    judge: Judge | None = None
    abstained: float | None = None

    def __post_init__(self) -> None:
        check(self.rule)
        if self.dialect is not None:
            dialects.load(self.dialect)

    @cached_property
    def rule(self) -> Reward:
        """The reward itself."""
        if isinstance(self.reward, Reward):
            if self.judge is not None:
                raise ConfigError(
                    f"Scoring: judge= is for a reward that is given by name; {self.reward.name} "
                    "was made with its own judge"
                )
            return self.reward
        if self.reward in MIXES:
            return MIXES[self.reward].make(self.judge)
        return _single(self.reward, self.judge)

    @property
    def name(self) -> str:
        return self.reward if isinstance(self.reward, str) else self.reward.name

    @property
    def written_in(self) -> str | None:
        """The dialect that rollouts are read in; `None` where it is detected."""
        if self.dialect:
            return self.dialect
        if isinstance(self.reward, str) and self.reward in MIXES:
            return MIXES[self.reward].dialect
        return None

    def score(
        self, rollouts: Sequence[Rollout], /, *, step: int | None = None, **values: Sequence[Any]
    ) -> list[Score]:
        """One score for each rollout, in order.

        Args:
            rollouts: texts, lists of messages, rows of a log, trajectories.
            step: the optimizer's step that the rollouts are for, counted from 1; it sets how far a
                mix has warmed up.
            values: columns of the data set, each as long as `rollouts`. Questions and gold answers
                are found by the usual names of such columns (`faithful_search.columns`), and
                replace those of a row or trajectory.

        Raises:
            ConfigError: `rollouts` is one rollout, or a column has another length.
        """
        if isinstance(rollouts, str | Mapping | Trajectory) or _is_conversation(rollouts):
            raise ConfigError("Scoring.score takes a list of rollouts: pass [rollout]")
        for name, column in values.items():
            if len(column) != len(rollouts):
                raise ConfigError(
                    f"the column {name!r} has {len(column)} values for {len(rollouts)} rollouts"
                )
        rows = []
        for number, rollout in enumerate(rollouts):
            row = {name: column[number] for name, column in values.items()}
            rows.append((rollout, row))
        return self._score_rows(rows, step)

    async def ascore(self, rollout: Rollout, /, **values: Any) -> Score:
        """The score of one rollout, without blocking the event loop.

        Rollouts that are awaited at the same time are scored as one batch, so that a judge is asked
        about all of them at once. `values` are those of the rollout's row, by column.

        Example:
            >>> import asyncio
            >>> asyncio.run(Scoring("correctness").ascore("Rome", answers=["Rome"])).value
            1.0
        """
        return await self._together.ask((rollout, values))

    def read(self, rollout: Rollout, /, **values: Any) -> Trajectory:
        """The trajectory of a rollout, as it is scored. `values` are those of the rollout's row, by
        column.

        Raises:
            DataError: this is no rollout.
            DialectError: it does not fit the dialect, or fits none.
        """
        question_column = columns.question(values)
        golds = columns.golds(values)
        question = None if question_column is None else question_column.value
        if isinstance(rollout, Trajectory):
            trajectory = rollout
        elif not rollout:
            trajectory = Trajectory(dialect=self.written_in or "")
        else:
            trajectory = self._parse(rollout, question)
        if question is not None:
            trajectory = msgspec.structs.replace(trajectory, question=question)
        if golds is not None:
            trajectory = msgspec.structs.replace(trajectory, answers=golds.value)
        return trajectory

    def number(self, score: Score) -> float:
        """The score's value or, where it has none, `abstained`: for programs that need a number.

        Raises:
            NoScoreError: neither has a value.
        """
        if score.value is not None:
            return score.value
        if self.abstained is not None:
            return self.abstained
        raise NoScoreError(
            f"{self.name} has no value for this rollout ({score.why}). That is not a 0: have the "
            "host leave the rollout out, or say what to take instead: abstained=0.0"
        )

    def _parse(self, rollout: Any, question: str | None) -> Trajectory:
        try:
            return self._parse_as(self.written_in, rollout, question)
        except DialectError:
            if self.written_in or self.responses == "anywhere":
                raise
            # A policy must not get rid of a low score by writing what fits no dialect.
            return self._parse_as(PLAIN, rollout, question)

    def _parse_as(self, dialect: str | None, rollout: Any, question: str | None) -> Trajectory:
        if isinstance(rollout, Mapping):
            trajectory, _ = Reader(dialect, responses=self.responses).read_row(rollout)
            return trajectory
        return dialects.parse(rollout, dialect, question, responses=self.responses)

    def _score_rows(
        self, rows: Sequence[tuple[Rollout, Mapping[str, Any]]], step: int | None = None
    ) -> list[Score]:
        """The scores of rollouts with the values of their rows, in order."""
        readings = [self._read_or_score(rollout, values) for rollout, values in rows]
        trajectories = [reading for reading in readings if isinstance(reading, Trajectory)]
        scores_of_readable = iter(self.score_trajectories(trajectories, step))
        scores: list[Score] = []
        for reading in readings:
            if isinstance(reading, Score):
                scores.append(reading)
            else:
                scores.append(next(scores_of_readable))
        return scores

    def score_trajectories(
        self, trajectories: Sequence[Trajectory], step: int | None = None
    ) -> list[Score]:
        """The scores of rollouts that were read, in order. The score of a rollout on which the
        reward fails has no value and says why; the others are not affected.
        """
        try:
            return scores_of(self.rule, trajectories, step)
        except JudgeError as error:
            return [Score(None, str(error), {"abstained": True})] * len(trajectories)

    def _read_or_score(self, rollout: Rollout, values: Mapping[str, Any]) -> Trajectory | Score:
        """The trajectory, or the score of a rollout that cannot be read."""
        try:
            return self.read(rollout, **values)
        except (DataError, DialectError) as error:
            reason = str(error)
        except Exception as error:  # a rollout of any form must not cost the others their scores
            reason = _failures.add("reading", error)
        parts = {"abstained": True, "unread": True}
        return Score(None, f"could not be read: {reason}", parts)

    @cached_property
    def _together(self) -> Batcher[tuple[Rollout, Mapping[str, Any]], Score]:
        return Batcher(self._score_rows, most=MOST, gathering=GATHERING)

    def __getstate__(self) -> dict[str, Any]:
        """The settings alone: the threads that `ascore` uses cannot be pickled."""
        return {setting.name: getattr(self, setting.name) for setting in dataclasses.fields(self)}


def check(reward: Reward) -> None:
    """Raise `ConfigError` for a reward that needs more than rollouts: the policy, or the batch of
    all processes.
    """
    if reward.needs_policy:
        raise ConfigError(
            f"{reward.name} asks the policy itself, which programs outside do not hand to rewards: "
            "leave that part out (pou_mix(sensitivity=False)), or use SearchGRPOTrainer"
        )
    parts = reward.parts.values() if isinstance(reward, Mix) else ()
    if any(isinstance(part, Adaptive) and part.fixed is None for part in parts):
        raise ConfigError(
            "this mix's alpha adapts to the batch of all processes, which programs outside do not "
            "hand to rewards: fix it (pou_mix(alpha=0.5)), or use SearchGRPOTrainer"
        )


def numeric_parts(score: Score) -> dict[str, float]:
    """The values of a score's parts, for logs; parts without a value are left out.

    Example:
        >>> numeric_parts(Score(0.5, parts={"format": 1.0, "citation": None, "judge": "lexical"}))
        {'format': 1.0}
    """
    values: dict[str, float] = {}
    for name, value in score.parts.items():
        if isinstance(value, int | float) and not isinstance(value, bool):
            values[name] = float(value)
    return values


def scores_of(
    reward: Reward, trajectories: Sequence[Trajectory], step: int | None = None
) -> list[Score]:
    """The reward's scores, in order. The score of a trajectory on which the reward fails has no
    value and says why; the others are not affected.

    Args:
        step: the optimizer's step, which sets how far a mix has warmed up; by default a mix scores
            as `score_batch` does.

    Raises:
        JudgeError: the judge cannot be asked at all.
    """

    def score(batch: Sequence[Trajectory]) -> list[Score]:
        if step is None or not isinstance(reward, Mix):
            return reward.score_batch(batch)
        return reward.combine(reward.components(batch), reward.state_at(step))

    return each(score, trajectories, lambda error: failed_score(reward.name, error))


def failed_score(name: str, error: Exception) -> Score:
    """The score of a trajectory on which the reward of this name failed."""
    return Score(None, f"{name} failed: {_failures.add(name, error)}", {"abstained": True})


def each(
    function: Callable[[Sequence[T]], list[R]],
    inputs: Sequence[T],
    instead: Callable[[Exception], R],
) -> list[R]:
    """The function's results for all inputs, in order.

    It is called with all of them at once. If that fails, it is called with each input alone, and
    `instead` makes the result of those on which it fails, of the error.

    Raises:
        JudgeError: the function raised it.
    """
    try:
        return function(inputs)
    except JudgeError:  # the judge cannot be asked at all, about the other inputs neither
        raise
    except Exception as error:  # one input must not cost the others their results
        if len(inputs) == 1:
            return [instead(error)]
    results = []
    for value in inputs:
        results += each(function, [value], instead)
    return results


def _single(name: str, judge: Judge | None) -> Reward:
    """The single reward of this name, with the judge where one is given."""
    try:
        kind = rewards.load(name)
    except ConfigError as error:
        raise ConfigError(f"{error}. Mixes are: {', '.join(MIXES)}") from error
    if judge is None:
        return registry.make(kind)
    if "judge" not in {setting.name for setting in dataclasses.fields(kind)}:
        raise ConfigError(f"{name} asks no judge: leave judge= out")
    return registry.make(kind, judge=judge)


def _is_conversation(rollouts: Sequence[Any]) -> bool:
    """Whether these are the messages of one chat instead of a list of rollouts."""
    if not rollouts:
        return False
    return all(isinstance(message, Mapping) and "role" in message for message in rollouts)
