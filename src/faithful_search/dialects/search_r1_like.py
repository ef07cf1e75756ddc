"""The Search-R1 example of verl: Search-R1's prompt with `<tool_call>`, and documents inside a JSON
result.

Queries of one call have their results divided by `---`. The prompt asks for `<tool_call> query
</tool_call>`: a call that is not a JSON object is such a bare query. Search-R1 trained through
verl-tool writes the same with documents in `<information>` (`Doc 1:`, and the title in quotes on a
line of its own).
"""

import re
from collections.abc import Mapping, Sequence
from typing import ClassVar

from ..formats.blocks import as_json
from ..trajectory import Evidence, ToolCall
from .base import prompt_file
from .fence import one_line
from .passages import headed, read_docs, read_json
from .tool_calls import ToolCalls

# Takes the whole line, whether the bracket is closed or not: so no line is looked at twice.
_DOC = re.compile(r"Doc [0-9]++ ?\(Title: ([^\n]*+)\n?+")
_ASKED = r"For example, <answer> Beijing </answer>\. Question: ([^\n]*)\n?"


class SearchR1Like(ToolCalls):
    numbers_passages = True
    prose_is_evidence = True
    system = "You are a helpful and harmless assistant."
    user_prompt = prompt_file("search_r1_like")  # the tools' schemas are left to the chat template
    question_pattern = re.compile(_ASKED)
    bare_prompt = re.compile(rf"\A\s*+Answer the given question(?>.*?{_ASKED})", re.DOTALL)
    forbidden = r"Doc [0-9]++ ?\(Title:"
    signs: ClassVar[Mapping[str, float]] = {
        r"call a search engine by <tool_call> query </tool_call>": 4.0,
        r'<tool_call>\s{0,9}\{"name":\s?"search",\s?"arguments":\s?\{"query_list"': 4.0,
        # A bare query, and not the prompt's "<tool_call> query </tool_call> and it will return …"
        r"<tool_call>[^<{\[]{1,400}</tool_call>\s{0,9}(?!and it will)": 2.0,
        r'<tool_response>\s{0,9}\{"result":': 4.0,
        r"<tool_response>\s{0,9}<information>|<tool_response>\s{0,9}&lt;information>": 4.0,
    }

    def read_call(self, raw: str) -> ToolCall | None:
        query = raw.strip()
        if not query or query.startswith(("{", "[", "<")) or "<arg_key>" in query:
            return super().read_call(raw)
        return ToolCall("search", {"query": query}, raw)

    def read_body(self, body: str) -> tuple[list[Evidence], str]:
        value = read_json(body)
        result = value.get("result") if isinstance(value, dict) else None
        result = result if isinstance(result, str) else body
        inner = body.strip().removeprefix("<information>")
        if inner != body.strip():
            inner = inner.removesuffix("</information>").strip()
            if not inner:
                return [], ""
            return read_docs(inner) or [Evidence(inner)], ""
        passages = []
        heads = (head for head in _DOC.finditer(result) if head[0].endswith(")\n"))
        docs = headed(heads, result)
        for number, (head, text) in enumerate(docs, start=1):
            title = head[1].removesuffix(")")
            if len(title) > 1 and title[0] == title[-1] == '"':
                title = title[1:-1]
            if number < len(docs):
                # An empty line follows, or between queries a line of its own
                ending = "\n\n" if text.endswith("\n\n") else "\n---\n"
                text = text.removesuffix(ending)
            passages.append(Evidence(text, title))
        if not passages:
            return [], result
        return passages, ""

    def write_note(self, note: str) -> str:
        return as_json({"result": note})

    def write_body(self, evidence: Sequence[Evidence]) -> str:
        docs = []
        for number, passage in enumerate(evidence, start=1):
            docs.append(f'Doc {number} (Title: "{one_line(passage.title)}")\n{passage.text}')
        return as_json({"result": "\n\n".join(docs)})
