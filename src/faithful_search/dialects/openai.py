"""Plain chat messages with tool calls, as OpenAI-compatible servers return them: no tags for thought or answer.

An assistant's message with `tool_calls` is a turn, each call a step (the further ones with `same_turn`); its
`reasoning_content`, else its content, is the thought. Messages of role tool are the responses, matched by
`tool_call_id`. The content of a message without calls is the answer. As text it is what chat templates make of that:

```
<think>plan</think>
<tool_call>
{"name": "search", "arguments": {"query": "…"}}
</tool_call>
<tool_response>
[{"title": "…", "text": "…"}]
</tool_response>
the answer
```

Tools may return anything: a JSON list of objects with a text (or one under `results`) is evidence item by item, an
object with `error` or `note` a note, and any other text one piece of evidence.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from ..trajectory import Evidence, Span
from .tool_calls import BARE, MARKS, ToolCalls, read_json, text_of, write_json

# The tools' schemas go to the server or the chat template, not into the text.
_SYSTEM = "Answer the question. Use the tools to find evidence; once you know enough, reply with the answer alone."
_LISTS = ("results", "result", "search_results", "documents", "docs", "items", "data", "passages")
_TEXTS = ("text", "content", "contents", "snippet", "description", "summary", "passage", "body", "information")


class OpenAI(ToolCalls):
    """Chat messages with tool calls. A thought is optional: a missing one is not an issue."""

    system = _SYSTEM
    stop = ("</tool_call>",)
    grammar = BARE
    thinks = False
    parallel = True
    prefilled = True
    marks: ClassVar[Mapping[str, float]] = {**MARKS, "answer": -3.0, "tool_call": 1.0}
    signs: ClassVar[Mapping[str, float]] = {
        r"<\|structured_calls\|>": 6.0,
        r"\\boxed[ {]": -1.5,
        r'<tool_response>\s{0,9}\[\s{0,9}\{"title"': 3.0,
        r'<tool_response>\s{0,9}\{"(?:results|documents|error|note)"': 2.0,
    }

    def find_answer(self, text: str, span: Span) -> Span | None:
        """All of it, or what stands between answer tags in it."""
        start, end = text.find("<answer>", *span), text.rfind("</answer>", *span)
        return (start + len("<answer>"), end) if span[0] <= start < end else span

    def is_controller(self, text: str) -> bool:
        """Whatever a user says is said by a user: responses have messages of their own."""
        return True

    def write_answer(self, answer: str) -> str:
        """The answer as it is."""
        return answer

    def read_body(self, body: str, fenced: bool) -> tuple[list[Evidence], str]:
        """Evidence from JSON or from plain text; nothing is a note of nothing."""
        value = read_json(body) if body.lstrip().startswith(("[", "{")) else None
        if isinstance(value, dict) and not any(key in value for key in (*_LISTS, *_TEXTS)):
            failure = next((value[key] for key in ("error", "note") if key in value), None)
            if failure is not None:
                return [], text_of(failure)
        found = _items(value)
        if found:
            return found, ""
        return ([Evidence(text_of(body))], "") if body.strip() else ([], text_of(body))

    def write_note(self, note: str) -> str:
        """JSON: an object with the note."""
        return write_json({"note": note})

    def write_body(self, evidence: Sequence[Evidence], escape: Callable[[str], str]) -> str:
        """JSON: a list of titles and texts."""
        keys = ("title", "text", "url")
        items = ({key: escape(getattr(item, key)) for key in keys} for item in evidence)
        return write_json([{key: text for key, text in item.items() if text or key != "url"} for item in items])


def _items(value: Any) -> list[Evidence]:
    """The objects in a list that have a text, and the texts; the list may stand under a name."""
    if isinstance(value, dict):
        value = next((value[key] for key in _LISTS if isinstance(value.get(key), list)), [value])
    if not isinstance(value, list):
        return []
    found = []
    for item in value:
        if isinstance(item, str):
            found.append(Evidence(item))
        elif isinstance(item, dict) and any(key in item for key in _TEXTS):
            text = next(item[key] for key in _TEXTS if key in item)
            url = item.get("url", item.get("link"))
            found.append(Evidence(text_of(text), text_of(item.get("title")), url=text_of(url)))
    return found
