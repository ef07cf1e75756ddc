"""ReCall: calls of any tool as JSON, several a turn, and the answer in `\\boxed{}` of a last turn without calls.

```
<think>plan</think>
<tool_call>
{"name": "wikipedia_search", "arguments": {"query": "…"}}
</tool_call>
<tool_response>
{"name": "wikipedia_search", "arguments": {"query": "…"}}
result:
"Title"
text
</tool_response>
<think>reasoning</think>
The final answer is \\[ \\boxed{…} \\]
```

The opening think tag belongs to its prompt and may be absent. A response repeats the call and then has sections: what
stands under `result:` or `output:` is evidence, passage by passage where these begin with a title in quotes; what
stands under `error:` is a note.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any, ClassVar

from ..trajectory import Evidence, Span
from .fence import Fence, one_line
from .passages import MOST_DOCUMENTS, last_boxed, stretches
from .tool_calls import BARE, FENCED, MARKS, ToolCalls

# The wording is ours, not its checkpoints'.
_SYSTEM = """In this environment you have access to a set of tools you can use to assist with the user query. \
You may perform multiple rounds of function calls, one or more in each.

The tools, as JSON schemas:
```json
{tools}
```

Reason inside <think> and </think> first, then call tools, each like this:
<tool_call>
{"name": "tool's name", "arguments": {...}}
</tool_call>
What they return follows in tool_response blocks. Once you know enough, end with the answer in \\boxed{}."""
_TITLE = re.compile(r'(?:\A|\n\n)"([^\n]*)"\n')
_SECTION = re.compile(r"^(result|output|error):[ ]?\n?", re.MULTILINE)


class ReCall(ToolCalls):
    """The dialect of ReCall. A turn may hold several calls: a step each, the further ones with `same_turn`."""

    system = _SYSTEM
    stop = ("</tool_call>", "\\]")
    grammar = BARE
    parallel = True
    prefilled = True
    fence = Fence(FENCED + r'|\n"|(?:result|output|error):')
    marks = MARKS | {"answer": -3.0}
    signs: ClassVar[Mapping[str, float]] = {
        r"In this environment you have access to a set of tools": 3.0,
        r'<tool_call>\s{0,9}\{"name":\s?"wikipedia_search"': 2.0,
        r'<tool_response>\s{0,9}(?:\{"name"[^\n]{0,500}\n)?(?:result|output|error):[ ]?\n': 4.0,
        r"\\boxed[ {]": 2.0,
    }

    def write_tools(self, tools: Sequence[dict[str, Any]]) -> str:
        return json.dumps(list(tools), ensure_ascii=False, indent=2)

    def write_answer(self, answer: str) -> str:
        return f"The final answer is \\[ \\boxed{{{answer}}} \\]"

    def find_answer(self, text: str, span: Span) -> Span | None:
        """What the last box holds, up to its balancing brace; of `\\boxed x` the rest of the line."""
        if (box := last_boxed(text, *span)) is not None:
            return box
        at = text.rfind("\\boxed ", *span)
        if at < 0:
            return None
        start = at + len("\\boxed ")
        end = text.find("\n", start, span[1])
        return start, span[1] if end < 0 else end

    def read_body(self, body: str, fenced: bool) -> tuple[list[Evidence], str]:
        """The sections of a response; text before the first is the call that it repeats, alone it is evidence."""
        heads = list(islice(_SECTION.finditer(body), MOST_DOCUMENTS))
        if not heads:
            bad = not body.strip() or body.startswith("Parse tool call failed")
            return ([], body) if bad else (_passages(body), "")
        evidence: list[Evidence] = []
        notes: list[str] = []
        for head, end in stretches(heads, len(body) + 1):
            part = body[head.end() : max(head.end(), end - 1)]
            if head[1] == "error":
                notes.append(part)
            elif part.strip():
                evidence += _passages(part)
        return evidence, "\n".join(notes)

    def write_note(self, note: str) -> str:
        return f"error: \n{note}"

    def write_body(self, evidence: Sequence[Evidence], escape: Callable[[str], str]) -> str:
        passages = (f'"{one_line(escape(item.title))}"\n{escape(item.text)}' for item in evidence)
        return "result: \n" + "\n\n".join(passages)


def _passages(body: str) -> list[Evidence]:
    """Passages that begin with a title in quotes, or all as one without a title."""
    heads = list(islice(_TITLE.finditer(body), MOST_DOCUMENTS))
    if not heads or body[: heads[0].start()].strip():
        return [Evidence(body)]
    return [Evidence(body[head.end() : end], head[1]) for head, end in stretches(heads, len(body))]
