"""Agent-Lightning: the reward of a rollout, from what it recorded of the model's calls.

Since 1.0 a file of yours that `agentlightning.hooks` names holds a hook:

```python
class Faithful(RolloutHooks):
    def on_succeeded(self, rollout, events, store):
        answers, question = rollout.input["answers"], rollout.input["question"]
        for attempt, recorded in events.items():
            reward = reward_of_events(recorded, answers, question, mix="veritas", abstained=0.0)
            store.add_event(rollout.rollout_id, attempt, "reward", {"value": reward})
```

In 0.x a hook's `on_rollout_end`, or the agent itself, has the rollout's spans:
`emit_reward(await reward_of_spans(spans, answers, question, mix="veritas"))`.

The call that was given most holds the rollout; its messages say who wrote what. Agent-Lightning
takes `reward_fillna_value` (0.0 by default) for a rollout without a reward, also where a hook
raised: it has no way to leave a rollout out.
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
        answers, question: what is known of the question; answers in any usual form.
        mix, settings: those of `adapters.settings.scoring_of`.

    Raises `NoScoreError` for a rollout without a value, also where no span holds messages, unless
    `abstained` says what to take instead.

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
    """The reward of a rollout of Agent-Lightning 1.x, whose hooks are not awaited.

    `events` are those of one attempt, or their JSON; all else is as in `reward_of_spans`.

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
    """Request and response of the call that was given most messages, the last of such."""
    calls = []
    for event in events:
        fields = event if isinstance(event, Mapping) else vars(event)
        data = mapping(fields, "data")
        if fields.get("event_type") == "model_request" and data.get("status") != "error":
            calls.append({"request": data.get("request"), "response": data.get("response")})
    nothing_recorded: dict[str, Any] = {"request": {}, "response": {}}
    return max(reversed(calls), key=_messages_given, default=nothing_recorded)


def _messages_given(call: Mapping[str, Any]) -> int:
    return len(mappings(call["request"], "messages"))
