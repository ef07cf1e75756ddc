"""smolagents: the steps of an agent's memory, or of what `run(…, return_full_result=True)` returned."""

from collections.abc import Mapping
from typing import Any

from .base import Chat, Format, Messages, mapping, mappings, text
from .blocks import as_json
from .messages import ANSWERING

_MARKS = frozenset(("step_number", "task", "system_prompt", "plan", "model_output_message"))
_CODE = "python_interpreter"
_OUTPUT = "Last output from code snippet:\n"


def read(value: Any) -> Chat | None:
    """A list of steps as `memory.get_full_steps()` gives them, or an object with such `steps`."""
    found = mappings(value, "steps" if isinstance(value, Mapping) else None, pure=True)
    known = [bool(step.keys() & _MARKS) for step in found]
    if not any(known) or not all(
        own or "output" in step for own, step in zip(known, found, strict=True)
    ):
        return None
    messages = [message for step in found for message in _messages(step)]
    said = text(mapping(value).get("output"))
    if said and not any(_ends(step) or "output" in step for step in found):
        messages.append(_answer(said))
    return Chat(messages)


def _messages(step: Mapping[str, Any]) -> Messages:
    """One step; its observations are those of all its calls together and go with the last."""
    if "system_prompt" in step:
        return [{"role": "system", "content": step["system_prompt"]}]
    if "task" in step:
        return [
            {"role": "user", "content": _with_images(str(step["task"]), step.get("task_images"))}
        ]
    if "plan" in step:
        return [{"role": "assistant", "reasoning_content": str(step["plan"])}]
    if "step_number" not in step:
        return []  # the final answer once more
    final, calls, output = _ends(step), list(map(_call, _asked(step))), step.get("model_output")
    answer = _answer(step.get("action_output"))
    # without what a code agent writes around what was printed
    seen = str(step.get("observations") or "").removeprefix("Execution logs:\n")
    printed, mark, value = seen.rpartition(_OUTPUT)
    if mark and (
        final or value.strip() == "None"
    ):  # in the last step the code's output repeats the answer
        seen = printed.rstrip()
    if final:
        handed = [call for call in calls if call["name"] in ANSWERING]
        if handed and step.get("action_output") is None:
            answer = {"role": "assistant", "tool_calls": handed}
        calls = [call for call in calls if call["name"] == _CODE and seen]
    failed = mapping(step, "error").get("message")
    # What failed before there was a call is no answer
    spoken = {"content" if calls or not failed else "reasoning_content": output}
    said: Messages = (
        [{"role": "assistant", **spoken, "tool_calls": calls}] if calls or output else []
    )
    if calls:
        returned = _with_images(seen, step.get("observations_images"))
        said += [{"role": "tool", "tool_call_id": call["id"], "content": ""} for call in calls[:-1]]
        said.append(
            {"role": "tool", "tool_call_id": calls[-1]["id"], "content": returned, "error": failed}
        )
    elif failed:
        said.append({"role": "user", "content": str(failed)})
    return [*said, answer] if final else said


def _with_images(said: str, images: Any) -> list[dict[str, str]]:
    return [{"type": "text", "text": said}, *([{"type": "image"}] if images else [])]


def _asked(step: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    # Where a call failed, all are only in the model's message.
    return mappings(step, "tool_calls") or mappings(step.get("model_output_message"), "tool_calls")


def _ends(step: Mapping[str, Any]) -> bool:
    """Whether the answer is in this step; without a call it was asked for when there were no steps left."""
    return bool(step.get("is_final_answer")) or (
        step.get("action_output") is not None and not _asked(step)
    )


def _call(item: Mapping[str, Any]) -> dict[str, Any]:
    function = mapping(item, "function")
    name, given = function.get("name"), function.get("arguments")
    if isinstance(given, str) and not given.lstrip().startswith("{"):  # code, or other text
        given = {"code" if name == _CODE else "input": given}
    return {"id": str(item.get("id", "")), "name": name, "arguments": given}


def _answer(given: Any) -> dict[str, Any]:
    said = given if isinstance(given, str) else as_json(given)
    return {"role": "assistant", "content": f"<answer>{said}</answer>"}


FORMAT = Format("a smolagents memory", read, {"step_number", "steps", "model_output"})
