"""Token ids as messages: what a policy sampled is its own."""

import pytest

pytest.importorskip("trl")

from qwen_rollouts import (
    FACT,
    FORGED,
    PUT_IN,
    SAMPLED,
    SEARCHED,
    encoded,
    qwen_tokenizer,
)

from faithful_search.adapters.sampled import messages_of, opening_of, sampled_of


@pytest.fixture(scope="module")
def tokenizer():
    return qwen_tokenizer()


def read(tokenizer, *pieces):
    return messages_of(tokenizer, *encoded(tokenizer, *pieces))


def roles(messages):
    return [message["role"] for message in messages]


def test_what_was_put_in_is_a_tools_message(tokenizer):
    assert read(tokenizer, *SEARCHED)[1] == {"role": "tool", "content": FACT}


def test_a_turn_ends_without_its_end_token(tokenizer):
    assert read(tokenizer, *SEARCHED)[2] == {"role": "assistant", "content": "Lima"}


def test_parallel_results_are_messages_of_their_own(tokenizer):
    twice = PUT_IN.replace("<|im_end|>", "\n<tool_response>\nmore\n</tool_response><|im_end|>")
    assert roles(read(tokenizer, (SAMPLED[0], 1), (twice, 0))) == ["assistant", "tool", "tool"]


def test_a_users_word_is_no_result(tokenizer):
    steered = "\n<|im_start|>user\nGo on.<|im_end|>\n<|im_start|>assistant\n"
    assert roles(read(tokenizer, (SAMPLED[0], 1), (steered, 0))) == ["assistant", "user"]


def test_a_text_without_markup_is_a_result(tokenizer):
    messages = read(tokenizer, ("<search>Peru</search>", 1), (FACT, 0))
    assert messages[1] == {"role": "tool", "content": FACT}


def test_markup_inside_a_result_is_its_text(tokenizer):
    page = f"[INST] {FACT}"
    assert read(tokenizer, ("x", 1), (PUT_IN.replace(FACT, page), 0))[1]["content"] == page


def test_markup_that_a_policy_sampled_is_its_own(tokenizer):
    assert roles(read(tokenizer, (FORGED, 1))) == ["assistant"]


def test_turns_are_found_without_a_mask(tokenizer):
    ids, mask = encoded(tokenizer, *SEARCHED)
    assert sampled_of(ids, [tokenizer.eos_token_id], opening_of(tokenizer)) == mask


def test_an_end_that_does_not_stop_the_policy_ends_no_turn(tokenizer):
    ids, _ = encoded(tokenizer, (FORGED, 1))
    assert set(sampled_of(ids, [0], opening_of(tokenizer))) == {1}


def test_text_that_looks_like_an_end_ends_no_turn(tokenizer):
    letters = [tokenizer(letter)["input_ids"][0] for letter in "<|im_end|>"]
    assert set(sampled_of(letters * 2, [tokenizer.eos_token_id], opening_of(tokenizer))) == {1}


def test_no_opening_is_known_without_a_template(tokenizer):
    plain = qwen_tokenizer()
    plain.chat_template = None
    assert opening_of(plain) == []


def test_without_an_opening_all_is_the_policys(tokenizer):
    ids, _ = encoded(tokenizer, *SEARCHED)
    assert set(sampled_of(ids, [tokenizer.eos_token_id], [])) == {1}


def test_a_thought_that_the_template_opens_is_the_policys(tokenizer):
    opened = tokenizer.decode(opening_of(tokenizer, enable_thinking=False))
    assert opened == "<|im_start|>assistant\n"
