"""A user's words beside results of tools, between tags or in parts, are a question, and no part of
any page.
"""

import json
from typing import Any

import pytest
from chat_messages import (
    TAGGED_CALL,
    TOKEN_CALL,
    agent,
    answers,
    call,
    result,
    returned,
    text,
    tool,
    use,
    user,
)
from dialect_texts import kinds

from faithful_search.dialects import parse
from faithful_search.formats.messages import read

ADDRESS = "https://e.org/ada"
PAGE = f"Ada, {ADDRESS}: born in Veldt."
ELSEWHERE = "https://e.org/bo"
ASKED = "Where was Ada born?"
NEXT = "Where was Bo born?"
TAGGED = f"<tool_response>\n{PAGE}\n</tool_response>"
RETURNED = result("1", PAGE)


def queries(messages: list[dict[str, Any]]) -> list[str]:
    """The queries of the searches that the reader added."""
    calls = [call for message in read(messages) for call in message.calls]
    added = [call.written.split("\n")[1] for call in calls if call.name == "web_search"]
    return [json.loads(written)["arguments"]["query"] for written in added]


def reply(address: str) -> dict[str, Any]:
    return agent("Oslo", sources=[{"url": address, "title": "A"}])


# words beside results between tags

CALLS = {"tags": agent(TAGGED_CALL), "tokens": agent(TOKEN_CALL), "field": agent(None, call("1"))}
BESIDE = {
    "behind": f"{TAGGED}\n{NEXT}",
    "right behind": f"<tool_response>{PAGE}</tool_response>{NEXT}",
    "before": f"{NEXT}\n{TAGGED}",
    "in the line before": f"{NEXT} {TAGGED}",
    "on both sides": f"Thanks.\n{TAGGED}\n\n{NEXT}",
}
EVERY_CALL = pytest.mark.parametrize("asking", CALLS.values(), ids=CALLS)
EVERY_PLACE = pytest.mark.parametrize("content", BESIDE.values(), ids=BESIDE)


@EVERY_CALL
@EVERY_PLACE
def test_a_page_between_tags_is_all_of_the_evidence(asking, content):
    trajectory = parse([user(ASKED), asking, user(content), agent("Oslo")], "openai")
    assert returned(trajectory) == [[PAGE]]
    assert answers(trajectory) == ["Oslo"]
    assert kinds(trajectory) == []


@EVERY_CALL
@EVERY_PLACE
def test_words_beside_tags_are_the_new_question(asking, content):
    chat = [user(ASKED), asking, user(content)]
    assert queries([*chat, reply(ELSEWHERE)]) == [NEXT]
    assert queries([*chat, reply(ADDRESS)]) == []


@EVERY_PLACE
def test_words_beside_tags_ask_again_after_an_answer(content):
    calls = [call("1"), call("2", "final_answer", answer="Veldt")]
    trajectory = parse([user(ASKED), agent(None, *calls), user(content), agent("Oslo")])
    assert returned(trajectory) == [[PAGE]]
    assert answers(trajectory) == ["Veldt", "Oslo"]
    assert "asked_again" in kinds(trajectory)


@pytest.mark.parametrize("dialect", ["pou", "web_dancer", "pokee", "recall"])
@EVERY_PLACE
def test_words_beside_tags_are_no_response_in_any_dialect(dialect, content):
    last = agent("<think>b</think>\n<answer>Oslo</answer>")
    chat = [user(ASKED), agent(f"<think>a</think>{TAGGED_CALL}"), user(content), last]
    step = parse(chat, dialect).steps[0]
    assert step.note or [item.text for item in step.evidence] == [PAGE]
    assert NEXT not in step.note


@pytest.mark.parametrize("dialect", ["pou", "web_dancer", "openai"])
def test_words_beside_a_result_are_no_response_in_any_dialect(dialect):
    answer = agent("<think>b</think>\n<answer>Oslo</answer>")
    chat = [user(ASKED), agent(None, call("1")), user(RETURNED, text(NEXT)), answer]
    step = parse(chat, dialect).steps[0]
    assert NEXT not in f"{step.note}{step.evidence}"


LEADS = ["Here is what the tool returned:", "The tool returned\uff1a"]


@pytest.mark.parametrize("words", LEADS)
@pytest.mark.parametrize("in_parts", [True, False])
def test_words_that_introduce_a_result_are_no_question(words, in_parts):
    content = [text(words), RETURNED] if in_parts else [f"{words}\n{TAGGED}"]
    chat = [user(ASKED), agent(None, call("1")), user(*content)]
    assert queries([*chat, reply(ADDRESS)]) == []
    assert queries([*chat, reply(ELSEWHERE)]) == [ASKED]


def test_a_question_may_end_in_a_colon():
    assert queries([user("Complete this:"), reply(ELSEWHERE)]) == ["Complete this:"]


def test_a_result_that_is_cut_off_behind_words_is_evidence():
    cut = user("Here it is.\n<tool_response>\nAda was born in")
    trajectory = parse([user(ASKED), agent(None, call("1")), cut, agent("Veldt")])
    assert returned(trajectory) == [["Ada was born in"]]


