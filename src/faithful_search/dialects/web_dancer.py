"""WebDancer: searches that return numbered links, and visits that return what is useful in a page.

Each query of a search has its block, divided by `=======`. A visit (`{"name": "visit", "arguments":
{"url": […], "goal": "…"}`) returns for each page an extract and a summary: one piece of evidence
with the page's address.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import msgspec

from ..trajectory import Evidence
from .base import prompt_file
from .fence import one_line, spelled
from .passages import headed
from .tool_calls import MARKS, ToolCalls

# How a response begins that holds a search's links, and one that holds pages.
_SEARCH, _VISIT = "A Google search for ", "The useful information in "
_PAGE = re.compile(r"^The useful information in (\S{1,2000}) for user goal [^\n]*+\n", re.MULTILINE)
_BLOCK = re.compile(r"(?:^=======\n)?^A Google search for [^\n]*\n\n## Web Results\n", re.MULTILINE)
_LINK = re.compile(r"^([0-9]{1,6})\. \[([^\n]*+)$", re.MULTILINE)
_TARGET = "]("


class WebDancer(ToolCalls):
    user_prompt = prompt_file("web_dancer")
    forbidden = rf"[0-9]\. \[|{_SEARCH}|{_VISIT}"
    marks = MARKS | {"tools": 0.5}
    signs: ClassVar[Mapping[str, float]] = {
        r"Web Information Seeking Master": 3.0,
        r'<tool_call>\s{0,9}\{"name":\s?"visit",\s?"arguments":\s?\{': 3.0,
        r'<tool_call>\s{0,9}\{"name":\s?"search",\s?"arguments":\s?\{"query":\s?\[': 3.0,
        r'<tool_call>\s{0,9}\{"name":\s?"(?:PythonInterpreter|google_scholar|parse_file)"': 3.0,
        r"<tool_response>\s{0,9}A Google search for ": 4.0,
        r"<tool_response>\s{0,9}The useful information in ": 4.0,
    }
    question_pattern = re.compile(
        r"\A(?:(?>.*?A conversation between User and Assistant\.).*\nUser: )?+(.+)\Z", re.DOTALL
    )

    def write_tools(self, tools: Sequence[dict[str, Any]]) -> str:
        return ",\n".join(json.dumps(tool, ensure_ascii=False, indent=2) for tool in tools)

    def read_body(self, body: str) -> tuple[list[Evidence], str]:
        if body.startswith(_VISIT):
            pages = headed(_PAGE.finditer(body), body)
            extracts = []
            for page, text in pages:
                extract = text.strip("\n").removesuffix("\n=======")
                extracts.append(Evidence(extract, url=page[1]))
            return extracts or [Evidence(body)], ""
        links: list[Evidence] = []
        blocks = headed(_BLOCK.finditer(body), body)
        for number, (_, block) in enumerate(blocks, start=1):
            # Between two blocks stands a line break; behind the last one it is its passage's
            block = block if number == len(blocks) else block.removesuffix("\n")
            links += _links(block)
        return links, "" if links else body

    def escaped_evidence(self, passage: Evidence, escape: Callable[[str], str]) -> Evidence:
        """The passage, its title spelled out where a control token such as `[INST]` would begin or
        end with the brackets around a link.
        """
        escaped = super().escaped_evidence(passage, escape)
        if escape(f"[{passage.title}]") != f"[{escaped.title}]":
            escaped = msgspec.structs.replace(escaped, title=spelled(passage.title))
        return escaped

    def write_body(self, evidence: Sequence[Evidence]) -> str:
        links = []
        for number, passage in enumerate(evidence, start=1):
            # Of the `](` in a link's line, the last one is where its address begins.
            address = one_line(passage.url).replace(_TARGET, "]&#40;")
            links.append(f"{number}. [{one_line(passage.title)}]({address})\n\n{passage.text}")
        return f"{_SEARCH}'' found {len(links)} results:\n\n## Web Results\n" + "\n\n".join(links)


def _links(text: str) -> list[Evidence]:
    """The links in the block of one query, each with the text below it."""
    heads: list[re.Match[str]] = []
    for match in _LINK.finditer(text):
        # Numbers count up from 1: a list inside a passage begins again, and is its text.
        if _TARGET in match[2] and match[2].endswith(")") and int(match[1]) == len(heads) + 1:
            heads.append(match)
    links = headed(heads, text)
    passages = []
    for number, (head, inner) in enumerate(links, start=1):
        title, _, url = head[2][:-1].rpartition(_TARGET)
        # An empty line usually follows the link's, and another divides two links
        inner = inner.removeprefix("\n").removeprefix("\n")
        if number < len(links):
            inner = inner.removesuffix("\n").removesuffix("\n")
        passages.append(Evidence(inner, title, url=url, label=head[1]))
    return passages
