"""Several rewards as one: the sum, the gate, alpha, the ablations, and what counts on right answers
only.
"""

import math
from dataclasses import dataclass, field

import msgspec
import pytest
from agent_rows import CountingJudge
from stub_judges import Down

from faithful_search import rewards
from faithful_search.dialects import load, parse
from faithful_search.errors import ConfigError
from faithful_search.judges import Pair
from faithful_search.rewards import (
    Adaptive,
    Citation,
    Correctness,
    EvidenceSensitivity,
    Mix,
    MixState,
    Reward,
    Score,
)
from faithful_search.rewards.mix import _warn_of_texts
from faithful_search.trajectory import Evidence, Step, ToolCall, Trajectory


@dataclass(frozen=True)
class Meta(Reward):
    """The score that a trajectory's `meta` holds under `key`."""

    key: str = "x"
    name: str = field(default="meta", kw_only=True)

    def score(self, trajectory: Trajectory) -> Score:
        value = trajectory.meta[self.key]
        return Score(None, "judge down", {"abstained": True}) if value == "down" else Score(value)


def row(cite=0.0, pt=0.0, ans=0.0, anc=0.0, gate=1.0) -> Trajectory:
    return Trajectory(meta={"cite": cite, "pt": pt, "ans": ans, "anc": anc, "gate": gate})


def paper(only_right=(), **adaptive) -> Mix:
    answer = Adaptive(
        process=Meta("ans", name="process"), outcome=Meta("anc", name="outcome"), **adaptive
    )
    parts = {"citation": Meta("cite"), "pt": Meta("pt"), "answer": answer}
    return Mix(parts=parts, gate=Meta("gate", name="gate"), only_right=only_right)


SEARCH = Step(
    think="p", call=ToolCall("s", {"query": "q"}), evidence=(Evidence("Paris, France", "T", "E1"),)
)
ANSWERED = Trajectory((Step(think="", answer="x"),), answer="x", answers=("x",))


def test_the_papers_sum_by_hand():
    mix = paper(tau=0.5, kappa=10.0)
    rows = [row(cite=1.0, pt=0.4, ans=1.0, anc=0.0)]
    (score,) = mix.combine(mix.components(rows), MixState(ema=0.5))  # alpha = sigmoid(0) = 1/2
    assert mix.score_batch(rows) == mix.combine(mix.components(rows), mix.state0)
    assert score.value == pytest.approx((1.0 + 0.4 + 0.5) / 3)
    assert score.parts == {
        "gate": 1.0,
        "citation": 1.0,
        "pt": 0.4,
        "process": 1.0,
        "outcome": 0.0,
        "alpha": 0.5,
    }


def test_an_invalid_format_is_minus_one_whatever_the_parts_are():
    scores = paper().score_batch(
        [row(cite=1.0, pt=1.0, ans=1.0, anc=1.0, gate=0.5), row(anc="down", gate=0.0)]
    )
    assert [score.value for score in scores] == [-1.0, -1.0]
    assert Mix(parts={"a": Meta("cite")}, gate=None).score(
        row(cite=0.3, gate=0.0)
    ).value == pytest.approx(0.3)


@pytest.mark.parametrize(
    ("before", "outcomes", "ema"),
    [
        (0.4, [1.0, 0.0, 1.0], 0.9 * 0.4 + 0.1 * 2 / 3),
        (0.4, [], 0.4),
        (
            None,
            [1.0, 0.0, 0.0, 1.0, None, 1.0, 1.0, 1.0, 1.0, 1.0],
            7 / 9,
        ),  # the first batch's; one of ten is open
        (None, [None], None),
        (0.4, [1.0, 1.0, None], 0.4),  # only what was easy has a value
        (0.4, [1.0] * 9 + [None], 0.9 * 0.4 + 0.1),
    ],
)
def test_the_ema_by_hand(before, outcomes, ema):
    state = paper(beta=0.9).advance(MixState(before, 7), outcomes)
    assert state == MixState(None if ema is None else pytest.approx(ema), 8)
    assert Mix(parts={"a": Meta()}).advance(MixState(before, 7), outcomes, step=5) == MixState(
        before, 5
    )


