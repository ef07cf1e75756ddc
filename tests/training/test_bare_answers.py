"""Supervised training on answers alone, and on what a policy without tools wrote."""

import pytest

from faithful_search import dialects
from faithful_search.coldstart.bare_answers import bare_answers
from faithful_search.coldstart.filtering import accept, reject
from faithful_search.errors import ConfigError, DataError
from faithful_search.recipes import sft
from faithful_search.rewards import Format
from faithful_search.tasks import Task
from faithful_search.trajectory import Step, ToolCall, Trajectory

TASKS = [Task("a", "Who?", ("Ada", "Lovelace")), Task("b", "Where?", ("Oslo",)), Task("c", "Why?")]
R1 = dialects.load("r1")


def test_an_episode_is_the_first_gold_answer():
    assert [episode.answer for episode in bare_answers(TASKS, 2, R1)] == ["Ada", "Oslo"]


def test_it_is_written_as_the_dialect_writes():
    [episode] = bare_answers(TASKS, 1, R1)
    assert episode.text == "<think></think>\n<answer>Ada</answer>"


def test_it_has_a_valid_form():
    [episode] = bare_answers(TASKS, 1, R1)
    assert Format().score(episode).value == 1.0


def test_copies_have_ids_of_their_own():
    assert [episode.id for episode in bare_answers(TASKS, 4, R1)] == ["a", "b", "a#1", "b#1"]


def test_questions_without_an_answer_cannot_be_learnt():
    with pytest.raises(DataError, match="none of 1 questions has a gold answer"):
        bare_answers(TASKS[2:], 1, R1)


def test_the_filter_lets_them_pass():
    accepted, reasons = accept(bare_answers(TASKS, 2, R1), min_steps=1)
    assert (len(accepted), reasons) == (2, {})


def answering(dialect, *steps):
    return Trajectory(
        steps=(*steps, Step(think="a", answer="Ada")),
        question="Who?",
        answer="Ada",
        answers=("Ada",),
        dialect=dialect,
    )


@pytest.mark.parametrize(
    ("trajectory", "rejected"),
    [
        (answering("r1"), None),
        (answering("search_r1"), "ungrounded"),
        (answering("r1", Step(think="b", call=ToolCall("search", {"query": "q"}))), "ungrounded"),
    ],
)
def test_evidence_is_asked_of_those_who_search(trajectory, rejected):
    assert reject(trajectory, min_steps=1) == rejected


def test_a_dialect_that_searches_is_refused():
    with pytest.raises(ConfigError, match="'pou' asks for one: give --dialect openai or r1"):
        sft.check(["--source_kind", "answers"])
