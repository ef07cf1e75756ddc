"""ATIF, the agent trajectory interchange format: steps of system, user and agent, with what its
calls returned.
"""

from typing import Any

from .base import Chat, Format, Messages, mapping, mappings, text


def read(value: Any) -> Chat | None:
    """One trajectory document; trajectories of sub-agents in it are left out."""
    fields = mapping(value)
    if not str(fields.get("schema_version")).startswith("ATIF"):
        return None
    messages: Messages = []
    for step in mappings(fields, "steps"):
        source = step.get("source")
        spoken = {
            "content": step.get("message"),
            "reasoning_content": step.get("reasoning_content"),
        }
        if source == "agent":
            messages.append({"role": "assistant", **spoken, "tool_calls": step.get("tool_calls")})
            messages += [
                {"role": "tool", **result}
                for result in mappings(step.get("observation"), "results")
            ]
        else:
            messages.append({"role": "system" if source == "system" else "user", **spoken})
    within = len(mappings(fields, "subagent_trajectories"))
    name = text(fields.get("session_id")) or text(fields.get("trajectory_id")) or ""
    return Chat(messages, id=name, left_out={"trajectories of sub-agents": within})


FORMAT = Format("an ATIF trajectory", read, {"schema_version"})
