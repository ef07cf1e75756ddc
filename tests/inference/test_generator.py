"""The Transformers generator: exact ids, stop strings, limits, log-probabilities and choice
probabilities.
"""

import math
import re
from types import SimpleNamespace

import lab
import pytest
import torch
from transformers import Gemma3TextConfig, LlamaConfig, Phi3Config, Qwen2Config

from faithful_search.errors import ConfigError
from faithful_search.inference.base import Sampling
from faithful_search.inference.transformers import TransformersGenerator, positions_of

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
    prompts = [ids(text) for text in PROMPTS]
    sampling = Sampling(temperature=0.0, max_new_tokens=12)
    plain = generator.generate(prompts, sampling)
    model = lab.model()
    shipped = {"suppress_tokens": plain[0].ids, "min_new_tokens": 30, "repetition_penalty": 50.0}
    vars(model.generation_config).update(shipped, cache_implementation="static")
    assert TransformersGenerator(model, lab.tokenizer()).generate(prompts, sampling) == plain


def test_a_model_without_end_of_sequence_writes_to_its_limit():
    bare = lab.byte_tokenizer(("<|im_start|>", "<|im_end|>", "<|pad|>"))
    model = lab.model()
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


def scaled(config, positions, kind, factor, trained=None):
    """A configuration with RoPE scaling, whose model was trained at `trained` positions."""
    scaling = {"rope_type": kind, "factor": factor}
    if trained:
        scaling["original_max_position_embeddings"] = trained
    if kind == "llama3":
        scaling |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
    if kind == "longrope":
        scaling |= {"long_factor": [1.0] * 48, "short_factor": [1.0] * 48}
    return config(max_position_embeddings=positions, rope_scaling=scaling)


@pytest.mark.parametrize(
    ("config", "positions"),
    [
        pytest.param(LlamaConfig(max_position_embeddings=4096), 4096, id="plain"),
        pytest.param(scaled(LlamaConfig, 4096, "linear", 2.0), 8192, id="linear"),
        pytest.param(scaled(LlamaConfig, 4096, "dynamic", 2.0), 8192, id="dynamic"),
        pytest.param(scaled(Qwen2Config, 32_768, "yarn", 4.0, 32_768), 131_072, id="qwen2.5"),
        pytest.param(scaled(Qwen2Config, 32_768, "yarn", 4.0), 131_072, id="yarn alone"),
        pytest.param(scaled(LlamaConfig, 131_072, "yarn", 32.0, 4096), 131_072, id="gpt-oss"),
        pytest.param(scaled(LlamaConfig, 131_072, "llama3", 8.0, 8192), 131_072, id="llama3.1"),
        pytest.param(scaled(LlamaConfig, 131_072, "llama3", 32.0, 8192), 131_072, id="llama3.2"),
        pytest.param(scaled(Phi3Config, 131_072, "longrope", 32.0), 131_072, id="phi3"),
        pytest.param(scaled(Gemma3TextConfig, 131_072, "linear", 8.0), 131_072, id="gemma3"),
    ],
)
def test_positions_with_rope_scaling(config, positions):
    assert positions_of(config) == positions


@pytest.mark.parametrize("factor", [0, -2.0, math.nan, math.inf, 1e308, "4", True, [2.0]], ids=repr)
def test_a_scaling_by_no_number_above_0_is_an_error(factor):
    config = SimpleNamespace(
        max_position_embeddings=4096, rope_scaling={"rope_type": "linear", "factor": factor}
    )
    with pytest.raises(ConfigError, match=re.escape(f"says factor: {factor!r}; expected a number")):
        positions_of(config)


@pytest.mark.parametrize("trained", [-1, "4096", math.nan])
def test_original_positions_that_are_none_are_an_error(trained):
    scaling = {"type": "yarn", "factor": 2.0, "original_max_position_embeddings": trained}
    config = SimpleNamespace(max_position_embeddings=4096, rope_scaling=scaling)
    with pytest.raises(ConfigError, match="says original_max_position_embeddings"):
        positions_of(config)


