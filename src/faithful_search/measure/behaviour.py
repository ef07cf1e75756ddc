"""What agents did in their episodes: which tools they called, how they took empty responses, and why they failed."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from ..rewards import Correctness
from ..trajectory import Step, Trajectory
from .stats import Floats

ERRORS = ("wrong answer", "wrong formatting", "limits")
"""Why episodes fail (trajectory-level self-evaluation, table 2)."""


def tool_counts(trajectories: Iterable[Trajectory]) -> Counter[str]:
    """Calls per tool name, as the policy wrote them."""
    return Counter(
        step.call.name
        for trajectory in trajectories
        for step in trajectory.steps
        if step.call is not None
    )


def tool_ratios(counts: Mapping[str, int], tools: Sequence[str]) -> dict[str, float]:
    """The share of the calls of `tools` that went to each of them; all 0.0 without a call."""
    total = sum(counts.get(tool, 0) for tool in tools)
    return {tool: counts.get(tool, 0) / total if total else 0.0 for tool in tools}


def tool_entropy(counts: Mapping[str, int], tools: Sequence[str]) -> float | None:
    """Normalised entropy `−Σ p_i log p_i / log K` over the K available tools, in [0, 1] (Proof-of-Use, figure 4).

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
    """The share of verdicts `no` among those on responses with evidence; `None` without such a verdict."""
    said = [step.helpful for _, step in _judged(trajectory)]
    return said.count(False) / len(said) if said else None


def retry_share(trajectory: Trajectory, tools: Sequence[str]) -> float | None:
    """The share of such no's after which the same turn calls another of the tools; `None` without a no."""
    retried = [
        before.call is not None
        and step.call is not None
        and step.call.name in {*tools} - {before.call.name}
        for before, step in _judged(trajectory)
        if not step.helpful
    ]
    return sum(retried) / len(retried) if retried else None


def _judged(trajectory: Trajectory) -> list[tuple[Step, Step]]:
    """The steps with a verdict on evidence, each behind the step that had received it."""
    return [
        (before, step)
        for before, step in pairwise(trajectory.steps)
        if before.evidence and step.helpful is not None
    ]


def error_of(trajectory: Trajectory) -> str | None:
    """One of `ERRORS`, or `None` where the answer is an exact match. Limits of turns or tokens come first."""
    if Correctness().score(trajectory).value == 1.0:
        return None
    if (trajectory.stop_reason or "").endswith(
        "_limit"
    ):  # turn_limit, token_limit, turn_token_limit
        return "limits"
    return "wrong answer" if (trajectory.answer or "").strip() else "wrong formatting"


def error_counts(trajectories: Sequence[Trajectory]) -> dict[str, int]:
    """How many episodes failed for each reason, and `total` of them; `episodes` is how many there are."""
    found = Counter(filter(None, map(error_of, trajectories)))
    return {
        **{kind: found[kind] for kind in ERRORS},
        "total": found.total(),
        "episodes": len(trajectories),
    }


def error_table(counts: Mapping[str, Mapping[str, int]]) -> str:
    """A Markdown table of several agents' `error_counts`, with each reason's share of the errors."""
    lines = [f"| | {' | '.join(ERRORS)} | total | of episodes |", f"|{'---|' * (len(ERRORS) + 3)}"]
    for agent, found in counts.items():
        total = found["total"]
        shares = [f"{found[kind]} ({found[kind] / total:.0%})" if total else "0" for kind in ERRORS]
        lines.append(f"| {agent} | {' | '.join(shares)} | {total} | {found['episodes']} |")
    return "\n".join(lines)
