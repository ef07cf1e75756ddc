"""DSPy's ReAct: `thought_0`, `tool_name_0`, `tool_args_0`, `observation_0`, and so on."""

import re
from collections.abc import Mapping
from typing import Any

from .base import Chat, Format, Messages, mapping, text
from .blocks import as_json

_STEP = re.compile(r"(?:thought|tool_name|tool_args|observation)_([0-9]{1,4})")
_FINISH = "finish"
"""The tool that ends the search; the answer is then written from what was found."""


def read(value: Any) -> Chat | None:
    """A prediction of `dspy.ReAct`: its `trajectory`, and the `answer` beside it."""
    fields = mapping(value)
    steps = mapping(fields, "trajectory")
    if not steps or not all(_STEP.fullmatch(str(name)) for name in steps):
        return None
    question = text(fields.get("question"))
    messages: Messages = [{"role": "user", "content": question}] if question else []
    numbers = sorted({int(name.rpartition("_")[2]) for name in steps})
    for number in numbers:
        messages += _step(steps, number)
    answer = text(fields.get("answer"))
    if answer is not None:
        thought = text(fields.get("reasoning")) or ""
        messages.append({"role": "assistant", "content": answer, "reasoning_content": thought})
    return Chat(messages, question, agents=frozenset(("answer", "reasoning")))


def _step(steps: Mapping[str, Any], number: int) -> Messages:
    thought, name = text(steps.get(f"thought_{number}")), steps.get(f"tool_name_{number}")
    message: dict[str, Any] = {"role": "assistant", "content": "", "reasoning_content": thought}
    if name in (None, _FINISH):
        return [message] if thought else []
    function = {"name": name, "arguments": steps.get(f"tool_args_{number}") or {}}
    call = {"id": str(number), "type": "function", "function": function}
    observation = steps.get(f"observation_{number}")
    content = observation if isinstance(observation, str) else as_json(observation)
    return [
        {**message, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": str(number), "content": content},
    ]


FORMAT = Format(
    "a DSPy ReAct prediction", read, frozenset(("thought_0", "tool_name_0", "observation_0"))
)
