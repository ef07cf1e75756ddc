"""Answer support, correctness, and correctness that counts only where evidence holds the answer."""

import pytest
from agent_rows import CountingJudge
from stub_judges import Author, Down, by_word

from faithful_search.errors import ConfigError
from faithful_search.judges import ContainmentJudge, GroundingJudge, Pair, Request
from faithful_search.rewards import (
    Adaptive,
    AnswerSupport,
    Correctness,
    Declined,
    MixState,
    SourceGated,
    ThinkAnswer,
    answer_only_mix,
    pou_mix,
)
from faithful_search.rewards.look_ups import first_look_up
from faithful_search.tasks import load_tasks
from faithful_search.trajectory import Evidence, Step, ToolCall, Trajectory
from faithful_search.world.facts import FactsJudge

FRANCE = Evidence("Paris is the capital of France.", "France", "E1")
PLAY = Evidence("Romeo lives in the Rome of the play.", "Play", "E2")
BREAD = Evidence("A Parisian bakery.", "Bread", "E3")


def episode(
    answer, gold=None, refs=("E1",), evidence=(FRANCE, PLAY, BREAD), dialect="", question="q"
) -> Trajectory:
    """One search that returns `evidence`; the answer cites `refs` of it, "no" where there are
    none.
    """
    search = Step(think="", call=ToolCall("search", {"query": "q"}), evidence=evidence)
    last = Step(think="", helpful=None if dialect else bool(refs), refs=refs, answer=answer)
    golds = (answer or "x",) if gold is None else gold
    return Trajectory(
        (search, last), question=question, answer=answer, answers=golds, dialect=dialect
    )


UNCITED = episode("good", refs=("E9",))


@pytest.mark.parametrize(
    ("made", "value", "applies"),
    [
        (episode("Paris"), 1.0, True),
        (episode("Rome"), 0.0, True),  # retrieved, not cited
        (episode("Rome", refs=("E1", "E2")), 1.0, True),
        (episode(None), 0.0, True),
        (episode("Paris", refs=()), 0.0, True),  # valid, but cites nothing
        (Trajectory((Step(answer="Paris"),), answer="Paris"), 0.0, False),
    ],
)
def test_support_by_hand(made, value, applies):
    score = AnswerSupport().score(made)
    assert (score.value, score.parts["applies"]) == (value, applies)
    assert score.why.startswith("supported by E") is (value == 1)


BOTH = ("E1", "E2")


@pytest.mark.parametrize(
    ("judge", "made", "why"),
    [
        (ContainmentJudge(), episode("Paris", refs=BOTH), "supported by E1"),
        (GroundingJudge(), episode("Romeo lives in Rome.", refs=BOTH), "supported by E2"),
        (
            GroundingJudge(),
            episode("Romeo lives in the capital of France, which is Paris.", refs=BOTH),
            "supported by several passages together",
        ),
        (CountingJudge(), episode("Paris", refs=BOTH), "supported by E1, E2"),
        (
            ContainmentJudge(),
            episode("France", question="Which river is in France?"),
            "supported by E1; the answer stands in the question",
        ),
    ],
)
def test_the_reason_of_support_names_the_passages(judge, made, why):
    assert AnswerSupport(judge).score(made).why == why


DECLINING = (
    "I don't know.",
    "unknown",
    "Die Quellen sagen dazu nichts.",
    "不知道",
    r"\boxed{unknown}",
    "Exact Answer: unknown\nConfidence: 5%",
)


@pytest.mark.parametrize("answer", DECLINING)
@pytest.mark.parametrize("refs", [("E1",), ()])
@pytest.mark.parametrize("judge", [ContainmentJudge(), GroundingJudge(), CountingJudge(), Author()])
def test_an_answer_that_says_it_has_none_claims_nothing(judge, answer, refs):
    reward = AnswerSupport(judge)
    score = reward.score(episode(answer, gold=("Paris",), refs=refs))
    assert (score.value, reward.measure(score)) == (0.0, None)
    assert "claims nothing" in score.why


def test_what_a_gold_answer_says_is_a_claim():
    unknown = Evidence("Its author is unknown.", "", "E1")
    made = episode("unknown", gold=("Unknown",), evidence=(unknown,))
    assert AnswerSupport().measure(AnswerSupport().score(made)) == 1.0


