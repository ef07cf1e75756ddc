"""ReAct as text: lines that begin with `Thought:`, `Action:`, `Action Input:`, `Observation:`, `Final Answer:`."""

import re
from typing import Any

from .base import Chat, Format, Messages

_MARK = re.compile(
    r"^(Question|Thought|Action Input|Action|Observation|Final Answer|Answer)(?: ?[0-9]{1,4})?:[ \t]*",
    re.MULTILINE,
)
# `Search[words]` and `search(words)`.
_BRACKETS = re.compile(r"\s*([A-Za-z_][\w.-]{0,60})\s*[\[(](.*)[\])]\s*\Z", re.DOTALL)


def read(value: Any) -> Chat | None:
    """A transcript with an action, or with a thought and a final answer."""
    if not isinstance(value, str) or "Thought" not in value:
        return None
    _, *pieces = _MARK.split(value)
    said_by = [(name, said.strip()) for name, said in zip(pieces[::2], pieces[1::2], strict=True)]
    asked = [place for place, (name, _) in enumerate(said_by) if name == "Question"]
    found = said_by[asked[-1] :] if asked else said_by
    names = {name for name, _ in found}
    if "Thought" not in names or not names & {"Action", "Final Answer"}:
        return None
    question = found[0][1] if asked else None
    messages: Messages = [{"role": "user", "content": question or ""}]
    for (name, said), (behind, given) in zip(found, [*found[1:], ("", "")], strict=True):
        if name == "Thought":
            messages.append({"role": "assistant", "reasoning_content": said})
        elif name == "Action":
            messages.append(_action(said, given if behind == "Action Input" else None))
        elif name == "Observation":
            messages.append({"role": "tool", "content": said})
        elif name in ("Final Answer", "Answer"):
            messages.append({"role": "assistant", "content": f"<answer>{said}</answer>"})
    return Chat(messages, question, left_out={"questions before the last": len(asked[1:])})


def _action(said: str, given: str | None) -> dict[str, Any]:
    brackets = _BRACKETS.match(said) if given is None else None
    name, words = brackets.groups() if brackets else (said, given or "")
    is_json = words.lstrip().startswith("{")
    words = words if is_json else words.strip().strip("\"'")
    if name.lower() == "finish":
        return {"role": "assistant", "content": f"<answer>{words}</answer>"}
    arguments: Any = words if is_json else {"query": words}
    return {"role": "assistant", "tool_calls": [{"name": name, "arguments": arguments}]}


FORMAT = Format("ReAct text", read)
