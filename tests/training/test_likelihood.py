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

from faithful_search.errors import ConfigError
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
    by_token = torch.tensor([[-1.0, -1.0, 0.0, 0.0, 0.0], [0.0] * 5])
    assert float(llds(NOW, OLD, NUMBERS, by_token)[0]) == pytest.approx(2.0 / 7)
    assert [float(part) for part in llds(OLD, OLD, NUMBERS, torch.ones(2))] == [0.0, 0.0]  # just sampled


TWICE = {"gradient_accumulation_steps": 2, "steps_per_generation": 1}


@pytest.mark.parametrize(
    ("settings", "before"), [({}, True), ({"num_iterations": 2}, False), ({**TWICE, "num_iterations": 2}, True)]
)
def test_the_term_is_of_the_batch_before_unless_a_batch_is_used_for_several_updates(tmp_path, settings, before):
    """TRL leaves the sampled log-probabilities out where every update is made of whole batches, as of one twice."""
    made = trainer(tmp_path, Numbered(), scripted=True, llds=0.5, max_steps=2, **settings)
    made.train()
    first, second = [line for line in made.state.log_history if "loss" in line]
    assert ("llds" in first) is not before
    assert second["llds"] >= 0 and 0 <= second["likelihood/falling"] <= 1


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