def test_a_sentence_that_says_it_has_no_answer_is_no_claim():
    made = episode("The sources do not say when. Paris is the capital of France.")
    score = AnswerSupport(GroundingJudge()).score(made)
    assert (score.value, score.parts["claims"]) == (1.0, 1)


@pytest.mark.parametrize("answer", DECLINING)
def test_nothing_is_measured_of_how_an_abstention_follows_from_the_thought(answer):
    made = Trajectory((Step(think="Nothing there.", answer=answer),), answer=answer)
    for reward in (ThinkAnswer(), ThinkAnswer(CountingJudge())):
        assert reward.measure(reward.score(made)) is None


@pytest.mark.parametrize(
    ("answer", "golds", "value"),
    [
        *((answer, ("Paris",), 1.0) for answer in DECLINING),
        ("Paris", ("Rome",), 0.0),
        ("unknown", ("Unknown",), 0.0),
        (r"\boxed{unknown}", ("Unknown",), 0.0),
        ("I don't know.\nConfidence: 5%", ("Paris",), 1.0),
        ("Confidence: 5%", ("Paris",), 0.0),
        (r"I could not find \boxed{Rome}", ("Paris",), 0.0),
        (r"He was a painter. \boxed{unknown}", ("Paris",), 0.0),
        (None, ("Paris",), None),
        ("  ", (), None),
    ],
)
def test_which_answers_decline(answer, golds, value):
    assert Declined().score(episode(answer, gold=golds)).value == value


def test_the_share_of_claims_and_one_question_to_the_judge_for_a_batch():
    judge = CountingJudge(by_word)
    rows = [episode("This is good. That is bad. Also good."), UNCITED, episode("bad")]
    scores = AnswerSupport(judge).score_batch(rows)
    assert [score.value for score in scores] == [pytest.approx(2 / 3), 0.0, 0.0]
    assert scores[0].parts["claims"] == 3
    assert "That is bad." in scores[0].why
    assert judge.calls == 1
    assert len(judge.asked) == 4
    assert judge.asked[0] == Pair("France\nParis is the capital of France.", "This is good.", "q")


@pytest.mark.parametrize(
    ("judge", "said"), [(Down(), "no route to the judge"), (Author(), "no route to the writer")]
)
def test_a_judge_that_is_down_makes_only_the_rows_that_need_it_abstain(judge, said):
    asked, not_asked = AnswerSupport(judge).score_batch([episode("good"), UNCITED])
    assert asked.value is None
    assert asked.parts["abstained"]
    assert said in asked.why
    assert not_asked.value == 0.0
    assert "abstained" not in not_asked.parts


LONG = "It is good. And it is bad."


def test_a_judge_that_can_write_makes_claims_of_question_and_answer():
    judge = Author(
        "- The tower is good.\n2. The tower is bad.\n\nThe town is good.", "The best town is good."
    )
    long, short, uncited = AnswerSupport(judge).score_batch([episode(LONG), episode("x"), UNCITED])
    assert judge.requests == [
        [Request("claims", {"question": "q", "answer": answer}) for answer in (LONG, "x")]
    ]
    assert long.parts["texts"] == ["The tower is good.", "The tower is bad.", "The town is good."]
    assert (long.value, long.parts["supported"]) == (
        pytest.approx(2 / 3),
        2,
    )
    assert "tower is bad" in long.why
    assert short.parts["texts"] == ["The best town is good."]  # "x" would not have been
    assert short.value == 1.0
    assert uncited.parts["applies"] is False
    assert judge.calls == 1
    assert long.parts["judge"] == "counting@1"


def test_an_answer_without_claims_does_not_apply():
    none, lost, blank = AnswerSupport(Author("NONE.", None, " \n")).score_batch([episode(LONG)] * 3)
    assert (none.value, none.parts["applies"]) == (0.0, False)
    assert "no claim" in none.why
    assert lost.value is None
    assert lost.parts["abstained"]
    assert blank.parts["abstained"]
    assert AnswerSupport().measure(none) is None


