"""The models that an evaluation loads: each once, however many question sets it has."""

from typing import Any, cast

from ..agents import AgentSettings, ChatModel, PolicyModel, ServedModel, open_agent
from ..bundled import bundled_policy
from ..inference.base import Generator
from ..rollout import Agent
from ..tools.toolbox import Toolbox
from .evaluation_settings import EvaluationArguments, PolicyArguments

REPLY_TOKENS, TOTAL_TOKENS = 512, 8192
"""The limits of an agent's reply and of its episode, unless flags say otherwise."""


class Models:
    """Loads policies, and the model that an agent asks.

    Attributes:
        chat: the agent's model; `None` until an agent was opened.
    """

    def __init__(self) -> None:
        self.chat: ChatModel | None = None
        self._generators: dict[str, Generator] = {}

    def generator(self, name: str, script: PolicyArguments) -> Generator:
        """The policy of this name, a directory or a Hub id."""
        if name not in self._generators:
            self._generators[name] = _open_policy(name, script)
        return self._generators[name]

    def agent(self, script: EvaluationArguments, toolbox: Toolbox) -> Agent:
        """The agent that the flags name, with these tools."""
        if self.chat is None:
            self.chat = self._open_chat(script)
        return open_agent(cast(str, script.agent_name), self.chat, toolbox, agent_settings(script))

    def _open_chat(self, script: EvaluationArguments) -> ChatModel:
        if script.endpoint is not None:
            return ServedModel(script.model, script.endpoint, concurrency=script.episodes_at_once)
        from ..inference.loading import max_tokens

        generator: Any = self.generator(script.model, script)
        window = max_tokens(generator.model, generator.tokenizer)
        return PolicyModel(generator, script.model, window, script.generation_batch)


def agent_settings(script: EvaluationArguments) -> AgentSettings:
    """How the agent works, from the flags."""
    return AgentSettings(
        turns=script.turns,
        max_tokens=script.turn_tokens or REPLY_TOKENS,
        total_tokens=script.total_tokens or TOTAL_TOKENS,
        temperature=script.temperature,
        seed=script.seed,
        concurrency=script.episodes_at_once,
        dialect=script.dialect,
    )


def _open_policy(name: str, script: PolicyArguments) -> Generator:
    from transformers import AutoModelForCausalLM

    from ..inference.loading import open_model
    from ..inference.transformers import TransformersGenerator

    model, tokenizer = open_model(
        AutoModelForCausalLM,
        bundled_policy(name, cast(str, script.dialect)),
        dtype=script.dtype,
        trust_remote_code=script.trust_remote_code,
    )
    return TransformersGenerator(model, tokenizer, script.generation_batch)
