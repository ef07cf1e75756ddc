"""The judge that weighs where words are found, and what it counts."""

import pytest

from faithful_search import judges
from faithful_search.judges import GroundingJudge, Pair, made_by
from faithful_search.judges.counted import CountedJudge, TaskWeights, bundled_weights
from faithful_search.judges.counts import counts, dates_of, goes_on

EVIDENCE = "Ada Lind (born 3 May 1902) was a painter. She went to art school in Bergen."
SCHOOL = "Where did the painter of The Blue Pier go to school?"
FOUND = "From the search results, I can see that Ada Lind was a painter."
SEARCHES = f"{FOUND} I'll use a search query to find out where she went to school:"
DENIES = f"{FOUND} I couldn't find specific information about her school."


def count(name: str, hypothesis: str, task="support", question="", premise=EVIDENCE) -> float:
    return counts(Pair(premise, hypothesis, question, task))[name]


@pytest.mark.parametrize(
    ("name", "claim", "value"),
    [
        ("together", "Ada Lind studied in Bergen.", 0.75),
        ("together", "Ada Lind studied in Oslo.", 0.5),
        ("halves", "Ada Lind was born in Oslo, Norway.", 1 / 3),
        ("neighbours", "Ada Lind was a painter.", 0.5),
        ("missing_names", "The painter met Ivo Kast in 1930.", 3.0),
        ("denies_alone", "Ada Lind was not a painter.", 1.0),
        ("speaks", "I like Ada Lind.", 1.0),
        ("speaks", "Ada Lind likes it.", 0.0),
        ("speaks", "We like Ada Lind.", 1.0),
        ("speaks", "Ada Lind painted in World War I.", 0.0),
        ("denies_alone", "Ada Lind wasn\u2019t a painter.", 1.0),
    ],
)
def test_a_count_of_a_claim(name, claim, value):
    assert count(name, claim) == pytest.approx(value)


@pytest.mark.parametrize("task", ["support", "info_think"])
@pytest.mark.parametrize("nothing", ["\U0001f600", "?", "...", "\u2014", "_", "<>", " "])
def test_a_text_without_a_word_is_not_upheld(nothing, task):
    verdict = CountedJudge().judge_batch([Pair(EVIDENCE, nothing, SCHOOL, task)])[0]
    assert (verdict.p, verdict.label) == (0.0, False)
    assert verdict.why == "it claims nothing of its own"


def test_soft_hyphens_of_a_page_divide_no_words():
    premise = EVIDENCE.replace("Bergen", "Ber\u00adgen")
    assert count("missing_names", "Ada Lind studied in Bergen.", premise=premise) == 0.0


def test_a_claim_of_thousands_of_names_that_stand_nowhere_has_a_p():
    names = " ".join(f"Name{number}" for number in range(5000))
    verdict = CountedJudge().judge_batch([Pair(EVIDENCE, names)])[0]
    assert (verdict.p, verdict.label) == (0.0, False)


def test_words_of_the_question_are_not_counted_beyond_it():
    assert count("beyond_question", "The painter in Oslo", question="Which painter?") == 0


@pytest.mark.parametrize(
    ("name", "thought", "value"),
    [
        ("dates_missing", "She was born on May 4, 1902.", 1.0),
        ("dates_missing", "She was born on May 3, 1902, he on May 5, 1902.", 0.0),
        ("dates_found", "She was born on May 3, 1902.", 1.0),
        ("asked_is_near", SEARCHES, 1 / 3),
        ("asked_is_near", FOUND, 0.0),
        ("denied_is_near", DENIES, 0.5),
        ("denied_is_near", SEARCHES, 0.0),
        ("sought_is_near", SEARCHES, 2 / 3),
        ("sought_is_near", DENIES, 0.0),
        ("first_names", FOUND, 1.0),
        ("finds_nothing", "I'll search for her.", 1.0),
        ("finds_nothing", SEARCHES, 0.0),
        ("finds_nothing", "The results do not mention her school.", 1.0),
        ("finds_nothing", "The director is not the painter.", 0.0),
        ("finds_nothing", "Hawaii will stay a state.", 0.0),
        ("dates_found", "She was born on May 3 1902.", 1.0),
        ("dates_found", "She was born on 3 May, 1902.", 1.0),
    ],
)
def test_a_count_of_a_thought(name, thought, value):
    assert count(name, thought, "info_think", SCHOOL) == pytest.approx(value)


