"""The update: credit per turn, passes over rows of like length, rollouts that saw a part of
themselves; and PPO.
"""

from pathlib import Path
from types import SimpleNamespace

import lab
import pytest
import torch
from peft import LoraConfig
from safetensors.torch import load_file
from tiny_trainer import (
    TASKS,
    Luck,
    Numbered,
    Score,
    StopAt,
    batch_of,
    gradient_by_token,
    model,
    tokenizer,
    trainer,
)

from faithful_search.coldstart.sft import IGNORED, build_dataset
from faithful_search.errors import ConfigError
from faithful_search.tools import LocalSearch, Toolbox
from faithful_search.training.advantages import (
    TURN_ESTIMATORS,
    group_relative,
    leave_one_out,
    spread,
    turn_numbers,
    turn_returns,
)
from faithful_search.training.grpo import SearchGRPOTrainer
from faithful_search.training.passes import PASSES, by_length
from faithful_search.training.ppo import VALUES, SearchPPOTrainer, gae, token_rewards, turn_starts
from faithful_search.training.rollout_batch import RolloutBatch
from faithful_search.trajectory import Tokens, read_jsonl


class FirstTurn(Numbered):
    """A two-armed bandit in each rollout's first turn; the second earns nothing."""

    def score(self, trajectory):
        value = super().score(trajectory).value
        return Score(value, steps=(2 * value, 0.0))


@pytest.mark.parametrize(
    ("score", "gamma", "returns"),
    [
        (Score(1.0), 1.0, ([1.0, 1.0, 1.0], 1.0)),
        (Score(1.0), 0.5, ([0.25, 0.5, 1.0], 1.0)),
        (Score(1.0, steps=(None, 3.0, -1.0)), 1.0, ([1.0, 1.0, -0.5], 0.0)),
        (
            Score(1.5, steps=(1.0, 0.0, 0.5)),
            0.5,
            ([(1 / 3) + 0.5 * 0.5 * (7 / 6), 0.5 * (7 / 6), 7 / 6], 1.0),
        ),
    ],
)
def test_returns_by_hand(score, gamma, returns):
    found, outcome = turn_returns(score, 3, gamma)
    assert (found, outcome) == (pytest.approx(returns[0]), pytest.approx(returns[1]))


@pytest.mark.parametrize(
    ("name", "whole"), [("turns", group_relative), ("turns_leave_one_out", leave_one_out)]
)
def test_terminal_rewards_credit_every_turn_alike(name, whole):
    """Whatever the rollouts' lengths, and with one that has no value."""
    rewards, lengths = [1.0, 0.0, None, 0.5, 2.0, 2.0, 0.0, 1.0], [1, 3, 2, 2, 1, 1, 3, 2]
    returns = [
        turn_returns(Score(value), turns) for value, turns in zip(rewards, lengths, strict=True)
    ]
    found = TURN_ESTIMATORS[name](returns, 4)
    expected = whole(
        torch.tensor([float("nan") if value is None else value for value in rewards]), 4
    )
    assert torch.equal(found, expected[:, None].expand(8, 3))


def test_a_turns_advantage_is_within_its_group_and_turn():
    """Rollouts that have ended take part with their outcome alone."""
    scores = [Score(1.0, steps=(2.0, 0.0)), Score(0.0, steps=(0.0, 0.0)), Score(0.5, steps=(0.5,))]
    returns = [turn_returns(score, len(score.steps)) for score in scores]
    assert returns == [([1.0, 0.0], 0.0), ([0.0, 0.0], 0.0), ([0.5], 0.0)]
    assert TURN_ESTIMATORS["turns_leave_one_out"](returns, 3).tolist() == [
        [0.75, 0.0],
        [-0.75, 0.0],
        [0.0, 0.0],
    ]


def test_advantages_are_spread_over_the_turns_own_tokens():
    one = Tokens([1], [5, 6, 7, 8, 9], [1, 1, 0, 1, 0], ((0, 2, 3), (3, 5, 5)))
    numbers = turn_numbers([one, Tokens([1], [5], [1], ((0, 1, 1),))], 6)
    assert numbers.tolist() == [[1, 1, 0, 2, 0, 0], [1, 0, 0, 0, 0, 0]]
    found = spread(torch.tensor([[0.5, -2.0], [3.0, 0.0]]), numbers)
    assert found.tolist() == [[0.5, 0.5, 0, -2.0, 0, 0], [3.0, 0, 0, 0, 0, 0]]


