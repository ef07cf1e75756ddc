"""Several rewards as one: gate, weights, warm-up, the adaptive part, and what counts on right answers only."""

import dataclasses
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self, cast

import msgspec

from ..errors import ConfigError
from ..trajectory import Trajectory
from .answer_support import AnswerSupport
from .base import BatchReward, Reward, Score
from .citation import Citation
from .correctness import Correctness
from .evidence_sensitivity import EvidenceSensitivity
from .format import Format
from .self_correctness import SelfCorrectness
from .source_gated import SourceGated

MISSING = 0.1  # the share of a batch's outcomes that a judge may leave open before their mean counts for nothing
INVALID = -1.0  # the value of a row that fails the gate
_BOUND = re.compile(r"(?P<steps>\d+)|(?P<epochs>\d+(?:\.\d*)?|\.\d+)\s*ep(?:ochs?)?")
Components = dict[str, Score]


@dataclass(frozen=True)
class Adaptive:
    """R_a = alpha·process + (1 - alpha)·outcome, one alpha for the whole global batch (Proof-of-Use, equations 6 to 9).

    ```
    c̄ ← beta c̄ + (1 - beta) c        c: the batch mean of the outcome
    alpha = sigmoid(kappa (tau - c̄))
    ```

    The values of beta, tau and kappa are ours. `fixed` holds alpha constant: 0.5 is the static mix, 0.0 leaves the
    process out, which is then not scored.
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
        process, outcome = self.process.bind(**resources), self.outcome.bind(**resources)
        return dataclasses.replace(self, process=process, outcome=outcome)

    def alpha(self, ema: float | None) -> float:
        """The weight of the process at an EMA of the outcome; before any batch that of 0."""
        if self.fixed is not None:
            return self.fixed
        # the sigmoid, which never overflows as a tanh
        return (1 + math.tanh(self.kappa * (self.tau - (ema or 0.0)) / 2)) / 2

    def shares(self, alpha: float) -> list[tuple[Reward, float]]:
        """The rewards that are scored, and what each counts."""
        outcome = (self.outcome, 1 - alpha)
        return [outcome] if self.fixed == 0 else [(self.process, alpha), outcome]


class MixState(msgspec.Struct, frozen=True):
    """What a `Mix` remembers between updates: the outcome's EMA and the step that `warmup` goes by.

    Without an EMA, the first batch's mean is the first. `MixState(ema=0.0)` starts from a policy that is never right,
    so that alpha begins near 1. In training the step is the optimizer's, counted from 1; 0 is before the first.
    """

    ema: float | None = None
    step: int = 0


@dataclass(frozen=True)
class Warmup:
    """A curriculum (VERITAS, section 4): the weights of `parts` rise linearly with the optimizer's steps.

    ```
    ramp(step) = 0                                for step ≤ T1
               = (step - T1) / (T2 - T1)          for T1 < step < T2
               = 1                                for step ≥ T2
    ```

    `start` is T1, in the paper the end of the first epoch, and `end` T2, half an epoch later, both in optimizer steps.
    Step 1 makes the first update. With T1 = T2 the weights are full from T2 on; 0 and 0 is no curriculum.
    """

    parts: tuple[str, ...]
    start: int
    end: int

    def __post_init__(self) -> None:
        if not 0 <= self.start <= self.end:
            raise ConfigError(
                f"Warmup: needs 0 <= start <= end, not start {self.start} and end {self.end}"
            )

    @classmethod
    def parse(
        cls, parts: Iterable[str], start: str | int, end: str | int, steps_per_epoch: int
    ) -> Self:
        """A warm-up whose bounds are written in steps (`20`, "20") or in epochs ("1.0ep"), rounded half up.

        Example:
            >>> Warmup.parse(["info_think"], "1.0ep", "1.5ep", steps_per_epoch=13)
            Warmup(parts=('info_think',), start=13, end=20)
        """
        bounds = []
        for written in (start, end):
            found = _BOUND.fullmatch(str(written).strip())
            if found is None:
                raise ConfigError(
                    f"{written!r} is neither a number of steps (20) nor of epochs (1.5ep)"
                )
            steps, epochs = found["steps"], found["epochs"]
            bounds.append(int(steps) if steps else int(float(epochs) * steps_per_epoch + 0.5))
        return cls(tuple(parts), *bounds)

    def ramp(self, part: str, step: int) -> float:
        """The factor in [0, 1] on a part's weight at a step, counted from 1."""
        if part not in self.parts or step >= self.end:
            return 1.0
        # only reached with start < step < end, so that nothing is divided by 0 where the two are equal
        return (step - self.start) / (self.end - self.start) if step > self.start else 0.0


