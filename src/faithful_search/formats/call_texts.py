"""Structured calls as the text that dialects read, and calls of tools that hand in the answer."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from .. import loose_json
from ..errors import DataError
from .base import first
from .blocks import as_json
from .chat import TAGLIKE, Call

# Tools that hand in the answer and do nothing else
_ANSWER_TOOLS = frozenset(
    ("final_answer", "submit_answer", "submit_final_answer", "submit", "finish")
)
ANSWER_FIELDS = ("answer", "final_answer", "result", "response", "text")
"""Arguments of such a tool that hold the answer."""


def hands_in(tool: Any) -> bool:
    """Whether this is the name of a tool that hands in the answer, in any case."""
    return isinstance(tool, str) and tool.casefold() in _ANSWER_TOOLS


def answer_message(answer: str) -> dict[str, Any]:
    """A message in which the agent hands in this answer by a call, so that nothing in the answer is
    read as markup.
    """
    call = {"name": "final_answer", "arguments": {"answer": answer}}
    return {"role": "assistant", "tool_calls": [call]}


def with_text(fields: Mapping[str, Any]) -> Call:
    """The call with the fields of `blocks.call`, and the text that it becomes.

    Arguments that are no JSON object become a JSON string: that is no call in any dialect, and so
    an issue there, and nothing in them can be read as another part of the call.
    """
    name = str(fields["name"] or "")
    arguments = fields["arguments"]
    brackets = ""
    if isinstance(arguments, str):
        arguments, brackets = _decoded(arguments)
    call = as_json({"name": name, "arguments": {} if arguments is None else arguments})
    # The superfluous brackets stay, so that the dialect reports the malformed call. Text in the
    # arguments that looks like a tag must not end the call.
    escaped = TAGLIKE.sub(r"\\u003c", f"{call}{brackets}")
    return Call(
        id=fields["id"],
        name=name,
        written=f"<tool_call>\n{escaped}\n</tool_call>",
        answer=_answer_of(name, arguments),
    )


def _decoded(arguments: str) -> tuple[Any, str]:
    """The object in a call's JSON, and superfluous closing brackets after it. `None` for nothing;
    of anything else the text itself.
    """
    text = arguments.strip()
    if not text:
        return None, ""
    try:
        value, end = loose_json.decode_start(text)
    except DataError:
        return arguments, ""
    brackets = text[end:]
    if value is None and not brackets:
        return None, ""
    if not isinstance(value, dict) or brackets.strip("]} \n"):
        return arguments, ""
    return value, brackets


def _answer_of(name: str, arguments: Any) -> str | None:
    """The answer that this call hands in; `None` for any other call."""
    if not hands_in(name) or not arguments:
        return None
    answer = arguments
    if isinstance(answer, str):
        with suppress(DataError):
            answer = loose_json.decode(answer)
    if isinstance(answer, Mapping):
        answer = _answer_in(answer)
    if answer is None or isinstance(answer, str):
        return answer
    return as_json(answer)


def _answer_in(fields: Mapping[str, Any]) -> Any:
    """The answer in a call's arguments: the field for it, else the only one, else all of them."""
    answer = first(fields, ANSWER_FIELDS)
    if answer is not None:
        return answer
    if len(fields) > 1:
        return fields
    return next(iter(fields.values()), None)
