"""smolagents: the steps of an agent's memory, or of what `run(…, return_full_result=True)`
returned.
"""

from collections.abc import Mapping
from typing import Any

from .base import Chat, Format, Messages, mapping, mappings, text
from .blocks import as_json
from .call_texts import answer_message, hands_in

_MARKS = frozenset(("step_number", "task", "system_prompt", "plan", "model_output_message"))
_CODE = "python_interpreter"
_OUTPUT = "Last output from code snippet:\n"


def read(value: Any) -> Chat | None:
    """A list of steps as `memory.get_full_steps()` gives them, or an object with such `steps`."""
    steps = mappings(value, "steps" if isinstance(value, Mapping) else None, pure=True)
    marked = [bool(step.keys() & _MARKS) for step in steps]
    if not any(marked):
        return None
    for step, is_marked in zip(steps, marked, strict=True):
        if not is_marked and "output" not in step:
            return None
    if any("action" in step for step in steps):  # a plan beside it is a thought
        return None
    if any("task" in step and "output" in step for step in steps):  # rows, each with its answer
        return None
    messages = [message for step in steps for message in _messages(step)]
    task = text(mapping(value).get("task"))
    if task and not any("task" in step for step in steps):
        messages = [{"role": "user", "content": task}, *messages]
    output = text(mapping(value).get("output"))
    if output and not any(_ends(step) or "output" in step for step in steps):
        messages.append(_answer(output))
    return Chat(messages)


def _messages(step: Mapping[str, Any]) -> Messages:
    """One step. Its observations are those of all its calls together, and go with the last call."""
    if "system_prompt" in step:
        return [{"role": "system", "content": step["system_prompt"]}]
    if "task" in step:
        content = _with_images(str(step["task"]), step.get("task_images"))
        return [{"role": "user", "content": content}]
    if "plan" in step:
        return [{"role": "assistant", "reasoning_content": str(step["plan"])}]
    if "step_number" not in step:
        return []  # the final answer once more
    is_final = _ends(step)
    calls = [_call(fields) for fields in _written_calls(step)]
    output = step.get("model_output")
    answer = _answer(step.get("action_output"))
    # A code agent writes something around what was printed.
    observations = str(step.get("observations") or "").removeprefix("Execution logs:\n")
    printed, mark, value = observations.rpartition(_OUTPUT)
    if mark and (is_final or value.strip() == "None"):  # at the end the output is the answer again
        observations = printed.rstrip()
    if is_final:
        handing_calls = [call for call in calls if hands_in(call["name"])]
        if handing_calls and step.get("action_output") is None:
            answer = {"role": "assistant", "tool_calls": handing_calls}
        calls = [call for call in calls if call["name"] == _CODE and observations]
    error = mapping(step, "error").get("message")
    messages: Messages = []
    if calls or output:
        # What failed before there was a call is no answer.
        field = "content" if calls or not error else "reasoning_content"
        messages.append({"role": "assistant", field: output, "tool_calls": calls})
    if calls:
        *earlier, last = calls
        for call in earlier:
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": ""})
        content = _with_images(observations, step.get("observations_images"))
        messages.append(
            {"role": "tool", "tool_call_id": last["id"], "content": content, "error": error}
        )
    elif error:
        messages.append({"role": "user", "content": str(error)})
    return [*messages, answer] if is_final else messages


def _with_images(text: str, images: Any) -> list[dict[str, str]]:
    parts = [{"type": "text", "text": text}]
    if images:
        parts.append({"type": "image"})
    return parts


def _written_calls(step: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The calls of a step; where one failed, all of them stand only in the model's message."""
    return mappings(step, "tool_calls") or mappings(step.get("model_output_message"), "tool_calls")


def _ends(step: Mapping[str, Any]) -> bool:
    """Whether the answer is in this step. Without a call it was asked for when no steps were left."""
    if step.get("is_final_answer"):
        return True
    return step.get("action_output") is not None and not _written_calls(step)


def _call(fields: Mapping[str, Any]) -> dict[str, Any]:
    function = mapping(fields, "function") or fields
    name, arguments = function.get("name"), function.get("arguments")
    if isinstance(arguments, str) and not arguments.lstrip().startswith("{"):  # code, or other text
        arguments = {"code" if name == _CODE else "input": arguments}
    return {"id": str(fields.get("id", "")), "name": name, "arguments": arguments}


def _answer(output: Any) -> dict[str, Any]:
    return answer_message(output if isinstance(output, str) else as_json(output))


FORMAT = Format("a smolagents memory", read, {"step_number", "steps", "model_output"})
