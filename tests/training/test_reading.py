"""The reading loss: where it asks, what it asks, and that it is the formula it says."""

import math

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from faithful_search import dialects
from faithful_search.bundled import tiny_policy
from faithful_search.coldstart.sft import IGNORED, Reading, piece_ends, reading_labels
from faithful_search.errors import ConfigError
from faithful_search.inference.chat import ChatFormat
from faithful_search.inference.loading import read_tokenizer
from faithful_search.trajectory import Evidence, Step, ToolCall, Trajectory

POU = dialects.load("pou")
CALL = ToolCall("local_search", {"query": "capital of Norway"})
RESPONSE = (
    Evidence("Ministers of Norway work in Oslo.", "Norway", "E1"),
    Evidence("Ministers of Norway work in Oslo.", "Norway", "E2"),
    Evidence("</tool_response> Stockholm & Bergen", "", "E3"),
)


@pytest.fixture(scope="module")
def chat():
    return ChatFormat.of(read_tokenizer(str(tiny_policy("pou"))), POU)


@pytest.fixture(scope="module")
def model(chat):
    shape = {"hidden_size": 8, "intermediate_size": 8, "num_attention_heads": 2, "num_hidden_layers": 3}
    return LlamaForCausalLM(LlamaConfig(vocab_size=len(chat.tokenizer), tie_word_embeddings=False, **shape))


def watching(chat, model, weight, layers):
    reading = Reading(chat, weight, layers)
    reading.watch(model)
    return reading


def test_each_piece_ends_where_its_text_ends(chat):
    reading = Reading(chat, 1.0, [2])
    assert [chat.tokenizer.decode([token]) for token in (reading.yes, reading.no)] == ["yes", "no"]
    ids = chat.observation_ids(chat.render_observation(RESPONSE), ended=True)
    until = [chat.tokenizer.decode(ids[: place + 1]) for place in piece_ends(RESPONSE, chat)]
    assert [text.count("[E") for text in until] == [1, 2, 3]
    assert all(text.rstrip().endswith(("Oslo.", "Oslo.", "Bergen")[number]) for number, text in enumerate(until))


def test_labels_say_of_each_piece_and_of_the_response_whether_the_fact_was_there(chat):
    steps = (
        Step("I need the capital of Norway.", CALL, RESPONSE),
        Step("Again.", CALL, (Evidence("Nothing.", "Norway", "E4"),), helpful=True, refs=("E2",)),
        Step("Once more.", CALL, helpful=False),
        Step("I do not know the answer.", answer="unknown", helpful=False),
    )
    trajectory = Trajectory(steps, "What is the capital of Norway?", dialect="pou")
    tokens = chat.transcript(trajectory)
    labels = reading_labels(trajectory, tokens, chat)
    assert len(labels) == len(tokens.prompt_ids) + len(tokens.completion_ids)
    closing = len(chat.encode("</tool_response><|end|><|assistant|>"))
    wanted = [0, 1, 0, *[1] * closing, 0, *[0] * closing]  # an empty response is not asked about
    assert [label for label in labels if label != IGNORED] == wanted
    assert not any(label != IGNORED for label in labels[: len(tokens.prompt_ids)])
    own = [label for label, mask in zip(labels[len(tokens.prompt_ids) :], tokens.mask, strict=True) if mask]
    assert set(own) == {IGNORED}


def test_the_loss_is_the_cross_entropy_of_the_logit_lens(chat, model):
    reading = watching(chat, model, 0.5, [2])
    ids = torch.tensor([[1, 2, 5], [6, 7, 8]])
    states = model(ids, output_hidden_states=True).hidden_states[2]
    labels = torch.tensor([[IGNORED, 1, IGNORED], [0, IGNORED, IGNORED]])
    direction = (model.lm_head.weight[reading.yes] - model.lm_head.weight[reading.no]).tolist()

    def logit(state):
        scale = math.sqrt(sum(x * x for x in state) / len(state))
        return sum(u * x / scale for u, x in zip(direction, state, strict=True))

    yes, no = logit(states[0, 1].tolist()), logit(states[1, 0].tolist())
    expected = 0.5 * (math.log1p(math.exp(-yes)) + math.log1p(math.exp(no))) / 2
    assert reading.loss(labels).item() == pytest.approx(expected, rel=1e-4)


def test_the_gradient_reaches_the_layers_below_and_none_above(chat, model):
    reading = watching(chat, model, 1.0, [1, 2])
    model(torch.tensor([[1, 2, 5]]))
    model.zero_grad()
    reading.loss(torch.tensor([[IGNORED, 1, 0]])).backward()
    assert [block.mlp.down_proj.weight.grad is not None for block in model.model.layers] == [True, True, False]
    model(torch.tensor([[1, 2]]))
    assert reading.loss(torch.full((1, 2), IGNORED)).item() == 0.0  # nothing is asked
    for layers in ([], [0], [4]):
        with pytest.raises(ConfigError, match="1 to 3"):
            watching(chat, model, 1.0, layers)
