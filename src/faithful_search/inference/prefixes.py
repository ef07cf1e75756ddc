"""What retrieval encoders were trained to read before a text, where no file beside the model says it."""

from __future__ import annotations

import re

_INSTRUCTION = "Represent this sentence for searching relevant passages: "
_TASK = "Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery: "
_FAMILIES: tuple[tuple[str, str, str], ...] = (
    (r"(multilingual-)?e5-(small|base|large)(-v2|-unsupervised)?", "query: ", "passage: "),
    (r"multilingual-e5-large-instruct", _TASK, ""),
    (r"bge-(small|base|large)-en(-v1\.5)?", _INSTRUCTION, ""),
)


def known_prefixes(model: str) -> tuple[str, str]:
    """Prefixes of queries and of passages, by the last part of a Hub id or path; empty for a model not known here.

    Example:
        >>> known_prefixes("intfloat/e5-base-v2")
        ('query: ', 'passage: ')
        >>> known_prefixes("sentence-transformers/all-mpnet-base-v2")
        ('', '')
    """
    name = re.split(r"[\\/]", model.rstrip("\\/"))[-1].lower()
    return next(((query, passage) for form, query, passage in _FAMILIES if re.fullmatch(form, name)), ("", ""))