def test_where_nothing_is_cited_what_was_retrieved_is_the_evidence():
    rome = episode("Rome")  # retrieved, not cited
    assert [
        AnswerSupport(evidence=kind).score(rome).value for kind in ("auto", "cited", "retrieved")
    ] == [0, 0, 1]
    other = episode("Rome", refs=(), dialect="search_r1")
    found = AnswerSupport().score(other)
    assert (found.value, found.parts["evidence"]) == (1.0, "retrieved")
    assert AnswerSupport(evidence="cited").score(other).parts["applies"] is False
    bare = Trajectory((Step(answer="Rome"),), answer="Rome", dialect="search_r1")
    assert AnswerSupport().score(bare).parts == {"applies": False, "evidence": "retrieved"}


# ---- correctness


@pytest.mark.parametrize(
    ("reward", "answer", "value"),
    [
        (Correctness(), "the Louvre!", 1.0),
        (Correctness(), "Louvre museum", 0.0),
        (Correctness("f1"), "Louvre museum", pytest.approx(2 / 3)),
        (Correctness(), None, 0.0),
        (Correctness("sub_em"), "It is the Louvre museum", 1.0),
        (Correctness("judge", judge=CountingJudge(by_word)), "good", 1.0),
        (Correctness("judge", judge=Down()), "louvre!", 1.0),  # nobody asks about an exact match
    ],
)
def test_correctness_by_hand(reward, answer, value):
    assert (
        reward.score(Trajectory(answer=answer, answers=("Louvre", "Musée du Louvre"))).value
        == value
    )


def test_the_correctness_judge_is_asked_once_and_only_about_answers():
    judge, gold = CountingJudge(by_word), {"answers": ("a", "b"), "question": "q"}
    given = [
        {"answer": "good", **gold},
        gold,
        {"answer": "x"},
        {"answer": "y", **gold},
        {"answer": "B.", **gold},
    ]
    rows = [Trajectory(**row) for row in given]
    scores = Correctness("judge", judge=judge).score_batch(rows)
    assert [score.value for score in scores] == [1.0, 0.0, None, 0.0, 1.0]
    assert [score.parts.get("exact_match") for score in scores] == [False, None, None, False, True]
    assert judge.calls == 1
    assert judge.asked == [Pair("a\n\nb", said, "q", "correctness") for said in ("good", "y")]
    assert "gold" in scores[2].why
    assert "abstained" not in scores[2].parts
    (unsure,) = Correctness("judge", judge=judge).score_batch([Trajectory(answer="hard", **gold)])
    assert unsure.value is None
    assert unsure.parts["abstained"]
    assert "timed out" in unsure.why
    down = Correctness("judge", judge=Down()).score_batch(rows)
    assert [score.parts.get("abstained", False) for score in down] == [
        True,
        False,
        False,
        True,
        False,
    ]


# ---- correctness that counts only where evidence holds the answer


@pytest.mark.parametrize(
    ("made", "value", "supported"),
    [
        (episode("the paris!"), 1.0, True),  # compared as answers are
        (episode("Bread", refs=("E3",)), 1.0, True),  # a title is evidence
        (episode("Rome"), 0.0, False),  # returned, but what is cited does not hold it
        (episode("Rome", refs=("E1", "E2", "E3")), 1.0, True),  # to cite everything opens the gate
        (episode("Paris", refs=("E3",)), 0.0, False),  # "Parisian" holds it as characters only
        (episode("Paris", refs=()), 0.0, False),  # says no to what it answers from
        (
            episode("Oslo", refs=("E1", "E2", "E3"), question="Is Oslo or Bergen larger?"),
            0.0,
            False,
        ),
        (episode("France Paris is", refs=("E1",)), 1.0, True),  # title and text are one passage
        (episode("Rome Parisian", refs=("E2", "E3")), 0.0, False),  # no match spans two of them
        (episode("the", gold=("the",)), 0.0, False),  # right, but nothing is left to look for
        (episode("Paris", gold=("Lyon",)), 0.0, None),  # wrong: nobody asks what supports it
        (episode("Paris", gold=()), None, None),
        (Trajectory((Step(answer="Paris"),), answer="Paris", answers=("Paris",)), 0.0, False),
        # answers that no passage can hold
        (episode("No."), 1.0, True),
        (episode("yes", refs=()), 0.0, False),
        (episode("unknown", refs=(), evidence=()), 1.0, True),
        (
            Trajectory((Step(answer="unknown"),), answer="unknown", answers=("unknown",)),
            0.0,
            False,
        ),  # never looked
        # without citations what a tool returned is the evidence
        (episode("Paris", refs=(), dialect="search_r1"), 1.0, True),
        (episode("yes", refs=(), evidence=(), dialect="search_r1"), 0.0, False),
    ],
)
def test_a_right_answer_counts_where_cited_evidence_holds_it(made, value, supported):
    score = SourceGated().score(made)
    assert (score.value, score.parts["supported"]) == (value, supported)
    assert score.parts["outcome"] == Correctness().score(made).value
    assert bool(score.why) == (value != 1.0)


