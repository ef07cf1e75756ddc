"""Several rewards as one: gate, weights, warm-up, and what counts on right answers only."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self, cast

from ..errors import ConfigError
from ..trajectory import Trajectory
from .adaptive import Adaptive, MixState
from .base import BatchReward, Reward, Score
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
class Mix(BatchReward):
    """A gated, weighted sum of rewards; the default is Proof-of-Use's objective.

    ```
    R = Σ_k w_k · ramp_k(step) · R_k   if gate ≥ 1, else `invalid`
    R_final (default) = (R_cite + R_pt + R_a) / 3 if the format is valid, else -1
    ```

    Proof-of-Use, section 3.3.4, equation 10. The state is a value: in training the order is `components` → `outcomes`
    of all processes → `advance` → `combine`, so that a batch's alpha already knows the batch (equations 7 to 9).
    `score_batch` combines at `state0` and advances nothing.

    A part without a value (its judge abstained, or it does not apply: no gold answers, say) makes the whole row `None`,
    and `why` says which; the zeros that a paper defines stay in the sum. One named in `absent` that does not apply
    counts as the value given there; one of weight 0 at a step is passed over. A row that fails the gate is `invalid`
    whatever its parts are.

    Parts named in `only_right` count where the answer is right and are 0 elsewhere, so that nothing is earned by citing
    well and being wrong (the rule of C-GRPO; CaRR, arXiv 2601.06021):

    ```
    R_k → R_k · [outcome ≥ right_from]                             for k in only_right
    R_a → alpha·process·[outcome ≥ right_from] + (1 - alpha)·outcome     for the `Adaptive` part
    ```

    They are then 0 whether or not they apply and their judge answered, and a wrong answer is spared their penalties,
    too. Where nobody knows whether the answer is right, the row has no value.

    Args:
        parts: rewards by name; at most one is `Adaptive`.
        weights: by part name; `None` is the mean of the parts, of those that are left where one is dropped (ours; the
            paper does not say: weights of 1/3 keep its divisor). Weights that sum to more than 1 may leave `range`.
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

    parts: Mapping[str, Reward | Adaptive] = field(
        default_factory=lambda: {
            "citation": Citation(),
            "evidence_sensitivity": EvidenceSensitivity(),
            "answer": Adaptive(),
        }
    )
    weights: Mapping[str, float] | None = None
    gate: Reward | None = field(default_factory=Format)
    invalid: float = -1.0
    warmup: Warmup | None = None
    absent: Mapping[str, float] = field(default_factory=dict)
    only_right: tuple[str, ...] = ()
    right_from: float = 1.0
    state0: MixState = field(default_factory=MixState)

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
        warmed = self.warmup.parts if self.warmup else ()
        named = {"weights": self.weights or (), "warmup": warmed, "absent": self.absent, "only_right": self.only_right}
        for what, given in named.items():
            unknown = sorted(set(given) - set(self.parts))
            if unknown:
                raise ConfigError(f"Mix: {what} name {', '.join(unknown)}; the parts are {', '.join(self.parts)}")
        if any(isinstance(self.parts[name], Adaptive) for name in self.absent):
            raise ConfigError("Mix: absent cannot name an Adaptive part; it is two rewards")
        if self.only_right and self.outcome in (None, *self.only_right):
            raise ConfigError("Mix: only_right needs a part, not named in it, that says whether an answer is right")

    @property
    def made_of(self) -> tuple[Reward, ...]:
        """Every component, the gate included."""
        return tuple(reward for _, reward in self._scored())

    def bind(self, **resources: Any) -> Self:
        """A copy whose rewards, at every level, have those of `resources` that they have fields for."""
        parts = {name: part.bind(**resources) for name, part in self.parts.items()}
        return dataclasses.replace(self, parts=parts, gate=self.gate and self.gate.bind(**resources))

    def score_batch(self, trajectories: Sequence[Trajectory]) -> list[Score]:
        return self.combine(self.components(trajectories), self.state0)

    def components(self, trajectories: Sequence[Trajectory]) -> list[Components]:
        """Every reward's scores, each computed once: one mapping a row, by component name."""
        # column by column, so that a reward's judge or the policy is asked once about all rows
        columns = [(name, reward.score_batch(trajectories)) for name, reward in self._scored()]
        return [{name: scores[i] for name, scores in columns} for i in range(len(trajectories))]

    def outcomes(self, components: Sequence[Components]) -> list[float | None]:
        """The outcome's value of each row to which it applies, `None` where its judge abstained."""
        adaptive = self._adaptive()
        if adaptive is None:
            return []
        scores = [row[adaptive.outcome.name] for row in components]
        return [score.value for score in scores if score.value is not None or score.parts.get("abstained")]

    def advance(self, state: MixState, outcomes: Sequence[float | None], step: int | None = None) -> MixState:
        """The state for an update whose global batch had these outcomes: that of `step`, by default the next.

        The EMA stays where it is when there are none, and when the judge abstained from more than a tenth of them:
        what is then left (exact matches, say, for which no judge is asked) does not represent the batch.
        """
        adaptive = self._adaptive()
        values = [value for value in outcomes if value is not None]
        ema, missing = state.ema, len(outcomes) - len(values)
        if adaptive is not None and values and missing <= MISSING * len(outcomes):
            mean = sum(values) / len(values)
            ema = mean if ema is None else adaptive.beta * ema + (1 - adaptive.beta) * mean
        return MixState(ema, state.step + 1 if step is None else step)

    @property
    def outcome(self) -> str | None:
        """The component that says whether an answer is right: the adaptive part's outcome, else the only part that
        compares answers; `None` when there is none, or more than one."""
        adaptive = self._adaptive()
        if adaptive is not None:
            return adaptive.outcome.name
        comparing = (Correctness, SelfCorrectness, SourceGated)
        found = [name for name, part in self.parts.items() if isinstance(part, comparing)]
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
        equal = dict.fromkeys(self.parts, 1 / len(self.parts))
        weights = equal if self.weights is None else {name: self.weights.get(name, 0.0) for name in self.parts}
        return {name: own * (self.warmup.ramp(name, step) if self.warmup else 1.0) for name, own in weights.items()}

    def _combine_row(self, row: Components, weights: Mapping[str, float], alpha: float | None) -> Score:
        told: dict[str, Any] = {name: score.value for name, score in row.items()}
        if alpha is not None:
            told["alpha"] = alpha
        if self.gate is not None:
            gate = row[self.gate.name]
            if gate.value is None:
                return _missing(self.gate.name, gate, told)
            if gate.value < 1.0:
                # the row's value stands at the steps that failed the gate
                blame = tuple(None if step is None or step >= 1.0 else self.invalid for step in gate.steps)
                return Score(self.invalid, gate.why, told, blame)
        outcome = cast(str, self.outcome)  # there is one where `only_right` names a part
        right = self._value(outcome, row[outcome]) if self.only_right else None
        total = 0.0
        counted: list[tuple[float, Score]] = []
        for name, weight in weights.items():
            if weight == 0:  # nor does it empty the row: before a warm-up a judge that is down costs nothing
                continue
            value = 0.0
            part, shares = self.parts[name], [(name, 1.0)]
            if isinstance(part, Adaptive):
                process = cast(float, alpha)  # there is one where a part is adaptive
                shares = [(part.outcome.name, 1 - process)]
                if part.fixed != 0:  # else the process was not even scored
                    shares.insert(0, (part.process.name, process))
            for component, share in shares:
                if name in self.only_right and component != outcome:
                    if right is None:
                        return _missing(outcome, row[outcome], told)
                    if right < self.right_from:
                        continue
                own = self._value(component, row[component])
                if own is None:
                    return _missing(component, row[component], told)
                value += share * own
                counted.append((weight * share, row[component]))
            total += weight * value
        # entries whose mean is what the steps earned; none if no part knows of steps
        earned = [(weight, score.credit[0]) for weight, score in counted]
        rows = [[weight * own * len(credit) for own in credit] for weight, credit in earned if credit]
        return Score(total, "", told, tuple(map(sum, zip(*rows, strict=True))))

    def _value(self, name: str, score: Score) -> float | None:
        # where a judge abstained nobody knows: that is no absence
        applies = score.value is not None or score.parts.get("abstained")
        return score.value if applies else self.absent.get(name)

    def _adaptive(self) -> Adaptive | None:
        return next((part for part in self.parts.values() if isinstance(part, Adaptive)), None)

    def _scored(self) -> Iterator[tuple[str, Reward]]:
        if self.gate is not None:
            yield self.gate.name, self.gate
        for name, part in self.parts.items():
            if isinstance(part, Adaptive):
                # its outcome alone where nothing else counts: the process is then not even asked about
                rewards = (part.outcome,) if part.fixed == 0 else (part.process, part.outcome)
                yield from ((reward.name, reward) for reward in rewards)
            else:
                yield name, part


def _missing(name: str, score: Score, told: dict[str, Any]) -> Score:
    if score.parts.get("abstained"):
        told["abstained"] = True
    return Score(None, f"{name}: {score.why or 'no value'}", told)
