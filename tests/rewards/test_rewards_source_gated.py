"""Correctness that counts only where evidence holds the answer."""

import pytest
from stub_judges import Down

from faithful_search.judges import Verdict
from faithful_search.judges.facts import FactsJudge
from faithful_search.rewards import AnswerSupport, Correctness, MixState, SourceGated, answer_only_mix, pou_mix
from faithful_search.training.advantages import informative
from faithful_search.trajectory import Evidence, Step, ToolCall, Trajectory

PARIS = Evidence("Paris is the capital of France.", "France", "E1")
ROME = Evidence("Romeo lives in the Rome of the play.", "Play", "E2")
PARISIAN = Evidence("A Parisian bakery.", "Bread", "E3")


def episode(answer, gold=None, refs=("E1",), evidence=(PARIS, ROME, PARISIAN), **more) -> Trajectory:
    """One search that returns `evidence`; the answer cites `refs` of it, "no" where there are none."""
    search = Step(think="", call=ToolCall("search", {"query": "q"}), evidence=evidence)
    last = Step(think="", helpful=bool(refs), refs=refs, answer=answer)
    golds = (answer or "x",) if gold is None else gold
    return Trajectory((search, last), question=more.pop("question", "q"), answer=answer, answers=golds, **more)


@pytest.mark.parametrize(
    ("made", "value", "supported"),
    [
        (episode("Paris"), 1.0, True),
        (episode("the paris!"), 1.0, True),  # compared as answers are
        (episode("Bread", refs=("E3",)), 1.0, True),  # a title is evidence
        (episode("Rome"), 0.0, False),  # returned, but what is cited does not hold it
        (episode("Rome", refs=("E2",)), 1.0, True),
        (episode("Rome", refs=("E1", "E2", "E3")), 1.0, True),  # to cite everything opens the gate
        (episode("Paris", refs=("E3",)), 0.0, False),  # "Parisian" holds it as characters only
        (episode("Paris", refs=("E9",)), 0.0, False),  # cites what is not there
        (episode("Paris", refs=()), 0.0, False),  # says no to what it answers from
        (episode("Oslo", refs=("E1", "E2", "E3"), question="Is Oslo or Bergen larger?"), 0.0, False),
        (episode("France Paris is", refs=("E1",)), 1.0, True),  # title and text are one passage
        (episode("Rome Parisian", refs=("E2", "E3")), 0.0, False),  # no match spans two of them
        (episode("the", gold=("the",)), 0.0, False),  # right, but nothing is left to look for
        (episode("Paris", gold=("Lyon",)), 0.0, None),  # wrong: nobody asks what supports it
        (episode("", gold=("Lyon",)), 0.0, None),
        (episode(None, gold=("Lyon",)), 0.0, None),
        (episode("Paris", gold=()), None, None),
        (Trajectory((Step(answer="Paris"),), answer="Paris", answers=("Paris",)), 0.0, False),
        (Trajectory(answers=("Paris",)), 0.0, None),
    ],
)
def test_a_right_answer_counts_where_cited_evidence_holds_it(made, value, supported):
    score = SourceGated().score(made)
    assert (score.value, score.parts["supported"]) == (value, supported)
    assert score.parts["outcome"] == Correctness().score(made).value
    assert bool(score.why) == (value != 1.0)


@pytest.mark.parametrize(
    ("made", "value"),
    [
        (episode("yes"), 1.0),
        (episode("No."), 1.0),
        (episode("yes", refs=()), 0.0),
        (episode("yes", refs=("E9",)), 0.0),
        (episode("yes", gold=("no",)), 0.0),
        (episode("unknown", refs=()), 1.0),
        (episode("unknown", refs=(), evidence=()), 1.0),
        (episode("unknown", gold=("Paris",), refs=()), 0.0),
        (Trajectory((Step(answer="unknown"),), answer="unknown", answers=("unknown",)), 0.0),  # never looked
    ],
)
def test_answers_that_no_passage_can_hold(made, value):
    assert SourceGated().score(made).value == value


def test_without_citations_what_a_tool_returned_is_the_evidence():
    rows = [episode(answer, refs=(), dialect="search_r1") for answer in ("Paris", "Oslo", "yes")]
    assert [score.value for score in SourceGated().score_batch(rows)] == [1.0, 0.0, 1.0]
    empty = episode("yes", refs=(), evidence=(), dialect="search_r1")
    assert SourceGated().score(empty).value == 0.0
    assert SourceGated(support=AnswerSupport(evidence="retrieved")).score(episode("Rome")).value == 1.0


