"""Citations compared with the titles that annotators gave."""

import msgspec
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


def episode(refs, helpful=True, dialect="pou", question="q", passages=PASSAGES):
    search = Step(call=ToolCall("local_search"), evidence=passages)
    answer = Step(helpful=helpful, refs=refs, answer="Fincher")
    return Trajectory((search, answer), id=question, dialect=dialect)


@pytest.mark.parametrize(
    ("refs", "share"),
    [
        (("E1",), 1.0),
        (("E2",), 0.0),
        (("E1", "E2"), 0.5),
        (("E1", "E9"), 0.5),
        (("E1", "E2", "E2", "E2"), 0.5),
    ],
    ids=["gold", "other", "both", "invented", "one of them thrice"],
)
def test_share_of_citations_of_supporting_pages(refs, share):
    assert CitesGold.of([TASK]).score(episode(refs)).value == share


@pytest.mark.parametrize("rollout_id", ["q", "q#1", "q#12"])
def test_every_sample_of_a_question_is_scored(rollout_id):
    assert CitesGold.of([TASK]).score(episode(("E1",), question=rollout_id)).value == 1.0


def test_a_task_whose_id_looks_like_a_samples_is_scored():
    task = msgspec.structs.replace(TASK, id="q#1")
    assert CitesGold.of([task]).score(episode(("E1",), question="q#1")).value == 1.0


@pytest.mark.parametrize("title", ["", " ", "(film)"])
def test_empty_titles_match_nothing(title):
    task = msgspec.structs.replace(TASK, supporting_titles=("Zodiac", title))
    passages = (Evidence("Fincher directed it.", title, "E1"),)
    assert CitesGold.of([task]).score(episode(("E1",), passages=passages)).value == 0.0


def test_a_question_with_empty_titles_alone_has_no_value():
    task = msgspec.structs.replace(TASK, supporting_titles=("",))
    assert CitesGold.of([task]).supporting_titles == {}


@pytest.mark.parametrize(
    "titles", [("Zodiac", "Astrology"), ("Astrology", "Zodiac"), ("", "Zodiac")]
)
def test_the_titles_of_an_id_are_united(titles):
    first, second = (Step(evidence=(Evidence("Fincher.", title, "E1"),)) for title in titles)
    answer = Step(helpful=True, refs=("E1",), answer="Fincher")
    rollout = Trajectory((first, second, answer), id="q", dialect="pou")
    assert CitesGold.of([TASK]).score(rollout).value == 1.0


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
    assert why == "step 2 cites E2, which is no gold page"


def test_the_reason_tells_ids_that_no_tool_returned():
    why = CitesGold.of([TASK]).score(episode(("E1", "E9"))).why
    assert why == "step 2 cites E9, which was not returned"


def test_the_id_of_a_note_was_returned_and_is_no_gold_page():
    note = Evidence("No results found.", "Zodiac", "E1")
    why = CitesGold.of([TASK]).score(episode(("E1",), passages=(note,))).why
    assert why == "step 2 cites E1, which is no gold page"


def test_an_id_that_is_returned_later_was_not_returned_yet():
    late = Step(helpful=True, refs=("E3",), evidence=(Evidence("It did.", "Zodiac", "E3"),))
    rollout = Trajectory((Step(evidence=PASSAGES), late), id="q", dialect="pou")
    assert CitesGold.of([TASK]).score(rollout).value == 0.0


def test_evaluations_of_titled_questions_have_the_row():
    assert "cites_gold" in default_rewards("pou", tasks=[TASK])


@pytest.mark.parametrize(
    ("dialect", "tasks"), [("pou", [Task("q", "Who?")]), ("search_r1", [TASK])]
)
def test_other_evaluations_do_not(dialect, tasks):
    assert "cites_gold" not in default_rewards(dialect, tasks=tasks)
