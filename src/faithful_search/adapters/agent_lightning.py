"""Agent-Lightning: the reward of a rollout, from the calls of the model that it recorded.

Since 1.0, write a hook into a file that `agentlightning.hooks` names:

```python
class Faithful(RolloutHooks):
    def on_succeeded(self, rollout, events, store):
        answers, question = rollout.input["answers"], rollout.input["question"]
        for attempt, recorded in events.items():
            reward = reward_of_events(recorded, answers, question, mix="veritas", abstained=0.0)
            store.add_event(rollout.rollout_id, attempt, "reward", {"value": reward})
```

In 0.x, a hook's `on_rollout_end`, or the agent itself, has the rollout's spans:
`emit_reward(await reward_of_spans(spans, answers, question, mix="veritas"))`.

The trajectory is read from the call with the most messages, which repeats those before it; its
messages say who wrote what. Agent-Lightning cannot leave a rollout out: one without a reward gets
`reward_fillna_value` (by default 0.0), also if a hook raised an error.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from ..formats.base import mapping, mappings
from .settings import scoring_of


async def reward_of_spans(
    spans: Iterable[Any],
    answers: Any = (),
    question: str | None = None,
    *,
    mix: str = "veritas",
    **settings: Any,
) -> float:
    """The reward of a rollout of Agent-Lightning 0.x.

    Args:
        spans: its spans, of Agent-Lightning or of OpenTelemetry, or their JSON.
        answers: the gold answers, in any usual form.
        question: the question.
        mix: the name of the reward, as `adapters.settings.scoring_of` has it.
        settings: other settings of `scoring_of`.

    Raises `NoScoreError` for a rollout without a value, also if no span has messages, unless the
    setting `abstained` has a value for it.

    Example:
        >>> import asyncio
        >>> attributes = {
        ...     "gen_ai.prompt.0.role": "user",
        ...     "gen_ai.prompt.0.content": "Capital of Peru?",
        ...     "gen_ai.completion.0.content": "Lima",
        ... }
        >>> asyncio.run(reward_of_spans([{"attributes": attributes}], ["Lima"], mix="correctness"))
        1.0
    """
    scoring = scoring_of(mix, **settings)
    lines = [{"trace_id": "rollout", "attributes": _attributes(span)} for span in spans]
    score = await scoring.ascore({"lines": lines}, question=question, answers=answers)
    return scoring.number(score)


def reward_of_events(
    events: Iterable[Any],
    answers: Any = (),
    question: str | None = None,
    *,
    mix: str = "veritas",
    **settings: Any,
) -> float:
    """The reward of a rollout of Agent-Lightning 1.x. It is not a coroutine, since hooks are not
    awaited there.

    `events` are those of one attempt, or their JSON. All else is as in `reward_of_spans`.

    Example:
        >>> reply = {"choices": [{"message": {"role": "assistant", "content": "Lima"}}]}
        >>> asked = {"messages": [{"role": "user", "content": "Capital of Peru?"}]}
        >>> event = {"event_type": "model_request", "data": {"request": asked, "response": reply}}
        >>> reward_of_events([event], ["Lima"], mix="correctness")
        1.0
    """
    scoring = scoring_of(mix, **settings)
    [score] = scoring.score([_longest_call(events)], question=[question], answers=[answers])
    return scoring.number(score)


def _attributes(span: Any) -> dict[str, Any]:
    attributes = span.get("attributes") if isinstance(span, Mapping) else span.attributes
    return dict(attributes or {})


def _longest_call(events: Iterable[Any]) -> dict[str, Any]:
    """Request and response of the call with the most messages in its request; the last one of
    several.
    """
    calls = []
    for event in events:
        fields = event if isinstance(event, Mapping) else vars(event)
        data = mapping(fields, "data")
        if fields.get("event_type") == "model_request" and data.get("status") != "error":
            calls.append({"request": data.get("request"), "response": data.get("response")})
    no_call: dict[str, Any] = {"request": {}, "response": {}}
    # `max` returns the first of equal ones
    return max(reversed(calls), key=_request_length, default=no_call)


def _request_length(call: Mapping[str, Any]) -> int:
    """The number of messages in the request."""
    return len(mappings(call["request"], "messages"))
