"""Every row that is written to a `metrics.json`, an audit or a study says what it asks and which
way is better.
"""

import importlib
from pkgutil import iter_modules
from typing import get_args

import pytest
from agent_rows import CountingJudge

from faithful_search import dialects, recipes, rewards
from faithful_search.judges import GroundingJudge
from faithful_search.measure import metrics, unscored
from faithful_search.measure.controls import CONDITIONS, compare as compare_conditions
from faithful_search.measure.evaluating import default_rewards, evaluate_rollouts
from faithful_search.measure.evaluation import ENTROPY, POOLED
from faithful_search.measure.scores import Line
from faithful_search.measure.settings import How
from faithful_search.rewards import Score
from faithful_search.tasks import Task
from faithful_search.trajectory import Trajectory

TOOLS = ("local_search", "knowledge_graph")
JUDGES = (None, GroundingJudge(), CountingJudge())
QUESTION = Trajectory(question="Where?", answer="Rome", answers=("Rome",), dialect="pou", id="q")
TITLED = Task("q", "Where?", ("Rome",), supporting_titles=("Rome",))


class NoPolicy:
    """A policy that no trajectory here gives anything to ask."""

    tokenizer = None

    def choice_probs(self, prompts, choices):
        return [[] for _ in prompts]


def asked_again(conditions) -> list[Trajectory]:
    return [
        Trajectory(question="Where?", answer="Rome", answers=("Oslo",), id=f"q@{condition}")
        for condition in conditions
    ]


def rows_of_audits() -> set[str]:
    """What `audit`, `BatchScorer` and the modules for `evaluate` write."""
    found = {*Line(1, "").values, ENTROPY}
    for judge in JUDGES:
        for how in get_args(How):
            for name in metrics.names():
                found |= metrics.load(name, judge, how).keys()
    return found


def rows_of_evaluations() -> set[str]:
    """What `recipes/evaluate.py` and the recipes that train write, and `compare` reads."""
    rewards = {}
    for dialect in dialects.names():
        for judge in JUDGES:
            for facts in (False, True):
                rewards |= default_rewards(dialect, judge, facts, tasks=[TITLED])
    bound = {name: reward.bind(policy=NoPolicy()) for name, reward in rewards.items()}
    found = evaluate_rollouts(
        [QUESTION],
        ["q"],
        bound,
        TOOLS,
        forced=True,
        blind=[QUESTION],
        controls=asked_again(CONDITIONS),
        unremembered=["q"],
    )
    return {*found.rows, *found.values, *POOLED}


def rows_of_recipes() -> set[str]:
    """What recipes add to the rows of every evaluation, by a function `build_metrics`."""
    found: set[str] = set()
    for module in iter_modules(recipes.__path__):
        recipe = importlib.import_module(f"{recipes.__name__}.{module.name}")
        if hasattr(recipe, "build_metrics"):
            found |= recipe.build_metrics(recipe.parse([])[0]).keys()
    return found


def rows_of_studies() -> set[str]:
    """What `controls` writes."""
    study = compare_conditions(asked_again(CONDITIONS))
    return {name for rows in study.rows.values() for name in rows}


SOURCES = {
    "audits": rows_of_audits,
    "evaluations": rows_of_evaluations,
    "recipes": rows_of_recipes,
    "studies": rows_of_studies,
}


@pytest.mark.parametrize("source", SOURCES)
def test_every_row_has_a_direction_and_a_sentence(source):
    nameless = {name for name in SOURCES[source]() if metrics.about(name) is metrics.UNKNOWN}
    assert nameless == set(), (
        "give these rows an entry in their reward's `results`, or in measure/unscored.py"
    )


def test_no_table_repeats_what_a_reward_says_of_itself():
    assert unscored.RESULTS.keys() & rewards.results().keys() == set()


@pytest.mark.parametrize("name", metrics.RESULTS)
def test_each_entry_asks_a_question(name):
    assert "?" in metrics.about(name).asks


def test_every_normaliser_has_a_name_in_words():
    assert {*get_args(How)} <= metrics.MADE_BY.keys()


@pytest.mark.parametrize(
    ("name", "arrow"),
    [
        ("memory_share", "↓"),
        ("decorated", "↓"),
        ("answer_first", "↓"),
        ("same_answer", "↓"),
        ("repeated_calls", "↓"),
        ("unused_evidence_lexical", "↓"),
        ("follow_rate", "↑"),
        ("verdict_gap", "↑"),
        ("no_on_blank", "↑"),
        ("answer_support_facts", "↑"),
        ("exact_match_pokee", "↑"),
        ("calls", ""),
        ("tool_entropy", ""),
        ("self_rubric", ""),
        ("my_own_row", ""),
    ],
)
def test_which_way_is_better(name, arrow):
    assert metrics.arrow(name) == arrow


def test_a_row_of_a_stranger_inherits_nothing():
    assert metrics.about("calls_of_mine") is metrics.UNKNOWN


def test_every_score_of_an_audit_has_a_reason():
    rows = rows_of_audits() - {"answered", "calls", ENTROPY}  # which no reward scores
    silent = {name for name in rows if not metrics.reason(name, Score(1.0))}
    assert silent == set(), (
        "give these rows a `clean` in their reward's `results`, or in measure/unscored.py"
    )


def test_a_rewards_own_reason_comes_first():
    assert metrics.reason("repeated_calls", Score(0.5, "step 2: again")) == "step 2: again"
