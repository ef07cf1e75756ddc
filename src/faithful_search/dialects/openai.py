"""Plain chat messages with tool calls, as OpenAI-compatible servers return them: no tags for
thought or answer.

An assistant's message with `tool_calls` is a turn, each call a step (the further ones with
`same_turn`); its `reasoning_content`, else its content, is the thought. Messages of role tool are
the responses, matched by `tool_call_id`. The content of a message without calls is the answer. As
text it is what chat templates make of that. A thought is optional: a missing one is not an issue.

Tools may return anything. JSON in which search services list what they found, under usual names, is
evidence item by item, and so are the linked results of smolagents' searches, and what MCP's results
hold. An object that says that the call failed, one with a `note`, or a list of nothing, is a note;
any other text is one piece of evidence.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

from ..evidence import REPORTING, failure_of, is_marked_failed
from ..formats.base import first
from ..formats.blocks import as_json, parts
from ..trajectory import Evidence, Span
from .passages import headed, label_of, read_json, read_printed, read_snippets, text_of
from .tool_calls import BARE, MARKS, ToolCalls

_LISTS = (
    *("results", "result", "search_results", "documents", "docs", "items", "data", "passages"),
    "organic",
    *("organic_results", "webPages", "value", "web", "hits", "sources", "chunks", "output"),
    *("papers", "articles", "records", "matches", "entries", "search"),
)
# What search services put before their results: an answer, or facts of the thing that is meant
_BOXES = ("answerBox", "answer_box", "knowledgeGraph", "knowledge_graph", "featured_snippet")
_TEXTS = (
    *("text", "content", "contents", "snippet", "description", "summary", "passage", "body"),
    "information",
    *("page_content", "raw_content", "extract", "markdown", "highlights", "snippets"),
    *("abstract", "answer"),
)
# Fields of a passage may stand one level down, as in retrievers' records.
_INNER = ("metadata", "document", "_source")
_TITLES, _URLS = ("title", "name", "filename"), ("url", "link", "href", "uri", "source")
_OF_PAGE = frozenset(("type", "id", *_URLS))  # fields of a page that was found, not read
_NOTHING = frozenset(("", "null", "None", "{}", "[]", '""'))
_NOTING = REPORTING | {"note"}
# Looked for at once: most objects have none of them, and asking for each takes longer.
_MAY_LIST = frozenset((*_LISTS, "query"))
_DEEPEST = 6  # lists in lists; a tool may return anything
# A line that only leads to a box, as Search-o1 and MiroThinker end.
_BOXED = re.compile(r"[^.!?\n\\\[\]]{0,80}\\boxed\{(?P<answer>[^{}\\\n]{1,300})\}[.$ ]{0,4}")
_LINKED = re.compile(r"^\[([^\n]*)\]\(([^\s()]*)\)\n", re.MULTILINE)


class OpenAI(ToolCalls):
    # The tools' schemas go to the server or the chat template, not into the text.
    system = "Answer the question. Use the tools to find evidence; once you know enough, reply with the answer alone."
    stop = ("</tool_call>",)
    grammar = BARE
    answer_opening = None
    needs_tools = False
    asks_for_thoughts = False
    parallel_calls = True
    may_open_in_prompt = True
    # Matches anything: a user's message is always a user's, since responses have their own role.
    controller_pattern = re.compile("")
    marks = MARKS | {"answer": -3.0, "tool_call": 1.0}
    signs: ClassVar[Mapping[str, float]] = {
        r"<\|structured_calls\|>": 6.0,
        r"\\boxed[ {]": -1.5,
        r'<tool_response>\s{0,9}\[\s{0,9}\{"title"': 3.0,
        r"<tool_response>\s{0,9}(?:<|&lt;)(?:snippet|webpage)\b": 5.0,
        r'<tool_response>\s{0,9}\{"(?:results|documents|error|note)"': 2.0,
    }

    def find_answer(self, text: str, span: Span) -> Span | None:
        """The whole text, or what stands between answer tags in it (between the last ones), or in
        the box that is all it says.
        """
        start, end = text.find("<answer>", *span), text.rfind("</answer>", *span)
        if span[0] <= start < end:
            closed = text.rfind("</answer>", start, end)
            last = text.find("<answer>", closed, end) if closed >= 0 else -1
            return max(start, last) + len("<answer>"), end
        boxed = _BOXED.fullmatch(text, *span)
        return boxed.span("answer") if boxed else span

    def write_answer(self, answer: str) -> str:
        return answer

    def read_body(self, body: str) -> tuple[list[Evidence], str]:
        if body.startswith("## Search Results"):
            results = headed(_LINKED.finditer(body), body)
            passages = [Evidence(text.strip(), head[1], url=head[2]) for head, text in results]
            return passages, "" if passages else body
        if body.lstrip()[:9].startswith(("<snippet", "<webpage")):
            passages, note = read_snippets(body)
            if passages:
                return passages, note
        if body.strip() in _NOTHING:
            return [], body
        value = read_json(body)
        if value is None:
            value = read_printed(body)
        if isinstance(value, dict):
            return self._read_object(value, body)
        if not isinstance(value, list):
            return [Evidence(body)], ""
        notes = []
        results = []
        for result in value:
            result_note = _note(result)
            if result_note is None:
                results.append(result)
            else:
                notes.append(result_note)
        passages = _passages(results)
        if passages or notes or not results:
            return passages, "\n".join(notes) or ("" if passages else body)
        return [Evidence(body)], ""

    def _read_object(self, fields: dict[str, Any], body: str) -> tuple[list[Evidence], str]:
        note = _note(fields)
        if note is not None:
            # Results may stand in a list beside the failure.
            return ([] if _is_mcp(fields) else _passages(_listed(fields))), note
        if _is_mcp(fields):
            passages = _passages(fields.get("structuredContent"), depth=1)
            if passages:
                return passages, ""
            texts = [part.value for part in parts(fields["content"]) if part.kind == "text"]
            return self.read_body("".join(texts))
        passages = _passages(fields)
        if not passages and _listed(fields) == []:
            return [], body
        return passages or [Evidence(body)], ""

    def write_note(self, note: str) -> str:
        return as_json({"note": note})

    def write_body(self, evidence: Sequence[Evidence]) -> str:
        return as_json(
            [
                {"title": e.title, "text": e.text} | ({"url": e.url} if e.url else {})
                for e in evidence
            ]
        )


def _note(value: Any) -> str | None:
    """The note that an object is, or that its call failed; `None` for anything else."""
    if not isinstance(value, dict) or _NOTING.isdisjoint(value):
        return None
    failure = failure_of(value)
    if failure is not None and (is_marked_failed(value) or first(value, _TEXTS) is None):
        return failure
    holds_results = any(key in value for key in (*_LISTS, *_TEXTS))
    if holds_results or value.get("note") is None:
        return None
    return text_of(value["note"])


def _is_mcp(fields: Mapping[str, Any]) -> bool:
    """Whether this is a call's result in the form of MCP."""
    content = fields.get("content")
    if not isinstance(content, list):
        return False
    for part in content:
        if not isinstance(part, dict) or not isinstance(part.get("type"), str):
            return False
    return "isError" in fields or "structuredContent" in fields


