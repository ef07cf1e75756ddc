"""Answers that are handed in beside calls, calls that nothing answers, and results without an id:
no answer is a thought, and no result another call's.
"""

import pytest
from chat_messages import (
    agent,
    answers,
    call,
    result,
    returned,
    text,
    thoughts,
    tool,
    use,
    user,
)
from dialect_texts import kinds
from hypothesis import given, strategies as st

from faithful_search.dialects import parse
from faithful_search.formats.pairing import Label, pair

PAGE = "Ada was born in Veldt."
ASKED = user("Where was Ada born?")
NEXT = "Where was Bo born?"
TWO = agent(None, call("1"), call("2"))

# answers that are handed in beside other calls

VELDT = call("2", "final_answer", answer="Veldt")
HANDED_IN = agent(None, VELDT)
BOTH = agent(None, call("1"), VELDT)
AFTER = {
    "tool messages": [tool(PAGE, "1"), tool("ok", "2"), user(NEXT)],
    "parts": [user(result("1", PAGE), result("2", "ok"), text(NEXT))],
    "nothing": [user(NEXT)],
}


@pytest.mark.parametrize("messages", AFTER.values(), ids=AFTER)
def test_what_is_said_after_another_question_is_another_answer(messages):
    trajectory = parse([ASKED, BOTH, *messages, agent("Oslo")])
    assert answers(trajectory) == ["Veldt", "Oslo"]
    assert thoughts(trajectory) == []
    assert trajectory.question == ASKED["content"]
    assert "asked_again" in kinds(trajectory)


def test_an_answer_is_handed_in_also_where_nothing_was_returned():
    trajectory = parse([ASKED, BOTH])
    assert trajectory.answer == "Veldt"
    assert thoughts(trajectory) == []
    assert kinds(trajectory) == ["response_missing"]


def test_a_call_after_an_answer_was_handed_in_leaves_the_answer():
    chat = [ASKED, BOTH, tool(PAGE, "1"), agent(None, call("3")), tool(PAGE, "3")]
    trajectory = parse(chat)
    assert trajectory.answer == "Veldt"
    assert returned(trajectory) == [[PAGE], [PAGE]]


@pytest.mark.parametrize("first", [[BOTH, tool(PAGE, "1")], [HANDED_IN, tool("no", "2")]])
def test_an_answer_that_is_handed_in_anew_leaves_the_one_before(first):
    again = call("3", "final_answer", answer="Oslo")
    trajectory = parse([ASKED, *first, agent(None, again)])
    assert answers(trajectory) == ["Veldt", "Oslo"]
    assert trajectory.answer == "Oslo"


def test_an_answer_that_is_handed_in_twice_is_one():
    twice = parse([ASKED, HANDED_IN, tool("ok", "2"), HANDED_IN])
    assert answers(twice) == ["Veldt"]
    assert kinds(twice) == []


# calls without a result

UNANSWERED = {
    "messages": [agent([use("1")]), agent("Veldt")],
    "a field": [agent(None, call("1")), agent("Veldt")],
    "parts": [agent([use("1"), text("Veldt")])],
    "a thought before": [agent([text("I look."), use("1")]), agent("Veldt")],
    "two calls": [agent([use("1")]), agent("I look."), agent([use("2")]), agent("Veldt")],
    "a result of another call": [
        TWO, tool(PAGE, "1"), agent(None, call("3")), tool(PAGE, "2"), agent("Veldt"),
    ],
}  # fmt: skip


@pytest.mark.parametrize("messages", UNANSWERED.values(), ids=UNANSWERED)
def test_words_behind_a_call_without_a_result_are_the_answer(messages):
    trajectory = parse([ASKED, *messages])
    assert answers(trajectory) == ["Veldt"]
    assert "Veldt" not in thoughts(trajectory)
    assert "response_missing" in kinds(trajectory)


def test_what_was_thought_behind_the_call_stands_beside_the_answer():
    chat = [ASKED, agent([use("1")]), agent("Veldt", reasoning_content="I know it.")]
    assert [step.think for step in parse(chat).steps] == [None, "I know it."]


def test_words_behind_a_call_with_a_result_are_a_thought():
    chat = [ASKED, agent([use("1")]), agent("I look."), tool(PAGE, "1"), agent("Veldt")]
    trajectory = parse(chat)
    assert thoughts(trajectory) == ["I look."]
    assert answers(trajectory) == ["Veldt"]
    assert kinds(trajectory) == []


def test_a_call_at_the_end_may_still_run():
    assert kinds(parse([ASKED, agent("I look.", call("1"))])) == []


