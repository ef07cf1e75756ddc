"""What rewards read off an agent's turns: its thought, the words of its calls, and what came back."""

import json
from collections.abc import Iterable
from functools import lru_cache

from .. import dialects
from ..errors import DialectError
from ..trajectory import Evidence, Step, ToolCall

QUERIES = frozenset(("query", "queries", "query_list", "search_query", "question", "q"))
"""Names of arguments that hold what is searched for."""

Turn = tuple[Step, ...]


def thought(turn: Turn) -> str:
    """The turn's thought; empty where it has none but blanks, or is the agent's check of an answer it gave."""
    return next((step.think.strip() for step in turn if step.think and step.verified is None), "")


def returned(turn: Turn) -> str:
    """What the turn's calls returned: titles and texts of the evidence, or the note where there is none."""
    # a note counts only after a call that could be read: to any other turn it is the environment speaking, not a tool
    parts = [passages(step.evidence) or (step.note.strip() if step.call else "") for step in turn]
    return "\n\n".join(filter(None, parts))


def passages(evidence: Iterable[Evidence]) -> str:
    """Titles and texts, a blank line between two passages."""
    return "\n\n".join(
        f"{item.title}\n{item.text}" if item.title else item.text for item in evidence
    )


def call_words(call: ToolCall) -> str:
    """The query strings of a call, one a line; then its other arguments as JSON.

    Beside a query, numbers and switches (`top_k`) are settings and left out. Without arguments the call is as written.
    """
    queries, others = [], {}
    for name, value in call.arguments.items():
        if name in QUERIES:
            listed = value if isinstance(value, (list, tuple)) else [value]
            queries += [text.strip() for text in listed if isinstance(text, str) and text.strip()]
        else:
            others[name] = value
    if queries:
        others = {
            name: value
            for name, value in others.items()
            if isinstance(value, (str, list, dict)) and value
        }
    written = [json.dumps(others, ensure_ascii=False, default=str)] if others else []
    return "\n".join([*queries, *written]) or ("" if call.arguments else call.raw.strip())


@lru_cache(maxsize=256)
def asks_for_thoughts(dialect: str) -> bool:
    """Whether that dialect's protocol asks for a thought in every turn; one that is not known is taken to."""
    # cached: this is asked of every trajectory, and loading a dialect looks through the package
    try:
        return dialects.load(dialect).thinks
    except DialectError:
        return True
