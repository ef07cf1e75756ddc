"""MiroFlow and MiroThinker: the log of a task, with the conversation of the agent that answered.

Conversations of the agents that it called are left out and counted; what they found is among its
own results.
"""

from typing import Any

from .base import Chat, Format, Messages, mapping, mappings, text

_HISTORY = "main_agent_message_history"
_SUB_AGENTS = "sub_agent_message_history_sessions"


def read(value: Any) -> Chat | None:
    """The log of one task."""
    history = mapping(value, _HISTORY)
    messages: Messages = list(mappings(history, "message_history"))
    if not messages:
        return None
    if text(history.get("system_prompt")):
        messages = [{"role": "system", "content": history["system_prompt"]}, *messages]
    question = text(mapping(value, "input").get("task_description"))
    left_out = {"conversations of other agents": len(mapping(value, _SUB_AGENTS))}
    return Chat(messages, question, left_out=left_out)


FORMAT = Format("a MiroFlow log", read, frozenset((_HISTORY, "final_boxed_answer")))
