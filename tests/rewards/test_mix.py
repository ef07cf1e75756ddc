import json
import math
from dataclasses import dataclass
from typing import ClassVar

import pytest

import faithful_search.rewards as rewards
from faithful_search.errors import ConfigError
from faithful_search.rewards.adaptive import Adaptive, MixState, sigmoid
from faithful_search.rewards.answer_support import AnswerSupport
from faithful_search.rewards.base import Reward, Score
from faithful_search.rewards.citation import Citation
from faithful_search.rewards.correctness import Correctness
from faithful_search.rewards.evidence_sensitivity import EvidenceSensitivity
from faithful_search.rewards.format import Format
from faithful_search.rewards.mix import Mix
from faithful_search.rewards.warmup import Warmup
from faithful_search.trajectory import Evidence, Step, ToolCall, Trajectory


@dataclass(frozen=True)
class Meta(Reward):
    """The score that a trajectory's `meta` holds under `key`."""

    key: str = "x"
    name: ClassVar[str] = "meta"

    def score(self, trajectory: Trajectory) -> Score:
        value = trajectory.meta[self.key]
        return Score(None, "judge down", {"abstained": True}) if value == "down" else Score(value)


class Process(Meta):
    name: ClassVar[str] = "process"


class Outcome(Meta):
    name: ClassVar[str] = "outcome"


class Gate(Meta):
    name: ClassVar[str] = "gate"


def row(cite=0.0, pt=0.0, ans=0.0, anc=0.0, gate=1.0) -> Trajectory:
    return Trajectory(meta={"cite": cite, "pt": pt, "ans": ans, "anc": anc, "gate": gate})


def paper(**adaptive) -> Mix:
    answer = Adaptive(process=Process("ans"), outcome=Outcome("anc"), **adaptive)
    return Mix(parts={"citation": Meta("cite"), "pt": Meta("pt"), "answer": answer}, gate=Gate("gate"))


def test_the_papers_sum_by_hand():
    mix = paper(tau=0.5, kappa=10.0)
    state = MixState(ema=0.5)  # alpha = sigmoid(0) = 1/2
    rows = [row(cite=1.0, pt=0.4, ans=1.0, anc=0.0)]
    (score,) = mix.combine(mix.components(rows), state)
    assert mix.score_batch(rows) == mix.combine(mix.components(rows), mix.state0)
    assert score.value == pytest.approx((1.0 + 0.4 + 0.5) / 3)
    assert score.parts == {"gate": 1.0, "citation": 1.0, "pt": 0.4, "process": 1.0, "outcome": 0.0, "alpha": 0.5}


def test_an_invalid_format_is_minus_one_whatever_the_parts_are():
    scores = paper().score_batch([row(cite=1.0, pt=1.0, ans=1.0, anc=1.0, gate=0.0), row(anc="down", gate=0.0)])
    assert [score.value for score in scores] == [-1.0, -1.0]
    assert Mix(parts={"a": Meta("cite")}, gate=Gate("gate"), invalid=0.0).score(row(gate=0.5)).value == 0.0
    assert Mix(parts={"a": Meta("cite")}, gate=None).score(row(cite=0.3, gate=0.0)).value == pytest.approx(0.3)


@pytest.mark.parametrize(
    ("before", "outcomes", "ema"),
    [
        (0.4, [1.0, 0.0, 1.0], 0.9 * 0.4 + 0.1 * 2 / 3),
        (0.0, [1.0, 0.0], 0.1 * 0.5),
        (0.4, [], 0.4),
        (
            None,
            [1.0, 0.0, 0.0, 1.0, None, 1.0, 1.0, 1.0, 1.0, 1.0],
            7 / 9,
        ),  # of the first batch; one of ten is open
        (None, [0.0], 0.0),
        (None, [], None),
        (None, [None], None),
        (0.4, [None], 0.4),
        (0.4, [1.0, 1.0, None], 0.4),  # only what was easy has a value
        (0.4, [1.0] * 9 + [None], 0.9 * 0.4 + 0.1),
    ],
)
def test_the_ema_by_hand(before, outcomes, ema):
    state = paper(beta=0.9).advance(MixState(before, 7), outcomes)
    assert state == MixState(None if ema is None else pytest.approx(ema), 8)
    assert Mix(parts={"a": Meta()}).advance(MixState(before, 7), outcomes, step=5) == MixState(before, 5)


