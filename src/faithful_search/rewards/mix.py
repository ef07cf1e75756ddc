"""Several rewards as one: gate, weights, warm-up, and Proof-of-Use's adaptive answer reward."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self, cast

from ..errors import ConfigError
from ..trajectory import Trajectory
from .answer_support import AnswerSupport
from .base import Reward, Score
from .citation import Citation
from .correctness import Correctness
from .evidence_sensitivity import EvidenceSensitivity
from .format import Format
from .self_correctness import SelfCorrectness
from .source_gated import SourceGated
from .warmup import Warmup

MISSING = 0.1
"""The share of a batch's outcomes that a judge may leave open before their mean counts for nothing."""
Components = dict[str, Score]


@dataclass(frozen=True)
class Adaptive:
    """R_a = alpha·process + (1 - alpha)·outcome, one alpha for the whole global batch (Proof-of-Use, equations 6 to 9).

    ```
    c̄ ← beta c̄ + (1 - beta) c        c: the batch mean of the outcome
    alpha = sigmoid(kappa (tau - c̄))
    ```

    The paper gives no values for beta, tau and kappa, nor for c̄ before the first batch; these are ours. See `MixState`
    for where c̄ starts. `fixed` holds alpha constant: 0.5 is the static
    mix, 0.0 leaves the process out (it is then not scored at all).
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

    @property
    def rewards(self) -> tuple[Reward, ...]:
        """The rewards this part scores."""
        return (self.outcome,) if self.fixed == 0 else (self.process, self.outcome)

    def alpha(self, ema: float | None) -> float:
        """The weight of the process at an EMA of the outcome; before any batch that of 0."""
        return sigmoid(self.kappa * (self.tau - (ema or 0.0))) if self.fixed is None else self.fixed

    def value(self, components: Components, alpha: float, counts: bool = True) -> float | None:
        """The convex combination of one row, with 0 for a process that does not count; `None` when either side has no
        value."""
        outcome = components[self.outcome.name].value
        if self.fixed == 0:
            return outcome
        process = components[self.process.name].value if counts else 0.0
        return None if process is None or outcome is None else alpha * process + (1 - alpha) * outcome


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


def _paper_parts() -> dict[str, Reward | Adaptive]:
    return {"citation": Citation(), "evidence_sensitivity": EvidenceSensitivity(), "answer": Adaptive()}


@dataclass(frozen=True)
class Mix(Reward):
    """A gated, weighted sum of rewards; the default is Proof-of-Use's objective.

    ```
    R = Σ_k w_k · ramp_k(step) · R_k   if gate ≥ 1, else `invalid`
    R_final (default) = (R_cite + R_pt + R_a) / 3 if the format is valid, else -1
    ```

    Proof-of-Use, section 3.3.4, equation 10. Purely functional: the state is a value. In training the order is
    `components` → `outcomes` of all processes → `advance` → `combine`, so that a batch's alpha already knows
    the batch (equations 7 to 9). `score_batch` combines at `state0` and advances nothing.

    A part without a value (its judge abstained, or it does not apply: no gold answers, say) makes the whole row `None`,
    and `why` says which; the zeros that a paper defines stay in the sum. A part named in `absent` that does not apply
    counts as the value given there instead; where its judge abstained, the row has no value all the same. A part of
    weight 0 at a step takes no part in that. A row that fails the gate is `invalid` whatever its parts are.

    Parts named in `only_right` count where the answer is right and are 0 elsewhere, so that nothing is earned by citing
    well and being wrong (the rule of C-GRPO; CaRR, arXiv 2601.06021):

    ```
    R_k → R_k · [outcome ≥ right_from]                             for k in only_right
    R_a → alpha·process·[outcome ≥ right_from] + (1 - alpha)·outcome     for the `Adaptive` part
    ```

    They are then 0 whether or not they apply and their judge answered. Nor is anything lost there: where a part can be
    negative, a wrong answer is spared its penalty. Where nobody knows whether the answer is right, the row has no
    value.

    Args:
        parts: rewards by name; at most one is `Adaptive`.
        weights: by part name; `None` is the mean of the parts. Dropping a part from `parts` therefore averages over
            those that are left (ours; the paper does not say): give weights of 1/3 to keep the paper's divisor. Weights
            that sum to more than 1 may leave `range`.
        gate: a reward that must reach 1.0, or `None`.
        invalid: the value of a row that fails the gate.
        warmup: a schedule for some weights.
        absent: by part name, what a part counts where it does not apply to a row. Not for an `Adaptive` part.
        only_right: names of parts that count on right answers only; what is right, `outcome` says.
        right_from: the outcome from which an answer is right.
        state0: where training starts, and what `score_batch` uses.

    Example:
        >>> from faithful_search.trajectory import Step, Trajectory
        >>> mix = Mix(parts={"citation": Citation(), "answer": Adaptive(fixed=0.5)})
        >>> t = Trajectory(steps=(Step(think="I know.", answer="Rome"),), answer="Rome", answers=("Rome",))
        >>> mix.score(t).value  # no citation: 0; no support: 0; correct: 1, half of it counts
        0.25
        >>> state = mix.advance(MixState(), [1.0])
        >>> state.ema, round(mix.advance(state, [0.0]).ema, 6)
        (1.0, 0.9)

    How to hack it: answer from memory while alpha is small. A right answer without any tool call still earns (1 -
    alpha)/3.
    """

    parts: Mapping[str, Reward | Adaptive] = field(default_factory=_paper_parts)
    weights: Mapping[str, float] | None = None
    gate: Reward | None = field(default_factory=Format)
    invalid: float = -1.0
    warmup: Warmup | None = None
    absent: Mapping[str, float] = field(default_factory=dict)
    only_right: tuple[str, ...] = ()
    right_from: float = 1.0
    state0: MixState = MixState()

    name: ClassVar[str] = "mix"
    range: ClassVar[tuple[float, float]] = (-1.0, 1.0)

    def __post_init__(self) -> None:
        if not self.parts:
            raise ConfigError("Mix: needs at least one part")
        if sum(isinstance(part, Adaptive) for part in self.parts.values()) > 1:
            raise ConfigError("Mix: at most one part may be Adaptive; there is one EMA")
        names = [name for name, _ in self._scored()]
        if len(set(names)) < len(names):
            raise ConfigError(f"Mix: two components share a name: {', '.join(sorted(names))}")
        for given, what in ((self.weights, "weights"), (self.warmup and self.warmup.parts, "warmup")):
            self._check_names(given or (), what)
        self._check_names(self.absent, "absent")
        if any(isinstance(self.parts[name], Adaptive) for name in self.absent):
            raise ConfigError("Mix: absent cannot name an Adaptive part; it is two rewards")
        self._check_names(self.only_right, "only_right")
        if self.only_right and self.outcome in (None, *self.only_right):
            raise ConfigError("Mix: only_right needs a part, not named in it, that says whether an answer is right")

    def _check_names(self, given: Iterable[str], what: str) -> None:
        unknown = sorted(set(given) - set(self.parts))
        if unknown:
            raise ConfigError(f"Mix: {what} name {', '.join(unknown)}; the parts are {', '.join(self.parts)}")

    @property
    def needs_policy(self) -> bool:  # type: ignore[override]
        """Whether any component asks the policy itself."""
        return any(reward.needs_policy for _, reward in self._scored())

    @property
    def samples_policy(self) -> bool:  # type: ignore[override]
        """Whether any component lets the policy write."""
        return any(reward.samples_policy for _, reward in self._scored())

    def covers(self, dialect: str) -> bool:
        """Whether every component, the gate included, covers the dialect: one that does not makes every row `None`."""
        return all(reward.covers(dialect) for _, reward in self._scored())

    def bind(self, **resources: Any) -> Self:
        """A copy whose rewards, at every level, have those of `resources` that they have fields for."""
        parts = {name: _bind(part, resources) for name, part in self.parts.items()}
        return dataclasses.replace(self, parts=parts, gate=self.gate and self.gate.bind(**resources))

    def score(self, trajectory: Trajectory) -> Score:
        return self.score_batch([trajectory])[0]

    def score_batch(self, trajectories: Sequence[Trajectory]) -> list[Score]:
        return self.combine(self.components(trajectories), self.state0)

    def components(self, trajectories: Sequence[Trajectory]) -> list[Components]:
        """Every reward's scores, each computed once: one mapping a row, by component name."""
        columns = [(name, reward.score_batch(trajectories)) for name, reward in self._scored()]
        return [{name: scores[i] for name, scores in columns} for i in range(len(trajectories))]

    def outcomes(self, components: Sequence[Components]) -> list[float | None]:
        """The outcome's value of each row to which it applies, `None` where its judge abstained: of all processes
        together they are what `advance` takes."""
        adaptive = self._adaptive()
        if adaptive is None:
            return []
        scores = [row[adaptive.outcome.name] for row in components]
        return [score.value for score in scores if score.value is not None or score.parts.get("abstained")]

    def advance(self, state: MixState, outcomes: Sequence[float | None], step: int | None = None) -> MixState:
        """The state for an update whose global batch had these outcomes: that of `step`, by default the next.

        The EMA stays where it is when there are none, and when the judge abstained from more than a tenth of them:
        what is then left (exact matches, say, for which no judge is asked) is no sample of the batch.
        """
        adaptive = self._adaptive()
        values = [value for value in outcomes if value is not None]
        step = state.step + 1 if step is None else step
        if adaptive is None or not values or len(outcomes) - len(values) > MISSING * len(outcomes):
            return MixState(state.ema, step)
        mean = sum(values) / len(values)
        ema = mean if state.ema is None else adaptive.beta * state.ema + (1 - adaptive.beta) * mean
        return MixState(ema, step)

    @property
    def outcome(self) -> str | None:
        """The component that says whether an answer is right: the adaptive part's outcome, else the only one among the
        parts that compares answers; `None` when there is none, or more than one."""
        adaptive = self._adaptive()
        if adaptive is not None:
            return adaptive.outcome.name
        found = [
            name for name, part in self.parts.items() if isinstance(part, (Correctness, SelfCorrectness, SourceGated))
        ]
        return found[0] if len(found) == 1 else None

    def alpha(self, state: MixState) -> float | None:
        """The weight of the process in the adaptive part; `None` when there is none."""
        adaptive = self._adaptive()
        return None if adaptive is None else adaptive.alpha(state.ema)

    def combine(self, components: Sequence[Components], state: MixState) -> list[Score]:
        """One score a row; `parts` has each component's value, and `alpha`."""
        alpha = self.alpha(state)
        weights = self.weights_at(state.step)
        return [self._combine_row(row, weights, alpha) for row in components]

    def weights_at(self, step: int) -> dict[str, float]:
        """Each part's weight at a step: its own, as far as the warm-up lets it count."""
        return {name: self._weight(name, step) for name in self.parts}

    def _combine_row(self, row: Components, weights: Mapping[str, float], alpha: float | None) -> Score:
        parts: dict[str, Any] = {name: score.value for name, score in row.items()}
        if alpha is not None:
            parts["alpha"] = alpha
        if self.gate is not None:
            gate = row[self.gate.name]
            if gate.value is None:
                return _missing(self.gate.name, gate, parts)
            if gate.value < 1.0:
                return Score(self.invalid, gate.why, parts, _blame(gate, self.invalid))
        return self._sum(row, weights, alpha, parts)

    def _sum(self, row: Components, weights: Mapping[str, float], alpha: float | None, parts: dict[str, Any]) -> Score:
        total, right = 0.0, self._right(row)
        counted: list[tuple[float, Score]] = []
        for name, part in self.parts.items():
            if weights[name] == 0:
                continue
            counts = name not in self.only_right or right
            if counts is None:
                outcome = cast(str, self.outcome)
                return _missing(outcome, row[outcome], parts)
            if isinstance(part, Adaptive):
                value = part.value(row, alpha or 0.0, counts)
            else:
                value = self._value(name, row[name]) if counts else 0.0
            if value is None:
                culprit = next(key for key in _names(name, part) if row[key].value is None)
                return _missing(culprit, row[culprit], parts)
            total += weights[name] * value
            if counts:
                counted += ((weights[name] * share, score) for share, score in _shares(part, name, row, alpha or 0.0))
        return Score(total, "", parts, _steps(counted))

    def _right(self, row: Components) -> bool | None:
        """Whether the answer is right; `None` where nobody knows, or nothing depends on it."""
        if not self.only_right:
            return None
        outcome = cast(str, self.outcome)
        value = self._value(outcome, row[outcome])
        return None if value is None else value >= self.right_from

    def _value(self, name: str, score: Score) -> float | None:
        applies = score.value is not None or score.parts.get("abstained")
        return score.value if applies else self.absent.get(name)

    def _weight(self, name: str, step: int) -> float:
        weight = 1 / len(self.parts) if self.weights is None else self.weights.get(name, 0.0)
        return weight * (self.warmup.ramp(name, step) if self.warmup else 1.0)

    def _adaptive(self) -> Adaptive | None:
        return next((part for part in self.parts.values() if isinstance(part, Adaptive)), None)

    def _scored(self) -> Iterator[tuple[str, Reward]]:
        if self.gate is not None:
            yield self.gate.name, self.gate
        for name, part in self.parts.items():
            rewards = part.rewards if isinstance(part, Adaptive) else (part,)
            yield from zip(_names(name, part), rewards, strict=True)


