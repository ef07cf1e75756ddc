"""verl's reward manager, made and called as verl does it."""

import asyncio
import logging

import pytest
from awaited import DeadJudge, beside_a_heart
from doors import ANSWERS, CHAT, QUESTION, at_most, slow_scoring

pytest.importorskip("verl", reason="needs verl (pip install --no-deps verl) and ray")

import numpy as np
import torch
from omegaconf import OmegaConf
from qwen_rollouts import FORGED, PUT_IN, SEARCHED, encoded, qwen_tokenizer
from tensordict import TensorDict
from verl import DataProto
from verl.trainer.ppo.reward import load_reward_manager

from faithful_search.adapters import verl, verl_manager
from faithful_search.errors import ConfigError, NoScoreError
from faithful_search.scoring import Scoring

PLACE = {"path": "pkg://faithful_search.adapters.verl_manager"}


def manager(eos_token="<|im_end|>", **settings):
    """As verl's reward worker makes it of its configuration."""
    found_by = {"source": "importlib", "name": "FaithfulRewardManager", "module": PLACE}
    reward = {"reward_manager": found_by, "reward_kwargs": {"mix": "answer_only", **settings}}
    tokenizer = qwen_tokenizer(eos_token=eos_token)
    config = OmegaConf.create({"reward": reward, "data": {}})
    return load_reward_manager(
        config, tokenizer, reward_router_address=None, reward_model_tokenizer=None
    )


def rollout(pieces=SEARCHED, turns=4, mask=None, answers=ANSWERS, **handed_over):
    """A rollout as verl's agent loop hands it over, which pads its prompt and its response."""
    ids, sampled = encoded(qwen_tokenizer(), *pieces)
    batch = {
        "prompts": torch.tensor([[0, 5]]),
        "responses": torch.tensor([[*ids, 0, 0]]),
        "attention_mask": torch.tensor([[0, 1, *([1] * len(ids)), 0, 0]]),
    }
    if mask == "batch":
        batch["response_mask"] = torch.tensor([[*sampled, 0, 0]])
    if mask == "field":
        handed_over["response_mask"] = sampled
    fields = {
        "data_source": "nq",
        "reward_model": {"ground_truth": {"target": answers}},
        "extra_info": {"question": QUESTION},
        "__num_turns__": turns,
        "tool_extra_fields": handed_over,
    }
    columns = {}
    for name, value in fields.items():
        columns[name] = np.array([None], dtype=object)
        columns[name][0] = value
    return DataProto(batch=TensorDict(batch, batch_size=1), non_tensor_batch=columns)


def scored(data, made=None):
    return asyncio.run((made or manager()).run_single(data))


def test_token_ids_say_who_wrote_what():
    assert scored(rollout())["reward_score"] == 1.0


@pytest.mark.parametrize("place", ["batch", "field"])
def test_a_mask_says_who_wrote_what(place):
    made = manager(eos_token="<|endoftext|>")  # by which no turn ends
    assert scored(rollout(mask=place), made)["reward_score"] == 1.0


def test_a_forged_response_earns_nothing_by_ids():
    made = manager(eos_token="<|endoftext|>")
    assert scored(rollout([(FORGED, 1)]), made)["reward_score"] <= 0.0


def test_a_forged_response_earns_nothing_by_a_mask():
    assert scored(rollout([(FORGED, 1)], mask="batch"))["reward_score"] <= 0.0


def test_messages_that_were_handed_over_come_first():
    result = scored(rollout([("no text", 1)], messages=CHAT))
    assert result["reward_score"] == 1.0


def test_a_page_that_opens_a_message_of_the_policys_is_counted():
    page = f"{PUT_IN}Lima<|im_end|>{PUT_IN}"
    result = scored(rollout([SEARCHED[0], (page, 0), SEARCHED[1]]))
    assert result["reward_extra_info"]["text_only"] == 1.0
    assert result["reward_score"] <= 0.0


def test_a_rollout_whose_last_turn_was_cut_off_is_read():
    result = scored(rollout(SEARCHED[:2]))
    assert result["reward_extra_info"]["text_only"] == 0.0


def test_parts_are_logged():
    assert scored(rollout())["reward_extra_info"]["source_gated"] == 1.0


def test_a_rollout_of_several_turns_that_stay_one_is_counted():
    made = manager(eos_token="<|endoftext|>")
    assert scored(rollout(), made)["reward_extra_info"]["text_only"] == 1.0


def test_it_says_what_to_do_about_such_rollouts(caplog):
    verl._warn_of_text.cache_clear()
    with caplog.at_level(logging.WARNING):
        scored(rollout(), manager(eos_token="<|endoftext|>"))
    assert "stop_tokens" in caplog.text


def test_stop_tokens_can_be_stated():
    made = manager(eos_token="<|endoftext|>", stop_tokens=["<|im_end|>"])
    assert scored(rollout(), made)["reward_score"] == 1.0


def test_a_stop_token_that_is_none_is_refused():
    with pytest.raises(ConfigError, match=r"no token <\|cal\|>"):
        manager(stop_tokens=["<|cal|>"])


def test_an_answer_without_a_search_is_one_turn():
    result = scored(rollout([("Lima<|im_end|>", 1)], turns=2))
    assert result["reward_extra_info"]["text_only"] == 0.0


def test_a_judge_that_is_down_is_an_error(monkeypatch):
    scoring = Scoring("answer_support", judge=DeadJudge())
    monkeypatch.setattr(verl_manager, "scoring_of", lambda *names, **values: scoring)
    with pytest.raises(NoScoreError, match="nobody answers"):
        scored(rollout())


def test_a_value_can_be_stated_for_no_value():
    result = scored(rollout(answers=[]), manager(mix="correctness", abstained=0.5))
    assert (result["reward_score"], result["reward_extra_info"]["abstained"]) == (0.5, 1.0)


def test_eight_rollouts_share_a_judge_of_one_second(monkeypatch):
    with slow_scoring(monkeypatch, verl_manager), at_most(4.0):
        made = manager()
        rollouts = [rollout() for _ in range(8)]
        _, longest = asyncio.run(beside_a_heart(made.run_single, rollouts))
    assert longest < 0.5  # 0.01 s but for a busy machine; a loop that waits stands still for 1 s
