"""Trajectory self-evaluation: `<think> <search> <search_results> <answer>`, one search in a step.

```
<think>plan</think>
<search>query</search>
<search_results>Doc 1(Title: "Title") text
Doc 2(Title: "Other") text
</search_results>
<think>reasoning</think>
<answer>…</answer>
```

The paper (figure 2) fixes the tags but not what stands in the results: `Doc` lines are written; prose is read too, as
one passage. Kinds of issues are those of `search_r1`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from ..trajectory import Evidence
from . import doc_lines
from .base import Message
from .fence import Fence, tags
from .segments import Segment
from .tagged import Tagged
from .turns import Grammar

_SYSTEM = (
    "You are a helpful assistant tasked with answering user questions accurately. You have access to an external "
    "search tool that you must use to answer the question.\n\nFollow these strict instructions:\n"
    "- Never rely on your internal knowledge; always search for external information and base your response solely on "
    "the search results.\n"
    "- Always reason before taking any action, and enclose your thinking process within <think> </think> tags.\n"
    "- To perform a search, enclose the search query within <search> </search> tags. You will receive search results "
    "in a <search_results> </search_results> block.\n"
    "- After receiving the search results, analyze them within <think> </think> tags.\n"
    "- When confident, provide a concise answer containing only the requested fact. Think inside <think> </think> tags "
    "before answering. Enclose the final answer in <answer> </answer> tags, with no explanation or extra formatting, "
    "just the answer, with no trailing spaces or newlines."
)


class SelfEval(Tagged):
    """The dialect of trajectory self-evaluation. `Step.call` is `search(query=…)`."""

    name: ClassVar[str] = "self_eval"
    stop: ClassVar[tuple[str, ...]] = ("</search>", "</answer>")
    response_tag: ClassVar[str] = "search_results"
    grammar: ClassVar[Grammar] = Grammar(
        ("think", "search", "search_results", "answer"), "search", "search_results", last_answer_counts=True
    )
    pause: ClassVar[re.Pattern[str]] = re.compile("<search_results>")
    fence: ClassVar[Fence] = Fence(tags(*grammar.names) + rf"|<\||{doc_lines.HEAD}")
    marks: ClassVar[Mapping[str, float]] = {
        "search": 2.0, "search_results": 4.0, "think": 0.5, "answer": 0.5,
        "information": -4.0, "result": -4.0, "tool_call": -3.0, "tool_response": -3.0, "helpful": -3.0,
    }  # fmt: skip

    def prompt(self, question: str, tools: Sequence[dict[str, Any]]) -> list[Message]:
        """The system prompt of figure 2, then the question. The dialect knows a single tool: `tools` are not shown."""
        return [{"role": "system", "content": _SYSTEM}, {"role": "user", "content": question}]

    def render_observation(self, evidence: Sequence[Evidence], note: str = "", fence: Fence | None = None) -> str:
        """`Doc` lines; the note only when there is no evidence."""
        return f"\n{self.opening}{doc_lines.write(evidence, note, fence or self.fence)}{self.closing}\n"

    def read_response(self, segment: Segment) -> tuple[list[Evidence], str]:
        """Passages in `Doc` lines, or prose."""
        return doc_lines.read(segment)