@pytest.mark.parametrize("text", ["", "  ", "!?", "\n\n"])
@pytest.mark.parametrize("task", ["support", "info_think"])
def test_texts_without_words_are_counted(task, text):
    assert 0 <= CountedJudge().judge_batch([Pair(text, text, text, task)])[0].p <= 1


@pytest.mark.parametrize("task", ["support", "info_think"])
def test_what_is_counted_is_what_is_weighed(task):
    assert counts(Pair("", "a", task=task)).keys() == bundled_weights()[task].weights.keys()


def test_dates_are_read_in_both_orders():
    assert dates_of("May 3, 1902 and 3 May 1902") == {(1902, "May", 3)}


@pytest.mark.parametrize(("thought", "further"), [(SEARCHES, True), (DENIES, True), (FOUND, False)])
def test_a_thought_that_goes_on(thought, further):
    assert goes_on(thought) is further


@pytest.mark.parametrize("denial", ["couldn't", "couldn\u2019t", "could not", "cannot", "didn't"])
def test_words_of_denial(denial):
    assert goes_on(f"I {denial} find her school.")


def test_what_stands_before_a_denial_is_a_finding_in_its_place():
    thought = "Ada Lind was a painter, but I couldn't find her school. She was born in Oslo."
    assert count("first_together", thought, "info_think", SCHOOL) == 1.0


def test_evidence_with_a_contraction_denies_too():
    premise = "Ada Lind wasn't a painter."
    assert count("denies_alone", "Ada Lind was not a painter.", premise=premise) == 0.0


def test_p_is_the_logistic_function_of_the_weighted_sum():
    weights = TaskWeights(threshold=0.5, bias=-1.0, weights={"words": 2.0})
    assert weights.p({"words": 0.5}) == 0.5


@pytest.mark.parametrize(("threshold", "label"), [(0.4, True), (0.6, False)])
def test_a_tasks_threshold_decides(threshold, label):
    weights = TaskWeights(threshold=threshold, bias=0.0, weights={})
    judge = CountedJudge({"support": weights})
    assert judge.judge_batch([Pair("a", "b")])[0].label is label


def test_a_supported_claim_is_upheld_and_another_is_not():
    pairs = [Pair(EVIDENCE, "Ada Lind was a painter."), Pair(EVIDENCE, "Ivo Kast won a race.")]
    assert [verdict.label for verdict in CountedJudge().judge_batch(pairs)] == [True, False]


def test_a_thought_that_denies_what_stands_there_is_less_faithful():
    said, denied = (Pair(EVIDENCE, text, SCHOOL, "info_think") for text in (FOUND, DENIES))
    p_of_said, p_of_denied = (verdict.p for verdict in CountedJudge().judge_batch([said, denied]))
    assert p_of_denied < p_of_said


@pytest.mark.parametrize("task", ["think_search", "think_answer", "correctness"])
def test_other_tasks_are_judged_by_words(task):
    pair = Pair("I need Ada Lind's school.", "Ada Lind school", task=task)
    assert CountedJudge().judge_batch([pair])[0].p == GroundingJudge().judge_batch([pair])[0].p


@pytest.mark.parametrize("task", ["support", "think_search"])
def test_verdicts_name_the_judge(task):
    assert CountedJudge().judge_batch([Pair("a", "b", task=task)])[0].judge == "counted"


def test_the_reason_has_p_and_what_is_missing():
    verdict = CountedJudge().judge_batch([Pair(EVIDENCE, "Ada Lind lived in Oslo.")])[0]
    assert verdict.why == f"p = {verdict.p:.3f}; not in the premise: 'Oslo', 'lived'"


def test_results_are_named_after_it():
    assert made_by(judges.load("counted")) == "counted"
