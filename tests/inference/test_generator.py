"""The Transformers generator: exact ids, stop strings, limits, log-probabilities and choice
probabilities.
"""

import math

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


def test_greedy_equals_argmax_without_padding(generator):
    completions = generator.generate(
        [ids(text) for text in PROMPTS], Sampling(temperature=0.0, max_new_tokens=12)
    )
    for text, completion in zip(PROMPTS, completions, strict=True):
        context = ids(text)
        for token in completion.ids:
            with torch.no_grad():
                assert int(generator.model(torch.tensor([context])).logits[0, -1].argmax()) == token
            context.append(token)


def test_each_token_is_told_of_as_it_is_written(generator, monkeypatch):
    seen = []
    monkeypatch.setattr(generator, "on_tokens", lambda rows: seen.append([*map(list, rows)]))
    sampling = Sampling(temperature=0.0, max_new_tokens=4)
    [done] = generator.generate([ids(PROMPTS[1])], sampling)
    assert seen == [[done.ids[:end]] for end in range(1, len(done.ids) + 1)]


def test_no_setting_that_a_model_ships_bends_the_policy(generator):
    prompts, sampling = (
        [ids(text) for text in PROMPTS],
        Sampling(temperature=0.0, max_new_tokens=12),
    )
    plain, model = generator.generate(prompts, sampling), lab.model()
    shipped = {"suppress_tokens": plain[0].ids, "min_new_tokens": 30, "repetition_penalty": 50.0}
    vars(model.generation_config).update(shipped, cache_implementation="static")
    assert TransformersGenerator(model, lab.tokenizer()).generate(prompts, sampling) == plain


def test_a_model_without_end_of_sequence_writes_to_its_limit():
    model, bare = lab.model(), lab.byte_tokenizer(("<|im_start|>", "<|im_end|>", "<|pad|>"))
    model.generation_config.eos_token_id = model.generation_config.pad_token_id = None
    seen = TransformersGenerator(model, bare).generate(
        [ids("a"), ids("abc")], Sampling(max_new_tokens=6), [6, 3]
    )
    assert [(len(item.ids), item.finish) for item in seen] == [(6, "length"), (3, "length")]


@pytest.mark.parametrize(
    "wrong",
    [
        {"temperature": float("nan")},
        {"top_p": 0.0},
        {"top_k": -1},
        {"max_new_tokens": 0},
        {"stop": ("a", "")},
    ],
)
def test_sampling_that_cannot_be_is_refused(wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        Sampling(**wrong)


def test_a_prompt_longer_than_the_model_is_refused(generator):
    assert len(generator.generate([[65] * 4095], Sampling(max_new_tokens=1))[0].ids) == 1
    with pytest.raises(
        ConfigError, match=r"4096 tokens leaves no room in the model's 4096 positions"
    ):
        generator.generate([[65], [65] * 4096], Sampling(max_new_tokens=1))


def test_choices_without_tokens_and_empty_batches_are_refused(generator):
    with pytest.raises(ConfigError, match="at least 1 row, got batch_size=0"):
        TransformersGenerator(generator.model, generator.tokenizer, batch_size=0)
    with pytest.raises(ConfigError, match="choice 1 of prompt 0 is empty"):
        generator.choice_probs([ids("a")], [[ids("b"), []]])


def test_a_stop_string_may_end_inside_a_merged_token():
    merges = [("\u003e", "\u010a"), ("l", "l"), ("ll", "\u003e\u010a")]
    merged = lab.byte_tokenizer(("<|im_end|>",), merges=merges, eos_token="<|im_end|>")
    wanted = merged("<call>\n", add_special_tokens=False)["input_ids"]
    assert merged.decode(wanted[-1:]) == "ll>\n"

    class Following(torch.nn.Module):
        """After the k-th token of `wanted` comes the next one."""

        def forward(self, hidden):
            logits = torch.zeros(*hidden.shape[:2], len(merged))
            logits[..., wanted[max(0, min(self.step, len(wanted) - 1))]] = 9.0
            self.step += 1
            return logits

    model = lab.model()
    model.lm_head = Following()
    model.lm_head.step = -1  # a first token tries how the model reads on
    model.generation_config.eos_token_id = None
    sampling = Sampling(temperature=0.0, max_new_tokens=12, stop=("<call>",))
    completion = TransformersGenerator(model, merged).generate([[65]], sampling)[0]
    assert (completion.ids, completion.finish) == (wanted, "stop")


def test_sampled_end_of_sequence_is_kept():
    model, eos = lab.model(), lab.tokenizer().eos_token_id
    with torch.no_grad():
        model.lm_head.weight.zero_()
        model.lm_head.weight[eos] = 1.0
    seen = TransformersGenerator(model, lab.tokenizer()).generate(
        [ids("x")] * 64, Sampling(max_new_tokens=3)
    )
    assert "eos" in {item.finish for item in seen} <= {"eos", "length"}
    assert all(
        (item.ids[-1] == eos) == (item.finish == "eos") and eos not in item.ids[:-1]
        for item in seen
    )


def test_choice_probs_equal_the_chain_rule(generator):
    prompts = [ids(text) for text in PROMPTS]
    choices = [[ids("y"), ids("n")], [ids("yes"), ids("n")], [ids("☃"), ids("no")]]
    for prompt, own, probs in zip(
        prompts, choices, generator.choice_probs(prompts, choices), strict=True
    ):
        logprobs = [lab.recomputed(generator.model, prompt, choice) for choice in own]
        assert probs == pytest.approx([math.exp(sum(each)) for each in logprobs], rel=1e-3)
