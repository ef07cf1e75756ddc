"""Rows of retrieval-augmented generation: a question, the contexts that were retrieved, an answer.

| rows of | question | contexts | answer |
|---|---|---|---|
| ragas | `question`, `user_input` | `contexts`, `retrieved_contexts` | `answer`, `response` |
| DeepEval | `input` | `retrieval_context` | `actual_output` |
| ALCE | `question` | `docs` | `output` |
| LlamaIndex | `query` | `source_nodes` | `response` |
| Dify | `query` | `retriever_resources` | `answer` |
| Exa, Tavily | `query` | `citations`, `results` | `answer` |

The contexts are what one retrieval returned for the question. Beside a chat they are that where
their column says so, and the chat is a question and a reply in words (`with_contexts`).
"""

import ast
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from .. import columns, loose_json
from .base import Chat, Format, mapping, mappings, text
from .blocks import as_json
from .chat import TAGLIKE, Message
from .message_parts import speaker
from .messages import read as read_messages
from .searches import passage, search

_QUESTIONS = ("question", "user_input", "query", "user_query", "input")
_CONTEXTS = (
    *("retrieved_contexts", "retrieval_context", "retrieved_documents", "retrieved_docs"),
    *("retrieved_passages", "contexts", "docs", "ctxs", "documents", "passages"),
    *("source_nodes", "source_documents", "retriever_resources", "retrieved", "retrieved_chunks"),
    *("retrieved_context", "retrieval_results", "search_results", "chunks", "context"),
)
_RESULTS = ("citations", "results")  # of search services: contexts only where they are objects
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


def with_contexts(chat: Chat, row: Mapping[str, Any]) -> Chat:
    """The chat with the contexts in columns beside it that no tool returned in it: as the result of
    a search before its reply, or, where the agent may not have read them, counted as left out.
    """
    messages = list(chat.messages)
    left_out: dict[str, int] = {}
    for name in columns.named(row, _CONTEXTS):
        cell = row[name]
        if not _is_filled(cell):
            continue
        why = f"contexts in {name!r}, which the agent may not have read"
        contexts = _read_contexts([cell] if _is_one_text(cell) else cell)
        if contexts is None:
            # Anything may be called so, as the `chunks` of a stream
            if _says_retrieved(name) or "context" in name.lower():
                left_out[why] = len(cell) if isinstance(cell, list) else 1
            continue
        conversation = read_messages(messages)  # with what a column before this one has added
        if _are_returned(contexts, conversation):
            continue
        question = _only_question(conversation)
        if question is None or not _says_retrieved(name):
            left_out[why] = len(contexts)
            continue
        retrieval = search("retrieval", {"query": question}, contexts)
        reply = [speaker(message) for message in messages].index("assistant")
        messages = [*messages[:reply], *retrieval, *messages[reply:]]
    return replace(chat, messages=messages, left_out={**chat.left_out, **left_out})


def _is_filled(cell: Any) -> bool:
    """Whether a column holds anything that may be contexts."""
    if isinstance(cell, str):
        return text(cell) is not None
    return isinstance(cell, list | Mapping) and len(cell) > 0


def _is_one_text(cell: Any) -> bool:
    """Whether a column holds a text, and none in which a list was printed."""
    return isinstance(cell, str) and _listed(cell) is None


def _says_retrieved(name: str) -> bool:
    """Whether a column's name says that the agent was given what is in it. Contexts under another
    name may be those that it should have had.
    """
    return name.lower().startswith("retriev")


def _are_returned(contexts: Sequence[Mapping[str, str]], conversation: Sequence[Message]) -> bool:
    """Whether tools returned all of these contexts in a chat."""
    returned = "\n".join(message.content for message in conversation if message.role == "tool")
    return all(_is_in(context["content"], returned) for context in contexts)


def _is_in(context: str, returned: str) -> bool:
    """Whether a context stands in what tools returned, as it is or in JSON."""
    return context in returned or as_json(context)[1:-1] in returned


def _only_question(conversation: Sequence[Message]) -> str | None:
    """The question of a chat that is no more than a question and a reply in words; else `None`."""
    turns = [message for message in conversation if message.role != "system"]
    if [message.role for message in turns] != ["user", "assistant"]:
        return None
    question, reply = turns
    is_in_words = not reply.calls and TAGLIKE.search(reply.content) is None
    return question.content if is_in_words else None


def _first_text(fields: Mapping[str, Any], names: tuple[str, ...]) -> str | None:
    """The first of these columns that holds a text."""
    return next((name for name in columns.named(fields, names) if text(fields[name])), None)


def _contexts(fields: Mapping[str, Any]) -> list[dict[str, str]] | None:
    """The contexts as parts of a result; `None` where the row has no list of them."""
    for name in columns.named(fields, (*_CONTEXTS, *_RESULTS)):
        if name.lower() in _RESULTS and not mappings(_listed(fields[name]), pure=True):
            continue
        contexts = _read_contexts(fields[name])
        if contexts is not None:
            return contexts
    return None


def _read_contexts(cell: Any) -> list[dict[str, str]] | None:
    """A column's contexts as parts of a result; `None` where it is no list of them."""
    contexts = _listed(cell)
    if contexts is None:
        return None
    passages = [_passage(context) for context in contexts]
    with_text = [part for part in passages if part is not None]
    return with_text if len(with_text) == len(passages) else None


def _listed(cell: Any) -> list[Any] | None:
    """The list that a cell is, or that was printed in it; `None`: there is none."""
    value = _printed_list(cell) if isinstance(cell, str) else cell
    return value if isinstance(value, list) else None


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
