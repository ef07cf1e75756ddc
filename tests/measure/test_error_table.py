"""Why episodes failed, by kind; and the figure of a policy's own scores beside a rule's."""

import pytest

from faithful_search.analysis.figures import self_preference
from faithful_search.measure.behaviour import error_counts, error_of, error_table
from faithful_search.trajectory import Trajectory


def ended(answer, reason="answered"):
    return Trajectory(answer=answer, stop_reason=reason, answers=("Rome",))


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
    assert error_of(ended(answer, reason)) == kind


def test_the_table_of_errors_by_hand():
    counts = error_counts([ended("Rome"), ended("Lima"), ended("Oslo"), ended("Bern"), ended(None, "turn_limit")])
    assert counts == {"wrong answer": 3, "wrong formatting": 0, "limits": 1, "total": 4, "episodes": 5}
    table = error_table({"before": counts, "after": error_counts([ended("Rome")])}).splitlines()
    assert table[2] == "| before | 3 (75%) | 0 (0%) | 1 (25%) | 4 | 5 |"
    assert table[3] == "| after | 0 | 0 | 0 | 0 | 1 |"


def test_both_scores_are_drawn(tmp_path):
    row = {"self_score": 0.6, "rule_score": 0.5, "self_gap": 0.1, "self_rmse": 0.2}
    history = [{"step": number + 1, **row} for number in range(2)]
    assert self_preference(history, tmp_path / "self.svg").read_text().startswith("<?xml")
