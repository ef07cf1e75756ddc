"""smolagents: the steps of an agent's memory, or of what `run(…, return_full_result=True)` returned."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from .base import Chat, Format, Messages, mapping, mappings, only_mappings, text

_MARKS = frozenset(("step_number", "task", "system_prompt", "plan", "model_output_message"))
_CODE = "python_interpreter"
# In the last step the code's output repeats the answer: no evidence.
_ECHO = re.compile(r"\s*Last output from code snippet:.*\Z", re.DOTALL)


class Smolagents(Format):
    """A list of steps as `memory.get_full_steps()` gives them, or an object with such `steps`."""

    what = "a smolagents memory"
    marks = frozenset({"step_number", "steps", "model_output"})

    def read(self, value: Any) -> Chat | None:
        steps = value.get("steps") if isinstance(value, Mapping) else value
        found = only_mappings(steps)
        known = [bool(step.keys() & _MARKS) for step in found]
        if not any(known) or not all(own or "output" in step for own, step in zip(known, found, strict=True)):
            return None
        messages = [message for step in found for message in _messages(step)]
        said = mapping(value).get("output")
        if text(said) and not any(step.get("is_final_answer") or "output" in step for step in found):
            messages.append(_answer(said))
        return Chat(messages)


def _messages(step: Mapping[str, Any]) -> Messages:
    """One step; its observations are those of all its calls together and go with the last."""
    if "system_prompt" in step:
        return [{"role": "system", "content": step["system_prompt"]}]
    if "task" in step:
        images = [{"type": "image"}] if step.get("task_images") else []
        return [{"role": "user", "content": [{"type": "text", "text": str(step["task"])}, *images]}]
    if "plan" in step:
        return [{"role": "assistant", "reasoning_content": str(step["plan"])}]
    if "step_number" not in step:
        return []  # the final answer once more
    final = bool(step.get("is_final_answer"))
    calls = [_call(item) for item in mappings(step.get("tool_calls"))]
    seen = _ECHO.sub("", str(step.get("observations") or "")) if final else step.get("observations")
    if final:
        calls = [call for call in calls if call["name"] == _CODE and str(seen).removeprefix("Execution logs:").strip()]
    said: Messages = [{"role": "assistant", "content": step.get("model_output"), "tool_calls": calls}]
    failed = mapping(step, "error").get("message")
    images = [{"type": "image"}] if step.get("observations_images") else []
    returned = [{"type": "text", "text": str(seen or "")}, *images]
    if calls:
        said += [{"role": "tool", "tool_call_id": call["id"], "content": ""} for call in calls[:-1]]
        said.append({"role": "tool", "tool_call_id": calls[-1]["id"], "content": returned, "error": failed})
    elif failed:
        said.append({"role": "user", "content": str(failed)})
    return [*said, _answer(step.get("action_output"))] if final else said


def _call(item: Mapping[str, Any]) -> dict[str, Any]:
    function = mapping(item, "function")
    name, given = function.get("name"), function.get("arguments")
    if isinstance(given, str) and not given.lstrip().startswith("{"):  # code, or other text
        given = {"code" if name == _CODE else "input": given}
    return {"id": str(item.get("id", "")), "name": name, "arguments": given}


def _answer(given: Any) -> dict[str, Any]:
    said = given if isinstance(given, str) else json.dumps(given, ensure_ascii=False, default=str)
    return {"role": "assistant", "content": f"<answer>{said}</answer>"}