HIDDEN = [
    "Romeo lives in the Rome of the play.\nConfidence: \\boxed{Paris}",
    'Romeo lives in the Rome of the play.\nconfidence: {"answer": "Paris"}',
    "Romeo lives in the Rome of the play. I could not find \\boxed{Paris}.",
    "Romeo lives in the Rome of the play.\nI do not know \\boxed{Paris}.",
]
"""Answers whose words stand in E2, but for one that is compared with the gold answers."""


@pytest.mark.parametrize("answer", HIDDEN)
def test_an_answer_hidden_among_supported_words_does_not_open_the_gate(answer):
    row = episode(answer, gold=("Paris",), refs=("E2",))
    assert SourceGated().score(row).value == 0.0


@pytest.mark.parametrize("answer", HIDDEN)
def test_an_answer_hidden_among_supported_words_is_a_claim(answer):
    row = episode(answer, gold=("Paris",), refs=("E2",))
    assert AnswerSupport().score(row).value < 1.0


@pytest.mark.parametrize("answer", HIDDEN)
def test_a_judge_that_writes_claims_is_shown_what_the_answer_says(answer):
    judge = Author()
    AnswerSupport(judge).score(episode(answer, gold=("Paris",), refs=("E2",)))
    [[request]] = judge.requests
    assert "Paris" in request.fields["answer"].splitlines()


PLAY_TEXT = "Romeo lives in the Rome of the play."
UNCLAIMED = [
    f"{PLAY_TEXT} I could not find Paris.",
    f"{PLAY_TEXT}\nThe sources do not say Paris.",
    f"{PLAY_TEXT}\nConfidence: Paris",
    f"\\boxed{{{PLAY_TEXT}\nConfidence: Paris}}",
    '{"answer": "{\\"answer\\": \\"Rome\\", \\"score\\": \\"Paris\\"}"}',
    "Confidence: Paris",
]
"""Answers of which "Paris" is compared with the gold answers, and stands in what is no claim."""


@pytest.mark.parametrize("metric", ["sub_em", "f1"])
@pytest.mark.parametrize("answer", UNCLAIMED)
def test_what_is_right_in_no_claim_earns_nothing(answer, metric):
    row = episode(answer, gold=("Paris",), refs=("E1", "E2"))
    score = SourceGated(Correctness(metric)).score(row)
    assert (score.value, score.parts["supported"]) == (0.0, False)


def test_what_is_right_in_no_claim_adds_nothing_to_f1():
    row = episode("Rome\nConfidence: Paris", gold=("Paris or Rome",), refs=("E2",))
    assert SourceGated(Correctness("f1")).score(row).value == pytest.approx(1 / 2)


def test_a_judge_of_answers_is_asked_about_the_claims_where_there_is_more():
    row = episode(f"{PLAY_TEXT} I could not find good bread.", gold=("Bread",), refs=("E2",))
    outcome = Correctness("judge", judge=CountingJudge(by_word))
    assert (outcome.score(row).value, SourceGated(outcome).score(row).value) == (1.0, 0.0)


def test_a_judge_that_gives_no_verdict_on_the_claims_abstains():
    row = episode("A hard case. I could not find good bread.", gold=("Bread",), refs=("E2",))
    judge = CountingJudge(lambda pair: True if "good" in pair.hypothesis else None)
    score = SourceGated(Correctness("judge", judge=judge)).score(row)
    assert (score.value, score.parts["abstained"]) == (None, True)


