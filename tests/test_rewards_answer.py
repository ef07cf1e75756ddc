"""Answer support and correctness."""

import doctest

import pytest

from faithful_search.errors import ConfigError, JudgeError
from faithful_search.judges import Pair, Verdict
from faithful_search.rewards import answer_support, correctness
from faithful_search.rewards.answer_support import AnswerSupport
from faithful_search.rewards.correctness import Correctness
from faithful_search.trajectory import Evidence, Step, ToolCall, Trajectory

EVIDENCE = (
    Evidence("Paris is the capital of France.", "France", "E1"),
    Evidence("Rome is in Italy.", "Italy", "E2"),
)


def trajectory(answer, helpful=True, refs=("E1",), **more) -> Trajectory:
    last = Step(think="", helpful=helpful, refs=refs, answer=answer)
    return Trajectory(
        (Step(think="", call=ToolCall("s"), evidence=EVIDENCE), last), question="q", answer=answer, **more
    )


class Recorder:
    """A judge that keeps what it was asked and says yes to what holds the word 'good'."""

    name = "recorder"

    def __init__(self):
        self.calls: list[list[Pair]] = []

    def judge_batch(self, pairs):
        self.calls.append(list(pairs))
        return [Verdict(0.5, "good" in pair.hypothesis) for pair in pairs]


class Down:
    name = "down"

    def judge_batch(self, pairs):
        raise JudgeError("no route to the judge")


def test_doctests():
    assert doctest.testmod(answer_support).failed == 0
    assert doctest.testmod(correctness).failed == 0


@pytest.mark.parametrize(
    ("made", "value", "applies"),
    [
        (trajectory("Paris"), 1.0, True),
        (trajectory("France"), 1.0, True),  # titles are evidence
        (trajectory("Rome"), 0.0, True),  # retrieved, not cited
        (trajectory("Rome", refs=("E1", "E2")), 1.0, True),
        (trajectory(None), 0.0, True),
        (trajectory("Paris", helpful=False, refs=()), 0.0, True),  # valid, but cites nothing
        (trajectory("Paris", refs=("E9",)), 0.0, False),
        (trajectory("Paris", helpful=False), 0.0, False),
        (Trajectory((Step(answer="Paris"),), answer="Paris"), 0.0, False),
        (Trajectory(), 0.0, False),
    ],
)
def test_support_by_hand(made, value, applies):
    score = AnswerSupport().score(made)
    assert (score.value, score.parts["applies"]) == (value, applies)
    assert bool(score.why) == (value < 1)


def test_the_share_of_claims_and_one_question_to_the_judge_for_a_batch():
    judge = Recorder()
    rows = [trajectory("This is good. That is bad. Also good."), trajectory("x", refs=("E9",)), trajectory("bad")]
    scores = AnswerSupport(judge).score_batch(rows)
    assert [score.value for score in scores] == [pytest.approx(2 / 3), 0.0, 0.0]
    assert scores[0].parts["claims"] == 3 and "That is bad." in scores[0].why
    assert len(judge.calls) == 1 and len(judge.calls[0]) == 4
    assert judge.calls[0][0] == Pair("France\nParis is the capital of France.", "This is good.", "q")


def test_a_judge_that_is_down_makes_only_the_rows_that_need_it_abstain():
    asked, not_asked = AnswerSupport(Down()).score_batch([trajectory("Paris"), trajectory("Paris", refs=("E9",))])
    assert asked.value is None and asked.parts["abstained"] and "no route" in asked.why
    assert not_asked.value == 0.0


@pytest.mark.parametrize(
    ("reward", "answer", "value"),
    [
        (Correctness(), "the Louvre!", 1.0),
        (Correctness(), "Louvre museum", 0.0),
        (Correctness("f1"), "Louvre museum", pytest.approx(2 / 3)),
        (Correctness("f1"), "museum of art", 0.0),
        (Correctness(), None, 0.0),
        (Correctness("f1"), "  ", 0.0),
        (Correctness("judge", judge=Recorder()), "good", 1.0),
        (Correctness("judge", judge=Recorder()), "else", 0.0),
    ],
)
def test_correctness_by_hand(reward, answer, value):
    assert reward.score(Trajectory(answer=answer, answers=("Louvre", "Musée du Louvre"))).value == value


def test_without_gold_answers_there_is_no_value_and_it_is_not_an_abstention():
    score = Correctness().score(Trajectory(answer="x"))
    assert score.value is None and "gold" in score.why and "abstained" not in score.parts


def test_the_correctness_judge_is_asked_once_and_only_about_answers():
    judge = Recorder()
    gold = {"answers": ("a", "b")}
    rows = [
        Trajectory(answer="good", **gold),
        Trajectory(**gold),
        Trajectory(answer="x"),
        Trajectory(answer="y", **gold),
    ]
    values = [score.value for score in Correctness("judge", judge=judge).score_batch(rows)]
    assert values == [1.0, 0.0, None, 0.0]
    assert [pair.hypothesis for call in judge.calls for pair in call] == ["good", "y"] and len(judge.calls) == 1
    down = Correctness("judge", judge=Down()).score_batch(rows)
    assert [score.parts.get("abstained", False) for score in down] == [True, False, False, True]


@pytest.mark.parametrize("bad", [{"metric": "bleu"}, {"metric": "judge"}, {"judge": Down()}])
def test_contradicting_settings_are_refused(bad):
    with pytest.raises(ConfigError):
        Correctness(**bad)
