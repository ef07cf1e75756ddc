"""Figures of training runs and evaluations, one function each. Needs matplotlib, imported when a figure is drawn."""

from .plots import bars, compare, reliability, reward_curves, tool_curves

__all__ = ["bars", "compare", "reliability", "reward_curves", "tool_curves"]