@pytest.mark.parametrize(
    "answer",
    [
        "Paris\nConfidence: 90%",
        "Paris. I could not find when it was built.",
        "The sources do not say when. Paris is the capital of France.",
        "Paris\nParis is the capital of France.",
    ],
)
def test_a_right_claim_counts_beside_what_is_none(answer):
    row = episode(answer, gold=("Paris",))
    assert SourceGated(Correctness("sub_em"), AnswerSupport(GroundingJudge())).score(row).value == 1


FORMS = ["\\boxed{%s}", '{"answer": "%s"}', "I read E1, and it says so.\nFinal Answer: %s"]
FORMS += ["**Final Answer**\n\n%s", "```\n%s\n```", "%s\n"]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("content", ["Paris", "yes", "unknown"])
def test_an_answer_in_a_form_opens_the_gate_as_the_bare_one_does(form, content):
    assert SourceGated().score(episode(form % content, gold=(content,))).value == 1.0


@pytest.mark.parametrize("form", [*FORMS, "%s\nConfidence: 90%%"])
def test_an_answer_in_a_form_stands_in_the_thought_as_the_bare_one_does(form):
    answer = form % "Paris"
    row = Trajectory((Step(think="So it is Paris.", answer=answer),), answer=answer)
    assert ThinkAnswer(most_words=1).score(row).value == 1.0


@pytest.mark.parametrize("metric", ["em", "sub_em"])
@pytest.mark.parametrize("content", ["Paris", "yes", "unknown"])
def test_a_line_that_says_how_sure_the_agent_is_closes_no_gate(content, metric):
    row = episode(f"{content}\n**Confidence:** 90%", gold=(content,))
    assert SourceGated(Correctness(metric)).score(row).value == 1.0


@pytest.mark.parametrize("judge", [ContainmentJudge(), GroundingJudge()])
@pytest.mark.parametrize(
    ("answer", "gold", "value"),
    [
        ("Yes, they are.", "yes", 1.0),
        ("No, that is not so.", "no", 1.0),
        ("No, it is Oslo.", "no", 0.0),
        ("No Other", "No Other", 0.0),
    ],
)
def test_a_sentence_that_says_yes_or_no_and_nothing_else_opens_the_gate(judge, answer, gold, value):
    row = episode(answer, gold=(gold,))
    assert SourceGated(Correctness("sub_em"), AnswerSupport(judge)).score(row).value == value


@pytest.mark.parametrize(("answer", "gold"), [("True", "yes"), ("false", "no")])
def test_true_and_false_open_the_gate_as_yes_and_no_do(answer, gold):
    assert SourceGated(Correctness(how="unicode")).score(episode(answer, gold=(gold,))).value == 1.0


def test_a_confidence_line_makes_no_second_claim():
    score = AnswerSupport().score(episode("Paris. I could not find Rome.\nConfidence: 90%"))
    assert score.parts["claims"] == 1


def test_a_line_between_paragraphs_is_no_claim():
    row = episode("Paris is the capital of France.\n\n---\n\nRomeo lives.", refs=BOTH)
    score = AnswerSupport(GroundingJudge()).score(row)
    assert (score.value, score.parts["claims"]) == (1.0, 2)


@pytest.mark.parametrize("answer", ["\u26be", "Rome.\n\u26be"])
def test_a_sign_alone_is_a_claim_where_it_is_the_answer(answer):
    row = episode(answer, gold=("\u26be",), evidence=(Evidence("Rome", "", "E1"),))
    assert SourceGated(Correctness("sub_em")).score(row).value == 0.0


TYPED = [
    ("\u5317\u4eac", "\u5317\u4eac\u662f\u4e2d\u56fd\u7684\u9996\u90fd\u3002"),
    ("O'Neill", "by Eugene O\u2019Neill"),
    ("1903-12-17", "It flew on 17 December 1903."),
    ("450000", "It has 450,000 people."),
    ("1914", "from 1914\u20131918"),
    ("1903", "first flight: 1903-12-17"),
]