def test_partial_credit_goes_through_an_open_gate_only():
    gated = SourceGated(Correctness("f1"))
    open_, shut = gated.score_batch([episode("Paris", gold=("Paris France",)), episode("Oslo", gold=("Oslo Norway",))])
    assert open_.value == pytest.approx(2 / 3) and shut.value == 0.0
    assert shut.parts["outcome"] == pytest.approx(2 / 3) and "counts for nothing" in shut.why


class Asked:
    name = "asked"

    def __init__(self, *labels):
        self.labels, self.hypotheses = labels, []

    def judge_batch(self, pairs):
        self.hypotheses += [pair.hypothesis for pair in pairs]
        return [Verdict(label, label) for label in self.labels]


def test_a_judge_of_the_support_is_asked_about_right_answers_only():
    judge = Asked(True, False)
    rows = [episode("Oslo"), episode("Bergen", gold=("Paris",)), episode("yes"), episode("unknown")]
    scores = SourceGated(support=AnswerSupport(judge)).score_batch(rows)
    assert [score.value for score in scores] == [1.0, 0.0, 0.0, 1.0]
    assert judge.hypotheses == ["Oslo", "yes"]
    assert [score.parts.get("supported_by") for score in scores] == ["asked", None, "asked", None]


def test_where_the_judge_of_the_support_is_down_right_answers_abstain():
    right, wrong, none = SourceGated(support=AnswerSupport(Down())).score_batch(
        [episode("Paris"), episode("Paris", gold=("Lyon",)), episode("Paris", gold=())]
    )
    assert right.value is None and right.parts["abstained"] and "no route" in right.why
    assert wrong.value == 0.0 and none.value is None and "abstained" not in none.parts
    of_outcome = SourceGated(Correctness("judge", judge=Down())).score(episode("Paris", gold=("Lyon",)))
    assert of_outcome.value is None and of_outcome.parts["abstained"]


def test_with_the_worlds_facts_a_passage_must_state_the_answer_to_the_question():
    from faithful_search.tasks import load_tasks

    task = next(task for task in load_tasks("world", "train") if len(task.meta.get("chain", [])) == 1)
    named = Evidence(f"{task.answers[0]} is a fine name.", "Names", "E1")
    made = episode(task.answers[0], evidence=(named,), question=task.question)
    assert SourceGated().score(made).value == 1.0
    assert SourceGated(support=AnswerSupport(FactsJudge())).score(made).value == 0.0


# In the objectives


def test_as_the_outcome_of_an_objective_it_goes_by_its_own_name():
    for mix in (pou_mix(correctness=SourceGated(), sensitivity=False), answer_only_mix(SourceGated())):
        (components,) = mix.components([episode("Rome")])
        assert mix.outcome == "source_gated" and "correctness" not in components
        assert components["source_gated"].value == 0.0
    assert list(answer_only_mix(SourceGated()).weights_at(1)) == ["source_gated"]


def test_an_objectives_value_and_alpha_go_by_the_gated_outcome():
    rows = [episode("Paris"), episode("Rome"), episode("Oslo", gold=("Lyon",)), episode("Paris", refs=("E1", "E2"))]
    only = answer_only_mix(SourceGated())
    assert [score.value for score in only.score_batch(rows)] == [1.0, 0.0, 0.0, 1.0]
    mix = pou_mix(correctness=SourceGated(), sensitivity=False, beta=0.5)
    components = mix.components(rows)
    assert mix.outcomes(components) == [1.0, 0.0, 0.0, 1.0]
    state = mix.advance(MixState(0.3), mix.outcomes(components))
    assert state.ema == pytest.approx(0.5 * 0.3 + 0.5 * 0.5)  # three of the answers are right, two count
    decorated = mix.combine(components, state)[1]
    assert decorated.value == pytest.approx(1.0 / 2) and decorated.parts["source_gated"] == 0.0  # the citation alone


def test_a_group_of_right_answers_is_not_uniform_where_the_gate_tells_them_apart():
    import torch

    rows = [episode("Rome", refs=("E2",)), episode("Rome")]
    for reward, kept in ((SourceGated(), True), (Correctness(), False)):
        mix = answer_only_mix(reward)
        values = torch.tensor([row[mix.outcome].value for row in mix.components(rows)])
        assert informative(values, torch.tensor([True, True]), 2).tolist() == [kept, kept]
