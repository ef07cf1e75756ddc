"""Citations compared with the titles that annotators gave."""

import pytest

from faithful_search.measure.evaluating import default_rewards
from faithful_search.measure.gold_citations import CitesGold
from faithful_search.tasks import Task
from faithful_search.trajectory import Evidence, Step, ToolCall, Trajectory

TASK = Task("q", "Who directed Zodiac?", ("Fincher",), supporting_titles=("Zodiac (film)",))
PASSAGES = (
    Evidence("Fincher directed it.", "ZODIAC  (film)", "E1"),
    Evidence("Twelve signs.", "Astrology", "E2"),
)


def episode(refs, helpful=True, dialect="pou", question="q"):
    search = Step(call=ToolCall("local_search"), evidence=PASSAGES)
    answer = Step(helpful=helpful, refs=refs, answer="Fincher")
    return Trajectory((search, answer), id=question, dialect=dialect)


@pytest.mark.parametrize(
    ("refs", "share"),
    [(("E1",), 1.0), (("E2",), 0.0), (("E1", "E2"), 0.5), (("E1", "E9"), 0.5)],
    ids=["gold", "other", "both", "invented"],
)
def test_share_of_citations_of_supporting_pages(refs, share):
    assert CitesGold.of([TASK]).score(episode(refs)).value == share


@pytest.mark.parametrize(
    ("rollout", "why"),
    [
        (episode(("E1",), question="another"), "the question's supporting titles are not known"),
        (episode((), helpful=False), "no step says yes and cites"),
        (episode(("E1",), dialect="search_r1"), "dialect 'search_r1' has no verdicts that cite"),
    ],
    ids=["no titles", "no citation", "no verdicts"],
)
def test_no_value_where_nothing_can_be_compared(rollout, why):
    assert CitesGold.of([TASK]).score(rollout).why == why


def test_the_reason_names_the_first_other_page():
    why = CitesGold.of([TASK]).score(episode(("E1", "E2"))).why
    assert why == "step 2 cites E2, which is no supporting page"


def test_evaluations_of_titled_questions_have_the_row():
    assert "cites_gold" in default_rewards("pou", tasks=[TASK])


@pytest.mark.parametrize(
    ("dialect", "tasks"), [("pou", [Task("q", "Who?")]), ("search_r1", [TASK])]
)
def test_other_evaluations_do_not(dialect, tasks):
    assert "cites_gold" not in default_rewards(dialect, tasks=tasks)