@pytest.mark.parametrize(("answer", "text"), TYPED)
def test_typography_and_scripts_without_blanks_close_no_gate(answer, text):
    row = episode(answer, evidence=(Evidence(text, "", "E1"),))
    assert SourceGated().score(row).value == 1.0


def test_a_gate_that_would_stay_closed_is_refused():
    with pytest.raises(ConfigError, match="use a support with soft=False"):
        SourceGated(support=AnswerSupport(soft=True))


def test_partial_credit_goes_through_an_open_gate_only():
    gated = SourceGated(Correctness("f1"))
    open_, shut = gated.score_batch(
        [episode("Paris", gold=("Paris France",)), episode("Oslo", gold=("Oslo Norway",))]
    )
    assert open_.value == pytest.approx(2 / 3)
    assert shut.value == 0.0
    assert shut.parts["outcome"] == pytest.approx(2 / 3)
    assert "counts for nothing" in shut.why


def test_support_is_judged_for_right_answers_only():
    judge = CountingJudge(lambda pair: pair.hypothesis == "Oslo", name="map")
    rows = [
        episode("Oslo"),
        episode("Bergen", gold=("Paris",)),
        episode("yes"),
        episode("unknown"),
        episode("x", ()),
    ]
    scores = SourceGated(support=AnswerSupport(judge)).score_batch(rows)
    assert [score.value for score in scores] == [1.0, 0.0, 0.0, 1.0, None]
    assert judge.calls == 1
    assert [pair.hypothesis for pair in judge.asked] == ["Oslo", "yes"]
    assert [score.parts.get("supported_by") for score in scores] == ["map", None, "map", None, None]
    scores = SourceGated(support=AnswerSupport(Down())).score_batch(rows)
    assert [score.value for score in scores] == [
        None,
        0.0,
        None,
        1.0,
        None,
    ]
    assert "no route" in scores[0].why
    assert [score.parts.get("abstained", False) for score in scores] == [
        True,
        False,
        True,
        False,
        False,
    ]
    of_outcome = SourceGated(Correctness("judge", judge=Down())).score(
        episode("Paris", gold=("Lyon",))
    )
    assert of_outcome.value is None
    assert of_outcome.parts["abstained"]


def test_with_the_worlds_facts_a_passage_must_state_the_answer_to_the_question():
    task = next(
        task for task in load_tasks("world", "train") if len(task.meta.get("chain", [])) == 1
    )
    named = Evidence(f"{task.answers[0]} is a fine name.", "Names", "E1")
    made = episode(task.answers[0], evidence=(named,), question=task.question)
    assert SourceGated().score(made).value == 1.0
    assert SourceGated(support=AnswerSupport(FactsJudge())).score(made).value == 0.0


def test_alpha_follows_the_gated_outcome():
    rows = [
        episode("Paris"),
        episode("Rome"),
        episode("Oslo", gold=("Lyon",)),
        episode("Paris", refs=("E1", "E2")),
    ]
    only = answer_only_mix(SourceGated())
    assert [score.value for score in only.score_batch(rows)] == [1.0, 0.0, 0.0, 1.0]
    mix = pou_mix(answer=Adaptive(outcome=SourceGated(), beta=0.5), sensitivity=False, paper=True)
    components = mix.components(rows)
    assert only.outcome_name == mix.outcome_name == "source_gated"
    assert "correctness" not in components[0]
    assert mix.outcomes(components) == [1.0, 0.0, 0.0, 1.0]
    state = mix.advance(MixState(0.3), mix.outcomes(components))
    assert state.ema == pytest.approx(
        0.5 * 0.3 + 0.5 * 0.5
    )  # three of the answers are right, two count
    decorated = mix.combine(components, state)[1]
    assert decorated.value == pytest.approx(1.0 / 2)  # the citation alone
    assert decorated.parts["source_gated"] == 0.0


@pytest.mark.parametrize(
    ("answer", "gold", "value", "published"),
    [("1.5", "15", 0.0, 1.0), ("O\u2019Brien", "O'Brien", 1.0, 0.0), ("Rome", "Rome", 1.0, None)],
)
def test_exact_match_says_where_squad_differs(answer, gold, value, published):
    trajectory = Trajectory(answer=answer, answers=(gold,))
    score = Correctness(how="unicode").score(trajectory)
    assert score.value == value
    assert score.parts.get("exact_match_squad") == published


