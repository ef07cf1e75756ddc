"""Terms of the loss: the verdict term, whose gradient is that of s(q' - q), preserved likelihood;
dropped groups.
"""

import lab
import pytest
import torch
from peft import LoraConfig, get_peft_model
from tiny_trainer import Luck, Numbered, batch_of, trainer
from trl.trainer.utils import add_fused_lm_head, shuffle_sequence_dict, split_tensor_dict

from faithful_search.inference.kv_cache import States
from faithful_search.rewards import (
    Adaptive,
    AnswerSupport,
    Correctness,
    EvidenceSensitivity,
    Mix,
    Score,
    answer_only_mix,
)
from faithful_search.rewards.evidence_sensitivity import Probe
from faithful_search.training import update
from faithful_search.training.advantages import informative
from faithful_search.training.own_tokens import OwnTokens
from faithful_search.training.terms import llds, verdict_moves

YES = Probe(
    2,
    True,
    real_context=[5, 6, 7],
    perturbed_context=[5, 8, 9, 10, 11],
    yes_ids=[3],
    made_by="unrelated",
)
NO = Probe(
    3, False, real_context=[5, 6, 7, 12], perturbed_context=[5, 13], yes_ids=[3], made_by="template"
)
LONG = Probe(
    2,
    True,
    real_context=[20, 21],
    perturbed_context=[20, 22, 23],
    yes_ids=[3, 4, 6],
    made_by="foil",
)
ROWS = [[YES, NO], [], [LONG]]
LORA = LoraConfig(target_modules="all-linear", r=2, init_lora_weights=False)


def tiny_model():
    """Few words, sharp enough for probabilities that move, and exact enough for finite
    differences.
    """
    sizes = {"hidden_size": 8, "intermediate_size": 16, "num_attention_heads": 2}
    return lab.sharp(lab.small("llama", vocab_size=24, **sizes)).double()


def by_hand(model, probes: list[Probe]) -> float:
    """Δ of one rollout, a context at a time."""
    moves = []
    for probe in probes:
        q = []
        for context in (probe.real_context, probe.perturbed_context):
            total, ids = 1.0, list(context)
            for token in probe.yes_ids:
                with torch.no_grad():
                    total *= float(model(torch.tensor([ids])).logits[0, -1].softmax(-1)[token])
                ids.append(token)
            q.append(total)
        moves.append((q[1] - q[0]) * (-1 if probe.yes_case else 1))
    return sum(moves) / len(moves) if moves else 0.0


def read_before(model) -> list[States]:
    """What the model remembers, with gradient, of rows that two of the probes' contexts begin with:
    one padded in front and one behind, as prompts and completions are.
    """
    ids = torch.tensor([[5, 6, 7, 12, 9, 0], [0, 20, 21, 22, 0, 0]])
    mask = torch.tensor([[1, 1, 1, 1, 1, 0], [0, 1, 1, 1, 0, 0]])
    own = torch.tensor([[1, 1, 0, 0, 0], [1, 1, 0, 0, 0]]).bool()
    add_fused_lm_head(model)
    scored = OwnTokens(model, model, own, remember=True)
    scored(ids, mask, labels=ids, fused_lm_head=True)
    return scored.states


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("at_once", [1, 2, 4, 99])
def test_the_moves_are_those_of_every_context_read_alone(at_once, known):
    model = tiny_model()
    moves = verdict_moves(model, ROWS, at_once, remembered=read_before(model) if known else ())
    expected = [by_hand(model, own) for own in ROWS]
    assert moves.tolist() == pytest.approx(expected, rel=1e-3)
    assert expected[1] == 0.0 != expected[2]


@pytest.mark.parametrize("how", ["whole", "behind rows", "activations computed again", "lora"])
def test_the_gradient_is_that_of_the_moves(how, monkeypatch):
    """Against differences along each parameter's own gradient, and along a random direction."""
    monkeypatch.setattr(
        torch.Tensor, "float", torch.Tensor.double
    )  # the softmax too, for differences that small
    model = tiny_model()
    if how == "lora":
        model = get_peft_model(model, LORA).double()
    elif how == "activations computed again":
        model.train().gradient_checkpointing_enable({"use_reentrant": False})
    parameters = [part for part in model.parameters() if part.requires_grad]
    torch.set_default_dtype(torch.float64)
    try:
        known = read_before(model) if how == "behind rows" else ()
        moves = verdict_moves(model, ROWS, 3, remembered=known)
    finally:
        torch.set_default_dtype(torch.float32)
    gradient = torch.autograd.grad(moves.mean(), parameters)
    assert all(part.norm() > 0 for part in gradient)
    torch.manual_seed(1)
    for way in (gradient, [torch.randn_like(part) for part in parameters]):
        size = 1e-3 / torch.sqrt(sum(part.square().sum() for part in way))
        ends = []
        for move in (size, -2 * size, size):  # ahead, behind, and back
            with torch.no_grad():
                for part, step in zip(parameters, way, strict=True):
                    part += move * step
            ends.append(sum(by_hand(model, own) for own in ROWS) / len(ROWS))
        expected = sum((own * step).sum() for own, step in zip(gradient, way, strict=True))
        assert (ends[0] - ends[1]) / (2 * size) == pytest.approx(
            float(expected), rel=1e-3, abs=1e-5
        )


