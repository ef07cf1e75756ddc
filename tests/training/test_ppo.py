"""PPO: advantages by hand, REINFORCE without a value, a value that learns returns, and runs that are resumed."""

from pathlib import Path
from types import SimpleNamespace

import lab
import pytest
import torch
from peft import LoraConfig
from safetensors.torch import load_file
from tiny_trainer import Luck, Numbered, Score, StopAt, batch_of, gradient_by_token, model, tokenizer, trainer

from faithful_search.errors import ConfigError
from faithful_search.training.ppo import SearchPPOTrainer, gae, token_rewards, turn_starts
from faithful_search.trajectory import read_jsonl

NUMBERS = torch.tensor([[1, 1, 0, 2, 2, 0], [1, 0, 0, 0, 0, 0]])


class Coin(Numbered):
    """Every other rollout earns 1."""

    def score(self, trajectory):
        return Score(super().score(trajectory).value % 2)


def ppo_trainer(path: Path, reward=None, scripted: bool = False, **settings) -> SearchPPOTrainer:
    return trainer(path, reward, scripted, SearchPPOTrainer, **{"advantages": "ppo", **settings})


def named_model(path: Path) -> str:
    model().save_pretrained(path)
    tokenizer().save_pretrained(path)
    return str(path)


# By hand


def test_gae_on_a_chain_passes_over_what_tools_returned():
    """Three own tokens with V = 1, 2, 4 and a reward of 10 at the end; gamma 0.5, lambda 0.5."""
    values = torch.tensor([[1.0, 2.0, 99.0, 4.0]])
    rewards = torch.tensor([[0.0, 0.0, 0.0, 10.0]])
    own = torch.tensor([[True, True, False, True]])
    third = 10.0 - 4.0
    second = (0.5 * 4.0 - 2.0) + 0.25 * third
    first = (0.5 * 2.0 - 1.0) + 0.25 * second
    assert gae(rewards, values, own, 0.5, 0.5).tolist() == [[first, second, 0.0, third]]


def test_rewards_come_at_the_last_token_or_at_their_turns():
    scores = [Score(1.5, steps=(1.0, 0.0)), Score(None, "the judge is down")]
    assert token_rewards(scores, NUMBERS, by_step=False).tolist() == [[0, 0, 0, 0, 1.5, 0], [0] * 6]
    assert token_rewards(scores, NUMBERS, by_step=True).tolist() == [[0, 0.5, 0, 0, 1.0, 0], [0] * 6]
    first, place = turn_starts(NUMBERS)
    assert first.int().tolist() == [[1, 0, 0, 1, 0, 0], [1, 0, 0, 0, 0, 0]]
    assert place.tolist() == [[0, 0, 0, 3, 3, 3], [0] * 6]


# In the trainer


@pytest.mark.parametrize("over_turns", [False, True])
def test_without_a_value_the_gradient_is_reinforces(tmp_path, over_turns):
    made = ppo_trainer(tmp_path, Luck(), whiten=False, gae_over_turns=over_turns, loss_type="dapo")
    inputs = batch_of(made)
    made.compute_loss(made.model, inputs).backward()
    found = {name: part.grad.clone() for name, part in made.model.named_parameters() if not name.startswith("value")}
    made.model.zero_grad()
    own, returns = inputs["turn_numbers"] > 0, torch.tensor([row.score.value for row in made.own])
    loss = -(returns[:, None] * made._logps(made.model, inputs) * own).sum() / own.sum()
    loss.backward()
    assert returns.std() > 0.1
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, made.model.get_parameter(name).grad, atol=1e-7, rtol=1e-4)


@pytest.mark.parametrize("knobs", [{}, {"gae_over_turns": True, "step_rewards": True}, {"value_trunk": True}], ids=str)
def test_environment_tokens_have_no_gradient_and_sampled_ones_do(tmp_path, knobs):
    """Exactly zero, in the policy and in the trunk of a value of its own."""
    made = ppo_trainer(tmp_path, Numbered(), True, model=named_model(tmp_path / "model"), **knobs)
    torch.nn.init.normal_(made.value.out.weight)
    inputs, kept = batch_of(made), []
    if made.value.trunk is not None:
        made.value.trunk.norm.register_forward_hook(
            lambda module, args, output: (output.retain_grad(), kept.append(output))[1]
        )
    trained = inputs["turn_numbers"][0] > 0
    chosen = inputs["advantages"][inputs["turn_numbers"] > 0]
    assert (float(chosen.mean()), float(chosen.std(correction=0))) == pytest.approx((0, 1), abs=1e-5)
    gradient = gradient_by_token(made, inputs)
    if kept:
        width = len(trained)
        gradient = gradient + torch.cat([item.grad for item in kept])[:, -width - 1 : -1].abs().sum(-1).amax(0)
    assert 0 < trained.sum() < len(trained)
    assert (gradient[~trained] == 0).all() and (gradient[trained] > 0).all()


