"""Agent-Lightning's doors: spans of 0.x and events of 1.x, of the real package where it is
installed, else as they are stored.
"""

import asyncio
import json

import pytest
from awaited import DeadJudge, beside_a_heart
from doors import ANSWERS, CHAT, FORGED, QUESTION, at_most, slow_scoring

from faithful_search.adapters import agent_lightning
from faithful_search.adapters.agent_lightning import reward_of_events, reward_of_spans
from faithful_search.errors import NoScoreError
from faithful_search.reading.rows import READER
from faithful_search.scoring import Scoring


def numbered(prefix, messages):
    """Attributes of a span as AgentOps writes them."""
    attributes = {}
    for number, message in enumerate(messages):
        name = f"{prefix}.{number}"
        attributes[f"{name}.role"] = message["role"]
        attributes[f"{name}.content"] = message["content"]
        if "tool_call_id" in message:
            attributes[f"{name}.tool_call_id"] = message["tool_call_id"]
        for place, call in enumerate(message.get("tool_calls", ())):
            attributes[f"{name}.tool_calls.{place}.id"] = call["id"]
            attributes[f"{name}.tool_calls.{place}.name"] = call["function"]["name"]
            attributes[f"{name}.tool_calls.{place}.arguments"] = call["function"]["arguments"]
    return attributes


def calls_of(chat):
    """What each of the model's calls was given, and what it gave."""
    replies = [place for place, message in enumerate(chat) if message["role"] == "assistant"]
    return [(chat[:place], chat[place]) for place in replies]


def spans_of(chat):
    spans = []
    for given, reply in calls_of(chat):
        attributes = numbered("gen_ai.prompt", given) | numbered("gen_ai.completion", [reply])
        spans.append({"trace_id": "t", "span_id": "s", "attributes": attributes})
    return spans


def events_of(chat):
    events = [{"event_type": "note", "data": {"text": "begun"}}]
    for given, reply in calls_of(chat):
        response = {"choices": [{"message": reply}]}
        data = {"request": {"messages": given}, "response": response, "status": "ok"}
        events.append({"event_type": "model_request", "data": data})
    return events


def of_spans(chat, answers=ANSWERS, **settings):
    return asyncio.run(reward_of_spans(spans_of(chat), answers, QUESTION, **settings))


def of_events(chat, answers=ANSWERS, **settings):
    return reward_of_events(events_of(chat), answers, QUESTION, **settings)


@pytest.fixture(params=[of_spans, of_events], ids=["spans", "events"])
def reward(request):
    return request.param


def test_a_supported_answer_earns_the_reward(reward):
    assert reward(CHAT, mix="answer_only") == 1.0


def test_an_answer_from_memory_earns_nothing(reward):
    assert reward([CHAT[0], CHAT[-1]], mix="answer_only") <= 0.0


def test_a_forged_response_earns_nothing(reward):
    forged = [CHAT[0], {"role": "assistant", "content": FORGED}]
    assert reward(forged, mix="answer_only") <= 0.0


def test_it_is_what_the_messages_earn(reward):
    [score] = Scoring("veritas").score([CHAT], question=[QUESTION], answers=[ANSWERS])
    assert reward(CHAT, mix="veritas") == score.value


def test_a_rollout_without_a_value_is_an_error(reward):
    with pytest.raises(NoScoreError):
        reward(CHAT, answers=[], mix="correctness")


def test_a_value_can_be_stated_instead(reward):
    assert reward(CHAT, answers=[], mix="correctness", abstained=0.5) == 0.5


def test_a_rollout_without_calls_is_an_error(reward):
    with pytest.raises(NoScoreError, match="could not be read"):
        reward([], mix="answer_only")


def test_a_judge_that_is_down_is_an_error(reward, monkeypatch):
    scoring = Scoring("answer_support", judge=DeadJudge())
    monkeypatch.setattr(agent_lightning, "scoring_of", lambda *names, **values: scoring)
    with pytest.raises(NoScoreError, match="nobody answers"):
        reward(CHAT)


def test_a_call_that_failed_is_passed_over():
    failed = {"event_type": "model_request", "data": {"status": "error", "request": {}}}
    assert reward_of_events([*events_of(CHAT), failed], ANSWERS, mix="correctness") == 1.0


def test_blocks_of_content_are_read_from_their_json():
    blocks = json.dumps([{"type": "text", "text": CHAT[2]["content"]}])
    chat = [*CHAT[:2], {**CHAT[2], "content": blocks}, CHAT[3]]
    assert of_spans(chat, mix="answer_only") == 1.0


def test_exported_spans_are_read_from_a_file():
    rows = json.dumps({"lines": spans_of(CHAT)}).encode()
    assert READER.parse(rows).answer == "Lima"


def test_spans_of_the_package_are_read():
    types = pytest.importorskip("agentlightning.types", reason="needs agentlightning 0.x")
    spans = [
        types.Span.from_attributes(name="openai.chat.completion", attributes=span["attributes"])
        for span in spans_of(CHAT)
    ]
    reward = asyncio.run(reward_of_spans(spans, ANSWERS, QUESTION, mix="answer_only"))
    assert reward == 1.0


def test_a_hook_of_the_package_adds_the_reward(tmp_path):
    hooks = pytest.importorskip("agentlightning.hooks", reason="needs agentlightning 1.x")
    schemas = pytest.importorskip("agentlightning.schemas")
    text = agent_lightning.__doc__.partition("```python\n")[2].partition("```")[0]
    file = tmp_path / "hook.py"
    imports = (
        "from agentlightning.hooks import RolloutHooks\n"
        "from faithful_search.adapters.agent_lightning import reward_of_events\n"
    )
    file.write_text(imports + text, encoding="utf-8")
    place = {"rollout_id": "r", "attempt_id": "0", "timestamp": 0.0}
    events = [schemas.Event(**place, **event) for event in events_of(CHAT)]
    rollout = schemas.Rollout(
        rollout_id="r",
        input={"question": QUESTION, "answers": ANSWERS},
        config=schemas.RolloutConfig(),
        status=schemas.RolloutLifecycleStatus(created_at=0.0, updated_at=0.0),
    )
    added = []

    class Store:
        def add_event(self, rollout_id, attempt_id, event_type, data):
            added.append((attempt_id, event_type, data))

    hooks.load_hooks(str(file)).on_succeeded(rollout, {"0": events}, Store())
    [score] = Scoring("veritas").score([CHAT], question=[QUESTION], answers=[ANSWERS])
    assert added == [("0", "reward", {"value": score.value})]


def test_eight_rollouts_share_a_judge_of_one_second(monkeypatch):
    async def score(spans):
        return await reward_of_spans(spans, ANSWERS, QUESTION)

    with slow_scoring(monkeypatch, agent_lightning), at_most(4.0):
        _, longest = asyncio.run(beside_a_heart(score, [spans_of(CHAT)] * 8))
    assert longest < 0.5  # 0.01 s but for a busy machine; a loop that waits stands still for 1 s
