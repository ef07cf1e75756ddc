"""What agents did in their episodes: which tools they called, how they reacted to blanked
responses, and why they failed.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from ..rewards import Correctness
from ..rewards.citation_returned import is_report
from ..trajectory import Step, Trajectory
from .stats import Floats

ERRORS = ("wrong answer", "wrong formatting", "limits")
"""Why episodes fail (trajectory-level self-evaluation, table 2)."""


def tool_counts(trajectories: Iterable[Trajectory]) -> Counter[str]:
    """The number of calls by the tools' names, as the policy wrote them. A report without a trace
    has none: nobody called for what it cites.
    """
    counts: Counter[str] = Counter()
    for trajectory in trajectories:
        if not is_report(trajectory):
            counts.update(step.call.name for step in trajectory.steps if step.call is not None)
    return counts


def tool_ratios(counts: Mapping[str, int], tools: Sequence[str]) -> dict[str, float]:
    """The share of the calls of `tools` that went to each of them; all 0.0 without a call."""
    total = sum(counts.get(tool, 0) for tool in tools)
    return {tool: counts.get(tool, 0) / total if total else 0.0 for tool in tools}


def tool_entropy(counts: Mapping[str, int], tools: Sequence[str]) -> float | None:
    """Normalised entropy `−Σ p_i log p_i / log K` over the K available tools, in [0, 1]
    (Proof-of-Use, figure 4).

    `None` without any call, or with fewer than two tools.
    """
    if len(tools) < 2 or not any(counts.get(tool) for tool in tools):
        return None
    return float(normalized_entropy({tool: np.array([counts.get(tool, 0.0)]) for tool in tools})[0])


def normalized_entropy(calls: Mapping[Any, Floats]) -> Floats:
    """The entropy of calls by tool, (n,) each; NaN without a call or with one tool."""
    counts = np.array(list(calls.values()))
    with np.errstate(invalid="ignore"):
        shares = counts / counts.sum(axis=0)
        logs = np.log(shares, out=np.zeros_like(shares), where=shares > 0)  # 0 log 0 counts as 0
        return np.abs((shares * logs).sum(axis=0)) / np.log(len(counts))


def no_share(trajectory: Trajectory) -> float | None:
    """The share of the verdicts on responses with evidence that are `no`; `None` without such
    verdicts.
    """
    verdicts = [step.helpful for _, step in _judged(trajectory)]
    return verdicts.count(False) / len(verdicts) if verdicts else None


def retry_share(trajectory: Trajectory, tools: Sequence[str]) -> float | None:
    """The share of these `no` after which the same turn calls another one of the tools; `None`
    without a `no`.
    """
    retried = []
    for before, step in _judged(trajectory):
        if step.helpful:
            continue
        if before.call is None or step.call is None:
            retried.append(False)
        else:
            retried.append(step.call.name != before.call.name and step.call.name in tools)
    return sum(retried) / len(retried) if retried else None


def _judged(trajectory: Trajectory) -> list[tuple[Step, Step]]:
    """The steps with a verdict on evidence, each after the step that had received the evidence."""
    return [
        (before, step)
        for before, step in pairwise(trajectory.steps)
        if before.evidence and step.helpful is not None
    ]


def error_of(trajectory: Trajectory) -> str | None:
    """Why the episode failed, one of `ERRORS`; `None` if its answer is an exact match.

    It needs gold answers: without them every answer counts as wrong. An episode that was cut off
    failed by its limits, whatever it answered.
    """
    if Correctness().score(trajectory).value == 1.0:
        return None
    # turn_limit, token_limit, turn_token_limit
    if (trajectory.stop_reason or "").endswith("_limit"):
        return "limits"
    return "wrong answer" if (trajectory.answer or "").strip() else "wrong formatting"


def error_counts(trajectories: Sequence[Trajectory]) -> dict[str, int]:
    """The number of episodes that failed for each reason, of all that failed (`total`), and of all
    (`episodes`).
    """
    errors = Counter(filter(None, map(error_of, trajectories)))
    return {
        **{kind: errors[kind] for kind in ERRORS},
        "total": errors.total(),
        "episodes": len(trajectories),
    }


def error_table(counts: Mapping[str, Mapping[str, int]]) -> str:
    """A Markdown table of the `error_counts` of several agents, with the share of each reason."""
    lines = [f"| | {' | '.join(ERRORS)} | total | of episodes |", f"|{'---|' * (len(ERRORS) + 3)}"]
    for agent, errors in counts.items():
        total = errors["total"]
        shares = [
            f"{errors[kind]} ({errors[kind] / total:.0%})" if total else "0" for kind in ERRORS
        ]
        lines.append(f"| {agent} | {' | '.join(shares)} | {total} | {errors['episodes']} |")
    return "\n".join(lines)