def test_alpha_falls_as_correctness_rises_and_counts_the_batch_itself():
    alphas = [paper().alpha(MixState(ema)) for ema in (None, 0.0, 0.25, 0.5, 0.75, 1.0)]
    assert alphas == sorted(alphas, reverse=True)
    assert alphas[0] == alphas[1] == pytest.approx(0.9933, abs=1e-4)
    steep = paper(kappa=1e9)  # without overflow
    assert (steep.alpha(MixState(0.0)), steep.alpha(MixState(1.0))) == (1.0, 0.0)
    mix = paper(tau=0.5, kappa=10.0)
    components = mix.components([row(anc=1.0), row(anc=0.0), row(anc="down")])
    assert mix.outcomes(components) == [1.0, 0.0, None]
    state = mix.advance(MixState(0.4), [1.0, 0.0])
    told = mix.combine(components, state)[0].parts["alpha"]
    assert told == mix.alpha(state) == pytest.approx(1 / (1 + math.exp(-10 * (0.5 - state.ema))))
    assert rewards.pou_mix().state0 == MixState(None, 0)
    assert rewards.pou_mix(alpha_start=0.0).state0 == MixState(0.0, 0)


@pytest.mark.parametrize("part", ["cite", "pt", "ans", "anc", "gate"])
def test_a_part_that_abstained_empties_its_row_and_no_other(part):
    empty, full = paper().score_batch([row(**{part: "down"}), row()])
    assert empty.value is None
    assert "judge down" in empty.why
    assert empty.parts["abstained"] is True
    assert full.value == 0.0
    assert "abstained" not in full.parts
    score = rewards.answer_only_mix().score(
        msgspec.structs.replace(ANSWERED, answers=())
    )  # it does not apply
    assert score.value is None
    assert "correctness: no gold" in score.why
    assert "abstained" not in score.parts


def test_the_ablations_are_configurations():
    two_steps = EvidenceSensitivity(budget=2)
    assert rewards.pou_mix(sensitivity=two_steps).parts["evidence_sensitivity"] == two_steps
    assert list(rewards.pou_mix(sensitivity=False).parts) == ["citation", "answer"]
    assert rewards.pou_mix(alpha=0.5).alpha(MixState(0.9)) == 0.5
    without_support = rewards.pou_mix(alpha=0.0, sensitivity=False, paper=True)
    assert "answer_support" not in without_support.components([ANSWERED])[0]
    assert without_support.score(ANSWERED).value == pytest.approx(0.5)
    assert rewards.answer_only_mix().score(ANSWERED).value == 1.0
    kept = Mix(
        parts={"a": Meta("cite"), "b": Meta("pt")}, weights={"a": 1 / 3, "b": 1 / 3}, gate=None
    )
    assert kept.score(row(cite=1.0, pt=1.0)).value == pytest.approx(2 / 3)


def test_a_part_whose_weight_is_still_zero_may_abstain():
    parts, weights = {"em": Meta("anc"), "think": Meta("ans")}, {"em": 1.0, "think": 0.05}
    mix = Mix(
        parts=parts,
        weights=weights,
        warmup=rewards.Warmup(("think",), start=100, end=150),
        gate=None,
    )
    both, down = mix.components([row(anc=1.0, ans=1.0)]), mix.components([row(anc=1.0, ans="down")])
    values = [
        [mix.combine(one, MixState(step=step))[0].value for step in (50, 125, 999)]
        for one in (both, down)
    ]
    assert values == [pytest.approx([1.0, 1.025, 1.05]), [1.0, None, None]]


@pytest.mark.parametrize(
    "wrap", [rewards.Shuffled, lambda it: Mix({"one": it}), lambda it: Mix({"one": Adaptive(it)})]
)
def test_needs_and_resources_pass_through_wrappers(wrap):
    policy = object()
    for held in (wrap, lambda one: Mix({"inner": wrap(one)})):
        asked, quiet, probed = (
            held(rewards.SelfRubric()),
            held(Citation()),
            held(EvidenceSensitivity()),
        )
        assert asked.needs_policy
        assert asked.samples_policy
        assert asked.covers("search_r1")
        assert not quiet.needs_policy
        assert not quiet.samples_policy
        assert not quiet.covers("search_r1")
        assert probed.needs_policy
        assert not probed.samples_policy
        (found,) = [
            one
            for one in probed.bind(policy=policy).within()
            if isinstance(one, EvidenceSensitivity)
        ]
        assert found.policy is policy
    assert rewards.pou_mix().needs_policy
    assert not rewards.answer_only_mix().needs_policy
    assert rewards.pou_mix().covers("pou")  # as all its parts do
    assert not Mix(parts={"outcome": Meta()}, gate=Citation()).covers("search_r1")


def test_rewards_are_found_by_file_name_and_a_right_answer_by_its_part():
    assert rewards.load("citation") is Citation
    assert "mix" in rewards.names()
    with pytest.raises(ConfigError, match="citation"):
        rewards.load("citations")
    assert rewards.pou_mix(paper=True).outcome_name == "correctness"
    assert rewards.answer_only_mix().outcome_name == "correctness"
    assert rewards.pou_mix().outcome_name == "source_gated"
    assert paper().outcome_name == "outcome"
    assert rewards.veritas_mix().outcome_name == "exact_match"
    assert Mix(parts={"a": Citation()}).outcome_name is None
    assert Mix(parts={"a": Correctness(), "b": Correctness("f1")}).outcome_name is None


