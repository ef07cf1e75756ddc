"""VERITAS's three measures: which pairs they make of a trajectory, and what they say of them."""

import pytest
from stub_judges import Down, Recorder

from faithful_search.errors import ConfigError
from faithful_search.judges import Pair
from faithful_search.rewards import InfoThink, ThinkAnswer, ThinkSearch, turns
from faithful_search.trajectory import Evidence, Step, ToolCall, Trajectory

TOWER = (Evidence("It was finished in 1889.", "Eiffel Tower"), Evidence("Paris lies on the Seine.", "Paris"))


def search(think: str | None, query: str = "tower", evidence=TOWER, **more) -> Step:
    return Step(think=think, call=ToolCall("search", {"query": query}), evidence=evidence, **more)


def test_info_think_pairs_are_what_a_turn_returned_and_the_thought_right_after_it():
    note = Step(think="Not that.", call=ToolCall("read", {"url": "x"}), note="Error: page not found")
    steps = (search("Find it."), note, Step(think="good end", answer="Paris"))
    judge = Recorder()
    score = InfoThink(judge).score(Trajectory(steps, question="Where?"))
    premise = "Eiffel Tower\nIt was finished in 1889.\n\nParis\nParis lies on the Seine."
    assert judge.asked == [
        [
            Pair(premise, "Not that.", "Where?", "info_think"),
            Pair("Error: page not found", "good end", "Where?", "info_think"),
        ]
    ]
    assert score.value == 0.5 and score.why.startswith("step 2: ")
    assert [(pair["step"], pair["label"]) for pair in score.parts["pairs"]] == [(2, False), (3, True)]
    assert InfoThink(judge, soft=True).score(Trajectory(steps)).value == 0.5  # of 0.25 and 0.75


def test_parallel_calls_are_one_response():
    both = (search("Find both.", evidence=TOWER[:1]), search(None, evidence=TOWER[1:], same_turn=True))
    asked = InfoThink().pairs(Trajectory((*both, Step(think="So.", answer="a"))))
    assert [(item.step, item.pair.premise) for item in asked] == [
        (3, "Eiffel Tower\nIt was finished in 1889.\n\nParis\nParis lies on the Seine.")
    ]


@pytest.mark.parametrize(
    "after", [Step(answer="a"), search(None), search("  \n"), search("", helpful=True, refs=("E1",))]
)
def test_acting_on_information_without_a_thought_is_a_settled_zero(after):
    score = InfoThink(Down()).score(Trajectory((search("Find it."), after)))
    assert score.value == 0.0 and score.parts["applies"]
    assert score.parts["pairs"][0]["why"] == "acts on what was returned without a thought in between"
    assert InfoThink(Down(), unthinking=False).score(Trajectory((search("Find it."), after))).value is None


@pytest.mark.parametrize(
    ("steps", "dialect"),
    [
        ((search("Find it."),), ""),  # cut off
        ((Step(think="I know.", answer="a"),), ""),
        ((search("x", evidence=()), Step(think="y", answer="a")), ""),  # nothing came back
        ((Step(think="x", note="Say <answer>."), Step(think="y", answer="a")), ""),  # no call: a controller speaks
        ((search("Find it."), Step(note="cut")), ""),  # neither thought nor action
        ((search(None), Step(answer="a")), "openai"),  # a dialect that asks for no thoughts
        ((search("x", evidence=(), note="..."), Step(think="So.", answer="a")), ""),  # left out of the transcript
    ],
)
def test_where_there_is_nothing_to_judge_there_is_no_value(steps, dialect):
    score = InfoThink(Down()).score(Trajectory(steps, dialect=dialect))
    assert score.value is None and "abstained" not in score.parts and score.why


def test_think_search_pairs_each_call_with_the_thought_of_its_turn():
    steps = (
        search("good idea", "good query"),
        Step(call=ToolCall("graph", {"entity": "Paris", "top_k": 3}), same_turn=True),
        search(None, "no thought before it"),
        Step(think="third", call=ToolCall("read", raw="  the call as written ")),
        Step(think="fourth", call=ToolCall("clock")),
        Step(think="last", answer="a"),
    )
    asked = ThinkSearch().pairs(Trajectory(steps, question="q"))
    assert [(item.step, item.pair.premise, item.pair.hypothesis) for item in asked] == [
        (1, "good idea", "good query"),
        (2, "good idea", '{"entity": "Paris", "top_k": 3}'),
        (4, "third", "the call as written"),
    ]
    assert {item.pair.task for item in asked} == {"think_search"}
    score = ThinkSearch(Recorder()).score(Trajectory(steps))
    assert score.value == pytest.approx(1 / 3) and score.why.startswith("step 2: ")


def test_the_words_of_a_call():
    words = turns.call_words
    assert words(ToolCall("s", {"query_list": ["one", "two"], "top_n": 5, "raw": True})) == "one\ntwo"
    assert words(ToolCall("s", {"query": "q", "source": "web", "filter": {}})) == 'q\n{"source": "web"}'
    assert (words(ToolCall("s", {"a": 1})), words(ToolCall("s"))) == ('{"a": 1}', "")


@pytest.mark.parametrize(
    ("thought", "answer", "how", "value"),
    [
        ("So the capital is The Hague.", "the hague", "squad", 1.0),
        ("It is Rome.", "Paris", "squad", 0.0),
        ("made in the U.S.A. then", "USA", "squad", 1.0),
        ("made in the U.S.A. then", "USA", "pokee", 0.0),
        ("nothing", "!!!", "squad", 0.0),  # the normaliser leaves nothing of it
        ("I know it now.", "no", "squad", 1.0),  # characters, as the paper has it
    ],
)
def test_sub_em_by_hand(thought, answer, how, value):
    score = ThinkAnswer(how=how).score(Trajectory((search("x"), Step(think=thought, answer=answer)), answer=answer))
    assert (score.value, score.parts["judge"]) == (value, f"sub_em_{how}")
    assert bool(score.why) == (value == 0)


def test_the_thought_is_the_last_one_before_the_answer_and_never_a_check_of_it():
    steps = (
        Step(think="Paris it is", answer="Rome"),
        Step(think="Rome is wrong", verified=False),
        Step(answer="Paris"),
        Step(think="Paris is right after all", verified=True),
    )
    (asked,) = ThinkAnswer(Recorder()).pairs(Trajectory(steps, answer="Paris"))
    assert (asked.step, asked.pair, asked.settled) == (3, Pair("Paris it is", "Paris", "", "think_answer"), None)
    assert ThinkAnswer().score(Trajectory(steps[1:], answer="Paris")).value is None  # no thought but checks
    assert ThinkAnswer().score(Trajectory(steps)).value is None  # no answer
    assert ThinkAnswer().score(Trajectory(answer="Paris")).value is None
    with pytest.raises(ConfigError):
        ThinkAnswer(how="other")


@pytest.mark.parametrize("reward", [InfoThink, ThinkSearch, ThinkAnswer])
def test_a_judge_that_says_nothing_leaves_no_number(reward):
    def made(word):
        return Trajectory((search(word, word), search(word, word), Step(think=word, answer=word)), answer=word)

    hard, good = reward(Recorder()).score_batch([made("hard"), made("good")])
    assert hard.value is None and hard.parts["abstained"] and "cannot tell" in hard.why
    assert good.value == 1.0
    assert reward(Down()).score(made("good")).parts["abstained"]
    assert reward(Down()).score(Trajectory()).parts.get("abstained") is None