def sigmoid(x: float) -> float:
    """1 / (1 + e^-x), without overflow for any x."""
    if x >= 0:
        return 1 / (1 + math.exp(-x))
    return math.exp(x) / (1 + math.exp(x))


def _names(name: str, part: Reward | Adaptive) -> tuple[str, ...]:
    return tuple(reward.name for reward in part.rewards) if isinstance(part, Adaptive) else (name,)


def _shares(part: Reward | Adaptive, name: str, row: Components, alpha: float) -> Iterator[tuple[float, Score]]:
    """The scores that make up a part's value, each with how much of it counts."""
    if isinstance(part, Adaptive):
        yield 1 - alpha, row[part.outcome.name]
        if part.fixed != 0:
            yield alpha, row[part.process.name]
    else:
        yield 1.0, row[name]


def _steps(counted: Sequence[tuple[float, Score]]) -> tuple[float, ...]:
    """What the steps earned of a weighted sum, in entries whose mean is all of it; empty if its parts know no steps."""
    earned = [(weight, score.credit[0]) for weight, score in counted]
    rows = [[weight * own * len(credit) for own in credit] for weight, credit in earned if credit]
    return tuple(map(sum, zip(*rows, strict=True)))


def _blame(gate: Score, invalid: float) -> tuple[float | None, ...]:
    """The value of a row that failed the gate, at the steps that failed it."""
    return tuple(None if step is None or step >= 1.0 else invalid for step in gate.steps)


def _bind(part: Reward | Adaptive, resources: Mapping[str, Any]) -> Reward | Adaptive:
    if isinstance(part, Adaptive):
        return dataclasses.replace(part, process=part.process.bind(**resources), outcome=part.outcome.bind(**resources))
    return part.bind(**resources)


def _missing(name: str, score: Score, parts: dict[str, Any]) -> Score:
    if score.parts.get("abstained"):
        parts["abstained"] = True
    return Score(None, f"{name}: {score.why or 'no value'}", parts)
