"""What rewards read off an agent's turns: its thought, the words of its calls, and what came
back.
"""

import json
from collections.abc import Iterable
from functools import lru_cache

from .. import answer_forms, citations, dialects
from ..errors import DialectError
from ..evidence import own_words, supporting
from ..text import holds, normalize
from ..trajectory import Evidence, Step, ToolCall, Trajectory

QUERIES = frozenset(("query", "queries", "query_list", "search_query", "question", "q"))
"""Names of arguments that hold what is searched for."""

Turn = tuple[Step, ...]


def thought(turn: Turn) -> str:
    """The turn's thought, as it is written; empty where it has none but blanks, or is the agent's
    check of an answer it gave.
    """
    return next((step.think.strip() for step in turn if step.think and step.verified is None), "")


def answer_of(trajectory: Trajectory) -> str:
    """The trajectory's answer without citation marks, which claim nothing; empty where it has
    none.
    """
    return citations.without_marks(trajectory.answer or "", trajectory)


def short_answer(trajectory: Trajectory) -> str:
    """What is compared with gold answers: of an answer in a box, in JSON or behind `Exact Answer:`
    what it says.
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
    """What the turn's calls returned: titles and texts of the evidence, or the note where there is
    none; without what is only a copy of the call.
    """
    parts = []
    for step in turn:
        # a note counts only after a call that could be read: to any other turn it is the
        # environment speaking, not a tool
        note = own_words(step.note.strip(), step.call) if step.call else ""
        parts.append(passages(supporting(step)) or note)
    return "\n\n".join(filter(None, parts))


def passages(evidence: Iterable[Evidence]) -> str:
    """Titles and texts, a blank line between two passages."""
    return "\n\n".join(
        f"{passage.title}\n{passage.text}" if passage.title else passage.text
        for passage in evidence
    )


def call_words(call: ToolCall) -> str:
    """The query strings of a call, one a line; then its other arguments as JSON.

    Beside a query, numbers and switches (`top_k`) are settings and left out. Without arguments the
    call is as written.
    """
    queries, other_arguments = [], {}
    for name, value in call.arguments.items():
        if name in QUERIES:
            listed = value if isinstance(value, (list, tuple)) else [value]
            queries += [text.strip() for text in listed if isinstance(text, str) and text.strip()]
        else:
            other_arguments[name] = value
    if queries:
        other_arguments = {
            name: value
            for name, value in other_arguments.items()
            if isinstance(value, (str, list, dict)) and value
        }
    as_json = (
        [json.dumps(other_arguments, ensure_ascii=False, default=str)] if other_arguments else []
    )
    return "\n".join([*queries, *as_json]) or ("" if call.arguments else call.raw.strip())


@lru_cache(maxsize=256)
def asks_for_thoughts(dialect: str) -> bool:
    """Whether that dialect's protocol asks for a thought in every turn; one that is not known is
    taken to.
    """
    # cached: this is asked of every trajectory, and loading a dialect looks through the package
    try:
        return dialects.load(dialect).asks_for_thoughts
    except DialectError:
        return True
