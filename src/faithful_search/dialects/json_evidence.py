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
    """Evidence and note of `[{key: …, …}, …]`: failures in it are the note, and so is a body that is no such list."""
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
    if results is not None:
        return [_result(result) for result in results if isinstance(result, dict)]
    text = _information(item.get("information"))
    return [Evidence(text, url=text_of(item.get("url")))] if text else []


def _result(result: Mapping[str, Any]) -> Evidence:
    text = next((result[key] for key in _TEXTS if key in result), "")
    return Evidence(text_of(text), text_of(result.get("title")), url=text_of(result.get("url")))


def _information(value: Any) -> str:
    """A page's text: a summary, or summaries of its parts."""
    if isinstance(value, list):
        pages = (text_of(page.get("page_summary")) if isinstance(page, dict) else text_of(page) for page in value)
        return "\n".join(filter(None, pages))
    return text_of(value)
