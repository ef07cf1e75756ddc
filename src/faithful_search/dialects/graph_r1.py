"""Graph-R1: queries to a knowledge base as JSON in `<query>`, and what it knows as JSON in
`<knowledge>`, in a user's message.

The prompt shows no JSON: a query in bare words is read, too.
"""

import re
from collections.abc import Sequence
from typing import Any

from ..formats.blocks import as_json
from ..trajectory import Evidence, Step, ToolCall
from .base import Dialect, prompt_file
from .passages import read_json, text_of
from .tagged import MARKS, Tagged
from .turns import Grammar

_TEXTS = ("<knowledge>", "knowledge", "text", "content")


class GraphR1(Tagged):
    user_prompt = prompt_file("graph_r1")
    question_pattern = re.compile(r"\nQuestion:[ \t]*+(.*)", re.DOTALL)
    stop = ("</query>", "</answer>")
    observation_role = "user"
    frame = ("<knowledge>\n", "\n</knowledge>")
    grammar = Grammar("query", "knowledge")
    response_ends = re.compile(r'<knowledge>(?!":)|</knowledge>')  # it is a key of the JSON, too
    agent_begins = re.compile(r"<(?:think|query|answer)>")
    prose_is_evidence = True
    marks = MARKS | {"query": 2.0, "knowledge": 4.0, "search": -3.0}

    def force_answer(self, step: Step) -> tuple[Step, str] | None:
        """The response to its call is a message, with a note."""
        return Dialect.force_answer(self, step)

    def read_call(self, raw: str) -> ToolCall | None:
        value = read_json(raw)
        if isinstance(value, dict):
            query = text_of(value.get("query")).strip()
            return ToolCall("search", {"query": query}, raw) if query else None
        return super().read_call(raw)

    def write_call(self, call: ToolCall) -> str:
        query = {"query": str(call.arguments.get("query", ""))}
        return "\n" + as_json(query).replace("<", "\\u003c") + "\n"

    def read_body(self, body: str) -> tuple[list[Evidence], str]:
        value = read_json(body)
        results = value.get("results") if isinstance(value, dict) else None
        if not isinstance(results, list):
            return [], body
        evidence = [passage for passage in map(_passage, results) if passage is not None]
        return evidence, "" if evidence else body

    def write_body(self, evidence: Sequence[Evidence]) -> str:
        results = [{"title": passage.title, "knowledge": passage.text} for passage in evidence]
        return as_json({"results": results})


def _passage(result: Any) -> Evidence | None:
    if not isinstance(result, dict):
        text = text_of(result)
        return Evidence(text) if text else None
    field = next((name for name in _TEXTS if name in result), None)
    if field is None:
        return None
    return Evidence(text_of(result[field]), text_of(result.get("title")))
