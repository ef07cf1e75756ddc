"""Contexts in a column beside a chat: evidence where the column says that the agent had them."""

from typing import Any

import pytest

import faithful_search as fs
from faithful_search.errors import DataError

QUESTION = "Where was Ada born?"
BORN = 'Ada was born in "Veldt".'
CHAT = [{"role": "user", "content": QUESTION}, {"role": "assistant", "content": "Veldt"}]
CALL = {"id": "1", "function": {"name": "search", "arguments": '{"query": "Ada"}'}}
CALLING = {"role": "assistant", "content": None, "tool_calls": [CALL]}


def unread(row: dict[str, Any]) -> list[str]:
    issues = fs.parse(row).all_issues()
    return [issue.why for issue in issues if issue.kind == "content_unread"]


def with_result(content: Any) -> list[dict[str, Any]]:
    result = {"role": "tool", "tool_call_id": "1", "content": content}
    return [CHAT[0], CALLING, result, CHAT[1]]


@pytest.mark.parametrize("column", ["retrieved_contexts", "retrieval_context", "retrievedDocs"])
@pytest.mark.parametrize("contexts", [[BORN], [{"page_content": BORN}], BORN])
def test_contexts_that_were_retrieved_are_evidence(column, contexts):
    trajectory = fs.parse({"messages": CHAT, column: contexts})
    assert [passage.text for passage in trajectory.passages] == [BORN]


def test_they_were_retrieved_for_the_question():
    trajectory = fs.parse({"messages": CHAT, "retrieved_contexts": [BORN]})
    assert trajectory.steps[0].call.arguments == {"query": QUESTION}


def test_the_answer_stays_the_answer():
    trajectory = fs.parse({"messages": CHAT, "retrieved_contexts": [BORN]})
    assert trajectory.answer == "Veldt"


def test_a_reply_in_two_messages_stays_behind_them():
    trajectory = fs.parse({"messages": [*CHAT, CHAT[1]], "retrieved_contexts": [BORN]})
    assert trajectory.answer == "Veldt\nVeldt"


AGAIN = [*CHAT, {"role": "user", "content": "And Bob?"}, {"role": "assistant", "content": "Oslo"}]
IN_TAGS = [CHAT[0], {"role": "assistant", "content": "<think>So.</think><answer>Veldt</answer>"}]
UNCERTAIN: dict[str, dict[str, Any]] = {
    "contexts": {"messages": CHAT, "contexts": [BORN]},
    "documents": {"messages": CHAT, "documents": [{"text": BORN}]},
    "a text": {"messages": CHAT, "context": BORN},
    "HotpotQA's": {"messages": CHAT, "context": {"title": ["Ada"], "sentences": [[BORN]]}},
    "of an unknown form": {"messages": CHAT, "retrieved_contexts": [{"words": BORN}]},
    "documents of an unknown form": {"messages": CHAT, "retrieved_docs": [{"words": BORN}]},
    "two questions": {"messages": AGAIN, "retrieved_contexts": [BORN]},
    "another result": {"messages": with_result("Nobody."), "retrieved_contexts": [BORN]},
    "an agent that writes tags": {"messages": IN_TAGS, "retrieved_contexts": [BORN]},
}


@pytest.mark.parametrize("row", UNCERTAIN.values(), ids=UNCERTAIN)
def test_other_contexts_are_no_evidence(row):
    assert BORN not in [passage.text for passage in fs.parse(row).passages]


@pytest.mark.parametrize("row", UNCERTAIN.values(), ids=UNCERTAIN)
def test_other_contexts_are_counted(row):
    [why] = unread(row)
    assert "1 contexts" in why


@pytest.mark.parametrize("content", [BORN, [{"type": "search_result", "content": BORN}]])
def test_contexts_that_a_tool_returned_are_not_counted_again(content):
    assert unread({"messages": with_result(content), "retrieved_contexts": [BORN]}) == []


def test_another_list_of_such_a_name_is_nothing():
    assert unread({"messages": CHAT, "documents": [{"path": "ada.pdf"}]}) == []


@pytest.mark.parametrize("cell", [[], "", "  ", None, {}, True])
def test_a_column_without_contexts_is_nothing(cell):
    assert unread({"messages": CHAT, "contexts": cell}) == []


@pytest.mark.parametrize("column", ["citations", "Citations", "results"])
def test_addresses_alone_are_no_contexts_of_an_answer(column):
    row = {"question": QUESTION, column: ["https://ada.example"], "answer": "Veldt"}
    with pytest.raises(DataError, match="no column with messages"):
        fs.parse(row)
