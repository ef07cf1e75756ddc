"""A batch of rollouts with their scores, and what a step's log says of it."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

import msgspec

from ..measure.behaviour import tool_counts, tool_entropy, tool_ratios
from ..measure.origins import Decorated
from ..rewards import Correctness, Format, Mix, MixState, Reward, Score
from ..tools import ToolStats
from ..trajectory import Trajectory
from ..world import Change

Metrics = dict[str, float | None]  # by name; `None` where there is nothing to measure
BEHAVIOUR: dict[str, Reward] = {
    "exact_match": Correctness(),
    "answer_first": Decorated("answer_first"),
    "valid_format": Format(),
}
"""Measured on every step's rollouts, whatever they are rewarded for."""
OWN, RULE = "self_rubric", "world_rubric"
"""Parts of a mix: what a policy gives its own rollouts, and a rule that is scored beside it and rewards nothing."""


class Scored(NamedTuple):
    trajectory: Trajectory
    turns: int
    score: Score
    components: dict[str, Score]

    @property
    def silent(self) -> bool:
        """Whether a judge that abstained left it without reward."""
        return self.score.value is None and bool(self.score.parts.get("abstained"))

    def right(self, outcome: str | None) -> bool:
        """Whether its answer is right, by that component or an exact match."""
        score = (
            BEHAVIOUR["exact_match"].score(self.trajectory)
            if outcome is None
            else self.components[outcome]
        )
        return score.value is not None and score.value >= 1

    def told(self, step: int, alpha: float | None) -> Trajectory:
        """The trajectory with its reward, each component's value, steps, reason and details, in `meta`."""
        parts = self.components.items()
        meta = {
            **self.trajectory.meta,
            "step": step,
            "reward": self.score.value,
            "why": self.score.why,
            "scores": {name: part.value for name, part in parts},
            "steps": {name: part.steps for name, part in parts if part.steps},
            "reasons": {name: part.why for name, part in parts if part.why},
            "parts": {name: part.parts for name, part in parts if part.parts},
            "alpha": alpha,
        }
        return msgspec.structs.replace(self.trajectory, meta=meta)


def reward_metrics(mix: Mix, state: MixState, batch: Sequence[Scored], k: int) -> Metrics:
    """Each part's mean, share of abstentions and weight; of groups of k the share with one outcome; `self_metrics`."""
    found: Metrics = {"judge/abstained": fmean(row.silent for row in batch)}
    for name in batch[0].components:
        scores = [row.components[name] for row in batch]
        # A centred reward is 0 on average: log the values before centring.
        found[f"parts/{name}"] = _mean(score.parts.get("raw", score.value) for score in scores)
        found[f"parts/{name}/abstained"] = fmean(
            bool(score.parts.get("abstained")) for score in scores
        )
    found |= {f"parts/{name}/weight": weight for name, weight in mix.weights_at(state.step).items()}
    alpha = mix.alpha(state)
    found |= {"parts/alpha": alpha, "parts/outcome_ema": None if alpha is None else state.ema}
    right = [row.right(mix.outcome) for row in batch]
    groups = [set(right[start : start + k]) for start in range(0, len(right), k)]
    found["groups/one_outcome"] = fmean(len(group) == 1 for group in groups)
    if {OWN, RULE} <= batch[0].components.keys():
        found |= self_metrics(
            [(row.components[OWN].value, row.components[RULE].value) for row in batch]
        )
    return found


def self_metrics(pairs: Iterable[tuple[float | None, float | None]]) -> Metrics:
    """A policy's own scores beside a rule's, over the rollouts that both have scored: means, their difference, and the
    root mean square difference, which also grows where the mean stays.

    >>> self_metrics([(1.0, 1.0), (1.0, 0.5), (None, 1.0)])
    {'self_score': 1.0, 'rule_score': 0.75, 'self_gap': 0.25, 'self_rmse': 0.3535533905932738}
    """
    both = [(own, rule) for own, rule in pairs if own is not None and rule is not None]
    if not both:
        return {}
    own, rule = map(fmean, zip(*both, strict=True))
    rmse = fmean((first - second) ** 2 for first, second in both) ** 0.5
    return {"self_score": own, "rule_score": rule, "self_gap": own - rule, "self_rmse": rmse}


def rollout_metrics(
    rollouts: Sequence[Trajectory], tools: Sequence[str], endings: Sequence[str]
) -> Metrics:
    """`behaviour/…`, the shares of `endings`, and how calls spread over the tools."""
    counts = tool_counts(rollouts)
    return {
        **{
            f"behaviour/{name}": _mean(own.score(item).value for item in rollouts)
            for name, own in BEHAVIOUR.items()
        },
        **{f"tools/ratio/{tool}": ratio for tool, ratio in tool_ratios(counts, tools).items()},
        "tools/entropy": tool_entropy(counts, tools),
        "tools/calls": sum(counts.values()) / len(rollouts),
        **{
            f"ended/{name}": fmean(item.stop_reason == name for item in rollouts)
            for name in endings
        },
    }


def world_metrics(rollouts: Sequence[Trajectory], due: Sequence[bool]) -> Metrics:
    """`counterfactual/…`: the share of rollouts in a changed world, of those that were `due` the share whose question
    has none, and exact match in changed worlds and of the other rollouts."""
    changed = [Change.of(item.meta) is not None for item in rollouts]
    right = [BEHAVIOUR["exact_match"].score(item).value for item in rollouts]
    found: dict[str, Sequence[float | None]] = {
        "share": changed,
        "unchanged": [not there for there, wanted in zip(changed, due, strict=True) if wanted],
        "exact_match": [value for value, there in zip(right, changed, strict=True) if there],
        "original": [value for value, there in zip(right, changed, strict=True) if not there],
    }
    return {f"counterfactual/{name}": _mean(values) for name, values in found.items()}


def tool_metrics(used: Mapping[str, ToolStats], rollouts: int) -> Metrics:
    """`tools/…`: each tool's calls per rollout, shares of hits and errors, and seconds of a call."""
    found: Metrics = {}
    for name, stats in used.items():
        shares = {"hits": stats.hits, "errors": stats.errors}
        own = {key: count / stats.calls if stats.calls else None for key, count in shares.items()}
        own |= {
            "calls": stats.calls / rollouts,
            "p50": stats.quantile(0.5),
            "p95": stats.quantile(0.95),
        }
        found |= {f"tools/{name}/{key}": value for key, value in own.items()}
    calls = sum(stats.calls for stats in used.values())
    return found | {
        "tools/errors": sum(stats.errors for stats in used.values()) / calls if calls else None
    }


def left_open(batch: Sequence[Scored]) -> list[str]:
    """What there is to say of a batch's rollouts that a judge left open, and of others without a reward."""
    said: list[str] = []
    parts = [
        (name, part)
        for row in batch
        for name, part in row.components.items()
        if part.parts.get("abstained")
    ]
    if parts:
        counts = Counter(name for name, _ in parts)
        named = ", ".join(f"{name} of {count}" for name, count in counts.items())
        why = next((part.why for _, part in parts if part.why), "")
        lost = sum(row.silent for row in batch)
        said.append(
            f"no verdict on {named} of {len(batch)} rollouts; {lost} of them have no reward: {why}"
        )
    # Rollouts without reward for another reason, such as no gold answers, are not the judge's fault.
    others = [row.score.why for row in batch if row.score.value is None and not row.silent]
    if others:
        said.append(f"{len(others)} of {len(batch)} rollouts have no reward: {others[0]}")
    return said


def _mean(values: Iterable[float | None]) -> float | None:
    found = [value for value in values if value is not None]
    return fmean(found) if found else None
