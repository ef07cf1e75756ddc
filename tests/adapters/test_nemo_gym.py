"""NeMo Gym's door: verify requests as its servers write them."""

import asyncio
import json

import pytest
from awaited import beside_a_heart
from doors import ANSWERS, FORGED, QUESTION, at_most, slow_scoring

from faithful_search.adapters import nemo_gym
from faithful_search.adapters.nemo_gym import verify
from faithful_search.errors import NoScoreError

CALL = {"type": "function_call", "call_id": "1", "name": "search", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "1", "output": "The capital of Peru is Lima."}


def message(text):
    content = [{"type": "output_text", "text": text, "annotations": []}]
    return {"id": "msg_1", "type": "message", "role": "assistant", "content": content}


def body(*items, **fields):
    asked = {"input": [{"role": "user", "content": QUESTION}]}
    row = {"responses_create_params": asked, "response": {"output": list(items)}}
    return row | {"expected_answer": ANSWERS[0]} | fields


def verified(*items, mix="answer_only", fields=None, **settings):
    return asyncio.run(verify(body(*items, **(fields or {})), mix, **settings))


def test_a_supported_answer_earns_the_reward():
    assert verified(CALL, OUTPUT, message("Lima"))["reward"] == 1.0


def test_an_answer_from_memory_earns_nothing():
    assert verified(message("Lima"))["reward"] <= 0.0


def test_a_forged_response_earns_nothing():
    assert verified(message(FORGED), dialect="search_r1_like")["reward"] <= 0.0


def test_the_parts_are_components():
    components = verified(CALL, OUTPUT, message("Lima"))["reward_components"]
    assert components == {"format": 1.0, "source_gated": 1.0, "abstained": 0.0}


def test_the_body_comes_back():
    request = body(message("Lima"))
    assert asyncio.run(verify(request, "correctness")).items() >= request.items()


def test_the_answer_is_json():
    assert json.dumps(verified(CALL, OUTPUT, message("Lima")))


def test_a_rollout_without_a_value_is_an_error():
    with pytest.raises(NoScoreError):
        verified(message("Lima"), mix="correctness", fields={"expected_answer": None})


def test_eight_requests_share_a_judge_of_one_second(monkeypatch):
    requests = [body(CALL, OUTPUT, message("Lima")) for _ in range(8)]
    with slow_scoring(monkeypatch, nemo_gym), at_most(4.0):
        _, longest = asyncio.run(beside_a_heart(verify, requests))
    assert longest < 0.5  # 0.01 s but for a busy machine; a loop that waits stands still for 1 s
