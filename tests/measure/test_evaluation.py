"""Intervals by hand, differences that are paired, what rollouts come to, a table to read, why
episodes failed.
"""

import json
import math

import numpy as np
import pytest
from hypothesis import given, strategies as st
from stub_judges import Down

from faithful_search.errors import DataError
from faithful_search.measure.behaviour import (
    POOLED_ENTROPY,
    ErrorCounts,
    error_counts,
    error_of,
    error_rows,
    tool_entropy,
)
from faithful_search.measure.evaluating import evaluate_policy, evaluate_rollouts
from faithful_search.measure.evaluation import Evaluation, difference
from faithful_search.measure.report import evaluation_rows
from faithful_search.measure.stats import (
    bootstrap,
    difference_ci,
    left_out,
    mean_ci,
    paired_difference,
    pooled_estimate,
    t_quantile,
)
from faithful_search.measure.writing import write_metrics
from faithful_search.rewards import AnswerSupport, Citation, Correctness
from faithful_search.trajectory import Evidence, Step, ToolCall, Trajectory

# --- stats


def test_wilson_interval_of_shares():
    """Hand-worked: n = 10, p = 0.8, z = 1.96 gives 0.490 to 0.943; at 0 of 20 the upper end is
    z²/(n + z²) = 0.161.
    """
    estimate = mean_ci([1] * 8 + [0] * 2)
    assert (round(estimate.low, 3), round(estimate.high, 3), estimate.n) == (0.490, 0.943, 10)
    none = mean_ci([0.0] * 20)
    assert (none.value, none.low, round(none.high, 3)) == (0.0, 0.0, 0.161)
    assert mean_ci([1.0] * 20).high == 1.0
    assert mean_ci([1.0] * 20).low == pytest.approx(1 - none.high)


@pytest.mark.parametrize(("questions", "high"), [(10, 1.0), (40, 0.5), (160, 0.25)])
def test_one_tool_throughout_may_be_chance(questions, high):
    """The true entropy is 0 only if no question at all needs the other tool."""
    calls = {"a": [3] * questions, "b": [0] * questions}
    estimate = pooled_estimate(calls, POOLED_ENTROPY, range(questions))
    assert (estimate.value, estimate.low) == (0.0, 0.0)
    assert high / 2 < estimate.high <= high


def test_student_interval_of_numbers():
    """1, 2, 3, 4, 5: s/√5 = 0.7071, t = 2.776, so 3 ± 1.963; zeros and ones that are not shares get
    it too.
    """
    estimate = mean_ci([1, 2, 3, 4, 5])
    assert (estimate.value, estimate.n, estimate.stderr) == (3.0, 5, pytest.approx(math.sqrt(0.5)))
    assert [estimate.high - 3, 3 - estimate.low] == pytest.approx([1.963, 1.963], abs=0.005)
    calls = mean_ci([1.0, 1.0, 0.0], bounds=(0.0, math.inf))
    assert calls.low == 0.0
    assert calls.high == pytest.approx(2 / 3 + 4.303 / 3, abs=0.01)
    for df, t in ((1, 12.706), (2, 4.303), (3, 3.182), (5, 2.571), (10, 2.228), (30, 2.042)):
        assert [t_quantile(0.975, df), -t_quantile(0.025, df)] == pytest.approx([t, t], rel=2e-3)


def test_too_little_to_say_and_what_is_refused():
    assert (mean_ci([]).value, mean_ci([]).n) == (None, 0)
    one = mean_ci([0.4])
    assert (one.value, one.low, one.high, one.n) == (0.4, None, None, 1)
    assert bootstrap([]).value is None
    assert bootstrap([3.0]).low is None
    assert paired_difference({"a": 1.0}, {"b": 1.0}).n == 0
    assert (
        pooled_estimate({"a": [3, 1]}, POOLED_ENTROPY, ["x", "y"]).value
        is tool_entropy({"a": 4}, ["a"])
        is None
    )
    with pytest.raises(DataError, match="not a finite number"):
        mean_ci([0.5, math.nan])
    with pytest.raises(DataError, match="no questions"):
        evaluate_policy(None, [])
    with pytest.raises(DataError, match="1 trajectories for 0 question ids"):
        evaluate_rollouts([trajectory(ALONE)], [], {}, [])
    with pytest.raises(DataError, match="not an evaluation"):
        Evaluation.from_dict({"rows": 3})


