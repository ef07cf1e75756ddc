"""CaRR's reward server: its request for one rollout, and what it answers.

The wire format of https://github.com/THUDM/CaRR (`POST /evaluate`): `history` holds the messages,
`label` the gold answer, `remote_env_info` the question. Rubrics in the request are not read: what
counts beside the answer are the parts of the mix.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..formats.base import mapping, mappings
from ..rewards import Mix, Score
from ..scoring import Scoring, numeric_parts

Message = Mapping[str, Any]


def messages_of(history: Sequence[Message]) -> list[dict[str, Any]]:
    """The history as chat messages: its calls and results have fields of their own.

    Example:
        >>> output = {"tool_call_id": "1", "output": "Lima"}
        >>> messages_of([{"role": "tool", "content": [output]}])
        [{'role': 'tool', 'tool_call_id': '1', 'content': 'Lima'}]
    """
    messages: list[dict[str, Any]] = []
    for entry in history:
        messages.extend(_messages(entry))
    return messages


def values_of(body: Mapping[str, Any]) -> dict[str, Any]:
    """What the request knows of the question."""
    # The question is the first text that must not be searched for
    forbidden = mapping(body, "remote_env_info").get("search_forbidden_strs")
    question = forbidden[0] if isinstance(forbidden, list) and forbidden else None
    return {"question": question, "answers": body.get("label")}


def evaluated(scoring: Scoring, score: Score) -> dict[str, Any]:
    """The answer: the reward, the outcome, and the other parts in the place of rubrics."""
    rubrics = numeric_parts(score)
    outcome = 0.0
    if isinstance(scoring.rule, Mix) and scoring.rule.outcome_name is not None:
        outcome = rubrics.pop(scoring.rule.outcome_name, 0.0)
    return {
        "reward": scoring.number(score),
        "outcome_reward": outcome,
        "rubric_reward": sum(rubrics.values()) / len(rubrics) if rubrics else 0.0,
        "rubric_scores": rubrics,
    }


def _messages(entry: Message) -> Iterator[dict[str, Any]]:
    content = entry.get("content")
    if entry.get("role") == "tool" and isinstance(content, list):
        for output in mappings(content):
            yield {
                "role": "tool",
                "tool_call_id": output.get("tool_call_id"),
                "content": output.get("output", ""),
            }
        return
    message = dict(entry)
    calls = mappings(entry.get("tool_calls"))
    if calls:
        message["tool_calls"] = [_call(call) for call in calls]
    yield message


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    if "function" in call:  # as chat APIs have it
        return dict(call)
    function = {"name": call.get("name", ""), "arguments": call.get("arguments", "{}")}
    return {"id": call.get("tool_call_id"), "type": "function", "function": function}
