"""Several rewards as one: gate, weights, warm-up, the adaptive part, and what counts on right
answers only.
"""

import dataclasses
import logging
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
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

MOST_MISSING = 0.1
"""The largest share of outcomes without a value at which the EMA is still updated."""
OUTCOMES = (Correctness, SelfCorrectness, SourceGated)
"""The rewards that say whether an answer is right; one of these is a mix's outcome."""
INVALID = -1.0
"""The value of a row that fails the gate."""
_log = logging.getLogger(__name__)
_BOUND = re.compile(r"(?P<steps>\d+)|(?P<epochs>\d+(?:\.\d*)?|\.\d+)\s*ep(?:ochs?)?")
ComponentScores = dict[str, Score]
"""The scores of one trajectory, by the names of what was scored."""


@dataclass(frozen=True)
class Adaptive:
    """R_a = alpha·process + (1 - alpha)·outcome, one alpha for the whole global batch
    (Proof-of-Use, equations 6 to 9).

    ```
    c̄ ← beta c̄ + (1 - beta) c        c: the batch mean of the outcome
    alpha = sigmoid(kappa (tau - c̄))
    ```

    The values of beta, tau and kappa are ours.

    Args:
        process: R_ans in the paper, whether the evidence supports the answer.
        outcome: R_anc in the paper, whether the answer is right.
        beta: how much of the outcome's running mean c̄ the next batch keeps, in [0, 1).
        tau: the running mean at which alpha is one half.
        kappa: how steeply alpha falls around `tau`.
        fixed: a constant alpha in place of the adaptive one; 0.5 is the static mix, 0.0 leaves the
            process out, which is then not scored.

    Raises:
        ConfigError: for `beta` or `fixed` out of range.
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
        return dataclasses.replace(
            self,
            process=self.process.bind(**resources),
            outcome=self.outcome.bind(**resources),
        )

    def alpha(self, ema: float | None) -> float:
        """The weight of the process at an EMA of the outcome. `None`, before any batch, counts as
        0.
        """
        if self.fixed is not None:
            return self.fixed
        # the sigmoid, written as a tanh, which never overflows
        return (1 + math.tanh(self.kappa * (self.tau - (ema or 0.0)) / 2)) / 2

    def shares(self, alpha: float) -> list[tuple[Reward, float]]:
        """The rewards that are scored, with the weight of each at this alpha."""
        outcome = (self.outcome, 1 - alpha)
        if self.fixed == 0:
            return [outcome]
        return [(self.process, alpha), outcome]

    @property
    def scored(self) -> list[Reward]:
        """The rewards that are scored: a process that is left out (`fixed` is 0) is not."""
        return [self.outcome] if self.fixed == 0 else [self.process, self.outcome]


class MixState(msgspec.Struct, frozen=True):
    """What a `Mix` remembers between updates: the outcome's EMA, and the step at which `warmup` is.

    Where `ema` is `None`, the mean of the first batch becomes the EMA. `MixState(ema=0.0)` starts
    from a policy that is never right, so that alpha begins near 1. `step` is the optimizer's,
    counted from 1; 0 is before the first.
    """

    ema: float | None = None
    step: int = 0


@dataclass(frozen=True)
class Warmup:
    """A curriculum (VERITAS, section 4): the weights of `parts` rise linearly with the steps of the
    optimizer.

    ```
    ramp(step) = 0                                for step ≤ T1
               = (step - T1) / (T2 - T1)          for T1 < step < T2
               = 1                                for step ≥ T2
    ```

    `start` is T1, in the paper the end of the first epoch, and `end` T2, half an epoch later, both
    in optimizer steps. Step 1 makes the first update. With T1 = T2 the weights are full from T2 on;
    with 0 and 0 there is no curriculum.
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
        """A warm-up whose bounds are written in steps (`20`, "20") or in epochs ("1.0ep"), rounded
        half up.

        Example:
            >>> Warmup.parse(["info_think"], "1.0ep", "1.5ep", steps_per_epoch=13)
            Warmup(parts=('info_think',), start=13, end=20)
        """
        bounds = []
        for bound in (start, end):
            match = _BOUND.fullmatch(str(bound).strip())
            if match is None:
                raise ConfigError(
                    f"{bound!r} is neither a number of steps (20) nor of epochs (1.5ep)"
                )
            if match["steps"]:
                bounds.append(int(match["steps"]))
            else:
                bounds.append(int(float(match["epochs"]) * steps_per_epoch + 0.5))
        return cls(tuple(parts), *bounds)

    def ramp(self, part: str, step: int) -> float:
        """The factor in [0, 1] on a part's weight at a step, counted from 1."""
        if part not in self.parts or step >= self.end:
            return 1.0
        if step <= self.start:
            return 0.0
        # here start < step < end, so that nothing is divided by 0
        return (step - self.start) / (self.end - self.start)


