"""Which tools an agent calls, and how evenly (Proof-of-Use, figures 1 and 4)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence

import numpy as np

from ..trajectory import Trajectory
from .stats import Floats


def tool_counts(trajectories: Iterable[Trajectory]) -> Counter[str]:
    """Calls per tool name, as the policy wrote them."""
    return Counter(step.call.name for trajectory in trajectories for step in trajectory.steps if step.call is not None)


def tool_ratios(counts: Mapping[str, int], tools: Sequence[str] | None = None) -> dict[str, float]:
    """Share of the calls that went to each of `tools`, by default those that were called. All 0.0 without a call."""
    known = [tool for tool, count in counts.items() if count] if tools is None else list(tools)
    total = sum(counts.get(tool, 0) for tool in known)
    return {tool: counts.get(tool, 0) / total if total else 0.0 for tool in known}


def tool_entropy(counts: Mapping[str, int], tools: Sequence[str] | None = None) -> float | None:
    """Normalised entropy `−Σ p_i log p_i / log K` over the K available tools, in [0, 1].

    `None` without any call, or with fewer than two tools. Without `tools` K is the number of tools that were called: a
    tool that nobody calls is then not missed, so that such values are higher, and comparable only where all were used.
    """
    names = list(tool_ratios(counts, tools))
    if len(names) < 2:
        return None
    value = float(normalized_entropy(names, np.array([[counts.get(name, 0.0) for name in names]]))[0])
    return None if np.isnan(value) else value


def normalized_entropy(tools: Sequence[Hashable], calls: Floats) -> Floats:
    """The entropy of each row of calls by tool, (n, K) to (n,); NaN without a call or with one tool."""
    with np.errstate(invalid="ignore"):
        shares = calls / calls.sum(axis=1, keepdims=True)
        logs = np.log(shares, out=np.zeros_like(shares), where=shares > 0)  # 0 log 0 counts as 0
        return np.abs((shares * logs).sum(axis=1)) / np.log(len(tools))
