"""WebDancer: searches that return numbered links, and visits that return what is useful in a page.

```
<think>plan</think>
<tool_call>
{"name": "search", "arguments": {"query": ["…"]}
</tool_call>
<tool_response>
A Google search for '…' found 1 results:

## Web Results
1. [Title](https://…)

text
</tool_response>
<think>reasoning</think>
<answer>…</answer>
```

Each query of a search has its block, divided by `=======`. A visit (`{"name": "visit", "arguments": {"url": […],
"goal": "…"}`) returns for each page an extract and a summary: one piece of evidence with the page's address.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any, ClassVar

from ..trajectory import Evidence
from .fence import Fence, one_line, spelled
from .passages import MOST_DOCUMENTS, stretches
from .tool_calls import FENCED, MARKS, ToolCalls

# The wording is ours, not its checkpoints'.
_ASK = """A conversation between User and Assistant. The user asks a question, and the assistant solves it by calling \
one or more of the following tools.
<tools>
{tools}
</tools>

The assistant works in cycles of thinking, calling a tool and reading its response, and ends with the answer:
<think> reasoning </think>
<tool_call>
{"name": "tool's name", "arguments": {...}}
</tool_call>
and at the end
<think> reasoning </think>
<answer> the answer </answer>

User: {question}"""
# How a response begins that holds a search's links, and one that holds pages.
_SEARCH, _VISIT = "A Google search for ", "The useful information in "
_PAGE = re.compile(r"^The useful information in (\S{1,2000}) for user goal [^\n]*+\n", re.MULTILINE)
_BLOCK = re.compile(r"(?:^=======\n)?^A Google search for [^\n]*\n\n## Web Results\n", re.MULTILINE)
_LINK = re.compile(r"^([0-9]{1,6})\. \[([^\n]*+)$", re.MULTILINE)
_HEAD = "\n\n## Web Results\n"
_TARGET = "]("


class WebDancer(ToolCalls):
    """The dialect of WebDancer."""

    ask = _ASK
    fence = Fence(FENCED + rf"|[0-9]++\. \[|{_SEARCH}|{_VISIT}")
    marks = MARKS | {"tools": 0.5}
    signs: ClassVar[Mapping[str, float]] = {
        r"Web Information Seeking Master": 3.0,
        r'<tool_call>\s{0,9}\{"name":\s?"visit",\s?"arguments":\s?\{': 3.0,
        r'<tool_call>\s{0,9}\{"name":\s?"search",\s?"arguments":\s?\{"query":\s?\[': 3.0,
        r"<tool_response>\s{0,9}A Google search for ": 4.0,
        r"<tool_response>\s{0,9}The useful information in ": 4.0,
    }
    asked = re.compile(r"\A(?:(?>.*?A conversation between User and Assistant\.).*\nUser: )?+(.+)\Z", re.DOTALL)

    def write_tools(self, tools: Sequence[dict[str, Any]]) -> str:
        return ",\n".join(json.dumps(tool, ensure_ascii=False, indent=2) for tool in tools)

    def read_body(self, body: str, fenced: bool) -> tuple[list[Evidence], str]:
        """Links of searches, pages visited; a body that is neither is a note."""
        if body.startswith(_VISIT):
            pages = stretches(list(islice(_PAGE.finditer(body), MOST_DOCUMENTS)), len(body))
            texts = (body[page.end() : end].strip("\n").removesuffix("\n=======") for page, end in pages)
            visited = [Evidence(text, url=page[1]) for text, (page, _) in zip(texts, pages, strict=True)]
            return visited or [Evidence(body)], ""
        blocks = list(islice(_BLOCK.finditer(body), MOST_DOCUMENTS))
        found: list[Evidence] = []
        for block, end in stretches(blocks, len(body) + 1):
            found += _links(body, block.end(), max(block.end(), end - 1))
        return found, "" if found else body

    def write_body(self, evidence: Sequence[Evidence], escape: Callable[[str], str]) -> str:
        links = [
            f"{number}. [{one_line(_linked(item.title, escape))}]({_address(item.url, escape)})\n\n{escape(item.text)}"
            for number, item in enumerate(evidence, start=1)
        ]
        return f"{_SEARCH}'' found {len(links)} results:{_HEAD}" + "\n\n".join(links)


def _linked(title: str, escape: Callable[[str], str]) -> str:
    """A link's title: a control token such as `[INST]` might begin or end with the brackets around it."""
    shown = escape(title)
    return shown if escape(f"[{title}]") == f"[{shown}]" else spelled(title)


def _address(url: str, escape: Callable[[str], str]) -> str:
    """Of the `](` in a link's line, the last one is where its address begins."""
    return one_line(escape(url)).replace(_TARGET, "]&#40;")


def _links(body: str, start: int, end: int) -> list[Evidence]:
    """The links that are numbered in order from 1 on; a list inside a result's text begins again and is its text."""
    heads: list[re.Match[str]] = []
    for match in _LINK.finditer(body, start, end):
        is_link = _TARGET in match[2] and match[2].endswith(")")
        if is_link and len(heads) < MOST_DOCUMENTS and int(match[1]) == len(heads) + 1:
            heads.append(match)
    found = []
    for head, stop in stretches(heads, end + 2):
        title, _, url = head[2][:-1].rpartition(_TARGET)
        at = head.end() + body.startswith("\n", head.end())
        at += body.startswith("\n", at)  # an empty line usually follows the link's
        found.append(Evidence(body[at : stop - 2], title, url=url))
    return found
