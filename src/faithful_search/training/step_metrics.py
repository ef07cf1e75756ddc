"""What a step's log says of a process's rollouts: their rewards' parts, their endings, and their tool calls."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ..measure.behaviour import tool_counts, tool_entropy, tool_ratios
from ..measure.origins import Decorated
from ..rewards import Correctness, Format, Mix, MixState, Reward, Score
from ..tools import ToolStats
from ..trajectory import Trajectory

Metrics = dict[str, float | None]
"""By name; `None` where there is nothing to measure."""
BEHAVIOUR: dict[str, Reward] = {
    "exact_match": Correctness(),
    "answer_first": Decorated("answer_first"),
    "valid_format": Format(),
}
"""Measured on every step's rollouts, whatever they are rewarded for."""


def part_metrics(mix: Mix, state: MixState, components: Sequence[Mapping[str, Score]]) -> Metrics:
    """`parts/…`: each part's mean value, share of abstentions and weight, and the mix's α."""
    found: Metrics = {}
    for name in components[0]:
        scores = [row[name] for row in components]
        # A centred reward is 0 on average: log the values before centring.
        found[f"parts/{name}"] = _mean(
            score.parts.get("raw", score.value) for score in scores if score.value is not None
        )
        found[f"parts/{name}/abstained"] = _mean(bool(score.parts.get("abstained")) for score in scores)
    found |= {f"parts/{name}/weight": weight for name, weight in mix.weights_at(state.step).items()}
    alpha = mix.alpha(state)
    return found | {"parts/alpha": alpha, "parts/outcome_ema": None if alpha is None else state.ema}


def rollout_metrics(rollouts: Sequence[Trajectory], tools: Sequence[str], endings: Sequence[str]) -> Metrics:
    """`behaviour/…`, the shares of `endings`, and how calls spread over the tools."""
    scored = {name: [reward.score(item).value for item in rollouts] for name, reward in BEHAVIOUR.items()}
    counts = tool_counts(rollouts)
    return {
        **{f"behaviour/{name}": _mean(v for v in values if v is not None) for name, values in scored.items()},
        **{f"tools/ratio/{tool}": ratio for tool, ratio in tool_ratios(counts, tools).items()},
        "tools/entropy": tool_entropy(counts, tools),
        "tools/calls": sum(counts.values()) / len(rollouts),
        **{f"ended/{name}": _mean(item.stop_reason == name for item in rollouts) for name in endings},
    }


def rights(mix: Mix, components: Sequence[Mapping[str, Score]], rollouts: Sequence[Trajectory]) -> list[bool]:
    """Whether each rollout is right: by the mix's outcome, or an exact match where it has none."""
    if mix.outcome is None:
        values = [BEHAVIOUR["exact_match"].score(item).value for item in rollouts]
    else:
        values = [row[mix.outcome].value for row in components]
    return [value is not None and value >= 1 for value in values]


def one_outcome(right: Sequence[bool], k: int) -> float:
    """The share of questions whose k rollouts are all right or all wrong."""
    groups = [set(right[start : start + k]) for start in range(0, len(right), k)]
    return sum(len(group) == 1 for group in groups) / len(groups)


def tool_metrics(used: Mapping[str, ToolStats], rollouts: int) -> Metrics:
    """`tools/…`: each tool's calls per rollout, shares of hits and errors, and seconds of a call."""
    found: Metrics = {}
    for name, stats in used.items():
        found[f"tools/{name}/calls"] = stats.calls / rollouts
        found[f"tools/{name}/hits"] = stats.hits / stats.calls if stats.calls else None
        found[f"tools/{name}/errors"] = stats.errors / stats.calls if stats.calls else None
        found |= {f"tools/{name}/p50": stats.p50, f"tools/{name}/p95": stats.p95}
    calls = sum(stats.calls for stats in used.values())
    return found | {"tools/errors": sum(stats.errors for stats in used.values()) / calls if calls else None}


def _mean(values: Iterable[float]) -> float | None:
    found = list(values)
    return sum(found) / len(found) if found else None