# Process rewards on right answers only


@pytest.mark.parametrize(
    ("names", "made", "value"),
    [
        (("citation",), row(cite=1.0, pt=0.4, ans=1.0, anc=0.0), (0.0 + 0.4 + 0.5) / 3),
        (
            ("citation", "pt"),
            row(cite=-1.0, pt=-0.4, ans=1.0, anc=0.0),
            0.5 / 3,
        ),  # nor is anything lost
        (("answer",), row(cite=1.0, pt=0.4, ans=0.2, anc=1.0), (1.0 + 0.4 + 0.1 + 0.5) / 3),
        (("answer",), row(ans=1.0, anc=0.6), 0.3 / 3),  # the outcome itself still counts
        (("citation", "pt", "answer"), row(cite=1.0, pt=0.4, ans=1.0, anc=0.99), 0.495 / 3),
        (
            ("citation",),
            row(cite="down", pt=0.4, anc=0.0),
            0.4 / 3,
        ),  # 0 whatever the judge would have said
        (("answer",), row(cite=1.0, ans="down", anc=0.0), 1.0 / 3),
        (("citation",), row(cite="down", anc=1.0), None),
        (("citation",), row(cite=1.0, anc="down"), None),
        (("citation",), row(cite=1.0, anc=1.0, gate=0.0), -1.0),
    ],
)
def test_parts_that_count_on_right_answers_only_by_hand(names, made, value):
    mix = paper(only_right=names)
    (score,) = mix.combine(mix.components([made]), MixState(ema=0.5))  # alpha is 1/2
    assert score.value == (None if value is None else pytest.approx(value))
    assert score.parts["citation"] == (
        None if made.meta["cite"] == "down" else made.meta["cite"]
    )  # as it was measured


def test_the_outcome_may_be_a_part_of_its_own_and_count_as_absent():
    mix = Mix(
        {"em": Correctness(), "cite": Meta("cite")},
        gate=None,
        only_right=("cite",),
        absent={"em": 0.0},
    )
    rows = [
        Trajectory(answer=said, answers=gold, meta={"cite": 1.0})
        for said, gold in (("a", ("a",)), ("a", ("b",)))
    ]
    assert [score.value for score in mix.score_batch([*rows, Trajectory(meta={"cite": 1.0})])] == [
        1.0,
        0.0,
        0.0,
    ]


def test_proof_of_use_with_its_process_on_right_answers_only():
    last = Step(think="so", helpful=True, refs=("E1",), answer="Paris")
    right, wrong = (
        Trajectory((SEARCH, last), answer="Paris", answers=(gold,)) for gold in ("Paris", "Lyon")
    )
    mix = rewards.pou_mix(sensitivity=False, alpha=0.5)
    assert [score.value for score in mix.score_batch([right, wrong])] == [1.0, 0.0]
    paper = rewards.pou_mix(sensitivity=False, alpha=0.5, paper=True)
    assert paper.score(wrong).value == pytest.approx((1.0 + 0.5) / 2)


def test_proof_of_use_needs_evidence_that_holds_the_answer_by_default():
    last = Step(think="so", helpful=False, answer="Paris")  # right, and cites nothing
    right = Trajectory((SEARCH, last), answer="Paris", answers=("Paris",))
    assert rewards.pou_mix(sensitivity=False, alpha=0.5).score(right).value == 0.0
    paper = rewards.pou_mix(sensitivity=False, alpha=0.5, paper=True)
    assert paper.score(right).value == pytest.approx((1.0 + 0.5) / 2)


@pytest.mark.parametrize("setting", [{"alpha": 0.5}, {"correctness": Correctness()}])
def test_a_whole_answer_takes_no_settings_of_its_parts(setting):
    with pytest.raises(ConfigError, match="answer is all of R_a"):
        rewards.pou_mix(answer=Adaptive(), **setting)


@pytest.mark.parametrize(
    ("mix", "bounds"),
    [
        (rewards.pou_mix(), (-1.0, 1.0)),
        (rewards.answer_only_mix(), (-1.0, 1.0)),
        (rewards.veritas_mix(), (0.0, 1.07)),
        (rewards.pokee_mix(metric="em"), (0.0, 1.1)),
        (Mix({"citation": Citation()}, {"citation": -0.5}, gate=None), (-0.5, 0.5)),
    ],
)
def test_a_mix_knows_between_what_its_values_lie(mix, bounds):
    """Intervals end there; a value above 1 had one that ended below it."""
    assert mix.bounds == pytest.approx(bounds)


