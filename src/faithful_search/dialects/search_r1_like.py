"""The Search-R1 example of verl: Search-R1's prompt with `<tool_call>`, and documents inside a JSON result.

```
<think>plan</think><tool_call>{"name": "search", "arguments": {"query_list": ["…"]}}</tool_call>
<tool_response>
{"result": "Doc 1 (Title: \\"Title\\")\\ntext\\n\\nDoc 2 (Title: …)\\n…"}
</tool_response>
<think>reasoning</think><answer>…</answer>
```

Queries of one call have their results divided by `---`. The prompt asks for `<tool_call> query </tool_call>`: a call
that is not a JSON object is such a bare query. Search-R1 trained through verl-tool writes the same with documents in
`<information>` (`Doc 1:`, and the title in quotes on a line of its own).
"""

import re
from collections.abc import Mapping, Sequence
from typing import ClassVar

from ..trajectory import Evidence, ToolCall
from .base import prompt_file
from .fence import one_line
from .passages import headed, read_docs, read_json, write_json
from .tool_calls import ToolCalls

# Takes the whole line, whether the title is closed or not: so no line is looked at twice.
_DOC = re.compile(r"Doc [0-9]++ ?\(Title: ([^\n]*+)\n?+")
_INFORMATION = "<information>"
_ASKED = r"For example, <answer> Beijing </answer>\. Question: ([^\n]*)\n?"
_BARE_QUERY = re.compile(r"[^{\[]")


class SearchR1Like(ToolCalls):
    """The dialect of verl's search_r1_like example."""

    system = "You are a helpful and harmless assistant."
    ask = prompt_file("search_r1_like")  # the tools' schemas are left to the chat template
    asked = re.compile(_ASKED)
    bare_prompt = re.compile(rf"\s*+Answer the given question(?>.*?{_ASKED})", re.DOTALL)
    forbidden = r"Doc [0-9]++ ?\(Title:"
    signs: ClassVar[Mapping[str, float]] = {
        r"call a search engine by <tool_call> query </tool_call>": 4.0,
        r'<tool_call>\s{0,9}\{"name":\s?"search",\s?"arguments":\s?\{"query_list"': 4.0,
        r"<tool_call>[^<{\[]{1,400}</tool_call>\s{0,9}(?!and it will)": 2.0,
        r'<tool_response>\s{0,9}\{"result":': 4.0,
        r"<tool_response>\s{0,9}<information>|<tool_response>\s{0,9}&lt;information>": 4.0,
    }

    def read_call(self, raw: str) -> ToolCall | None:
        query = raw.strip()
        if query and _BARE_QUERY.match(query):
            return ToolCall("search", {"query": query}, raw)
        return super().read_call(raw)

    def read_body(self, body: str) -> tuple[list[Evidence], str]:
        """The documents in the result, in JSON or not; a result without documents is a note."""
        value = read_json(body)
        result = value.get("result") if isinstance(value, dict) else None
        result = result if isinstance(result, str) else body
        if body.lstrip().startswith(_INFORMATION):
            inner = body.strip().removeprefix(_INFORMATION).removesuffix("</information>").strip()
            return read_docs(inner) or [Evidence(inner)], ""
        found = []
        docs = headed((doc for doc in _DOC.finditer(result) if doc[0].endswith(")\n")), result)
        for number, (doc, text) in enumerate(docs, start=1):
            title = doc[1][:-1]
            if number < len(docs):  # what follows a document is an empty line, or the division between queries
                text = text.removesuffix("\n\n") if text.endswith("\n\n") else text.removesuffix("\n---\n")
            quoted = len(title) > 1 and title[0] == title[-1] == '"'
            found.append(Evidence(text, title[1:-1] if quoted else title))
        return found, "" if found else result

    def write_note(self, note: str) -> str:
        return write_json({"result": note})

    def write_body(self, evidence: Sequence[Evidence]) -> str:
        numbered = enumerate(evidence, start=1)
        docs = (f'Doc {number} (Title: "{one_line(item.title)}")\n{item.text}' for number, item in numbered)
        return write_json({"result": "\n\n".join(docs)})
