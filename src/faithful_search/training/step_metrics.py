"""What a step's log says of a batch of scored rollouts."""

import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean

import torch

from ..measure.behaviour import tool_counts, tool_entropy, tool_ratios
from ..measure.origins import Decorated
from ..rewards import Correctness, Format, Mix, MixState, Reward
from ..tasks import CHANGE
from ..tools import ToolStats
from ..trajectory import Trajectory
from .rollout_batch import ScoredRollout

Metrics = dict[str, float | None]  # by name; `None` where there is nothing to measure
BEHAVIOUR: dict[str, Reward] = {
    "exact_match": Correctness(),
    "answer_first": Decorated("answer_first"),
    "valid_format": Format(),
}
"""Measured on every step's rollouts, whatever they are rewarded for."""
SELF, RULE = "self_rubric", "world_rubric"
"""Parts of a mix: the scores that a policy gives its own rollouts, and those of a rule, which
reward nothing and are compared with them.
"""


def reward_metrics(
    mix: Mix, state: MixState, batch: Sequence[ScoredRollout], generations: int
) -> Metrics:
    """The mean, share of abstentions and weight of each part of the mix; the share of questions
    whose rollouts all have the same outcome; and `self_metrics`.

    The `generations` rollouts of a question stand next to each other in the batch.
    """
    metrics: Metrics = {"judge/abstained": fmean(row.unjudged for row in batch)}
    for name in batch[0].components:
        scores = [row.components[name] for row in batch]
        abstained = [bool(score.parts.get("abstained")) for score in scores]
        # A centred reward is 0 on average, so the values before centring are logged
        metrics[f"parts/{name}"] = _mean(score.parts.get("raw", score.value) for score in scores)
        metrics[f"parts/{name}/abstained"] = fmean(abstained)
    for name, weight in mix.weights_at(state.step).items():
        metrics[f"parts/{name}/weight"] = weight
    alpha = mix.alpha(state)
    metrics["parts/alpha"] = alpha
    metrics["parts/outcome_ema"] = None if alpha is None else state.ema
    right = [row.is_right(mix.outcome_name) for row in batch]
    starts = range(0, len(right), generations)
    groups = [set(right[start : start + generations]) for start in starts]
    metrics["groups/one_outcome"] = fmean(len(group) == 1 for group in groups)
    if {SELF, RULE} <= batch[0].components.keys():
        metrics |= self_metrics(
            [(row.components[SELF].value, row.components[RULE].value) for row in batch]
        )
    return metrics


def self_metrics(pairs: Iterable[tuple[float | None, float | None]]) -> Metrics:
    """The policy's own scores compared with a rule's, on the rollouts that both have scored: the
    means, their difference, and the root mean square difference, which also grows while the means
    stay the same.

    >>> self_metrics([(1.0, 1.0), (1.0, 0.5), (None, 1.0)])
    {'self_score': 1.0, 'rule_score': 0.75, 'self_gap': 0.25, 'self_rmse': 0.3535533905932738}
    """
    both = [(policy, rule) for policy, rule in pairs if policy is not None and rule is not None]
    if not both:
        return {}
    policy_mean = fmean(policy for policy, _ in both)
    rule_mean = fmean(rule for _, rule in both)
    return {
        "self_score": policy_mean,
        "rule_score": rule_mean,
        "self_gap": policy_mean - rule_mean,
        "self_rmse": fmean((policy - rule) ** 2 for policy, rule in both) ** 0.5,
    }


def rollout_metrics(
    rollouts: Sequence[Trajectory], tools: Sequence[str], endings: Sequence[str]
) -> Metrics:
    """`behaviour/…`, the shares of `endings`, and how calls spread over the tools."""
    metrics: Metrics = {}
    for name, reward in BEHAVIOUR.items():
        metrics[f"behaviour/{name}"] = _mean(reward.score(row).value for row in rollouts)
    counts = tool_counts(rollouts)
    for tool, ratio in tool_ratios(counts, tools).items():
        metrics[f"tools/ratio/{tool}"] = ratio
    metrics["tools/entropy"] = tool_entropy(counts, tools)
    metrics["tools/calls"] = sum(counts.values()) / len(rollouts)
    for ending in endings:
        metrics[f"ended/{ending}"] = fmean(row.stop_reason == ending for row in rollouts)
    return metrics


