"""A pass scores what the policy wrote, as TRL would, and nothing else; and what it has read can be
read on behind.
"""

import lab
import pytest
import torch
from peft import LoraConfig, PromptTuningConfig, get_peft_model
from tiny_trainer import Numbered, batch_of, trainer
from trl import GRPOTrainer
from trl.trainer.utils import add_fused_lm_head

from faithful_search.inference.kv_cache import Batch, by_row
from faithful_search.training.own_tokens import OwnTokens, remembers, scores_own
from faithful_search.training.passes import passes_over

IDS = torch.tensor([[0, 5, 6, 7, 8, 9], [3, 4, 5, 6, 0, 0]])
MASK = torch.tensor([[0, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0]])
OWN = torch.tensor([[True, False, True, True], [True, True, False, False]])


def scoring_model():
    model = lab.sharp(lab.small("llama", vocab_size=24, hidden_size=8, num_attention_heads=2))
    add_fused_lm_head(model, outputs=("log_probs", "entropy"))
    return model


def test_values_are_those_of_own_tokens_read_alone():
    model = scoring_model()
    found = OwnTokens(model, model, OWN)(IDS, MASK, labels=IDS, fused_lm_head=True).log_probs
    for row in range(2):
        tokens = IDS[row][MASK[row].bool()]
        logits = model(tokens[None]).logits[0].log_softmax(-1)
        for column in range(4):
            place = int(MASK[row, : 2 + column].sum())  # without the padding in front
            expected = logits[place - 1, tokens[place]] if OWN[row, column] else torch.tensor(0.0)
            torch.testing.assert_close(found[row, column], expected, atol=1e-5, rtol=1e-5)


def test_the_output_layer_sees_own_tokens_alone():
    model, seen = scoring_model(), []
    model.register_forward_hook(lambda module, args, output: seen.append(output.log_probs.shape))
    OwnTokens(model, model, OWN)(IDS, MASK, labels=IDS, fused_lm_head=True)
    assert seen == [(1, 5)]


def test_a_batch_without_own_tokens_keeps_the_graph():
    model = scoring_model()
    scored = OwnTokens(model, model, OWN & False)(IDS, MASK, labels=IDS, fused_lm_head=True)
    scored.log_probs.sum().backward()
    assert not model.model.layers[0].self_attn.q_proj.weight.grad.any()


def test_nothing_is_left_on_the_model_when_it_fails():
    model = scoring_model()
    with pytest.raises(ValueError, match="out of memory"):
        OwnTokens(_Failing(), model, OWN)(IDS, MASK, labels=IDS)
    assert not model.base_model._forward_hooks


class _Failing:
    def __call__(self, **inputs):
        raise ValueError("out of memory")


def test_what_was_read_can_be_read_on_behind():
    model = scoring_model()
    scored = OwnTokens(model, model, OWN, remember=True)
    scored(IDS, MASK, labels=IDS, fused_lm_head=True)
    rows = [[5, 6, 7, 11], [3, 4, 12]]
    begun = [states.first(len(row) - 1) for states, row in zip(scored.states, rows, strict=True)]
    behind = Batch(model, by_row, rows, begun).logits[:, -1]
    alone = torch.stack([model(torch.tensor([row])).logits[0, -1] for row in rows])
    torch.testing.assert_close(behind, alone, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("peft_config", [None, LoraConfig(target_modules="all-linear", r=2)])
def test_own_tokens_have_trls_values_and_others_none(tmp_path, peft_config):
    made = trainer(tmp_path, Numbered(), scripted=True, peft_config=peft_config)
    inputs = batch_of(made)
    ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
    mask = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
    width, own = inputs["completion_ids"].shape[1], inputs["turn_numbers"] > 0
    made._numbers = inputs["turn_numbers"]
    trls = GRPOTrainer._get_per_token_logps_and_entropies
    plain = trls(made, made.model, ids, mask, width, compute_entropy=True)
    found = made._get_per_token_logps_and_entropies(
        made.model, ids, mask, width, compute_entropy=True
    )
    for ours, theirs in zip(found[:2], plain[:2], strict=True):
        torch.testing.assert_close(ours[own], theirs[own], atol=1e-5, rtol=1e-4)
        assert not ours[~own].any()


@pytest.mark.parametrize("at_once", [1, 3, None])
def test_rows_at_once_are_bounded(tmp_path, at_once):
    made = trainer(tmp_path, Numbered(), scripted=True)
    inputs, seen = batch_of(made), []
    made.model.register_forward_pre_hook(
        lambda module, args, kwargs: seen.append(len(kwargs["input_ids"])), with_kwargs=True
    )
    made._read(made.model, inputs, batch_size=at_once)
    assert sum(seen) == 8
    assert max(seen) <= (at_once or 8)


@pytest.mark.parametrize(
    ("rows", "device", "at_once", "passes"),
    [
        (32, "cpu", None, 32),
        (3, "cpu", 2, 3),
        (32, "cuda", None, 4),
        (4, "cuda", None, 1),
        (32, "cuda", 2, 16),
        (1, "cuda", 8, 1),
    ],
)
def test_passes_by_hand(rows, device, at_once, passes):
    assert passes_over(rows, device, at_once) == passes


def test_prompt_tuned_policies_are_scored_as_trl_does():
    model = scoring_model()
    tuned = get_peft_model(model, PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2))
    assert not scores_own(tuned)
    assert not remembers(tuned)


def test_checkpointed_activations_cannot_be_read_behind():
    model = scoring_model()
    assert remembers(model)
    model.gradient_checkpointing_enable({"use_reentrant": False})
    assert not remembers(model)
