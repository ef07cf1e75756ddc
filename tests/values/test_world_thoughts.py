"""Thoughts about the bundled world, read and judged by its facts."""

import pytest

from faithful_search.distil.world_pairs import world_pairs
from faithful_search.judges import Pair
from faithful_search.measure.metrics import load
from faithful_search.rewards import ThinkAnswer
from faithful_search.tasks import load_tasks
from faithful_search.trajectory import Step, Trajectory
from faithful_search.world import Asked, bundled_world
from faithful_search.world.facts import FactsJudge
from faithful_search.world.thoughts import StatedFact, read_thought

TOKYO = "Ministers of Japan work in Tokyo, the city from which the land is governed."
JAPANESE = "People in Japan speak Japanese, and the laws of the country are written in it."
RESPONSE = f"Japan\n{TOKYO}\n\nJapan\n{JAPANESE}"
QUESTION = "Which city is the capital of the country where Mount Aso stands?"


def judged(task, premise, hypothesis, question=QUESTION):
    (verdict,) = FactsJudge().judge_batch([Pair(premise, hypothesis, question, task)])
    return verdict.label


@pytest.mark.parametrize(
    ("text", "states"),
    [
        ("The capital of Japan is Tokyo. That is the answer.", [("Japan", "capital", "Tokyo")]),
        ("I need the country of Rome. The capital of Chad is Oslo.", [("Chad", "capital", "Oslo")]),
        ("The river of W. B. Yeats is the Oder. I try.", [("W. B. Yeats", "river", "the Oder")]),
        ("The capital of Japan is Tokyo. It is large.", [("Japan", "capital", "Tokyo")]),
        ("The colour of Japan is red.", []),
        ("I need the capital of Japan.", []),
    ],
)
def test_stated_facts_are_read(text, states):
    expected = tuple(
        StatedFact(Asked(subject, relation), object) for subject, relation, object in states
    )
    assert read_thought(text, bundled_world()).states == expected


def test_what_is_missing_is_read():
    thought = read_thought("Nothing on the capital of Japan. I search again.", bundled_world())
    assert thought.misses == (Asked("Japan", "capital"),)


def test_the_conclusion_is_read():
    thought = "The capital of Japan is Tokyo. So the answer is Rome and Tokyo."
    assert read_thought(thought, bundled_world()).answer == "Rome and Tokyo"


def test_other_sentences_are_the_rest():
    thought = "Now I need the capital of Japan. It must be large."
    assert read_thought(thought, bundled_world()).rest == "Now  It must be large."


@pytest.mark.parametrize(
    ("thought", "label"),
    [
        ("The capital of Japan is Tokyo. That is the answer.", True),
        ("The country of Mount Aso is Japan. The capital of Japan is Tokyo.", True),
        ("Nothing on the capital of Chad. I search again.", True),
        ("The capital of Japan is Kyoto. That is the answer.", False),
        ("The capital of Chad is N'Djamena. That is the answer.", False),
        ("Nothing on the capital of Japan. I search again.", False),
        ("I need the capital of Japan.", False),
        ("I can answer now.", False),
        ("Well, Tokyo it is.", None),
    ],
)
def test_thoughts_are_judged_by_what_was_returned(thought, label):
    assert judged("info_think", RESPONSE, thought) is label


def test_every_pair_made_of_the_world_is_judged_as_it_was_made():
    rows = world_pairs(limit=150, swap=False)
    labels = [judged("info_think", row.premise, row.hypothesis, row.question) for row in rows]
    assert labels == [row.label for row in rows]


@pytest.mark.parametrize(
    ("thought", "answer", "question", "label"),
    [
        ("The capital of Japan is Tokyo. That is the answer.", "tokyo", QUESTION, True),
        ("The capital of Chad is Rome. That is the answer.", "Rome", QUESTION, True),
        ("The capital of Japan is Tokyo.", "Japan", QUESTION, False),
        ("The country of Mount Aso is Japan.", "Japan", QUESTION, False),
        ("I can answer now.", "Tokyo", QUESTION, False),
        ("It is Tokyo, I think.", "Tokyo", QUESTION, None),
        ("So the answer is Rome and Tokyo.", "Rome and Tokyo", "Two at once?", True),
        ("The capital of Japan is Tokyo.", "Tokyo", "Two at once?", False),
    ],
)
def test_answers_follow_from_what_the_thought_arrives_at(thought, answer, question, label):
    assert judged("think_answer", thought, answer, question) is label


@pytest.mark.parametrize(
    ("thought", "call", "label"),
    [
        ("First I need the capital of Japan.", "capital of Japan", True),
        ("First I need the capital of Japan.", "Japan capital", True),
        ("Nothing on the capital of Japan. I search again.", "capital of Japan", True),
        ("I need the capital of Chad.", "capital of Japan", False),
        ("The capital of Japan is Tokyo.", "capital of Japan", False),
        ("Japan must have one.", "capital of Japan", None),
        ("I need the capital of Japan.", "who rules there", None),
    ],
)
def test_calls_follow_from_what_the_thought_looks_for(thought, call, label):
    assert judged("think_search", thought, call) is label


def test_results_of_the_facts_are_named_by_them():
    assert list(load("info_think_faithfulness", FactsJudge())) == ["info_think_facts"]


def test_a_reward_asks_the_facts():
    task = load_tasks("world", "test", limit=1)[0]
    steps = (Step("I can answer now.", answer=task.answers[0]),)
    trajectory = Trajectory(steps, task.question, task.answers[0])
    (score,) = ThinkAnswer(FactsJudge()).score_batch([trajectory])
    assert score.value == 0.0