def test_words_between_two_tagged_results_are_in_neither():
    both = user(f"{TAGGED}\nand\n{TAGGED.replace('Ada', 'Bo')}\n{NEXT}")
    for asking in (agent(TAGGED_CALL * 2), agent(None, call("1"), call("2"))):
        trajectory = parse([user(ASKED), asking, both, agent("Oslo")], "openai")
        assert returned(trajectory) == [[PAGE], [PAGE.replace("Ada", "Bo")]]


def test_tags_in_a_page_are_its_text():
    page = f"The tags are\n<tool_response>\nx\n</tool_response>\nand so on. {PAGE}"
    tagged = user(f"<tool_response>\n{page}\n</tool_response>\n{NEXT}")
    assert returned(parse([user(ASKED), agent(TAGGED_CALL), tagged, agent("Oslo")])) == [[page]]


def test_as_many_results_are_told_apart_as_there_are_calls():
    page = f"{PAGE}\n</tool_response>\nand\n<tool_response>\nmore of it."
    tagged = user(f"<tool_response>\n{page}\n</tool_response>\n{NEXT}")
    trajectory = parse([user(ASKED), agent(None, call("1")), tagged, agent("Oslo")])
    assert returned(trajectory) == [[page]]


def test_what_a_rewarded_policys_user_repeats_is_no_further_result():
    both = user(f"{TAGGED}\nYou said\n{TAGGED}\n{NEXT}")
    chat = [user(ASKED), agent(None, call("1"), call("2")), both, agent("Oslo")]
    first, second = returned(parse(chat, responses="messages"))
    assert (len(first), len(second)) == (1, 0)


ANSWERED = {"message": tool(PAGE, "1"), "tags and words": user(f"{TAGGED}\nThanks.")}


@pytest.mark.parametrize("earlier", ANSWERED.values(), ids=ANSWERED)
def test_a_result_behind_words_needs_a_call_without_one(earlier):
    chat = [user(ASKED), agent(None, call("1")), earlier, user(f"You said\n{TAGGED}")]
    trajectory = parse([*chat, agent("Oslo")])
    assert returned(trajectory) == [[PAGE]]
    assert "content_unread" in kinds(trajectory)


UNTOLD = {
    "in a sentence": (agent(None, call("1")), f"He says {TAGGED} and so on", "anywhere"),
    "without a call": (agent("Veldt"), f"{NEXT}\n{TAGGED}", "anywhere"),
    "of a rewarded policy": (agent(None, call("1")), f"You said\n{TAGGED}", "messages"),
}


@pytest.mark.parametrize(("before", "content", "responses"), UNTOLD.values(), ids=UNTOLD)
def test_a_result_that_cannot_be_told_from_words_is_an_issue(before, content, responses):
    trajectory = parse([user(ASKED), before, user(content), agent("Oslo")], responses=responses)
    assert "content_unread" in kinds(trajectory)
    assert not trajectory.evidence


def test_a_result_right_behind_a_word_is_an_issue_beside_another_one():
    both = user(f"He says{TAGGED}\n{TAGGED.replace('Ada', 'Bo')}")
    trajectory = parse([user(ASKED), agent(None, call("1")), both, agent("Oslo")])
    assert kinds(trajectory) == ["content_unread"]
    assert returned(trajectory) == [[PAGE.replace("Ada", "Bo")]]


def test_such_a_result_is_no_part_of_a_query():
    chat = [user(ASKED), agent("Veldt"), user(f"{NEXT}\n{TAGGED}"), reply(ELSEWHERE)]
    assert queries(chat) == [NEXT]


NAMED = ["Answer behind <tool_response></tool_response> now.", "What does <tool_response> mean?"]


@pytest.mark.parametrize("words", NAMED)
@pytest.mark.parametrize("before", [agent("Veldt"), agent(TAGGED_CALL)], ids=["answer", "call"])
def test_a_sentence_that_names_the_tag_is_no_issue(words, before):
    trajectory = parse([user(ASKED), before, user(words), agent("Oslo")], "openai")
    assert "content_unread" not in kinds(trajectory)


def test_a_prompt_may_show_results():
    prompt = f"Results look like this:\n{TAGGED}\nWhere was Ada born?"
    assert parse([user(prompt), agent("Veldt")]).question == prompt


# blanks

BLANK_PARTS = {
    "behind": [user(RETURNED, text(""))],
    "before": [user(text(" \n"), RETURNED)],
    "of their own": [user(RETURNED), user("")],
}


@pytest.mark.parametrize("messages", BLANK_PARTS.values(), ids=BLANK_PARTS)
def test_blanks_ask_nothing(messages):
    chat = [user(ASKED), agent([use("1")]), *messages]
    assert queries([*chat, reply(ADDRESS)]) == []
    assert queries([*chat, reply(ELSEWHERE)]) == [ASKED]


def test_a_blank_message_is_not_the_question():
    assert parse([user(ASKED), user(" "), agent("Veldt")]).question == ASKED


def test_a_blank_message_does_not_ask_again():
    chat = [
        user(ASKED),
        agent(None, call("1")),
        tool(PAGE, "1"),
        agent("Veldt"),
        user(""),
        agent("O"),
    ]
    assert kinds(parse(chat)) == []


def test_blanks_between_words_stay():
    content = [RETURNED, text("And"), text(" "), text("Bo?")]
    assert read([user(ASKED), agent([use("1")]), user(*content)])[-1].content == "And Bo?"
