"""verl's door: a reward function that is awaited, or not."""

import asyncio
import math

import numpy as np
import pytest
from awaited import beside_a_heart
from doors import ANSWERS, CHAT, FORGED, QUESTION, TEXT, at_most, slow_scoring

from faithful_search.adapters import verl
from faithful_search.adapters.verl import compute_score, compute_score_sync
from faithful_search.errors import ConfigError, NoScoreError


def awaited(solution=TEXT, gold=ANSWERS, extra_info=None, **settings):
    return asyncio.run(compute_score("hotpotqa", solution, gold, extra_info, **settings))


def test_messages_are_preferred_to_the_text():
    result = awaited("no text", extra_info={"messages": CHAT}, mix="answer_only")
    assert result["score"] == 1.0


def test_a_text_is_the_policys_own():
    assert math.isnan(awaited(mix="veritas")["info_think"])


def test_a_text_can_be_trusted():
    assert awaited(mix="veritas", responses="anywhere")["info_think"] == 1.0


def test_a_forged_response_earns_nothing():
    assert awaited(FORGED, mix="answer_only", dialect="search_r1_like")["score"] <= 0.0


@pytest.mark.parametrize(
    "gold",
    [
        "Lima",
        ["Lima"],
        {"target": ["Lima"]},
        {"target": np.array(["Lima"], dtype=object)},
        np.array(["Quito", "Lima"], dtype=object),
    ],
    ids=["text", "list", "Search-R1's", "Search-R1's from parquet", "array"],
)
def test_gold_answers_may_have_verls_forms(gold):
    assert awaited("Lima", gold, mix="correctness")["score"] == 1.0


def test_the_question_is_taken_from_the_extra_info(monkeypatch):
    with slow_scoring(monkeypatch, verl, seconds=0.0) as scoring:
        read = scoring.read(CHAT, **verl.values_of(ANSWERS, {"question": QUESTION}))
    assert read.question == QUESTION


def test_keys_are_the_same_for_every_rollout():
    keys = [set(awaited(text, mix="veritas")) for text in (TEXT, "", "Lima")]
    assert keys == [keys[0]] * 3


def test_a_part_without_a_value_is_not_a_number():
    assert math.isnan(awaited("", mix="veritas")["info_think"])


def test_a_rollout_without_a_value_is_an_error():
    with pytest.raises(NoScoreError, match="abstained"):
        awaited(gold=None, mix="correctness")


def test_a_value_can_be_stated_instead():
    result = awaited(gold=None, mix="correctness", abstained=0.0)
    assert (result["score"], result["abstained"]) == (0.0, 1.0)


def test_an_unknown_mix_is_refused():
    with pytest.raises(ConfigError, match="unknown reward 'poo'"):
        awaited(mix="poo")


@pytest.mark.parametrize(("info", "counted"), [({}, 1.0), ({"messages": CHAT}, 0.0)])
def test_rollouts_with_nothing_but_a_text_are_counted(info, counted):
    assert awaited(extra_info=info, mix="answer_only")["text_only"] == counted


@pytest.mark.parametrize(("responses", "warnings"), [("messages", 1), ("anywhere", 0)])
def test_a_text_that_nobody_trusts_is_warned_of_once(responses, warnings, caplog):
    verl._warn_of_text.cache_clear()
    for _ in range(2):
        awaited(mix="answer_only", responses=responses)
    assert caplog.text.count("nobody can tell who wrote what") == warnings


def test_the_sync_form_gives_the_same():
    info = {"messages": CHAT}
    assert compute_score_sync("nq", "", ANSWERS, info, mix="veritas") == awaited(
        "", extra_info=info, mix="veritas"
    )


def test_eight_rollouts_share_a_judge_of_one_second(monkeypatch):
    async def score(chat):
        return await compute_score("nq", "", ANSWERS, {"messages": chat})

    with slow_scoring(monkeypatch, verl), at_most(4.0):
        _, longest = asyncio.run(beside_a_heart(score, [CHAT] * 8))
    assert longest < 0.5  # 0.01 s but for a busy machine; a loop that waits stands still for 1 s