@pytest.mark.parametrize("how", list(TURN_ESTIMATORS))
def test_a_turn_that_earned_nothing_has_no_gradient(tmp_path, how):
    made = trainer(tmp_path, FirstTurn(), scripted=True, advantages=how)
    inputs = batch_of(made)
    gradient, numbers = gradient_by_token(made, inputs), inputs["turn_numbers"][0]
    assert (gradient[numbers == 1] > 0).all()
    assert (gradient[numbers != 1] == 0).all()
    assert set(numbers.tolist()) == {0, 1, 2}


# Passes over rows of like length give what one padded pass gives


class Model:
    """A value of each row's own tokens alone, whatever pads them; remembers the columns it was
    given.
    """

    def __init__(self) -> None:
        self.weight = torch.tensor(0.5, requires_grad=True)
        self.computed: list[int] = []

    def __call__(self, ids, mask, kept, own, scale=1.0):
        self.computed.append(ids.numel())
        before = (ids * mask).cumsum(dim=1).double() * self.weight * scale
        values = torch.sin(before) * mask
        return values[:, -kept:], values[:, -kept:].abs(), values.sum() / ids.shape[0]


def batch(prompts, completions):
    width, kept = max(prompts), max(completions)
    places = torch.arange(width + kept)
    begins, ends = (
        width - torch.tensor(prompts)[:, None],
        width + torch.tensor(completions)[:, None],
    )
    mask = ((places >= begins) & (places < ends)).long()
    return (
        torch.randint(1, 9, mask.shape, generator=torch.Generator().manual_seed(0)) * mask,
        mask,
        kept,
    )


@pytest.mark.parametrize(
    ("prompts", "completions", "passes"),
    [
        ([4], [7], 1),
        ([9, 1, 5, 11, 2, 8, 3, 7, 10, 4, 6], [2, 10, 5, 1, 7, 3, 11, 4, 9, 6, 8], 4),
        ([3, 8], [10, 2], 5),  # other processes have more rows
        ([2] * 8, [0] * 6 + [5] * 2, PASSES),  # rows without a completion keep one column
        (
            [5, 6, 7, 8, 9, 10, 11, 60],
            [0] * 7 + [40],
            PASSES,
        ),  # rows shorter than what is kept of the longest
    ],
)
def test_values_and_gradients_are_those_of_one_pass(prompts, completions, passes):
    ids, mask, kept = batch(prompts, completions)
    found = []
    for compute in (
        lambda model: model(ids, mask, kept, mask[:, -kept:], scale=2.0),
        lambda model: by_length(model, ids, mask, kept, mask[:, -kept:], passes=passes, scale=2.0),
    ):
        model = Model()
        logps, entropies, _ = compute(model)
        (logps.square().sum() + entropies.sum()).backward()
        found.append((logps, entropies, model.weight.grad))
    for plain, trimmed in zip(*found, strict=True):
        torch.testing.assert_close(trimmed, plain)


def test_the_longest_rows_alone_are_computed_in_full_width():
    ids, mask, kept = batch([3] * 8, [1, 1, 2, 2, 4, 4, 40, 40])
    model = Model()
    by_length(model, ids, mask, kept, mask[:, -kept:], passes=PASSES)
    assert model.computed == [2 * (3 + 1), 2 * (3 + 2), 2 * (3 + 4), 2 * (3 + 40)]
    assert len(model.computed) == PASSES


# A policy that saw the last response only: each turn is trained as it was sampled

LOOK = "<think>hm, {0}</think>\n<search>{0}</search>"
TURNS = [LOOK.format("Rome"), LOOK.format("Oslo"), "<think>so</think>\n<answer>Rome</answer>"]
PASSAGES = [
    {"title": "Rome", "text": "Rome is in Italy."},
    {"title": "Oslo", "text": "Oslo is in Norway."},
]


def search_r1(path, kept: int, **settings) -> SearchGRPOTrainer:
    """A trainer whose policy writes `TURNS`, and sees so many responses."""
    box = Toolbox([LocalSearch.from_corpus(PASSAGES, top_k=1, name="search")])
    limits = {"turn_tokens": 200, "total_tokens": 800, "kept_responses": kept}
    made = trainer(path, Numbered(), dialect="search_r1", toolbox=box, limits=limits, **settings)
    made.engine.generator = lab.Scripted(TURNS, marker="hm, ")
    return made


