"""What rewards read of an agent's turns: thoughts, answers, the words of calls, and what the calls
returned.
"""

import json
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from .. import answer_forms, citations, dialects
from ..errors import DialectError
from ..evidence import own_words, supporting
from ..text import holds, normalize
from ..trajectory import Evidence, Step, ToolCall, Trajectory

QUERIES = frozenset(("query", "queries", "query_list", "search_query", "question", "q"))
"""The names of arguments that hold what a call searches for."""

Turn = tuple[Step, ...]


def thought(turn: Turn) -> str:
    """The first thought of the turn, without blanks around it; empty where there is none. A thought
    in which the agent checks its own answer does not count.
    """
    for step in turn:
        if step.think and step.verified is None:
            return step.think.strip()
    return ""


def answer_of(trajectory: Trajectory) -> str:
    """The trajectory's answer without citation marks, which claim nothing; empty without an
    answer.
    """
    return citations.without_marks(trajectory.answer or "", trajectory)


def short_answer(trajectory: Trajectory) -> str:
    """The part of the answer that is compared with gold answers: what stands in a box, in JSON or
    after `Exact Answer:`, else the whole answer.
    """
    return answer_forms.said(answer_of(trajectory))


def written(step: Step) -> list[str]:
    """What the agent wrote in a step: its thought, its answer, and the words of its call."""
    texts = [step.think or "", step.answer or "", call_words(step.call) if step.call else ""]
    return [text for text in texts if text]


def holds_answer(text: str, answer: str) -> bool:
    """Whether a text holds the whole answer. Case and punctuation do not count.

    Example:
        >>> holds_answer("It is in Paris, France.", "paris"), holds_answer("Parisians", "Paris")
        (True, False)
    """
    return holds(normalize(text, "pokee"), normalize(answer, "pokee"))


def returned(turn: Turn) -> str:
    """What the turn's calls returned, without what only repeats the call: titles and texts of the
    evidence, or the note of a call that returned none.
    """
    parts = []
    for step in turn:
        text = passages(supporting(step))
        # Without a call that could be read, the note is the environment's word, not a tool's
        if not text and step.call is not None:
            text = own_words(step.note.strip(), step.call)
        if text:
            parts.append(text)
    return "\n\n".join(parts)


def passages(evidence: Iterable[Evidence]) -> str:
    """Titles and texts, a blank line between two passages."""
    texts = []
    for passage in evidence:
        texts.append(f"{passage.title}\n{passage.text}" if passage.title else passage.text)
    return "\n\n".join(texts)


def call_words(call: ToolCall) -> str:
    """The queries of a call, a line each; then its other arguments as JSON.

    Beside a query, numbers and switches (`top_k`) are settings and left out, and so is what is
    empty. A call without arguments is returned as it was written.

    Example:
        >>> call = ToolCall("search", {"query": "Mount Aso", "top_k": 3, "site": "a.org"})
        >>> print(call_words(call))
        Mount Aso
        {"site": "a.org"}
    """
    if not call.arguments:
        return call.raw.strip()
    queries: list[str] = []
    other_arguments: dict[str, Any] = {}
    for name, value in call.arguments.items():
        if name not in QUERIES:
            other_arguments[name] = value
            continue
        listed = value if isinstance(value, (list, tuple)) else [value]
        queries += [text.strip() for text in listed if isinstance(text, str) and text.strip()]
    if queries:
        other_arguments = {
            name: value
            for name, value in other_arguments.items()
            if isinstance(value, (str, list, dict)) and value
        }
    if not other_arguments:
        return "\n".join(queries)
    return "\n".join([*queries, json.dumps(other_arguments, ensure_ascii=False, default=str)])


@lru_cache(maxsize=256)
def asks_for_thoughts(dialect: str) -> bool:
    """Whether the dialect of this name asks for a thought in every turn. An unknown dialect counts
    as one that does.
    """
    # Cached, since every trajectory is asked, and loading a dialect searches the package
    try:
        return dialects.load(dialect).asks_for_thoughts
    except DialectError:
        return True