def test_intervals_cover_as_often_as_they_say():
    rng = np.random.default_rng(1)
    shares = [mean_ci((rng.random(30) < 0.2).astype(float).tolist()) for _ in range(400)]
    numbers = [mean_ci(rng.normal(0.3, 1, 8).tolist()) for _ in range(400)]
    for estimates, truth in ((shares, 0.2), (numbers, 0.3)):
        assert 0.92 <= np.mean([e.low <= truth <= e.high for e in estimates]) <= 0.985


def test_an_evaluation_keeps_the_bounds_of_its_metrics():
    """Of `calls`, which can be any number, there are none."""
    evaluation = evaluate_rollouts([trajectory(ALONE)], ["q"], {"correct": Correctness()}, [])
    written = json.loads(json.dumps(evaluation.to_dict()))
    bounds = Evaluation.from_dict(written).bounds
    assert bounds["correct"] == (0.0, 1.0)
    assert "calls" not in bounds


def test_a_mean_bears_a_tenth_of_its_rows_left_open_and_no_more():
    kept = mean_ci([1.0] * 9)
    assert left_out(kept, 9, 3, 1).value == 1.0
    assert left_out(kept, 9, 3, 1).not_applicable == 3
    open_ = left_out(mean_ci([1.0] * 8), 8, 0, 2)
    assert (open_.value, open_.low, open_.n, open_.abstained) == (None, None, 8, 2)


def test_rollouts_of_one_question_are_not_independent():
    values, questions = [1.0] * 8 + [0.0] * 8, ["a"] * 8 + ["b"] * 8
    clustered, plain = mean_ci(values, questions), mean_ci(values)
    assert plain.n == 16
    assert (clustered.value, clustered.n) == (0.5, 2)
    assert clustered.high - clustered.low > 1.5 * (plain.high - plain.low)
    assert bootstrap(values, clusters=questions).low == 0.0
    values = np.random.default_rng(0).random(200)
    one, again, other = (bootstrap(values, seed=seed) for seed in (3, 3, 4))
    assert one == again != other
    assert one.value == pytest.approx(values.mean())
    assert one.low < one.value < one.high
    assert one.stderr == pytest.approx(values.std() / math.sqrt(200), rel=0.06)


