"""Reports without a trace: what a deep-research agent wrote, and nothing of what it read.

| rows of | question | report |
|---|---|---|
| DeepResearch Bench | `prompt` | `article` |
| gpt-researcher | `query` | `report` |
| a file of Markdown (`reading/files.py`) | | `report` |

A report is an answer without evidence. Where what it cites was read afterwards
(`measure/fetching.py`), the pages are what one retrieval returned before the answer.
"""

from collections.abc import Mapping
from typing import Any

from .. import columns
from ..trajectory import NO_TRACE, NOT_REACHABLE
from .base import Chat, Format, Messages, mapping, mappings, text
from .call_texts import answer_message
from .chat import Problem
from .searches import passage, search

FETCHED = "fetched_sources"
"""The column with what was read: objects with `url`, and `title` and `text`, or the `error`."""
_REPORTS = ("article", "report", "final_report")
_QUESTIONS = ("prompt", "query", "question", "task", "topic")
_OTHERS = frozenset((*columns.MESSAGES, *columns.TEXTS, *columns.GOLD_ANSWERS[-2:]))
"""Columns beside which an article or a report is something else: what was asked about."""
_WHY = "what its writer read is not known"


def read(value: Any) -> Chat | None:
    """A row with a report and what was asked, or with the report and its id alone."""
    fields = mapping(value)
    report = next((name for name in _REPORTS if text(fields.get(name))), None)
    if report is None or not _OTHERS.isdisjoint(fields):
        return None
    question = next((fields[name] for name in _QUESTIONS if text(fields.get(name))), None)
    if question is None and not fields.keys() <= {"id", report, FETCHED}:
        return None
    pages = mappings(fields, FETCHED)
    prompt = [{"role": "user", "content": question.strip()}] if question else []
    return Chat(
        messages=[*prompt, *_retrieval(pages), answer_message(fields[report])],
        question=question.strip() if question else None,
        agents=frozenset((report,)),
        dialect="openai",
        problems=(Problem(NO_TRACE, _WHY), *_failures(pages)),
    )


def _retrieval(pages: list[Mapping[str, Any]]) -> Messages:
    """The pages as what one call returned; those that could not be read have no text."""
    passages = [passage(page, page.get("text")) for page in pages]
    return search("fetch", {}, passages) if passages else []


def _failures(pages: list[Mapping[str, Any]]) -> list[Problem]:
    return [
        Problem(NOT_REACHABLE, f"{page.get('url')}: {page['error']}")
        for page in pages
        if text(page.get("error"))
    ]


FORMAT = Format(
    "a report without a trace",
    read,
    frozenset(("article", "report", "final_report")),
    "it needs a text in that column and what was asked in another, such as prompt or query",
)
