"""Evidence in JSON lists of searches and pages, as PokeeResearch and DeepResearcher return it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..trajectory import Evidence
from .tool_calls import read_json, text_of, write_json

JSON_LIST = r'\[\s*+\{\s*+"(?:query|url|search_query)"'
"""Pattern of how such a list begins, for a fence: then no note can be taken for one."""
_RESULTS = ("search_results", "web_page_info_list")
_TEXTS = ("description", "quick_summary", "snippet")


def read_list(body: str, keys: Sequence[str]) -> tuple[list[Evidence], str]:
    """Evidence and note of `[{key: …, …}, …]`: failures in it are the note; so is a body of another shape."""
    value: Any = read_json(body) if body.lstrip().startswith(("[", "{")) else None
    items = value if isinstance(value, list) else [value]
    if not items or not all(isinstance(item, dict) and any(key in item for key in keys) for item in items):
        return [], body
    evidence = [found for item in items for found in _evidence(item)]
    notes = (text_of(item.get("error message", item.get("error"))) for item in items)
    note = "\n".join(filter(None, notes))
    return evidence, note or ("" if evidence else body)


def write_list(evidence: Sequence[Evidence], escape: Callable[[str], str], key: str, results: str, text: str) -> str:
    """One search's results."""
    found = [{"url": escape(item.url), "title": escape(item.title), text: escape(item.text)} for item in evidence]
    return write_json([{key: "", results: found}])


def _evidence(item: Mapping[str, Any]) -> list[Evidence]:
    results = next((item[key] for key in _RESULTS if isinstance(item.get(key), list)), None)
    if results is None:
        text = item.get("information")  # a page's: a summary, or summaries of its parts
        if isinstance(text, list):
            parts = (text_of(part.get("page_summary") if isinstance(part, dict) else part) for part in text)
            text = "\n".join(filter(None, parts))
        return [Evidence(text_of(text), url=text_of(item.get("url")))] if text_of(text) else []
    found = []
    for result in results:
        if isinstance(result, dict):
            text = next((result[key] for key in _TEXTS if key in result), "")
            found.append(Evidence(text_of(text), text_of(result.get("title")), url=text_of(result.get("url"))))
    return found