@pytest.mark.parametrize("scaling", ["yarn", 2.0, ["linear", 2.0]])
def test_a_scaling_that_is_no_mapping_is_an_error(scaling):
    config = SimpleNamespace(max_position_embeddings=4096, rope_scaling=scaling)
    with pytest.raises(ConfigError, match=re.escape(f"RoPE scaling is {scaling!r}; its config")):
        positions_of(config)


@pytest.mark.parametrize("scaling", [None, {}, {"rope_type": "linear", "factor": None}])
def test_without_a_factor_positions_stay(scaling):
    config = SimpleNamespace(max_position_embeddings=4096, rope_scaling=scaling)
    assert positions_of(config) == 4096


def test_choices_without_tokens_and_empty_batches_are_refused(generator):
    with pytest.raises(ConfigError, match="at least 1 row, got batch_size=0"):
        TransformersGenerator(generator.model, generator.tokenizer, batch_size=0)
    with pytest.raises(ConfigError, match="choice 1 of prompt 0 is empty"):
        generator.choice_probs([ids("a")], [[ids("b"), []]])


class Following(torch.nn.Module):
    """A model's head after whose k-th token of `wanted` comes the next one."""

    def __init__(self, wanted, vocabulary):
        super().__init__()
        self.wanted = wanted
        self.vocabulary = vocabulary
        self.step = -1  # the generator reads one token first, to try how the model reads on

    def forward(self, hidden):
        place = min(max(self.step, 0), len(self.wanted) - 1)
        logits = torch.zeros(*hidden.shape[:2], self.vocabulary)
        logits[..., self.wanted[place]] = 9.0
        self.step += 1
        return logits


def written(tokenizer, wanted, stop):
    """The completion of a model that would write `wanted`, then its last token for ever."""
    model = lab.model()
    model.lm_head = Following(wanted, len(tokenizer))
    model.generation_config.eos_token_id = None
    sampling = Sampling(temperature=0.0, max_new_tokens=12, stop=(stop,))
    [completion] = TransformersGenerator(model, tokenizer).generate([[65]], sampling)
    return completion


def test_a_stop_string_may_end_inside_a_merged_token():
    newline = "Ċ"  # as byte-level tokenizers write it
    merges = [(">", newline), ("l", "l"), ("ll", f">{newline}")]
    merged = lab.byte_tokenizer(("<|im_end|>",), merges=merges, eos_token="<|im_end|>")
    wanted = merged("<call>\n", add_special_tokens=False)["input_ids"]
    assert merged.decode(wanted[-1:]) == "ll>\n"
    completion = written(merged, wanted, "<call>")
    assert (completion.ids, completion.finish) == (wanted, "stop")


@pytest.mark.parametrize("stop", ["終", "a」", "é"])
def test_a_stop_string_may_end_in_several_tokens(stop):
    wanted = ids(f"☃ {stop}")
    completion = written(lab.tokenizer(), wanted, stop)
    assert (completion.ids, completion.finish) == (wanted, "stop")


def test_sampled_end_of_sequence_is_kept():
    model, eos = lab.model(), lab.tokenizer().eos_token_id
    with torch.no_grad():
        model.lm_head.weight.zero_()
        model.lm_head.weight[eos] = 1.0
    generator = TransformersGenerator(model, lab.tokenizer())
    completions = generator.generate([ids("x")] * 64, Sampling(max_new_tokens=3))
    assert "eos" in {completion.finish for completion in completions}
    for completion in completions:
        ended = completion.ids[-1] == eos
        assert completion.finish == ("eos" if ended else "length")
        assert eos not in completion.ids[:-1]


def test_choice_probs_equal_the_chain_rule(generator):
    prompts = [ids(text) for text in PROMPTS]
    choices = [[ids("y"), ids("n")], [ids("yes"), ids("n")], [ids("☃"), ids("no")]]
    rows = zip(prompts, choices, generator.choice_probs(prompts, choices), strict=True)
    for prompt, choices_of_prompt, probs in rows:
        logprobs = [lab.recomputed(generator.model, prompt, choice) for choice in choices_of_prompt]
        assert probs == pytest.approx([math.exp(sum(each)) for each in logprobs], rel=1e-3)
