"""Figures of training runs and evaluations, one function each.

Figures need matplotlib, imported when one is drawn.
"""

from .plots import bars, compare, reliability, reward_curves, tool_curves

__all__ = ["bars", "compare", "reliability", "reward_curves", "tool_curves"]
