"""What rewards say of single steps: one entry a step, whose mean is the value; what a mix makes of it."""

import lab
import pytest

from faithful_search.inference.transformers import TransformersGenerator
from faithful_search.rewards import (
    Adaptive,
    Citation,
    Correctness,
    EvidenceSensitivity,
    Format,
    InfoThink,
    Mix,
    Score,
    Shuffled,
    StepFormat,
    ThinkAnswer,
    ThinkSearch,
    ToolUse,
)
from faithful_search.trajectory import Evidence, Issue, Step, ToolCall, Trajectory

LIMA = Evidence("The capital of Peru is Lima.", "Peru", "E1")
RIVER = Evidence("The Rimac flows through Lima.", "Lima", "E2")
EPISODE = Trajectory(
    steps=(
        Step("The capital of Peru.", ToolCall("search", {"query": "capital of Peru"}), (LIMA,)),
        Step("Lima it is.", ToolCall("search", {"query": "capital of Peru"}), (RIVER,), helpful=True, refs=("E1",)),
        Step("The Rimac flows there.", helpful=True, refs=("E9",), answer="Rimac"),
    ),
    question="Which river flows through the capital of Peru?",
    answer="Rimac",
    answers=("Rimac",),
    dialect="pou",
    id="a",
)


@pytest.mark.parametrize(
    ("reward", "steps"),
    [
        (Citation(), (None, 1.0, -1.0)),
        (InfoThink(), (None, 1.0, 1.0)),
        (ThinkSearch(), (1.0, 0.0, None)),
        (ThinkAnswer(), (None, None, 1.0)),
        (Format(), (1.0, 1.0, 1.0)),
        (StepFormat(), (1.0, 1.0, 1.0)),
        (ToolUse("repeated"), (0.0, 1.0, None)),
        (ToolUse("uncited"), (0.0, 1.0, None)),
        (Correctness(), ()),
        (Shuffled(Citation()), ()),  # of another rollout's steps
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_steps_by_hand(reward, steps):
    score = reward.score(EPISODE)
    assert score.steps == steps
    given = [step for step in steps if step is not None]
    assert not given or score.value == pytest.approx(sum(given) / len(given))


def test_a_shuffled_score_is_measured_as_the_reward_that_gave_it():
    shuffled, own = Shuffled(Citation()), Citation()
    assert shuffled.measure(shuffled.score(EPISODE)) == own.measure(own.score(EPISODE)) == 0.5


def test_a_probed_steps_move_is_its_entry():
    policy = TransformersGenerator(lab.sharp(lab.model()), lab.tokenizer())
    score = EvidenceSensitivity(budget=None).bind(policy=policy).score(EPISODE)
    (probed,) = score.parts["steps"]
    assert score.steps == (None, score.value, None) and probed["step"] == 2 and score.value != 0


def test_a_broken_form_is_put_down_to_the_step_that_broke_it():
    broken = Trajectory(
        (EPISODE.steps[0], Step(None, ToolCall("search")), EPISODE.steps[2]), answer="Rimac", dialect="pou"
    )
    assert Format().score(broken).steps == (None, 0.0, None)
    assert StepFormat().score(broken).steps == (1.0, 0.0, 1.0)
    outside = Trajectory(EPISODE.steps, answer="Rimac", dialect="pou", issues=(Issue("text_outside", "text outside"),))
    assert Format().score(outside).steps == (None, None, 0.0)
    assert Mix(parts={"citation": Citation()}).score(broken).credit == ((0.0, -1.0, 0.0), 0.0)


def test_what_a_mix_credits_adds_up_to_its_value():
    """0.5 of citations (+1, -1 of two) and of α = 0.25 on the answer, which is the whole's."""
    parts = {"citation": Citation(), "answer": Adaptive(ThinkSearch(), Correctness(), fixed=0.25)}
    score = Mix(parts=parts, gate=None).score(EPISODE)
    steps, outcome = score.credit
    assert steps == pytest.approx((0.5 * 0.25 * 0.5, 0.5 * 0.5, 0.5 * -0.5)) and outcome == pytest.approx(0.5 * 0.75)
    assert score.value == pytest.approx(sum(steps) + outcome)


def test_without_steps_a_value_or_a_right_answer_there_is_no_credit_to_steps():
    assert Correctness().score(EPISODE).credit == ((), 1.0)
    assert Mix(parts={"correctness": Correctness()}, gate=None).score(EPISODE).credit == ((), 1.0)
    assert Score(None, "silent").credit == ((), 0.0)
    parts = {"citation": Citation(), "correctness": Correctness()}
    mix = Mix(parts=parts, gate=None, only_right=("citation",), weights={"citation": 1.0, "correctness": 1.0})
    wrong = Trajectory(EPISODE.steps, EPISODE.question, "Lima", dialect="pou", answers=("Rimac",))
    assert mix.score(EPISODE).credit == ((0.0, 0.5, -0.5), 1.0) and mix.score(wrong).credit == ((), 0.0)