def test_one_of_two_right_in_every_question_is_no_certainty():
    """√(½ · ½ / 40) = 0.0791, times t of 19 degrees of freedom: 0.5 ± 0.1655."""
    estimate = mean_ci([1.0, 0.0] * 20, [number // 2 for number in range(40)])
    assert [estimate.low, estimate.high] == pytest.approx([0.3345, 0.6655], abs=1e-4)


def test_questions_that_differ_more_than_chance_lets_them_keep_their_own_interval():
    values, questions = [1.0, 1.0, 0.0, 0.0] * 10, [number // 2 for number in range(40)]
    halves = mean_ci([*values, 1.0, 0.0], [*questions, 20, 20])
    student = mean_ci([*([1.0, 0.0] * 10), 0.5])
    assert halves == student


def test_samples_that_agree_before_and_after_leave_a_difference_a_width():
    """Two samples a question: its mean changes by ½ at least, if at all."""
    questions = [f"q{number // 2}" for number in range(40)]
    run = Evaluation({}, questions, {"em": [1.0, 0.0] * 20}, {})
    change = difference(run, run, "em")
    by_hand = difference_ci([0.0] * 20, smallest=0.5)
    assert change == by_hand
    assert change.high > 0.05


def test_a_question_with_one_sample_changes_by_1_at_least():
    questions = ["q", *(f"q{number // 2}" for number in range(40))]
    run = Evaluation({}, questions, {"em": [1.0, *([1.0, 0.0] * 20)]}, {})
    assert difference(run, run, "em") == difference_ci([0.0] * 21, smallest=1.0)


def test_values_that_are_no_shares_have_no_smallest_change():
    questions = [f"q{number}" for number in range(4)]
    before = Evaluation({}, questions, {"f1": [0.0, 1.0, 0.5, 0.5]}, {})
    after = Evaluation({}, questions, {"f1": [0.0, 1.0, 0.7, 0.6]}, {})
    change = difference(before, after, "f1")
    by_hand = difference_ci([0.0, 0.0, 0.2, 0.1])
    assert [change.low, change.high] == pytest.approx([by_hand.low, by_hand.high])


def test_pairing_removes_what_the_questions_share():
    rng = np.random.default_rng(0)
    hard = rng.random(50)
    before, after = hard.tolist(), (hard + 0.1 + rng.normal(0, 0.02, 50)).tolist()
    paired = paired_difference(dict(enumerate(before)), dict(enumerate(after)))
    assert paired.value == pytest.approx(0.1, abs=0.01)
    assert paired.low > 0.08
    assert paired.high < 0.12
    assert mean_ci(after).low < mean_ci(before).high


@pytest.mark.parametrize("order", [[0, 1, 2, 3, 4], [4, 3, 2, 1, 0], [1, 4, 0, 3, 2]])
def test_questions_without_a_call_count_nowhere_among_the_others(order):
    calls = {"a": [2, 0, 1, 1, 0], "b": [0, 0, 2, 1, 0]}
    mixed = {tool: [column[place] for place in order] for tool, column in calls.items()}
    callers = {tool: [column[place] for place in (0, 2, 3)] for tool, column in calls.items()}
    estimate = pooled_estimate(mixed, POOLED_ENTROPY, order)
    alone = pooled_estimate(callers, POOLED_ENTROPY, [0, 2, 3])
    assert estimate.n == 3
    assert [estimate.low, estimate.high] == pytest.approx([alone.low, alone.high])


def test_differences_that_miss_0_by_rounding_have_the_interval_of_zeros():
    exact, rounded = difference_ci([0.0] * 20), difference_ci([1.4e-17, -1.4e-17] * 10)
    assert [rounded.low, rounded.high] == pytest.approx([exact.low, exact.high])


def test_an_interval_of_shares_averaged_by_question_ends_at_0_and_1():
    estimate = mean_ci([0.0, 1.0, 0.0], ["x", "y", "y"])
    assert (estimate.value, estimate.low, estimate.high) == (0.25, 0.0, 1.0)


@given(
    st.lists(
        st.tuples(st.integers(0, 6), st.integers(0, 6), st.integers(0, 6)), min_size=1, max_size=12
    )
)
def test_entropy_row_equals_the_formula(rows):
    calls = {tool: [row[place] for row in rows] for place, tool in enumerate("abc")}
    totals = {tool: sum(column) for tool, column in calls.items()}
    shares = [total / sum(totals.values()) for total in totals.values() if total]
    estimate = pooled_estimate(calls, POOLED_ENTROPY, list(range(len(rows))))
    if shares:
        expected = pytest.approx(-sum(p * math.log(p) for p in shares) / math.log(3), abs=1e-12)
        assert estimate.value == expected
        assert tool_entropy(totals, list("abc")) == expected
    else:
        assert estimate.value is tool_entropy(totals, list("abc")) is None
    assert estimate.not_applicable == sum(row == (0, 0, 0) for row in rows)


# --- rollouts, summed up


def trajectory(*steps, answer=None, golds=("Rome",)):
    reason = "answered" if answer else "turn_limit"
    return Trajectory(steps=steps, answer=answer, answers=golds, dialect="pou", stop_reason=reason)


SEARCH = Step(
    think="a", call=ToolCall("local_search"), evidence=(Evidence("Rome it is.", id="E1"),)
)
GOOD = Step(
    think="b",
    helpful=True,
    refs=("E1",),
    call=ToolCall("web"),
    evidence=(Evidence("More.", id="E2"),),
)
WRONG = Step(think="c", helpful=True, refs=("E9",), answer="Rome")
ALONE = Step(think="d", answer="Rome")


def test_citation_validity_is_the_share_of_valid_steps():
    rollouts = [trajectory(SEARCH, GOOD, WRONG, answer="Rome"), trajectory(ALONE, answer="Rome")]
    rewards = {"citation_validity": Citation(), "answer_support": AnswerSupport(Down())}
    found = evaluate_rollouts(rollouts, ["a", "b"], rewards, ["local_search", "web"])
    row, support = found.rows["citation_validity"], found.rows["answer_support"]
    assert (row.value, row.n, row.not_applicable) == (0.5, 1, 1)
    assert (support.value, support.n, support.abstained, support.not_applicable) == (None, 0, 1, 1)
    assert found.values["citation_validity"] == [0.5, None]
    assert found.rows["calls"].value == 1.0
    assert found.rows["tool_entropy"].value == 1.0
    assert found.trajectories[0].meta["reasons"]["citation_validity"].startswith("step 3: cites E9")


# --- report


@pytest.mark.parametrize(
    ("gains", "marked"), [([1.0] * 6, True), ([1.0] * 5, False), ([1.0, -1.0] * 10, False)]
)
def test_only_clear_differences_are_marked(gains, marked):
    questions = [str(number) for number in range(len(gains))]
    before, after = (
        Evaluation({"f1": mean_ci(v)}, questions, {"f1": v}, {})
        for v in ([0.0] * len(gains), gains)
    )
    assert evaluation_rows(before, after, ("before", "after"))[1][4].endswith(" *") is marked


def test_metrics_are_written_whole_or_not_at_all(tmp_path):
    read = Evaluation({"f1": mean_ci([0.5, 1.0])}, ["a", "b"], {"f1": [0.5, 1.0]}, {})
    path = write_metrics(
        tmp_path / "deep" / "metrics.json", {"before": read, "path": tmp_path, "n": np.int64(3)}
    )
    data = json.loads(path.read_text())
    assert Evaluation.from_dict(data["before"]) == read
    assert data["n"] == 3
    with pytest.raises(DataError, match="not JSON"):
        write_metrics(path, {"loss": math.nan})
    assert json.loads(path.read_text()) == data
    assert [item.name for item in path.parent.iterdir()] == ["metrics.json"]


# --- why episodes failed


ENDINGS = [("Rome", "answered"), ("Rome", "answered_forced")]
ENDINGS += [("Lima", "answered"), ("Lima", "answered_forced"), ("Oslo", "answered")]
ENDINGS += [(None, "no_action"), (" ", "answered")]
ENDINGS += [(None, "turn_limit"), (None, "token_limit"), (None, "turn_token_limit")]
ENDED = [
    Trajectory(answer=answer, stop_reason=reason, answers=("Rome",)) for answer, reason in ENDINGS
]
EXACT = Correctness("em")


def test_why_an_episode_failed():
    kinds = [error_of(rollout, EXACT.score(rollout).value) for rollout in ENDED]
    assert kinds == [None] * 2 + ["wrong answer"] * 3 + ["wrong formatting"] * 2 + ["limits"] * 3


def test_an_answer_without_a_verdict_is_not_called_wrong():
    assert error_of(ENDED[2], None) == "not judged"


def test_errors_are_counted_by_the_metric_that_is_named():
    rights = [1.0, 1.0, 1.0, None, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]  # the judge accepts Lima once
    assert error_counts(ENDED, rights, "lm_accuracy") == ErrorCounts(
        judged_by="lm_accuracy",
        wrong_answer=1,
        wrong_formatting=2,
        limits=3,
        not_judged=1,
        episodes=10,
    )


def errors_of(rollouts, rewards):
    questions = [str(number) for number in range(len(rollouts))]
    return evaluate_rollouts(rollouts, questions, rewards, []).errors


def test_the_table_of_errors_by_hand():
    counts = {
        "before": errors_of(ENDED, {"exact_match": EXACT}),
        "after": errors_of(ENDED[:1], {"exact_match": EXACT}),
    }
    assert error_rows(counts) == [
        [
            "why episodes failed",
            "wrong answer (by exact_match)",
            "wrong formatting",
            "limits",
            "not judged",
            "of episodes",
        ],
        ["before", "3 (38%)", "2 (25%)", "3 (38%)", "0", "8 of 10"],
        ["after", "0", "0", "0", "0", "0 of 1"],
    ]


def test_a_judge_says_what_is_wrong_where_there_is_one():
    rewards = {"exact_match": EXACT, "lm_accuracy": Correctness("judge", judge=Down())}
    errors = errors_of(ENDED, rewards)
    assert errors.judged_by == "lm_accuracy"
    assert errors.not_judged == 3


def test_without_a_metric_of_answers_there_are_no_errors():
    assert errors_of(ENDED, {"citation_validity": Citation()}) is None