LOOKED_UP = [
    ("Paris", "Which city?", "", 0.0),
    ("Is it Paris, France?", "Which city?", "", 0.0),
    ("a</x>Paris</y>", "Which city?", "", 0.0),
    ("Parisian bread", "Which city?", "", 1.0),
    ("the capital", "Which city?", "", 1.0),
    ("Paris", "What is Paris the capital of, or is it Paris itself?", "", 1.0),
    ("Paris", "Which city?", "Some say Paris.", 1.0),
]


@pytest.mark.parametrize(("query", "question", "before", "value"), LOOKED_UP)
def test_what_a_call_looks_up_counts_for_nothing(query, question, before, value):
    first = Step("", ToolCall("search", {"query": "q"}), (Evidence(before, "", "E0"),))
    steps = episode("Paris", question=question).steps
    search = Step("", ToolCall("search", {"query": query}), steps[0].evidence, helpful=False)
    row = Trajectory((first, search, steps[1]), question, "Paris", answers=("Paris",))
    assert SourceGated(looked_up=False).score(row).value == value


CALLS = [
    ("Paris", {"query": "Pa\u200bris"}, 1),
    ("Paris", {"query": "\uff30aris"}, 1),
    ("S\u00e3o Paulo", {"query": "Sa\u0303o Paulo"}, 1),
    ("S\u00e3o Paulo", {"url": "https://x.org/S%C3%A3o_Paulo"}, 1),
    ("O'Neill", {"query": "O\u2019Neill"}, 1),
    (r"\boxed{Paris}", {"query": "Paris"}, 1),
    ('{"answer": "Paris"}', {"query": "Paris"}, 1),
    ("Paris", {"queries": ["x", "Paris"]}, 1),
    ("5", {"query": "5"}, 1),
    ("1889", {"queries": ["the tower", "1889"]}, 1),
    ("1889", {"query": "1889", "site": "x.org"}, 1),
    ("Ada Lovelace", {"query": "Lovelace, Ada"}, 1),
    ("Ada Lovelace", {"query": "Ada, the first Lovelace"}, 1),
    ("Ada Lovelace", {"query": "\u00c1da Lovelac\u00e9"}, 1),
    ("1,200 men", {"query": "1200 man and men"}, 1),
    ("Ada Lovelace", {"query": "Ada"}, 0),
    ("5", {"query": "moons", "top_k": 5}, 0),
    ("5", {"query": "moons", "top_k": "5"}, 0),
    ("5", {"query": "moons", "page": {"number": 5}}, 0),
    ("5", {"entity": "Mars", "limit": 5}, 0),
    ("subject", {"subject": "Mars"}, 0),
    ("yes", {"query": "Yes Man, the film"}, 0),
    ("No", {"query": "no country for old men"}, 0),
    ("It", {"query": "which novel, and who wrote it"}, 0),
    ("unknown", {"query": "tomb of the unknown soldier"}, 0),
]


def looked_up_in(trajectory: Trajectory) -> int:
    """The step that looks the answer up; 0: there is none."""
    look_up = first_look_up(trajectory)
    return look_up.step if look_up else 0


@pytest.mark.parametrize(("answer", "arguments", "step"), CALLS)
def test_what_of_a_call_looks_an_answer_up(answer, arguments, step):
    row = Trajectory((Step("", ToolCall("tool", arguments)),), "?", answer)
    assert looked_up_in(row) == step


def second_search(answer: str, question: str, before: str, query: str) -> Trajectory:
    """Who asks with this query after a first search has returned the text `before`."""
    first = Step("", ToolCall("search", {"query": "q"}), (Evidence(before),))
    second = Step("", ToolCall("search", {"query": query}))
    return Trajectory((first, second), question, answer)