# results without ids


@pytest.mark.parametrize(
    ("results", "expected"),
    [
        ([tool("one"), tool("two", "2")], [["one"], ["two"]]),
        ([tool("two", "2"), tool("one"), tool("more")], [["one"], ["two"]]),
        ([tool("one"), tool("two", "2"), tool("more")], [["one"], ["two"]]),
        ([tool("one", "1"), tool("two"), tool("more")], [["one"], ["two"]]),
        ([tool("two", "2"), user("<tool_response>one</tool_response>")], [["one"], ["two"]]),
        ([user("<tool_response>one</tool_response>"), tool("two", "2")], [["one"], ["two"]]),
        ([user(result("1", "one"), text("On."), result("2", "two"))], [["one"], ["two"]]),
    ],
)
def test_results_without_ids_go_to_calls_without_results(results, expected):
    trajectory = parse([ASKED, TWO, *results, agent("Veldt")])
    assert returned(trajectory) == expected
    left_out = ["response_unpaired"] if "more" in str(results) else []
    assert kinds(trajectory) == left_out


def test_a_result_behind_other_words_goes_to_the_next_call():
    results = [user(f"<tool_response>{name}</tool_response>") for name in ("one", "two")]
    trajectory = parse([ASKED, TWO, results[0], user("On."), results[1], agent("Veldt")])
    assert returned(trajectory) == [["one"], ["two"]]


def test_fewer_results_go_to_the_first_of_the_calls_without_one():
    asking = agent(None, call("1"), call("2"), call("3"))
    trajectory = parse([ASKED, asking, tool("two", "2"), tool("one"), agent("Veldt")])
    assert returned(trajectory) == [["one"], ["two"], []]
    assert kinds(trajectory) == ["response_missing"]


def test_a_result_by_id_behind_another_turn_keeps_its_call():
    later = [agent(None, call("3")), tool("one", "1"), tool("three", "3"), agent("Veldt")]
    trajectory = parse([ASKED, TWO, tool("two"), tool("more"), *later])
    assert returned(trajectory) == [["one"], ["two"], ["three"]]
    assert sorted(kinds(trajectory)) == ["response_misplaced", "response_unpaired"]


def test_a_further_result_behind_another_turn_is_left_out():
    later = [agent(None, call("3")), tool("three", "3"), tool("late", "1"), agent("Veldt")]
    trajectory = parse([ASKED, agent(None, call("1")), tool("one", "1"), *later])
    assert returned(trajectory) == [["one"], ["three"]]
    assert kinds(trajectory) == ["response_unpaired"]


@pytest.mark.parametrize(
    "results",
    [
        [tool("ok"), tool(PAGE)],
        [tool("ok", "2"), tool(PAGE, "2")],
        [user(result("7", "ok"), result("8", PAGE))],
    ],
)
def test_a_further_result_of_an_answer_that_was_handed_in_is_an_issue(results):
    issues = parse([ASKED, HANDED_IN, *results]).all_issues()
    assert [issue.why for issue in issues if issue.kind == "response_unpaired"] == [
        "a further result stood behind a call that hands in the answer: it is left out"
    ]


def test_one_result_of_an_answer_that_was_handed_in_is_no_issue():
    assert kinds(parse([ASKED, HANDED_IN, tool("ok", "2")])) == []


def test_a_result_that_is_left_out_is_described():
    issues = parse([ASKED, TWO, tool("two", "2"), tool("a"), tool("b"), agent("V")]).issues
    assert [issue.why for issue in issues] == [
        "a result names no call, and each call has a result: it is left out"
    ]


@given(st.lists(st.sampled_from(["", "", "1", "2", "3"]), min_size=1, max_size=5))
def test_no_call_with_a_result_by_id_gets_one_without(names: list[str]) -> None:
    calls = [Label(name, "search") for name in "123"]
    places = pair(calls, [Label(name, "") for name in names]).places
    if not any(names):
        return
    by_id = {place for name, place in zip(names, places, strict=True) if name}
    without = [place for name, place in zip(names, places, strict=True) if not name]
    placed = [place for place in without if place is not None]
    assert not by_id & {*placed}
    assert placed == sorted({*placed})
    assert len(placed) == min(len(without), len(calls) - len(by_id))


@pytest.mark.parametrize("response", ['[{"text": ""}]', '{"results": [{"text": ""}]}', '[""]'])
def test_passages_without_words_are_a_note(response):
    trajectory = parse([ASKED, agent(None, call("1")), tool(response, "1"), agent("Oslo")])
    assert [step.note for step in trajectory.steps] == [response, ""]
