"""Plain chat messages with tool calls, as OpenAI-compatible servers return them: no tags for thought or answer.

An assistant's message with `tool_calls` is a turn, each call a step (the further ones with `same_turn`); its
`reasoning_content`, else its content, is the thought. Messages of role tool are the responses, matched by
`tool_call_id`. The content of a message without calls is the answer. As text it is what chat templates make of that. A
thought is optional: a missing one is not an issue.

Tools may return anything. JSON in which search services list what they found, under usual names, is evidence item by
item, and so are the linked results of smolagents' searches; an object with `error` or `note`, or a list of nothing, is
a note; any other text is one piece of evidence.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from ..formats.blocks import as_json, first
from ..trajectory import Evidence, Span
from .passages import headed, read_json, read_printed, text_of
from .tool_calls import BARE, MARKS, ToolCalls

_LISTS = (
    *(
        "results",
        "result",
        "search_results",
        "documents",
        "docs",
        "items",
        "data",
        "passages",
        "organic",
    ),
    *("organic_results", "webPages", "value", "web", "hits", "sources", "chunks", "output"),
)
_TEXTS = (
    *(
        "text",
        "content",
        "contents",
        "snippet",
        "description",
        "summary",
        "passage",
        "body",
        "information",
    ),
    *("page_content", "raw_content", "extract", "markdown", "highlights"),
)
# Fields of a passage may stand one level down, as in retrievers' records.
_INNER = ("metadata", "document", "_source")
_TITLES, _URLS = ("title", "name"), ("url", "link", "href", "uri", "source")
_NOTHING = frozenset(("", "null", "None", "{}", "[]", '""'))
_DEEPEST = 6  # lists in lists; a tool may return anything
_LINKED = re.compile(r"^\[([^\n]*)\]\(([^\s()]*)\)\n", re.MULTILINE)


class OpenAI(ToolCalls):
    # The tools' schemas go to the server or the chat template, not into the text.
    system = "Answer the question. Use the tools to find evidence; once you know enough, reply with the answer alone."
    stop = ("</tool_call>",)
    grammar = BARE
    answer_opening = None
    thinks = False
    parallel = True
    prefilled = True
    steers = re.compile(
        ""
    )  # whatever a user says is said by a user: responses have messages of their own
    marks = MARKS | {"answer": -3.0, "tool_call": 1.0}
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

    def write_answer(self, answer: str) -> str:
        return answer

    def read_body(self, body: str) -> tuple[list[Evidence], str]:
        if body.startswith("## Search Results"):
            results = headed(_LINKED.finditer(body), body)
            found = [Evidence(text.strip(), head[1], url=head[2]) for head, text in results]
            return found, "" if found else body
        if body.strip() in _NOTHING:
            return [], body
        value = read_json(body)
        if value is None:
            value = read_printed(body)
        fields = value if isinstance(value, dict) else {}
        failure = first(fields, ("error", "note"))
        if failure is not None and not any(key in fields for key in (*_LISTS, *_TEXTS)):
            return [], text_of(failure)
        found = _items(value)
        if not found and (value == [] or _listed(fields) == []):
            return [], body
        return found or [Evidence(body)], ""

    def write_note(self, note: str) -> str:
        return as_json({"note": note})

    def write_body(self, evidence: Sequence[Evidence]) -> str:
        return as_json(
            [
                {"title": e.title, "text": e.text} | ({"url": e.url} if e.url else {})
                for e in evidence
            ]
        )


def _listed(value: Mapping[str, Any]) -> Any:
    """What stands under a usual name for a list."""
    return next((value[key] for key in _LISTS if isinstance(value.get(key), list | dict)), None)


def _items(value: Any, depth: int = 0) -> list[Evidence]:
    """The objects in a list that have a text, or title and address, and the texts; lists may stand under names."""
    if isinstance(value, str):
        return [Evidence(value)] if depth else []
    if depth > _DEEPEST:
        return []
    if isinstance(value, list):
        found = [(_items(item, depth + 1), item) for item in value]
        known = any(own for own, _ in found)
        return [
            one
            for own, item in found
            for one in own or ([Evidence(text_of(item))] if known and item else [])
        ]
    if not isinstance(value, dict):
        return []
    if (inner := _listed(value)) is not None and not isinstance(value.get("text"), str):
        return _items(inner, depth + 1)
    fields = value
    for name in _INNER:
        if isinstance(value.get(name), dict):
            fields = {**value[name], **fields}
    text = first(fields, _TEXTS)
    title, url = (
        text_of(next((fields[key] for key in keys if fields.get(key)), None))
        for keys in (_TITLES, _URLS)
    )
    if text is None and not (title and url):
        return []
    if isinstance(text, list) and all(isinstance(part, str) for part in text):
        text = "\n".join(text)
    return [Evidence(text_of(text), title, url=url)]
