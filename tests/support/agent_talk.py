"""Conversations of the agents with a scripted model: what was asked, and what was made of it.

talk = talk_with("rag", ["Rome"])
talk.prompts, talk.trajectory
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from stub_server import StubServer

from faithful_search import agents
from faithful_search.errors import ToolError
from faithful_search.tasks import Task
from faithful_search.tools import Tool, Toolbox
from faithful_search.trajectory import Evidence, Trajectory

TASK = Task("q1", "Who wrote the opera?", ("Verdi",))
FACTS = {
    "Who wrote the opera?": ["Aida is an opera by Verdi."],
    "Verdi": ["Verdi was born in Roncole."],
}


@dataclass
class Shelf(Tool):
    """Returns what it holds under exactly the words of a query, after a pause in seconds."""

    name: str = "local_search"
    facts: dict[str, list[str]] = field(default_factory=lambda: FACTS)
    queries: list[str] = field(default_factory=list)
    pause: float = 0.0

    async def look_up(self, query: str) -> list[Evidence]:
        """Search a shelf of passages.

        Args:
            query: The words to search for.
        """
        self.queries.append(query)
        await asyncio.sleep(self.pause)
        if query == "broken":
            raise ToolError("the shelf is broken")
        texts = self.facts.get(query, [])
        return [Evidence(text, f"{self.name} {n}") for n, text in enumerate(texts, start=1)]


@dataclass
class Talk:
    """What came of a conversation.

    Attributes:
        trajectory: the episode.
        requests: the bodies of the requests, in order.
        ended: what `on_end` was shown.
        told: what `on_step` was shown.
    """

    trajectory: Trajectory
    requests: list[dict[str, Any]]
    ended: list[Trajectory]
    told: list[Any]

    @property
    def prompts(self) -> list[str]:
        """The last message of each request."""
        return [request["messages"][-1]["content"] for request in self.requests]

    @property
    def thoughts(self) -> list[str | None]:
        return [step.think for step in self.trajectory.steps]

    @property
    def queries(self) -> list[Any]:
        """What each step asked for; `None` where it called nothing."""
        return [step.call and step.call.arguments.get("query") for step in self.trajectory.steps]


def talk_with(
    name: str,
    replies: Sequence[str | dict[str, Any]],
    tools: Sequence[Tool] | None = None,
    server: dict[str, Any] | None = None,
    **settings: Any,
) -> Talk:
    """One episode of an agent with a model that gives these replies in turn, the last one again and
    again.
    """
    waiting = list(replies)

    def next_reply(messages: Any) -> str | dict[str, Any]:
        return waiting.pop(0) if len(waiting) > 1 else waiting[0]

    ended: list[Trajectory] = []
    told: list[Any] = []
    opened = [Shelf()] if tools is None else tools
    with StubServer(label=next_reply, **(server or {})) as stub, Toolbox(opened) as toolbox:
        model = agents.ServedModel("stub", stub.url, key="", timeout=5.0)
        agent = agents.open_agent(name, model, toolbox, agents.AgentSettings(**settings))
        [trajectory] = agent.run([TASK], ended.append, lambda _, step: told.append(step))
        return Talk(trajectory, list(stub.requests), ended, told)
