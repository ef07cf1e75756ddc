"""Agents that need no training, one file each: the baselines that papers compare with.

`load("ircot")` finds the class of `ircot.py`; `open_agent` makes one of a model, tools and
settings.
"""

import sys

from .. import registry
from ..rollout.agent import Agent
from ..tools.toolbox import Toolbox
from .base import AgentSettings, Attempt, ChatAgent
from .models import ChatModel, ModelReply, PolicyModel, ServedModel

__all__ = [
    "AgentSettings",
    "Attempt",
    "ChatAgent",
    "ChatModel",
    "ModelReply",
    "PolicyModel",
    "ServedModel",
    "load",
    "names",
    "open_agent",
]


def names() -> list[str]:
    """The agents of this package, sorted."""
    return registry.names(sys.modules[__name__], Agent)


def load(name: str) -> type:
    """The agent's class: by a name of `names`, by an entry point of the group
    `faithful_search.agents`, or by the path of a file that defines one.

    Raises `ConfigError` for an unknown name.
    """
    return registry.find(sys.modules[__name__], name, Agent, names())


def open_agent(name: str, model: ChatModel, toolbox: Toolbox, settings: AgentSettings) -> Agent:
    """The agent of this name, asking this model with these tools.

    Raises `ConfigError` for an unknown name, and for a tool or a setting that the agent cannot work
    without.

    Example:
        ```python
        model = ServedModel("Qwen/Qwen2.5-7B-Instruct", "http://127.0.0.1:8000/v1")
        with Toolbox([LocalSearch.from_corpus("world")]) as toolbox:
            agent = open_agent("rag", model, toolbox, AgentSettings())
            print(agent.run(load_tasks("world", "test", limit=8))[0].answer)
        ```
    """
    agent: Agent = load(name)(model, toolbox, settings)
    return agent
