"""Figures of training runs and evaluations, one function each.

Figures need matplotlib, imported when one is drawn.
"""

from .figures import bars, compare, lines, reliability, reward_curves, self_preference, stability_curves, tool_curves

__all__ = [
    "bars",
    "compare",
    "lines",
    "reliability",
    "reward_curves",
    "self_preference",
    "stability_curves",
    "tool_curves",
]