def test_idle_passes_count_nothing_and_keep_the_graph():
    model, passes = tiny_model(), []
    model.register_forward_pre_hook(lambda *_: passes.append(1))
    moves = verdict_moves(model, [[], []], 4, agree=lambda own: own + 2)
    assert len(passes) == 2
    assert moves.tolist() == [0.0, 0.0]
    moves.sum().backward()
    assert all(part.grad is not None and not part.grad.any() for part in model.parameters())
    assert verdict_moves(model, [[], []], 4).tolist() == [0.0, 0.0]
    assert len(passes) == 2


def test_probes_keep_to_their_rows_however_trl_splits_them():
    rows = [[Probe(2, True, [n + 1], [n + 1, 2], [3], "unrelated")] * (n % 3) for n in range(8)]
    model = tiny_model()
    batch = {"number": torch.arange(8), "total": torch.tensor(3), "probes": rows}
    seen = {}
    for part in split_tensor_dict(shuffle_sequence_dict(batch), 4):
        seen |= dict(
            zip(
                part["number"].tolist(),
                verdict_moves(model, part["probes"], 2).tolist(),
                strict=True,
            )
        )
    assert [seen[n] for n in range(8)] == pytest.approx(
        [by_hand(model, own) for own in rows], abs=1e-6
    )


# In the trainer


WHALES = tuple(f"Whales of the {n}th family sing in the deep." for n in range(9))


WEIGHT = 100.0
"""One text among many is exchanged, which moves the verdicts of an untrained model very little."""


def test_the_loss_is_trls_less_the_weighted_mean_move(tmp_path):
    mix = Mix(
        parts={
            "luck": Luck(),
            "evidence_sensitivity": EvidenceSensitivity(budget=None, snippets=WHALES),
        },
        gate=None,
    )
    made = trainer(tmp_path, mix, scripted=True, verdict_weight=WEIGHT, max_steps=1)
    lab.sharp(made.model)
    inputs = batch_of(made)
    with_term = made.compute_loss(made.model, inputs)
    made.args.verdict_weight = 0.0
    plain = made.compute_loss(made.model, inputs)
    moves = [row.components["evidence_sensitivity"].value for row in made.rollouts.local]
    assert len(moves) == 8
    assert abs(sum(moves)) > 1e-5
    assert float(plain - with_term) == pytest.approx(WEIGHT * sum(moves) / 8, rel=0.02)
    made.args.verdict_weight = WEIGHT
    made.train()
    [step] = [line for line in made.state.log_history if "loss" in line]
    assert step["verdict_term"] == pytest.approx(step["parts/evidence_sensitivity"], abs=1e-5)


@pytest.mark.parametrize("peft_config", [None, LORA])
def test_reading_on_behind_rollouts_leaves_the_gradient(tmp_path, monkeypatch, peft_config):
    """And reads each context's own end alone."""
    mix = Mix(
        parts={
            "luck": Luck(),
            "evidence_sensitivity": EvidenceSensitivity(budget=None, snippets=WHALES),
        },
        gate=None,
    )
    gradients, tokens = [], []
    for remembered in (True, False):
        monkeypatch.setattr(update, "remembers", lambda policy, known=remembered: known)
        made = trainer(tmp_path, mix, scripted=True, verdict_weight=0.5, peft_config=peft_config)
        lab.sharp(made.model)
        inputs, seen = batch_of(made), []
        made.model.register_forward_pre_hook(
            lambda module, args, kwargs, seen=seen: seen.append(kwargs["input_ids"].numel()),
            with_kwargs=True,
        )
        made.compute_loss(made.model, inputs).backward()
        parts = [part.grad for part in made.model.parameters() if part.grad is not None]
        gradients.append(torch.cat([part.flatten() for part in parts]))
        tokens.append(sum(seen))
    torch.testing.assert_close(*gradients, atol=1e-6, rtol=1e-4)
    assert gradients[0].any()
    assert tokens[0] < 0.75 * tokens[1]


# Uniform groups


