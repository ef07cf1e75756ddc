"""Rows of retrieval-augmented generation: a question, the contexts that were retrieved, an answer.

| rows of | question | contexts | answer |
|---|---|---|---|
| ragas | `question`, `user_input` | `contexts`, `retrieved_contexts` | `answer`, `response` |
| DeepEval | `input` | `retrieval_context` | `actual_output` |
| ALCE | `question` | `docs` | `output` |
| LlamaIndex | `query` | `source_nodes` | `response` |
| Dify | `query` | `retriever_resources` | `answer` |
| Exa, Tavily | `query` | `citations`, `results` | `answer` |

The contexts are what one retrieval returned for the question.
"""

import ast
from collections.abc import Mapping
from typing import Any

from .. import columns, loose_json
from .base import Chat, Format, mapping, mappings, text
from .chat import TAGLIKE
from .searches import passage, search

_QUESTIONS = ("question", "user_input", "query", "user_query", "input")
_CONTEXTS = (
    *("retrieved_contexts", "retrieval_context", "retrieved_documents", "retrieved_docs"),
    *("retrieved_passages", "contexts", "docs", "ctxs", "documents", "passages"),
    *("source_nodes", "source_documents", "retriever_resources", "retrieved", "retrieved_chunks"),
    *("retrieved_context", "retrieval_results", "search_results", "chunks", "context"),
)
_RESULTS = ("citations", "results")  # of search services: contexts only where they have texts
_ANSWERS = (
    *("response", "actual_output", "generated_answer", "model_answer", "prediction"),
    *("output", "generation", "answer"),
)
_TEXTS = ("text", "content", "contents", "page_content", "snippet", "passage")


def read(value: Any) -> Chat | None:
    """A row with a question, a list of contexts and an answer in plain words."""
    fields = mapping(value)
    question_column = _first_text(fields, _QUESTIONS)
    contexts = _contexts(fields)
    answer_column = _first_text(fields, _ANSWERS)
    if question_column is None or contexts is None or answer_column is None:
        return None
    question, answer = fields[question_column].strip(), fields[answer_column]
    if TAGLIKE.search(answer):  # a transcript, to which the contexts may have been added
        return None
    messages = [
        {"role": "user", "content": question},
        *search("retrieval", {"query": question}, contexts),
        {"role": "assistant", "content": answer},
    ]
    return Chat(messages, question, agents=frozenset((answer_column,)))


def _first_text(fields: Mapping[str, Any], names: tuple[str, ...]) -> str | None:
    """The first of these columns that holds a text."""
    return next((name for name in columns.named(fields, names) if text(fields[name])), None)


def _contexts(fields: Mapping[str, Any]) -> list[dict[str, str]] | None:
    """The contexts as parts of a result; `None` where the row has no list of them."""
    for name in columns.named(fields, (*_CONTEXTS, *_RESULTS)):
        contexts = fields[name]
        if isinstance(contexts, str):
            contexts = _printed_list(contexts)
        if not isinstance(contexts, list):
            continue
        if name in _RESULTS and not mappings(contexts, pure=True):
            continue
        passages = [_passage(context) for context in contexts]
        if all(passages):
            return [part for part in passages if part is not None]
    return None


def _passage(context: Any) -> dict[str, str] | None:
    """A context as a part of a result; `None` where it has no text."""
    if isinstance(context, str):
        return passage({}, context)
    fields = mapping(context)
    fields = mapping(fields, "node") or fields  # LlamaIndex puts a score beside it
    words = next((fields[name] for name in _TEXTS if text(fields.get(name))), None)
    if words is None:
        return None
    metadata = mapping(fields, "metadata") or mapping(fields, "meta")
    names = {"title": fields.get("document_name")}
    return passage({**names, **metadata, **fields}, words)


def _printed_list(cell: str) -> Any:
    """The list in a cell of a table, as JSON or as Python prints it; `None`: there is none."""
    if not cell.lstrip().startswith("["):
        return None
    for read_list in (loose_json.decode, ast.literal_eval):
        try:
            return read_list(cell)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
    return None


FORMAT = Format(
    "a row of retrieval-augmented generation (ragas, DeepEval, ALCE, LlamaIndex)",
    read,
    frozenset(("retrieved_contexts", "retrieval_context", "contexts", "docs", "source_nodes")),
    "it needs a question, a list of contexts and an answer, each in a column of its own",
    generality=2,
)