def test_each_turn_is_read_as_it_was_sampled(tmp_path):
    made = search_r1(tmp_path, kept=1)
    inputs = batch_of(made)
    contexts = [context for context in made.engine.generator.seen if context]
    last = tokenizer().decode(contexts[-1])
    assert "Italy" not in last
    assert "Norway" in last
    assert "hm, Rome" in last
    made.rollouts = RolloutBatch([])  # another batch may have been sampled since
    logps, numbers = made._read(made.model, inputs).logps, inputs["turn_numbers"]
    for turn, text in enumerate(TURNS, start=1):
        row = 5  # they are all alike
        context = torch.tensor([contexts[8 * (turn - 1) + row]])
        own = inputs["completion_ids"][row][numbers[row] == turn]
        assert lab.tokenizer().decode(own[: len(own)]).startswith(text)
        logits = made.model(torch.cat([context, own[None]], dim=1)).logits[
            0, context.shape[1] - 1 : -1
        ]
        expected = logits.log_softmax(-1).gather(-1, own[:, None])[:, 0]
        torch.testing.assert_close(logps[row][numbers[row] == turn], expected, atol=1e-5, rtol=1e-5)
    assert (logps[numbers == 0] == 0).all()


@pytest.mark.parametrize("kind", [SearchGRPOTrainer, SearchPPOTrainer])
def test_a_policy_that_saw_everything_is_read_alike_either_way(tmp_path, kind):
    found = []
    for kept in (0, 9):
        more = {"advantages": "ppo"} if kind is SearchPPOTrainer else {}
        made = search_r1(tmp_path / str(kept), kept, kind=kind, **more)
        inputs = batch_of(made)
        made.rollouts = RolloutBatch([])
        own = inputs["turn_numbers"] > 0
        made.compute_loss(
            made.model, inputs | {"advantages": inputs["advantages"] + 1.0}
        ).backward()
        gradients = torch.cat(
            [part.grad.flatten() for part in made.model.parameters() if part.grad is not None]
        )
        found.append(
            (
                made._read(made.model, inputs).logps[own],
                gradients,
                inputs.get("old_values", own)[own],
            )
        )
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)


def test_sft_shows_each_turn_what_the_policy_will_see(tmp_path):
    made = search_r1(tmp_path, kept=1)
    (episode,) = made.engine.run(TASKS[:1])
    contexts = made.engine.generator.seen
    rows = build_dataset([episode], made.engine.chat, made.toolbox.schemas, kept_responses=1)
    assert len(rows) == len(TURNS) == len(contexts)
    for row, context, turn in zip(rows, contexts, TURNS, strict=True):
        learnt = [
            token
            for token, label in zip(row["input_ids"], row["labels"], strict=True)
            if label != IGNORED
        ]
        assert row["input_ids"] == context + learnt
        assert lab.tokenizer().decode(learnt).startswith(turn)
        assert len(row["loss_weights"]) == row["length"] == len(row["input_ids"])


# PPO: advantages by hand, REINFORCE without a value, a value that learns returns, and runs that are
# resumed

PPO_NUMBERS = torch.tensor([[1, 1, 0, 2, 2, 0], [1, 0, 0, 0, 0, 0]])


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
    assert token_rewards(scores, PPO_NUMBERS, by_step=False).tolist() == [
        [0, 0, 0, 0, 1.5, 0],
        [0] * 6,
    ]
    assert token_rewards(scores, PPO_NUMBERS, by_step=True).tolist() == [
        [0, 0.5, 0, 0, 1.0, 0],
        [0] * 6,
    ]
    first, place = turn_starts(PPO_NUMBERS)
    assert first.int().tolist() == [[1, 0, 0, 1, 0, 0], [1, 0, 0, 0, 0, 0]]
    assert place.tolist() == [[0, 0, 0, 3, 3, 3], [0] * 6]


@pytest.mark.parametrize("over_turns", [False, True])
def test_without_a_value_the_gradient_is_reinforces(tmp_path, over_turns):
    made = ppo_trainer(tmp_path, Luck(), whiten=False, gae_over_turns=over_turns, loss_type="dapo")
    inputs = batch_of(made)
    made.compute_loss(made.model, inputs).backward()
    found = {
        name: part.grad.clone()
        for name, part in made.model.named_parameters()
        if not name.startswith("value")
    }
    made.model.zero_grad()
    own, returns = (
        inputs["turn_numbers"] > 0,
        torch.tensor([row.score.value for row in made.rollouts.local]),
    )
    loss = -(returns[:, None] * made._read(made.model, inputs).logps * own).sum() / own.sum()
    loss.backward()
    assert returns.std() > 0.1
    for name, gradient in found.items():
        torch.testing.assert_close(
            gradient, made.model.get_parameter(name).grad, atol=1e-7, rtol=1e-4
        )