@pytest.mark.parametrize("weights", [{"info_think": -1}, {"exact_match": math.nan}])
def test_weights_of_veritas_are_not_negative(weights):
    with pytest.raises(ConfigError, match="weights are 0"):
        rewards.veritas_mix(**weights)


@pytest.mark.parametrize(
    ("given", "gated", "centred", "on_right"),
    [
        ({}, True, True, True),
        ({"paper": True}, False, False, False),
        ({"correctness": Correctness()}, False, True, True),
        ({"sensitivity": EvidenceSensitivity()}, True, False, True),
        ({"process_on_right": False}, True, True, False),
        ({"paper": True, "sensitivity": EvidenceSensitivity(centre=True)}, False, True, False),
        ({"paper": True, "process_on_right": True}, False, False, True),
    ],
)
def test_the_papers_own_form_is_one_word_away(given, gated, centred, on_right):
    mix = rewards.pou_mix(**given)
    assert isinstance(mix.parts["answer"].outcome, rewards.SourceGated) == gated
    assert mix.parts["evidence_sensitivity"].centre == centred
    assert mix.only_right == (tuple(mix.parts) if on_right else ())


def test_evidence_in_the_agents_own_text_is_marked_and_warned_of_once(caplog):
    _warn_of_texts.cache_clear()
    last = Step(think="so", helpful=True, refs=("E1",), answer="Paris")
    text = load("pou").render(Trajectory((SEARCH, last)))
    told, own = rewards.answer_only_mix().score_batch([parse(text, "pou"), ANSWERED])
    rewards.answer_only_mix().score(parse(text, "pou"))
    assert told.parts["evidence_in_text"] is True
    assert "evidence_in_text" not in own.parts
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "responses='messages'" in caplog.text


# PokeeResearch: what fools comparisons of strings does not fool a judge that reads

# (question, gold, answer, whether it is right): the cases of the paper's figure 3, in our words
CASES = [
    (
        "When was Nora Fell born?",
        "Nora Fell was born on 3 May 1871",
        "Nora Fell was born on 4 May 1871",
        False,
    ),
    ("Where does the ferry end?", "Port Ellin", "Port Ellin, on the island of Sark Holm", True),
    ("How many keepers were there?", "12", "a dozen", True),
    ("Who built the pier?", "Ivo Kast", "ivo kast.", True),
]
ONE_WORD_WRONG, *_, THE_SAME = CASES


def reader() -> CountingJudge:
    """Knows which answers mean the same."""
    right = [answer for _, _, answer, right in CASES if right]
    return CountingJudge(lambda pair: pair.hypothesis in right)


def answered(case, think: str | None = "so") -> Trajectory:
    question, gold, answer, _ = case
    return Trajectory(
        (Step(think, answer=answer),), question, answer, "answered", "pokee", answers=(gold,)
    )


def values(mix) -> list[float | None]:
    return [score.value for score in mix.score_batch([answered(case) for case in CASES])]


def test_only_the_judge_tells_right_from_wrong():
    judge = reader()
    assert values(rewards.pokee_mix(judge, format_weight=0)) == [
        float(right) for *_, right in CASES
    ]
    by_words = values(rewards.pokee_mix(metric="f1", format_weight=0))
    assert by_words[0] > 0.8  # the wrong one above a right one
    assert by_words[2] == 0
    assert by_words[0] > by_words[1]
    assert values(rewards.pokee_mix(metric="em", format_weight=0)) == [0.0, 0.0, 0.0, 1.0]
    asked = [Pair(gold, answer, question, "correctness") for question, gold, answer, _ in CASES[:3]]
    assert judge.calls == 1  # not about the exact match
    assert judge.asked == asked
    assert values(rewards.pokee_mix(Down())) == [None, None, None, 1.1]


def test_a_valid_format_earns_a_little_with_a_right_answer_and_without():
    mix = rewards.pokee_mix(reader())
    nothing = Trajectory((Step("so"),), dialect="pokee", answers=("x",))
    rows = [answered(THE_SAME), answered(THE_SAME, None), answered(ONE_WORD_WRONG), nothing]
    assert [score.value for score in mix.score_batch(rows)] == pytest.approx([1.1, 1.0, 0.1, 0.0])
    steps = (
        Step("so", answer="Ivo Kast"),
        Step("no", verified=False),
    )  # never upheld: no valid format
    left = Trajectory(
        steps, "Who built the pier?", "Ivo Kast", "turn_limit", "pokee", answers=("Ivo Kast",)
    )
    assert rewards.pokee_mix(metric="em").score(left).value == 1.0
    for given in (
        {"metric": "judge"},
        {"judge": reader(), "metric": "em"},
        {"metric": "em", "format_weight": -1},
    ):
        with pytest.raises(ConfigError):
            rewards.pokee_mix(**given)
