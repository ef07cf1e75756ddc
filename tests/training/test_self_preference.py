"""Self-preference: what is logged of a policy's own scores beside a rule's, and when it is said that both part."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest

from faithful_search.analysis import self_preference
from faithful_search.measure.behaviour import error_counts, error_of, error_table
from faithful_search.rewards import Score
from faithful_search.training.self_preference import SelfPreference
from faithful_search.trajectory import Trajectory


def steps(rows, **settings):
    """Run the callback over steps of `(own, rule)` pairs; the log history that comes of it."""
    trainer = SimpleNamespace(last_components=[])
    state = SimpleNamespace(log_history=[], global_step=0, is_world_process_zero=True)
    callback = SelfPreference(trainer, **settings)
    for pairs in rows:
        trainer.last_components = [{"self_rubric": Score(own), "world_rubric": Score(rule)} for own, rule in pairs]
        state.global_step += 1
        logs = {"loss": 0.1}
        state.log_history.append(dict(logs))
        callback.on_log(None, state, None, logs)
        assert logs == state.log_history[-1]
    return state.log_history


def test_a_step_is_compared_over_the_rollouts_that_both_scored():
    (row,) = steps([[(1.0, 0.4), (0.2, 0.2), (None, 1.0), (1.0, None)]])
    assert (row["self_score"], row["rule_score"], row["self_gap"]) == (0.6, 0.3, 0.3)
    assert row["self_rmse"] == pytest.approx((0.36 / 2) ** 0.5, abs=1e-4)
    assert "self_gap" not in steps([[(None, 1.0)]])[0]


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([[(0.6, 0.5)]] * 4 + [[(0.9, 0.5)]] * 4, ["step 5: the policy's own scores have moved 0.15 above the rule's"]),
        ([[(0.6, 0.5)]] * 2 + [[(0.2, 0.5)]] * 2, ["step 4: the policy's own scores have moved 0.40 below the rule's"]),
        ([[(1.0, 0.0), (1.0, 1.0)]] * 6, ["the policy's own scores are wrong by 0.71 (root mean square)"]),
        ([[(0.7, 0.4)]] * 10, []),
        ([[(0.1 * step, 0.1 * step)] for step in range(10)], []),
        ([[(0.6, 0.5)], [(0.9, 0.5)]], []),  # too little to say anything
    ],
)
def test_a_gap_that_grows_and_scores_that_are_no_better_than_a_constant_are_said_once(rows, said, caplog):
    with caplog.at_level(logging.WARNING):
        steps(rows, window=2)
    assert [record.message[: len(line)] for record, line in zip(caplog.records, said, strict=True)] == said


def test_both_scores_are_drawn(tmp_path):
    history = [{"step": number + 1, **row} for number, row in enumerate(steps([[(0.6, 0.5)], [(0.7, 0.5)]]))]
    assert self_preference(history, tmp_path / "self.svg").read_text().startswith("<?xml")


@pytest.mark.parametrize(
    ("answer", "reason", "kind"),
    [
        ("Rome", "answered", None),
        ("Lima", "answered", "wrong answer"),
        ("Lima", "answered_forced", "wrong answer"),
        (None, "no_action", "wrong formatting"),
        (" ", "answered", "wrong formatting"),
        (None, "turn_limit", "limits"),
        (None, "token_limit", "limits"),
        (None, "turn_token_limit", "limits"),
    ],
)
def test_why_an_episode_failed(answer, reason, kind):
    assert error_of(Trajectory(answer=answer, stop_reason=reason, answers=("Rome",))) == kind


def test_the_table_of_errors_by_hand():
    def ended(answer, reason="answered"):
        return Trajectory(answer=answer, stop_reason=reason, answers=("Rome",))

    counts = error_counts([ended("Rome"), ended("Lima"), ended("Oslo"), ended("Bern"), ended(None, "turn_limit")])
    assert counts == {"wrong answer": 3, "wrong formatting": 0, "limits": 1, "total": 4, "episodes": 5}
    table = error_table({"before": counts, "after": error_counts([ended("Rome")])}).splitlines()
    assert table[2] == "| before | 3 (75%) | 0 (0%) | 1 (25%) | 4 | 5 |"
    assert table[3] == "| after | 0 | 0 | 0 | 0 | 1 |"