@pytest.mark.parametrize(
    "knobs", [{}, {"gae_over_turns": True, "step_rewards": True}, {"value_trunk": True}], ids=str
)
def test_environment_tokens_have_no_gradient_and_sampled_ones_do(tmp_path, knobs):
    """Exactly zero, in the policy and in the trunk of a value of its own."""
    made = ppo_trainer(tmp_path, Numbered(), True, model=named_model(tmp_path / "model"), **knobs)
    torch.nn.init.normal_(made.value.out.weight)
    inputs, trunk = batch_of(made), made.value.trunk
    trained = inputs["turn_numbers"][0] > 0
    chosen = inputs["advantages"][inputs["turn_numbers"] > 0]
    assert (float(chosen.mean()), float(chosen.std(correction=0))) == pytest.approx(
        (0, 1), abs=1e-5
    )
    gradient = gradient_by_token(made, inputs, *[trunk.norm] if trunk is not None else [])
    assert 0 < trained.sum() < len(trained)
    assert (gradient[~trained] == 0).all()
    assert (gradient[trained] > 0).all()


def test_a_value_of_a_fixed_policy_becomes_the_bandits_returns(tmp_path):
    """A fair coin at the end of two turns, discounted by half a turn: 0.25 before the first, 0.5
    before the second.
    """
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
        values = made._read(made.model, inputs).values[VALUES]
    values = values[inputs["valued"]].view(8, 2).mean(0)
    assert values.tolist() == pytest.approx([0.25, 0.5], abs=0.02)


def test_the_kl_is_taken_from_the_rewards_once(tmp_path):
    """With gamma 0 and no value a token's advantage is its own reward."""
    own_model = named_model(tmp_path / "model")
    made = ppo_trainer(
        tmp_path, Numbered(), True, model=own_model, gamma=0.0, whiten=False, beta=0.5
    )
    lab.sharp(made.model)
    inputs = batch_of(made)
    with torch.no_grad():
        gap = made._read(made.model, inputs).logps - inputs["ref_per_token_logps"]
    own = inputs["turn_numbers"] > 0
    scores = [row.score for row in made.rollouts.local]
    expected = token_rewards(scores, inputs["turn_numbers"], False) - 0.5 * gap
    assert gap[own].abs().max() > 0.1
    torch.testing.assert_close(
        inputs["advantages"], torch.where(own, expected, 0.0), atol=1e-5, rtol=1e-4
    )
    loss = made.compute_loss(made.model, inputs)
    assert len(made._metrics["train"]["kl"]) == 1  # of the rewards
    assert made.beta == 0.5
    far = inputs | {"ref_per_token_logps": torch.zeros_like(gap)}
    torch.testing.assert_close(loss, made.compute_loss(made.model, far))


@pytest.mark.parametrize("lora", [False, True])
def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path, lora):
    """Policy, value, optimizer and rollouts, with one rollout of a question; the value is gone
    then.
    """
    half = 1 if lora else 2  # epochs, and the steps of a batch
    settings = {
        "per_device_train_batch_size": 3,
        "num_generations": 1,
        "num_iterations": half,
        "save_steps": half,
    }
    settings |= {
        "value_learning_rate": 0.05,
        "max_steps": 2 * half,
        "limits": {"turns": 2, "total_tokens": 200},
    }
    settings |= {"peft_config": LoraConfig(target_modules="all-linear", r=2)} if lora else {}

    def run(name: str, **more):
        log = tmp_path / name / "trajectories.jsonl"
        made = ppo_trainer(tmp_path / name, trajectory_file=log, **settings, **more)
        return made, made.value, log

    whole, value, log = run("whole")
    assert {group["lr"] for group in whole.create_optimizer().param_groups if group["params"]} == {
        0.01,
        0.05,
    }
    whole.optimizer = None
    whole.train()
    run("parts", callbacks=[StopAt(half + 1)])[0].train()
    resumed, again, resumed_log = run("parts")
    resumed.train(resume_from_checkpoint=str(tmp_path / "parts" / f"checkpoint-{half}"))
    assert list(read_jsonl(resumed_log)) == list(read_jsonl(log))
    assert value.out.weight.abs().max() > 0.01
    pairs = [(whole.model, resumed.model), (value, again)]
    for one, other in (
        pair for a, b in pairs for pair in zip(a.parameters(), b.parameters(), strict=True)
    ):
        assert torch.equal(one, other)
    lines = [row for row in whole.state.log_history if "value/loss" in row]
    assert len(lines) == 2 * half
    assert all("value/explained" in row for row in lines[::half])
    whole.save_model(str(tmp_path / "policy"))
    (file,) = (tmp_path / "policy").glob("*.safetensors")
    assert not [name for name in load_file(file) if "value" in name]


def test_an_adapters_checkpoint_without_a_value_is_refused(tmp_path):
    made = ppo_trainer(tmp_path, peft_config=LoraConfig(target_modules="all-linear", r=2))
    with pytest.raises(ConfigError, match="not made by PPO"):
        made.callback_handler.callbacks[-1].on_train_begin(
            made.args, SimpleNamespace(global_step=2), None
        )
