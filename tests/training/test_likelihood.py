"""Collapse: the term that keeps actions likely by hand and in training, and the watch that warns before answers are
lost."""

from __future__ import annotations

import json
import logging
import math
from types import SimpleNamespace

import pytest
import torch
from tiny_trainer import Numbered, batch_of, trainer
from transformers import LlamaConfig, LlamaForCausalLM

from faithful_search.errors import ConfigError
from faithful_search.training.advantages import group_relative
from faithful_search.training.likelihood import LIKELIHOOD, MOVED, LikelihoodWatch, llds
from faithful_search.training.step_metrics import one_outcome

NUMBERS = torch.tensor([[1, 1, 0, 2, 2], [1, 1, 1, 0, 0]])
OLD = torch.full((2, 5), -1.0)
NOW = torch.tensor([[-1.5, -0.9, -9.0, -1.5, -0.4], [-3.0, -1.0, -1.0, -9.0, -9.0]])


def test_the_term_by_hand():
    """Turn 1 of the first row fell by 0.4, by 0.5 at one token; its turn 2 as a whole did not, and tools do not count.

    The second row's advantage is negative: it may fall. Seven tokens are the policy's own.
    """
    logps = NOW.clone().requires_grad_()
    term, share = llds(logps, OLD, NUMBERS, torch.tensor([0.0, -1.0]))
    term.backward()
    assert (float(term), float(share)) == (pytest.approx(0.5 / 7), pytest.approx(2 / 3))
    assert logps.grad.nonzero().tolist() == [[0, 0]] and float(logps.grad[0, 0]) == pytest.approx(-1 / 7)


def test_advantages_may_differ_by_token():
    by_token = torch.zeros(2, 5)
    by_token[0, :2] = -1.0
    assert float(llds(NOW, OLD, NUMBERS, by_token)[0]) == pytest.approx(2.0 / 7)


def test_what_was_just_sampled_costs_nothing():
    logps = OLD.clone().requires_grad_()
    term, share = llds(logps, OLD, NUMBERS, torch.ones(2))
    term.backward()
    assert float(term) == float(share) == 0.0 and not logps.grad.any()


@pytest.mark.parametrize("iterations", [1, 2])
def test_with_one_update_a_batch_the_term_is_of_the_batch_before(tmp_path, iterations):
    made = trainer(
        tmp_path, Numbered(), scripted=True, llds=0.5, num_iterations=iterations, max_steps=2 * iterations, save_steps=2
    )
    made.train()
    steps = [line for line in made.state.log_history if "loss" in line]
    assert ("llds" in steps[0]) is (iterations == 2)
    assert "llds" in steps[1] and steps[-1]["llds"] >= 0 and 0 <= steps[-1]["likelihood/falling"] <= 1
    assert len(made._earlier) == (iterations == 1)


def test_where_the_sampled_log_probabilities_are_left_out_the_term_is_of_the_batch_before(tmp_path):
    """TRL leaves them out where every update is made of whole batches, as here of one batch twice."""
    twice = {"gradient_accumulation_steps": 2, "steps_per_generation": 1, "num_iterations": 2}
    made = trainer(tmp_path, Numbered(), scripted=True, llds=0.5, max_steps=2, **twice)
    made.train()
    steps = [line for line in made.state.log_history if "loss" in line]
    assert len(steps) == 2 and "llds" not in steps[0] and steps[1]["llds"] >= 0


def test_the_loss_gains_the_weighted_term(tmp_path):
    made = trainer(tmp_path, Numbered(), scripted=True, llds=0.5)
    inputs = batch_of(made)
    with torch.no_grad():
        first = made.compute_loss(made.model, inputs)
        made._earlier[0]["old_per_token_logps"] += 1.0  # all has become less likely since
        made._earlier[0]["advantages"] = torch.zeros(8)
        second = made.compute_loss(made.model, inputs)
    assert float(second - first) == pytest.approx(0.5)
    with pytest.raises(ConfigError, match="llds 0 or more"):
        trainer(tmp_path, llds=-1.0)
    with pytest.raises(ConfigError, match="--scale_rewards none is for --advantages trl"):
        trainer(tmp_path, advantages="turns", scale_rewards="none")


def test_how_likely_right_answers_are_is_logged_every_step(tmp_path):
    made = trainer(tmp_path, scripted=True, max_steps=1)
    made.train()
    line = json.loads((tmp_path / "checkpoint-1" / "trainer_state.json").read_text())["log_history"][0]
    assert line[LIKELIHOOD] == pytest.approx(-math.log(len(made.processing_class)), abs=0.5)  # an untrained model's
    assert (line["groups/one_outcome"], line["behaviour/valid_format"], line["frac_reward_zero_std"]) == (1.0, 1.0, 1.0)


def test_what_an_update_does_to_its_own_right_answers_is_logged(tmp_path):
    """By hand: the weights before and after one step, on the rows that were kept."""
    made = trainer(tmp_path, Numbered(), scripted=True, max_steps=1, learning_rate=0.1, lr_scheduler_type="constant")
    kept = {}
    moved = made._moved
    made._moved = lambda: kept.update(made._watched) or moved()
    made.train()
    assert len(kept["chosen"]) == 8 and kept["chosen"].any()
    with torch.no_grad():
        gained = (made._logps(made.model, kept) - kept["logps"])[kept["chosen"]]
    [line] = [line for line in made.state.log_history if MOVED in line]
    assert line[MOVED] == pytest.approx(float(gained.mean()), abs=1e-5) != 0.0


def test_questions_of_one_outcome_are_counted():
    assert one_outcome([True, True, True, False, False, False], 2) == pytest.approx(2 / 3)


# The watch


