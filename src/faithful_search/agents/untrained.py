"""The untrained agent: the model with the tools in a dialect of one's choice, as a trained policy
is run.
"""

from collections.abc import Iterable
from typing import Any

import msgspec

from ..errors import ConfigError
from ..inference.base import Sampling
from ..rollout import Engine, Limits, ServedAgent
from ..rollout.agent import Used
from ..rollout.episode import OnEnd, OnStep
from ..tasks import Task
from ..tools.toolbox import Toolbox
from ..trajectory import Trajectory
from .base import AgentSettings
from .models import ChatModel, PolicyModel, ServedModel

SERVED, HERE = "openai", "search_r1"
"""The dialects by default: of a model behind an endpoint, and of a policy here."""
TURNS = 10
"""The number of turns by default."""


class Untrained:
    """An agent that runs a model behind an endpoint as `ServedAgent` does, and a policy here as
    `Engine` does.

    Raises:
        ConfigError: the model is neither, or the dialect cannot be served.
    """

    def __init__(self, model: ChatModel, toolbox: Toolbox, settings: AgentSettings) -> None:
        self.name = "untrained"
        self.model = model
        self.settings = settings
        self.turns = TURNS if settings.turns is None else settings.turns
        if isinstance(model, ServedModel):
            self._agent: Any = self._served(model, toolbox)
        elif isinstance(model, PolicyModel):
            self._agent = self._here(model, toolbox)
        else:
            raise ConfigError(
                f"the agent 'untrained' runs a ServedModel or a PolicyModel, not {type(model)}"
            )
        self.dialect = self._agent.dialect

    @property
    def toolbox(self) -> Toolbox:
        toolbox: Toolbox = self._agent.toolbox
        return toolbox

    @property
    def stats(self) -> Any:
        """Counts of the model's requests and tokens."""
        return self.model.stats

    def run(
        self, tasks: Iterable[Task], on_end: OnEnd = None, on_step: OnStep = None
    ) -> list[Trajectory]:
        """As `rollout.Agent.run`. The `meta` of each trajectory has the agent, the model, the
        limits and what was used, as with the other agents.
        """

        def ended(trajectory: Trajectory) -> None:
            if trajectory.tokens is not None:  # else the server's requests are counted already
                used = _used(trajectory)
                self.stats.calls += used.requests
                self.stats.prompt_tokens += used.prompt_tokens
                self.stats.completion_tokens += used.completion_tokens
            if on_end is not None:
                on_end(self._with_meta(trajectory))

        trajectories = self._agent.run(tasks, ended, on_step)
        return [self._with_meta(trajectory) for trajectory in trajectories]

    def _served(self, model: ServedModel, toolbox: Toolbox) -> ServedAgent:
        settings, endpoint = self.settings, model.endpoint
        agent = ServedAgent(
            model.name,
            endpoint.url,
            toolbox,
            turns=self.turns,
            max_tokens=settings.max_tokens,
            total_tokens=settings.total_tokens,
            temperature=settings.temperature,
            seed=settings.seed,
            concurrency=endpoint.concurrency,
            timeout=endpoint.timeout,
            dialect=settings.dialect or SERVED,
            key=endpoint.key,
        )
        agent.stats = model.stats  # so that this model's counts include the agent's requests
        return agent

    def _here(self, model: PolicyModel, toolbox: Toolbox) -> Engine:
        settings = self.settings
        limits = Limits(
            turns=self.turns, turn_tokens=settings.max_tokens, total_tokens=settings.total_tokens
        )
        return Engine(
            model.generator,
            toolbox,
            settings.dialect or HERE,
            limits,
            Sampling(temperature=settings.temperature),
            settings.concurrency,
        )

    def _with_meta(self, trajectory: Trajectory) -> Trajectory:
        meta = {
            "agent": self.name,
            "model": self.model.name,
            "limits": {
                "turns": self.turns,
                "max_tokens": self.settings.max_tokens,
                "total_tokens": self.settings.total_tokens,
            },
            **trajectory.meta,  # a `ServedAgent` has written some of these itself
        }
        if trajectory.tokens is not None:  # an episode of the engine, which counts nothing itself
            meta["used"] = msgspec.to_builtins(_used(trajectory))
        return msgspec.structs.replace(trajectory, meta=meta)


def _used(trajectory: Trajectory) -> Used:
    """What an episode of the engine cost, counted as an endpoint would count it: each turn is a
    request whose prompt is all that stands before it.
    """
    tokens = trajectory.tokens
    assert tokens is not None
    prompt_tokens = 0
    for start, _, _ in tokens.turns:
        prompt_tokens += len(tokens.prompt_ids) + start
    return Used(
        requests=len(tokens.turns),
        calls=sum(step.call is not None for step in trajectory.steps),
        prompt_tokens=prompt_tokens,
        completion_tokens=sum(tokens.mask),  # 1 for each token that the policy sampled
    )
