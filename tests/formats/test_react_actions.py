"""Actions of ReAct in JSON, in Python's form and in code are the calls that they state."""

import json

import pytest

from faithful_search.dialects import parse
from faithful_search.trajectory import Trajectory

CALL = '{"name": "search", "arguments": {"query": "Ada"}}'
STRUCTURED = '{"action": "search", "action_input": {"query": "Ada"}}'
SEARCHES = [
    CALL,
    STRUCTURED,
    f"```json\n{CALL}\n```",
    f"[{CALL}]",
    '{"function": {"name": "search", "arguments": "{\\"query\\": \\"Ada\\"}"}}',
    '{"tool": "search", "tool_input": "Ada"}',
    '{"tool_name": "search", "parameters": {"query": "Ada"}}',
    '{"action": "search", "query": "Ada"}',
    f"I use the search now.\n```json\n{STRUCTURED}\n```",
    f"I call it with\n```\n{CALL}\n```\nand wait.",
    f"I call {CALL}",
    'search\n```json\n{"query": "Ada"}\n```',
    'search {"query": "Ada"}',
    'search: {"query": "Ada"}',
    'search({"query": "Ada"})',
    'search[{"query": "Ada"}]',
    'search(query="Ada")',
    "search\n```\nAda\n```",
    "[search(query='Ada')]",
    "```\nsearch[Ada]\n```",
    "`search[Ada]`",
    "**search[Ada]**",
    "{'action': 'search', 'action_input': 'Ada'}",
]
UNREADABLE = [
    '{"query": "Ada"}',
    '{"action": null}',
    '{"name": "search", "arguments": {"query": "Ada"}',
    f"[{CALL}, {CALL}]",
    f"{CALL}\n{CALL}",
]
WORDS = ["search for {topic}", r"calculate \frac{1}{2}", "read `{a}`", "search [a] and {b}"]


def read(action: str) -> Trajectory:
    return parse(
        f"Question: Who?\nThought: I look.\nAction: {action}\nObservation: Ada was born in Veldt.\n"
        "Thought: So.\nFinal Answer: Veldt"
    )


@pytest.mark.parametrize("action", SEARCHES)
def test_an_action_is_the_call_that_it_states(action):
    call = read(action).steps[0].call
    assert (call.name, call.arguments) == ("search", {"query": "Ada"})


@pytest.mark.parametrize("action", SEARCHES)
def test_such_an_action_has_no_issue(action):
    assert read(action).steps[0].issues == ()


def test_arguments_in_pythons_form_keep_their_types():
    assert read('search(query="Ada", top_k=3)').steps[0].call.arguments == {
        "query": "Ada",
        "top_k": 3,
    }


FENCED = "```python\nprint(1)\n```"


@pytest.mark.parametrize(
    "action",
    [
        json.dumps({"action": "python", "action_input": {"code": FENCED}}),
        f"```\n{json.dumps({'action': 'python', 'action_input': {'code': FENCED}})}\n```",
        f"```json\n{json.dumps({'name': 'python', 'arguments': {'code': 'print(1)'}})}\n```",
    ],
)
def test_code_within_json_is_an_argument(action):
    call = read(action).steps[0].call
    assert call.name == "python"
    assert "print(1)" in call.arguments["code"]


def test_words_around_an_action_belong_to_the_thought():
    step = read(f"I use the search now.\n```json\n{STRUCTURED}\n```").steps[0]
    assert step.think == "I look.\nI use the search now."


def test_a_thought_within_json_belongs_to_the_thought():
    action = {"thought": "Ada it is.", "action": "search", "action_input": "Ada"}
    assert read(json.dumps(action)).steps[0].think == "I look.\nAda it is."


@pytest.mark.parametrize("name", ["id", "name", "type"])
def test_fields_beside_an_action_are_its_arguments(name):
    assert read(json.dumps({"action": "open", name: "12"})).steps[0].call.arguments == {name: "12"}


@pytest.mark.parametrize("action", UNREADABLE)
def test_json_that_is_no_call_is_an_issue(action):
    [issue] = read(action).steps[0].issues
    assert issue.kind == "call_json"


@pytest.mark.parametrize("action", UNREADABLE)
def test_json_that_is_no_call_names_no_tool(action):
    assert read(action).steps[0].call is None


@pytest.mark.parametrize("action", WORDS)
def test_words_with_brackets_are_no_json(action):
    assert read(action).steps[0].call.name == action


@pytest.mark.parametrize(
    "action",
    [
        '{"name": "final_answer", "arguments": {"answer": "Veldt"}}',
        '{"tool": "finish", "input": "Veldt"}',
        'So I end.\n```json\n{"action": "Final Answer", "action_input": "Veldt"}\n```',
        'finish(answer="Veldt")',
    ],
)
def test_an_answer_in_json_is_handed_in(action):
    assert parse(f"Question: Who?\nThought: a\nAction: {action}").answer == "Veldt"


@pytest.mark.parametrize("equation", ["E=mc2", "x = 5", "a=1, b=2", "x==5", "n=None", "A={1, 2}"])
@pytest.mark.parametrize("written", ["Finish({})", "Finish[{}]", "submit({})", "final_answer({})"])
def test_an_equation_is_an_answer_and_no_keyword(written, equation):
    action = written.format(equation)
    assert parse(f"Question: What?\nThought: a\nAction: {action}").answer == equation


@pytest.mark.parametrize(
    ("action", "answer"),
    [
        ("Finish(answer=Veldt)", "Veldt"),
        ("finish(answer='Veldt', confidence=3)", "Veldt"),
        ("finish(result=42)", "42"),
        ("submit_answer(final='Veldt')", "Veldt"),
        ("Finish(answer=E=mc2)", "E=mc2"),
    ],
)
def test_an_answer_with_its_keyword_is_what_stands_behind_it(action, answer):
    assert parse(f"Question: What?\nThought: a\nAction: {action}").answer == answer
