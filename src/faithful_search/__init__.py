"""Search agents that use their evidence.

A policy searches and leaves a `Trajectory`. A `Reward` reads it and says how faithful it is, and
why. The same Reward trains, measures and explains.

Every name below is loaded when it is first used: importing the package costs milliseconds and never
imports torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import dialects, judges, rewards, tools
    from .adapters.trl import trl_reward
    from .dialects import Detection, detect, parse
    from .errors import FaithfulSearchError
    from .inference.base import Sampling
    from .inference.transformers import TransformersGenerator
    from .measure.audit import Audit, audit
    from .measure.batches import BatchScorer
    from .measure.metrics import install_metrics
    from .rewards import Mix, Reward, Score, answer_only_mix, pou_mix
    from .rollout.engine import Engine
    from .rollout.environment import SearchEnvironment, tool_functions
    from .rollout.episode import Limits
    from .scoring import Scoring
    from .tasks import Task, load_tasks
    from .tools import Tool, Toolbox
    from .training.arguments import SearchGRPOConfig
    from .training.grpo import SearchGRPOTrainer
    from .trajectory import Evidence, Issue, Step, ToolCall, Trajectory, read_jsonl, write_jsonl

__version__ = "0.1.0.dev0"

__all__ = [
    "Audit", "BatchScorer", "Detection", "Engine", "Evidence", "FaithfulSearchError", "Issue",
    "Limits", "Mix", "Reward", "Sampling", "Score", "Scoring", "SearchEnvironment",
    "SearchGRPOConfig", "SearchGRPOTrainer", "Step", "Task", "Tool", "ToolCall", "Toolbox",
    "Trajectory", "TransformersGenerator", "__version__", "answer_only_mix", "audit", "detect",
    "dialects", "install_metrics", "judges", "load_tasks", "parse", "pou_mix", "read_jsonl",
    "rewards", "tool_functions", "tools", "trl_reward", "write_jsonl",
]  # fmt: skip
_SUBPACKAGES = ("dialects", "judges", "rewards", "tools")
_NAMES = {
    "adapters.trl": ("trl_reward",),
    "dialects": ("Detection", "detect", "parse"),
    "errors": ("FaithfulSearchError",),
    "measure.audit": ("Audit", "audit"),
    "measure.batches": ("BatchScorer",),
    "measure.metrics": ("install_metrics",),
    "inference.base": ("Sampling",),
    "inference.transformers": ("TransformersGenerator",),
    "rewards": ("Mix", "Reward", "Score", "answer_only_mix", "pou_mix"),
    "rollout.engine": ("Engine",),
    "rollout.environment": ("SearchEnvironment", "tool_functions"),
    "rollout.episode": ("Limits",),
    "scoring": ("Scoring",),
    "tasks": ("Task", "load_tasks"),
    "tools": ("Tool", "Toolbox"),
    "training.arguments": ("SearchGRPOConfig",),
    "training.grpo": ("SearchGRPOTrainer",),
    "trajectory": (
        "Evidence",
        "Issue",
        "Step",
        "ToolCall",
        "Trajectory",
        "read_jsonl",
        "write_jsonl",
    ),
}
_HOME = {name: module for module, names in _NAMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name in _SUBPACKAGES:
        return import_module(f".{name}", __name__)
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{_HOME[name]}", __name__), name)
    globals()[name] = value  # the next time it is there
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