def test_alpha_falls_as_correctness_rises_and_counts_the_batch_itself():
    alphas = [paper().alpha(MixState(ema)) for ema in (None, 0.0, 0.25, 0.5, 0.75, 1.0)]
    assert alphas == sorted(alphas, reverse=True) and alphas[0] == alphas[1] == pytest.approx(0.9933, abs=1e-4)
    assert paper(fixed=0.5).alpha(MixState(0.9)) == 0.5
    assert paper(kappa=1e9).alpha(MixState(1.0)) == 0.0 and sigmoid(1e6) == 1.0  # without overflow
    mix = paper(tau=0.5, kappa=10.0)
    components = mix.components([row(anc=1.0), row(anc=0.0), row(anc="down")])
    assert mix.outcomes(components) == [1.0, 0.0, None]
    state = mix.advance(MixState(0.4), [1.0, 0.0])
    told = mix.combine(components, state)[0].parts["alpha"]
    assert told == mix.alpha(state) == pytest.approx(1 / (1 + math.exp(-10 * (0.5 - state.ema))))
    assert rewards.pou_mix().state0 == MixState(None, 0) and rewards.pou_mix(alpha_start=0.0).state0 == MixState(0.0, 0)


@pytest.mark.parametrize("part", ["cite", "pt", "ans", "anc", "gate"])
def test_a_part_that_abstained_empties_its_row_and_no_other(part):
    empty, full = paper().score_batch([row(**{part: "down"}), row()])
    assert empty.value is None and "judge down" in empty.why and empty.parts["abstained"] is True
    assert full.value == 0.0 and "abstained" not in full.parts


def test_a_part_that_does_not_apply_empties_the_row_without_being_an_abstention():
    score = rewards.answer_only_mix().score(Trajectory((Step(think="", answer="a"),), answer="a"))
    assert score.value is None and "correctness: no gold" in score.why and "abstained" not in score.parts


def test_the_ablations_are_configurations():
    assert rewards.pou_mix(2).parts["evidence_sensitivity"].budget == 2
    assert list(rewards.pou_mix(sensitivity=False).parts) == ["citation", "answer"]
    assert rewards.pou_mix(alpha=0.5).alpha(MixState(0.9)) == 0.5
    without_support = rewards.pou_mix(alpha=0.0, sensitivity=False)
    made = Trajectory((Step(think="", answer="x"),), answer="x", answers=("x",))
    assert "answer_support" not in without_support.components([made])[0]
    assert without_support.score(made).value == pytest.approx(0.5)
    assert rewards.answer_only_mix().score(made).value == 1.0
    kept = Mix(parts={"a": Meta("cite"), "b": Meta("pt")}, weights={"a": 1 / 3, "b": 1 / 3}, gate=None)
    assert kept.score(row(cite=1.0, pt=1.0)).value == pytest.approx(2 / 3)


def test_a_weighted_sum_with_warm_up_by_steps():
    mix = Mix(
        parts={"em": Meta("anc"), "info_think": Meta("ans"), "think_answer": Meta("pt")},
        weights={"em": 1.0, "info_think": 0.05, "think_answer": 0.02},
        warmup=Warmup(("info_think", "think_answer"), start=100, end=150),
        gate=None,
    )
    components = mix.components([row(anc=1.0, ans=1.0, pt=0.5)])
    values = [mix.combine(components, MixState(step=step))[0].value for step in (0, 100, 125, 150, 999)]
    assert values == pytest.approx([1.0, 1.0, 1.03, 1.06, 1.06])
    down = mix.components([row(anc=1.0, ans="down")])
    assert mix.combine(down, MixState(step=50))[0].value == 1.0  # a weight of 0: not in the sum yet
    assert mix.combine(down, MixState(step=120))[0].value is None
    assert mix.alpha(MixState()) is None and mix.outcomes(components) == []


def test_each_component_is_scored_once_for_a_batch():
    calls = []

    @dataclass(frozen=True)
    class Counting(Meta):
        def score_batch(self, trajectories):
            calls.append(len(trajectories))
            return super().score_batch(trajectories)

    Mix(parts={"a": Counting("cite")}, gate=None).score_batch([row(), row()])
    assert calls == [2]