PIECES = [
    ("New York City", "Which city?", "It is in Manhattan, New York.", "New York city museums"),
    ("new york city", "Which city?", "It is in Manhattan, New York.", "new york city museums"),
    ("Lake Victoria", "Which lake feeds it?", "The Victoria Nile.", "Lake Victoria"),
    ("First Man", "Which film?", "", "film of a man on the moon"),
    ("The Search Party", "Which novel?", "", "novel of a party"),
    ("The Beatles", "Which band?", "Their album 'Beatles for Sale'", "The Beatles members"),
    ("1,200 men", "How many?", "He led 1200 men.", "1,200 men"),
    ("12 June 1990", "When?", "born: 1990-06-12", "12 June 1990"),
]
"""Answers whose words were read in pieces, or of which a call holds but the common ones."""


@pytest.mark.parametrize(("answer", "question", "before", "query"), PIECES)
def test_who_asks_with_words_of_question_and_evidence_looks_nothing_up(
    answer, question, before, query
):
    assert first_look_up(second_search(answer, question, before, query)) is None


KNOWN = [
    ("John Adams", "Which president?", "John Smith met Peter Adams.", "John Adams"),
    ("7 December 1941", "Which day of December 1941?", "7 ships", "7 December 1941"),
    ("First Man", "Which film of a man?", "", "First Man"),
    ("First Man", "Which film?", "", "the man who was first"),
    ("War Games", "Which film of a war?", "computer games of 1983", "War Games"),
    ("12 June 1990", "When?", "", "1990-06-12"),
    ("\u5317\u4eac", "Which city?", "", "\u5317 \u4eac"),
]


@pytest.mark.parametrize(("answer", "question", "before", "query"), KNOWN)
def test_an_answer_is_looked_up_though_words_of_it_were_read(answer, question, before, query):
    assert looked_up_in(second_search(answer, question, before, query)) == 2


IN_A_SENTENCE = [
    ("It is probably Lima.", ("Lima",), 2),
    ("Lima, Peru", ("Peru", "Lima"), 2),
    ("It is Lima.", ("Cuzco",), 0),
    ("It is Lima.", ("The city of Lima", "Lima, Peru"), 0),
    ("Lima, near Callao", ("Lima", "Lima, near Callao"), 0),
    ("Peru, whose capital I read of", ("Peru",), 0),
]
"""Answers, gold answers, and the step that looks one up that stands in the answer."""


@pytest.mark.parametrize(("answer", "golds", "step"), IN_A_SENTENCE)
def test_what_is_right_in_a_sentence_is_looked_up_too(answer, golds, step):
    first = Step("", ToolCall("search", {"query": "q"}), (Evidence("Peru has a capital."),))
    again = Step("", ToolCall("search", {"query": "Is Lima the capital of Peru?"}))
    row = Trajectory((first, again), "Which city is it?", answer, answers=golds)
    assert looked_up_in(row) == step


BEFORE = [
    ("O'Neill", Evidence("by Eugene O\u2019Neill")),
    ("1914-1918", Evidence("from 1914\u20131918")),
    ("S\u00e3o Paulo", Evidence("in Sa\u0303o Paulo")),
    ("Paris", Evidence("a city", url="https://x.org/Paris")),
    ("Paris", Evidence("a city", source="wiki:Paris")),
]


@pytest.mark.parametrize(("answer", "evidence"), BEFORE)
def test_what_was_returned_before_is_not_looked_up(answer, evidence):
    first = Step("", ToolCall("search", {"query": "q"}), (evidence,))
    row = Trajectory((first, Step("", ToolCall("search", {"query": answer}))), "?", answer)
    assert first_look_up(row) is None


def test_words_that_were_returned_before_are_not_looked_up_in_another_order():
    first = Step("", ToolCall("search", {"query": "q"}), (Evidence("Ada, called Lovelace"),))
    again = Step("", ToolCall("search", {"query": "Lovelace Ada"}))
    assert first_look_up(Trajectory((first, again), "?", "Ada Lovelace")) is None


def test_what_a_call_looks_up_counts_unless_it_is_told_not_to():
    search = Step("", ToolCall("search", {"query": "Paris"}), (FRANCE,))
    last = episode("Paris").steps[1]
    row = Trajectory((search, last), "Which city?", "Paris", answers=("Paris",))
    assert SourceGated().score(row).value == 1.0