def test_groups_that_say_nothing_by_hand():
    nan = float("nan")
    right = torch.tensor([1.0, 1.0, 0.0, 0.0, 0.0, 1.0, nan, 1.0, nan, nan, 0.0, 0.0])
    valid = torch.tensor([True] * 11 + [False])
    assert informative(right, valid, 2).tolist() == [0, 0, 0, 0, 1, 1, 0, 0, 0, 0, 1, 1]
    assert informative(torch.tensor([0.2, 0.2, 0.3]), torch.tensor([True] * 3), 3).tolist() == [
        1,
        1,
        1,
    ]
    assert informative(torch.zeros(2), torch.tensor([False, False]), 2).tolist() == [0, 0]


class Half(Correctness):
    """Rollouts of the second group are right every other time, those of the first never."""

    def score_batch(self, trajectories):
        numbers = [int(row.id.rpartition("#")[2]) for row in trajectories]
        return [Score(float(number >= 4 and number % 2)) for number in numbers]


def test_only_dropped_groups_lose_their_advantage(tmp_path):
    mix = Mix(parts={"luck": Luck(), "answer": Adaptive(AnswerSupport(), Half())}, gate=None)
    trainers = (
        trainer(tmp_path / how, mix, uniform_groups=how, seed=3) for how in ("keep", "drop")
    )
    kept, dropped = (
        batch_of(made)["advantages"] for made in trainers
    )  # each made when its turn has come
    assert kept[:4].abs().min() > 0
    assert not dropped[:4].any()
    assert torch.equal(kept[4:], dropped[4:])
    assert dropped[4:].any()
    by_turn = {"advantages": "turns", "uniform_groups": "drop"}
    made = trainer(tmp_path / "turns", answer_only_mix(), scripted=True, **by_turn)
    assert not batch_of(made)["advantages"].any()  # all are right


# Preserved likelihood

NUMBERS = torch.tensor([[1, 1, 0, 2, 2], [1, 1, 1, 0, 0]])
OLD = torch.full((2, 5), -1.0)
NOW = torch.tensor([[-1.5, -0.9, -9.0, -1.5, -0.4], [-3.0, -1.0, -1.0, -9.0, -9.0]])


def test_the_likelihood_term_by_hand():
    """Turn 1 of the first row fell by 0.4, by 0.5 at one token; its turn 2 as a whole did not, and
    tools do not count.

    The second row's advantage is negative: it may fall. Seven tokens are the policy's own.
    """
    logps = NOW.clone().requires_grad_()
    term, share = llds(logps, OLD, NUMBERS, torch.tensor([0.0, -1.0]))
    term.backward()
    assert (float(term), float(share)) == (pytest.approx(0.5 / 7), pytest.approx(2 / 3))
    assert logps.grad.nonzero().tolist() == [[0, 0]]
    assert float(logps.grad[0, 0]) == pytest.approx(-1 / 7)
    by_token = torch.tensor([[-1.0, -1.0, 0.0, 0.0, 0.0], [0.0] * 5])
    assert float(llds(NOW, OLD, NUMBERS, by_token)[0]) == pytest.approx(2.0 / 7)
    assert [float(part) for part in llds(OLD, OLD, NUMBERS, torch.ones(2))] == [
        0.0,
        0.0,
    ]  # just sampled


TWICE = {"gradient_accumulation_steps": 2, "steps_per_generation": 1}


@pytest.mark.parametrize(
    ("settings", "before"),
    [({}, True), ({"num_iterations": 2}, False), ({**TWICE, "num_iterations": 2}, True)],
)
def test_llds_is_of_the_batch_before_unless_one_is_reused(tmp_path, settings, before):
    """TRL leaves the sampled log-probabilities out where every update is made of whole batches, as
    of one twice.
    """
    made = trainer(tmp_path, Numbered(), scripted=True, llds=0.5, max_steps=2, **settings)
    made.train()
    first, second = [line for line in made.state.log_history if "loss" in line]
    assert ("llds" in first) is not before
    assert second["llds"] >= 0
    assert 0 <= second["likelihood/falling"] <= 1


def test_the_loss_gains_the_weighted_likelihood_term(tmp_path):
    made = trainer(tmp_path, Numbered(), scripted=True, llds=0.5)
    inputs = batch_of(made)
    with torch.no_grad():
        first = made.compute_loss(made.model, inputs)
        made._waiting_for_update[0]["old_per_token_logps"] += (
            1.0  # all has become less likely since
        )
        made._waiting_for_update[0]["advantages"] = torch.zeros(8)
        second = made.compute_loss(made.model, inputs)
    assert float(second - first) == pytest.approx(0.5)