@dataclass(frozen=True)
class Mix(BatchReward):
    """A gated, weighted sum of rewards; the default is Proof-of-Use's objective.

    ```
    R = Σ_k w_k · ramp_k(step) · R_k   if gate ≥ 1, else -1
    R_final (default) = (R_cite + R_pt + R_a) / 3 if the format is valid, else -1
    ```

    Proof-of-Use, section 3.3.4, equation 10. The state is a value: in training the order is `components` → `outcomes`
    of all processes → `advance` → `combine`, so that a batch's alpha already knows the batch (equations 7 to 9).
    `score_batch` combines at `state0` and advances nothing.

    A part without a value (its judge abstained, or it does not apply) makes the whole row `None`, and `why` says which;
    the zeros that a paper defines stay in the sum. One of weight 0 at a step is passed over.

    Parts named in `only_right` count where the answer is right and are 0 elsewhere, penalties included, so that nothing
    is earned by citing well and being wrong (the rule of C-GRPO; CaRR, arXiv 2601.06021). Where nobody knows whether
    the answer is right, the row has no value.

    ```
    R_k → R_k · [outcome ≥ 1]                                   for k in only_right
    R_a → alpha·process·[outcome ≥ 1] + (1 - alpha)·outcome     for the `Adaptive` part
    ```

    Args:
        parts: rewards by name; at most one is `Adaptive`.
        weights: by part name; `None` is the mean of the parts. Weights that sum to more than 1 may leave `range`.
        gate: a reward that must reach 1.0, or `None`.
        warmup: a schedule for some weights.
        absent: by part name, what a part counts where it does not apply to a row. Not for an `Adaptive` part.
        only_right: names of parts that count on right answers only; what is right, `outcome` says.
        state0: where training starts, and what `score_batch` uses.

    Example:
        >>> from faithful_search.trajectory import Step, Trajectory
        >>> mix = Mix(parts={"citation": Citation(), "answer": Adaptive(fixed=0.5)})
        >>> t = Trajectory(steps=(Step(think="I know.", answer="Rome"),), answer="Rome", answers=("Rome",))
        >>> mix.score(t).value  # no citation: 0; no support: 0; correct: 1, half of it counts
        0.25

    How to hack it: answer from memory while alpha is small: a right one without any tool call earns (1 - alpha)/3.
    """

    parts: Mapping[str, Reward | Adaptive] = field(
        default_factory=lambda: dict(
            citation=Citation(), evidence_sensitivity=EvidenceSensitivity(), answer=Adaptive()
        )
    )
    weights: Mapping[str, float] | None = None
    gate: Reward | None = field(default_factory=Format)
    warmup: Warmup | None = None
    absent: Mapping[str, float] = field(default_factory=dict)
    only_right: tuple[str, ...] = ()
    state0: MixState = field(default_factory=MixState)

    name: ClassVar[str] = "mix"
    range: ClassVar[tuple[float, float]] = (-1.0, 1.0)

    def __post_init__(self) -> None:
        warmed = self.warmup.parts if self.warmup else ()
        named = {
            "weights": self.weights or (),
            "warmup": warmed,
            "absent": self.absent,
            "only_right": self.only_right,
        }
        for what, given in named.items():
            if unknown := sorted(set(given) - set(self.parts)):
                raise ConfigError(
                    f"Mix: {what} name {', '.join(unknown)}; the parts are {', '.join(self.parts)}"
                )
        names = [name for name, _ in self._scored()]
        adaptive = {name for name, part in self.parts.items() if isinstance(part, Adaptive)}
        undecided = self.only_right and self.outcome in (None, *self.only_right)
        for wrong, why in (
            (not self.parts, "needs at least one part"),
            (len(adaptive) > 1, "at most one part may be Adaptive; there is one EMA"),
            (
                len(set(names)) < len(names),
                f"two components share a name: {', '.join(sorted(names))}",
            ),
            (adaptive & set(self.absent), "absent cannot name an Adaptive part; it is two rewards"),
            (
                undecided,
                "only_right needs a part, not named in it, that says whether an answer is right",
            ),
        ):
            if wrong:
                raise ConfigError(f"Mix: {why}")

    @property
    def made_of(self) -> tuple[Reward, ...]:
        return tuple(reward for _, reward in self._scored())

    def bind(self, **resources: Any) -> Self:
        parts = {name: part.bind(**resources) for name, part in self.parts.items()}
        return dataclasses.replace(super().bind(**resources), parts=parts)

    def score_batch(self, trajectories: Sequence[Trajectory]) -> list[Score]:
        return self.combine(self.components(trajectories), self.state0)

    def components(self, trajectories: Sequence[Trajectory]) -> list[Components]:
        """Every reward's scores, each computed once: one mapping a row, by component name."""
        # column by column, so that a reward's judge or the policy is asked once about all rows
        columns = [(name, reward.score_batch(trajectories)) for name, reward in self._scored()]
        return [{name: scores[i] for name, scores in columns} for i in range(len(trajectories))]

    def outcomes(self, components: Sequence[Components]) -> list[float | None]:
        """The outcome's value of each row to which it applies, `None` where its judge abstained."""
        if self._adaptive is None:
            return []
        scores = [row[self._adaptive.outcome.name] for row in components]
        return [
            score.value
            for score in scores
            if score.value is not None or score.parts.get("abstained")
        ]

    def advance(
        self, state: MixState, outcomes: Sequence[float | None], step: int | None = None
    ) -> MixState:
        """The state for an update whose global batch had these outcomes: that of `step`, by default the next.

        The EMA stays where it is when there are none, and when the judge abstained from more than a tenth of them: what
        is then left does not represent the batch.
        """
        values = [value for value in outcomes if value is not None]
        ema, missing = state.ema, len(outcomes) - len(values)
        if self._adaptive is not None and values and missing <= MISSING * len(outcomes):
            mean, beta = sum(values) / len(values), self._adaptive.beta
            ema = mean if ema is None else beta * ema + (1 - beta) * mean
        return MixState(ema, state.step + 1 if step is None else step)

    @property
    def outcome(self) -> str | None:
        """The component that says whether an answer is right: the adaptive part's outcome, else the only part that
        compares answers, or `None`.
        """
        if self._adaptive is not None:
            return self._adaptive.outcome.name
        comparing = (Correctness, SelfCorrectness, SourceGated)
        found = [name for name, part in self.parts.items() if isinstance(part, comparing)]
        return found[0] if len(found) == 1 else None

    def alpha(self, state: MixState) -> float | None:
        return None if self._adaptive is None else self._adaptive.alpha(state.ema)

    def combine(self, components: Sequence[Components], state: MixState) -> list[Score]:
        """One score a row; `parts` has each component's value, and `alpha`."""
        alpha, weights = self.alpha(state), self.weights_at(state.step)
        return [self._combine_row(row, weights, alpha) for row in components]

    def weights_at(self, step: int) -> dict[str, float]:
        """Each part's weight at a step: its own, as far as the warm-up lets it count."""
        equal = dict.fromkeys(self.parts, 1 / len(self.parts))
        weights = (
            equal
            if self.weights is None
            else {name: self.weights.get(name, 0.0) for name in self.parts}
        )
        return {
            name: own * (self.warmup.ramp(name, step) if self.warmup else 1.0)
            for name, own in weights.items()
        }

    def _combine_row(
        self, row: Components, weights: Mapping[str, float], alpha: float | None
    ) -> Score:
        told: dict[str, Any] = {name: score.value for name, score in row.items()}
        if alpha is not None:
            told["alpha"] = alpha
        if self.gate is not None:
            gate = row[self.gate.name]
            if gate.value is None:
                return _missing(self.gate.name, gate, told)
            if gate.value < 1.0:
                # the row's value stands at the steps that failed the gate
                blame = tuple(
                    None if step is None or step >= 1.0 else INVALID for step in gate.steps
                )
                return Score(INVALID, gate.why, told, blame)
        outcome = cast(str, self.outcome)  # there is one where `only_right` names a part
        right = self._value(outcome, row[outcome]) if self.only_right else None
        total = 0.0
        earned: list[
            tuple[float, tuple[float, ...]]
        ] = []  # weight and credit of what says something of steps
        for name, weight in weights.items():
            if (
                weight == 0
            ):  # nor does it empty the row: before a warm-up a judge that is down costs nothing
                continue
            value, part, shares = 0.0, self.parts[name], [(name, 1.0)]
            if isinstance(part, Adaptive):
                # there is an alpha where a part is adaptive
                shares = [(reward.name, share) for reward, share in part.shares(cast(float, alpha))]
            for component, share in shares:
                if name in self.only_right and component != outcome:
                    if right is None:
                        return _missing(outcome, row[outcome], told)
                    if right < 1.0:
                        continue
                own = self._value(component, row[component])
                if own is None:
                    return _missing(component, row[component], told)
                value += share * own
                if credit := row[component].credit[0]:
                    earned.append((weight * share, credit))
            total += weight * value
        # entries whose mean is what the steps earned; none if no part knows of steps
        rows = [[weight * own * len(credit) for own in credit] for weight, credit in earned]
        return Score(total, "", told, tuple(map(sum, zip(*rows, strict=True))))

    def _value(self, name: str, score: Score) -> float | None:
        # where a judge abstained nobody knows: that is no absence
        applies = score.value is not None or score.parts.get("abstained")
        return score.value if applies else self.absent.get(name)

    @property
    def _adaptive(self) -> Adaptive | None:
        return next((part for part in self.parts.values() if isinstance(part, Adaptive)), None)

    def _scored(self) -> Iterator[tuple[str, Reward]]:
        if self.gate is not None:
            yield self.gate.name, self.gate
        for name, part in self.parts.items():
            if isinstance(part, Adaptive):
                yield from ((reward.name, reward) for reward, _ in part.shares(0.0))
            else:
                yield name, part


def _missing(name: str, score: Score, told: dict[str, Any]) -> Score:
    if score.parts.get("abstained"):
        told["abstained"] = True
    return Score(None, f"{name}: {score.why or 'no value'}", told)
