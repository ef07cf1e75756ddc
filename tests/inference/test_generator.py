"""The Transformers generator: exact ids, stop strings, limits, log-probabilities and choice probabilities."""

from __future__ import annotations

from contextlib import nullcontext

import lab
import pytest
import torch

from faithful_search.errors import ConfigError
from faithful_search.inference.base import Sampling
from faithful_search.inference.transformers import TransformersGenerator

PROMPTS = ["a", "a longer prompt than that", "émigré ☃"]


@pytest.fixture(scope="module")
def generator() -> TransformersGenerator:
    return TransformersGenerator(lab.model(), lab.tokenizer(), batch_size=2)


def ids(text: str) -> list[int]:
    return lab.tokenizer()(text, add_special_tokens=False)["input_ids"]


def logprobs_of(model, prompt: list[int], completion: list[int], temperature: float = 1.0) -> torch.Tensor:
    with torch.no_grad():
        logits = model(torch.tensor([prompt + completion])).logits[0, len(prompt) - 1 : -1]
    return torch.log_softmax(logits / temperature, -1).gather(1, torch.tensor(completion)[:, None])[:, 0]


def test_greedy_equals_argmax_without_padding(generator):
    completions = generator.generate([ids(text) for text in PROMPTS], Sampling(temperature=0.0, max_new_tokens=12))
    for text, completion in zip(PROMPTS, completions, strict=True):
        context = ids(text)
        for token in completion.ids:
            with torch.no_grad():
                assert int(generator.model(torch.tensor([context])).logits[0, -1].argmax()) == token
            context.append(token)


def test_no_shipped_sampling_setting_bends_the_policy(generator):
    prompts, sampling = [ids(text) for text in PROMPTS], Sampling(max_new_tokens=30)
    torch.manual_seed(1)
    plain = generator.generate(prompts, sampling)
    sampled = sorted({token for item in plain for token in item.ids})
    model = lab.model()
    shipped = {
        "min_p": 0.9,
        "typical_p": 0.05,
        "epsilon_cutoff": 0.5,
        "bad_words_ids": [[token] for token in sampled[::2]],
        "suppress_tokens": sampled[1::2],
        "sequence_bias": [[[sampled[0]], 50.0]],
        "min_new_tokens": 30,
        "exponential_decay_length_penalty": (1, 5.0),
        "repetition_penalty": 50.0,
        "no_repeat_ngram_size": 1,
    }
    for key, value in shipped.items():
        setattr(model.generation_config, key, value)
    torch.manual_seed(1)
    assert TransformersGenerator(model, lab.tokenizer(), batch_size=2).generate(prompts, sampling) == plain
    assert {key: getattr(model.generation_config, key) for key in shipped} == shipped


def test_shipped_settings_are_restored_after_an_error():
    model = lab.model()
    model.generation_config.min_p = 0.3
    with pytest.raises(RuntimeError), pytest.MonkeyPatch.context() as patch:
        patch.setattr(model, "forward", _fails)
        TransformersGenerator(model, lab.tokenizer()).generate([ids("a")], Sampling(max_new_tokens=2))
    assert model.generation_config.min_p == 0.3


def _fails(input_ids=None, attention_mask=None, position_ids=None, past_key_values=None, **more):
    raise RuntimeError("broken")


def test_a_model_without_end_of_sequence_writes_to_its_limit():
    model, bare = lab.model(), lab.byte_tokenizer(("<|im_start|>", "<|im_end|>", "<|pad|>"))
    model.generation_config.eos_token_id = model.generation_config.pad_token_id = None
    seen = TransformersGenerator(model, bare).generate([ids("a"), ids("abc")], Sampling(max_new_tokens=6), [6, 3])
    assert [(len(item.ids), item.finish) for item in seen] == [(6, "length"), (3, "length")]


@pytest.mark.parametrize(
    ("knob", "wrong"),
    [
        *(("temperature", -0.1), ("temperature", float("nan")), ("top_p", 0.0), ("top_p", 1.1)),
        *(("top_k", -1), ("max_new_tokens", 0), ("stop", ("</answer>", ""))),
    ],
)
def test_sampling_that_cannot_be_is_refused(knob, wrong):
    with pytest.raises(ConfigError, match=knob):
        Sampling(**{knob: wrong})


