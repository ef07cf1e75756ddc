"""Episodes of a policy with its tools: one sample's state machine, and the engine that runs many."""

from .engine import Engine
from .episode import Episode, Limits

__all__ = ["Engine", "Episode", "Limits"]