@dataclass(frozen=True)
class Mix(BatchReward):
    """A gated, weighted sum of rewards; the default is Proof-of-Use's objective.

    ```
    R = Σ_k w_k · ramp_k(step) · R_k   if gate ≥ 1, else -1
    R_final (default) = (R_cite + R_pt + R_a) / 3 if the format is valid, else -1
    ```

    Proof-of-Use, section 3.3.4, equation 10.

    The state of the curriculum is a value that the caller keeps. In training the order is
    `components` → `outcomes` of all processes → `advance` → `combine`, so that the alpha of a batch
    includes the outcomes of this batch (equations 7 to 9). `score_batch` combines at `state0`, and
    no state changes.

    If a part has no value (its judge abstained, or it does not apply), the whole row has none, and
    `why` names the part. A score of 0.0 that a paper defines, with `parts["applies"]` False, is a
    value and is summed. A part whose weight is 0 at a step is scored but not combined, so that a
    judge that is down before its warm-up costs no row its value.

    A policy can invent evidence that stands in its own text. `score_batch` marks such a row by
    `parts["evidence_in_text"]`, and logs one warning in each process.

    Parts named in `only_right` count where the answer is right and are 0 elsewhere, penalties
    included, so that citing well earns nothing where the answer is wrong (the rule of C-GRPO; CaRR,
    arXiv 2601.06021). If it is not known whether the answer is right, the row has no value.

    ```
    R_k → R_k · [outcome ≥ 1]                                   for k in only_right
    R_a → alpha·process·[outcome ≥ 1] + (1 - alpha)·outcome     for the `Adaptive` part
    ```

    Args:
        parts: rewards by name; at most one is `Adaptive`.
        weights: by part name; a part that is not named has weight 0. `None` is the mean of the
            parts. With weights that sum to more than 1, values may leave `range`; `bounds` knows the
            weights.
        gate: a reward that must reach 1.0, or `None`.
        warmup: a schedule for some weights.
        absent: by part name, the value of a part where it does not apply to a row. Not for an
            `Adaptive` part.
        only_right: names of parts that count on right answers only. The component `outcome_name`
            says which are right.
        state0: the state at the start of training, which `score_batch` uses.

    Example:
        >>> from faithful_search.trajectory import Step, Trajectory
        >>> mix = Mix(parts={"citation": Citation(), "answer": Adaptive(fixed=0.5)})
        >>> t = Trajectory(steps=(Step(think="I know.", answer="Rome"),), answer="Rome", answers=("Rome",))
        >>> mix.score(t).value  # no citation: 0; no support: 0; correct: 1, half of it counts
        0.25

    How to hack it: answer from memory while alpha is small. A right answer without any tool call
    earns (1 - alpha)/3.
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
        names_in_settings = {
            "weights": self.weights or (),
            "warmup": self.warmup.parts if self.warmup else (),
            "absent": self.absent,
            "only_right": self.only_right,
        }
        for setting, names in names_in_settings.items():
            unknown = sorted(set(names) - set(self.parts))
            if unknown:
                raise ConfigError(
                    f"Mix: {setting} name {', '.join(unknown)}; the parts are "
                    f"{', '.join(self.parts)}"
                )
        if not self.parts:
            raise ConfigError("Mix: needs at least one part")
        adaptive = {name for name, part in self.parts.items() if isinstance(part, Adaptive)}
        if len(adaptive) > 1:
            raise ConfigError("Mix: at most one part may be Adaptive; there is one EMA")
        components = sorted(self.component_names)
        if len(set(components)) < len(components):
            raise ConfigError(f"Mix: two components share a name: {', '.join(components)}")
        if adaptive & set(self.absent):
            raise ConfigError("Mix: absent cannot name an Adaptive part; it is two rewards")
        outcome = self.outcome_name
        if self.only_right and (outcome is None or outcome in self.only_right):
            raise ConfigError(
                "Mix: only_right needs a part, not named in it, that says whether an answer is "
                "right"
            )

    @property
    def made_of(self) -> tuple[Reward, ...]:
        return tuple(reward for _, reward in self._scored())

    @property
    def component_names(self) -> tuple[str, ...]:
        """The names under which `components` and `Score.parts` have what was scored."""
        return tuple(name for name, _ in self._scored())

    @property
    def bounds(self) -> tuple[float, float]:
        """The range of its values with these weights."""
        least = most = 0.0
        for name, part in self.parts.items():
            weight = self._full_weight(name)
            # A part counts 0 before its warm-up, and where it is for right answers only
            ends = [0.0, self.absent.get(name, 0.0)]
            rewards_of_part = part.scored if isinstance(part, Adaptive) else [part]
            for reward in rewards_of_part:
                ends += reward.range
            weighted_ends = [weight * end for end in ends]
            least += min(weighted_ends)
            most += max(weighted_ends)
        if self.gate is not None:
            least = min(least, INVALID)
        return least, most

    def bind(self, **resources: Any) -> Self:
        # The parts are in a mapping, where `Reward.bind` does not look; it binds the gate.
        parts = {name: part.bind(**resources) for name, part in self.parts.items()}
        return dataclasses.replace(super().bind(**resources), parts=parts)

    def score_batch(self, trajectories: Sequence[Trajectory]) -> list[Score]:
        scores = self.combine(self.components(trajectories), self.state0)
        for number, trajectory in enumerate(trajectories):
            if trajectory.evidence_from == "text":
                _warn_of_texts()
                parts = {**scores[number].parts, "evidence_in_text": True}
                scores[number] = msgspec.structs.replace(scores[number], parts=parts)
        return scores

    def components(self, trajectories: Sequence[Trajectory]) -> list[ComponentScores]:
        """Every reward's scores, each computed once: one mapping a row, by component name."""
        rows: list[ComponentScores] = [{} for _ in trajectories]
        # reward by reward, so that its judge, or the policy, is asked once about all rows
        for name, reward in self._scored():
            for row, score in zip(rows, reward.score_batch(trajectories), strict=True):
                row[name] = score
        return rows

    def outcomes(self, components: Sequence[ComponentScores]) -> list[float | None]:
        """The outcome's value of each row to which it applies, `None` where its judge abstained."""
        if self._adaptive is None:
            return []
        scores = [row[self._adaptive.outcome.name] for row in components]
        return [score.value for score in scores if _has_value_or_abstained(score)]

    def advance(
        self, state: MixState, outcomes: Sequence[float | None], step: int | None = None
    ) -> MixState:
        """The state for an update whose global batch had these outcomes: that of `step`, by default
        the next.

        The EMA stays where it is when there are none, and when the judge abstained from more than a
        tenth of them: what is then left does not represent the batch.
        """
        values = [value for value in outcomes if value is not None]
        missing = len(outcomes) - len(values)
        next_step = state.step + 1 if step is None else step
        if self._adaptive is None or not values or missing > MOST_MISSING * len(outcomes):
            return MixState(state.ema, next_step)
        mean = sum(values) / len(values)
        if state.ema is None:
            return MixState(mean, next_step)
        beta = self._adaptive.beta
        return MixState(beta * state.ema + (1 - beta) * mean, next_step)

    def state_at(self, step: int) -> MixState:
        """The state for rollouts of a step, where nothing adapts to the batch.

        `step` counts from the start of this training; `state0.step` is where an earlier one ended.
        """
        return MixState(self.state0.ema, self.state0.step + step)

    @property
    def outcome_name(self) -> str | None:
        """The component that says whether an answer is right: the adaptive part's outcome, else the
        only part that compares answers, or `None`.
        """
        if self._adaptive is not None:
            return self._adaptive.outcome.name
        candidates = [name for name, part in self.parts.items() if isinstance(part, OUTCOMES)]
        return candidates[0] if len(candidates) == 1 else None

    def alpha(self, state: MixState) -> float | None:
        """The weight of the adaptive part's process; `None` where no part is adaptive."""
        return None if self._adaptive is None else self._adaptive.alpha(state.ema)

    def combine(self, components: Sequence[ComponentScores], state: MixState) -> list[Score]:
        """One score a row; `parts` has each component's value, and `alpha`."""
        alpha = self.alpha(state)
        weights = self.weights_at(state.step)
        return [self._combine_row(row, weights, alpha) for row in components]

    def weights_at(self, step: int) -> dict[str, float]:
        """Each part's weight at a step: its own, as far as the warm-up lets it count."""
        weights = {}
        for name in self.parts:
            ramp = 1.0 if self.warmup is None else self.warmup.ramp(name, step)
            weights[name] = self._full_weight(name) * ramp
        return weights

    def _full_weight(self, name: str) -> float:
        """A part's weight without the warm-up."""
        return 1 / len(self.parts) if self.weights is None else self.weights.get(name, 0.0)

    def _combine_row(
        self, row: ComponentScores, weights: Mapping[str, float], alpha: float | None
    ) -> Score:
        values: dict[str, Any] = {name: score.value for name, score in row.items()}
        if alpha is not None:
            values["alpha"] = alpha
        if self.gate is not None:
            gate = row[self.gate.name]
            if gate.value is None:
                return _missing(self.gate.name, gate, values)
            if gate.value < 1.0:
                return _invalid(gate, values)
        outcome = cast(str, self.outcome_name)  # there is one where `only_right` names a part
        total = 0.0
        step_rows = []
        for part_name, weight in weights.items():
            # Before its warm-up a part whose judge is down leaves no row without a value.
            if weight == 0:
                continue
            part_value = 0.0
            for component_name, share in self._shares(part_name, alpha):
                score = row[component_name]
                if part_name in self.only_right and component_name != outcome:
                    is_right = self._is_right(row)
                    if is_right is None:
                        return _missing(outcome, row[outcome], values)
                    if not is_right:
                        continue
                value = self._value(component_name, score)
                if value is None:
                    return _missing(component_name, score, values)
                part_value += share * value
                step_shares, _ = score.credit
                if step_shares:
                    # `Score.credit` divides by the number of steps. Multiplied by it, the mean of
                    # the mix's `steps` is what the steps earned of its value.
                    scale = weight * share * len(step_shares)
                    step_rows.append([scale * step_share for step_share in step_shares])
            total += weight * part_value
        steps = tuple(sum(column) for column in zip(*step_rows, strict=True))
        return Score(total, "", values, steps)

    def _shares(self, name: str, alpha: float | None) -> list[tuple[str, float]]:
        """The components of a part, with the share of each in the part's value."""
        part = self.parts[name]
        if not isinstance(part, Adaptive):
            return [(name, 1.0)]
        alpha = cast(float, alpha)  # there is one where a part is adaptive
        return [(reward.name, share) for reward, share in part.shares(alpha)]

    def _is_right(self, row: ComponentScores) -> bool | None:
        """Whether the row's answer is right; `None` where nobody knows."""
        outcome = cast(str, self.outcome_name)  # there is one where `only_right` names a part
        value = self._value(outcome, row[outcome])
        return None if value is None else value >= 1.0

    def _value(self, name: str, score: Score) -> float | None:
        """The value with which a component is summed; `None` leaves the row without a value."""
        return score.value if _has_value_or_abstained(score) else self.absent.get(name)

    @property
    def _adaptive(self) -> Adaptive | None:
        return next((part for part in self.parts.values() if isinstance(part, Adaptive)), None)

    def _scored(self) -> Iterator[tuple[str, Reward]]:
        """The rewards to score, by the names of the components: the gate and the parts."""
        if self.gate is not None:
            yield self.gate.name, self.gate
        for name, part in self.parts.items():
            if isinstance(part, Adaptive):
                for reward in part.scored:
                    yield reward.name, reward
            else:
                yield name, part


@cache  # once is enough
def _warn_of_texts() -> None:
    _log.warning(
        "a mix of rewards scores trajectories whose evidence stands in the agent's own text: a "
        "policy that is rewarded for them can invent it. Read what a policy wrote by "
        "faithful_search.parse(…, responses='messages'), or use faithful_search.trl_reward."
    )


def _has_value_or_abstained(score: Score) -> bool:
    """Whether the reward applies to the row: it has a value, or would have one if its judge had
    answered. `Mix.absent` replaces only scores for which this is False.
    """
    return score.value is not None or bool(score.parts.get("abstained"))


def _invalid(gate: Score, values: dict[str, Any]) -> Score:
    """The score of a row that fails the gate. `steps` has the value at each step that failed and
    None elsewhere, so that their mean is the value.
    """
    blame: list[float | None] = []
    for step in gate.steps:
        is_valid = step is None or step >= 1.0
        blame.append(None if is_valid else INVALID)
    return Score(INVALID, gate.why, values, tuple(blame))


def _missing(name: str, score: Score, values: dict[str, Any]) -> Score:
    """The score of a row without a value, since this component has none."""
    if score.parts.get("abstained"):
        values["abstained"] = True
    return Score(None, f"{name}: {score.why or 'no value'}", values)
