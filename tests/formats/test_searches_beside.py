"""Searches that an API ran and reports beside its reply: what they were for, and when there was
none.
"""

import pytest

from faithful_search.formats.api_response import read as read_response
from faithful_search.formats.messages import read

QUESTION = "Where was Ada born?"
ADDRESS = "https://e.org/ada"
PAGE = f"Ada, {ADDRESS}: born in Veldt."
OTHER = "https://e.org/veldt"
ASKED = {"role": "user", "content": QUESTION}
CALL = {"id": "1", "function": {"name": "search", "arguments": '{"query": "Ada"}'}}
OPENAI = [
    ASKED,
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "1", "content": PAGE},
]
TOOL_USE = {"type": "tool_use", "id": "1", "name": "search", "input": {"query": "Ada"}}
RESULT = {"type": "tool_result", "tool_use_id": "1", "content": PAGE}
ANTHROPIC = [
    ASKED,
    {"role": "assistant", "content": [TOOL_USE]},
    {"role": "user", "content": [RESULT]},
]
IN_TAGS = '<tool_call>\n{"name": "search", "arguments": {"query": "Ada"}}\n</tool_call>'
HERMES = [
    ASKED,
    {"role": "assistant", "content": IN_TAGS},
    {"role": "user", "content": f"<tool_response>\n{PAGE}\n</tool_response>"},
]
KIMI = (
    "<|tool_calls_section_begin|><|tool_call_begin|>functions.search:0<|tool_call_argument_begin|>"
)
IN_TOKENS = f'{KIMI}{{"query": "Ada"}}<|tool_call_end|><|tool_calls_section_end|>'
TOKENS = [
    ASKED,
    {"role": "assistant", "content": IN_TOKENS},
    {"role": "user", "content": PAGE},
]
FORMS = pytest.mark.parametrize(
    "chat", [OPENAI, ANTHROPIC, HERMES, TOKENS], ids=["openai", "anthropic", "tags", "tokens"]
)


def reply(address):
    return {"role": "assistant", "content": "Veldt.", "sources": [{"url": address, "title": "A"}]}


def searches(messages):
    """The arguments of the searches that were added, as they are written."""
    calls = [call for message in messages for call in message.calls if call.name == "web_search"]
    return [call.written for call in calls]


@FORMS
def test_pages_that_a_tool_returned_are_no_search(chat):
    assert searches(read([*chat, reply(ADDRESS)])) == []


@pytest.mark.parametrize(("intent", "count"), [("", 1), ("Ada", 2)])
def test_pages_of_a_query_of_its_own_are_a_search(intent, count):
    context = {"citations": [{"url": ADDRESS, "content": "A"}], "intent": intent}
    chat = read([*OPENAI, {"role": "assistant", "content": "Veldt.", "context": context}])
    assert len([call for message in chat for call in message.calls]) == count


@FORMS
def test_other_pages_are_a_search_for_the_question(chat):
    (written,) = searches(read([*chat, reply(OTHER)]))
    assert f'"query": "{QUESTION}"' in written


@FORMS
def test_pages_of_an_earlier_question_are_a_new_search(chat):
    again = {"role": "user", "content": "And Bo?"}
    (written,) = searches(
        read([*chat, {"role": "assistant", "content": "V"}, again, reply(ADDRESS)])
    )
    assert '"query": "And Bo?"' in written


def test_words_beside_a_result_are_the_question():
    told = {"role": "user", "content": [RESULT, {"type": "text", "text": "And Bo?"}]}
    (written,) = searches(read([*ANTHROPIC[:2], told, reply(OTHER)]))
    assert '"query": "And Bo?"' in written


@pytest.mark.parametrize("chat", [OPENAI, ANTHROPIC], ids=["openai", "anthropic"])
@pytest.mark.parametrize(("address", "count"), [(ADDRESS, 0), (OTHER, 1)])
def test_pages_beside_a_response_are_told_from_returned_ones(chat, address, count):
    answer = {"choices": [{"message": {"role": "assistant", "content": "Veldt."}}]}
    answer["web_search"] = [{"link": address, "title": "A"}]
    messages = read(read_response({"request": {"messages": chat}, "response": answer}).messages)
    assert len(searches(messages)) == count


def test_pages_beside_a_response_are_for_the_question_in_parts():
    asked = {"role": "user", "content": [{"type": "text", "text": QUESTION}]}
    answer = {"choices": [{"message": {"role": "assistant", "content": "Veldt."}}]}
    answer["web_search"] = [{"link": ADDRESS, "title": "A"}]
    value = {"request": {"messages": [asked]}, "response": answer}
    (written,) = searches(read(read_response(value).messages))
    assert f'"query": "{QUESTION}"' in written