def test_a_value_of_a_fixed_policy_becomes_the_bandits_returns(tmp_path):
    """A fair coin at the end of two turns, discounted by half a turn: 0.25 before the first, 0.5 before the second."""
    made = ppo_trainer(tmp_path, Coin(), True, gae_over_turns=True, gamma=0.5, value_clip=9.0)
    lab.sharp(made.model)  # else all states look alike
    for name, part in made.model.named_parameters():
        part.requires_grad_(name.startswith("value"))
    inputs = batch_of(made)
    learner = torch.optim.LBFGS(made.value.parameters(), max_iter=15, line_search_fn="strong_wolfe")

    def loss():
        learner.zero_grad()
        found = made.compute_loss(made.model, inputs)
        found.backward()
        return found

    learner.step(loss)
    with torch.no_grad():
        made._logps(made.model, inputs)
    values = made._passed[3][inputs["valued"]].view(8, 2)
    assert values.mean(0).tolist() == pytest.approx([0.25, 0.5], abs=0.02)


def test_the_kl_is_taken_from_the_rewards_and_not_from_the_loss_again(tmp_path):
    """With gamma 0 and no value a token's advantage is its own reward."""
    made = ppo_trainer(
        tmp_path, Numbered(), True, model=named_model(tmp_path / "model"), gamma=0.0, whiten=False, beta=0.5
    )
    lab.sharp(made.model)
    inputs = batch_of(made)
    with torch.no_grad():
        gap = made._logps(made.model, inputs) - inputs["ref_per_token_logps"]
    own = inputs["turn_numbers"] > 0
    scores = [row.score for row in made.own]
    expected = token_rewards(scores, inputs["turn_numbers"], False) - 0.5 * gap
    assert gap[own].abs().max() > 0.1
    torch.testing.assert_close(inputs["advantages"], torch.where(own, expected, 0.0), atol=1e-5, rtol=1e-4)
    loss = made.compute_loss(made.model, inputs)
    assert len(made._metrics["train"]["kl"]) == 1 and made.beta == 0.5  # of the rewards
    torch.testing.assert_close(
        loss, made.compute_loss(made.model, inputs | {"ref_per_token_logps": torch.zeros_like(gap)})
    )


@pytest.mark.parametrize("lora", [False, True])
def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path, lora):
    """Policy, value, optimizer and rollouts, with one rollout of a question; the value is gone then."""
    half = 1 if lora else 2  # epochs, and the steps of a batch
    settings = {"per_device_train_batch_size": 3, "num_generations": 1, "num_iterations": half, "save_steps": half}
    settings |= {"value_learning_rate": 0.05, "max_steps": 2 * half, "limits": {"turns": 2, "total_tokens": 200}}
    settings |= {"peft_config": LoraConfig(target_modules="all-linear", r=2)} if lora else {}

    def run(name: str, **more):
        log = tmp_path / name / "trajectories.jsonl"
        made = ppo_trainer(tmp_path / name, trajectory_file=log, **settings, **more)
        return made, made.value, log

    whole, value, log = run("whole")
    rates = {group["lr"] for group in whole.create_optimizer().param_groups if group["params"]}
    assert rates == {0.01, 0.05}
    whole.optimizer = None
    whole.train()
    broken, _, _ = run("parts", callbacks=[StopAt(half + 1)])
    broken.train()
    resumed, again, resumed_log = run("parts")
    resumed.train(resume_from_checkpoint=str(tmp_path / "parts" / f"checkpoint-{half}"))
    assert list(read_jsonl(resumed_log)) == list(read_jsonl(log)) and value.out.weight.abs().max() > 0.01
    pairs = [(whole.model, resumed.model), (value, again)]
    for one, other in (pair for a, b in pairs for pair in zip(a.parameters(), b.parameters(), strict=True)):
        assert torch.equal(one, other)
    lines = [row for row in whole.state.log_history if "value/loss" in row]
    assert len(lines) == 2 * half and all("value/explained" in row for row in lines[::half])
    whole.save_model(str(tmp_path / "policy"))
    (file,) = (tmp_path / "policy").glob("*.safetensors")
    assert not [name for name in load_file(file) if "value" in name]


def test_an_adapters_checkpoint_without_a_value_is_refused(tmp_path):
    made = ppo_trainer(tmp_path, peft_config=LoraConfig(target_modules="all-linear", r=2))
    state = SimpleNamespace(global_step=2)
    with pytest.raises(ConfigError, match="not made by PPO"):
        made.callback_handler.callbacks[-1].on_train_begin(made.args, state, None)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"advantages": "turns"}, "SearchPPOTrainer takes a SearchGRPOConfig whose advantages are one of ppo"),
        ({"uniform_groups": "drop"}, "own advantages"),
        ({"value_trunk": True}, "not loaded by name"),
        ({"lam": 1.5}, "lam must be"),
        ({"value_clip": -1.0}, "value_clip must be 0 or more, not -1"),
    ],
)
def test_what_does_not_go_with_ppo_is_refused(tmp_path, settings, said):
    with pytest.raises(ConfigError, match=said):
        ppo_trainer(tmp_path, **settings)