def test_bind_reaches_every_level():
    class Policy:
        tokenizer = None

    policy = Policy()
    bound = rewards.pou_mix().bind(policy=policy)
    assert bound.parts["evidence_sensitivity"].policy is policy
    nested = Mix(parts={"answer": Adaptive(process=EvidenceSensitivity())}).bind(policy=policy)
    assert nested.parts["answer"].process.policy is policy
    assert (
        Mix(parts={"inner": rewards.pou_mix()}).bind(policy=policy).parts["inner"].parts["evidence_sensitivity"].policy
    )


@pytest.mark.parametrize(
    "wrap", [rewards.Shuffled, lambda one: Mix({"one": one}), lambda one: Mix({"one": Adaptive(one)})]
)
def test_what_a_reward_needs_is_known_through_whatever_holds_it(wrap):
    for held in (wrap, lambda one: Mix({"inner": wrap(one)})):
        asked, quiet = held(rewards.SelfRubric()), held(Citation())
        assert asked.needs_policy and asked.samples_policy and asked.covers("search_r1")
        assert not quiet.needs_policy and not quiet.samples_policy and not quiet.covers("search_r1")
        probed = held(EvidenceSensitivity())
        assert probed.needs_policy and not probed.samples_policy
        assert sum(isinstance(one, EvidenceSensitivity) for one in probed.within()) == 1
    assert rewards.pou_mix().needs_policy and not rewards.answer_only_mix().needs_policy


def test_state_survives_json_and_the_mix_prints_as_its_configuration():
    state = MixState(0.1 + 0.2, 41)
    assert MixState.from_dict(json.loads(json.dumps(state.to_dict()))) == state
    assert MixState.from_dict(json.loads(json.dumps(MixState().to_dict()))) == MixState()
    assert MixState.from_dict({"ema": 0.0, "step": 0}) == MixState(ema=0.0)  # as checkpoints had it before any batch
    mix = rewards.pou_mix(budget=2)
    names = {"Mix": Mix, "Citation": Citation, "EvidenceSensitivity": EvidenceSensitivity, "Adaptive": Adaptive}
    names |= {"AnswerSupport": AnswerSupport, "Correctness": Correctness, "Format": Format, "MixState": MixState}
    from faithful_search.judges import LexicalJudge

    assert eval(repr(mix), names | {"LexicalJudge": LexicalJudge}) == mix


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Mix(parts={}),
        lambda: Mix(parts={"a": Adaptive(), "b": Adaptive()}),
        lambda: Mix(parts={"format": Citation()}),
        lambda: Mix(parts={"correctness": Correctness(), "answer": Adaptive()}),
        lambda: Mix(parts={"a": Citation()}, weights={"b": 1.0}),
        lambda: Mix(parts={"a": Citation()}, warmup=Warmup(("b",), 0, 1)),
        lambda: Adaptive(beta=1.0),
        lambda: Mix(parts={"a": Citation(), "answer": Adaptive()}, only_right=("b",)),
        lambda: Mix(parts={"a": Citation(), "b": Format()}, gate=None, only_right=("a",)),
        lambda: Mix(parts={"correctness": Correctness()}, only_right=("correctness",)),
        lambda: Adaptive(fixed=1.5),
    ],
)
def test_contradicting_settings_are_refused(wrong):
    with pytest.raises(ConfigError):
        wrong()


def test_rewards_are_found_by_file_name_and_a_right_answer_by_its_part():
    assert rewards.load("citation") is Citation and "mix" in rewards.names()
    with pytest.raises(ConfigError, match="citation"):
        rewards.load("citations")
    assert rewards.pou_mix().outcome == rewards.answer_only_mix().outcome == "correctness"
    assert paper().outcome == "outcome" and rewards.veritas_mix().outcome == "exact_match"
    assert Mix(parts={"a": Citation()}).outcome is None
    assert Mix(parts={"a": Correctness(), "b": Correctness("f1")}).outcome is None


# Process rewards on right answers only


def on_right(*names, **more) -> Mix:
    parts = {"citation": Meta("cite"), "pt": Meta("pt"), "answer": Adaptive(Process("ans"), Outcome("anc"))}
    return Mix(parts=parts, gate=Gate("gate"), only_right=names, **more)