def world_metrics(rollouts: Sequence[Trajectory], due: Sequence[bool]) -> Metrics:
    """The metrics `counterfactual/…` of a batch. `due` says which rollouts were to be in a changed
    world.

    They are the share of rollouts in a changed world (`share`), the share of those that were due
    whose question has no changed world (`unchanged`), and the exact match in changed worlds
    (`exact_match`) and elsewhere (`original`).
    """
    changed: list[float] = []
    unchanged: list[float] = []
    exact_match: list[float | None] = []
    original: list[float | None] = []
    for rollout, was_due in zip(rollouts, due, strict=True):
        is_changed = CHANGE in rollout.meta
        value = BEHAVIOUR["exact_match"].score(rollout).value
        changed.append(is_changed)
        if was_due:
            unchanged.append(not is_changed)
        if is_changed:
            exact_match.append(value)
        else:
            original.append(value)
    return {
        "counterfactual/share": _mean(changed),
        "counterfactual/unchanged": _mean(unchanged),
        "counterfactual/exact_match": _mean(exact_match),
        "counterfactual/original": _mean(original),
    }


def tool_metrics(used: Mapping[str, ToolStats], rollouts: int) -> Metrics:
    """The metrics `tools/…`: for each tool the calls per rollout, the shares of hits and errors,
    and the quantiles of the seconds that a call took.
    """
    metrics: Metrics = {}
    for name, stats in used.items():
        metrics |= {
            f"tools/{name}/hits": _share(stats.hits, stats.calls),
            f"tools/{name}/errors": _share(stats.errors, stats.calls),
            f"tools/{name}/calls": stats.calls / rollouts,
            f"tools/{name}/p50": stats.quantile(0.5),
            f"tools/{name}/p95": stats.quantile(0.95),
        }
    calls = sum(stats.calls for stats in used.values())
    metrics["tools/errors"] = _share(sum(stats.errors for stats in used.values()), calls)
    return metrics


def memory_metrics(device: torch.device) -> Metrics:
    """`memory/peak_gb`: the most memory that this process has held so far, in units of 10^9 bytes.

    It is what torch allocated on a GPU, and on a CPU the whole process. There is none on other
    devices, and on systems that do not say it.
    """
    if device.type == "cuda":
        return {"memory/peak_gb": torch.cuda.max_memory_allocated(device) / 1e9}
    if device.type != "cpu" or sys.platform != "linux":
        return {}
    import resource  # there is none on Windows

    kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"memory/peak_gb": kilobytes * 1024 / 1e9}


def without_reward(batch: Sequence[ScoredRollout]) -> list[str]:
    """Warnings about rollouts without a verdict of a judge, and about others without a reward."""
    warnings: list[str] = []
    abstained = [
        (name, score)
        for row in batch
        for name, score in row.components.items()
        if score.parts.get("abstained")
    ]
    if abstained:
        counts = Counter(name for name, _ in abstained)
        parts = ", ".join(f"{name} of {count}" for name, count in counts.items())
        why = next((score.why for _, score in abstained if score.why), "")
        lost = sum(row.unjudged for row in batch)
        warnings.append(
            f"no verdict on {parts} of {len(batch)} rollouts; {lost} of them have no reward: {why}"
        )
    # For example for want of gold answers, which is not the judge's fault
    reasons = [row.score.why for row in batch if row.score.value is None and not row.unjudged]
    if reasons:
        warnings.append(f"{len(reasons)} of {len(batch)} rollouts have no reward: {reasons[0]}")
    return warnings


def _mean(values: Iterable[float | None]) -> float | None:
    numbers = [value for value in values if value is not None]
    return fmean(numbers) if numbers else None


def _share(count: int, total: int) -> float | None:
    return count / total if total else None
