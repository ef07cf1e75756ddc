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

from ..trajectory import Evidence
from .base import Message
from .tool_calls import BARE, MARKS, ToolCalls, read_json, text_of, write_json
from .turns import Grammar

_SYSTEM = "Answer the question. Use the tools to find evidence; once you know enough, reply with the answer alone."
_LISTS = ("results", "result", "search_results", "documents", "docs", "items", "data", "passages")
_TEXTS = ("text", "content", "contents", "snippet", "description", "summary", "passage", "body", "information")


class OpenAI(ToolCalls):
    """Chat messages with tool calls. No thought is asked for: there is no issue where there is none."""

    name: ClassVar[str] = "openai"
    stop: ClassVar[tuple[str, ...]] = ("</tool_call>",)
    grammar: ClassVar[Grammar] = BARE
    thinks: ClassVar[bool] = False
    parallel: ClassVar[bool] = True
    prefilled: ClassVar[bool] = True
    marks: ClassVar[Mapping[str, float]] = {**MARKS, "answer": -3.0, "tool_call": 1.0}
    signs: ClassVar[Mapping[str, float]] = {
        r"<\|structured_calls\|>": 3.0,
        r"\\boxed[ {]": -1.5,
        r'<tool_response>\s{0,9}\[\s{0,9}\{"title"': 3.0,
        r'<tool_response>\s{0,9}\{"(?:results|documents|error|note)"': 2.0,
    }

    def prompt(self, question: str, tools: Sequence[dict[str, Any]]) -> list[Message]:
        """System message and question. The tools' schemas go to the server or the chat template, not into the text."""
        return [{"role": "system", "content": _SYSTEM}, {"role": "user", "content": question}]

    def write_answer(self, answer: str) -> str:
        """The answer as it is."""
        return answer

    def read_body(self, body: str) -> tuple[list[Evidence], str]:
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

    def write_body(self, evidence: Sequence[Evidence], note: str, escape: Callable[[str], str]) -> str:
        """JSON: a list of titles and texts, or an object with the note."""
        if not evidence:
            return write_json({"note": escape(note)})
        keys = ("title", "text", "url")
        items = ({key: escape(getattr(item, key)) for key in keys} for item in evidence)
        return write_json([{key: text for key, text in item.items() if text or key != "url"} for item in items])


def _items(value: Any) -> list[Evidence]:
    if isinstance(value, dict):
        inner = next((value[key] for key in _LISTS if isinstance(value.get(key), list)), None)
        value = inner if inner is not None else [value]
    if not isinstance(value, list):
        return []
    return [found for found in map(_item, value) if found is not None]


def _item(item: Any) -> Evidence | None:
    """An object with a text, or a text."""
    if isinstance(item, str):
        return Evidence(text_of(item))
    text = next((item[key] for key in _TEXTS if key in item), None) if isinstance(item, dict) else None
    if text is None:
        return None
    url = item.get("url", item.get("link"))
    return Evidence(text_of(text), text_of(item.get("title")), url=text_of(url))
