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

from .fence import Fence, tags
from .passages import DOC_LINE, DocLines
from .tagged import MARKS, Tagged, search_grammar

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


class SelfEval(DocLines, Tagged):
    """The dialect of trajectory self-evaluation. `Step.call` is `search(query=…)`."""

    system = _SYSTEM
    frame = ("\n<search_results>", "</search_results>\n")
    grammar = search_grammar("search_results")
    fence = Fence(tags(*grammar.names) + rf"|<\||{DOC_LINE}")
    marks = MARKS | {"search_results": 4.0}
