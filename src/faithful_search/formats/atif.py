"""ATIF, the agent trajectory interchange format: steps of system, user and agent, with what its calls returned."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .base import Chat, Format, Messages, mapping, mappings, text


class Atif(Format):
    """One trajectory document; trajectories of sub-agents in it are left out."""

    what = "an ATIF trajectory"
    marks = frozenset({"schema_version"})

    def read(self, value: Any) -> Chat | None:
        version = mapping(value).get("schema_version")
        if not isinstance(version, str) or not version.startswith("ATIF"):
            return None
        messages = [message for step in mappings(value.get("steps")) for message in _messages(step)]
        within = len(mappings(value.get("subagent_trajectories")))
        name = text(value.get("session_id")) or text(value.get("trajectory_id")) or ""
        return Chat(messages, id=name, left_out=(f"{within} trajectories of sub-agents",) if within else ())


def _messages(step: Mapping[str, Any]) -> Messages:
    source = step.get("source")
    spoken = {"content": step.get("message"), "reasoning_content": step.get("reasoning_content")}
    if source != "agent":
        return [{"role": "system" if source == "system" else "user", **spoken}]
    results = mappings(mapping(step, "observation").get("results"))
    returned = [{"role": "tool", **result} for result in results]
    return [{"role": "assistant", **spoken, "tool_calls": step.get("tool_calls")}, *returned]
