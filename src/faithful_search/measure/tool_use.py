"""Which tools an agent calls, and how evenly (Proof-of-Use, figures 1 and 4)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from ..trajectory import Trajectory


def tool_counts(trajectories: Iterable[Trajectory]) -> Counter[str]:
    """Calls per tool name, as the policy wrote them."""
    return Counter(step.call.name for trajectory in trajectories for step in trajectory.steps if step.call is not None)


def tool_ratios(counts: Mapping[str, int], tools: Sequence[str] | None = None) -> dict[str, float]:
    """Share of the calls that went to each of `tools`; calls of others are left out. All 0.0 without a call.

    Without `tools`, where the list of tools is not known, they are those that were called.

    Example:
        >>> tool_ratios({"search": 3, "read": 1})
        {'search': 0.75, 'read': 0.25}
    """
    known = [tool for tool, count in counts.items() if count] if tools is None else list(tools)
    total = sum(counts.get(tool, 0) for tool in known)
    return {tool: counts.get(tool, 0) / total if total else 0.0 for tool in known}


def tool_entropy(counts: Mapping[str, int], tools: Sequence[str] | None = None) -> float | None:
    """Normalised entropy `−Σ p_i log p_i / log K` over the K available tools, in [0, 1].

    `None` without any call, or with fewer than two tools. Without `tools` K is the number of tools that were called: a
    tool that nobody calls is then not missed, so that such values are higher, and comparable only where all were used.

    Example:
        >>> tool_entropy({"a": 5, "b": 5}, ["a", "b"])
        1.0
    """
    ratios = tool_ratios(counts, tools)
    if len(ratios) < 2 or not any(ratios.values()):
        return None
    return abs(-sum(p * math.log(p) for p in ratios.values() if p > 0) / math.log(len(ratios)))
