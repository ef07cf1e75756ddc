"""The Transformers generator: exact ids, stop strings, limits, log-probabilities and choice probabilities."""

from __future__ import annotations

import lab
import pytest
import torch

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


def test_the_models_own_sampling_defaults_do_not_bend_the_policy(generator):
    prompts, sampling = [ids(text) for text in PROMPTS], Sampling(temperature=0.0, max_new_tokens=12)
    plain = generator.generate(prompts, sampling)
    model = lab.model()
    model.generation_config.repetition_penalty = 50.0
    model.generation_config.no_repeat_ngram_size = 1
    assert TransformersGenerator(model, lab.tokenizer()).generate(prompts, sampling) == plain


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_logprobs_are_those_of_the_sampled_distribution(generator, temperature):
    torch.manual_seed(0)
    sampling = Sampling(temperature=temperature, max_new_tokens=10, logprobs=True)
    prompts = [ids(text) for text in PROMPTS]
    for prompt, completion in zip(prompts, generator.generate(prompts, sampling), strict=True):
        expected = logprobs_of(generator.model, prompt, completion.ids, temperature)
        torch.testing.assert_close(torch.tensor(completion.logprobs), expected, atol=1e-4, rtol=1e-4)


def test_each_prompt_keeps_its_own_limit(generator):
    sampling = Sampling(temperature=0.0, max_new_tokens=9)
    completions = generator.generate([ids(text) for text in PROMPTS], sampling, [1, 9, 4])
    assert [len(item.ids) for item in completions] == [1, 9, 4]
    assert {item.finish for item in completions} == {"length"}


def test_stop_string_ends_the_turn_and_stays_in_it(generator):
    prompt = ids("a longer prompt than that")
    free = generator.generate([prompt], Sampling(temperature=0.0, max_new_tokens=12))[0].ids
    stop = lab.tokenizer().decode(free[3:6])
    completion = generator.generate([prompt], Sampling(temperature=0.0, max_new_tokens=12, stop=(stop,)))[0]
    assert completion.finish == "stop"
    assert completion.ids == free[: len(completion.ids)]
    assert lab.tokenizer().decode(completion.ids).endswith(stop)


def test_sampled_end_of_sequence_is_kept(generator):
    model = lab.model()
    with torch.no_grad():
        model.lm_head.weight.zero_()
        model.lm_head.weight[lab.tokenizer().eos_token_id] = 1.0
    biased = TransformersGenerator(model, lab.tokenizer())
    seen = biased.generate([ids("x")] * 64, Sampling(temperature=1.0, max_new_tokens=40))
    ended = [item for item in seen if item.finish == "eos"]
    assert ended
    assert all(item.ids[-1] == lab.tokenizer().eos_token_id for item in ended)
    assert all(lab.tokenizer().eos_token_id not in item.ids[:-1] for item in seen)


def test_choice_probs_equal_the_chain_rule(generator):
    prompts = [ids(text) for text in PROMPTS]
    choices = [[ids("y"), ids("n")], [ids("yes"), ids("n")], [ids("☃"), ids("no")]]
    for prompt, own, probs in zip(prompts, choices, generator.choice_probs(prompts, choices), strict=True):
        expected = [logprobs_of(generator.model, prompt, choice).sum().exp().item() for choice in own]
        assert probs == pytest.approx(expected, rel=1e-3)


def test_mode_and_checkpointing_are_restored(generator):
    model = lab.model().train()
    model.activation_checkpointing_enable()
    TransformersGenerator(model, lab.tokenizer()).choice_probs([ids("a")], [[ids("b")]])
    assert model.training
    assert model.is_activation_checkpointing
    assert all(parameter.grad is None for parameter in model.parameters())
