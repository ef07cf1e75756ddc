"""Chats that mix the forms of calls, results and answers, in order and in disorder."""

import re
from typing import Any

import pytest
from chat_messages import agent, answers, call, result, returned, text, thoughts, tool, user
from dialect_texts import kinds
from hypothesis import given, strategies as st

from faithful_search.dialects import parse
from faithful_search.trajectory import Trajectory


def page(number: int) -> str:
    return f"page {number}."


def searching(number: int) -> dict[str, Any]:
    return agent(None, call(str(number), query=f"query {number}."))


def handing_in(number: int) -> dict[str, Any]:
    return call(f"f{number}", "final_answer", answer=f"answer {number}.")


def in_tags(number: int) -> str:
    return f"<tool_response>\n{page(number)}\n</tool_response>"


def in_parts(number: int, *before: str, behind: str | None = None) -> dict[str, Any]:
    """A result among a user's words."""
    parts = [*map(text, before), result(str(number), page(number))]
    return user(*parts, *([] if behind is None else [text(behind)]))


def tagged_call(number: int) -> dict[str, Any]:
    written = f'{{"name": "search", "arguments": {{"query": "query {number}."}}}}'
    return agent(f"<tool_call>{written}</tool_call>")


def token_call(number: int) -> dict[str, Any]:
    return agent(f"<function=search><parameter=query>query {number}.</parameter></function>")


def words(number: int) -> str:
    return f"question {number}.?"


SEARCHES = {
    "messages": lambda n: [searching(n), tool(page(n), str(n))],
    "without an id": lambda n: [searching(n), tool(page(n))],
    "parts": lambda n: [searching(n), in_parts(n)],
    "parts and words": lambda n: [searching(n), in_parts(n, words(n), behind=words(n))],
    "parts and blanks": lambda n: [searching(n), in_parts(n, " ", behind="")],
    "tags": lambda n: [tagged_call(n), user(in_tags(n))],
    "tags and words": lambda n: [tagged_call(n), user(f"{words(n)}\n{in_tags(n)}\n{words(n)}")],
    "tokens and words": lambda n: [token_call(n), user(f"{in_tags(n)} {words(n)}")],
}
ENDS = {
    "a reply": lambda n: [agent(f"answer {n}.")],
    "a reply behind a call": lambda n: [searching(n), agent(f"answer {n}.")],
    "handed in": lambda n: [agent(None, handing_in(n)), tool("received", f"f{n}")],
    "handed in beside a call": lambda n: [
        agent(None, *searching(n)["tool_calls"], handing_in(n)),
        tool(page(n), str(n)),
        tool("received", f"f{n}"),
    ],
}
CALLING = {"a reply behind a call": [], "handed in beside a call": ["page"]}  # what they return
EXCHANGES = st.lists(
    st.tuples(
        st.lists(st.sampled_from(sorted(SEARCHES)), max_size=3), st.sampled_from(sorted(ENDS))
    ),
    min_size=1,
    max_size=3,
)


def read(exchanges: list[tuple[list[str], str]]) -> Trajectory:
    """A chat of such exchanges; searches and ends are numbered through."""
    chat: list[dict[str, Any]] = []
    number = 0
    for searches, end in exchanges:
        chat.append(user(words(number)))
        for name in searches:
            chat += SEARCHES[name](number)
            number += 1
        chat += ENDS[end](number)
        number += 1
    return parse(chat, "openai")


@given(EXCHANGES)
def test_each_call_has_its_own_page(exchanges: list[tuple[list[str], str]]) -> None:
    expected: list[list[str]] = []
    number = 0
    for searches, end in exchanges:
        expected += [[page(number + place)] for place in range(len(searches))]
        number += len(searches)
        if end in CALLING:
            expected.append([page(number)] if CALLING[end] else [])
        number += 1
    trajectory = read(exchanges)
    asked = [step.call.arguments["query"] for step in trajectory.steps if step.call]
    assert returned(trajectory) == expected
    assert len({*asked}) == len(asked) == len(expected)


