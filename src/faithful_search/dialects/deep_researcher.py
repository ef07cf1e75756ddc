"""DeepResearcher: searches of the web and pages browsed, as JSON calls.

`browse_webpage` takes `url_list` and returns `[{"url": …, "information": [{"page_number": …,
"page_summary": …}]}]`. Evidence is each search result and each page. The first answer of a turn
counts, as that system's reward reads it.
"""

from collections.abc import Mapping, Sequence
from typing import ClassVar

from ..formats.blocks import as_json
from ..trajectory import Evidence
from .base import prompt_file
from .passages import JSON_LIST, read_list, search_of
from .tool_calls import ToolCalls
from .turns import Grammar


class DeepResearcher(ToolCalls):
    system = prompt_file("deep_researcher")
    grammar = Grammar("tool_call", "tool_response", last_answer_counts=False)
    forbidden = JSON_LIST
    signs: ClassVar[Mapping[str, float]] = {
        r'<tool_call>\s{0,9}\{"name":\s?"browse_webpage"': 4.0,
        r'<tool_call>\s{0,9}\{"name":\s?"web_search",\s?"arguments":\s?\{"query":\s?\[': 4.0,
        r'<tool_response>\s{0,9}\[\s{0,9}\{\s{0,9}"search_query":': 4.0,
    }

    def read_body(self, body: str) -> tuple[list[Evidence], str]:
        return read_list(body, ("search_query", "url"))

    def write_body(self, evidence: Sequence[Evidence]) -> str:
        return as_json([search_of(evidence, "search_query", "web_page_info_list", "quick_summary")])