def watched(likelihoods, norms, caplog, **knobs) -> int | None:
    watch = LikelihoodWatch(**knobs)
    with caplog.at_level(logging.WARNING):
        for step, (likelihood, norm) in enumerate(zip(likelihoods, norms, strict=True), start=1):
            state = SimpleNamespace(is_world_process_zero=True, global_step=step)
            logs = {"grad_norm": norm} | ({} if likelihood is None else {LIKELIHOOD: likelihood})
            watch.on_log(None, state, None, logs)
    return watch.warned_at


@pytest.mark.parametrize(
    ("likelihoods", "norms", "step"),
    [
        ([-0.1, -0.1, -0.2, -0.2], [1, 1, 2, 2], 4),
        ([-0.1, -0.1, None, -0.2, -0.2, -0.3], [1, 1, 9, 2, 2, 2], 5),  # a step without right answers says nothing
        ([-0.1, -0.1, -0.2, -0.2], [1, 1, 1, 1], None),  # gradients are as they were
        ([-0.1, -0.1, -0.1, -0.1], [1, 1, 2, 2], None),
        ([-0.2, -0.2, -0.1, -0.1], [1, 1, 2, 2], None),
    ],
)
def test_it_warns_once_when_likelihood_falls_and_gradients_grow(likelihoods, norms, step, caplog):
    assert watched(likelihoods, norms, caplog, window=2) == step
    said = [record.getMessage() for record in caplog.records if "less likely" in record.getMessage()]
    assert len(said) == (step is not None)
    if step:
        assert said[0].startswith(f"step {step}: ") and "--llds 0.1" in said[0]


def test_it_warns_at_once_of_an_update_that_ruins_right_answers(caplog):
    """As the bundled policy at thirty times its learning rate: right answers are still there when it warns."""
    watch, moved = LikelihoodWatch(), [0.001, 0.002, -0.016, -0.207, None]
    with caplog.at_level(logging.WARNING):
        for step, value in enumerate(moved, start=1):
            logs = {} if value is None else {MOVED: value}
            watch.on_log(None, SimpleNamespace(is_world_process_zero=True, global_step=step), None, logs)
    [said] = [record.getMessage() for record in caplog.records]
    assert watch.warned_at == 4 and said.startswith("step 4: one update took 0.207 from") and "--llds 0.1" in said
    assert not LikelihoodWatch()._trouble({MOVED: -0.03}) and LikelihoodWatch()._trouble({MOVED: -0.031})


# A collapse that is made


QUESTIONS, SAMPLES, LENGTH = 6, 16, 4


class Toy:
    """A small policy that knows the answers to six questions, trained on its own samples as GRPO does it."""

    def __init__(self) -> None:
        torch.manual_seed(1)
        self.questions, self.right = torch.arange(QUESTIONS)[:, None], torch.randint(8, 32, (QUESTIONS, LENGTH))
        torch.manual_seed(0)
        sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
        self.model = LlamaForCausalLM(LlamaConfig(vocab_size=32, **sizes))
        start = torch.optim.Adam(self.model.parameters(), lr=3e-3)
        for _ in range(150):
            answers = self.right.repeat(4, 1)
            answers = torch.where(torch.rand(answers.shape) < 0.06, torch.randint(8, 32, answers.shape), answers)
            start.zero_grad()
            (-self.logps(self.questions.repeat(4, 1), answers).mean()).backward()
            start.step()

    def logps(self, asked, answers):
        ids = torch.cat([asked, answers], 1)
        return self.model(ids).logits[:, :-1].log_softmax(-1).gather(2, ids[:, 1:, None]).squeeze(-1)

    @torch.no_grad()
    def sample(self, asked, greedy=False):
        ids = asked
        for _ in range(LENGTH):
            logits = self.model(ids).logits[:, -1]
            chosen = logits.argmax(-1, keepdim=True) if greedy else torch.multinomial(logits.softmax(-1), 1)
            ids = torch.cat([ids, chosen], 1)
        return ids[:, 1:]

    def train(self, rate: float, weight: float, steps: int = 30) -> None:
        torch.manual_seed(2)
        learner = torch.optim.Adam(self.model.parameters(), lr=rate)
        asked = self.questions.repeat_interleave(SAMPLES, 0)
        numbers = torch.ones(len(asked), LENGTH, dtype=torch.long)
        before = None
        for _ in range(steps):
            answers = self.sample(asked)
            right = (answers == self.right.repeat_interleave(SAMPLES, 0)).all(1).float()
            advantages, logps = group_relative(right, SAMPLES), self.logps(asked, answers)
            loss = -(advantages[:, None] * (logps - logps.detach()).exp()).mean()
            if weight and before is not None:
                sampled, *rest = before
                loss = loss + weight * llds(self.logps(asked, sampled), rest[0], numbers, rest[1])[0]
            before = answers, logps.detach(), advantages
            learner.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            learner.step()

    @property
    def exact_match(self) -> float:
        return float((self.sample(self.questions, greedy=True) == self.right).all(1).float().mean())

    @property
    def likelihood(self) -> float:
        """Of the right answers' tokens, the mean of their log-probabilities."""
        with torch.no_grad():
            return float(self.logps(self.questions, self.right).mean())


@pytest.mark.slow
def test_the_term_keeps_right_answers_where_the_rate_would_lose_them():
    """At ten times a rate that is healthy."""
    healthy, lost, kept = Toy(), Toy(), Toy()
    assert healthy.exact_match == 1.0
    healthy.train(1e-3, 0.0)
    lost.train(1e-2, 0.0)
    kept.train(1e-2, 0.5)
    assert (healthy.exact_match, kept.exact_match) == (1.0, 1.0) and lost.exact_match < 0.7
    assert lost.likelihood < -2 < -0.5 < kept.likelihood