@given(EXCHANGES)
def test_each_answer_is_one(exchanges: list[tuple[list[str], str]]) -> None:
    expected: list[str] = []
    number = -1
    for searches, _ in exchanges:
        number += len(searches) + 1
        expected.append(f"answer {number}.")
    trajectory = read(exchanges)
    assert answers(trajectory) == expected
    assert thoughts(trajectory) == []
    assert trajectory.question == words(0)


@given(EXCHANGES)
def test_issues_say_what_is_missing_and_nothing_else(
    exchanges: list[tuple[list[str], str]],
) -> None:
    found = kinds(read(exchanges))
    unanswered = sum(end == "a reply behind a call" for _, end in exchanges)
    assert found.count("response_missing") == unanswered
    assert found.count("asked_again") == len(exchanges) - 1
    assert {*found} <= {"response_missing", "asked_again", "dialect_assumed"}


# in disorder

PIECES = {
    "searching": searching,
    "replying": lambda n: agent(f"answer {n}."),
    "citing": lambda n: agent(f"answer {n}.", sources=[{"url": "https://e.org/o", "title": "O"}]),
    "handing in": lambda n: agent(None, handing_in(n)),
    "handing in beside a call": lambda n: agent(None, *searching(n)["tool_calls"], handing_in(n)),
    "asking": lambda n: user(words(n)),
    "blank": lambda n: user(" "),
    "message": lambda n: tool(page(n), str(n - 1)),
    "message without an id": lambda n: tool(page(n)),
    "parts": lambda n: user(text(words(n)), result(str(n - 1), page(n)), text("")),
    "tags": lambda n: user(f"{in_tags(n)}{words(n)}"),
    "tags behind words": lambda n: user(f"{words(n)}\n{in_tags(n)}"),
    "tags in a sentence": lambda n: user(f"So {in_tags(n)} {words(n)}"),
}
ORDERS = st.lists(st.sampled_from(sorted(PIECES)), max_size=6)


def read_in(order: list[str]) -> Trajectory:
    pieces = [PIECES[name](number) for number, name in enumerate(order, start=2)]
    return parse([user(words(0)), agent("answer 1."), *pieces], "openai")


def numbered(kind: str, texts: list[str]) -> set[str]:
    return {match for words in texts for match in re.findall(rf"{kind} \d+\.", words)}


@pytest.mark.parametrize("kind", ["question", "page"])
@given(order=ORDERS)
def test_what_others_said_is_never_the_agents(kind: str, order: list[str]) -> None:
    trajectory = read_in(order)
    assert not numbered(kind, answers(trajectory) + thoughts(trajectory))


@given(ORDERS)
def test_no_question_is_evidence(order: list[str]) -> None:
    evidence = [passage.text for passage in read_in(order).evidence.values()]
    assert not numbered("question", evidence)


@given(ORDERS)
def test_no_page_is_a_query(order: list[str]) -> None:
    queries = [str(step.call.arguments) for step in read_in(order).steps if step.call]
    assert not numbered("page", queries)


@given(ORDERS)
def test_no_search_is_for_nothing(order: list[str]) -> None:
    for step in read_in(order).steps:
        assert step.call is None or step.call.arguments["query"].strip()


@given(ORDERS)
def test_a_page_is_evidence_or_there_is_an_issue(order: list[str]) -> None:
    if any("handing in" in name for name in order):  # what follows may be a receipt of the answer
        return
    trajectory = read_in(order)
    evidence = [passage.text for passage in trajectory.evidence.values()]
    pages = [name for name in order if "message" in name or name.startswith(("parts", "tags"))]
    issues = {*kinds(trajectory)} - {"asked_again", "dialect_assumed"}
    assert len(numbered("page", evidence)) == len(pages) or issues
