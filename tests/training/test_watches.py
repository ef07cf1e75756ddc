"""What is said of a run that goes wrong: rewards that are all equal, collapse, and a policy that likes itself."""

import logging
import math
from types import SimpleNamespace

import pytest
import torch
from tiny_trainer import Luck, Numbered, trainer

from faithful_search.rewards import Mix, Score
from faithful_search.training.callbacks import JUDGED, LIKELIHOOD, MOVED, STEPS, Watching, collapse
from faithful_search.training.step_metrics import Scored, reward_metrics
from faithful_search.trajectory import Trajectory


def said(rows, caplog, rollouts=8):
    """What is said of a log, a row a step with so many rollouts; each row is told as it comes."""
    watching, log = Watching(), []
    args = SimpleNamespace(rollouts_after=lambda step: rollouts * step)
    with caplog.at_level(logging.WARNING):
        for row in rows:
            log.append({"loss": 0.1, "reward": float(len(log)), **row})
            state = SimpleNamespace(is_world_process_zero=True, global_step=len(log), log_history=log)
            watching.on_log(args, state, None, log[-1])
    return [record.getMessage() for record in caplog.records]


EQUAL = {"reward": -1.0, "reward_std": 0.0, "behaviour/valid_format": 0.0}


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        ([EQUAL] * 3 + [EQUAL | {"reward": 0.5}], None),
        ([EQUAL] * 3 + [EQUAL | {"reward_std": 0.1}], None),
        ([EQUAL | {"reward": None}] * 5, None),
        ([EQUAL | {"behaviour/valid_format": 0.1}, *[EQUAL] * 3], "step 4: all 32 rollouts so far have the reward -1"),
    ],
)
def test_what_is_said_of_the_first_rollouts(rows, told, caplog):
    found = said(rows, caplog)
    assert [line[: len(told or "")] for line in found] == ([told] if told else [])


def test_a_run_without_a_valid_rollout_is_told_why(tmp_path, caplog):
    """And its checkpoints leave no card that says nothing."""
    with caplog.at_level(logging.WARNING, "faithful_search"):
        trainer(tmp_path, Mix(parts={"luck": Luck()})).train()
    [line] = [record.getMessage() for record in caplog.records if "valid format" in record.getMessage()]
    assert line.startswith("step 4: 0 of 32 rollouts have a valid format, so every reward is -1")
    assert "cold-started" in line and "recipes/sft.py" in line
    assert (tmp_path / "checkpoint-2").is_dir() and not (tmp_path / "README.md").exists()


@pytest.mark.parametrize(
    ("likelihoods", "norms", "step"),
    [
        ([-0.1, -0.2], [1, 2], 2 * STEPS),
        ([-0.1, None, -0.2, -0.3], [1, 9, 2, 2], 3 * STEPS),  # a step without right answers says nothing
        ([-0.1, -0.2], [1, 1], None),  # gradients are as they were
        ([-0.1, -0.1], [1, 2], None),
    ],
)
def test_it_warns_once_when_likelihood_falls_and_gradients_grow(likelihoods, norms, step, caplog):
    pairs = [pair for pair in zip(likelihoods, norms, strict=True) for _ in range(STEPS)]
    rows = [{"grad_norm": norm} | ({LIKELIHOOD: own} if own else {}) for own, norm in pairs]
    found = said(rows, caplog)
    assert len(found) == (step is not None)
    if step:
        assert found[0].startswith(f"step {step}: right answers become less likely") and "--llds 0.1" in found[0]


def test_it_warns_at_once_of_an_update_that_ruins_right_answers(caplog):
    """As the bundled policy at thirty times its learning rate: right answers are still there when it warns."""
    [line] = said([{MOVED: value} for value in (0.001, 0.002, -0.016, -0.207)] + [{}], caplog)
    assert line.startswith("step 4: one update took 0.207 from") and "--llds 0.1" in line
    assert not collapse([{MOVED: -0.03}], 0) and collapse([{MOVED: -0.031}], 0)


def self_scored(pairs):
    """What a step logs whose rollouts have these scores, by the policy and by the rule."""
    parts = [{"self_rubric": Score(own), "world_rubric": Score(rule)} for own, rule in pairs]
    mix = Mix(parts={"self_rubric": Luck(), "world_rubric": Luck()}, gate=None)
    batch = [Scored(Trajectory(), 1, Score(0.0), row) for row in parts]
    return {name: value for name, value in reward_metrics(mix, mix.state0, batch, 1).items() if "/" not in name}


def test_a_step_is_compared_over_the_rollouts_that_both_scored():
    row = self_scored([(1.0, 0.4), (0.2, 0.2), (None, 1.0), (1.0, None)])
    expected = {"self_score": 0.6, "rule_score": 0.3, "self_gap": 0.3, "self_rmse": (0.36 / 2) ** 0.5}
    assert row == pytest.approx(expected) and self_scored([(None, 1.0)]) == {}


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        ([[(0.6, 0.5)]] * 8 + [[(0.9, 0.5)]] * 6, "step 10: the policy's own scores have moved 0.12 above the rule's"),
        ([[(0.6, 0.5)]] * 5 + [[(0.2, 0.5)]] * 5, "step 10: the policy's own scores have moved 0.40 below the rule's"),
        ([[(1.0, 0.0), (1.0, 1.0)]] * 6, f"step {JUDGED}: the policy's own scores are wrong by 0.71"),
        ([[(0.7, 0.4)]] * 10, None),
        ([[(0.6, 0.5)], [(0.9, 0.5)]], None),  # too little to say anything
    ],
)
def test_a_gap_that_grows_and_scores_that_are_no_better_than_a_constant_are_said_once(rows, told, caplog):
    found = said([self_scored(pairs) for pairs in rows], caplog)
    assert [line[: len(told or "")] for line in found] == ([told] if told else [])


# What is logged for it


def test_how_likely_right_answers_are_and_what_an_update_does_to_them_is_logged(tmp_path):
    """By hand: the weights before and after one step, on the rows that were kept."""
    made = trainer(tmp_path, Numbered(), scripted=True, max_steps=1, learning_rate=0.1)
    kept, watch = {}, made._watch
    made._watch = lambda batch: (watch(batch), kept.update(made._watched))
    made.train()
    assert len(kept["chosen"]) == 8 and kept["chosen"].any()
    with torch.no_grad():
        gained = (made._logps(made.model, kept) - kept["logps"])[kept["chosen"]]
    [moved] = [line for line in made.state.log_history if MOVED in line]
    assert moved[MOVED] == pytest.approx(float(gained.mean()), abs=1e-5) != 0.0
    line = made.state.log_history[0]
    assert line[LIKELIHOOD] == pytest.approx(-math.log(len(made.processing_class)), abs=0.5)  # an untrained model's
    assert (line["groups/one_outcome"], line["behaviour/valid_format"]) == (1.0, 1.0)


def test_questions_of_one_outcome_are_counted():
    mix = Mix(parts={"luck": Luck()}, gate=None)
    rows = [Trajectory(answer="Rome", answers=("Rome" if right else "Oslo",)) for right in (1, 1, 1, 0, 0, 0)]
    batch = [Scored(row, 1, Score(0.0), {"luck": Score(0.0)}) for row in rows]
    assert reward_metrics(mix, mix.state0, batch, 2)["groups/one_outcome"] == pytest.approx(2 / 3)
