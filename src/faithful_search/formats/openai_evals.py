"""OpenAI's evals: a log of events, of which those with the same sample belong together."""

from typing import Any

from .base import Chat, Format, mapping, mappings, text
from .messages import is_chat

_MARKS = frozenset(("event_id", "sample_id", "run_id"))


def group(value: Any) -> str | None:
    """Events by their sample. What was run (`spec`, the first line) is an episode of its own, which
    cannot be read.
    """
    fields = mapping(value)
    if "eval_name" in mapping(fields, "spec"):
        return "spec"
    if "event_id" not in fields or not isinstance(fields.get("data"), dict):
        return None
    return f"{fields.get('run_id')} {fields.get('sample_id')}"


def read(value: Any) -> Chat | None:
    """What was sampled first, with its prompt, and what was expected: what is sampled after it may
    be a grader's.
    """
    events = [event for event in mappings(value, "lines") if "event_id" in event]
    sampled = [mapping(event, "data") for event in events if event.get("type") == "sampling"]
    prompts = [data for data in sampled if is_chat(data.get("prompt"))]
    if not prompts:
        return None
    agent = prompts[0]
    answers = agent.get("sampled")
    answer = answers[0] if isinstance(answers, list) and answers else answers
    expected = [mapping(event, "data").get("expected") for event in events]
    return Chat(
        messages=[*agent["prompt"], {"role": "assistant", "content": text(answer) or ""}],
        answers=next((gold for gold in expected if gold is not None), None),
        id=str(events[0].get("sample_id") or ""),
        left_out={"further samples": len(prompts) - 1},
    )


FORMAT = Format(
    "a log of OpenAI's evals",
    read,
    _MARKS | {"spec"},
    "this line is no sample, or none with an event of type `sampling`",
    group=group,
)
