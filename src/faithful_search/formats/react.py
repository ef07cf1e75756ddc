"""ReAct as text: lines that begin with `Thought:`, `Action:`, `Action Input:`, `Observation:`, `Final Answer:`."""

from __future__ import annotations

import re
from typing import Any

from .base import Chat, Format, Messages

_MARK = re.compile(
    r"^(Question|Thought|Action Input|Action|Observation|Final Answer|Answer)(?: ?[0-9]{1,4})?:[ \t]*", re.MULTILINE
)
# `Search[words]` and `search(words)`.
_BRACKETS = re.compile(r"\s*([A-Za-z_][\w.-]{0,60})\s*[\[(](.*)[\])]\s*\Z", re.DOTALL)


class React(Format):
    """A transcript with an action, or with a thought and a final answer."""

    what = "ReAct text"

    def read(self, value: Any) -> Chat | None:
        if not isinstance(value, str) or "Thought" not in value:
            return None
        marks = list(_MARK.finditer(value))
        asked = [k for k, mark in enumerate(marks) if mark[1] == "Question"]
        ends = [*(mark.start() for mark in marks[1:]), len(value)]
        said_by = [(mark[1], value[mark.end() : end].strip()) for mark, end in zip(marks, ends, strict=False)]
        found = said_by[asked[-1] :] if asked else said_by
        names = {name for name, _ in found}
        if "Thought" not in names or not names & {"Action", "Final Answer"}:
            return None
        question = next((said for name, said in found if name == "Question"), None)
        messages: Messages = [{"role": "user", "content": question or ""}]
        for place, (name, said) in enumerate(found):
            if name == "Thought":
                messages.append({"role": "assistant", "reasoning_content": said})
            elif name == "Action":
                follows = found[place + 1] if place + 1 < len(found) else ("", "")
                messages.append(_action(said, follows[1] if follows[0] == "Action Input" else None))
            elif name == "Observation":
                messages.append({"role": "tool", "content": said})
            elif name in ("Final Answer", "Answer"):
                messages.append({"role": "assistant", "content": f"<answer>{said}</answer>"})
        return Chat(messages, question, left_out=(f"{len(asked) - 1} questions before the last",) if asked[1:] else ())


def _action(said: str, given: str | None) -> dict[str, Any]:
    """`name[input]`, `name(input)`, or a name with its input on a line of its own."""
    brackets = _BRACKETS.match(said) if given is None else None
    name, words = (brackets[1], brackets[2]) if brackets else (said, given or "")
    words = words.strip().strip("\"'") if not words.lstrip().startswith("{") else words
    arguments: Any = words if words.lstrip().startswith("{") else {"query": words}
    if name.lower() == "finish":
        return {"role": "assistant", "content": f"<answer>{words}</answer>"}
    return {"role": "assistant", "tool_calls": [{"name": name, "arguments": arguments}]}
