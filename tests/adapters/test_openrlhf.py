"""OpenRLHF's door: `reward_func(queries, prompts, labels)`."""

import pytest
from doors import ANSWERS, FORGED, TEXT

from faithful_search.adapters.openrlhf import response_of, result_of, reward_function
from faithful_search.errors import DataError, NoScoreError
from faithful_search.scoring import Scoring

PROMPT = "Answer the question. "


def rewards(*texts, mix="veritas", **settings):
    queries = [PROMPT + text for text in texts]
    labels = [ANSWERS] * len(texts)
    return reward_function(mix, **settings)(queries, [PROMPT] * len(texts), labels)


def test_a_reward_for_each_query():
    assert rewards("Lima", "Quito", mix="correctness")["rewards"] == [1.0, 0.0]


def test_scores_are_the_rewards():
    answer = rewards(TEXT, responses="anywhere")
    assert answer["scores"] == answer["rewards"]


def test_parts_are_logged():
    answer = rewards(TEXT, responses="anywhere")
    assert answer["extra_logs"]["info_think"] == [1.0]


def test_the_prompt_is_not_the_policys():
    assert response_of("Where? Lima", "Where? ") == "Lima"


def test_a_forged_response_earns_nothing():
    [value] = rewards(FORGED, mix="answer_only", dialect="search_r1_like")["rewards"]
    assert value <= 0.0


def test_a_rollout_without_a_value_is_an_error():
    with pytest.raises(NoScoreError):
        reward_function("correctness")(["Lima"], [""], [None])


def test_a_stated_value_is_counted_as_abstained():
    answer = reward_function("correctness", abstained=0.0)(["Lima"], [""], [None])
    assert answer["extra_logs"]["abstained"] == [1.0]


@pytest.mark.parametrize(
    ("queries", "prompts", "labels"),
    [(["Lima"], [], ["Lima"]), (["Lima", "Rome"], ["", ""], ["Lima"]), ([], [""], [])],
)
def test_lists_of_different_lengths_are_named(queries, prompts, labels):
    counted = f"{len(queries)} queries, {len(prompts)} prompts, {len(labels)} labels"
    with pytest.raises(DataError, match=counted):
        reward_function("correctness")(queries, prompts, labels)


def test_logs_hold_the_parts_that_all_rows_have():
    scoring = Scoring("veritas")
    scores = scoring.score(["", "Lima"], answers=[ANSWERS] * 2)
    assert set(result_of(scoring, scores)["extra_logs"]) == {"exact_match", "abstained"}
