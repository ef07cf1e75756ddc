"""Mistral's Conversations API: an answer (`outputs`) or a conversation's history (`entries`).

Tools that the server runs itself are entries without results. What they found is known from the
`tool_reference` parts of the message behind them: pages with their addresses, mostly without texts.
"""

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

from .base import Chat, Format, Messages, mapping, mappings, text
from .searches import passage, search

Pages = dict[str, dict[str, dict[str, str]]]
"""By the tool that found them and their addresses."""
_ANY_TOOL = ""
_LISTS = ("outputs", "entries")
_MARKS = frozenset(("message.input", "message.output", "tool.execution", "function.call"))


def read(value: Any) -> Chat | None:
    """The entries of a conversation, in their order."""
    entries = next(filter(None, (mappings(value, name) for name in _LISTS)), [])
    if not any(text(entry.get("type")) in _MARKS for entry in entries):
        return None
    pages: Pages = {}  # that the agent's message behind an entry refers to
    read_backwards: list[Messages] = []
    for entry in reversed(entries):
        read_backwards.append(list(_messages(entry, pages)))
        if entry.get("type") == "message.output":
            pages = _pages(entry)
    messages = list(chain.from_iterable(reversed(read_backwards)))
    question = _question(mapping(value).get("inputs"))
    return Chat([*question, *messages], id=text(mapping(value).get("conversation_id")) or "")


def _question(inputs: Any) -> Messages:
    """What a request beside its answer asks: a text, messages, or entries of a conversation."""
    messages: Messages = []
    if text(inputs):
        return [{"role": "user", "content": inputs}]
    for entry in mappings(inputs):
        messages += [entry] if "role" in entry and "type" not in entry else _messages(entry, {})
    return messages


def _messages(entry: Mapping[str, Any], pages: Pages) -> Iterator[Mapping[str, Any]]:
    """An entry as messages. A tool's last execution before a message takes the `pages` that the
    message has of this tool.
    """
    kind = entry.get("type")
    if kind == "message.input":
        yield {"role": "user", "content": entry.get("content")}
    elif kind == "message.output":
        yield {"role": "assistant", "content": _with_citations(entry.get("content"))}
    elif kind == "function.call":
        call = {
            "id": str(entry.get("tool_call_id") or ""),
            "function": {"name": entry.get("name"), "arguments": entry.get("arguments")},
        }
        yield {"role": "assistant", "content": None, "tool_calls": [call]}
    elif kind == "function.result":
        number = str(entry.get("tool_call_id") or "")
        yield {"role": "tool", "tool_call_id": number, "content": entry.get("result")}
    elif kind == "tool.execution":
        name = str(entry.get("name") or "web_search")
        returned = [*pages.pop(name, {}).values(), *pages.pop(_ANY_TOOL, {}).values()]
        yield from search(name, entry.get("arguments") or {}, returned)


def _with_citations(content: Any) -> Any:
    """The text of a message; each reference cites the text that it follows."""
    if not isinstance(content, list):
        return content
    parts: list[dict[str, Any]] = []
    for part in mappings(content):
        if part.get("type") == "tool_reference" and parts:
            parts[-1]["citations"].append(dict(part))
        elif part.get("type") in (None, "text"):
            parts.append({"type": "text", "text": part.get("text") or "", "citations": []})
        else:
            parts.append({**part, "citations": []})
    return parts


def _pages(message: Mapping[str, Any]) -> Pages:
    """What the message refers to, each page of a tool once."""
    pages: Pages = {}
    for part in mappings(message, "content"):
        if part.get("type") == "tool_reference" and part.get("url"):
            of_tool = pages.setdefault(str(part.get("tool") or _ANY_TOOL), {})
            of_tool.setdefault(str(part["url"]), passage(part, part.get("description")))
    return pages


FORMAT = Format("a conversation of Mistral's API", read, frozenset(("outputs", "entries")))