@pytest.mark.parametrize(
    ("names", "made", "value"),
    [
        ((), row(cite=1.0, pt=0.4, ans=1.0, anc=0.0), (1.0 + 0.4 + 0.5) / 3),
        (("citation",), row(cite=1.0, pt=0.4, ans=1.0, anc=0.0), (0.0 + 0.4 + 0.5) / 3),
        (("citation", "pt"), row(cite=-1.0, pt=-0.4, ans=1.0, anc=0.0), 0.5 / 3),  # nor is anything lost
        (("answer",), row(cite=1.0, pt=0.4, ans=1.0, anc=0.0), (1.0 + 0.4 + 0.0) / 3),
        (("answer",), row(cite=1.0, pt=0.4, ans=0.2, anc=1.0), (1.0 + 0.4 + 0.1 + 0.5) / 3),
        (("answer",), row(ans=1.0, anc=0.6), 0.3 / 3),  # the outcome itself still counts
        (("citation", "pt", "answer"), row(cite=1.0, pt=0.4, ans=1.0, anc=0.99), 0.495 / 3),
        (("citation", "pt", "answer"), row(cite=1.0, pt=0.4, ans=1.0, anc=1.0), (1.0 + 0.4 + 1.0) / 3),
        (("citation",), row(cite="down", pt=0.4, anc=0.0), 0.4 / 3),  # 0 whatever the judge would have said
        (("answer",), row(cite=1.0, ans="down", anc=0.0), 1.0 / 3),
        (("citation",), row(cite="down", anc=1.0), None),
        (("citation",), row(cite=1.0, anc="down"), None),
        (("citation",), row(cite=1.0, anc=1.0, gate=0.0), -1.0),
    ],
)
def test_parts_that_count_on_right_answers_only_by_hand(names, made, value):
    mix = on_right(*names)
    (score,) = mix.combine(mix.components([made]), MixState(ema=0.5))  # alpha is 1/2
    assert score.value == (None if value is None else pytest.approx(value))
    assert score.parts["citation"] == (None if made.meta["cite"] == "down" else made.meta["cite"])  # as it was measured


def test_the_outcome_may_be_a_part_of_its_own_and_count_as_absent():
    mix = Mix({"em": Correctness(), "cite": Meta("cite")}, gate=None, only_right=("cite",), absent={"em": 0.0})
    rows = [Trajectory(answer=said, answers=gold, meta={"cite": 1.0}) for said, gold in (("a", ("a",)), ("a", ("b",)))]
    assert [score.value for score in mix.score_batch([*rows, Trajectory(meta={"cite": 1.0})])] == [1.0, 0.0, 0.0]
    late = Mix(
        mix.parts, gate=None, only_right=("cite",), weights={"em": 1.0, "cite": 1.0}, warmup=Warmup(("em",), 9, 9)
    )
    nobody_knows = late.score(Trajectory(answer="a", meta={"cite": 1.0}))  # the outcome's own weight is still 0
    assert nobody_knows.value is None and "em: no gold" in nobody_knows.why


def test_from_which_outcome_an_answer_is_right_is_a_knob():
    mix = on_right("citation", right_from=0.5)
    scores = mix.combine(mix.components([row(cite=1.0, anc=x) for x in (0.4, 0.5)]), MixState(ema=0.5))
    assert [score.value for score in scores] == pytest.approx([0.2 / 3, (1.0 + 0.25) / 3])


def test_proof_of_use_with_its_process_on_right_answers_only():
    mix = rewards.pou_mix(sensitivity=False, alpha=0.5, process_on_right=True)
    search = Step(think="p", call=ToolCall("s", {"query": "q"}), evidence=(Evidence("Paris, France", "T", "E1"),))
    last = Step(think="so", helpful=True, refs=("E1",), answer="Paris")
    right, wrong = (Trajectory((search, last), answer="Paris", answers=(gold,)) for gold in ("Paris", "Lyon"))
    assert [score.value for score in mix.score_batch([right, wrong])] == [1.0, 0.0]
    assert rewards.pou_mix(sensitivity=False, alpha=0.5).score(wrong).value == pytest.approx((1.0 + 0.5) / 2)


# Dialects without verdicts


def test_a_mix_covers_the_dialects_that_all_its_parts_cover():
    assert rewards.pou_mix().covers("pou") and not rewards.pou_mix().covers("search_r1")
    assert rewards.answer_only_mix().covers("search_r1")
    wider = Mix(parts={"citation": Citation(dialects=("pou", "mine")), "answer": Adaptive()})
    assert wider.covers("mine") and not wider.covers("search_r1")
    assert not Mix(parts={"outcome": Outcome()}, gate=Citation()).covers("search_r1")