def _listed(value: Mapping[str, Any]) -> Any:
    """The list (or object) under one of the usual names; `None`: there is none."""
    if _MAY_LIST.isdisjoint(value):
        return None
    for key in _LISTS:
        if isinstance(value.get(key), (list, dict)):
            return value[key]
    if isinstance(value.get("query"), dict):  # Wikipedia's
        return _listed(value["query"])
    return None


def _boxes(value: Mapping[str, Any]) -> list[Evidence]:
    """The boxes beside a list of results, each a passage."""
    passages = []
    for name in _BOXES:
        box = value.get(name)
        if not isinstance(box, dict):
            continue
        text = first(box, _TEXTS)
        title = _first_filled(box, _TITLES)
        url = text_of(next((box[key] for key in _URLS if isinstance(box.get(key), str)), None))
        if text is None:
            facts = [(key, fact) for key, fact in box.items() if isinstance(fact, str)]
            lines = [f"{key}: {fact}" for key, fact in facts if key not in (*_TITLES, *_URLS)]
            text = "\n".join(lines)
        if text:
            passages.append(Evidence(text_of(text), title, url=url))
    return passages


def _passages(value: Any, depth: int = 0) -> list[Evidence]:
    """The passages in a value of JSON: texts in lists, and objects with a text, or with a title and
    an address. Lists may stand under the usual names.
    """
    if isinstance(value, str):
        return [Evidence(value)] if depth else []
    if depth > _DEEPEST:
        return []
    if isinstance(value, list):
        of_each = [_passages(result, depth + 1) for result in value]
        if not any(of_each):
            return []
        passages: list[Evidence] = []
        for result, inner in zip(value, of_each, strict=True):
            if inner:
                passages += inner
            elif result:  # among passages, anything else is one as a whole
                passages.append(Evidence(text_of(result)))
        return passages
    if not isinstance(value, dict):
        return []
    results = _listed(value)
    if results is not None and not isinstance(value.get("text"), str):
        return [*_boxes(value), *_passages(results, depth + 1)]
    fields = value
    for name in _INNER:
        if isinstance(value.get(name), dict):
            fields = {**value[name], **fields}
    text = first(fields, _TEXTS)
    title, url = _first_filled(fields, _TITLES), _first_filled(fields, _URLS)
    page = text is None and url and (title or value.keys() <= _OF_PAGE)
    if text is None and not page:
        return []
    if isinstance(text, list):
        text = "\n".join(_snippet(part) for part in text)
    return [Evidence(text_of(text), title, url=url, label=label_of(fields))]


def _first_filled(fields: Mapping[str, Any], names: Iterable[str]) -> str:
    """The text of the first of these fields that holds something."""
    for name in names:
        if fields.get(name):
            return text_of(fields[name])
    return ""


def _snippet(part: Any) -> str:
    """One of the texts of a result, which may be an object of its own."""
    text = first(part, _TEXTS) if isinstance(part, Mapping) else None
    return text_of(part if text is None else text)
