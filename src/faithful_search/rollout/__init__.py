"""Rollouts: one episode's state machine, the engine that runs many, and the toolbox for loops that
others run.
"""

from .agent import Agent
from .engine import Engine
from .environment import SearchEnvironment, tool_functions
from .episode import Episode, Limits
from .served import ServedAgent

__all__ = [
    "Agent",
    "Engine",
    "Episode",
    "Limits",
    "SearchEnvironment",
    "ServedAgent",
    "tool_functions",
]