def test_a_prompt_longer_than_the_model_is_refused_with_both_lengths(generator):
    assert len(generator.generate([[65] * 4095], Sampling(max_new_tokens=1))[0].ids) == 1
    with pytest.raises(ConfigError, match=r"4096 tokens leaves no room in the model's 4096 positions"):
        generator.generate([[65], [65] * 4096], Sampling(max_new_tokens=1))


def test_a_choice_without_tokens_and_batches_without_rows_are_refused(generator):
    with pytest.raises(ConfigError, match="at least 1 row, got batch_size=0"):
        TransformersGenerator(generator.model, generator.tokenizer, batch_size=0)
    with pytest.raises(ConfigError, match="choice 1 of prompt 0 is empty"):
        generator.choice_probs([ids("a")], [[ids("b"), []]])


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_logprobs_are_those_of_the_sampled_distribution(generator, temperature):
    torch.manual_seed(0)
    sampling = Sampling(temperature=temperature, max_new_tokens=10, logprobs=True)
    prompts = [ids(text) for text in PROMPTS]
    for prompt, completion in zip(prompts, generator.generate(prompts, sampling), strict=True):
        expected = logprobs_of(generator.model, prompt, completion.ids, temperature)
        torch.testing.assert_close(torch.tensor(completion.logprobs), expected, atol=1e-4, rtol=1e-4)


def test_stop_string_ends_the_turn_and_stays_in_it(generator):
    prompt = ids("a longer prompt than that")
    free = generator.generate([prompt], Sampling(temperature=0.0, max_new_tokens=12))[0].ids
    stop = lab.tokenizer().decode(free[3:6])
    completion = generator.generate([prompt], Sampling(temperature=0.0, max_new_tokens=12, stop=(stop,)))[0]
    assert completion.finish == "stop"
    assert completion.ids == free[: len(completion.ids)]
    assert lab.tokenizer().decode(completion.ids).endswith(stop)


def test_a_stop_string_may_end_inside_a_merged_token():
    merged = lab.byte_tokenizer(
        ("<|im_end|>",), merges=[("\u003e", "\u010a"), ("l", "l"), ("ll", "\u003e\u010a")], eos_token="<|im_end|>"
    )
    wanted = merged("<call>\n", add_special_tokens=False)["input_ids"]
    assert merged.decode(wanted[-1:]) == "ll>\n"

    class Following(torch.nn.Module):
        """After the k-th token of `wanted` comes the next one."""

        def forward(self, hidden):
            logits = torch.zeros(*hidden.shape[:2], len(merged))
            logits[..., wanted[min(self.step, len(wanted) - 1)]] = 9.0
            self.step += 1
            return logits

    model = lab.model()
    model.lm_head = Following()
    model.lm_head.step = 0
    model.generation_config.eos_token_id = None
    sampling = Sampling(temperature=0.0, max_new_tokens=12, stop=("<call>",))
    completion = TransformersGenerator(model, merged).generate([[65]], sampling)[0]
    assert (completion.ids, completion.finish) == (wanted, "stop")


@pytest.mark.parametrize("keeps", [False, True])
def test_sampled_end_of_sequence_is_kept(keeps):
    model, eos = lab.model(), lab.tokenizer().eos_token_id
    with torch.no_grad():
        model.lm_head.weight.zero_()
        model.lm_head.weight[eos] = 1.0
    biased = TransformersGenerator(model, lab.tokenizer())
    with biased.keeping() if keeps else nullcontext():
        seen = biased.generate([ids("x")] * 64, Sampling(max_new_tokens=3))
    assert "eos" in {item.finish for item in seen} <= {"eos", "length"}
    assert all((item.ids[-1] == eos) == (item.finish == "eos") and eos not in item.ids[:-1] for item in seen)


def test_choice_probs_equal_the_chain_rule(generator):
    prompts = [ids(text) for text in PROMPTS]
    choices = [[ids("y"), ids("n")], [ids("yes"), ids("n")], [ids("☃"), ids("no")]]
    for prompt, own, probs in zip(prompts, choices, generator.choice_probs(prompts, choices), strict=True):
        expected = [logprobs_of(generator.model, prompt, choice).sum().exp().item() for choice in own]
        assert probs == pytest.approx(expected, rel=1e-3)
